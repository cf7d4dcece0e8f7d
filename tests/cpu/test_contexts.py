"""Scheduling contexts: admission, depletion, replenishment, overrun policies, who pays, handles."""

from __future__ import annotations

import pytest

from rota.cores import Machine, SchedulingContext
from rota.cores.events import (
    Acknowledge,
    Exit,
    Idle,
    Kill,
    PostTimeout,
    Preempt,
    Revoke,
    Run,
    Tick,
    Timer,
    Wake,
)
from rota.errors import (
    ContextExists,
    ContextInvalid,
    ContextRefused,
    ContextUnknown,
    Forbidden,
    StaleHandle,
)
from rota.model.budgets import Handle
from tests.cpu.stage import MS, Stage

# --- admission -----------------------------------------------------------------------------------


def test_a_context_that_does_not_fit_is_refused_with_the_shortfall_in_numbers() -> None:
    stage = Stage(cores=2)
    stage.context(60, 100, criticality="high", core_mask=0b01)
    with pytest.raises(ContextRefused) as refused:
        stage.context(40, 100, criticality="high", core_mask=0b01)
    assert refused.value.data["missing"] == ["utilisation of core 0 in ppm: 1,000,000 needed, 950,000 available"]
    stage.context(40, 100, criticality="high", core_mask=0b10)  # on the other core it fits


def test_a_deadline_that_cannot_be_met_is_refused_though_there_is_time_enough() -> None:
    stage = Stage()
    stage.context(5, 20, criticality="high", core_mask=1, relative_deadline=6 * MS)
    with pytest.raises(ContextRefused, match=r"time of core 0 for high deadlines in ns: 10,000,000 needed"):
        stage.context(5, 20, criticality="high", core_mask=1, relative_deadline=7 * MS)
    stage.context(5, 20, criticality="high", core_mask=1, relative_deadline=10 * MS)


def test_a_critical_context_counts_against_what_a_high_one_may_be_promised() -> None:
    stage = Stage()
    stage.context(4, 10, criticality="high", core_mask=1, relative_deadline=5 * MS)
    with pytest.raises(ContextRefused, match="for high deadlines"):
        stage.context(2, 10, criticality="critical", core_mask=1)
    stage.context(1, 10, criticality="critical", core_mask=1)


@pytest.mark.parametrize("mask", [0, 0b11, 0b100])
def test_a_promise_is_made_for_one_core_that_there_is(mask: int) -> None:
    stage = Stage(cores=2)
    with pytest.raises(ContextRefused, match="cores named by context 1"):
        stage.context(1, 10, criticality="critical", core_mask=mask)


def test_a_refused_context_leaves_nothing_behind() -> None:
    stage = Stage()
    with pytest.raises(ContextRefused):
        stage.context(99, 100, criticality="high", core_mask=1)
    with pytest.raises(ContextUnknown):
        stage.machine.context(1)
    stage.context(90, 100, criticality="high", core_mask=1)


def test_a_cap_needs_no_room_and_a_second_of_the_same_number_is_refused() -> None:
    machine = Machine(cores=1)
    for number in (1, 2, 3):
        machine.admit(SchedulingContext(context_id=number, budget=90 * MS, period=100 * MS))
    with pytest.raises(ContextExists, match="context 3"):
        machine.admit(SchedulingContext(context_id=3, budget=1, period=2))
    with pytest.raises(ContextInvalid, match="unit"):
        machine.admit(SchedulingContext(context_id=4, budget=1, period=2, unit="tokens"))


# --- depletion and replenishment -----------------------------------------------------------------


def test_a_context_limits_its_entity_to_its_budget_in_every_period() -> None:
    stage = Stage()
    capped, rival = stage.one(), stage.one()
    stage.bind(stage.context(20, 100), capped)
    seen = []
    for period in range(1, 11):
        stage.until(period * 100 * MS)
        seen.append(stage.runtime(capped))
    assert seen == [period * 20 * MS for period in range(1, 11)]
    assert stage.runtime(rival) == 800 * MS


def test_depletion_is_told_once_and_the_refill_lets_it_go_on() -> None:
    stage = Stage()
    worker = stage.one()
    stage.bind(stage.context(5, 50, timeout_endpoint=77), worker)
    stage.until(5 * MS)
    assert stage.log[-3:] == [
        (5 * MS, Preempt(0, worker)),
        (5 * MS, PostTimeout(77, 1, worker, 1)),
        (5 * MS, Idle(0)),
    ]
    assert stage.machine.entity(worker).state == "throttled"
    assert stage.machine.context(1).state == "depleted"
    assert stage.machine.context(1).remaining == 0
    stage.until(50 * MS)
    assert stage.machine.context(1).state == "active"
    assert stage.running() == [worker]


