"""Layer 4: the tick world. Agents run in discrete ticks, ordered by priority, without starvation.

`TickWorld` runs the agents' steps and isolates their failures. `TickScheduler` only computes the order, for a loop of
your own. Both work on a `ProcessTable`. Everything is in memory and deterministic.
"""

from __future__ import annotations

from rota.errors import InvalidStateTransition
from rota.model.lifecycle import AgentProcessState
from rota.model.work import Intent as NPCIntentType
from rota.tick.config import SchedulerConfig, SchedulerMetrics, SchedulingPolicy
from rota.tick.faults import FaultIsolation, FaultRecord, FaultSeverity
from rota.tick.priority_queue import AgentPriorityQueue
from rota.tick.process_table import AgentDescriptor, AgentLifecycleManager, ProcessTable
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
