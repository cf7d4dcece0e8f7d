"""Calls: a caller donates its share and budget, the reply returns them, and nothing is lost when an entity ends."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rota.cores import CoresEngine
from rota.cores.calls import CALL_DEPTH_MAX, CALLERS_MAX
from rota.cores.events import CallEntity, CallFailed, ExitEntity, Kill, PostTimeout, Reply, Revoke, RunEntity, Wake
from rota.errors import DonationCycle, EntityIllegalTransition, LimitExceeded
from rota.sim.build import build_simulation
from rota.sim.scenario import parse_scenario
from tests.cores.harness import MS, EngineHarness


def test_a_call_donates_the_budget_and_the_reply_returns_it() -> None:
    harness = EngineHarness()
    caller, server = harness.one(), harness.one(awake=False)
    harness.bind(harness.context(10, 100), caller)
    harness.send(CallEntity(caller, server))
    assert harness.engine.entity(server).paying == 1
    assert harness.engine.entity(caller).state == "calling"
    harness.until(2 * MS)
    harness.send(Reply(server))
    assert harness.engine.entity(server).state == "sleeping"
    assert harness.engine.entity(server).paying is None
    assert harness.engine.entity(caller).state == "running"
    harness.until(2 * MS + MS // 2)
    harness.block(caller)
    assert harness.engine.context(1).remaining == 7 * MS + MS // 2


def test_a_chain_of_calls_runs_on_the_first_callers_budget() -> None:
    harness = EngineHarness()
    first = harness.one()
    chain = harness.spawn(3, awake=False)
    harness.bind(harness.context(10, 100), first)
    for caller, callee in zip([first, *chain], chain, strict=False):
        harness.send(CallEntity(caller, callee))
        assert harness.engine.entity(callee).paying == 1
    harness.until(1 * MS)
    assert harness.running() == [chain[-1]]
    for callee, caller in zip(reversed(chain), [*reversed(chain[:-1]), first], strict=True):
        assert harness.send(Reply(callee)) == [RunEntity(0, caller, 3 * MS)]
    assert harness.running() == [first]
    assert harness.engine.account(first).preemptions == 0


def test_depletion_during_a_call_notifies_the_donors_endpoint() -> None:
    harness = EngineHarness()
    caller, middle, last = harness.one(), harness.one(awake=False), harness.one(awake=False)
    harness.bind(harness.context(5, 50, timeout_endpoint=11), caller)
    harness.bind(harness.context(50, 100, timeout_endpoint=22), last)
    harness.send(CallEntity(caller, middle))
    harness.send(CallEntity(middle, last))
    harness.until(10 * MS)
    assert harness.decided(PostTimeout) == [PostTimeout(11, 1, last, 1)]
    assert harness.engine.entity(last).state == "throttled"
    assert harness.runtime(last) == 5 * MS
    harness.until(50 * MS)
    assert harness.running() == [last]  # after the refill the callee continues
    harness.send(Reply(last))
    harness.send(Reply(middle))
    assert harness.running() == [caller]


def test_a_caller_without_a_context_donates_none_and_the_callees_own_pays() -> None:
    harness = EngineHarness()
    caller, server = harness.one(), harness.one(awake=False)
    harness.bind(harness.context(10, 100), server)
    harness.send(CallEntity(caller, server))
    assert harness.engine.entity(server).paying == 1
    harness.until(2 * MS)
    harness.send(Reply(server))
    harness.until(4 * MS)
    harness.block(caller)
    assert harness.engine.context(1).remaining == 8 * MS
    assert harness.engine.best_effort_ns == 2 * MS


def test_the_context_of_a_call_path_pays_instead_of_the_callers() -> None:
    harness = EngineHarness()
    caller, server = harness.one(), harness.one(awake=False)
    harness.bind(harness.context(10, 100), caller)
    harness.engine.bind_path(harness.context(10, 100), server)
    harness.until(1 * MS)
    harness.send(CallEntity(caller, server))
    assert harness.engine.entity(server).paying == 2
    harness.until(3 * MS)
    harness.send(Reply(server))
    harness.until(4 * MS)
    harness.block(caller)
    assert [harness.engine.context(number).remaining for number in (1, 2)] == [8 * MS, 8 * MS]


def test_a_cycle_of_calls_is_refused_and_nothing_changes() -> None:
    harness = EngineHarness()
    first, second, third = harness.one(), harness.one(awake=False), harness.one(awake=False)
    harness.send(CallEntity(first, second))
    harness.send(CallEntity(second, third))
    for callee in (first, second, third):
        with pytest.raises(DonationCycle, match="waits for it"):
            harness.send(CallEntity(third, callee))
    harness.engine.check_invariants()
    assert harness.running() == [third]
    harness.send(Reply(third))
    assert harness.running() == [second]


def test_the_length_of_a_call_chain_is_limited() -> None:
    harness = EngineHarness()
    chain = [harness.one(), *harness.spawn(CALL_DEPTH_MAX + 1, awake=False)]
    for caller, callee in pairwise(chain[: CALL_DEPTH_MAX + 1]):
        harness.send(CallEntity(caller, callee))
    with pytest.raises(LimitExceeded, match="call_depth_max is 64"):
        harness.send(CallEntity(chain[CALL_DEPTH_MAX], chain[CALL_DEPTH_MAX + 1]))
    harness.engine.check_invariants()


def test_a_busy_server_serves_its_callers_in_order() -> None:
    harness = EngineHarness()
    callers, server = harness.spawn(3), harness.one(awake=False)
    harness.send(CallEntity(callers[0], server))
    harness.until(3 * MS)  # the first caller's slice ends during its call
    harness.send(CallEntity(callers[1], server))
    harness.send(CallEntity(callers[2], server))
    for caller in callers:
        while harness.running() != [server]:
            harness.until(harness.now + MS)
        decided = harness.send(Reply(server))
        assert caller in [one.entity for one in decided if isinstance(one, RunEntity)]  # the next call may preempt it
    while (running := harness.running()) != [None]:
        assert running[0] in callers
        harness.block(running[0])
    assert harness.engine.entity(server).state == "sleeping"


def test_the_number_of_waiting_callers_is_limited() -> None:
    harness = EngineHarness()
    server = harness.one()  # awake and busy with its own work
    for _ in range(CALLERS_MAX):
        caller = harness.one(latency_class="sensitive")
        while harness.running() != [caller]:
            harness.until(harness.now + MS)
        harness.send(CallEntity(caller, server))
    last = harness.one(latency_class="sensitive")
    while harness.running() != [last]:
        harness.until(harness.now + MS)
    with pytest.raises(LimitExceeded, match="callers_max is 256"):
        harness.send(CallEntity(last, server))
    assert harness.running() == [last]


def test_a_server_that_blocks_while_it_serves_continues_on_the_callers_share() -> None:
    harness = EngineHarness()
    caller, server, hog = harness.one(), harness.one(awake=False), harness.one()
    harness.bind(harness.context(50, 100), caller)
    harness.send(CallEntity(caller, server))
    harness.until(1 * MS)
    harness.block(server)
    assert harness.running() == [hog]
    harness.until(2 * MS)
    harness.send(Wake(server))
    harness.until(8 * MS)
    assert harness.runtime(server) > 1 * MS
    assert harness.engine.entity(server).paying == 1
    while harness.running() != [server]:
        harness.until(harness.now + MS)
    harness.send(Reply(server))
    assert harness.running() == [caller]


def test_when_the_callee_ends_its_callers_continue_with_an_error() -> None:
    harness = EngineHarness()
    served, server = harness.one(), harness.one(awake=False)
    harness.send(CallEntity(served, server))
    queued = harness.one(latency_class="sensitive")
    harness.send(CallEntity(queued, server))
    harness.send(ExitEntity(server))
    assert {one.caller for one in harness.decided(CallFailed)} == {served, queued}
    assert {harness.engine.entity(one).state for one in (served, queued)} == {"running", "ready"}
    harness.until(20 * MS)
    assert all(harness.runtime(one) > 5 * MS for one in (served, queued))


def test_when_the_caller_ends_the_callee_continues_on_its_own_share() -> None:
    harness = EngineHarness()
    caller, server = harness.one(), harness.one(awake=False)
    harness.bind(harness.context(10, 100), caller)
    harness.send(CallEntity(caller, server))
    harness.until(1 * MS)
    harness.send(ExitEntity(caller))
    assert harness.running() == [server]
    assert harness.engine.entity(server).paying is None
    harness.until(2 * MS)
    harness.send(Reply(server))
    assert harness.engine.entity(server).state == "sleeping"
    assert harness.runtime(server) == 2 * MS
    assert harness.engine.best_effort_ns == 1 * MS


def test_when_an_entity_in_the_middle_of_a_chain_ends_both_sides_continue() -> None:
    harness = EngineHarness()
    first, middle, last = harness.one(), harness.one(awake=False), harness.one(awake=False)
    harness.bind(harness.context(10, 100), first)
    harness.send(CallEntity(first, middle))
    harness.send(CallEntity(middle, last))
    harness.until(1 * MS)
    harness.send(ExitEntity(middle))
    assert harness.decided(CallFailed) == [CallFailed(first, middle)]
    assert {harness.engine.entity(one).state for one in (first, last)} == {"running", "ready"}
    assert [harness.engine.entity(one).paying for one in (first, last)] == [1, None]
    harness.until(20 * MS)
    assert harness.runtime(last) > 5 * MS


def test_a_context_revoked_during_a_call_leaves_the_callee_running() -> None:
    harness = EngineHarness()
    caller, server = harness.one(), harness.one(awake=False)
    handle = harness.context(10, 100)
    harness.bind(handle, caller)
    harness.send(CallEntity(caller, server))
    harness.until(1 * MS)
    harness.send(Revoke(handle))
    harness.until(5 * MS)
    assert harness.running() == [server]
    assert harness.engine.entity(server).paying is None
    harness.send(Reply(server))
    assert harness.running() == [caller]


def test_kill_during_a_call_ends_the_donor_and_frees_the_server() -> None:
    harness = EngineHarness()
    caller, server = harness.one(), harness.one(awake=False)
    harness.bind(harness.context(2, 100, overrun="kill"), caller)
    harness.send(CallEntity(caller, server))
    harness.until(2 * MS)
    assert harness.decided(Kill) == [Kill(caller)]
    harness.send(ExitEntity(caller))
    harness.until(4 * MS)
    assert harness.running() == [server]
    assert harness.runtime(server) == 4 * MS


def test_a_callee_that_may_not_run_here_runs_elsewhere_on_the_callers_share() -> None:
    harness = EngineHarness(cores=2)
    caller, server = harness.one(core_mask=0b01), harness.one(core_mask=0b10, awake=False)
    harness.send(CallEntity(caller, server))
    assert harness.running() == [None, server]
    harness.until(1 * MS)
    harness.send(Reply(server))
    assert harness.running() == [caller, None]


def test_only_a_running_entity_can_call_and_only_a_serving_one_can_reply() -> None:
    harness = EngineHarness()
    worker, other = harness.one(), harness.one(awake=False)
    with pytest.raises(EntityIllegalTransition, match="cannot call"):
        harness.send(CallEntity(other, worker))
    with pytest.raises(EntityIllegalTransition, match="cannot reply"):
        harness.send(Reply(worker))


# --- criticality ---------------------------------------------------------------------------------


def test_the_caller_of_the_highest_band_is_served_first() -> None:
    harness = EngineHarness(cores=3)
    server = harness.one(awake=False)
    first, ordinary = harness.one(core_mask=0b001), harness.one(core_mask=0b010)
    critical = harness.one(awake=False)
    harness.bind(harness.context(2, 10, criticality="critical", core_mask=0b100), critical)
    harness.send(Wake(critical))
    for caller in (first, ordinary, critical):
        harness.send(CallEntity(caller, server))
    harness.send(Reply(server))
    assert harness.engine.entity(server).paying == 1  # it serves the critical one, before the one that came earlier


def test_a_busy_server_that_blocks_takes_the_call_that_waits() -> None:
    """It works for itself when the call comes, and sleeps before it has looked: nobody else would wake it."""
    harness = EngineHarness(cores=2)
    server = harness.one(core_mask=0b01)
    caller = harness.one(core_mask=0b10)
    harness.send(CallEntity(caller, server))
    harness.block(server)
    assert harness.engine.running(0) == server
    harness.send(Reply(server))
    assert harness.engine.running(1) == caller


def test_a_critical_caller_urges_the_call_in_progress_within_its_own_reservation() -> None:
    """The server works for an ordinary caller beside three hogs; once a critical one waits, nothing delays it."""
    harness = EngineHarness()
    ordinary, server = harness.one(), harness.one(awake=False)
    harness.send(CallEntity(ordinary, server))
    hogs = harness.spawn(3)
    critical = harness.one(awake=False)
    harness.bind(harness.context(5, 20, criticality="critical", core_mask=0b1), critical)
    harness.until(3 * MS)
    assert harness.engine.running(0) in hogs
    harness.send(Wake(critical))
    harness.send(CallEntity(critical, server))
    assert harness.engine.running(0) == server
    assert harness.engine.entity(server).paying is None  # the ordinary caller's share is used
    harness.until(6 * MS)
    assert harness.engine.running(0) == server  # past its slice
    harness.send(Reply(server))
    assert harness.engine.running(0) == server
    assert harness.engine.entity(server).paying == 1  # now it serves the critical one, which pays
    harness.send(Reply(server))
    assert harness.engine.running(0) == critical
    assert harness.engine.context(1).remaining == 2 * MS  # what the call took of it while it was urged
    ran = harness.runtime(ordinary) + harness.runtime(server)
    harness.block(critical)
    harness.until(60 * MS)
    lead = harness.runtime(ordinary) + harness.runtime(server) - min(harness.runtime(hog) for hog in hogs)
    assert ran == 6 * MS
    assert lead <= 6 * MS  # what it got ahead is counted against its share


@pytest.mark.parametrize("group", [None, "web"])
def test_a_server_that_does_not_reply_is_urged_no_longer_than_the_budget_of_the_waiting_caller(
    group: str | None,
) -> None:
    harness = EngineHarness()
    if group:
        harness.engine.add_group(group)
    ordinary, server = harness.one(group=group), harness.one(awake=False)
    harness.send(CallEntity(ordinary, server))
    hog = harness.one()
    critical = harness.one(awake=False)
    harness.bind(harness.context(30, 200, criticality="critical", core_mask=0b1), critical)
    harness.until(3 * MS)
    harness.send(Wake(critical))
    harness.send(CallEntity(critical, server))
    harness.until(103 * MS)  # for 30 ms of these it was urged, and that is charged to its share
    assert harness.runtime(hog) == pytest.approx(50 * MS, abs=4 * MS)


def test_a_caller_that_urges_takes_nothing_from_another_reservation() -> None:
    """Both reserve 45 of 100 ms. One waits for a call of 44 ms and then works itself: it is late, the other is not."""
    harness = EngineHarness()
    ordinary, server = harness.one(), harness.one(awake=False)
    harness.send(CallEntity(ordinary, server))
    calls, works = harness.spawn(2, awake=False)
    harness.bind(harness.context(45, 100, criticality="high", core_mask=1, relative_deadline=90 * MS), calls)
    harness.bind(harness.context(45, 100, criticality="high", core_mask=1), works)
    harness.send(Wake(calls))
    harness.send(CallEntity(calls, server))
    harness.send(Wake(works))
    harness.until(44 * MS)
    assert harness.engine.running(0) == server
    harness.send(Reply(server))
    harness.send(Reply(server))
    harness.until(90 * MS)
    assert harness.runtime(calls) == 1 * MS  # the rest of its reservation
    assert harness.runtime(works) == 45 * MS
    assert harness.engine._contexts.get(1).used == 1 * MS  # the ordinary caller paid for its own call


@pytest.mark.parametrize(("mask", "urged"), [(0b11, True), (0b10, False)])
def test_a_call_is_urged_only_where_the_waiting_caller_has_its_reservation(mask: int, urged: bool) -> None:
    harness = EngineHarness(cores=2)
    ordinary, server = harness.one(core_mask=0b10), harness.one(awake=False, core_mask=mask)
    harness.send(CallEntity(ordinary, server))
    harness.spawn(3, core_mask=0b10)
    critical = harness.one(awake=False)
    harness.bind(harness.context(5, 20, criticality="critical", core_mask=0b01), critical)
    harness.until(4 * MS)
    harness.send(Wake(critical))
    harness.send(CallEntity(critical, server))
    harness.until(8 * MS)
    assert (harness.engine.running(0) == server) is urged


def test_a_call_is_not_urged_for_a_caller_that_no_longer_waits() -> None:
    """It waited for one that waited itself, and that one has ended: the call in progress there goes on as before."""
    harness = EngineHarness(cores=2)
    ordinary, last = harness.one(core_mask=0b01), harness.one(awake=False)
    harness.send(CallEntity(ordinary, last))
    hog = harness.one(core_mask=0b01)
    middle = harness.one(core_mask=0b10)
    harness.send(CallEntity(middle, last))
    critical = harness.one(awake=False)
    harness.bind(harness.context(50, 100, criticality="critical", core_mask=0b01), critical)
    harness.until(3 * MS)
    harness.send(Wake(critical))
    harness.send(CallEntity(critical, middle))
    harness.until(4 * MS)
    assert harness.engine.running(0) == last
    harness.send(ExitEntity(middle))
    harness.block(critical)
    before = harness.runtime(hog)
    harness.until(104 * MS)
    assert harness.runtime(hog) - before > 45 * MS


def test_a_context_for_a_call_path_pays_from_when_it_is_bound() -> None:
    """The caller's own was revoked during the call, so the callee waits."""
    harness = EngineHarness()
    caller, server = harness.one(needs_context=True, awake=False), harness.one(awake=False)
    own, path = harness.context(9, 10), harness.context(9, 10)
    harness.bind(own, caller)
    harness.send(Wake(caller))
    harness.send(CallEntity(caller, server))
    harness.send(Revoke(own))
    harness.until(20 * MS)
    assert harness.running() == [None]
    harness.apply(harness.engine.bind_path(path, server))
    assert harness.running() == [server]


