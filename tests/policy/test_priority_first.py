"""`priority_first`: groups share by weight; inside a group the higher priority first, and equals share by weight."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rota.model.snapshot import Account, Candidate, Key, Slot, Snapshot
from rota.policy import make
from rota.policy.priority_level import PriorityLevel
from rota.policy.virtual_time import SCALE

UNIT = SCALE // 1000  # virtual time of one unit of usage at weight one


def order(candidates: list[Candidate], groups: dict[Key, Account], owners: dict[Key, Account]) -> list[int]:
    slots = tuple(Slot(number) for number in range(len(candidates)))
    moment = Snapshot(slots=slots, candidates=tuple(candidates), groups=groups, owners=owners)
    return [decision.candidate_id for decision in make("eevdf", priority_first=True).rank(moment)]


def test_a_priority_goes_first_in_its_group_and_takes_nothing_from_others() -> None:
    candidates = [Candidate(number, owner=number % 2, group="A", cost=1) for number in range(1, 7)]
    candidates += [Candidate(number, owner=9, group="B", cost=1) for number in range(7, 13)]
    plain = order(candidates, {}, {})
    candidates[5] = Candidate(6, owner=0, group="A", cost=1, priority=99)
    urgent = order(candidates, {}, {})
    assert next(number for number in urgent if number <= 6) == 6, "first of its group"
    assert [number > 6 for number in urgent] == [number > 6 for number in plain], "and the groups share as before"


def test_equals_share_by_weight() -> None:
    candidates = [Candidate(number, owner="heavy" if number % 2 else "light", cost=1) for number in range(40)]
    picks = order(candidates, {}, {"heavy": Account(weight=3000)})[:16]
    assert Counter(number % 2 for number in picks) == {1: 12, 0: 4}


# --- bands ---------------------------------------------------------------------------------------


def test_an_agent_that_was_outranked_has_no_credit_and_newcomers_none_either() -> None:
    level = PriorityLevel()
    level.add_all([("low", Account(), 0), ("high", Account(), 5)])
    for _ in range(9):
        assert level.pick() == "high"
        level.charge("high", 10)
    level.add("new", Account(), 5)
    assert level.virtual_time_of("new") == level.virtual_time_of("high") == level.time.whole
    level.charge_and_remove("new", 0)
    level.charge_and_remove("high", 0)
    level.add("late", Account(), 0)
    assert level.virtual_time_of("late") == level.virtual_time_of("low"), "they are even"


def test_debt_goes_along_to_another_band() -> None:
    level = PriorityLevel()
    level.add_all([("a", Account(), 0), ("b", Account(), 0), ("c", Account(), 5)])
    level.charge("a", 20)  # a owes 10 to the level time
    level.set_priority("a", 5)
    assert level.virtual_time_of("a") - level.virtual_time_of("c") == 10 * UNIT
    level.set_priority("c", 0)
    assert level.priority == 5
    assert level.pick() == "a"


@given(
    entries=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 3), st.sampled_from([0, 0, 5]), st.integers(1, 9)), max_size=40
    ),
    weights=st.tuples(*[st.sampled_from([1000, 2000, 5000])] * 4),
)
def test_bands_pick_what_the_plain_form_picks(
    entries: list[tuple[int, int, int, int]], weights: tuple[int, ...]
) -> None:
    """One group, pick by pick: the bands keep what the plain form computes from scratch."""
    candidates = [
        Candidate(number, owner=owner, priority=priority, cost=cost)
        for number, (_, owner, priority, cost) in enumerate(entries)
    ]
    owners: dict[Key, Account] = {owner: Account(weight=weight) for owner, weight in enumerate(weights)}
    queues: dict[Key, list[Candidate]] = {}
    for candidate in sorted(candidates, key=lambda each: (-each.priority, each.id)):
        queues.setdefault(candidate.owner, []).append(candidate)
    level = PriorityLevel()
    level.add_all([(owner, owners[owner], queue[0].priority) for owner, queue in queues.items()])
    picked = []
    while len(level):
        owner = level.pick()
        candidate = queues[owner].pop(0)
        picked.append(candidate.id)
        if queues[owner]:
            level.charge(owner, candidate.cost)
            level.set_priority(owner, queues[owner][0].priority)
        else:
            level.charge_and_remove(owner, candidate.cost)
    assert picked == order(candidates, {}, owners)
