"""The scheduler API: what producers, workers and supervisors can call.

The dispatcher (in this process) and the client of a daemon both implement it, so the same code runs on either. Each
part is a protocol, and most of its functions are declared as methods (`declaration.py`); the kernel's parts and the
client's parts implement the same protocols.
"""

from __future__ import annotations

from typing import Protocol

from rota.clock import Clock
from rota.service.api.accounts import AgentsApi, ProjectsApi
from rota.service.api.budgets import ContextsApi, LedgerApi
from rota.service.api.cores import CoresApi
from rota.service.api.entries import QueueApi
from rota.service.api.graphs import GraphsApi
from rota.service.api.logs import LogsApi
from rota.service.api.policies import PolicyApi
from rota.service.api.runs import ClaimApi, SupervisionApi
from rota.service.api.system import JournalApi, RetentionApi, SystemApi
from rota.service.api.usage import UsageApi
from rota.service.api.workers import WorkersApi

__all__ = [
    "AgentsApi",
    "ClaimApi",
    "ContextsApi",
    "CoresApi",
    "GraphsApi",
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
    "UsageApi",
    "WorkersApi",
]


class KernelApi(Protocol):
    """The kernel's parts, in this process or in another."""

    @property
    def agents(self) -> AgentsApi:
        """Agents."""
        ...

    @property
    def queue(self) -> QueueApi:
        """Entries and runs."""
        ...

    @property
    def ledger(self) -> LedgerApi:
        """Grants, charges, budgets."""
        ...

    @property
    def usage(self) -> UsageApi:
        """What was used, per day."""
        ...

    @property
    def contexts(self) -> ContextsApi:
        """Budgets per period, named limits."""
        ...

    @property
    def projects(self) -> ProjectsApi:
        """Projects, workspaces, the fleet's pause."""
        ...

    @property
    def journal(self) -> JournalApi:
        """The journal of events."""
        ...

    @property
    def retention(self) -> RetentionApi:
        """Checkpoints, and what the store keeps."""
        ...


class SchedulerApi(KernelApi, ClaimApi, Protocol):
    """The kernel's parts, and the functions that claim entries."""

    @property
    def clock(self) -> Clock:
        """The clock for waiting."""
        ...

    @property
    def policies(self) -> PolicyApi:
        """The policy in force."""
        ...

    @property
    def graphs(self) -> GraphsApi:
        """Graph runs."""
        ...

    @property
    def supervision(self) -> SupervisionApi:
        """State changes of runs together with their agents."""
        ...

    @property
    def logs(self) -> LogsApi:
        """What runs have printed."""
        ...

    @property
    def workers(self) -> WorkersApi:
        """The workers that are there."""
        ...

    @property
    def cores(self) -> CoresApi:
        """The cores of hosts."""
        ...

    def program_variables(self) -> dict[str, str]:
        """Return the environment variables by which a program reaches the store's daemon; none without a daemon."""
        ...

    def close(self) -> None:
        """Close the store or the connection."""
        ...
