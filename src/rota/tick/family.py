"""Agents by family: spawning many at once, spawning children, ending them, and who descends from whom."""

from __future__ import annotations

from collections.abc import Sequence

from rota.errors import InvalidPayload
from rota.model.lifecycle import AgentProcessState
from rota.model.work import Intent
from rota.policy.ranking import INTENT_WEIGHTS, UNKNOWN_INTENT_WEIGHT
from rota.tick.descriptor import KERNEL_PID, AgentDescriptor
from rota.tick.process_table import ProcessTable

__all__ = ["AgentLifecycleManager"]


class AgentLifecycleManager:
    """Births and deaths in a process table. An agent whose priority is not given has that of its intent."""

    def __init__(self, process_table: ProcessTable) -> None:
        self.process_table = process_table

    def create_from_lists(
        self, agent_ids: Sequence[str], intents: Sequence[Intent], roles: Sequence[str] | None = None, *, tick: int = 0
    ) -> list[int]:
        """Spawn one ready agent per id, with the intent (and role) that stands at the same place."""
        if len(intents) != len(agent_ids) or (roles is not None and len(roles) != len(agent_ids)):
            raise InvalidPayload("create_from_lists needs lists of the same length", field="agent_ids")
        descriptors = [
            AgentDescriptor(
                agent_id=agent_id,
                state=AgentProcessState.READY,
                priority=_default_priority(intent),
                intent=intent,
                role=roles[at] if roles is not None else "ANALYST",
                birth_tick=tick,
            )
            for at, (agent_id, intent) in enumerate(zip(agent_ids, intents, strict=True))
        ]
        return [self.process_table.spawn_agent(descriptor) for descriptor in descriptors]

    def spawn_child(
        self,
        parent_pid: int,
        agent_id: str = "",
        *,
        intent: Intent | None = None,
        role: str | None = None,
        priority: float | None = None,
        tick: int = 0,
    ) -> int:
        """Spawn a ready agent under a living parent, with the parent's intent and role unless others are given."""
        parent = self.process_table.get_descriptor(parent_pid)
        intent = parent.intent if intent is None else intent
        child = AgentDescriptor(
            agent_id=agent_id,
            parent_pid=parent_pid,
            state=AgentProcessState.READY,
            priority=_default_priority(intent) if priority is None else priority,
            intent=intent,
            role=parent.role if role is None else role,
            birth_tick=tick,
        )
        return self.process_table.spawn_agent(child)

    def terminate_agent(self, pid: int, tick: int, reason: str | None = None) -> None:
        """End an agent; its children live on."""
        self.process_table.terminate(pid, tick, reason)

    def get_lineage(self, pid: int) -> list[int]:
        """The agent, its parent, its grandparent and so on; the kernel is not listed."""
        lineage = []
        while pid != KERNEL_PID:
            lineage.append(pid)
            pid = self.process_table.get_descriptor(pid).parent_pid
        return lineage

    def children(self, pid: int) -> list[int]:
        """The agents that this one spawned, by pid."""
        return self.process_table.children(pid)


def _default_priority(intent: Intent) -> float:
    return INTENT_WEIGHTS.get(intent, UNKNOWN_INTENT_WEIGHT)
