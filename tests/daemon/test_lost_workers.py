"""A daemon records that the last worker has vanished, and does what is due: no other process is left to do it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rota import store
from rota.errors import StoreCorrupt
from rota.kernel import Kernel, ScheduleSpec
from rota.model.events import WorkerLost
from rota.model.workers import WORKER_ALIVE_S, SlotPool
from rota.rpc import connect
from rota.rpc.daemon import lost_workers
from rota.store import Statement
from tests.daemon.harness import PATIENCE_S, make_token, serving

EXPIRE = Statement("test_expire", "Made for a test.", "UPDATE agent_schedule_queue SET claim_expires_at = 1")
AGE = Statement("test", "Made for a test.", f"UPDATE workers SET seen_at = seen_at - {WORKER_ALIVE_S}")


def test_a_daemon_notices_that_the_last_worker_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "rota.db")
    monkeypatch.setattr(lost_workers, "LOOK_EVERY_S", 0.01)
    with serving(path, http=False) as served, served.client() as client:
        client.workers.register("box", "i", kind="supervisor", host="rack", os_pid=1, pools=[SlotPool("box", 1)])
        kernel = Kernel(store.open(path))
        kernel.store.write(lambda tx: tx.run(AGE))  # as if it had been silent for a minute
        kernel.store.close()
        (lost,) = client.journal.tail(kinds=(WorkerLost.kind,), wait_s=PATIENCE_S)
        assert (lost.payload["worker_id"], lost.payload["host"]) == ("box", "rack")
        assert client.workers.list(lost=True) == []


def test_a_daemon_does_what_is_due_when_the_last_worker_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "rota.db")
    monkeypatch.setattr(lost_workers, "LOOK_EVERY_S", 0.01)
    with serving(path, http=False) as served, served.client() as client:
        client.workers.register("box", "i", kind="supervisor", host="rack", os_pid=1, pools=[SlotPool("box", 1)])
        pid = client.agents.create("reader")
        run = client.queue.enqueue(ScheduleSpec(pid, max_attempts=1))
        assert [entry.sched_id for entry in client.claim("box", incarnation="i", claim_timeout_s=0.001)] == [run]
        late = client.queue.enqueue(ScheduleSpec(pid, deadline=client.clock.now() + 0.001))
        assert client.queue.wait(run, PATIENCE_S).exit_kind == "crashed"
        assert client.queue.wait(late, PATIENCE_S).state == "expired"
        kernel = Kernel(store.open(path))
        kernel.store.write(lambda tx: tx.run(AGE))
        kernel.store.close()
        (lost,) = client.journal.tail(kinds=(WorkerLost.kind,), wait_s=PATIENCE_S)
        assert (lost.payload["worker_id"], lost.payload["entries"]) == ("box", 1)


def test_a_daemon_does_what_is_due_while_workers_only_send_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lost_workers, "LOOK_EVERY_S", 0.01)
    with serving(str(tmp_path / "rota.db"), http=False) as served, served.client() as client:
        pid = client.agents.create("reader")
        client.queue.enqueue_many([ScheduleSpec(pid, max_attempts=1)] * 2)
        (own,), (lost,) = client.claim("busy"), client.claim("dead", claim_timeout_s=0.001)
        assert client.queue.heartbeat(own.sched_id, own.token or 0).claim_expires_at > client.clock.now()
        assert client.queue.wait(lost.sched_id, PATIENCE_S).outcome == "claim_expired"
        assert client.queue.get(own.sched_id).state == "dispatched"


@pytest.mark.parametrize("transport", ["unix", "url"])
def test_a_daemon_that_was_away_leaves_claims_to_the_heartbeats_of_their_workers(
    tmp_path: Path, transport: str
) -> None:
    path = str(tmp_path / "rota.db")
    with serving(path, http=False) as served, served.client() as client:
        pid = client.agents.create("reader")
        run = client.queue.enqueue(ScheduleSpec(pid))
        (entry,) = client.claim("box", incarnation="i", claim_timeout_s=60)
        client.agents.transition(pid, "RUNNING")  # so that the next daemon asks itself whether its worker is gone
    kernel = Kernel(store.open(path))
    kernel.store.write(lambda tx: tx.run(EXPIRE))  # as if it had been away for longer
    kernel.store.close()
    access: dict[str, Any] = {"token": make_token(path, "work")} if transport == "url" else {}
    with serving(path, http=transport == "url") as served, connect(getattr(served, transport), **access) as client:
        assert client.claim("other") == []
        assert client.queue.get(run).state == "dispatched"
        assert client.agents.get(pid).state == "RUNNING"
        client.queue.heartbeat(run, entry.token or 0)
        assert client.claim("other") == []
        assert client.queue.get(run).attempt == 1


def test_what_cannot_be_done_at_a_daemon_does_not_undo_heartbeats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call is one transaction there: what is due would be undone together with it, or committed half done."""
    with serving(str(tmp_path / "rota.db"), http=False) as served, served.client() as client:
        pid = client.agents.create("reader")
        client.queue.enqueue_many([ScheduleSpec(pid)] * 2)
        (own,), _ = client.claim("busy"), client.claim("dead", claim_timeout_s=0.001)

        def fail(*_: object, **__: object) -> None:
            raise StoreCorrupt("as a fault would be")

        monkeypatch.setattr(served.daemon.handlers.kernel.queue.maintenance, "run_due", fail)
        assert client.queue.heartbeat(own.sched_id, own.token or 0).claim_expires_at > (own.claim_expires_at or 0)