def test_notices_are_merged_until_one_is_acknowledged() -> None:
    stage = Stage()
    worker = stage.one()
    handle = stage.context(5, 50, timeout_endpoint=77)
    stage.bind(handle, worker)
    stage.until(220 * MS)
    assert len(stage.said(PostTimeout)) == 1
    assert stage.machine.evidence.timeouts_merged == 4
    assert list(stage.tell(Acknowledge(handle))) == [PostTimeout(77, 1, worker, 4)]  # what happened meanwhile, as one
    assert list(stage.tell(Acknowledge(handle))) == []
    stage.until(260 * MS)
    assert stage.said(PostTimeout)[-1] == PostTimeout(77, 1, worker, 1)
    assert sum(notice.count for notice in stage.said(PostTimeout)) == stage.machine.evidence.depletions == 6


def test_the_sum_of_refills_and_what_is_left_is_the_budget_at_all_times() -> None:
    stage = Stage()
    worker = stage.one()
    stage.bind(stage.context(7, 30), worker)
    for step in range(1, 200):
        stage.until(step * MS // 3)
        picture = stage.machine.context(1)
        assert picture.remaining + sum(refill.amount for refill in picture.refills) == 7 * MS


def test_a_late_tick_is_debt_and_the_next_refill_pays_it() -> None:
    machine = Machine(cores=1)
    worker = machine.spawn()
    machine.bind(machine.admit(SchedulingContext(context_id=1, budget=5 * MS, period=50 * MS)), worker)
    machine.step(Wake(worker), 0)
    machine.step(Tick(0), 0)
    machine.step(Tick(0), 3 * MS)
    machine.step(Tick(0), 9 * MS)  # due at 5: the driver was late
    assert machine.context(1).remaining == -4 * MS
    assert [refill.amount for refill in machine.context(1).refills] == [1 * MS, 4 * MS]


def test_two_entities_on_two_cores_cannot_spend_one_budget_twice() -> None:
    stage = Stage(cores=2)
    handle = stage.context(20, 100)
    pair = stage.spawn(2, awake=False)
    for one in pair:
        stage.bind(handle, one)
        stage.tell(Wake(one))
    stage.until(90 * MS)
    assert sum(stage.runtime(one) for one in pair) == 20 * MS
    assert all(stage.runtime(one) > 5 * MS for one in pair)


def test_what_one_leaves_over_the_other_may_use_at_once() -> None:
    stage = Stage(cores=2)
    handle = stage.context(4, 100)
    pair = stage.spawn(2, awake=False)
    for one in pair:
        stage.bind(handle, one)
        stage.tell(Wake(one))
    stage.until(1 * MS)  # the first was granted 3 ms, the second what was left: 1
    assert stage.machine.entity(pair[1]).state == "throttled"
    stage.block(pair[0])
    stage.until(10 * MS)
    assert [stage.runtime(one) for one in pair] == [1 * MS, 3 * MS]


def test_an_adjustment_takes_effect_at_the_next_refill() -> None:
    stage = Stage()
    worker = stage.one()
    handle = stage.context(10, 100)
    stage.bind(handle, worker)
    stage.until(4 * MS)
    stage.machine.adjust(handle, budget=30 * MS, period=50 * MS)
    stage.until(99 * MS)
    assert stage.runtime(worker) == 10 * MS
    stage.until(149 * MS)
    assert stage.runtime(worker) == 40 * MS
    stage.until(199 * MS)
    assert stage.runtime(worker) == 70 * MS


def test_an_adjustment_that_does_not_fit_changes_nothing() -> None:
    stage = Stage()
    handle = stage.context(10, 100, criticality="high", core_mask=1)
    with pytest.raises(ContextRefused):
        stage.machine.adjust(handle, budget=96 * MS, period=100 * MS)
    assert stage.machine.context(1).budget == 10 * MS
    stage.context(80, 100, criticality="high", core_mask=1)  # what was promised before still counts, and no more


# --- overrun policies ----------------------------------------------------------------------------


def test_throttle_waits_for_the_refill() -> None:
    stage = Stage()
    worker = stage.one()
    stage.bind(stage.context(5, 50, overrun="throttle"), worker)
    stage.until(40 * MS)
    assert stage.runtime(worker) == 5 * MS


def test_demote_goes_on_in_the_background_until_the_refill() -> None:
    stage = Stage()
    worker = stage.one()
    stage.bind(stage.context(5, 50, overrun="demote"), worker)
    stage.until(10 * MS)
    assert stage.runtime(worker) == 10 * MS  # nobody else wants the core
    rival = stage.one()
    stage.until(49 * MS)
    assert stage.runtime(worker) == 10 * MS  # now somebody does
    assert stage.machine.entity(worker).paying is None
    stage.until(53 * MS)
    assert stage.machine.entity(worker).paying == 1
    stage.until(60 * MS)
    assert 13 * MS < stage.runtime(worker) <= 15 * MS
    assert stage.runtime(rival) >= 45 * MS


def test_notify_goes_on_as_everybody_else_until_the_refill() -> None:
    stage = Stage()
    worker, rival = stage.one(), stage.one()
    stage.bind(stage.context(5, 1000, overrun="notify", timeout_endpoint=7), worker)
    stage.until(900 * MS)
    assert abs(stage.runtime(worker) - stage.runtime(rival)) <= 6 * MS
    assert len(stage.said(PostTimeout)) == 1
    assert stage.machine.context(1).remaining == 0


def test_kill_ends_it_and_it_never_runs_again() -> None:
    stage = Stage()
    worker = stage.one()
    handle = stage.context(5, 50, overrun="kill")
    stage.bind(handle, worker)
    stage.until(200 * MS)
    assert stage.said(Kill) == [Kill(worker)]
    assert stage.runtime(worker) == 5 * MS
    stage.obey(stage.machine.unbind(worker))  # nothing brings it back: the driver was told to end it
    stage.until(300 * MS)
    assert stage.runtime(worker) == 5 * MS
    stage.tell(Exit(worker))


def test_the_next_authority_pays_when_the_first_has_run_out() -> None:
    stage = Stage()
    stage.machine.add_group("project")
    worker = stage.one(group="project")
    stage.bind(stage.context(5, 100, overrun="notify"), worker)
    stage.obey(stage.machine.bind_group(stage.context(20, 100), "project"))
    stage.until(90 * MS)
    assert stage.runtime(worker) == 25 * MS
    assert stage.machine.context(1).remaining == stage.machine.context(2).remaining == 0
    assert stage.machine.best_effort_ns == 0


# --- who pays ------------------------------------------------------------------------------------


def test_own_before_groups_before_best_effort() -> None:
    stage = Stage()
    stage.machine.add_group("project")
    rich, poor, stranger = stage.one(group="project"), stage.one(group="project"), stage.one()
    stage.bind(stage.context(50, 100), rich)
    stage.obey(stage.machine.bind_group(stage.context(50, 100), "project"))
    assert [stage.machine.entity(one).paying for one in (rich, poor, stranger)] == [1, 2, None]
    stage.until(60 * MS)
    spent = [50 * MS - stage.machine.context(number).remaining for number in (1, 2)]
    for one in (rich, poor, stranger):
        if one in stage.running():
            stage.block(one)
    spent = [50 * MS - stage.machine.context(number).remaining for number in (1, 2)]
    assert spent == [stage.runtime(rich), stage.runtime(poor)]
    assert stage.machine.best_effort_ns == stage.runtime(stranger)


def test_without_a_context_whoever_needs_one_does_not_run() -> None:
    stage = Stage()
    strict = stage.one(needs_context=True)
    stage.until(10 * MS)
    assert stage.runtime(strict) == 0
    assert stage.machine.entity(strict).state == "throttled"
    stage.bind(stage.context(5, 10), strict)
    stage.until(12 * MS)
    assert stage.runtime(strict) == 2 * MS
    stage.obey(stage.machine.unbind(strict))
    stage.until(50 * MS)
    assert stage.runtime(strict) == 2 * MS


def test_the_core_mask_of_whatever_pays_holds_too() -> None:
    stage = Stage(cores=2)
    worker = stage.one(core_mask=0b01)
    assert stage.running() == [worker, None]
    stage.obey(stage.machine.set_mask(worker, 0))
    stage.bind(stage.context(50, 100, core_mask=0b10), worker)
    stage.until(10 * MS)
    assert stage.running() == [None, worker]


# --- the upper bands -----------------------------------------------------------------------------


def test_a_promise_goes_before_everybody_else() -> None:
    stage = Stage()
    hog = stage.one(weight=1_000_000)
    urgent = stage.one(awake=False)
    stage.bind(stage.context(2, 10, criticality="high", core_mask=1), urgent)
    stage.until(1 * MS)
    stage.tell(Wake(urgent))
    assert stage.running() == [urgent]
    stage.until(2 * MS)
    stage.block(urgent)
    assert stage.running() == [hog]


def test_the_nearest_deadline_goes_first_and_criticality_before_that() -> None:
    stage = Stage()
    late, soon, critical = (stage.one(awake=False) for _ in range(3))
    stage.bind(stage.context(2, 100, criticality="high", core_mask=1, relative_deadline=50 * MS), late)
    stage.bind(stage.context(2, 100, criticality="high", core_mask=1, relative_deadline=20 * MS), soon)
    stage.bind(stage.context(2, 100, criticality="critical", core_mask=1, relative_deadline=90 * MS), critical)
    order = []
    for one in (late, soon, critical):
        stage.tell(Wake(one))
    for _ in range(3):
        (running,) = stage.running()
        assert running is not None
        order.append(running)
        stage.block(running)
    assert order == [critical, soon, late]


def test_priority_decides_between_equal_deadlines() -> None:
    stage = Stage()
    low, high = stage.one(awake=False), stage.one(awake=False)
    stage.bind(stage.context(2, 100, criticality="high", core_mask=1, priority=1), low)
    stage.bind(stage.context(2, 100, criticality="high", core_mask=1, priority=5), high)
    first = stage.one()
    stage.until(1 * MS)
    stage.machine.step(Wake(low), stage.now)
    stage.machine.step(Wake(high), stage.now)
    assert stage.machine.step(Tick(0), stage.now)[-1] == Run(0, high, stage.now + 2 * MS)
    assert first != high


# --- handles -------------------------------------------------------------------------------------


def test_a_revoked_context_pays_no_more_and_every_handle_to_it_is_stale() -> None:
    stage = Stage()
    worker = stage.one()
    handle = stage.context(50, 100)
    weaker = stage.machine.attenuate(handle, frozenset(("use",)))
    stage.bind(weaker, worker)
    stage.until(5 * MS)
    stage.tell(Revoke(handle))
    assert stage.machine.entity(worker).paying is None
    for stale in (handle, weaker):
        with pytest.raises(StaleHandle):
            stage.machine.bind(stale, worker)
        with pytest.raises(StaleHandle):
            stage.tell(Revoke(stale))
    stage.until(20 * MS)
    assert stage.runtime(worker) == 20 * MS  # it goes on as best effort
    with pytest.raises(ContextUnknown):
        stage.machine.context(1)


def test_a_slot_that_is_used_again_does_not_bring_an_old_handle_back() -> None:
    stage = Stage()
    old = stage.context(5, 10)
    stage.tell(Revoke(old))
    new = stage.context(5, 10)
    assert (new.slot, new.generation) == (old.slot, old.generation + 1)
    with pytest.raises(StaleHandle):
        stage.machine.adjust(old, budget=1 * MS, period=2 * MS)
    stage.machine.adjust(new, budget=1 * MS, period=2 * MS)


def test_an_attenuated_handle_allows_less_and_ends_with_the_one_it_came_from() -> None:
    stage = Stage()
    handle = stage.context(5, 10)
    use_only = stage.machine.attenuate(handle, frozenset(("use",)))
    adjust_too = stage.machine.attenuate(handle, frozenset(("use", "adjust")))
    with pytest.raises(Forbidden, match="does not allow to adjust"):
        stage.machine.adjust(use_only, budget=1 * MS, period=2 * MS)
    with pytest.raises(Forbidden, match="does not allow to revoke"):
        stage.tell(Revoke(use_only))
    stage.machine.adjust(adjust_too, budget=1 * MS, period=2 * MS)
    stronger = stage.machine.attenuate(use_only, frozenset(("use", "adjust", "revoke")))
    with pytest.raises(Forbidden):  # nothing is gained by attenuating again
        stage.machine.adjust(stronger, budget=1 * MS, period=2 * MS)


@pytest.mark.parametrize("handle", [Handle(9, 0), Handle(0, 3), Handle(-1, 0)])
def test_a_handle_that_was_never_given_is_stale(handle: Handle) -> None:
    stage = Stage()
    stage.context(5, 10)
    with pytest.raises(StaleHandle):
        stage.machine.bind(handle, stage.one())


def test_revoking_lets_go_on_whoever_was_throttled() -> None:
    stage = Stage()
    worker = stage.one()
    handle = stage.context(2, 1000)
    stage.bind(handle, worker)
    stage.until(10 * MS)
    assert stage.runtime(worker) == 2 * MS
    stage.tell(Revoke(handle))
    stage.until(20 * MS)
    assert stage.runtime(worker) == 12 * MS


def test_a_thousand_that_wait_for_one_refill_are_let_go_a_bounded_number_at_a_time() -> None:
    machine = Machine(cores=1)
    handle = machine.admit(SchedulingContext(context_id=1, budget=1 * MS, period=1000 * MS))
    crowd = [machine.spawn() for _ in range(1_000)]
    for one in crowd:
        machine.bind(handle, one)
        machine.step(Wake(one), 0)
    machine.step(Tick(0), 0)
    machine.step(Tick(0), 1 * MS)  # the budget is gone, and so is everybody
    assert sum(machine.entity(one).state == "throttled" for one in crowd) == 1_000
    steps = 0
    machine.adjust(handle, budget=900 * MS, period=1000 * MS)
    while (timer_at := machine.next_timer_at) is not None and timer_at <= 1000 * MS:
        machine.step(Timer(), 1000 * MS)
        steps += 1
    machine.audit()
    assert steps == -(-1_000 // 64)
    assert not any(machine.entity(one).state == "throttled" for one in crowd)
