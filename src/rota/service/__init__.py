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
        PolicyApi,
        ProjectsApi,
        QueueApi,
        RetentionApi,
        SchedulerApi,
        SupervisionApi,
        SystemApi,
    )
    from rota.service.core_policy import CorePolicy
    from rota.service.dispatcher import Dispatcher
    from rota.service.explanation import explain
    from rota.service.outages import OUTAGE_S, call_through_outage
    from rota.service.policy_guard import PolicyGuard
    from rota.service.policy_in_force import find_policy
    from rota.service.policy_link import PolicyLink, answer_from_profiles
    from rota.service.policy_process import isolate, make_policy
    from rota.service.profiles import Hint, Profile, ProfileTable
    from rota.service.store_policies import StorePolicies

__all__ = [
    "OUTAGE_S",
    "Admission",
    "AgentsApi",
    "ClaimApi",
    "ContextsApi",
    "CorePolicy",
    "Dispatcher",
    "Hint",
    "JournalApi",
    "KernelApi",
    "LedgerApi",
    "OwnerLimit",
    "PolicyApi",
    "PolicyGuard",
    "PolicyLink",
    "Profile",
    "ProfileTable",
    "ProjectsApi",
    "QueueApi",
    "RetentionApi",
    "SchedulerApi",
    "StorePolicies",
    "SupervisionApi",
    "SystemApi",
    "answer_from_profiles",
    "call_through_outage",
    "explain",
    "find_policy",
    "isolate",
    "make_policy",
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
            "PolicyApi",
            "ProjectsApi",
            "QueueApi",
            "RetentionApi",
            "SchedulerApi",
            "SupervisionApi",
            "SystemApi",
        ),
        "core_policy": ("CorePolicy",),
        "dispatcher": ("Dispatcher",),
        "explanation": ("explain",),
        "outages": ("OUTAGE_S", "call_through_outage"),
        "policy_guard": ("PolicyGuard",),
        "policy_in_force": ("find_policy",),
        "policy_link": ("PolicyLink", "answer_from_profiles"),
        "policy_process": ("isolate", "make_policy"),
        "profiles": ("Hint", "Profile", "ProfileTable"),
        "store_policies": ("StorePolicies",),
    },
)
