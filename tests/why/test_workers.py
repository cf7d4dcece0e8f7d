"""Whether a worker is there that would claim an entry: the outlook besides the reasons."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rota import Rota, store
from rota.clock import ManualClock
from rota.fleet.config.apply import apply_fleet
from rota.fleet.config.loader import load_fleet
from rota.kernel import Kernel, ScheduleSpec
from rota.model import reasons
from rota.model.agent_metadata import SETTINGS_KEY
from rota.model.reasons import WorkerReason
from rota.model.workers import WORKER_ALIVE_S, WORKER_SILENT_S, SlotPool
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import explain
from rota.service.explanation_summary import explain_many

START = "rota run fleet.toml"


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel(store.open(":memory:", clock=ManualClock(1_000.0)))
    yield made
    made.store.close()


def register(kernel: Kernel, name: str, *pools: SlotPool, draining: bool = False) -> None:
    kernel.workers.register(name, "i", kind="supervisor", host="h", os_pid=1, pools=pools, draining=draining)


def outlook(kernel: Kernel, kind: str | None = None) -> WorkerReason | None:
    """The outlook of a new entry, about which nothing else is to say."""
    pid = min((agent.pid for agent in kernel.agents.find("coder")), default=0) or kernel.agents.create("coder")
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid, 9, kind=kind))
    found = explain(Dispatcher(kernel), sched_id, kinds=() if kind is None else (kind,))
    kernel.queue.cancel(sched_id)
    assert found.starts, "a reason of the claim"
    assert found.agent == "coder"
    return found.workers


def test_without_a_worker_it_says_how_to_start_one(kernel: Kernel) -> None:
    found = outlook(kernel)
    assert found == reasons.NoWorker(start=START)
    assert found.sentence() == "no worker is running: start one with `rota run fleet.toml`"


def test_a_worker_with_a_free_slot_is_enough_until_it_is_lost(kernel: Kernel) -> None:
    register(kernel, "box", SlotPool("box", 1))
    assert outlook(kernel) is None
    assert isinstance(kernel.clock, ManualClock)
    kernel.clock.advance(WORKER_ALIVE_S)
    assert outlook(kernel) == reasons.NoWorker(start=START)


def test_a_worker_that_only_claims_may_have_any_slot(kernel: Kernel) -> None:
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("coder"), 99))
    kernel.queue.claim(worker_id="plain")
    assert outlook(kernel) is None
    assert outlook(kernel, "gpu") is None


def test_no_worker_has_a_slot_of_the_kind(kernel: Kernel) -> None:
    register(kernel, "box", SlotPool("box", 4), SlotPool("box/cpu", 1, ("cpu",)))
    assert outlook(kernel, "cpu") is None
    found = outlook(kernel, "gpu")
    assert found == reasons.NoWorkerForKind(kind="gpu", start=START)
    assert found.sentence() == "no running worker has a slot of kind gpu: start one with `rota run fleet.toml`"


def test_no_worker_has_the_function_of_the_agent(kernel: Kernel) -> None:
    pid = kernel.agents.create("coder")
    register(kernel, "mail", SlotPool("mail", 4, except_agents=(pid,)))
    assert outlook(kernel) == reasons.NoFunction(start=START)
    found = explain(Dispatcher(kernel), kernel.queue.enqueue(ScheduleSpec(pid)))
    assert (found.starts, found.start.starts_at) == (True, None)
    assert found.start.basis == "no running worker has its agent's function: start one with `rota run fleet.toml`"
    register(kernel, "box", SlotPool("box", 1, except_agents=(pid + 1,)))
    assert outlook(kernel) is None


@pytest.mark.parametrize(("settings", "runner"), [
    ({}, None), ({"runner": "callable"}, None), ({"runner": "ray", "ray": {}}, None), ({"runner": "pigeon"}, "pigeon"),
])  # fmt: skip
def test_what_no_worker_has_is_the_function_or_the_runner(
    kernel: Kernel, settings: dict[str, Any], runner: str | None
) -> None:
    pid = kernel.agents.create("coder", metadata={SETTINGS_KEY: settings})
    register(kernel, "mail", SlotPool("mail", 4, except_agents=(pid,)))
    found = explain(Dispatcher(kernel), kernel.queue.enqueue(ScheduleSpec(pid)))
    if runner is None:
        assert isinstance(found.workers, reasons.NoFunction)
    else:
        assert found.workers == reasons.NoRunner(runner=runner)
        assert found.start.basis == "no running worker has its agent's runner, pigeon"
    assert (found.starts, found.start.starts_at) == (True, None)
    counted = explain_many(Dispatcher(kernel)).reasons
    assert [each.reason for each in counted] == [found.workers]


def test_an_entry_that_is_blocked_has_the_estimate_of_that(kernel: Kernel) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("coder"), runnable_at=2_000.0))
    found = explain(Dispatcher(kernel), sched_id)
    assert (found.workers, found.start.starts_at) == (reasons.NoWorker(start=START), 2_000.0)


def test_every_fitting_worker_drains(kernel: Kernel) -> None:
    register(kernel, "old", SlotPool("old", 1), draining=True)
    found = outlook(kernel)
    assert found == reasons.WorkersDraining(workers=("old",), start=START)
    assert found.sentence() == f"every worker that could run it is draining (old): start one with `{START}`"
    register(kernel, "new", SlotPool("new", 1))
    assert outlook(kernel) is None


def test_every_fitting_worker_is_silent(kernel: Kernel) -> None:
    clock = kernel.clock
    assert isinstance(clock, ManualClock)
    register(kernel, "box", SlotPool("box", 2))
    pid = kernel.agents.create("coder")
    running, ready = kernel.queue.enqueue_many([ScheduleSpec(pid)] * 2)
    kernel.queue.claim(worker_id="box", incarnation="i", claim_timeout_s=60)
    clock.advance(WORKER_SILENT_S - 1)
    assert outlook(kernel) is None
    clock.advance(1)
    found = reasons.WorkersSilent(workers=("box",), silent_s=WORKER_SILENT_S)
    assert found.sentence() == "worker box has been silent for 20 s: it is stopped, cut off from the store, or dead"
    assert outlook(kernel) == found
    assert [explain(Dispatcher(kernel), each).workers for each in (running, ready)] == [found, found]
    assert explain(Dispatcher(kernel), ready).start.starts_at is None
    both = msgspec.structs.replace(found, workers=("box", "rack"))
    assert both.sentence().startswith("workers box, rack have been silent for 20 s: they are stopped")
    assert reasons.WorkersSilent().sentence().startswith("its worker has been silent: it is")
    register(kernel, "rack", SlotPool("rack", 1))
    assert outlook(kernel) is None
    assert explain(Dispatcher(kernel), running).workers == found
    clock.advance(WORKER_ALIVE_S)
    explained = explain(Dispatcher(kernel), running)
    assert (explained.state, explained.claim_expired_at) == ("queued", clock.now() - WORKER_SILENT_S)
    assert explain(Dispatcher(kernel), ready).claim_expired_at is None


def test_every_fitting_slot_is_busy_and_the_entries_that_hold_them_are_named(kernel: Kernel) -> None:
    pid = kernel.agents.create("coder")
    register(kernel, "box", SlotPool("box", 2), SlotPool("box/gpu", 1, ("gpu",)))
    ids = kernel.queue.enqueue_many([ScheduleSpec(pid)] * 2)
    kernel.queue.claim(worker_id="box", incarnation="i", max_n=2)
    assert outlook(kernel) is None  # a slot for gpu runs entries of no kind too
    ids.append(kernel.queue.enqueue(ScheduleSpec(pid)))
    kernel.queue.claim(worker_id="box/gpu", incarnation="i", kinds=("gpu",))
    found = outlook(kernel)
    assert found == reasons.SlotsBusy(slots=3, held_by=tuple(ids))
    assert found.sentence() == f"all 3 slots that fit it are busy with entries {ids[0]}, {ids[1]}, {ids[2]}"
    found = outlook(kernel, "gpu")
    assert found == reasons.SlotsBusy(slots=1, held_by=(ids[2],))
    assert found.sentence() == f"every slot that fits it is busy with entry {ids[2]}"


def test_a_run_that_waits_for_its_children_holds_no_slot(kernel: Kernel) -> None:
    pid = kernel.agents.create("coder")
    register(kernel, "box", SlotPool("box", 1))
    kernel.queue.enqueue(ScheduleSpec(pid, 99))
    turn = Dispatcher(kernel).turn([], "box", incarnation="i")
    (run,) = turn.entries
    assert isinstance(outlook(kernel), reasons.SlotsBusy)
    kernel.supervision.rest(run.sched_id, run.token or 0, waiting=True)
    assert outlook(kernel) is None


def test_an_entry_that_runs_or_has_ended_needs_no_worker(kernel: Kernel) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("coder")))
    kernel.queue.claim(worker_id="box")
    assert explain(Dispatcher(kernel), sched_id).workers is None
    kernel.queue.complete(sched_id, "completed")
    assert explain(Dispatcher(kernel), sched_id).workers is None


def test_a_blocked_entry_has_an_outlook_too(kernel: Kernel) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("coder"), runnable_at=2_000.0))
    found = explain(Dispatcher(kernel), sched_id)
    assert (len(found.blocking), found.workers) == (1, reasons.NoWorker(start=START))


# --- how to start one ----------------------------------------------------------------------------


def test_the_fleet_file_is_named_if_the_store_knows_it(tmp_path: Path) -> None:
    file = tmp_path / "my fleet.toml"
    file.write_text('store = "rota.db"\n[agents.coder]\ncommand = ["true"]\n')
    kernel = Kernel(store.open(str(tmp_path / "rota.db")))
    apply_fleet(Dispatcher(kernel), load_fleet(file))
    (coder,) = kernel.agents.find("coder")
    found = explain(Dispatcher(kernel), kernel.queue.enqueue(ScheduleSpec(coder.pid)))
    assert found.workers == reasons.NoWorker(start=f"rota run '{file}'")
    kernel.store.close()


def test_a_function_is_run_by_its_program() -> None:
    with Rota() as rota:

        @rota.agent()
        def coder() -> None:
            pass

        job = coder.enqueue()
        found = explain(rota.api, job.sched_id)  # type: ignore[arg-type]  # it is embedded
        assert found.workers == reasons.NoWorker(start="rota.run()")
