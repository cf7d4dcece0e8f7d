"""The kernel: agents, the queue, budgets, limits, projects and the journal, on one store.

The kernel decides whether an entry may run; which eligible entry runs next is the choice of a policy (rota.policy,
applied by rota.service). A claim starts in `claims.py`. Names are loaded on first use: a command that only reads
loads `EntryReads` or `AgentReads` and not the whole `Kernel`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.errors import IllegalQueueTransition, SchedIllegalTransition, SchedInvalidPayload, SchedUnknownId
from rota.lazy import exports
from rota.model.work import ReadyEntry, ScheduleSpec

if TYPE_CHECKING:
    from rota.kernel.agent_reads import AgentReads
    from rota.kernel.bulk import BulkResult
    from rota.kernel.copying import CopiedStore, copy_store
    from rota.kernel.entry_reads import EntryFilter, EntryGroup, EntryReads
    from rota.kernel.inbox_statement import EnqueueStatement, enqueue_statement
    from rota.kernel.kernel import Kernel
    from rota.kernel.replay import KernelState
    from rota.kernel.run_reports import Completion, RunReport
    from rota.kernel.runs import HeartbeatReply
    from rota.kernel.turn import TurnResult


__all__ = [
    "AgentReads",
    "BulkResult",
    "Completion",
    "CopiedStore",
    "EnqueueStatement",
    "EntryFilter",
    "EntryGroup",
    "EntryReads",
    "HeartbeatReply",
    "IllegalQueueTransition",
    "Kernel",
    "KernelState",
    "ReadyEntry",
    "RunReport",
    "SchedIllegalTransition",
    "SchedInvalidPayload",
    "SchedUnknownId",
    "ScheduleSpec",
    "TurnResult",
    "copy_store",
    "enqueue_statement",
]

__getattr__ = exports(
    __name__,
    {
        "kernel": ("Kernel",),
        "agent_reads": ("AgentReads",),
        "entry_reads": ("EntryFilter", "EntryGroup", "EntryReads"),
        "bulk": ("BulkResult",),
        "inbox_statement": ("EnqueueStatement", "enqueue_statement"),
        "copying": ("CopiedStore", "copy_store"),
        "run_reports": ("Completion", "RunReport"),
        "runs": ("HeartbeatReply",),
        "turn": ("TurnResult",),
        "replay": ("KernelState",),
    },
)
