"""The lifecycle manager: spawning, terminating and lineage."""

from __future__ import annotations

import pytest

from rota.errors import InvalidPayload, UnknownPid
from rota.tick import AgentLifecycleManager, AgentProcessState, NPCIntentType, ProcessTable


def manager_of(*intents: NPCIntentType) -> AgentLifecycleManager:
    manager = AgentLifecycleManager(ProcessTable())
    manager.create_from_lists([f"agent-{at}" for at in range(len(intents))], intents)
    return manager


def test_agents_from_lists_are_ready_and_have_the_priority_of_their_intent() -> None:
    manager = manager_of(*NPCIntentType)
    agents = manager.process_table.list_by_state(AgentProcessState.READY)
    assert [agent.agent_id for agent in agents] == [f"agent-{at}" for at in range(6)]
    assert {agent.intent.value: agent.priority for agent in agents} == {
        "DOMINATE": 3.0,
        "ACCUMULATE": 2.5,
        "DISCOVER": 2.0,
        "BELONG": 1.8,
        "PROTECT": 1.5,
        "NEUTRAL": 1.0,
    }


def test_agents_from_lists_have_their_roles_and_birth() -> None:
    table = ProcessTable()
    pids = AgentLifecycleManager(table).create_from_lists(
        ["a", "b"], [NPCIntentType.NEUTRAL] * 2, ["SCOUT", "JUDGE"], tick=4
    )
    assert [(table.role(pid), table.get_descriptor(pid).birth_tick) for pid in pids] == [("SCOUT", 4), ("JUDGE", 4)]


def test_invalid_lists_spawn_no_agent() -> None:
    table = ProcessTable()
    manager = AgentLifecycleManager(table)
    with pytest.raises(InvalidPayload):
        manager.create_from_lists(["a", "b"], [NPCIntentType.NEUTRAL])
    with pytest.raises(InvalidPayload):
        manager.create_from_lists(["a"], [NPCIntentType.NEUTRAL], [])
    with pytest.raises(InvalidPayload):
        manager.create_from_lists(["a", "b"], [NPCIntentType.NEUTRAL, "SLEEP"])  # type: ignore[list-item]
    assert len(table) == 0


def test_a_child_inherits_intent_and_role_by_default() -> None:
    manager = manager_of(NPCIntentType.DOMINATE)
    like = manager.process_table.get_descriptor(manager.spawn_child(1, tick=3))
    unlike = manager.process_table.get_descriptor(
        manager.spawn_child(1, "odd", intent=NPCIntentType.PROTECT, role="JUDGE", priority=9.0)
    )
    assert (like.intent, like.priority, like.role, like.birth_tick) == (NPCIntentType.DOMINATE, 3.0, "ANALYST", 3)
    assert (unlike.agent_id, unlike.intent, unlike.priority, unlike.role) == ("odd", "PROTECT", 9.0, "JUDGE")
    assert manager.children(1) == [2, 3]


def test_lineage_runs_from_the_agent_to_its_eldest_ancestor() -> None:
    manager = manager_of(NPCIntentType.NEUTRAL)
    child = manager.spawn_child(1)
    grandchild = manager.spawn_child(child)
    assert manager.get_lineage(grandchild) == [3, 2, 1]
    assert manager.get_lineage(1) == [1]
    with pytest.raises(UnknownPid):
        manager.get_lineage(9)


def test_children_outlive_their_parent_and_a_terminated_parent_spawns_none() -> None:
    manager = manager_of(NPCIntentType.NEUTRAL)
    child = manager.spawn_child(1)
    manager.terminate_agent(1, tick=2, reason="retired")
    table = manager.process_table
    assert (table.get_descriptor(1).exit_reason, table.state(child)) == ("retired", AgentProcessState.READY)
    assert manager.get_lineage(child) == [child, 1]
    with pytest.raises(InvalidPayload):
        manager.spawn_child(1)
