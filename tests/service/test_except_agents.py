"""Agents that a worker cannot run: its claims leave their entries out, and what is behind them is found."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from rota import Rota
from rota.errors import SchedInvalidPayload
from rota.kernel.run_reports import RunReport
from rota.kernel.turn import EXCEPT_AGENTS_MAX
from rota.model.work import ScheduleSpec
from rota.policy import registry
from tests.supervisor.world import PATIENCE_S


@pytest.fixture
def rota() -> Iterator[Rota]:
    with Rota(":memory:") as made:
        yield made


@pytest.fixture
def pids(rota: Rota) -> list[int]:
    """Three agents, of two projects, with three entries each; those of the first one go before all others."""
    rota.api.projects.create("lab")
    pids = [rota.api.agents.create(f"agent {number}", project_id="lab" if number else None) for number in range(3)]
    for pid in pids:
        rota.api.queue.enqueue_many([ScheduleSpec(pid, 9 if pid == pids[0] else 0) for _ in range(3)])
    return pids


@pytest.mark.parametrize("policy", registry.names())
@pytest.mark.parametrize("count", [1, 2, 10])
def test_a_claim_leaves_them_out_and_takes_what_is_behind(rota: Rota, pids: list[int], policy: str, count: int) -> None:
    first, own, other = pids
    taken: list[int] = []
    while entries := rota.api.claim("w", count, policy=policy, except_agents=(other, first, first)):
        taken += [entry.pid for entry in entries]
    assert taken == [own] * 3
    rest = [entry.pid for _ in range(6) for entry in rota.api.claim("other", 1, policy=policy)]
    assert Counter(rest) == {first: 3, other: 3}


def test_a_look_leaves_them_out_too(rota: Rota, pids: list[int]) -> None:
    found = rota.api.queue.peek(9, except_agents=pids[:2])
    assert [entry.pid for entry in found] == [pids[2]] * 3


def test_a_parked_claim_without_them_is_not_taken_for_one_with_them(rota: Rota) -> None:
    pid = rota.api.agents.create("agent")
    found: dict[str, list[int]] = {}

    def claim(worker: str, *left_out: int) -> threading.Thread:
        def wait() -> None:
            entries = rota.api.claim(worker, wait_s=PATIENCE_S, except_agents=left_out)
            found[worker] = [entry.pid for entry in entries]

        store: Any = rota.kernel.store
        parked = store.parked
        thread = threading.Thread(target=wait)
        thread.start()
        while store.parked == parked:
            threading.Event().wait(0.001)
        return thread

    without, both = claim("without", pid), claim("both")
    rota.api.queue.enqueue(ScheduleSpec(pid))
    both.join(PATIENCE_S)
    assert found == {"both": [pid]}
    rota.kernel.queue.nudge("without")
    without.join(PATIENCE_S)
    assert found["without"] == []


def test_there_is_a_maximum_and_they_are_numbers(rota: Rota) -> None:
    pid = rota.api.agents.create("agent")
    rota.api.queue.enqueue(ScheduleSpec(pid))
    others = tuple(range(1_000, 1_000 + EXCEPT_AGENTS_MAX))
    wrong: Any
    for wrong in ((*others, 1), ["agent"], [True], 7):
        with pytest.raises(SchedInvalidPayload, match="except_agents"):
            rota.api.claim("w", except_agents=wrong)
    assert [entry.pid for entry in rota.api.claim("w", except_agents=others)] == [pid]


def test_a_worker_that_leaves_out_a_project_costs_it_no_credit(rota: Rota) -> None:
    agents = {rota.agent(name, project=name)(print).pid: name for name in ("a", "b")}
    for pid in agents:
        rota.api.queue.enqueue_many([ScheduleSpec(pid) for _ in range(60)])

    def run(worker: str, *left_out: int, seconds: int = 1) -> int | None:
        entries = rota.api.turn([], worker, 1, except_agents=left_out).entries
        for entry in entries:
            report = RunReport(sched_id=entry.sched_id, token=entry.token or 0, usage={"tokens": seconds})
            rota.api.turn([report], worker, 0)
        return entries[0].pid if entries else None

    first = run("w", seconds=20)  # the other project is owed 20 tokens
    assert first is not None
    (owed,) = agents.keys() - {first}
    served = Counter[str]()
    for _ in range(10):
        assert run("w2", first, owed) is None
        ran = run("w")
        assert ran is not None
        served[agents[ran]] += 1
    assert served[agents[first]] <= 1
