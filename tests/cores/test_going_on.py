"""Who leaves a queue and goes on in the same step has not slept: its usage counts, wherever it goes on.

It does so when its payer changes, its core is lost, or its share passes to another entity. Random scenarios found the
first of these (`test_scenarios.py`).
"""

from __future__ import annotations

import pytest

from rota.cores.events import CoreOffline, CoreOnline, Wake
from tests.cores.harness import MS, EngineHarness


def test_who_comes_from_a_reserved_band_is_not_owed_what_others_used_meanwhile() -> None:
    """One that uses a little in the band high all the time, and much once its budget is used up."""
    harness = EngineHarness()
    bursty = harness.one()
    harness.spawn(2)
    harness.until(20 * MS)
    harness.bind(harness.context(100, 1000, criticality="high", core_mask=1, overrun="notify"), bursty)
    for _ in range(90):
        harness.until(harness.now + 1 * MS)
        harness.block(bursty)
        harness.until(harness.now + 7 * MS)
        harness.send(Wake(bursty))
    before, left = harness.runtime(bursty), 1000 * MS - harness.now
    harness.until(1000 * MS)
    assert harness.engine.entity(bursty).paying is None  # its budget is used up, and it goes on without
    assert harness.runtime(bursty) - before < 12 * MS + left // 3  # the rest of its budget, and its share


@pytest.mark.parametrize("group", [None, "web"])
def test_who_loses_its_core_while_it_runs_is_as_far_ahead_on_the_next(group: str | None) -> None:
    """Every time it has used most of a slice its core goes, and every time it goes on elsewhere beside hogs."""
    harness = EngineHarness(cores=2)
    if group:
        harness.engine.add_group(group)
    hogs = harness.spawn(3)
    moved = harness.one(group=group)
    turns = 0
    while harness.now < 2000 * MS:
        harness.until(harness.now + MS)
        core = next((core for core in (0, 1) if harness.engine.running(core) == moved), None)
        if core is not None:
            turns += 1
            harness.until(harness.now + MS)
            harness.send(CoreOffline(core))
            harness.until(harness.now + MS)
            harness.send(CoreOnline(core))
    all_used = sum(harness.runtime(one) for one in (*hogs, moved))
    assert turns > 100
    assert harness.runtime(moved) == pytest.approx(all_used / 4, rel=0.1)
