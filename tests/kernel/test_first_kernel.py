"""Every verb works on a file of the first kernel, under every policy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota.clock import ManualClock
from rota.errors import IllegalTransition, LedgerExists, SchedIllegalTransition
from rota.kernel import KernelState, ScheduleSpec
from tests.kernel.world import POLICIES, World
from tests.store.first_kernel_files import VERSIONS, make_first_kernel

NOW = 10_000.0  # after everything in the file
pytestmark = pytest.mark.only_on("file", reason="a file of the first kernel is an SQLite file")


@pytest.fixture(params=VERSIONS)
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    path = str(tmp_path_factory.mktemp("first") / "kernel.db")
    make_first_kernel(path, request.param)
    made = World(path, ManualClock(NOW))
    yield made
    replayed, stored = made.store.read(KernelState.from_journal), made.store.read(KernelState.from_tables)
    assert replayed.at(made.now) == stored.at(made.now)
    assert made.kernel.check() == []
    made.store.close()


def has(world: World, table: str) -> bool:
    return bool(world.ledger.get(1)) if table == "ledgers" else world.queue.list()[1] > 1


def test_agents(world: World) -> None:
    agents, total = world.agents.list(limit=100)
    assert (total, [agent.pid for agent in agents]) == (7, [1, 2, 3, 4, 5, 9, 10])
    assert all(agent.unreadable is None for agent in agents)
    assert [agent.exit_detail for agent in agents] == [{}] * 5 + [{"at": None}, {}]
    assert [agent.pid for agent in world.agents.find("child")] == [3, 2]
    assert world.agents.get(4).state_reason == "r" * 9_000
    new = world.agents.create("new", parent_pid=9)
    assert world.agents.get(new).exit_detail == {}
    assert world.agents.update(2, priority=4, metadata={"x": 1}).priority == 4
    assert world.agents.update(4, weight=2_000).weight == 2_000
    world.agents.pause(2, "me")
    assert [agent.pid for agent in world.agents.paused("me")] == [2]
    world.agents.resume(2, "me")
    assert world.agents.transition(2, "RUNNING", expect="READY").started_at == NOW
    assert world.agents.recover() == [1, 2, 3]
    assert world.agents.transition(4, "READY").state == "READY"
    assert world.kernel.terminate(3, "crashed", {"why": "test"}).exit_detail == {"why": "test"}
    with pytest.raises(IllegalTransition):
        world.kernel.terminate(9, "completed")
    assert world.agents.create("gone", unique=True) == 17


def test_ledgers(world: World) -> None:
    if has(world, "ledgers"):
        assert [line.pid for line in world.ledger.list_breached()] == [5]
        with pytest.raises(LedgerExists):
            world.ledger.create(1, {"tokens": 5})
        assert world.ledger.charge(1, "tokens", 3_800).used == 5_000
        assert world.ledger.check(1, "tokens", 1).would_exceed
        assert world.ledger.refund(5, "cost_micro", 6_999).used == 1
        assert world.ledger.update_grant(2, "any name", 9).granted == 9
    world.ledger.create(1, {"wall_s": 60}, warn_at=0.5)
    assert world.ledger.charge(1, "wall_s", 61).first_breach
    world.ledger.create(4, {"tokens": 10})
    assert [line.dim for line in world.ledger.get(4)] == ["tokens"]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_queue(world: World, policy: str) -> None:
    had_queue = has(world, "queue")
    put = world.put(4, priority=3)
    claimed = world.dispatcher.claim("w", 100, policy=policy)
    ready = {1, 6, 11} if had_queue else set()  # 5 waits for a grant, 7 for its time, 2 and 12 are past their deadline
    assert {entry.sched_id for entry in claimed} == {put, *ready}
    assert all(entry.attempt == 1 for entry in claimed)
    for entry in claimed:
        assert entry.token is not None
        world.queue.heartbeat(entry.sched_id, entry.token)
        world.queue.complete(entry.sched_id, "completed", token=entry.token, result={"ok": True})
    if not had_queue:
        return
    assert world.state(2) == world.state(12) == "expired"
    assert (world.queue.get(3).state, world.queue.get(3).attempt) == ("queued", 1)  # taken back: its worker is gone
    live = world.queue.get(13)  # the clock of its worker ran ahead
    assert (live.state, live.worker_id, live.attempt) == ("dispatched", "w-1", 1)
    assert live.token is not None
    assert world.queue.heartbeat(13, live.token).claim_expires_at == NOW + 3_600
    assert world.queue.complete(13, "failed") == ("dispatched", "completed")  # its worker knows no token
    with pytest.raises(SchedIllegalTransition):
        world.queue.complete(14, "completed")
    assert world.queue.force_claim(5, worker_id="w", admission_check=False).sched_id == 5
    assert world.queue.change(7, runnable_at=0.0, priority=7).hold is None
    assert world.queue.cancel(7) == ("queued", "cancelled")
    world.clock.advance(400)
    assert [entry.sched_id for entry in world.dispatcher.claim("w", 100, policy=policy)] == [3]
    assert world.queue.list(pid=9)[1] == 2


def test_the_rest(world: World) -> None:
    events = world.journal.tail(0, limit=5)
    assert [event.event_id for event in events] == [1, 2, 3, 4, 6]
    assert world.journal.append(1, "user.note", {"a": 1}) > 7
    world.projects.create("p")
    pid = world.agent("worker", project_id="p")
    world.contexts.create(bound_to="name", bound_id="api", unit="requests", budget=5, period_s=1.0)
    sched_id = world.queue.enqueue(ScheduleSpec(pid, draws_on=("api",), tags=("t",), key="k"))
    assert sched_id in world.take_ids()
    assert world.kernel.retention.prune(events_older_than_s=1.0, entries_older_than_s=1.0).events > 0
    assert world.kernel.info()["next_pid"] == pid + 1
