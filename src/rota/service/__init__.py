"""The policy service (layer 3) joins what may run (the kernel) with which runs next (a policy). It never runs work.

`Dispatcher` claims entries by a policy and implements `SchedulerApi`; `explain` says why an entry is not running. For
CPU cores: `Admission`, `PolicyLink`, `CorePolicy` and the profiles. Names are loaded on first use: few processes need
both the queue and the cores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.service.admission import Admission, OwnerLimit
    from rota.service.api import (
        AgentsApi,
        ClaimApi,
        ContextsApi,
        JournalApi,
        KernelApi,
        LedgerApi,
        LogsApi,
        PolicyApi,
        ProjectsApi,
        QueueApi,
        RetentionApi,
        SchedulerApi,
        SupervisionApi,
        SystemApi,
    )
    from rota.service.core_admission import Asker, decide
    from rota.service.core_grants import CoreGrants, this_host
    from rota.service.core_policy import CorePolicy
    from rota.service.dispatcher import Dispatcher
    from rota.service.entry_reports import entry_report
    from rota.service.explanation import estimate, explain
    from rota.service.explanation_summary import explain_many
    from rota.service.graph_runs import GraphRunVerbs
    from rota.service.log_files import gap_line, read_log
    from rota.service.log_folder import attempts_in
    from rota.service.log_following import LogNotice, LogOutput, follow_log
    from rota.service.outages import OUTAGE_S, call_through_outage, new_charge_key
    from rota.service.policy_guard import PolicyGuard
    from rota.service.policy_in_force import find_policy
    from rota.service.policy_link import PolicyLink, answer_from_profiles
    from rota.service.policy_process import isolate, make_policy
    from rota.service.profiles import Hint, Profile, ProfileLimit, ProfileTable
    from rota.service.run_logs import RunLogs
    from rota.service.store_policies import StorePolicies

__all__ = [
    "OUTAGE_S",
    "Admission",
    "AgentsApi",
    "Asker",
    "ClaimApi",
    "ContextsApi",
    "CoreGrants",
    "CorePolicy",
    "Dispatcher",
    "GraphRunVerbs",
    "Hint",
    "JournalApi",
    "KernelApi",
    "LedgerApi",
    "LogNotice",
    "LogOutput",
    "LogsApi",
    "OwnerLimit",
    "PolicyApi",
    "PolicyGuard",
    "PolicyLink",
    "Profile",
    "ProfileLimit",
    "ProfileTable",
    "ProjectsApi",
    "QueueApi",
    "RetentionApi",
    "RunLogs",
    "SchedulerApi",
    "StorePolicies",
    "SupervisionApi",
    "SystemApi",
    "answer_from_profiles",
    "attempts_in",
    "call_through_outage",
    "decide",
    "entry_report",
    "estimate",
    "explain",
    "explain_many",
    "find_policy",
    "follow_log",
    "gap_line",
    "isolate",
    "make_policy",
    "new_charge_key",
    "read_log",
    "this_host",
]

__getattr__ = exports(
    __name__,
    {
        "admission": ("Admission", "OwnerLimit"),
        "api": (
            "AgentsApi",
            "ClaimApi",
            "ContextsApi",
            "JournalApi",
            "KernelApi",
            "LedgerApi",
            "LogsApi",
            "PolicyApi",
            "ProjectsApi",
            "QueueApi",
            "RetentionApi",
            "SchedulerApi",
            "SupervisionApi",
            "SystemApi",
        ),
        "core_admission": ("Asker", "decide"),
        "core_grants": ("CoreGrants", "this_host"),
        "core_policy": ("CorePolicy",),
        "dispatcher": ("Dispatcher",),
        "entry_reports": ("entry_report",),
        "explanation": ("estimate", "explain"),
        "explanation_summary": ("explain_many",),
        "graph_runs": ("GraphRunVerbs",),
        "log_files": ("gap_line", "read_log"),
        "log_folder": ("attempts_in",),
        "log_following": ("LogNotice", "LogOutput", "follow_log"),
        "outages": ("OUTAGE_S", "call_through_outage", "new_charge_key"),
        "policy_guard": ("PolicyGuard",),
        "policy_in_force": ("find_policy",),
        "policy_link": ("PolicyLink", "answer_from_profiles"),
        "policy_process": ("isolate", "make_policy"),
        "profiles": ("Hint", "Profile", "ProfileLimit", "ProfileTable"),
        "run_logs": ("RunLogs",),
        "store_policies": ("StorePolicies",),
    },
)