@pytest.mark.parametrize("who", ["the waiting caller", "the served caller", "the server"])
def test_an_urged_call_ends_with_any_of_its_parties(who: str) -> None:
    harness = EngineHarness()
    ordinary, server = harness.one(), harness.one(awake=False)
    harness.send(CallEntity(ordinary, server))
    hog = harness.one()
    critical = harness.one(awake=False)
    harness.bind(harness.context(2, 20, criticality="critical", core_mask=0b1), critical)
    harness.until(3 * MS)
    harness.send(Wake(critical))
    harness.send(CallEntity(critical, server))
    harness.send(ExitEntity({"the waiting caller": critical, "the served caller": ordinary, "the server": server}[who]))
    harness.until(50 * MS)
    assert harness.runtime(hog) > 15 * MS  # the rest competes by weight again


CRITICAL_AND_CROWD = """
cores = 1
duration_ms = 6000
[[context]]
name = "mix"
budget_us = 4000
period_us = 20000
deadline_us = 10000
criticality = "critical"
cores = [0]
[[thread]]
name = "critical"
kind = "caller"
context = "mix"
work_us = 500
sleep_us = 19000
server = "server"
serve_us = 500
[[thread]]
name = "crowd"
kind = "caller"
count = 5
work_us = [200, 900]
sleep_us = [1000, 9000]
server = "server"
serve_us = [300, 1500]
[[thread]]
name = "hog"
kind = "hog"
count = 3
[[thread]]
name = "server"
kind = "server"
"""


def test_no_activation_of_a_critical_caller_is_late_behind_best_effort_callers_of_its_server() -> None:
    simulation = build_simulation(parse_scenario(CRITICAL_AND_CROWD))
    simulation.check = CoresEngine.check_invariants
    simulation.run(6_000 * MS)
    critical = next(thread for thread in simulation.threads.values() if thread.name == "critical")
    assert len(critical.responses) > 290
    assert max(critical.responses) < 5 * MS
    assert simulation.engine.counters.misses == 0
