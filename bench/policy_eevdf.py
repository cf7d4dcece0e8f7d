"""One turn of eevdf beside the least a scheduler can do: push one tuple and pop the least.

A turn is `pick`, then `charge`, after which the served one competes again. The level is in steady state:
random weights, requests and costs, about half of the siblings eligible. The baseline keeps a heap of the
same size with `heapq` alone: the least is put back at a later time and popped. It knows no shares.

A round counts only if the usage charged adds up to the unit, and the level's next pick is the one that the
plain form chooses from everybody's standing.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from bench.harness import ROUNDS, Arena, Case
from rota.model.snapshot import Account
from rota.model.work import WEIGHT_UNIT
from rota.policy.level import Level
from rota.policy.virtual_time import SCALE, Sibling, charged, choose, level_time

TURNS = 100_000  # in one round
COST_MAX = 100
SIZES = {"1k": 1_000, "10k": 10_000, "100k": 100_000, "1m": 1_000_000}


def cases() -> Iterator[Case]:
    for name, n in SIZES.items():
        yield Case(
            name=f"eevdf-{name}",
            n=n,
            unit="ops/s",
            baseline="heapq: push and pop of one tuple",
            arena=lambda n=n: _arena(n),  # type: ignore[misc]  # mypy cannot type a bound default
            ops=TURNS,
            goal=0.4,
            rounds=ROUNDS if n < 1_000_000 else 5,  # checking a round against everybody takes long there
        )


def _arena(n: int) -> Arena:
    chance = random.Random(n)
    level = _level(n, chance)
    heap = [(chance.randrange(SCALE), key) for key in range(n)]
    heapify(heap)
    costs = [chance.randint(1, COST_MAX) for _ in range(TURNS)]
    steps = [chance.randrange(2 * SCALE) for _ in range(TURNS)]
    before = [0]

    def rota() -> bool:
        before[0] = level.time.weighted
        pick, charge = level.pick, level.charge
        for cost in costs:
            charge(pick(), cost)
        return True

    def base() -> bool:
        for step in steps:
            time, key = heap[0]
            heappush(heap, (time + step, key))
            heappop(heap)
        return len(heap) == n

    def verify(_ours: object, same_size: object) -> bool:
        charged_now = level.time.weighted - before[0]
        return bool(same_size) and charged_now == sum(costs) * SCALE and level.pick() == _plain_pick(level)

    return Arena(rota=rota, base=base, verify=verify)


def _level(n: int, chance: random.Random) -> Level:
    """A level as it is after long use: everybody between its last turn and its next, and n turns behind it."""
    level = Level()
    keys = list(range(n))
    chance.shuffle(keys)
    for key in keys:
        # a whole weight up to ten divides SCALE, so that charges add up to the unit
        weight, request = chance.randint(1, 10) * WEIGHT_UNIT, chance.randint(COST_MAX // 2, COST_MAX)
        virtual_time = charged(0, chance.randrange(request), weight)
        level.add(key, Account(weight=weight, virtual_time=virtual_time, request=request), keep_credit=True)
    for _ in range(n):
        level.charge(level.pick(), chance.randint(1, COST_MAX))
    return level


def _plain_pick(level: Level) -> object:
    siblings = [Sibling(key, one.weight, one.virtual_time, one.request) for key, one in level.accounts()]
    return choose(siblings, level_time(siblings)).key
