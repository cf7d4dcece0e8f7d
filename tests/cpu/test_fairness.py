"""The fair policy against adversaries: hogs, short sleepers, hand-overs, many processes, many siblings.

Each has a bound that is computed from slices, and round robin beside it as the baseline that has none.
"""

from __future__ import annotations

import pytest

from rota.cores import Machine
from rota.cores.events import Block, Call, Reply, Reweigh, Run, Tick, Wake
from rota.cores.runqueue import Rule
from rota.sim.build import build
from rota.sim.report import Report, ThreadReport, report
from rota.sim.scenario import parse
from tests.cpu.stage import MS, Stage

SLICE = 3 * MS  # of the normal latency class


def simulate(text: str, rule: Rule | None = None) -> Report:
    scenario = parse(text)
    simulation = build(scenario, rule=rule)
    simulation.check = Machine.audit
    simulation.run(scenario.duration_ms * MS)
    return report(simulation)


def by_name(shown: Report) -> dict[str, ThreadReport]:
    return {one.name: one for one in shown.threads}


# --- hogs ----------------------------------------------------------------------------------------


def test_hogs_share_a_core_by_weight_to_within_one_slice() -> None:
    stage = Stage()
    hogs = [stage.one(weight=weight) for weight in (1000, 2000, 3000, 4000)]
    stage.until(1000 * MS)
    for hog, part in zip(hogs, (0.1, 0.2, 0.3, 0.4), strict=True):
        assert abs(stage.runtime(hog) - part * 1000 * MS) < SLICE


def test_two_hogs_three_to_one_get_three_quarters_and_one_quarter() -> None:
    stage = Stage()
    heavy, light = stage.one(weight=3000), stage.one(weight=1000)
    stage.until(10_000 * MS)
    assert abs(stage.runtime(heavy) - 7_500 * MS) < SLICE
    assert abs(stage.runtime(light) - 2_500 * MS) < SLICE


def test_round_robin_gives_a_hog_with_three_times_the_weight_the_same() -> None:
    stage = Stage(rule="round_robin")
    heavy, light = stage.one(weight=3000), stage.one(weight=1000)
    stage.until(10_000 * MS)
    assert abs(stage.runtime(heavy) - stage.runtime(light)) <= 2 * SLICE


def test_a_hog_with_long_slices_gets_no_more_than_its_share() -> None:
    stage = Stage()
    greedy, modest = stage.one(slice_ns=100 * MS), stage.one(slice_ns=1 * MS)
    stage.until(2_000 * MS)
    assert abs(stage.runtime(greedy) - 1_000 * MS) <= 100 * MS
    assert abs(stage.runtime(modest) - 1_000 * MS) <= 100 * MS


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
    """The cheat leaves just before its turn would end and is back at once: it must not get more than half."""
    shown = by_name(simulate(SLEEPERS))
    assert shown["cheat"].runtime_ns <= 2_000 * MS + SLICE
    assert shown["hog"].runtime_ns >= 2_000 * MS - SLICE


def test_a_short_sleeper_is_served_soon_and_a_hog_hardly_notices() -> None:
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
    # it asks for little, so it is due at once: nobody's turn of a longer class stands in its way
    assert keys.latency.max_ns <= SLICE
    assert keys.latency.p50_ns == 0
    hogs = [shown[f"hog-{number}"].runtime_ns for number in range(4)]
    assert max(hogs) - min(hogs) <= SLICE


def test_under_round_robin_the_same_sleeper_waits_for_everybody() -> None:
    text = SLEEPERS.replace("work_us = 2900", "work_us = 100").replace("sleep_us = 50", "sleep_us = 20000")
    crowd = text.replace('kind = "hog"', 'kind = "hog"\ncount = 4')
    fair, robin = by_name(simulate(crowd)), by_name(simulate(crowd, "round_robin"))
    assert fair["cheat"].latency is not None
    assert robin["cheat"].latency is not None
    assert robin["cheat"].latency.max_ns >= fair["cheat"].latency.max_ns


