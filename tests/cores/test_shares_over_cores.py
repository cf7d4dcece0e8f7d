"""Shares follow weights over all cores of a set: the engine beside the fluid ideal of `fluid`, which knows no engine.

**The global bound** (stated in `rota.cores.placement`): in any window, an entity without a group, and a group as a
whole, gets its max-min share of all cores it may use, to within 2 % and `SLICES` slices of the longest class (a group:
one more for each core that it can use at once). `tests/adversity/test_core_shares.py` checks it on random mixes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import partial

import pytest

from rota.cores import CoresEngine
from rota.cores.accounts import LATENCY_CLASSES, LatencyClass
from rota.cores.events import ExitEntity, Reweigh, Wake
from rota.sim.simulation import Simulation
from rota.sim.threads import HogThread
from tests.cores.fluid import Hog, ideal_rates
from tests.cores.harness import EngineHarness

MS = 1_000_000
SLICE = 3 * MS


def measured(
    core_count: int, hogs: Sequence[Hog], groups: Mapping[str, float], *, from_ms: int = 0, until_ms: int = 2_000
) -> tuple[dict[str, float], CoresEngine]:
    """Run hogs in virtual time; return how long each ran in the window, in ns by name, and the engine."""
    engine = CoresEngine(cores=core_count)
    simulation = Simulation(engine, observe=False)
    for name, weight in groups.items():
        engine.add_group(name, weight=round(weight * 1000))
    entities = {}
    for hog in hogs:
        mask = sum(1 << core for core in hog.cores)
        entities[hog.name] = engine.spawn(
            weight=round(hog.weight * 1000), group=hog.group, core_mask=mask, latency_class=hog.latency
        )
        simulation.add(HogThread(hog.name, entities[hog.name], random.Random(0)))
    simulation.run(from_ms * MS)
    before = {name: engine.account(entity, simulation.now).runtime_ns for name, entity in entities.items()}
    simulation.run(until_ms * MS)
    after = {name: engine.account(entity, simulation.now).runtime_ns for name, entity in entities.items()}
    engine.check_invariants()
    return {name: float(after[name] - before[name]) for name in entities}, engine


SLICES = 6  # of the normal class, or of the longest: the limit on imbalance, what may be forgiven, slices in progress


def check_shares(core_count: int, hogs: Sequence[Hog], groups: Mapping[str, float], *, from_ms: int = 0) -> CoresEngine:
    """Run for 2 s and compare every competitor with the ideal; return the engine."""
    got, engine = measured(core_count, hogs, groups, from_ms=from_ms, until_ms=from_ms + 2_000)
    rates = ideal_rates(core_count, hogs, groups)
    longest = max(SLICE, *(LATENCY_CLASSES[hog.latency] for hog in hogs))
    competitors: dict[str, list[str]] = {}
    for hog in hogs:
        competitors.setdefault(hog.group or hog.name, []).append(hog.name)
    for name, members in competitors.items():
        used = sum(got[member] for member in members)
        ideal = sum(rates[member] for member in members) * 2_000 * MS
        at_once = min(core_count, len(members)) - 1
        allowed = 0.02 * ideal + (SLICES + at_once) * longest
        assert abs(used - ideal) <= allowed, f"{name} got {used / ideal:.3f} of its share ({used:,.0f} ns)"
    return engine


def shares(core_count: int, hogs: Sequence[Hog], groups: Mapping[str, float]) -> list[float]:
    """The part of a core that each hog got over 2 s, in percent."""
    got, _ = measured(core_count, hogs, groups)
    return [round(got[hog.name] / (20 * MS), 1) for hog in hogs]


# --- the ideal ------------------------------------------------------------------------------------


def test_the_ideal_of_three_equal_hogs_on_two_cores_is_two_thirds_each() -> None:
    assert ideal_rates(2, [Hog("a", 1), Hog("b", 1), Hog("c", 1)], {}) == pytest.approx(dict.fromkeys("abc", 2 / 3))


def test_in_the_ideal_what_one_hog_cannot_use_goes_to_its_group_first() -> None:
    """Group x is owed 1.5 of 3 cores. Its heavy hog can use one; the rest is the light one's, and not group y's."""
    hogs = [Hog("x1", 10, "x"), Hog("x2", 1, "x"), Hog("y1", 1, "y"), Hog("y2", 1, "y")]
    rates = ideal_rates(3, hogs, {"x": 1, "y": 1})
    assert rates == pytest.approx({"x1": 1, "x2": 0.5, "y1": 0.75, "y2": 0.75}, abs=1e-4)


def test_in_the_ideal_pinned_hogs_share_their_core_and_the_others_the_rest() -> None:
    pinned = [Hog(name, 1, None, (0,)) for name in "abc"]
    rates = ideal_rates(2, [*pinned, Hog("d", 1), Hog("e", 1)], {})
    assert [rates[name] for name in "abcde"] == pytest.approx([1 / 3] * 3 + [1 / 2] * 2, abs=1e-4)


# --- the engine -----------------------------------------------------------------------------------


def test_three_equal_hogs_on_two_cores_get_two_thirds_each() -> None:
    assert shares(2, [Hog("a", 1), Hog("b", 1), Hog("c", 1)], {}) == pytest.approx([66.7] * 3, abs=0.5)


@pytest.mark.parametrize(("cores", "latency"), [(2, "batch"), (3, "batch"), (8, "batch"), (3, "normal"), (8, "normal")])
def test_who_has_shorter_slices_than_all_others_gets_its_share_too(cores: int, latency: LatencyClass) -> None:
    """It is owed a long slice of the others whenever it moves. By its own slice, it had 44 % of a core for 67 %."""
    hogs = [Hog("short", 1, latency="sensitive"), *(Hog(f"h{n}", 1, latency=latency) for n in range(cores))]
    assert shares(cores, hogs, {}) == pytest.approx([100 * cores / (cores + 1)] * (cores + 1), abs=1.5)


@pytest.mark.parametrize("cores", [2, 3, 8])
def test_who_keeps_short_slices_when_the_others_get_long_ones_gets_its_share_too(cores: int) -> None:
    """The policy service maps hints to classes after an entity was made: also then the longest slice counts."""
    engine = CoresEngine(cores=cores)
    simulation = Simulation(engine, observe=False)
    entities = [engine.spawn(latency_class="sensitive") for _ in range(cores + 1)]
    for entity in entities:
        simulation.add(HogThread(f"h{entity}", entity, random.Random(0)))
    for entity in entities[1:]:
        simulation.step(Reweigh(entity, 1_000, "batch", 0))
    simulation.run(2_000 * MS)
    got = [engine.account(entity, simulation.now).runtime_ns / (20 * MS) for entity in entities]
    assert got == pytest.approx([100 * cores / (cores + 1)] * (cores + 1), abs=1.5)


def test_members_of_a_group_share_by_weight_whatever_their_classes() -> None:
    hogs = [Hog("short", 1, "all", latency="sensitive"), *(Hog(f"m{n}", 1, "all", latency="batch") for n in range(3))]
    assert shares(3, hogs, {"all": 1}) == pytest.approx([75] * 4, abs=3)


def test_who_runs_beside_slices_of_a_hundred_milliseconds_gets_its_share() -> None:
    """A core is that far behind within one slice: it is not forgiven before."""
    engine = CoresEngine(cores=4)
    simulation = Simulation(engine, observe=False)
    entities = [engine.spawn(slice_ns=slice_ns) for slice_ns in (SLICE, *4 * (100 * MS,))]
    for entity in entities:
        simulation.add(HogThread(f"h{entity}", entity, random.Random(0)))
    simulation.run(4_000 * MS)
    got = [engine.account(entity, simulation.now).runtime_ns / (40 * MS) for entity in entities]
    assert got == pytest.approx([80] * 5, abs=3)


def test_the_background_does_not_run_while_the_normal_band_waits_on_another_core() -> None:
    harness = EngineHarness(cores=2)
    background = harness.one(awake=False)
    harness.bind(harness.context(10, 10, criticality="background"), background)
    hogs = harness.spawn(3)
    harness.send(Wake(background))
    core = harness.engine.entity(background).core
    while len(alone := [hog for hog in hogs if harness.engine.entity(hog).core == core]) != 1:
        harness.until(harness.now + MS)
    harness.send(ExitEntity(alone[0]))  # two hogs are left, both on the other core
    before = harness.runtime(background)
    harness.until(harness.now + 500 * MS)
    assert harness.runtime(background) - before <= SLICE  # the slice in which the other one came
    assert [harness.engine.running(core) for core in (0, 1)].count(background) == 0


def test_a_process_of_twenty_threads_gets_as_much_as_a_process_of_one() -> None:
    many = [Hog(f"t{number}", 1, "many") for number in range(20)]
    got = shares(2, [Hog("single", 1, "one"), *many], {"one": 1, "many": 1})
    assert got[0] == pytest.approx(100, abs=1)
    assert got[1:] == pytest.approx([5] * 20, abs=0.5)


def test_a_hog_that_is_worth_a_core_gets_one_and_the_others_share_the_rest() -> None:
    assert shares(2, [Hog("a", 10), Hog("b", 1), Hog("c", 1)], {}) == pytest.approx([100, 50, 50], abs=0.5)


def test_pinned_hogs_and_free_ones_share_two_cores_equally_where_they_can() -> None:
    hogs = [Hog("a", 1, None, (0,)), Hog("b", 1, None, (0,)), Hog("c", 1), Hog("d", 1), Hog("e", 1)]
    assert shares(2, hogs, {}) == pytest.approx([40] * 5, abs=1)


def test_pinned_hogs_that_crowd_a_core_are_owed_nothing_elsewhere() -> None:
    """Three pinned hogs have a third of core 0 each. A free one that comes later is not behind because of them."""
    hogs = [*(Hog(name, 1, None, (0,)) for name in "abc"), Hog("d", 1), Hog("e", 1)]
    assert shares(2, hogs, {}) == pytest.approx([33.3] * 3 + [50] * 2, abs=1)


@pytest.mark.parametrize("counts", [(3, 1), (3, 5), (5, 4)])
@pytest.mark.parametrize("cores", [2, 3])
def test_two_sets_of_cores_have_nothing_to_do_with_each_other(cores: int, counts: tuple[int, int]) -> None:
    """What one set cannot give to the other is not forgotten inside that one."""
    sets = tuple(range(cores)), tuple(range(cores, 2 * cores))
    hogs = [Hog(f"{name}{number}", 1, None, sets[name]) for name in (0, 1) for number in range(counts[name])]
    check_shares(2 * cores, hogs, {})


@pytest.mark.parametrize(
    ("cores", "weight", "first", "later"),
    [  # members and hogs that run from the beginning, and those that come after a second
        (4, 6, (3, 1), (3, 4)),
        (4, 6, (3, 1), (0, 4)),  # the members are as many as before
        (4, 6, (2, 1), (4, 6)),  # to a core that was idle
        (2, 3, (1, 1), (0, 3)),  # the only member moves
        (12, 12, (6, 8), (10, 8)),
        pytest.param(16, 40, (12, 4), (10, 20), marks=pytest.mark.soak),
    ],
)
def test_what_a_group_could_not_use_is_not_owed_to_it_once_it_could(
    cores: int, weight: int, first: tuple[int, int], later: tuple[int, int]
) -> None:
    engine = CoresEngine(cores=cores)
    simulation = Simulation(engine, observe=False)
    engine.add_group("group", weight=weight * 1000)
    hogs, members = [], []
    for number, group in enumerate(("group", None)):
        for place in range(first[number] + later[number]):
            hogs.append(Hog(f"{group} {place}", 1, group))
            entity = engine.spawn(group=group)
            begins_ms = 0 if place < first[number] else 1_000
            simulation.add(HogThread(hogs[-1].name, entity, random.Random(0)), begins_ms * MS)
            if group is not None:
                members.append(entity)
    simulation.run(1_000 * MS)
    before = sum(engine.account(entity, simulation.now).runtime_ns for entity in members)
    simulation.run(3_000 * MS)
    used = sum(engine.account(entity, simulation.now).runtime_ns for entity in members) - before
    rates = ideal_rates(cores, hogs, {"group": weight})
    ideal = sum(rates[hog.name] for hog in hogs if hog.group) * 2_000 * MS
    assert abs(used - ideal) <= 0.02 * ideal + (SLICES + min(cores, len(members)) - 1) * SLICE


def test_what_pinned_hogs_could_not_use_is_not_owed_to_them_once_they_are_free() -> None:
    """Three hogs crowd core 0 for a second and are then free: the others do not pay for it (they would get 30 %)."""
    engine = CoresEngine(cores=2)
    simulation = Simulation(engine, observe=False)
    entities = [engine.spawn(core_mask=mask) for mask in (1, 1, 1, 0, 0)]
    for entity in entities:
        simulation.add(HogThread(f"h{entity}", entity, random.Random(0)))
    for pinned in entities[:3]:
        simulation.schedule(1_000 * MS, partial(engine.set_mask, pinned, 0))
    simulation.run(1_000 * MS)
    before = [engine.account(entity, simulation.now).runtime_ns for entity in entities]
    simulation.run(1_400 * MS)
    after = [engine.account(entity, simulation.now).runtime_ns for entity in entities]
    got = [(end - start) / (4 * MS) for start, end in zip(before, after, strict=True)]
    assert got == pytest.approx([40] * 5, abs=3)


def test_the_threads_of_a_process_share_what_it_gets_by_their_weights() -> None:
    """Four cores: two processes of equal weight, two cores each; no part is more than a core."""
    hogs = [Hog("a1", 3, "a"), Hog("a2", 3, "a"), Hog("a3", 2, "a"), *(Hog(f"b{n}", 1, "b") for n in range(5))]
    got = shares(4, hogs, {"a": 1, "b": 1})
    assert got[:3] == pytest.approx([75, 75, 50], abs=3)
    assert got[3:] == pytest.approx([40] * 5, abs=3)


def test_a_group_that_no_longer_needs_every_member_shares_by_weight_again() -> None:
    """Three members are owed 2.9 cores and keep apart. Then the other group weighs more, and they are owed two."""
    engine = CoresEngine(cores=6)
    simulation = Simulation(engine, observe=False)
    engine.add_group("few", weight=2_000)
    engine.add_group("others", weight=1_500)
    weights = [("single", 9, None), ("a", 3, "few"), ("b", 2, "few"), ("c", 2, "few")]
    entities = {}
    for name, weight, group in [*weights, *((f"o{number}", 1, "others") for number in range(5))]:
        entities[name] = engine.spawn(weight=weight * 1000, group=group)
        simulation.add(HogThread(name, entities[name], random.Random(0)))
    simulation.run(600 * MS)
    engine.reweigh_group("others", 3_000)
    simulation.run(1_000 * MS)
    before = [engine.account(entities[name], simulation.now).runtime_ns for name in "abc"]
    simulation.run(3_000 * MS)
    after = [engine.account(entities[name], simulation.now).runtime_ns for name in "abc"]
    got = [(end - start) / (20 * MS) for start, end in zip(before, after, strict=True)]
    assert got == pytest.approx([85.7, 57.1, 57.1], abs=3)


def test_a_group_of_one_keeps_what_it_is_owed_when_it_moves() -> None:
    """Its only member leaves one core before it comes to the other: the group has not gone to sleep meanwhile."""
    hogs = [Hog("a", 1, "pair"), Hog("b", 1, "pair"), Hog("single", 7, "one")]
    hogs += [Hog("c", 0.5), Hog("d", 0.5), Hog("e", 1), Hog("f", 1)]
    check_shares(4, hogs, {"one": 0.5, "pair": 2})


@pytest.mark.parametrize("weights", [(1,), pytest.param((1, 0.1), marks=pytest.mark.soak), (7, 1, 0.1)])
def test_a_group_whose_members_are_each_worth_a_core_gets_a_core_for_each(weights: tuple[float, ...]) -> None:
    """Twelve members are owed twelve cores of sixteen: what one of them misses, no other can use later."""
    many = [Hog(f"m{number}", weights[number % len(weights)], "many") for number in range(12)]
    others = [Hog(f"o{number}", 1, "others") for number in range(8)]
    engine = check_shares(16, [*many, *others], {"many": 12, "others": 4})
    assert engine.counters.migrations <= engine.counters.picks // 20, "members stay where they are"


@pytest.mark.parametrize(
    ("cores", "members", "owed"),
    [
        (12, 11, 10),
        pytest.param(12, 13, 10, marks=pytest.mark.soak),
        pytest.param(16, 14, 13, marks=pytest.mark.soak),
        (16, 16, 14.1),
    ],
)
def test_a_group_on_most_of_many_cores_keeps_what_it_is_owed(cores: int, members: int, owed: float) -> None:
    """Its other cores are charged late: what looks like a debt of a core with one member is not forgiven."""
    many = [Hog(f"m{number}", 1, "many") for number in range(members)]
    others = [Hog(f"o{number}", 1, "others") for number in range(8)]
    check_shares(cores, [*many, *others], {"many": owed, "others": cores - owed})


def test_migration_is_bounded_by_one_for_every_pick_and_balanced_cores_need_none() -> None:
    _, engine = measured(2, [Hog("a", 1), Hog("b", 1), Hog("c", 1)], {})
    assert 0 < engine.counters.migrations <= engine.counters.picks // 4
    _, engine = measured(2, [Hog(name, 1) for name in "abcd"], {})
    assert engine.counters.migrations == 0


def test_a_share_is_right_again_soon_after_hogs_come_and_go() -> None:
    """A window that begins later is bound in the same way."""
    check_shares(4, [Hog(f"h{n}", weight) for n, weight in enumerate((1, 2, 3, 0.5, 0.5, 7, 1))], {}, from_ms=700)
