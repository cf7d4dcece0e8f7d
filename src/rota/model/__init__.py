"""The data model: frozen structures that check their fields once, when they are created.

- `work`: entries, claims, agents, projects, workspaces, triggers
- `budgets`: ledgers, budgets, contexts, leases, islands
- `lifecycle`: every state machine, as a table
- `events`, `event_codec`: the journal's events and how they are stored
- `reasons`, `explanation`: why an entry waits or was picked
- `snapshot`: what a policy sees and what it returns

Names are loaded on first use: the command line and worker processes need only a few of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.model.agent_settings import hide_env
    from rota.model.budgets import (
        BudgetLine,
        CpuIsolationLease,
        Flow,
        LedgerLine,
        RealtimeIsland,
        SchedulingContext,
    )
    from rota.model.events import Event
    from rota.model.explanation import Explanation, HistoryStep, StartEstimate, Suggestion
    from rota.model.lifecycle import AgentState, EntryState, ProjectStatus
    from rota.model.policy_setting import PolicyInForce
    from rota.model.reasons import BlockingReason, OrderingReason, PickReason
    from rota.model.snapshot import Account, Candidate, Decision, Decisions, Slot, Snapshot
    from rota.model.work import (
        WEIGHT_UNIT,
        Agent,
        Backoff,
        Claim,
        Intent,
        Limits,
        Project,
        ProjectConstraint,
        ReadyEntry,
        RestartPolicy,
        ScheduleSpec,
        Trigger,
        Worker,
        Workspace,
    )

__all__ = [
    "WEIGHT_UNIT",
    "Account",
    "Agent",
    "AgentState",
    "Backoff",
    "BlockingReason",
    "BudgetLine",
    "Candidate",
    "Claim",
    "CpuIsolationLease",
    "Decision",
    "Decisions",
    "EntryState",
    "Event",
    "Explanation",
    "Flow",
    "HistoryStep",
    "Intent",
    "LedgerLine",
    "Limits",
    "OrderingReason",
    "PickReason",
    "PolicyInForce",
    "Project",
    "ProjectConstraint",
    "ProjectStatus",
    "ReadyEntry",
    "RealtimeIsland",
    "RestartPolicy",
    "ScheduleSpec",
    "SchedulingContext",
    "Slot",
    "Snapshot",
    "StartEstimate",
    "Suggestion",
    "Trigger",
    "Worker",
    "Workspace",
    "hide_env",
]

__getattr__ = exports(
    __name__,
    {
        "agent_settings": ("hide_env",),
        "budgets": (
            "BudgetLine",
            "CpuIsolationLease",
            "Flow",
            "LedgerLine",
            "RealtimeIsland",
            "SchedulingContext",
        ),
        "events": ("Event",),
        "explanation": (
            "Explanation",
            "HistoryStep",
            "StartEstimate",
            "Suggestion",
        ),
        "lifecycle": (
            "AgentState",
            "EntryState",
            "ProjectStatus",
        ),
        "policy_setting": ("PolicyInForce",),
        "reasons": (
            "BlockingReason",
            "OrderingReason",
            "PickReason",
        ),
        "snapshot": (
            "Account",
            "Candidate",
            "Decision",
            "Decisions",
            "Slot",
            "Snapshot",
        ),
        "work": (
            "WEIGHT_UNIT",
            "Agent",
            "Backoff",
            "Claim",
            "Intent",
            "Limits",
            "Project",
            "ProjectConstraint",
            "ReadyEntry",
            "RestartPolicy",
            "ScheduleSpec",
            "Trigger",
            "Worker",
            "Workspace",
        ),
    },
)
