"""A daemon that starts suspends the agents whose workers are gone, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from rota import store
from rota.kernel import Kernel, ScheduleSpec, environment
from rota.rpc.daemon import agent_recovery, lost_workers
from tests.daemon.harness import serving
from tests.store.world import PATIENCE_S

RECOVERED = ("kernel.process.recovered",)


def running(kernel: Kernel, name: str, claim_timeout_s: float | None = None) -> int:
    """An agent that runs, with a claim of this length."""
    pid = kernel.agents.create(name)
    if claim_timeout_s is not None:
        kernel.queue.force_claim(
            kernel.queue.enqueue(ScheduleSpec(pid)), worker_id=name, claim_timeout_s=claim_timeout_s
        )
    kernel.agents.transition(pid, "RUNNING")
    return pid


def test_agents_whose_workers_are_gone_are_suspended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_recovery, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(lost_workers, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(environment, "RETURN_S", 0.1)
    path = tmp_path / "rota.db"
    kernel = Kernel(store.open(str(path)))
    gone, expired = running(kernel, "gone"), running(kernel, "expired", 0.0)
    waiting = running(kernel, "waiting")
    kernel.agents.transition(waiting, "WAITING")
    dying, alive, moved = (running(kernel, name, 1_000.0) for name in ("dying", "alive", "moved"))
    ready = kernel.agents.create("ready")
    kernel.store.close()
    with serving(path) as daemon, daemon.client() as client:
        (event,) = client.journal.tail(0, pid=expired, kinds=RECOVERED, wait_s=PATIENCE_S)  # its heartbeat did not come
        states = {agent.pid: agent.state for agent in client.agents.list()[0]}
        assert states == {
            gone: "SUSPENDED", expired: "SUSPENDED", waiting: "SUSPENDED",
            dying: "RUNNING", alive: "RUNNING", moved: "RUNNING", ready: "READY",
        }  # fmt: skip
        assert client.agents.get(gone).state_reason == "daemon_restart"
        client.journal.append(moved, "worker.note")  # its worker is there
        cursor = client.journal.cursor()
        for pid in (dying, moved):
            client.queue.complete(client.queue.list(pid=pid)[0][0].sched_id, "crashed")  # as if its claim had expired
        (event,) = client.journal.tail(cursor, pid=dying, kinds=RECOVERED, wait_s=PATIENCE_S)
        assert event.payload["reason"] == "daemon_restart"
        later = running_later(client)
        assert [client.agents.get(pid).state for pid in (dying, alive, moved, later)] == ["SUSPENDED", *["RUNNING"] * 3]


def running_later(client: object) -> int:
    agents = client.agents  # type: ignore[attr-defined]
    pid: int = agents.create("later")
    agents.transition(pid, "RUNNING")
    return pid
