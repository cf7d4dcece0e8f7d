"""The fair-share policy: guarantee, deficit, strict inside a group; and what it promises."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rota.errors import PolicyInvalid
from rota.model.snapshot import Account, Candidate, Key, Slot, Snapshot
from rota.policy.fair_share import fair_share

ONE_SLOT = (Slot(1),)


def snapshot(
    candidates: list[Candidate], groups: Mapping[Key, Account], slots: tuple[Slot, ...] = ONE_SLOT
) -> Snapshot:
    return Snapshot(candidates=tuple(candidates), groups=groups, slots=slots)


def slots(count: int) -> tuple[Slot, ...]:
    return tuple(Slot(number) for number in range(count))


def picked(world: Snapshot, *, min_guarantee: bool = True) -> list[int]:
    return [decision.candidate_id for decision in fair_share(min_guarantee=min_guarantee).rank(world)]


def served(world: Snapshot) -> Snapshot:
    """The closed world one pass later: each pick is charged its cost and is ready again."""
    by_id = {candidate.id: candidate for candidate in world.candidates}
    groups = dict(world.groups)
    for decision in fair_share().rank(world):
        candidate = by_id[decision.candidate_id]
        account = groups.get(candidate.group, Account())
        groups[candidate.group] = msgspec.structs.replace(
            account, usage=account.usage + candidate.cost, ended=account.ended + 1
        )
    return msgspec.structs.replace(world, groups=groups)


def seasoned(weight: int = 1, usage: int = 0) -> Account:
    """An account whose guarantee is used up; the weight in whole ones."""
    return Account(weight=1000 * weight, usage=usage, ended=1)


# --- stories -------------------------------------------------------------------------------------


def test_the_worked_example_a_is_behind_its_three_quarters_and_goes_next() -> None:
    world = snapshot(
        [Candidate(1, owner=1, group="B"), Candidate(2, owner=2, group="A")],
        {"A": seasoned(3, 1000), "B": seasoned(1, 500)},
    )
    [decision] = fair_share().rank(world)
    assert decision.candidate_id == 2
    assert decision.reason.sentence() == "fair_share: its group used 66.7% of a target of 75.0%"


def test_a_group_without_a_run_in_the_window_goes_first_with_that_reason() -> None:
    world = snapshot(
        [Candidate(1, owner=1, group="A"), Candidate(2, owner=2, group="B")],
        {"A": seasoned(9), "B": Account(usage=500)},
    )
    [decision] = fair_share().rank(world)
    assert (decision.candidate_id, decision.reason.words) == (2, "guarantee: no run of its group in the window yet")
    assert picked(world, min_guarantee=False) == [1]


@pytest.mark.parametrize("had", [Account(usage=500, live=1), Account(usage=500, ended=1)])
def test_a_run_under_way_or_one_that_ended_however_uses_up_the_guarantee(had: Account) -> None:
    world = snapshot([Candidate(1, owner=1, group="A"), Candidate(2, owner=2, group="B")], {"A": seasoned(9), "B": had})
    assert picked(world) == [1]


def test_a_pick_uses_up_the_guarantee_so_two_new_groups_share_two_slots() -> None:
    candidates = [Candidate(n, owner=n, group="A" if n < 3 else "B") for n in (1, 2, 3, 4)]
    assert picked(snapshot(candidates, {}, slots(2))) == [1, 3]


def test_what_runs_under_way_are_expected_to_cost_counts_as_used() -> None:
    busy = Account(usage=10, reserved=90, ended=1)
    world = snapshot(
        [Candidate(1, owner=1, group="A"), Candidate(2, owner=2, group="B")], {"A": busy, "B": seasoned(1, 50)}
    )
    assert picked(world) == [2]


def test_one_pass_over_many_slots_spreads_them_by_weight_because_picks_count() -> None:
    candidates = [Candidate(n, owner=n, group="A" if n <= 8 else "B", cost=10) for n in range(1, 17)]
    world = snapshot(candidates, {"A": seasoned(3), "B": seasoned(1)}, slots(8))
    assert Counter("A" if n <= 8 else "B" for n in picked(world)) == {"A": 6, "B": 2}


def test_a_group_with_many_candidates_gains_nothing() -> None:
    crowd = [Candidate(n, owner=n, group="crowd") for n in range(1, 1001)]
    world = snapshot([*crowd, Candidate(2000, owner=2000, group="alone")], {})
    for _ in range(100):
        world = served(world)
    assert {group: account.usage for group, account in world.groups.items()} == {"crowd": 50, "alone": 50}


def test_inside_a_group_it_is_strict_so_the_unimportant_may_starve() -> None:
    urgent, idle = Candidate(2, owner=2, group="A", priority=9), Candidate(1, owner=1, group="A")
    world = snapshot([idle, urgent], {"A": seasoned()})
    for _ in range(20):
        assert picked(world) == [2]
        world = served(world)


def test_it_forgets_what_has_left_the_window() -> None:
    candidates = [Candidate(1, owner=1, group="greedy"), Candidate(2, owner=2, group="modest")]
    yesterday: dict[Key, Account] = {"greedy": seasoned(1, 1_000_000), "modest": seasoned(1, 10)}
    today: dict[Key, Account] = {"greedy": seasoned(), "modest": seasoned()}
    assert picked(snapshot(candidates, yesterday)) == [2]
    assert picked(snapshot(candidates, today)) == [1]  # as if nothing had been: the tie goes to the lower id


def test_ties_between_groups_go_to_the_lower_id_of_their_best_candidates() -> None:
    candidates = [
        Candidate(7, owner=1, group="A", priority=1),
        Candidate(1, owner=1, group="A"),
        Candidate(5, owner=2, group="B"),
    ]
    assert picked(snapshot(candidates, {})) == [5]


def test_groups_without_candidates_count_neither_with_their_usage_nor_with_their_weight() -> None:
    candidates = [Candidate(1, owner=1, group="B"), Candidate(2, owner=2, group="A")]
    groups: dict[Key, Account] = {"A": seasoned(2, 8), "B": seasoned(1, 2)}
    assert picked(snapshot(candidates, groups)) == [1]
    assert picked(snapshot(candidates, {**groups, "gone": seasoned(96, 1000)})) == [1]


def test_a_weight_of_nothing_counts_as_the_smallest_weight() -> None:
    nothing = Account(weight=0, ended=1)
    candidates = [Candidate(1, owner=1, group="A"), Candidate(2, owner=2, group="B")]
    world = snapshot(candidates, {"A": nothing, "B": nothing})
    assert picked(world) == [1]
    assert picked(served(world)) == [2]


def test_deficits_are_compared_exactly_where_floats_would_call_them_equal() -> None:
    huge = 10**18
    candidates = [Candidate(1, owner=1, group="A"), Candidate(2, owner=2, group="B")]
    assert picked(snapshot(candidates, {"A": seasoned(1, huge + 1), "B": seasoned(1, huge)})) == [2]


def test_a_candidate_that_fits_no_free_slot_hides_neither_its_group_nor_others() -> None:
    candidates = [
        Candidate(1, owner=1, group="A", priority=9, kind="gpu"),
        Candidate(2, owner=1, group="A"),
        Candidate(3, owner=2, group="B", kind="gpu"),
    ]
    decisions = fair_share().rank(snapshot(candidates, {}, (Slot(1), Slot(2, ("browser",)))))
    assert [(decision.candidate_id, decision.slot_id) for decision in decisions] == [(2, 1)]


def test_on_a_scarce_slot_a_heavy_group_that_cannot_catch_up_keeps_a_light_one_out() -> None:
    # Said aloud in the theory: where kinds of slots matter there is no bound. H needs the one gpu and stays
    # behind its half, because E uses a hundred times as much on the plain slot; so L never sees the gpu.
    candidates = [
        Candidate(1, owner=1, group="H", kind="gpu"),
        Candidate(2, owner=2, group="E", cost=100),
        Candidate(3, owner=3, group="L", kind="gpu"),
    ]
    groups: dict[Key, Account] = {"H": seasoned(5), "E": seasoned(4), "L": seasoned(1)}
    world = snapshot(candidates, groups, (Slot(1), Slot(2, ("gpu",))))
    for _ in range(300):
        assert 3 not in picked(world)
        world = served(world)


def test_the_guarantee_is_a_yes_or_no() -> None:
    with pytest.raises(PolicyInvalid, match="min_guarantee"):
        fair_share(min_guarantee="yes")  # type: ignore[arg-type]


# --- laws ----------------------------------------------------------------------------------------


def picks_to_settle(shares: dict[Key, Fraction], usage: dict[Key, int], cost: int, within: Fraction) -> int:
    """After how many picks of one cost every group is within a distance of its share, from this start.

    From the theory: once all groups together used what makes every start at most its share, each group is at
    most cost/U above it, and at most (groups − 1) · cost/U below.
    """
    start = sum(usage.values())
    settled = max(Fraction(usage[group]) / share for group, share in shares.items())
    close = (len(shares) - 1) * cost / within
    return max(0, math.ceil((max(settled, close) - start) / cost))


@given(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(10, 60))
@example(0, 5_000, 10)
@example(5_000, 0, 10)
def test_weights_three_to_one_reach_75_to_25_within_one_percent_from_any_start(a: int, b: int, cost: int) -> None:
    usage: dict[Key, int] = {"A": a, "B": b}
    shares: dict[Key, Fraction] = {"A": Fraction(3, 4), "B": Fraction(1, 4)}
    world = snapshot(
        [Candidate(1, owner=1, group="A", cost=cost), Candidate(2, owner=2, group="B", cost=cost)],
        {"A": seasoned(3, a), "B": seasoned(1, b)},
    )
    for _ in range(picks_to_settle(shares, usage, cost, Fraction(1, 100))):
        world = served(world)
    for _ in range(20):  # and it stays there
        total = sum(account.usage for account in world.groups.values())
        for group, share in shares.items():
            assert abs(Fraction(world.groups[group].usage, total) - share) <= Fraction(1, 100)
        world = served(world)


@st.composite
def closed_worlds(draw: st.DrawFn) -> Snapshot:
    names = ["A", "B", "C", "D", "E"][: draw(st.integers(1, 5))]
    account = st.builds(
        Account,
        weight=st.integers(1, 5_000),
        usage=st.integers(0, 60),
        reserved=st.integers(0, 10),
        live=st.integers(0, 1),
        ended=st.integers(0, 1),
    )
    groups: dict[Key, Account] = {name: draw(account) for name in [*names, "without candidates"]}
    owned = draw(st.lists(st.sampled_from(names), min_size=len(names), max_size=12))
    candidates = [
        Candidate(number, owner=number, group=name, cost=draw(st.integers(1, 9)), priority=draw(st.integers(0, 2)))
        for number, name in enumerate([*names, *owned])
    ]
    return snapshot(candidates, groups, slots(draw(st.integers(1, 4))))


@given(closed_worlds())
def test_no_group_waits_longer_than_the_bound(world: Snapshot) -> None:
    bound = fair_share().bound
    assert bound is not None
    promised = {c.group: bound.passes(world, c.group) for c in world.candidates}
    group_of = {candidate.id: candidate.group for candidate in world.candidates}
    unserved = set(promised)
    for number in range(1, 1 + min(200, max(promised.values()))):
        unserved -= {group_of[candidate_id] for candidate_id in picked(world)}
        late = {group for group in unserved if promised[group] <= number}
        assert not late
        world = served(world)


def test_the_bound_of_the_worked_example_is_twelve_passes_and_eleven_are_needed() -> None:
    candidates = [Candidate(1, owner=1, group="B", cost=10), Candidate(2, owner=2, group="A", cost=10)]
    world = snapshot(candidates, {"A": seasoned(1, 100), "B": seasoned()})
    bound = fair_share().bound
    assert bound is not None
    assert bound.passes(world, "A") == 12
    waited = 0
    while picked(world) != [2]:
        world, waited = served(world), waited + 1
    assert waited == 11
