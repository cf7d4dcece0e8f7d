"""Contexts of CPU time: charged from what runs were measured to use, and the next run waits when one is spent."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.fleet.agent_settings import enqueue_agent
from rota.fleet.config.loader import load_fleet
from rota.fleet.fleet_run import FleetRun
from rota.kernel import Kernel, KernelState, ScheduleSpec
from rota.kernel.run_reports import RunReport
from rota.model import reasons
from rota.service.dispatcher import Dispatcher
from tests.host.support import PATIENCE_S
from tests.kernel.world import World

BUSY = "import time\nwhile time.process_time() < 0.15: pass"


def used(world: World, context_id: int) -> int:
    context = world.contexts.get(context_id)
    return context.budget - context.remaining


def finish(world: World, cpu_ms: int) -> None:
    (entry,) = world.take()
    assert entry.token is not None
    world.dispatcher.turn([RunReport(sched_id=entry.sched_id, token=entry.token, cpu_ms=cpu_ms)], "worker", 0)


def test_a_run_is_charged_its_measured_cpu_time_and_the_next_one_waits_for_the_refill() -> None:
    world = World()
    pid = world.agent()
    context_id = world.contexts.create(
        bound_to="agent", bound_id=pid, budget=500, period_s=60, unit="cpu_ms"
    ).context_id
    for _ in range(3):
        world.put(pid)
    finish(world, 200)
    assert used(world, context_id) == 200
    finish(world, 400)  # beyond what was left: debt
    assert used(world, context_id) == 600
    (sched_id,) = [entry.sched_id for entry in world.queue.list(state="queued")[0]]
    (blocked,) = world.reasons_against(sched_id)
    assert isinstance(blocked, reasons.ContextExhausted)
    world.clock.advance(59)
    assert world.take() == []
    world.clock.advance(2)
    assert [entry.sched_id for entry in world.take()] == [sched_id]
    tables, journal = world.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
    assert journal.at(world.now) == tables.at(world.now)
    world.close()


def test_a_run_without_such_a_context_is_charged_nothing_more() -> None:
    world = World()
    pid, other = world.agent("one"), world.agent("other")
    world.contexts.create(bound_to="agent", bound_id=other, budget=500, period_s=60, unit="cpu_ms")
    world.put(pid)
    finish(world, 200)
    assert [fact for fact in world.facts() if type(fact).__name__ == "LedgerCharged"] == []
    world.close()


def test_tokens_and_cpu_time_of_one_agent_are_counted_apart() -> None:
    world = World()
    pid = world.agent()
    cpu, tokens = (
        world.contexts.create(bound_to="agent", bound_id=pid, budget=500, period_s=60, unit=unit).context_id
        for unit in ("cpu_ms", "tokens")
    )
    world.put(pid, expected={"tokens": 100})
    entry = world.take_one()
    world.queue.charge(entry.sched_id, {"tokens": 70}, token=entry.token)
    report = RunReport(sched_id=entry.sched_id, token=entry.token or 0, cpu_ms=30)
    world.dispatcher.turn([report], "worker", 0)
    assert (used(world, cpu), used(world, tokens)) == (30, 70)
    world.close()


def test_a_real_busy_command_spends_the_cpu_time_of_its_limit_and_blocks_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    (tmp_path / "busy.py").write_text(BUSY)
    path.write_text(f"""
slots = 1
[limits.cpu]
cpu_ms = {{budget = 100, period_s = 3600}}
[agents.busy]
command = [{sys.executable!r}, "-S", "busy.py"]
draws_on = ["cpu"]
""")
    kernel = Kernel(store.open(str(tmp_path / "rota.db")))
    fleet = FleetRun(Dispatcher(kernel, "eevdf"), load_fleet(path))
    fleet.reload()  # so that the agent exists
    (agent,) = kernel.agents.find("busy")
    first, second = (enqueue_agent(kernel, agent.pid) for _ in range(2))
    thread = threading.Thread(target=fleet.run, daemon=True)
    thread.start()
    assert kernel.queue.wait(first, PATIENCE_S).exit_kind == "completed"
    fleet.supervisor.drain()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert kernel.queue.get(second).state == "queued"
    (context,) = kernel.contexts.list()
    assert context.remaining <= -50  # 150 ms or more of 100
    kernel.store.close()


@pytest.mark.parametrize("unit", ["cpu_ms", "tokens"])
def test_a_parents_budget_pays_for_its_child_while_it_waits_and_comes_back(unit: str) -> None:
    """The parent reserves all of the limit. Its child runs on 400 of it, uses 300, and 100 return to the parent."""
    world = World()
    parent_pid, child_pid, other_pid = (world.agent(name) for name in ("parent", "child", "other"))
    limit = world.contexts.create(bound_to="name", bound_id="shared", budget=1_000, period_s=60, unit=unit).context_id
    draws: dict[str, Any] = {"draws_on": ("shared",)}
    parent = world.put(parent_pid, ceiling={unit: 1_000}, **draws)
    run = world.take_one()
    assert run.token is not None
    other = world.put(other_pid, **draws)
    assert world.take() == []  # nothing of the limit is free
    spec = ScheduleSpec(child_pid, parent_id=parent, **draws)
    child = world.kernel.supervision.spawn(spec, run.token, {unit: 400})
    world.kernel.supervision.rest(parent, run.token, waiting=True, awaits=[child])
    (lent,) = world.take()
    assert (lent.sched_id, lent.token is not None) == (child, True)
    if unit == "tokens":
        world.queue.charge(child, {unit: 300}, token=lent.token)
    report = RunReport(sched_id=child, token=lent.token or 0, cpu_ms=300 if unit == "cpu_ms" else 0)
    world.dispatcher.turn([report], "worker", 0)
    assert used(world, limit) == 300
    assert world.kernel.supervision.rest(parent, run.token, waiting=False) == {unit: 100}
    assert world.take() == []  # the parent may still use the other 700
    world.queue.complete(parent, "completed", token=run.token)
    assert [entry.sched_id for entry in world.take()] == [other]
    world.close()
