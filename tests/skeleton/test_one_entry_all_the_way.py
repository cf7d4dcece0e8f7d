"""One entry goes all the way: from the public object to the file and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

from rota import Rota, store
from rota.clock import ManualClock
from rota.errors import (
    RunFailed,
    SchedIllegalTransition,
    SchedInvalidPayload,
    SchedUnknownId,
    SchemaMismatch,
    StaleClaim,
    StoreUnavailable,
    UnknownPid,
    WaitTimeout,
)
from rota.kernel import Kernel, ScheduleSpec
from rota.model.event_codec import decode
from rota.store.migrations import LATEST


def test_a_function_becomes_an_agent_and_its_entry_runs() -> None:
    log: list[Any] = []
    with Rota() as rota:

        @rota.agent()
        def summarise(run: Any, url: str) -> dict[str, Any]:
            log.append((run.sched_id, run.attempt, run.token, url))
            return {"read": url}

        job = summarise.enqueue(url="a page", priority=5)
        with pytest.raises(WaitTimeout):
            job.result()
        assert rota.run(until_idle=True).runs == 1
        assert job.result() == {"read": "a page"}
        assert job.entry().state == "completed"
        events = rota.kernel.journal.tail()
        assert [event.kind for event in events] == [
            "kernel.process.created",
            "kernel.sched.enqueued",
            "kernel.supervisor.moved",
            "kernel.sched.claimed",
            "kernel.process.transitioned",
            "kernel.run.ended",
            "kernel.sched.completed",
            "kernel.process.transitioned",
            "kernel.process.transitioned",
            "kernel.supervisor.moved",
            "kernel.supervisor.moved",
        ]
        claimed = events[3]
        assert log == [(1, 1, claimed.event_id, "a page")]  # the token is the event id of the claim
        assert [decode(event.kind, event.payload).kind for event in events] == [event.kind for event in events]


def test_an_agents_exception_fails_its_run_only() -> None:
    with Rota() as rota:

        @rota.agent()
        def broken(_run: Any) -> None:
            raise RuntimeError("no network")

        job = broken.enqueue()
        rota.run(until_idle=True)
        assert job.entry().exit_kind == "failed"
        with pytest.raises(RunFailed, match="no network"):
            job.result()


def test_entries_survive_reopening_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    with Rota(path) as rota:
        pid = rota.api.agents.create("worker")
        sched_id = rota.api.queue.enqueue(ScheduleSpec(pid, 3, payload={"n": 1}))
    with Rota(path) as rota:
        entry = rota.api.queue.get(sched_id)
        assert (entry.state, entry.priority, entry.payload) == ("queued", 3, {"n": 1})


def _kernel(clock: ManualClock | None = None) -> tuple[Kernel, int]:
    kernel = Kernel(store.open(":memory:"), clock or ManualClock(now=100.0))
    return kernel, kernel.agents.create("a")


def test_claims_come_in_strict_order_and_never_overlap() -> None:
    kernel, pid = _kernel()
    low, high, first = (kernel.queue.enqueue(ScheduleSpec(pid, priority)) for priority in (1, 5, 5))
    assert [entry.sched_id for entry in kernel.queue.claim(worker_id="w1", max_n=2)] == [high, first]
    assert [entry.sched_id for entry in kernel.queue.claim(worker_id="w2", max_n=2)] == [low]
    assert kernel.queue.claim(worker_id="w3") == []


def test_an_entry_is_invisible_before_its_time_and_after_its_deadline() -> None:
    clock = ManualClock(now=100.0)
    kernel, pid = _kernel(clock)
    later = kernel.queue.enqueue(ScheduleSpec(pid, runnable_at=110.0))
    kernel.queue.enqueue(ScheduleSpec(pid, deadline=100.0))
    assert kernel.queue.claim(worker_id="w", max_n=9) == []
    clock.advance(10)
    assert [entry.sched_id for entry in kernel.queue.claim(worker_id="w", max_n=9)] == [later]


def test_a_claim_that_finds_nothing_writes_nothing() -> None:
    kernel, _ = _kernel()
    before = kernel.journal.tail()
    assert kernel.queue.claim(worker_id="w") == []
    assert kernel.journal.tail() == before


def test_a_stale_token_changes_nothing() -> None:
    kernel, pid = _kernel()
    kernel.queue.enqueue(ScheduleSpec(pid))
    (entry,) = kernel.queue.claim(worker_id="w")
    with pytest.raises(StaleClaim):
        kernel.queue.complete(entry.sched_id, "completed", token=(entry.token or 0) + 1)
    assert kernel.queue.get(entry.sched_id).state == "dispatched"
    assert kernel.queue.complete(entry.sched_id, "completed", token=entry.token) == ("dispatched", "completed")
    with pytest.raises(SchedIllegalTransition):
        kernel.queue.complete(entry.sched_id, "completed")


def test_bad_input_gets_its_typed_error_and_nothing_is_written() -> None:
    kernel, pid = _kernel()
    before = kernel.journal.tail()
    with pytest.raises(UnknownPid):
        kernel.queue.enqueue(ScheduleSpec(99))
    with pytest.raises(SchedInvalidPayload, match="is not JSON"):
        kernel.queue.enqueue(ScheduleSpec(pid, payload={"f": object()}))
    with pytest.raises(SchedInvalidPayload, match="maximum is 262,144"):
        kernel.queue.enqueue(ScheduleSpec(pid, payload={"s": "x" * 262_144}))
    for worker_id, max_n in (("", 1), ("w", 0), ("w", True)):
        with pytest.raises(SchedInvalidPayload):
            kernel.queue.claim(worker_id=worker_id, max_n=max_n)
    with pytest.raises(SchedUnknownId):
        kernel.queue.get(99)
    assert kernel.journal.tail() == before


@pytest.mark.parametrize("stamp", ["4", "99", str(LATEST + 1), "abc", "-1"])
def test_a_file_with_another_schema_is_rejected_and_not_written(tmp_path: Path, stamp: str) -> None:
    path = tmp_path / "other.db"
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE kernel_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
    connection.execute("INSERT INTO kernel_meta VALUES ('schema_version', ?)", (stamp,))
    connection.close()
    before = path.read_bytes()
    with pytest.raises(SchemaMismatch):
        store.open(str(path))
    assert path.read_bytes() == before


def test_a_store_that_cannot_be_opened_raises(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="cannot open"):
        store.open(str(tmp_path / "missing" / "rota.db"))
    with pytest.raises(StoreUnavailable, match="no store for"):
        store.open("ftp://somewhere")
