"""The fair policy against adversarial loads: hogs, short sleepers, calls, many processes, many threads.

Each has a bound computed from slices, and round robin as the baseline without a bound.
"""

from __future__ import annotations

import pytest

from rota.cores import CoresEngine
from rota.cores.events import Block, CallEntity, CoreTick, Reply, Reweigh, RunEntity, Wake
from rota.cores.runqueue import Rule
from rota.sim.build import build_simulation
from rota.sim.report import SimReport, ThreadReport, make_report
from rota.sim.scenario import parse_scenario
from tests.cores.harness import MS, EngineHarness

SLICE = 3 * MS  # of the normal latency class


def simulate(text: str, rule: Rule | None = None) -> SimReport:
    scenario = parse_scenario(text)
    simulation = build_simulation(scenario, rule=rule)
    simulation.check = CoresEngine.check_invariants
    simulation.run(scenario.duration_ms * MS)
    return make_report(simulation)


def by_name(shown: SimReport) -> dict[str, ThreadReport]:
    return {one.name: one for one in shown.threads}


# --- hogs ----------------------------------------------------------------------------------------


def test_hogs_share_a_core_by_weight_to_within_one_slice() -> None:
    harness = EngineHarness()
    hogs = [harness.one(weight=weight) for weight in (1000, 2000, 3000, 4000)]
    harness.until(1000 * MS)
    for hog, part in zip(hogs, (0.1, 0.2, 0.3, 0.4), strict=True):
        assert abs(harness.runtime(hog) - part * 1000 * MS) < SLICE


def test_two_hogs_three_to_one_get_three_quarters_and_one_quarter() -> None:
    harness = EngineHarness()
    heavy, light = harness.one(weight=3000), harness.one(weight=1000)
    harness.until(10_000 * MS)
    assert abs(harness.runtime(heavy) - 7_500 * MS) < SLICE
    assert abs(harness.runtime(light) - 2_500 * MS) < SLICE


def test_round_robin_gives_a_hog_with_three_times_the_weight_the_same() -> None:
    harness = EngineHarness(rule="round_robin")
    heavy, light = harness.one(weight=3000), harness.one(weight=1000)
    harness.until(10_000 * MS)
    assert abs(harness.runtime(heavy) - harness.runtime(light)) <= 2 * SLICE


def test_a_hog_with_long_slices_gets_no_more_than_its_share() -> None:
    harness = EngineHarness()
    greedy, modest = harness.one(slice_ns=100 * MS), harness.one(slice_ns=1 * MS)
    harness.until(2_000 * MS)
    assert abs(harness.runtime(greedy) - 1_000 * MS) <= 100 * MS
    assert abs(harness.runtime(modest) - 1_000 * MS) <= 100 * MS


# --- short sleepers ------------------------------------------------------------------------------

SLEEPERS = """
cores = 1
duration_ms = 4000
[[thread]]
name = "hog"
kind = "hog"
[[thread]]
name = "cheat"
kind = "sleeper"
work_us = 2900
sleep_us = 50
"""


def test_sleeping_for_a_moment_after_nearly_a_whole_slice_gains_nothing() -> None:
    """The cheat blocks just before its slice would end and wakes again immediately: it must not get more than half."""
    shown = by_name(simulate(SLEEPERS))
    assert shown["cheat"].runtime_ns <= 2_000 * MS + SLICE
    assert shown["hog"].runtime_ns >= 2_000 * MS - SLICE


def test_a_short_sleeper_is_served_soon_at_little_cost_to_a_hog() -> None:
    shown = by_name(
        simulate("""
cores = 1
duration_ms = 4000
[[thread]]
name = "hog"
kind = "hog"
count = 4
[[thread]]
name = "keys"
kind = "sleeper"
latency = "sensitive"
work_us = [50, 150]
sleep_us = [5000, 15000]
""")
    )
    keys = shown["keys"]
    assert keys.latency is not None
    # its slice is short, so it preempts slices of a longer class
    assert keys.latency.max_ns <= SLICE
    assert keys.latency.p50_ns == 0
    hogs = [shown[f"hog-{number}"].runtime_ns for number in range(4)]
    assert max(hogs) - min(hogs) <= SLICE


def test_under_round_robin_the_same_sleeper_waits_for_all_others() -> None:
    text = SLEEPERS.replace("work_us = 2900", "work_us = 100").replace("sleep_us = 50", "sleep_us = 20000")
    crowd = text.replace('kind = "hog"', 'kind = "hog"\ncount = 4')
    fair, robin = by_name(simulate(crowd)), by_name(simulate(crowd, "round_robin"))
    assert fair["cheat"].latency is not None
    assert robin["cheat"].latency is not None
    assert robin["cheat"].latency.max_ns >= fair["cheat"].latency.max_ns


