"""State machines are tables under one `advance`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import IllegalTransition, InvalidStateTransition, SchedIllegalTransition
from rota.model.lifecycle import (
    AGENT,
    ENTRY,
    FAIR_SHARE_TASK,
    ISLAND,
    LEASE,
    MACHINES,
    TICK_AGENT,
    StateMachine,
    advance,
    verb_to,
)

machines = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)


@machines
def test_every_arrow_is_taken_and_every_other_verb_is_refused(machine: StateMachine) -> None:
    verbs = {verb for _, verb in machine.arrows}
    for state in machine.states:
        for verb in verbs:
            if (state, verb) in machine.arrows:
                assert advance(machine, state, verb) == machine.arrows[state, verb]
            else:
                with pytest.raises(IllegalTransition) as refused:
                    advance(machine, state, verb, 7)
                assert refused.value.state == state
                assert set(refused.value.legal) == set(machine.verbs(state))


@machines
def test_every_state_can_be_reached(machine: StateMachine) -> None:
    reached, pending = set(), [machine.initial]
    while pending:
        state = pending.pop()
        reached.add(state)
        pending += [target for target in machine.targets(state) if target not in reached]
    assert reached == set(machine.states)


@machines
@given(data=st.data())
def test_any_walk_stays_inside_the_table(machine: StateMachine, data: st.DataObject) -> None:
    state = machine.initial
    for _ in range(10):
        if not machine.verbs(state):
            assert state in machine.final
            break
        state = advance(machine, state, data.draw(st.sampled_from(machine.verbs(state))))
        assert state in machine.states


@machines
def test_a_target_names_its_verb(machine: StateMachine) -> None:
    for state in machine.states:
        for target in machine.states:
            if target in machine.targets(state):
                assert machine.arrows[state, verb_to(machine, state, target)] == target
            else:
                with pytest.raises(IllegalTransition):
                    verb_to(machine, state, target)


def test_the_queue_has_the_first_kernels_arrows_and_four_ways_back() -> None:
    assert {(source, target) for (source, _), target in ENTRY.arrows.items()} == {
        ("queued", "dispatched"),
        ("queued", "expired"),
        ("queued", "cancelled"),
        ("dispatched", "completed"),
        ("dispatched", "queued"),
    }
    assert ENTRY.final == {"completed", "expired", "cancelled"}
    assert {
        verb for (source, verb), target in ENTRY.arrows.items() if (source, target) == ("dispatched", "queued")
    } == {
        "reclaim",
        "retry",
        "preempt",
        "yield",
    }


def test_the_kernels_agent_goes_back_to_ready_through_suspended_only() -> None:
    assert AGENT.targets("RUNNING") == {"WAITING", "SUSPENDED", "DEAD"}
    assert AGENT.targets("SUSPENDED") == {"READY", "DEAD"}
    assert AGENT.final == {"DEAD"}


def test_a_tick_agent_blocks_from_running_only_and_is_not_terminated_before_it_is_activated() -> None:
    assert TICK_AGENT.targets("READY") == {"RUNNING", "TERMINATED"}
    assert TICK_AGENT.targets("CREATED") == {"READY"}


def test_an_administrator_restarts_a_task_from_anywhere_but_ready_and_in_progress() -> None:
    from_where = {state for state, verb in FAIR_SHARE_TASK.arrows if verb == "ADMIN_RESTART"}
    assert set(FAIR_SHARE_TASK.states) - from_where == {"READY", "IN_PROGRESS"}


def test_an_island_that_overran_can_only_stop() -> None:
    assert ISLAND.targets("overrun") == {"stopped"}
    assert LEASE.targets("revoking") == {"revoked"}


def test_the_error_names_the_state_the_verb_and_the_legal_verbs() -> None:
    with pytest.raises(SchedIllegalTransition) as refused:
        advance(ENTRY, "dispatched", "cancel", 12, history=["claimed by w-1"])
    error = refused.value
    assert (error.code, error.prev_state, error.op, error.subject) == (-32131, "dispatched", "cancel", 12)
    assert str(error) == (
        "entry 12 is dispatched and cannot cancel. "
        "From dispatched it can: complete, reclaim, retry, preempt, yield. Recently: claimed by w-1."
    )


def test_the_tick_worlds_error_has_three_attributes() -> None:
    with pytest.raises(InvalidStateTransition) as refused:
        verb_to(TICK_AGENT, "READY", "BLOCKED", 3)
    assert (refused.value.pid, refused.value.current, refused.value.target) == (3, "READY", "BLOCKED")
    assert InvalidStateTransition(1, "READY", "BLOCKED").target == "BLOCKED"
