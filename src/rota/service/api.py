"""The desk: all that producers, workers and supervisors ask of rota, whoever answers.

An embedded service and a client of a daemon are both a desk, so nobody who works at one can tell them apart. Its parts
have the verbs of the kernel's parts; taking entries goes through the service, which joins a policy to the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rota.clock import Clock
from rota.kernel.agents import Agents
from rota.kernel.claim_request import Completion, Turnover
from rota.kernel.contexts import Contexts
from rota.kernel.journal import Journal
from rota.kernel.ledger import Ledger
from rota.kernel.projects import Projects
from rota.kernel.queue import Queue
from rota.kernel.supervision import RunReport, Supervision
from rota.model.work import ReadyEntry

__all__ = ["Desk", "Registers"]


class Registers(Protocol):
    """The kernel's parts, whoever answers for them: what is kept, and how it is changed."""

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
        """What happened."""
        ...


class Desk(Registers, Protocol):
    """What may be asked of rota."""

    @property
    def clock(self) -> Clock:
        """The clock that waiting goes by."""
        ...

    @property
    def supervision(self) -> Supervision:
        """Runs and agents, moved together."""
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
        """Take the next entries; while there are none, wait up to `wait_s`."""
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
    ) -> Turnover:
        """End runs and take the next entries in one commit."""
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
    ) -> Turnover:
        """A supervisor's turn: end runs, take the next entries and move the agents of both, in one commit."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...
