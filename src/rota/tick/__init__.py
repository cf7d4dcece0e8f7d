"""Layer 4: the tick world. Agents that take turns in discrete steps, by priority and without starving."""

from __future__ import annotations

from rota.errors import InvalidStateTransition
from rota.model.lifecycle import AgentProcessState
from rota.model.work import Intent as NPCIntentType
from rota.tick.config import SchedulerConfig, SchedulerMetrics, SchedulingPolicy
from rota.tick.descriptor import AgentDescriptor
from rota.tick.family import AgentLifecycleManager
from rota.tick.faults import FaultIsolation, FaultRecord, FaultSeverity
from rota.tick.priority_queue import AgentPriorityQueue
from rota.tick.process_table import ProcessTable
from rota.tick.scheduler import TickScheduler
from rota.tick.world import PhasedStep, TickWorld

__all__ = [
    "AgentDescriptor",
    "AgentLifecycleManager",
    "AgentPriorityQueue",
    "AgentProcessState",
    "FaultIsolation",
    "FaultRecord",
    "FaultSeverity",
    "InvalidStateTransition",
    "NPCIntentType",
    "PhasedStep",
    "ProcessTable",
    "SchedulerConfig",
    "SchedulerMetrics",
    "SchedulingPolicy",
    "TickScheduler",
    "TickWorld",
]
