"""Earliest deadline first, and whether a set of deadlines can be met: the tests against a plain simulation."""

from __future__ import annotations

import math
from fractions import Fraction

from hypothesis import assume, given
from hypothesis import strategies as st

from rota.model.snapshot import Candidate, Slot, Snapshot
from rota.policy.deadline import Demand, Overload, edf, overload, utilisation


def misses(bands: list[list[Demand]]) -> bool:
    """Simulate unit by unit: all are released at 0 and then every period; by band, then by deadline."""
    released = [(rank, one) for rank, band in enumerate(bands) for one in band]
    horizon = 2 * math.lcm(*(one.period for _, one in released)) + max(one.deadline for _, one in released)
    jobs: list[list[int]] = []  # rank, due, left
    for now in range(horizon):
        jobs += [[rank, now + one.deadline, one.budget] for rank, one in released if now % one.period == 0]
        if any(due <= now for _, due, _ in jobs):
            return True
        if jobs:
            first = min(jobs)
            first[2] -= 1
            if not first[2]:
                jobs.remove(first)
    return False


def demands(most: int, slack: int = 0) -> st.SearchStrategy[list[Demand]]:
    one = st.builds(
        lambda budget, slack, deadline: Demand(budget, budget + slack, deadline),
        st.integers(1, 4),
        st.integers(slack, slack + 6),
        st.integers(1, 12),
    )
    return st.lists(one, min_size=1, max_size=most)


@given(demands(3))
def test_on_one_core_the_demand_test_is_right_both_ways(band: list[Demand]) -> None:
    assume(utilisation(band) <= 1)
    assert (overload(band) is not None) is misses([band])


@given(demands(2, slack=5), demands(2, slack=5))
def test_a_band_behind_another_that_is_said_to_fit_fits(ahead: list[Demand], behind: list[Demand]) -> None:
    assume(utilisation([*ahead, *behind]) <= 1)
    if overload(ahead) is None and overload(behind, ahead) is None:
        assert not misses([ahead, behind])


@given(demands(3))
def test_more_than_a_core_never_fits(band: list[Demand]) -> None:
    assume(utilisation(band) > 1)
    assert overload(band) is not None


@given(demands(3), st.integers(1, 5))
def test_blocking_only_makes_it_harder(band: list[Demand], blocking: int) -> None:
    if overload(band, blocking=blocking) is None:
        assert overload(band) is None


def test_the_example_of_the_modules_own_page() -> None:
    demand = Demand(budget=2, period=5, deadline=4)
    assert [demand.due_within(time) for time in (3, 4, 8, 9, 14)] == [0, 2, 2, 4, 6]
    assert [demand.used_within(time) for time in (1, 5, 6)] == [2, 2, 4]


def test_an_overload_names_the_first_stretch_that_is_too_short() -> None:
    assert overload([Demand(3, 10, 4), Demand(3, 10, 5)]) == Overload(time=5, needed=6)
    assert overload([Demand(3, 10, 4), Demand(3, 10, 6)]) is None
    assert overload([Demand(1, 10, 5)], ahead=[Demand(5, 10, 10)]) == Overload(time=5, needed=6)
    assert overload([Demand(3, 10, 4)], blocking=2) == Overload(time=4, needed=5)
    assert overload([]) is None


def test_a_set_that_cannot_be_decided_in_bounded_time_does_not_fit() -> None:
    """Periods without a common divisor on a nearly full core: the test gives up and refuses."""
    nearly_full = [Demand(10**9 - 1, 2 * 10**9, 2 * 10**9), Demand(10**9, 2 * 10**9 + 1, 3)]
    found = overload(nearly_full)
    assert found is not None


def test_utilisation_is_exact() -> None:
    assert utilisation([Demand(1, 3, 3), Demand(1, 6, 6)]) == Fraction(1, 2)


def test_edf_runs_what_is_due_first_and_what_has_no_deadline_last() -> None:
    moment = Snapshot(
        slots=tuple(Slot(slot) for slot in range(4)),
        candidates=(
            Candidate(1, owner=1),
            Candidate(2, owner=2, deadline=9.0),
            Candidate(3, owner=3, deadline=5.0, priority=1),
            Candidate(4, owner=4, deadline=5.0, priority=7),
        ),
    )
    assert [pick.candidate_id for pick in edf().rank(moment)] == [4, 3, 2, 1]
