"""A budget holds in every window: in any window of one period, at most the budget and one slice are used."""

from __future__ import annotations

import random

import pytest

from rota.cores.events import Idle, Preempt, RunEntity, Wake
from tests.cores.harness import MS, EngineHarness


def segments(harness: EngineHarness, entities: list[int]) -> list[tuple[int, int]]:
    """When any of the entities ran, from the log: start and end."""
    running: dict[int, tuple[int, int]] = {}  # by core: who, since when
    found: list[tuple[int, int]] = []
    for at, decision in [*harness.log, *((harness.now, Idle(core)) for core in range(harness.engine.core_count))]:
        if not isinstance(decision, RunEntity | Preempt | Idle):
            continue
        entity, since = running.pop(decision.core, (0, 0))
        if entity in entities and at > since:
            found.append((since, at))
        if isinstance(decision, RunEntity):
            running[decision.core] = decision.entity, at
    return found


def most_in_a_window(ran: list[tuple[int, int]], period: int) -> int:
    """The most that was used in a window of one period; the worst begins where a run begins, or ends where one ends."""
    begins = [start for start, _ in ran] + [end - period for _, end in ran]
    return max(sum(max(0, min(end, at + period) - max(start, at)) for start, end in ran) for at in begins)


def test_time_that_was_spent_waiting_brings_no_refill_forward() -> None:
    """It wakes at 0 and gets the core at 95 ms: what it uses there returns at 195 ms and not at 100 ms."""
    harness = EngineHarness()
    capped = harness.one(awake=False, slice_ns=5 * MS, weight=10)
    harness.bind(harness.context(20, 100), capped)
    hog = harness.one(slice_ns=100 * MS)
    harness.until(1)
    harness.send(Wake(capped))
    assert harness.running() == [hog]
    harness.until(95 * MS)
    harness.block(hog)
    harness.until(400 * MS)
    assert most_in_a_window(segments(harness, [capped]), 100 * MS) <= 25 * MS
    assert harness.runtime(capped) >= 60 * MS


@pytest.mark.parametrize("seed", range(6))
def test_a_budget_holds_in_every_window_of_a_random_run(seed: int) -> None:
    rng = random.Random(seed)
    harness = EngineHarness(cores=rng.choice([1, 2]))
    budget, period = rng.choice([(20, 100), (5, 20), (30, 50)])
    slice_ns = rng.choice([1, 3]) * MS
    capped = [harness.one(awake=False, slice_ns=slice_ns) for _ in range(rng.choice([1, 1, 3]))]
    handle = harness.context(budget, period)
    for one in capped:
        harness.bind(handle, one)
    hogs = harness.spawn(2, weight=rng.choice([1_000, 20_000]))
    for _ in range(150):
        harness.until(harness.now + rng.randint(1, 12 * MS))
        one = rng.choice([*capped, *hogs])
        state = harness.engine.entity(one).state
        if state == "sleeping":
            harness.send(Wake(one))
        elif state == "running" and rng.random() < 0.5:
            harness.block(one)
    ran = segments(harness, capped)
    assert most_in_a_window(ran, period * MS) <= budget * MS + slice_ns