def test_sleep_clears_no_debt_and_saves_no_credit() -> None:
    harness = EngineHarness()
    debtor, other = harness.one(weight=100), harness.one(weight=10_000)
    harness.until(20 * MS)
    while harness.engine.running(0) != debtor:
        harness.until(harness.now + MS)
    harness.until(harness.now + 2 * MS)
    owed = harness.engine.entity(debtor, harness.now).lag_ns
    assert owed < 0
    harness.block(debtor)
    harness.send(Wake(debtor))  # back immediately: it still has its debt
    assert harness.engine.entity(debtor, harness.now).lag_ns == pytest.approx(owed, abs=MS // 10)
    harness.until(harness.now + 30 * MS)
    rich = harness.one(awake=False)
    harness.until(harness.now + 500 * MS)
    harness.send(Wake(rich))  # it slept for half a second: it has saved nothing
    assert harness.engine.entity(rich, harness.now).lag_ns <= 0
    assert harness.runtime(other) > 0


@pytest.mark.parametrize(("beside", "there"), [(100, 7_000), (3_000, 100), (1, 100_000), (1_000, 1_000)])
def test_an_entity_that_wakes_on_another_core_keeps_its_debt(beside: int, there: int) -> None:
    """Not more: beside a light entity the distance in virtual time is large, though the debt is small."""
    harness = EngineHarness(cores=2)
    harness.one(weight=beside, core_mask=0b01)
    debtor = harness.one(weight=7_000, core_mask=0b01)
    harness.spawn(2, weight=there, core_mask=0b10)
    harness.until(20 * MS)
    while harness.engine.running(0) != debtor or harness.engine.entity(debtor, harness.now).lag_ns >= 0:
        harness.until(harness.now + MS // 10)
    owed = harness.engine.entity(debtor, harness.now).lag_ns
    harness.block(debtor)
    harness.apply(harness.engine.set_mask(debtor, 0b10))
    harness.send(Wake(debtor))
    assert harness.engine.entity(debtor, harness.now).core == 1
    assert harness.engine.entity(debtor, harness.now).lag_ns == pytest.approx(owed, abs=100)


# --- hand-overs ----------------------------------------------------------------------------------


def test_two_that_call_each_other_get_no_more_than_one_share() -> None:
    """Client and server pass the core back and forth; against a hog they compete as one."""
    shown = by_name(
        simulate("""
cores = 1
duration_ms = 4000
[[thread]]
name = "hog"
kind = "hog"
[[thread]]
name = "server"
kind = "server"
[[thread]]
name = "client"
kind = "caller"
server = "server"
work_us = 5000
serve_us = 45000
sleep_us = 1
""")
    )
    pair = shown["server"].runtime_ns + shown["client"].runtime_ns
    # at most half; a little less, because after each sleep it waits for the end of the hog's slice
    assert 1_900 * MS <= pair <= 2_000 * MS + SLICE
    assert shown["server"].runtime_ns > 8 * shown["client"].runtime_ns


def test_a_call_does_not_lengthen_a_slice() -> None:
    harness = EngineHarness()
    caller, rival, server = harness.one(), harness.one(), harness.one(awake=False)
    harness.until(1 * MS)
    (handed,) = harness.send(CallEntity(caller, server))
    assert handed == RunEntity(0, server, SLICE)  # the rest of the caller's slice
    harness.until(3 * MS)
    assert harness.running() == [rival]
    harness.until(6 * MS)
    assert harness.running() == [server]  # the caller's share was picked again, and the server runs on it


def test_a_server_is_not_charged_for_its_callers() -> None:
    harness = EngineHarness()
    clients, server, hog = harness.spawn(3), harness.one(awake=False), harness.one()
    for _ in range(200):
        (running,) = harness.running()
        if running in clients:
            harness.send(CallEntity(running, server))
        elif running == server:
            harness.until(harness.now + MS)
            if harness.engine.running(0) == server:
                harness.send(Reply(server))
        else:
            harness.until(harness.now + MS)
    assert harness.runtime(server) > 10 * MS
    assert harness.engine.account(server).virtual_runtime == 0  # every slice it ran was a caller's
    assert harness.runtime(hog) >= harness.now // 4


# --- processes and siblings ----------------------------------------------------------------------

PROCESSES = """
cores = 1
duration_ms = 4000
[[group]]
name = "one"
[[group]]
name = "many"
[[thread]]
name = "single"
kind = "hog"
group = "one"
[[thread]]
name = "sibling"
kind = "hog"
group = "many"
count = 20
"""


def test_a_process_of_twenty_threads_gets_as_much_as_a_process_of_one() -> None:
    """Sibling load: splitting into many threads gains nothing."""
    shown = by_name(simulate(PROCESSES))
    schedulables = [shown[f"sibling-{number}"].runtime_ns for number in range(20)]
    assert abs(shown["single"].runtime_ns - 2_000 * MS) <= SLICE
    assert abs(sum(schedulables) - 2_000 * MS) <= SLICE
    assert max(schedulables) - min(schedulables) <= SLICE


def test_under_a_single_level_they_would_get_a_twenty_first_each() -> None:
    shown = by_name(simulate(PROCESSES.replace('group = "one"', "").replace('group = "many"', "")))
    assert shown["single"].runtime_ns <= 4_000 * MS // 21 + SLICE


def test_processes_share_by_their_weights_and_threads_in_them_by_theirs() -> None:
    """Multi-process load: 3 to 1 between the processes, 2 to 1 inside the first."""
    shown = by_name(
        simulate("""
cores = 1
duration_ms = 6000
[[group]]
name = "big"
weight = 3
[[group]]
name = "small"
[[thread]]
name = "a"
kind = "hog"
group = "big"
weight = 2
[[thread]]
name = "b"
kind = "hog"
group = "big"
[[thread]]
name = "c"
kind = "hog"
group = "small"
[[thread]]
name = "d"
kind = "sleeper"
group = "small"
work_us = [100, 900]
sleep_us = [100, 900]
""")
    )
    assert abs(shown["a"].runtime_ns - 3_000 * MS) <= 2 * SLICE
    assert abs(shown["b"].runtime_ns - 1_500 * MS) <= 2 * SLICE
    assert abs(shown["c"].runtime_ns + shown["d"].runtime_ns - 1_500 * MS) <= 2 * SLICE


def test_a_process_on_many_cores_is_one_competitor_over_all_of_them() -> None:
    shown = by_name(simulate(PROCESSES.replace("cores = 1", "cores = 2").replace("count = 20", "count = 8")))
    # two processes of equal weight on two cores: each gets a whole one
    assert abs(shown["single"].runtime_ns - 4_000 * MS) <= 4 * SLICE


# --- live changes --------------------------------------------------------------------------------


def test_a_new_weight_holds_from_the_next_pick_and_keeps_the_lag() -> None:
    harness = EngineHarness()
    first, second = harness.spawn(2)
    harness.until(100 * MS)
    before = [harness.engine.entity(one, harness.now).lag_ns for one in (first, second)]
    epoch = harness.engine.policy_updates.epoch
    harness.send(Reweigh(first, 3000, "normal", epoch))
    after = [harness.engine.entity(one, harness.now).lag_ns for one in (first, second)]
    assert after == pytest.approx(before, abs=2)
    base = [harness.runtime(one) for one in (first, second)]
    harness.until(1100 * MS)
    gained = [harness.runtime(one) - was for one, was in zip((first, second), base, strict=True)]
    assert abs(gained[0] - 750 * MS) <= SLICE
    assert abs(gained[1] - 250 * MS) <= SLICE


def test_a_new_weight_of_a_process_holds_on_every_core() -> None:
    harness = EngineHarness()
    for name in ("a", "b"):
        harness.engine.add_group(name)
    first, second = harness.one(group="a"), harness.one(group="b")
    harness.until(100 * MS)
    harness.engine.reweigh_group("a", 3000)
    base = [harness.runtime(one) for one in (first, second)]
    harness.until(1100 * MS)
    gained = [harness.runtime(one) - was for one, was in zip((first, second), base, strict=True)]
    assert abs(gained[0] - 750 * MS) <= SLICE
    assert abs(gained[1] - 250 * MS) <= SLICE


def test_background_work_runs_when_the_core_is_otherwise_idle() -> None:
    harness = EngineHarness()
    cleaner, worker = harness.one(), harness.one()
    harness.bind(harness.context(90, 100, criticality="background"), cleaner)
    harness.until(50 * MS)
    ran = harness.runtime(cleaner)
    assert ran <= SLICE  # only the slice in progress
    harness.block(worker)
    harness.until(80 * MS)
    assert harness.runtime(cleaner) == ran + 30 * MS
    harness.send(Wake(worker))
    assert harness.running() == [worker]


def test_the_same_events_give_the_same_decisions() -> None:
    def decisions() -> list[object]:
        engine = CoresEngine(cores=2)
        workers = [engine.spawn(weight=1000 * number) for number in range(1, 7)]
        decided: list[object] = []
        for number, worker in enumerate(workers):
            decided += engine.step(Wake(worker), number)
        for slice_number in range(200):
            decided += engine.step(CoreTick(slice_number % 2), 10 + slice_number * MS)
            if slice_number % 7 == 0 and (running := engine.running(slice_number % 2)):
                decided += engine.step(Block(running), 10 + slice_number * MS)
                decided += engine.step(Wake(running), 10 + slice_number * MS)
        return decided

    assert decisions() == decisions()
