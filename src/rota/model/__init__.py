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
    from rota.model.agent_metadata import hide_env
    from rota.model.budgets import (
        ALERTS,
        BudgetLine,
        CpuIsolationLease,
        Flow,
        LedgerLine,
        RealtimeIsland,
        SchedulingContext,
    )
    from rota.model.caller_context import caller_trace
    from rota.model.core_grants import CoreAsk, CoreGrant, CoreHost, CoreRefusal, CoreStatus
    from rota.model.cpu import CpuSettings, core_list, parse_cores, read_cpu
    from rota.model.entry_report import AttemptReport, EntryReport, RelatedEntry, RunningEntry
    from rota.model.entry_status import STATUSES, EntryStatus
    from rota.model.events import Event
    from rota.model.explanation import Explanation, ExplanationSummary, HistoryStep, StartEstimate, Suggestion
    from rota.model.graph_budgets import GraphAccount, GraphBudgetLine, GraphPlace
    from rota.model.graph_runs import GraphCancellation, GraphNodeReport, GraphRun, GraphRunInfo, GraphRunReport
    from rota.model.lifecycle import AgentState, EntryState, ProjectStatus
    from rota.model.money import COST_DIM, USD, amount_text, amounts_text, dim_text, dollars, micro_of
    from rota.model.policy_setting import PolicyInForce
    from rota.model.prices import ModelPrice, priced
    from rota.model.reasons import BlockingReason, OrderingReason, PickReason
    from rota.model.report_text import (
        attempt_heading,
        attempt_lines,
        name_agent,
        related_text,
        report_fields,
        shown_result,
    )
    from rota.model.retention import RetentionSetting, RetentionStatus
    from rota.model.run_logs import LogPart, LogPlace
    from rota.model.snapshot import Account, Candidate, Decision, Decisions, Slot, Snapshot
    from rota.model.usage import UsageLine, UsageReport, main_measure
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
    from rota.model.workers import SlotPool, WorkerInfo, lost_worker_text
    from rota.model.worktrees import WorktreeSettings

__all__ = [
    "ALERTS",
    "COST_DIM",
    "STATUSES",
    "USD",
    "WEIGHT_UNIT",
    "Account",
    "Agent",
    "AgentState",
    "AttemptReport",
    "Backoff",
    "BlockingReason",
    "BudgetLine",
    "Candidate",
    "Claim",
    "CoreAsk",
    "CoreGrant",
    "CoreHost",
    "CoreRefusal",
    "CoreStatus",
    "CpuIsolationLease",
    "CpuSettings",
    "Decision",
    "Decisions",
    "EntryReport",
    "EntryState",
    "EntryStatus",
    "Event",
    "Explanation",
    "ExplanationSummary",
    "Flow",
    "GraphAccount",
    "GraphBudgetLine",
    "GraphCancellation",
    "GraphNodeReport",
    "GraphPlace",
    "GraphRun",
    "GraphRunInfo",
    "GraphRunReport",
    "HistoryStep",
    "Intent",
    "LedgerLine",
    "Limits",
    "LogPart",
    "LogPlace",
    "ModelPrice",
    "OrderingReason",
    "PickReason",
    "PolicyInForce",
    "Project",
    "ProjectConstraint",
    "ProjectStatus",
    "ReadyEntry",
    "RealtimeIsland",
    "RelatedEntry",
    "RestartPolicy",
    "RetentionSetting",
    "RetentionStatus",
    "RunningEntry",
    "ScheduleSpec",
    "SchedulingContext",
    "Slot",
    "SlotPool",
    "Snapshot",
    "StartEstimate",
    "Suggestion",
    "Trigger",
    "UsageLine",
    "UsageReport",
    "Worker",
    "WorkerInfo",
    "Workspace",
    "WorktreeSettings",
    "amount_text",
    "amounts_text",
    "attempt_heading",
    "attempt_lines",
    "caller_trace",
    "core_list",
    "dim_text",
    "dollars",
    "hide_env",
    "lost_worker_text",
    "main_measure",
    "micro_of",
    "name_agent",
    "parse_cores",
    "priced",
    "read_cpu",
    "related_text",
    "report_fields",
    "shown_result",
]

__getattr__ = exports(
    __name__,
    {
        "agent_metadata": ("hide_env",),
        "budgets": (
            "ALERTS",
            "BudgetLine",
            "CpuIsolationLease",
            "Flow",
            "LedgerLine",
            "RealtimeIsland",
            "SchedulingContext",
        ),
        "caller_context": ("caller_trace",),
        "core_grants": ("CoreAsk", "CoreGrant", "CoreHost", "CoreRefusal", "CoreStatus"),
        "cpu": ("CpuSettings", "core_list", "parse_cores", "read_cpu"),
        "entry_report": ("AttemptReport", "EntryReport", "RelatedEntry", "RunningEntry"),
        "entry_status": ("STATUSES", "EntryStatus"),
        "events": ("Event",),
        "explanation": (
            "Explanation",
            "ExplanationSummary",
            "HistoryStep",
            "StartEstimate",
            "Suggestion",
        ),
        "graph_budgets": ("GraphAccount", "GraphBudgetLine", "GraphPlace"),
        "graph_runs": ("GraphCancellation", "GraphNodeReport", "GraphRun", "GraphRunInfo", "GraphRunReport"),
        "lifecycle": (
            "AgentState",
            "EntryState",
            "ProjectStatus",
        ),
        "money": ("COST_DIM", "USD", "amount_text", "amounts_text", "dim_text", "dollars", "micro_of"),
        "policy_setting": ("PolicyInForce",),
        "prices": ("ModelPrice", "priced"),
        "report_text": (
            "attempt_heading",
            "attempt_lines",
            "name_agent",
            "related_text",
            "report_fields",
            "shown_result",
        ),
        "retention": ("RetentionSetting", "RetentionStatus"),
        "reasons": (
            "BlockingReason",
            "OrderingReason",
            "PickReason",
        ),
        "run_logs": ("LogPart", "LogPlace"),
        "snapshot": (
            "Account",
            "Candidate",
            "Decision",
            "Decisions",
            "Slot",
            "Snapshot",
        ),
        "usage": ("UsageLine", "UsageReport", "main_measure"),
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
        "workers": ("SlotPool", "WorkerInfo", "lost_worker_text"),
        "worktrees": ("WorktreeSettings",),
    },
)
