"""The scheduler API: what producers, workers and supervisors can call.

The dispatcher (in this process) and the client of a daemon both implement it, so the same code runs on either. Its
parts have the functions of the kernel's parts; claims go through the dispatcher, which applies a policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rota.clock import Clock
from rota.kernel.agents import Agents
from rota.kernel.claims import TurnResult
from rota.kernel.completion import Completion
from rota.kernel.contexts import Contexts
from rota.kernel.journal import Journal
from rota.kernel.ledger import Ledger
from rota.kernel.projects import Projects
from rota.kernel.queue import Queue
from rota.kernel.supervision import RunReport, Supervision
from rota.model.work import ReadyEntry

__all__ = ["KernelApi", "SchedulerApi"]


class KernelApi(Protocol):
    """The kernel's parts, in this process or in another."""

    @property
    def agents(self) -> Agents:
        """Agents."""
        ...

    @property
    def queue(self) -> Queue:
        """Entries and runs."""
        ...

    @property
    def ledger(self) -> Ledger:
        """Grants, charges, budgets."""
        ...

    @property
    def contexts(self) -> Contexts:
        """Budgets per period, named limits."""
        ...

    @property
    def projects(self) -> Projects:
        """Projects, workspaces, the fleet's pause."""
        ...

    @property
    def journal(self) -> Journal:
        """The journal of events."""
        ...


class SchedulerApi(KernelApi, Protocol):
    """The kernel's parts, and the functions that claim entries."""

    @property
    def clock(self) -> Clock:
        """The clock for waiting."""
        ...

    @property
    def supervision(self) -> Supervision:
        """State changes of runs together with their agents."""
        ...

    def claim(
        self,
        worker_id: str,
        max_n: int = 1,
        *,
        wait_s: float = 0.0,
        claim_timeout_s: float = ...,
        incarnation: str = "",
        kinds: Sequence[str] = (),
    ) -> list[ReadyEntry]:
        """Claim the next entries; while there are none, wait up to `wait_s`."""
        ...

    def complete_and_claim(
        self,
        completions: Sequence[Completion],
        worker_id: str,
        max_n: int = 1,
        *,
        wait_s: float = 0.0,
        claim_timeout_s: float = ...,
        incarnation: str = "",
        kinds: Sequence[str] = (),
    ) -> TurnResult:
        """Complete runs and claim the next entries in one commit."""
        ...

    def turn(
        self,
        reports: Sequence[RunReport],
        worker_id: str,
        max_n: int = 1,
        *,
        wait_s: float = 0.0,
        claim_timeout_s: float = ...,
        incarnation: str = "",
        kinds: Sequence[str] = (),
    ) -> TurnResult:
        """For supervisors: complete runs, claim the next entries and move the agents of both, in one commit."""
        ...

    def close(self) -> None:
        """Close the store or the connection."""
        ...
