"""Calls: a caller lends its place and its budget, the reply gives them back, and nothing is lost when somebody ends."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rota.cores.calls import CALL_DEPTH_MAX, CALLERS_MAX
from rota.cores.events import Call, CallFailed, Exit, Kill, PostTimeout, Reply, Revoke, Run, Wake
from rota.errors import DonationCycle, EntityIllegalTransition, LimitExceeded
from tests.cpu.stage import MS, Stage


def test_the_budget_is_lent_with_the_call_and_comes_back_with_the_reply() -> None:
    stage = Stage()
    caller, server = stage.one(), stage.one(awake=False)
    stage.bind(stage.context(10, 100), caller)
    stage.tell(Call(caller, server))
    assert stage.machine.entity(server).paying == 1
    assert stage.machine.entity(caller).state == "calling"
    stage.until(2 * MS)
    stage.tell(Reply(server))
    assert stage.machine.entity(server).state == "sleeping"
    assert stage.machine.entity(server).paying is None
    assert stage.machine.entity(caller).state == "running"
    stage.until(2 * MS + MS // 2)
    stage.block(caller)
    assert stage.machine.context(1).remaining == 7 * MS + MS // 2


def test_a_chain_of_calls_lends_the_first_callers_budget_all_the_way() -> None:
    stage = Stage()
    first = stage.one()
    chain = stage.spawn(3, awake=False)
    stage.bind(stage.context(10, 100), first)
    for caller, callee in zip([first, *chain], chain, strict=False):
        stage.tell(Call(caller, callee))
        assert stage.machine.entity(callee).paying == 1
    stage.until(1 * MS)
    assert stage.running() == [chain[-1]]
    for callee, caller in zip(reversed(chain), [*reversed(chain[:-1]), first], strict=True):
        assert stage.tell(Reply(callee)) == [Run(0, caller, 3 * MS)]
    assert stage.running() == [first]
    assert stage.machine.account(first).preemptions == 0


def test_depletion_in_the_middle_of_a_call_is_told_to_the_lenders_endpoint() -> None:
    stage = Stage()
    caller, middle, last = stage.one(), stage.one(awake=False), stage.one(awake=False)
    stage.bind(stage.context(5, 50, timeout_endpoint=11), caller)
    stage.bind(stage.context(50, 100, timeout_endpoint=22), last)
    stage.tell(Call(caller, middle))
    stage.tell(Call(middle, last))
    stage.until(10 * MS)
    assert stage.said(PostTimeout) == [PostTimeout(11, 1, last, 1)]
    assert stage.machine.entity(last).state == "throttled"
    assert stage.runtime(last) == 5 * MS
    stage.until(50 * MS)
    assert stage.running() == [last]  # the refill lets the answer go on
    stage.tell(Reply(last))
    stage.tell(Reply(middle))
    assert stage.running() == [caller]


def test_a_caller_without_a_context_lends_none_and_the_callees_own_pays() -> None:
    stage = Stage()
    caller, server = stage.one(), stage.one(awake=False)
    stage.bind(stage.context(10, 100), server)
    stage.tell(Call(caller, server))
    assert stage.machine.entity(server).paying == 1
    stage.until(2 * MS)
    stage.tell(Reply(server))
    stage.until(4 * MS)
    stage.block(caller)
    assert stage.machine.context(1).remaining == 8 * MS
    assert stage.machine.best_effort_ns == 2 * MS


def test_the_context_of_a_call_path_pays_instead_of_the_callers() -> None:
    stage = Stage()
    caller, server = stage.one(), stage.one(awake=False)
    stage.bind(stage.context(10, 100), caller)
    stage.machine.bind_path(stage.context(10, 100), server)
    stage.until(1 * MS)
    stage.tell(Call(caller, server))
    assert stage.machine.entity(server).paying == 2
    stage.until(3 * MS)
    stage.tell(Reply(server))
    stage.until(4 * MS)
    stage.block(caller)
    assert [stage.machine.context(number).remaining for number in (1, 2)] == [8 * MS, 8 * MS]


def test_a_circle_of_calls_is_refused_and_nothing_changes() -> None:
    stage = Stage()
    first, second, third = stage.one(), stage.one(awake=False), stage.one(awake=False)
    stage.tell(Call(first, second))
    stage.tell(Call(second, third))
    for callee in (first, second, third):
        with pytest.raises(DonationCycle, match="waits for it"):
            stage.tell(Call(third, callee))
    stage.machine.audit()
    assert stage.running() == [third]
    stage.tell(Reply(third))
    assert stage.running() == [second]


def test_a_chain_may_be_so_deep_and_no_deeper() -> None:
    stage = Stage()
    chain = [stage.one(), *stage.spawn(CALL_DEPTH_MAX + 1, awake=False)]
    for caller, callee in pairwise(chain[: CALL_DEPTH_MAX + 1]):
        stage.tell(Call(caller, callee))
    with pytest.raises(LimitExceeded, match="call_depth_max is 64"):
        stage.tell(Call(chain[CALL_DEPTH_MAX], chain[CALL_DEPTH_MAX + 1]))
    stage.machine.audit()


def test_a_busy_server_serves_its_callers_first_come_first() -> None:
    stage = Stage()
    callers, server = stage.spawn(3), stage.one(awake=False)
    stage.tell(Call(callers[0], server))
    stage.until(3 * MS)  # the first caller's turn ends in the middle of its call
    stage.tell(Call(callers[1], server))
    stage.tell(Call(callers[2], server))
    for caller in callers:
        assert stage.running() == [server]
        stage.tell(Reply(server))
        assert stage.running() == [caller]
        stage.block(caller)
    assert stage.machine.entity(server).state == "sleeping"
    assert stage.running() == [None]


def test_so_many_may_wait_for_one_server_and_no_more() -> None:
    stage = Stage()
    server = stage.one()  # awake and busy with its own work
    for _ in range(CALLERS_MAX):
        caller = stage.one(latency_class="sensitive")
        while stage.running() != [caller]:
            stage.until(stage.now + MS)
        stage.tell(Call(caller, server))
    last = stage.one(latency_class="sensitive")
    while stage.running() != [last]:
        stage.until(stage.now + MS)
    with pytest.raises(LimitExceeded, match="callers_max is 256"):
        stage.tell(Call(last, server))
    assert stage.running() == [last]


def test_a_server_that_blocks_while_it_serves_goes_on_in_the_callers_place() -> None:
    stage = Stage()
    caller, server, hog = stage.one(), stage.one(awake=False), stage.one()
    stage.bind(stage.context(50, 100), caller)
    stage.tell(Call(caller, server))
    stage.until(1 * MS)
    stage.block(server)
    assert stage.running() == [hog]
    stage.until(2 * MS)
    stage.tell(Wake(server))
    stage.until(8 * MS)
    assert stage.runtime(server) > 1 * MS
    assert stage.machine.entity(server).paying == 1
    while stage.running() != [server]:
        stage.until(stage.now + MS)
    stage.tell(Reply(server))
    assert stage.running() == [caller]


def test_when_the_callee_ends_its_callers_go_on_with_an_error() -> None:
    stage = Stage()
    served, server = stage.one(), stage.one(awake=False)
    stage.tell(Call(served, server))
    queued = stage.one(latency_class="sensitive")
    stage.tell(Call(queued, server))
    stage.tell(Exit(server))
    assert {one.caller for one in stage.said(CallFailed)} == {served, queued}
    assert {stage.machine.entity(one).state for one in (served, queued)} == {"running", "ready"}
    stage.until(20 * MS)
    assert all(stage.runtime(one) > 5 * MS for one in (served, queued))


def test_when_the_caller_ends_the_callee_goes_on_in_its_own_place_and_replies_to_nobody() -> None:
    stage = Stage()
    caller, server = stage.one(), stage.one(awake=False)
    stage.bind(stage.context(10, 100), caller)
    stage.tell(Call(caller, server))
    stage.until(1 * MS)
    stage.tell(Exit(caller))
    assert stage.running() == [server]
    assert stage.machine.entity(server).paying is None
    stage.until(2 * MS)
    stage.tell(Reply(server))
    assert stage.machine.entity(server).state == "sleeping"
    assert stage.runtime(server) == 2 * MS
    assert stage.machine.best_effort_ns == 1 * MS


def test_when_one_in_the_middle_of_a_chain_ends_both_sides_go_on() -> None:
    stage = Stage()
    first, middle, last = stage.one(), stage.one(awake=False), stage.one(awake=False)
    stage.bind(stage.context(10, 100), first)
    stage.tell(Call(first, middle))
    stage.tell(Call(middle, last))
    stage.until(1 * MS)
    stage.tell(Exit(middle))
    assert stage.said(CallFailed) == [CallFailed(first, middle)]
    assert {stage.machine.entity(one).state for one in (first, last)} == {"running", "ready"}
    assert [stage.machine.entity(one).paying for one in (first, last)] == [1, None]
    stage.until(20 * MS)
    assert stage.runtime(last) > 5 * MS


def test_a_context_that_is_revoked_in_the_middle_of_a_call_leaves_the_answer_running() -> None:
    stage = Stage()
    caller, server = stage.one(), stage.one(awake=False)
    handle = stage.context(10, 100)
    stage.bind(handle, caller)
    stage.tell(Call(caller, server))
    stage.until(1 * MS)
    stage.tell(Revoke(handle))
    stage.until(5 * MS)
    assert stage.running() == [server]
    assert stage.machine.entity(server).paying is None
    stage.tell(Reply(server))
    assert stage.running() == [caller]


def test_kill_in_the_middle_of_a_call_ends_the_lender_and_frees_the_server() -> None:
    stage = Stage()
    caller, server = stage.one(), stage.one(awake=False)
    stage.bind(stage.context(2, 100, overrun="kill"), caller)
    stage.tell(Call(caller, server))
    stage.until(2 * MS)
    assert stage.said(Kill) == [Kill(caller)]
    stage.tell(Exit(caller))
    stage.until(4 * MS)
    assert stage.running() == [server]
    assert stage.runtime(server) == 4 * MS


def test_a_callee_that_may_not_run_here_is_served_elsewhere_in_the_callers_place() -> None:
    stage = Stage(cores=2)
    caller, server = stage.one(core_mask=0b01), stage.one(core_mask=0b10, awake=False)
    stage.tell(Call(caller, server))
    assert stage.running() == [None, server]
    stage.until(1 * MS)
    stage.tell(Reply(server))
    assert stage.running() == [caller, None]


def test_only_who_runs_can_call_and_only_who_serves_can_reply() -> None:
    stage = Stage()
    worker, other = stage.one(), stage.one(awake=False)
    with pytest.raises(EntityIllegalTransition, match="cannot call"):
        stage.tell(Call(other, worker))
    with pytest.raises(EntityIllegalTransition, match="cannot reply"):
        stage.tell(Reply(worker))
