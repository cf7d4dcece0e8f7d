"""Who calls a tool: the scheduler API with the caller's rights, what these rights are, and its own run if it is one.

A caller has the rights of the connection that its API uses: those of the local user, of an access token, or of a run.
They are enforced where every call arrives, in the kernel's process. Here they only decide which tools are offered.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from rota.kernel.run_tokens import run_of_token
from rota.model.entry_report import EntryReport
from rota.model.explanation import Explanation, ExplanationSummary
from rota.model.work import ScheduleSpec
from rota.rpc.client.rights import CallerRights, rights_of
from rota.service.api import SchedulerApi
from rota.service.outages import call_through_outage

__all__ = ["AgentApi", "Caller", "RunClaim", "caller_of"]

SLICE_S = 1.0  # of a wait: how long a client that has gone is waited for


class AgentApi(SchedulerApi, Protocol):
    """What the tools call: the parts of the scheduler API, and the functions that look at several of them."""

    def show(self, sched_id: int) -> EntryReport:
        """Return everything about one entry."""
        ...

    def explain(self, sched_id: int, *, kinds: tuple[str, ...] = ()) -> Explanation:
        """Explain why an entry is not running."""
        ...

    def explain_many(self, *, pid: int | None = None, project_id: str | None = None) -> ExplanationSummary:
        """Count why queued entries wait."""
        ...

    def estimate(self, spec: ScheduleSpec) -> Explanation:
        """Explain what would happen to an entry if it were enqueued now."""
        ...


class RunClaim(NamedTuple):
    """The run that the caller is."""

    sched_id: int
    token: int  # of its claim


def _is_wanted() -> None:
    """Raise nothing: a caller without a connection waits for every call."""


@dataclass(frozen=True)
class Caller:
    """An API with the rights of the caller, and its own run."""

    api: AgentApi
    rights: CallerRights
    run: RunClaim | None = None
    may_write: bool = True  # False: the server was started to read only
    check_wanted: Callable[[], None] = _is_wanted  # raises if the client no longer waits for the call

    def wait(self, wait_s: float, attempt: Callable[[float], bool]) -> bool:
        """Call a function that waits, in slices, until it succeeds; return whether it did within `wait_s`.

        Between the slices the call ends if its client has gone. A function that waits may be called again, so the call
        also goes on through an outage of the store.
        """
        clock = self.api.clock
        give_up_at = clock.monotonic() + wait_s
        while True:
            left_s = max(0.0, give_up_at - clock.monotonic())
            wait = partial(attempt, min(left_s, SLICE_S))
            if call_through_outage(clock, wait, self._is_unwanted, limit_s=left_s, repeats=True):
                return True
            if left_s <= SLICE_S:
                return False
            self.check_wanted()

    def _is_unwanted(self) -> bool:
        self.check_wanted()
        return False

    @property
    def only_project(self) -> str | None:
        """The project of a caller that is bound to one."""
        projects = self.rights.projects or ()
        return projects[0] if len(projects) == 1 else None


def caller_of(api: AgentApi, token: str | None = None, *, allow_write: bool | None = None) -> Caller:
    """Return the caller behind an API, which may show an access token; a program that opened the file may do all.

    Only runs write by default: their own token says what.
    """
    run = None if token is None else run_of_token(token)
    may_write = run is not None if allow_write is None else allow_write
    rights = rights_of(api, "rota mcp", is_run=run is not None)
    return Caller(api, rights, None if run is None else RunClaim(*run), may_write)
