"""A pass asks a policy again only when there are entries that the policy has not seen."""

from __future__ import annotations

from rota import store
from rota.clock import ManualClock
from rota.kernel import Kernel, ScheduleSpec
from rota.model.reasons import PickReason
from rota.model.snapshot import Decisions, Snapshot
from rota.policy.contract import Policy, assign_slots
from rota.service.dispatcher import Dispatcher

AGENTS = 20


class Counted:
    """Ranks by id, and counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, snapshot: Snapshot) -> Decisions:
        self.asked += 1
        ordered = sorted(snapshot.candidates, key=lambda candidate: candidate.id)
        return assign_slots(((each, PickReason("by_id", "has the lowest id")) for each in ordered), snapshot.slots)


def claim_all(entries_each: int, *, max_n: int) -> tuple[list[int], int]:
    """Claim from agents that run one entry at a time; return the entries and how often the policy was asked."""
    kernel = Kernel(store.open(":memory:", clock=ManualClock(1_000.0)))
    rank = Counted()
    dispatcher = Dispatcher(kernel, Policy(name="by_id", rank=rank, sentence="The lowest id."))
    for _ in range(AGENTS):
        pid = kernel.agents.create("agent", max_concurrent=1)
        kernel.queue.enqueue_many([ScheduleSpec(pid)] * entries_each)
    claimed = [entry.sched_id for entry in dispatcher.claim("worker", max_n)]
    kernel.store.close()
    return claimed, rank.asked


def test_agents_without_more_entries_cost_no_further_round() -> None:
    claimed, asked = claim_all(2, max_n=10)
    assert claimed == list(range(1, 20, 2))
    # half of the picks of each round are refused, because their agent runs already; then the rest is asked for
    assert asked <= 5, "not one round for each agent"


def test_an_agent_with_more_entries_than_were_shown_is_ranked_again() -> None:
    claimed, asked = claim_all(30, max_n=10)
    assert claimed == list(range(1, 300, 30))
    assert asked > 1
