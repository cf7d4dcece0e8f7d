"""The process table: its methods by example, and its state machine against a plain model."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rota.errors import InvalidPayload, UnknownPid
from rota.model.lifecycle import TICK_AGENT
from rota.tick import AgentDescriptor, AgentProcessState, InvalidStateTransition, NPCIntentType, ProcessTable

CREATED, READY, RUNNING, BLOCKED, TERMINATED = AgentProcessState


def spawn_in(table: ProcessTable, state: AgentProcessState) -> int:
    """A new agent, brought to a state by legal transitions."""
    pid = table.spawn_agent(AgentDescriptor())
    path = {CREATED: [], READY: [READY], RUNNING: [READY, RUNNING]}
    path |= {BLOCKED: [READY, RUNNING, BLOCKED], TERMINATED: [READY, TERMINATED]}
    for target in path[state]:
        table.transition_state(pid, target)
    return pid


# --- descriptors ---------------------------------------------------------------------------------


def test_a_descriptor_has_the_defaults_of_the_specification() -> None:
    agent = AgentDescriptor()
    assert (agent.parent_pid, agent.state, agent.priority, agent.role) == (0, CREATED, 1.0, "ANALYST")
    assert (agent.intent, agent.resource_quota, agent.birth_tick) == (NPCIntentType.NEUTRAL, {}, 0)
    assert (agent.exit_tick, agent.blocked_until_tick) == (None, None)


@pytest.mark.parametrize(("given", "kept"), [(0.0, 0.1), (-3, 0.1), (0.1, 0.1), (5, 5.0), (10.0, 10.0), (99.0, 10.0)])
def test_priority_is_clamped_to_its_range(given: float, kept: float) -> None:
    assert AgentDescriptor(priority=given).priority == kept
    table = ProcessTable()
    pid = spawn_in(table, READY)
    table.set_priority(pid, given)
    assert table.get_descriptor(pid).priority == kept


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": math.nan},
        {"priority": math.inf},
        {"priority": "high"},
        {"intent": "SLEEP"},
        {"state": "ASLEEP"},
        {"role": ""},
        {"parent_pid": -1},
        {"birth_tick": 1.5},
        {"birth_tick": True},
        {"resource_quota": {"tokens": -1}},
        {"resource_quota": {"tokens": math.nan}},
    ],
)
def test_a_descriptor_refuses_invalid_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayload) as refused:
        AgentDescriptor(**wrong)
    assert next(iter(wrong)) in str(refused.value)


def test_the_canonical_form_is_plain_sorted_and_rounded() -> None:
    quota = {"tokens": 10.000049, "cpu": 1}
    agent = AgentDescriptor(priority=1.23456, intent=NPCIntentType.BELONG, resource_quota=quota)
    form = agent.to_dict()
    assert (form["priority"], form["intent"], form["state"]) == (1.2346, "BELONG", "CREATED")
    assert list(form["resource_quota"].items()) == [("cpu", 1.0), ("tokens", 10.0)]
    assert all(type(form[key]) is str for key in ("intent", "state", "role"))


def test_a_descriptor_is_a_value_and_does_not_follow_its_agent() -> None:
    table = ProcessTable()
    pid = table.spawn_agent(AgentDescriptor())
    before = table.get_descriptor(pid)
    table.activate(pid)
    assert (before.state, table.get_descriptor(pid).state) == (CREATED, READY)
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.priority = 3.0  # type: ignore[misc]


# --- births and deaths ---------------------------------------------------------------------------


def test_pids_count_from_one_and_are_never_reused() -> None:
    table = ProcessTable()
    assert [table.spawn_agent(AgentDescriptor(pid=77)) for _ in range(3)] == [1, 2, 3]
    table.activate(3)
    table.terminate(3, tick=1)
    assert table.spawn_agent(AgentDescriptor()) == 4


def test_an_agent_without_a_name_is_named_after_its_pid() -> None:
    table = ProcessTable()
    table.spawn_agent(AgentDescriptor(agent_id="scout"))
    table.spawn_agent(AgentDescriptor())
    assert [table.get_descriptor(pid).agent_id for pid in (1, 2)] == ["scout", "agent_0002"]


def test_what_was_spawned_is_what_is_described() -> None:
    given = AgentDescriptor(
        agent_id="a",
        priority=2.5,
        intent=NPCIntentType.DISCOVER,
        role="SCOUT",
        resource_quota={"tokens": 5},
        birth_tick=4,
    )
    table = ProcessTable()
    pid = table.spawn_agent(given)
    assert table.get_descriptor(pid) == dataclasses.replace(given, pid=pid)


def test_a_ready_descriptor_spawns_a_ready_agent_and_no_other_state_can_be_born() -> None:
    table = ProcessTable()
    assert table.state(table.spawn_agent(AgentDescriptor(state=READY))) is READY
    for wrong in ({"state": RUNNING}, {"state": TERMINATED}, {"exit_tick": 3}, {"blocked_until_tick": 3}):
        with pytest.raises(InvalidPayload):
            table.spawn_agent(AgentDescriptor(**wrong))
    assert len(table) == 1


def test_a_parent_must_exist_and_live() -> None:
    table = ProcessTable()
    with pytest.raises(UnknownPid):
        table.spawn_agent(AgentDescriptor(parent_pid=9))
    dead = spawn_in(table, TERMINATED)
    with pytest.raises(InvalidPayload):
        table.spawn_agent(AgentDescriptor(parent_pid=dead))


def test_children_are_listed_by_pid() -> None:
    table = ProcessTable()
    for parent in (0, 1, 1, 0, 2):
        table.spawn_agent(AgentDescriptor(parent_pid=parent))
    assert [table.children(pid) for pid in range(6)] == [[1, 4], [2, 3], [5], [], [], []]


def test_terminating_twice_keeps_the_first_end() -> None:
    table = ProcessTable()
    pid = spawn_in(table, RUNNING)
    table.terminate(pid, tick=5, reason="done")
    table.terminate(pid, tick=9, reason="again")
    agent = table.get_descriptor(pid)
    assert (agent.state, agent.exit_tick, agent.exit_reason) == (TERMINATED, 5, "done")


# --- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize("current", AgentProcessState)
@pytest.mark.parametrize("target", AgentProcessState)
def test_only_transitions_of_the_table_are_legal(current: AgentProcessState, target: AgentProcessState) -> None:
    table = ProcessTable()
    pid = spawn_in(table, current)
    if target in TICK_AGENT.targets(current):
        table.transition_state(pid, target)
        assert table.state(pid) is target
    else:
        with pytest.raises(InvalidStateTransition) as refused:
            table.transition_state(pid, target)
        assert (refused.value.pid, refused.value.current, refused.value.target) == (pid, current, target)
        assert table.state(pid) is current


def test_each_verb_is_legal_from_its_own_states_only() -> None:
    def legal(verb: str) -> list[AgentProcessState]:
        found = []
        for state in AgentProcessState:
            table = ProcessTable()
            pid = spawn_in(table, state)
            try:
                getattr(table, verb)(pid)
            except InvalidStateTransition:
                assert table.state(pid) is state
            else:
                found.append(state)
        return found

    assert legal("activate") == [CREATED]
    assert legal("set_running") == [READY]
    assert legal("block") == [RUNNING]
    assert legal("set_ready") == [CREATED, RUNNING, BLOCKED]


def test_a_created_agent_must_be_activated_before_it_can_end() -> None:
    table = ProcessTable()
    with pytest.raises(InvalidStateTransition):
        table.terminate(spawn_in(table, CREATED), tick=1)


@pytest.mark.parametrize("pid", [0, -1, 2, 1.0, True, "1", None])
def test_an_unknown_pid_is_a_key_error_in_every_verb(pid: Any) -> None:
    table = ProcessTable()
    spawn_in(table, READY)
    for verb in ("get_descriptor", "state", "activate", "set_running", "set_ready", "block", "role", "agent_id"):
        with pytest.raises(KeyError):
            getattr(table, verb)(pid)
    with pytest.raises(UnknownPid):
        table.terminate(pid, 1)
    with pytest.raises(UnknownPid):
        table.set_priority(pid, 1.0)
    assert table.state(1) is READY


# --- blocking ------------------------------------------------------------------------------------


def test_a_timed_block_ends_at_its_tick_and_not_before() -> None:
    table = ProcessTable()
    for until_tick in (5, 3, 3):
        table.block(spawn_in(table, RUNNING), until_tick)
    assert table.get_descriptor(1).blocked_until_tick == 5
    assert [table.unblock_expired(tick) for tick in (2, 3, 4, 9)] == [[], [2, 3], [], [1]]
    assert table.get_descriptor(1).blocked_until_tick is None


def test_a_block_without_a_tick_lasts_until_it_is_released() -> None:
    table = ProcessTable()
    pid = spawn_in(table, RUNNING)
    table.block(pid)
    assert table.unblock_expired(10**9) == []
    table.set_ready(pid)
    assert table.state(pid) is READY


def test_a_released_agent_is_not_released_again_by_its_old_timer() -> None:
    table = ProcessTable()
    pid = spawn_in(table, RUNNING)
    table.block(pid, 5)
    table.set_ready(pid)
    table.set_running(pid)
    table.block(pid, 8)
    assert table.unblock_expired(5) == []
    assert table.unblock_expired(8) == [pid]


def test_an_agent_that_ended_while_blocked_stays_ended() -> None:
    table = ProcessTable()
    pid = spawn_in(table, RUNNING)
    table.block(pid, 5)
    table.terminate(pid, 4)
    assert table.unblock_expired(5) == []
    assert table.get_descriptor(pid).blocked_until_tick is None


# --- priorities ----------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [math.nan, math.inf, -math.inf])
def test_a_priority_that_is_not_finite_is_refused(priority: float) -> None:
    table = ProcessTable()
    pid = spawn_in(table, READY)
    with pytest.raises(InvalidPayload):
        table.set_priority(pid, priority)
    assert table.get_descriptor(pid).priority == 1.0


def test_the_priority_of_an_ended_agent_cannot_change() -> None:
    table = ProcessTable()
    pid = spawn_in(table, TERMINATED)
    with pytest.raises(InvalidPayload, match="TERMINATED"):
        table.set_priority(pid, 2.0)


def test_many_priorities_change_together_or_not_at_all() -> None:
    table = ProcessTable()
    for _ in range(3):
        spawn_in(table, READY)
    table.set_priorities({1: 2.0, 3: 99.0})
    with pytest.raises(InvalidPayload):
        table.set_priorities({1: 5.0, 2: math.nan})
    with pytest.raises(UnknownPid):
        table.set_priorities({1: 5.0, 9: 1.0})
    assert [table.get_descriptor(pid).priority for pid in (1, 2, 3)] == [2.0, 1.0, 10.0]


# --- the canonical form --------------------------------------------------------------------------


def test_equal_histories_have_equal_hashes_and_different_ones_do_not() -> None:
    def history(priority: float) -> ProcessTable:
        table = ProcessTable()
        table.block(spawn_in(table, RUNNING), 7)
        table.set_priority(spawn_in(table, READY), priority)
        return table

    assert history(2.0).to_hash() == history(2.0).to_hash()
    assert history(2.0).to_hash() != history(3.0).to_hash()
    assert re.fullmatch("[0-9a-f]{64}", ProcessTable().to_hash())


def test_a_snapshot_lists_every_agent_ever_spawned() -> None:
    table = ProcessTable()
    for state in AgentProcessState:
        spawn_in(table, state)
    snapshot = table.to_snapshot()
    assert snapshot["next_pid"] == 6
    assert [agent["state"] for agent in snapshot["agents"]] == [str(state) for state in AgentProcessState]


# --- the whole, against a model ------------------------------------------------------------------


class TableAgainstModel(RuleBasedStateMachine):
    """The table behaves like a dictionary of states and one of timers that follow the transitions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ProcessTable()
        self.states: dict[int, AgentProcessState] = {}
        self.until: dict[int, int] = {}
        self.tick = 0

    def move(self, pid: int, verbs: Mapping[AgentProcessState, AgentProcessState], act: Any) -> bool:
        """Try a verb on both; they agree on whether it is legal."""
        target = verbs.get(self.states[pid]) if pid in self.states else None
        if target is None:
            with pytest.raises((InvalidStateTransition, UnknownPid)):
                act()
            return False
        act()
        self.states[pid] = target
        self.until.pop(pid, None)
        return True

    @rule()
    def spawn(self) -> None:
        pid = self.table.spawn_agent(AgentDescriptor(birth_tick=self.tick))
        assert pid == len(self.states) + 1
        self.states[pid] = CREATED

    pids = st.integers(0, 6)

    @rule(pid=pids)
    def activate(self, pid: int) -> None:
        self.move(pid, {CREATED: READY}, lambda: self.table.activate(pid))

    @rule(pid=pids)
    def run(self, pid: int) -> None:
        self.move(pid, {READY: RUNNING}, lambda: self.table.set_running(pid))

    @rule(pid=pids)
    def ready(self, pid: int) -> None:
        self.move(pid, {CREATED: READY, RUNNING: READY, BLOCKED: READY}, lambda: self.table.set_ready(pid))

    @rule(pid=pids, ticks=st.none() | st.integers(-1, 4))
    def block(self, pid: int, ticks: int | None) -> None:
        until = None if ticks is None else self.tick + ticks
        if self.move(pid, {RUNNING: BLOCKED}, lambda: self.table.block(pid, until)) and until is not None:
            self.until[pid] = until

    @rule(pid=pids)
    def terminate(self, pid: int) -> None:
        arrows = dict.fromkeys([READY, RUNNING, BLOCKED, TERMINATED], TERMINATED)
        self.move(pid, arrows, lambda: self.table.terminate(pid, self.tick))

    @rule()
    def next_tick(self) -> None:
        self.tick += 1
        due = sorted(pid for pid, until in self.until.items() if until <= self.tick)
        assert self.table.unblock_expired(self.tick) == due
        for pid in due:
            self.states[pid] = READY
            del self.until[pid]

    @invariant()
    def agrees(self) -> None:
        for pid, state in self.states.items():
            agent = self.table.get_descriptor(pid)
            assert (agent.state, agent.blocked_until_tick) == (state, self.until.get(pid))
            assert (agent.exit_tick is not None) == (state == TERMINATED)
        for state in AgentProcessState:
            there = [pid for pid, other in self.states.items() if other == state]
            assert [agent.pid for agent in self.table.list_by_state(state)] == there
            assert self.table.count(state) == len(there)


TestTableAgainstModel = TableAgainstModel.TestCase