def test_debt_is_not_slept_off_and_credit_is_not_saved_up() -> None:
    stage = Stage()
    debtor, other = stage.one(weight=100), stage.one(weight=10_000)
    stage.until(20 * MS)
    while stage.machine.running(0) != debtor:
        stage.until(stage.now + MS)
    stage.until(stage.now + 2 * MS)
    owed = stage.machine.entity(debtor, stage.now).lag_ns
    assert owed < 0
    stage.block(debtor)
    stage.tell(Wake(debtor))  # back at once: it still owes
    assert stage.machine.entity(debtor, stage.now).lag_ns == pytest.approx(owed, abs=MS // 10)
    stage.until(stage.now + 30 * MS)
    rich = stage.one(awake=False)
    stage.until(stage.now + 500 * MS)
    stage.tell(Wake(rich))  # it slept for half a second: it has saved nothing
    assert stage.machine.entity(rich, stage.now).lag_ns <= 0
    assert stage.runtime(other) > 0


@pytest.mark.parametrize(("beside", "there"), [(100, 7_000), (3_000, 100), (1, 100_000), (1_000, 1_000)])
def test_who_wakes_on_another_core_owes_there_what_it_owed_here(beside: int, there: int) -> None:
    """Not more: beside somebody light the distance in virtual time is far, though hardly anything is owed."""
    stage = Stage(cores=2)
    stage.one(weight=beside, core_mask=0b01)
    debtor = stage.one(weight=7_000, core_mask=0b01)
    stage.spawn(2, weight=there, core_mask=0b10)
    stage.until(20 * MS)
    while stage.machine.running(0) != debtor or stage.machine.entity(debtor, stage.now).lag_ns >= 0:
        stage.until(stage.now + MS // 10)
    owed = stage.machine.entity(debtor, stage.now).lag_ns
    stage.block(debtor)
    stage.obey(stage.machine.set_mask(debtor, 0b10))
    stage.tell(Wake(debtor))
    assert stage.machine.entity(debtor, stage.now).core == 1
    assert stage.machine.entity(debtor, stage.now).lag_ns == pytest.approx(owed, abs=100)


# --- hand-overs ----------------------------------------------------------------------------------


def test_two_that_call_each_other_get_no_more_than_one_share() -> None:
    """Client and server hand the core to and fro; against a hog they are one competitor, not two."""
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
    # at most half; a little less, because after each sleep it waits for the end of the hog's turn
    assert 1_900 * MS <= pair <= 2_000 * MS + SLICE
    assert shown["server"].runtime_ns > 8 * shown["client"].runtime_ns


def test_a_hand_over_does_not_lengthen_a_turn() -> None:
    stage = Stage()
    caller, rival, server = stage.one(), stage.one(), stage.one(awake=False)
    stage.until(1 * MS)
    (handed,) = stage.tell(Call(caller, server))
    assert handed == Run(0, server, SLICE)  # what was left of the caller's turn
    stage.until(3 * MS)
    assert stage.running() == [rival]
    stage.until(6 * MS)
    assert stage.running() == [server]  # the caller's place came up again, and the server acts in it


def test_a_server_is_not_poorer_for_what_it_did_for_others() -> None:
    stage = Stage()
    clients, server, hog = stage.spawn(3), stage.one(awake=False), stage.one()
    for _ in range(200):
        (running,) = stage.running()
        if running in clients:
            stage.tell(Call(running, server))
        elif running == server:
            stage.until(stage.now + MS)
            if stage.machine.running(0) == server:
                stage.tell(Reply(server))
        else:
            stage.until(stage.now + MS)
    assert stage.runtime(server) > 10 * MS
    assert stage.machine.account(server).virtual_runtime == 0  # every turn it ran was somebody else's
    assert stage.runtime(hog) >= stage.now // 4


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
    """Sibling load: spreading oneself over many threads gains nothing."""
    shown = by_name(simulate(PROCESSES))
    siblings = [shown[f"sibling-{number}"].runtime_ns for number in range(20)]
    assert abs(shown["single"].runtime_ns - 2_000 * MS) <= SLICE
    assert abs(sum(siblings) - 2_000 * MS) <= SLICE
    assert max(siblings) - min(siblings) <= SLICE


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


def test_a_process_on_many_cores_is_one_competitor_on_each() -> None:
    shown = by_name(simulate(PROCESSES.replace("cores = 1", "cores = 2").replace("count = 20", "count = 8")))
    # the single thread competes on one core only, and there it has half against whoever of the others is there
    assert abs(shown["single"].runtime_ns - 2_000 * MS) <= 4 * SLICE


# --- live changes --------------------------------------------------------------------------------


def test_a_new_weight_holds_from_the_next_pick_and_keeps_the_lag() -> None:
    stage = Stage()
    first, second = stage.spawn(2)
    stage.until(100 * MS)
    before = [stage.machine.entity(one, stage.now).lag_ns for one in (first, second)]
    epoch = stage.machine.orders.epoch
    stage.tell(Reweigh(first, 3000, "normal", epoch))
    after = [stage.machine.entity(one, stage.now).lag_ns for one in (first, second)]
    assert after == pytest.approx(before, abs=2)
    base = [stage.runtime(one) for one in (first, second)]
    stage.until(1100 * MS)
    gained = [stage.runtime(one) - was for one, was in zip((first, second), base, strict=True)]
    assert abs(gained[0] - 750 * MS) <= SLICE
    assert abs(gained[1] - 250 * MS) <= SLICE


def test_a_new_weight_of_a_process_holds_on_every_core() -> None:
    stage = Stage()
    for name in ("a", "b"):
        stage.machine.add_group(name)
    first, second = stage.one(group="a"), stage.one(group="b")
    stage.until(100 * MS)
    stage.machine.reweigh_group("a", 3000)
    base = [stage.runtime(one) for one in (first, second)]
    stage.until(1100 * MS)
    gained = [stage.runtime(one) - was for one, was in zip((first, second), base, strict=True)]
    assert abs(gained[0] - 750 * MS) <= SLICE
    assert abs(gained[1] - 250 * MS) <= SLICE


def test_background_work_runs_when_nobody_else_wants_the_core() -> None:
    stage = Stage()
    cleaner, worker = stage.one(), stage.one()
    stage.bind(stage.context(90, 100, criticality="background"), cleaner)
    stage.until(50 * MS)
    ran = stage.runtime(cleaner)
    assert ran <= SLICE  # only the turn that was under way
    stage.block(worker)
    stage.until(80 * MS)
    assert stage.runtime(cleaner) == ran + 30 * MS
    stage.tell(Wake(worker))
    assert stage.running() == [worker]


def test_the_same_events_give_the_same_decisions() -> None:
    def decisions() -> list[object]:
        machine = Machine(cores=2)
        workers = [machine.spawn(weight=1000 * number) for number in range(1, 7)]
        said: list[object] = []
        for number, worker in enumerate(workers):
            said += machine.step(Wake(worker), number)
        for turn in range(200):
            said += machine.step(Tick(turn % 2), 10 + turn * MS)
            if turn % 7 == 0 and (running := machine.running(turn % 2)):
                said += machine.step(Block(running), 10 + turn * MS)
                said += machine.step(Wake(running), 10 + turn * MS)
        return said

    assert decisions() == decisions()
