"""Shares by weight, debt and credit, live weights, and the promise about waiting."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.model.snapshot import Account, Candidate, Key, Slot, Snapshot
from rota.policy.contract import Policy
from rota.policy.flow_tree import FlowTree, eevdf, wfq
from rota.policy.virtual_time import (
    SCALE,
    LevelTime,
    Sibling,
    charged,
    choose,
    is_eligible,
    joined,
    key_order,
    lag,
    level_time,
    owes,
    passes_max,
    rank,
    reweighed,
    span,
)

weights = st.integers(1, 10**9)
fractions = st.builds(LevelTime, st.integers(-(10**15), 10**15), st.integers(1, 10**9))
virtual_times = st.integers(-(10**9), 10**9)

# --- arithmetic ---------------------------------------------------------------------------------------


def test_one_unit_of_usage_at_weight_one_is_25_200_and_whole_weights_to_ten_divide_it() -> None:
    assert charged(0, 1, 1000) == 25_200
    assert all(charged(0, 1, whole * 1000) * whole == 25_200 for whole in range(1, 11))


def test_a_row_lasts_a_billion_units_a_day_for_a_thousand_years() -> None:
    assert charged(0, 10**9 * 365 * 1000, 1000) < 2**63


@given(virtual_times, st.integers(-(10**9), 10**9), weights)
def test_a_charge_is_rounded_up_by_less_than_one(virtual_time: int, cost: int, weight: int) -> None:
    exact = virtual_time + Fraction(cost * SCALE, weight)
    assert exact <= charged(virtual_time, cost, weight) < exact + 1


@given(virtual_times, weights, fractions)
def test_lag_has_the_sign_that_eligibility_goes_by(virtual_time: int, weight: int, time: LevelTime) -> None:
    assert (lag(virtual_time, weight, time) >= 0) == is_eligible(virtual_time, time) == (virtual_time <= time.whole)


@given(virtual_times, weights, weights, fractions)
def test_a_new_weight_keeps_the_lag(virtual_time: int, old: int, new: int, time: LevelTime) -> None:
    now = Fraction(time.weighted, time.weight)
    kept = (now - virtual_time) * old
    after = (now - reweighed(virtual_time, old, new, time)) * new
    assert 0 <= kept - after < new  # rounded against the changed sibling, by less than one unit


@given(st.lists(st.builds(Sibling, st.integers(), weights, virtual_times, st.integers(1, 99)), min_size=1))
def test_at_least_one_sibling_is_eligible(siblings: list[Sibling]) -> None:
    time = level_time(siblings)
    assert is_eligible(choose(siblings, time).virtual_time, time)


def test_keys_sort_none_then_numbers_then_text() -> None:
    keys: list[Key] = ["b", 2, None, "a", -1]
    assert sorted(keys, key=key_order) == [None, -1, 2, "a", "b"]


# --- joining and leaving ------------------------------------------------------------------------------


def test_credit_is_not_kept_and_debt_is() -> None:
    time = LevelTime(weighted=301, weight=3)
    assert joined(40, time) == 100
    assert joined(250, time) == 250
    assert not owes(100, time)
    assert owes(101, time)


@given(st.lists(st.builds(Sibling, st.integers(), weights, virtual_times, st.just(1)), min_size=1), weights)
def test_a_joining_sibling_is_eligible_and_makes_no_other_ineligible(siblings: list[Sibling], weight: int) -> None:
    before = level_time(siblings)
    newcomer = Sibling("new", weight, joined(-(10**18), before), 1)
    after = level_time([*siblings, newcomer])
    assert is_eligible(newcomer.virtual_time, after)
    for one in siblings:
        assert is_eligible(one.virtual_time, after) or not is_eligible(one.virtual_time, before)


# --- stories ------------------------------------------------------------------------------------------

ONE_SLOT = (Slot(0),)


def _world(*shares: tuple[Key, Key, int], cost: int = 6, slots: tuple[Slot, ...] = ONE_SLOT) -> Snapshot:
    """One candidate each for (group, owner, weight of the owner), costing what is asked for."""
    return Snapshot(
        slots=slots,
        candidates=tuple(Candidate(number, owner, group, cost=cost) for number, (group, owner, _) in enumerate(shares)),
        owners={owner: Account(weight=weight, request=cost) for _, owner, weight in shares},
        groups={group: Account(request=cost) for group, _, _ in shares},
    )


def _after(snapshot: Snapshot, candidate: Candidate) -> Snapshot:
    """The next moment: it ran, was charged, and is ready again."""

    def moved(account: Account) -> Account:
        later = charged(account.virtual_time, candidate.cost, account.weight)
        return msgspec.structs.replace(account, virtual_time=later)

    return msgspec.structs.replace(
        snapshot,
        owners={**snapshot.owners, candidate.owner: moved(snapshot.owner(candidate))},
        groups={**snapshot.groups, candidate.group: moved(snapshot.group(candidate))},
    )


def _run(policy: Policy, snapshot: Snapshot, passes: int) -> list[Candidate]:
    by_id = {candidate.id: candidate for candidate in snapshot.candidates}
    picked: list[Candidate] = []
    for _ in range(passes):
        for decision in policy.rank(snapshot):
            picked.append(by_id[decision.candidate_id])
            snapshot = _after(snapshot, picked[-1])
    return picked


def _names(picked: list[Candidate]) -> str:
    return "".join(str(candidate.owner) for candidate in picked)


def test_the_two_agents_of_the_opening_example() -> None:
    world = _world((None, "A", 3000), (None, "B", 1000))
    assert _names(_run(eevdf(), world, 8)) == "ABAAABAA"
    assert _names(_run(wfq(), world, 8)) == "AAABAAAB"


@pytest.mark.parametrize("policy", [eevdf(), wfq()])
def test_weights_three_to_one_give_75_to_25(policy: Policy) -> None:
    world = _world((None, "A", 3000), (None, "B", 1000))
    assert Counter(_names(_run(policy, world, 400))) == {"A": 300, "B": 100}


@pytest.mark.parametrize("policy", [eevdf(), wfq()])
def test_a_group_of_a_thousand_owners_gets_no_more_than_a_group_of_one(policy: Policy) -> None:
    assert policy.incremental is not None
    tree = policy.incremental()
    for number in range(1000):
        tree.add(Candidate(number, owner=number, group="crowd"))
    for number in range(1000, 1100):
        tree.add(Candidate(number, owner="alone", group="single"))
    picked = [tree.pick() for _ in range(200)]
    assert Counter(candidate.group for candidate in picked if candidate) == {"crowd": 100, "single": 100}


def test_inside_an_owner_the_order_is_strict() -> None:
    candidates = (Candidate(1, 1), Candidate(2, 1, priority=5), Candidate(3, 1, priority=5, ready_at=-1))
    slots = tuple(Slot(number) for number in range(3))
    decisions = rank(Snapshot(slots=slots, candidates=candidates))
    assert [decision.candidate_id for decision in decisions] == [3, 2, 1]


def test_what_fits_no_free_slot_takes_no_part_and_is_not_charged() -> None:
    snapshot = Snapshot(
        slots=(Slot(0, ("gpu",)), Slot(1)),
        candidates=(
            Candidate(1, "a", kind="browser"),  # never fits
            Candidate(2, "a", kind="gpu"),
            Candidate(3, "b", kind="gpu"),  # its slot is gone by then
            Candidate(4, "c"),
        ),
    )
    assert [(d.candidate_id, d.slot_id) for d in rank(snapshot)] == [(2, 0), (4, 1)]


def test_a_pick_has_a_reason() -> None:
    (decision,) = rank(_world(("north", "A", 3000)))
    words = "group north (lag 0, due at 151,200); in it owner A (lag 0, due at 50,400)"
    assert decision.reason.sentence() == f"eevdf: {words}"


def test_a_smaller_request_is_served_sooner_and_gets_no_more() -> None:
    accounts: dict[Key, Account] = {"quick": Account(request=1), "slow": Account(request=100)}
    candidates = (*(Candidate(number, "slow", cost=10) for number in range(9)), Candidate(9, "quick", cost=1))
    world = Snapshot(slots=ONE_SLOT, candidates=candidates, owners=accounts)
    picked = _run(eevdf(), world, 220)
    assert picked[0].owner == "quick"
    used = Counter[Key]()
    for candidate in picked:
        used[candidate.owner] += candidate.cost
    assert abs(used["quick"] - used["slow"]) <= 10


def test_a_live_weight_change_takes_effect_at_the_next_pick_and_keeps_the_lag() -> None:
    tree = FlowTree()
    for number in range(40):
        tree.add(Candidate(number, owner="AB"[number % 2], cost=10))
    first = [tree.pick() for _ in range(10)]
    assert Counter(one.owner for one in first if one) == {"A": 5, "B": 5}
    tree.charge("A", None, 4)

    def lag_of_a() -> int:
        accounts = {owner: account for (_, owner), account in tree.owners().items()}
        time = level_time(Sibling(owner, one.weight, one.virtual_time, one.request) for owner, one in accounts.items())
        return lag(accounts["A"].virtual_time, accounts["A"].weight, time)

    before = lag_of_a()
    tree.reweigh("owner", "A", 4000)
    assert before == lag_of_a() == -2
    then = [tree.pick() for _ in range(10)]
    assert Counter(one.owner for one in then if one) == {"A": 8, "B": 2}


@given(st.lists(st.tuples(st.integers(1, 99), st.integers(1, 10**9)), min_size=1, max_size=30))
def test_no_float_appears_in_any_account(turns: list[tuple[int, int]]) -> None:
    tree = FlowTree()
    for number, (cost, weight) in enumerate(turns):
        tree.set_account("owner", number, Account(weight=weight))
        tree.add(Candidate(number, owner=number, group=number % 3, cost=cost, priority=0.5, ready_at=1.5))
    for _ in turns[1:]:
        tree.pick()
    numbers = [tree.time, *(tree.time_in(group) for group in range(3))]
    for account in (*tree.groups().values(), *tree.owners().values()):
        numbers += [account.weight, account.virtual_time, account.request]
    assert {type(number) for number in numbers} == {int}


# --- the promise about waiting --------------------------------------------------------------------------

accounts = st.builds(
    Account,
    weight=st.integers(1, 6).map(lambda half: half * 500),
    virtual_time=st.integers(0, 60).map(lambda usage: usage * 10_000),
    request=st.integers(0, 6),
)


@st.composite
def closed_worlds(draw: st.DrawFn) -> Snapshot:
    pairs = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), min_size=1, max_size=10))
    return Snapshot(
        slots=tuple(Slot(number) for number in range(draw(st.integers(1, 4)))),
        candidates=tuple(
            Candidate(number, owner, group, cost=draw(st.integers(1, 9))) for number, (group, owner) in enumerate(pairs)
        ),
        owners={owner: draw(accounts) for owner in range(1, 6)},
        groups={group: draw(accounts) for group in range(1, 4)},
    )


@pytest.mark.parametrize("policy", [eevdf(), wfq()])
def test_in_a_closed_world_no_owner_waits_longer_than_the_bound(policy: Policy) -> None:
    @given(closed_worlds())
    def holds(snapshot: Snapshot) -> None:
        by_id = {candidate.id: candidate for candidate in snapshot.candidates}
        waiting = {candidate.owner: passes_max(snapshot, candidate.owner) for candidate in snapshot.candidates}
        for number in range(1, max(waiting.values()) + 1):
            for decision in policy.rank(snapshot):
                picked = by_id[decision.candidate_id]
                snapshot = _after(snapshot, picked)
                waiting.pop(picked.owner, None)
            assert all(promised > number for promised in waiting.values())

    holds()


def test_the_promise_is_close_where_it_can_be_seen() -> None:
    world = _world(*((None, number, 1000) for number in range(10)))
    assert passes_max(world, 9) == 1 + 9 * 2  # each of the others may start two runs up to its deadline
    assert _names(_run(eevdf(), world, 10)) == "0123456789"


def test_an_owner_that_is_not_there_waits_for_nothing() -> None:
    assert passes_max(Snapshot(), 1) == 1
    assert span(0, 1) == 0
