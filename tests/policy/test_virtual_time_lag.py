"""The law on lag: how far a sibling can be from its exact share.

The reference is a fluid: at every moment each ready sibling receives service in proportion to its weight,
in fractions, without turns. A sibling's lag is what the fluid gave it less what it got. The law, for turns
that cost no more than the request they were chosen for:

    − its own request  <  lag  <  the largest request of all

The left side is seen at once: only who is owed (lag ≥ 0) is picked, and a turn costs no more than its
request, of which the fluid gives a part back. The right side is the theorem on eevdf: no request is served
later than its deadline plus the longest turn that may stand in its way. wfq keeps no such left side.

Weights are whole numbers up to ten, which divide a unit of virtual time exactly, so the law is exact; a join
rounds V down by less than one unit, which is the tolerance of the world with joins.
"""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from rota.model.snapshot import Account, Key
from rota.policy.level import Level
from rota.policy.virtual_time import SCALE

whole_weights = st.integers(1, 10)
requests = st.integers(1, 20)
clients = st.lists(st.tuples(whole_weights, requests), min_size=1, max_size=8)
parts = st.lists(st.integers(1, 100), min_size=1, max_size=80)  # of its request that a run uses, in percent


class Fluid:
    """Perfect (fluid) sharing, beside a level that serves one sibling at a time."""

    def __init__(self, *, eligibility: bool = True) -> None:
        self.level = Level(eligibility=eligibility)
        self.weight: dict[Key, int] = {}
        self.request: dict[Key, int] = {}
        self.lag: dict[Key, Fraction] = {}

    def join(self, key: Key, weight: int, request: int) -> None:
        self.level.add(key, Account(weight=weight * 1000, request=request))
        self.weight[key], self.request[key], self.lag[key] = weight, request, Fraction(0)

    def turn(self, part: int) -> Key:
        key = self.level.pick()
        cost = max(1, self.request[key] * part // 100)
        self.level.charge(key, cost)
        total = sum(self.weight.values())
        for other, weight in self.weight.items():
            self.lag[other] += Fraction(cost * weight, total)
        self.lag[key] -= cost
        return key

    def check(self, tolerance: Fraction = Fraction(0)) -> None:
        largest = max(self.request.values())
        for key, lag in self.lag.items():
            assert -self.request[key] - tolerance < lag < largest + tolerance


@given(clients, parts)
def test_no_sibling_is_further_from_its_share_than_one_request(
    population: list[tuple[int, int]], turns: list[int]
) -> None:
    fluid = Fluid()
    for key, (weight, request) in enumerate(population):
        fluid.join(key, weight, request)
    for part in turns:
        fluid.turn(part)
        fluid.check()


@given(clients, parts)
def test_the_lag_of_the_level_equals_the_fluid_lag(population: list[tuple[int, int]], turns: list[int]) -> None:
    fluid = Fluid()
    for key, (weight, request) in enumerate(population):
        fluid.join(key, weight, request)
    for part in turns:
        fluid.turn(part)
    time = Fraction(*fluid.level.time)
    for name, account in fluid.level.accounts():
        assert account.weight * (time - account.virtual_time) / SCALE == fluid.lag[name]


@given(clients, st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=1, max_size=80))
def test_joins_at_the_levels_time_break_nothing(
    population: list[tuple[int, int]], turns: list[tuple[int, bool]]
) -> None:
    fluid = Fluid()
    arrivals = iter(enumerate(population))
    fluid.join("first", 1, 20)
    joins = 0
    for part, somebody_joins in turns:
        newcomer = next(arrivals, None) if somebody_joins else None
        if newcomer is not None:
            fluid.join(newcomer[0], *newcomer[1])
            joins += 1
        fluid.turn(part)
        fluid.check(tolerance=Fraction(10_000 * joins, SCALE))


def test_wfq_runs_ahead_of_its_share_and_eevdf_does_not() -> None:
    """Weight ten against ten of weight one: wfq gives the heavy sibling nearly all its runs in one burst."""
    worlds = {True: Fluid(eligibility=True), False: Fluid(eligibility=False)}
    furthest = dict.fromkeys(worlds, Fraction(0))
    for eligibility, fluid in worlds.items():
        fluid.join("heavy", 10, 1)
        for key in range(10):
            fluid.join(key, 1, 1)
        for _ in range(40):
            fluid.turn(100)
            furthest[eligibility] = min(furthest[eligibility], fluid.lag["heavy"])
    assert furthest[True] > -1
    assert furthest[False] < -4
