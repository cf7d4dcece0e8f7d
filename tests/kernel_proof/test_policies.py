"""A policy that raises, hangs or answers nonsense costs order and nothing else.

Strict order takes its place in the same claim, the journal says why, and it sits out for a while before it may try
again. No claim fails, no entry is claimed twice, and no other policy is affected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Kernel, ScheduleSpec
from rota.model.events import PolicyFellBack
from rota.model.reasons import PickReason
from rota.model.snapshot import Candidate, Decision, Decisions, Snapshot
from rota.policy.contract import Policy
from rota.service.dispatcher import Dispatcher
from rota.service.policy_guard import SUSPENSION_S

START_AT = 1_000.0
HANGS_S = 60.0  # real time, and only to end a test that would hang

# --- policies ------------------------------------------------------------------------------------


def decided(candidate: Candidate | int, slot: int) -> Decision:
    return Decision(candidate if isinstance(candidate, int) else candidate.id, slot, PickReason("mine", "I say so"))


def lowest_priority_first(snapshot: Snapshot) -> Decisions:
    """A valid user policy: the opposite of strict."""
    order = sorted(snapshot.candidates, key=lambda candidate: (candidate.priority, candidate.id))
    return tuple(decided(each, slot.id) for each, slot in zip(order, snapshot.slots, strict=False))


def raises(_: Snapshot) -> Decisions:
    raise ZeroDivisionError("no candidates left to divide")


def exits(_: Snapshot) -> Decisions:
    raise SystemExit(1)


def returns(answer: Any) -> Callable[[Snapshot], Any]:
    return lambda _: answer


def strangers(snapshot: Snapshot) -> Decisions:
    return (*lowest_priority_first(snapshot)[:1], decided(10**9, 0))


def duplicates(snapshot: Snapshot) -> Decisions:
    return lowest_priority_first(snapshot)[:1] * 2


def too_many(snapshot: Snapshot) -> Decisions:
    """One more than there are slots, each of them known and different."""
    return tuple(decided(each, 0) for each in snapshot.candidates[: len(snapshot.slots) + 1])


class ScriptedPolicy:
    """A policy that runs the given function and counts its calls."""

    def __init__(self, rank: Callable[[Snapshot], Any]) -> None:
        self.rank = rank
        self.asked = 0

    def __call__(self, snapshot: Snapshot) -> Decisions:
        self.asked += 1
        answer: Decisions = self.rank(snapshot)
        return answer


class Shop:
    """An in-memory kernel with ten agents, each with one entry; their priorities are 0 to 9."""

    def __init__(self, rank: Callable[[Snapshot], Any]) -> None:
        self.clock = ManualClock(START_AT)
        self.kernel = Kernel(store.open(":memory:", clock=self.clock))
        self.mood = ScriptedPolicy(rank)
        self.api = Dispatcher(self.kernel, Policy(name="mine", rank=self.mood, sentence="As it is told."))
        for priority in range(10):
            self.kernel.queue.enqueue(ScheduleSpec(self.kernel.agents.create(f"a{priority}"), priority))

    def claim(self, most: int = 2) -> list[int]:
        """The priorities of what was handed out."""
        return [entry.priority for entry in self.api.claim("w", most)]

    def fallbacks(self) -> list[dict[str, Any]]:
        events = self.kernel.journal.tail(limit=10_000)
        return [event.payload for event in events if event.kind == PolicyFellBack.kind]


# --- failing -------------------------------------------------------------------------------------

FAILURES = {
    "raises": (raises, "raised"),
    "exits": (exits, "raised"),
    "answers None": (returns(None), "nonsense"),
    "answers a word": (returns("strict"), "nonsense"),
    "answers numbers": (returns((1, 2)), "nonsense"),
    "picks a stranger": (strangers, "nonsense"),
    "picks one twice": (duplicates, "nonsense"),
    "picks too many": (too_many, "nonsense"),
}


@pytest.mark.parametrize(("rank", "failure"), FAILURES.values(), ids=FAILURES.keys())
def test_a_policy_that_fails_is_replaced_by_strict_order_for_a_while(
    rank: Callable[[Snapshot], Any], failure: str
) -> None:
    shop = Shop(rank)
    assert shop.claim() == [9, 8]
    assert [(fact["policy"], fact["failure"]) for fact in shop.fallbacks()] == [("mine", failure)]
    assert shop.mood.asked == 1

    shop.clock.advance(SUSPENSION_S - 1)
    assert shop.claim() == [7, 6]
    assert (shop.mood.asked, len(shop.fallbacks())) == (1, 1)  # suspended: neither called nor recorded again

    shop.clock.advance(1)
    assert shop.claim() == [5, 4]
    assert (shop.mood.asked, len(shop.fallbacks())) == (2, 2)  # it may try again, and fails again

    shop.clock.advance(SUSPENSION_S)
    shop.mood.rank = lowest_priority_first
    assert shop.claim() == [0, 1]
    assert len(shop.fallbacks()) == 2  # repaired, it is used as before


def test_a_policy_that_hangs_is_not_waited_for() -> None:
    let_go = threading.Event()

    def hangs(snapshot: Snapshot) -> Decisions:
        let_go.wait(HANGS_S)
        return lowest_priority_first(snapshot)

    shop = Shop(hangs)
    try:
        assert shop.claim() == [9, 8]
        assert [fact["failure"] for fact in shop.fallbacks()] == ["stalled"]
        assert shop.claim() == [7, 6]
        assert shop.mood.asked == 1
    finally:
        let_go.set()
    assert shop.kernel.queue.counts() == {"queued": 6, "dispatched": 4}


def test_claims_before_a_failure_stay_and_strict_order_fills_the_rest() -> None:
    """It is shown an agent's first entries, takes them all, and fails when it is shown the next ones."""
    shop = Shop(lowest_priority_first)
    moods = iter([lowest_priority_first, raises])

    def changes(snapshot: Snapshot) -> Decisions:
        return next(moods)(snapshot)

    shop.mood.rank = changes
    busy = shop.kernel.agents.create("busy")
    shop.kernel.queue.enqueue_many([ScheduleSpec(busy, -1 - number) for number in range(40)])
    handed_out = shop.claim(45)
    shown = -handed_out[0]  # of the busy one's entries, in the first round
    assert handed_out[:shown] == list(range(-shown, 0))  # the policy's picks: the least important first
    assert handed_out[shown:] == [*range(9, -1, -1), *range(-shown - 1, -36, -1)]
    assert (shop.mood.asked, len(shop.fallbacks())) == (2, 1)


def test_one_suspended_policy_does_not_affect_another() -> None:
    shop = Shop(raises)
    assert shop.claim(1) == [9]
    well = Policy(name="other", rank=ScriptedPolicy(lowest_priority_first), sentence="The opposite of strict.")
    assert [entry.priority for entry in shop.api.claim("w", 2, policy=well)] == [0, 1]
    assert [entry.priority for entry in shop.api.claim("w", 1, policy="strict")] == [8]


def test_a_claim_that_is_refused_for_bad_input_asks_no_policy() -> None:
    shop = Shop(raises)
    with pytest.raises(ValueError, match="max_n"):
        shop.api.claim("w", 0)
    assert (shop.mood.asked, shop.fallbacks()) == (0, [])
