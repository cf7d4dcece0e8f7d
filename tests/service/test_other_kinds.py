"""Projects whose entries need other kinds of slots than a worker has: what they are owed is kept, up to a maximum."""

from __future__ import annotations

from collections import Counter

from rota import Rota
from rota.kernel.run_reports import RunReport
from rota.model.work import ScheduleSpec
from rota.model.workers import ONLY_KINDS
from rota.service.flow_pass import CREDIT_RUNS_MAX


def prepared(rota: Rota, *names: str, count: int, kinds: tuple[str, ...]) -> dict[int, str]:
    """Two projects of the same weight, each with entries of one kind."""
    agents = {rota.agent(name, project=name)(print).pid: name for name in names}
    for pid, kind in zip(agents, kinds, strict=True):
        for _ in range(count):
            rota.api.queue.enqueue(ScheduleSpec(pid, kind=kind or None))
    return agents


def run(rota: Rota, worker: str, *kinds: str, seconds: int = 1) -> int | None:
    """Claim one entry and end its run; return its agent."""
    entries = rota.api.turn([], worker, 1, kinds=kinds).entries
    for entry in entries:
        assert entry.token is not None
        report = RunReport(sched_id=entry.sched_id, token=entry.token, usage={"cpu_s": seconds})
        rota.api.turn([report], worker, 0)
    return entries[0].pid if entries else None


def test_a_worker_that_can_run_nothing_costs_a_project_no_credit() -> None:
    with Rota(":memory:", share_by="cpu") as rota:
        agents = prepared(rota, "a", "b", count=60, kinds=("x", "y"))
        served: Counter[str] = Counter()
        first = run(rota, "w", ONLY_KINDS, "x", "y", seconds=20)  # the other project is owed 20 seconds
        assert first is not None
        for _ in range(20):
            assert run(rota, "other") is None
            pid = run(rota, "w", ONLY_KINDS, "x", "y")
            assert pid is not None
            served[agents[pid]] += 1
        assert served[agents[first]] <= 1


def test_a_project_that_no_worker_can_serve_has_a_maximum_of_credit() -> None:
    with Rota(":memory:", share_by="cpu") as rota:
        agents = prepared(rota, "plain", "rare", count=3 * CREDIT_RUNS_MAX, kinds=("", "rare"))
        for _ in range(2 * CREDIT_RUNS_MAX):
            run(rota, "w")
        served = [agents[pid] for _ in range(CREDIT_RUNS_MAX + 6) if (pid := run(rota, "w", "rare")) is not None]
        assert served[:8] == ["rare"] * 8
        assert "plain" in served
