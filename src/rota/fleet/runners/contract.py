"""The runner contract: how an entry is executed, and what a run may do while it executes.

A slot is a thread of the supervisor. It passes an `Assignment` to `Runner.run`, which returns when the run has ended,
and reports the `RunOutcome`. During the run the runner talks to the supervisor through the `RunChannel`: it reports the
start, charges usage, saves checkpoints, passes on a provider's throttling. What a call records is committed when the
call returns.

A run is stopped in three steps; each follows when the grace period of the one before has passed:

    request     a message that a cooperative agent obeys (it may save a checkpoint first)
    terminate   SIGTERM
    kill        SIGKILL

A runner offers the steps it supports as a `StopHandle`; the record says which one stopped the run. No step blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from rota.fleet.agent_settings import AgentSettings
from rota.fleet.run_cpu import RunCpu
from rota.model.work import Agent, ReadyEntry
from rota.service.api import SchedulerApi

__all__ = [
    "NOT_FOUND",
    "AgentChannel",
    "Assignment",
    "RegisteredFunctions",
    "RunAccess",
    "RunChannel",
    "RunOutcome",
    "Runner",
    "StopHandle",
    "StopStep",
    "another_may_run",
    "registered_function",
]

StopStep = Literal["request", "terminate", "kill"]
# the functions of a program, by the project and the name of their agent, or by a name that stands for any project
RegisteredFunctions: TypeAlias = Mapping[Any, Callable[..., Any]]


# The outcome of a run that could not import what it calls, so that nothing of it has begun. It is left to another
# worker if its runner says when it may be claimed again, or if one runs that may have it.
NOT_FOUND = "not_found"


def another_may_run(api: SchedulerApi, entry: ReadyEntry) -> bool:
    """Whether another live supervisor, than the one that has claimed it, may have what an entry needs."""
    others = [
        worker
        for worker in api.workers.list()
        if worker.kind == "supervisor" and worker.alive and not worker.draining
        if all(pool.worker_id != entry.worker_id for pool in worker.pools)
    ]
    return any(
        pool.slots and pool.takes(entry.kind) and entry.pid not in pool.except_agents
        for worker in others
        for pool in worker.pools
    )


def registered_function(functions: RegisteredFunctions, agent: Agent) -> Callable[..., Any] | None:
    """Return the function of an agent, if this program has registered it.

    An agent of the same name in another project is another one: its function may belong to another tenant.
    """
    return functions.get((agent.project_id, agent.name)) or functions.get(agent.name)


class RunAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How the program of a run reaches the daemon, and the access token that lets it act for its run."""

    variables: dict[str, str]  # ROTA_STORE, …
    access_token: str

    def __repr__(self) -> str:  # without the token, wherever an assignment is printed
        return f"RunAccess(variables={self.variables!r})"


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What to run. (sched_id, attempt, token) of the entry is the idempotency key of the run."""

    entry: ReadyEntry
    agent: Agent
    settings: AgentSettings
    slot: str
    workspace: str | None = None  # path of the workspace that the run holds
    remaining: dict[str, int] = {}  # what is left of its budgets at the start, per dimension
    checkpoint: dict[str, Any] | None = None  # saved by the last attempt
    access: RunAccess | None = None  # of a program; None: no daemon serves the store
    cpu: RunCpu | None = None  # CPU time and cores; None: nothing is said about them
    trace: dict[str, str] = {}  # TRACEPARENT and TRACESTATE; empty: it belongs to no trace


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    exit_kind: Literal["completed", "failed", "crashed", "cancelled"] = "completed"
    outcome: str | None = None  # more specific: timed_out, over_budget, spawn_failed, …
    result: Any = None  # JSON; whatever there is of it if the run did not complete
    usage: dict[str, int] = {}  # measured at the end, in addition to what was charged during the run
    model: str | None = None  # that this usage is of
    cpu_ms: int = 0
    node: str | None = None  # of a cluster, on which it ran
    yield_after_s: float | None = None  # not an end: the agent gives up its slot and runs again after this delay
    awaits: tuple[int, ...] = ()  # not an end: it runs again when the first of these entries has ended, or before that


class StopHandle(Protocol):
    """Stops a run. Each method returns whether the runner supports that step; none of them waits."""

    def request_stop(self, reason: str) -> bool:
        """Tell the agent to stop."""
        ...

    def terminate(self) -> bool:
        """Send SIGTERM to all its processes."""
        ...

    def kill(self) -> bool:
        """Kill all its processes."""
        ...


class AgentChannel(Protocol):
    """What an agent may tell its supervisor and ask of it. Any thread of the run may use it."""

    @property
    def stop_reason(self) -> str | None:
        """Why the run was asked to stop; None if it was not."""
        ...

    def log(self, data: bytes) -> None:
        """Append output to the log, which keeps its beginning and its end within `limits.log_bytes`."""
        ...

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the work is, from 0 to 1. At most about one report a second is recorded."""
        ...

    def wait_for_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is asked to stop or the timeout has passed; return whether it should stop."""
        ...

    def charge(
        self, amounts: Mapping[str, int], model: str | None = None, *, node: str | None = None
    ) -> dict[str, int]:
        """Record usage, of a model if it is named, and return what is left, per dimension.

        A run over its ceiling is stopped: over_budget. The coordinator of a graph names the node that has used it.
        """
        ...

    def remaining(self, node: str | None = None) -> dict[str, int]:
        """Return what is left of the run's ceiling and its agent's grants, per dimension."""
        ...

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save the state of the work for the next attempt."""
        ...

    def emit(self, kind: str, payload: Mapping[str, Any]) -> int:
        """Append an event of the agent's own to the journal; return its id. Kinds `kernel.*` are reserved."""
        ...

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """Pause a named limit for all agents that draw on it. None: every limit that this run draws on."""
        ...

    def acquire(self, name: str, amounts: Mapping[str, int], wait_s: float | None = None) -> str:
        """Wait until a limit has these amounts; return the key to settle them with. A stop request ends the wait."""
        ...

    def settle(self, key: str, used: Mapping[str, int] | None = None, *, node: str | None = None) -> dict[str, int]:
        """Say what was used of what was acquired; return what is left of the budgets, per dimension."""
        ...

    def spawn(self, agent: str, payload: Mapping[str, Any], lent: Mapping[str, int], **options: Any) -> int:
        """Enqueue a child for an agent by name, with a part of this run's budget; return its sched_id."""
        ...

    def wait_for(self, sched_ids: Sequence[int], wait_s: float | None = None) -> list[ReadyEntry]:
        """Wait until children have ended. The slot is released during the wait."""
        ...


class RunChannel(AgentChannel, Protocol):
    """What a runner may tell its supervisor and ask of it, for one run."""

    def started(
        self,
        stop_handle: StopHandle,
        *,
        os_pid: int | None = None,
        advisories: Sequence[str] = (),
        enforced: Sequence[str] = (),
    ) -> None:
        """The work has started and `stop_handle` can stop it. If a stop was already requested, it happens now."""
        ...

    def settings_changed(self, *, advisories: Sequence[str], enforced: Sequence[str]) -> None:
        """The `cpu` settings of the run, or what is enforced of them, have changed since it started."""
        ...

    def coordinates(self, run_id: str) -> None:
        """The run coordinates this graph run: what it charges counts there from now on."""
        ...

    def log_tail(self) -> str:
        """Return the end of the log, for a result."""
        ...


class Runner(Protocol):
    """Executes an entry on the calling thread. It never raises: an error is part of the outcome."""

    def run(self, assignment: Assignment, channel: RunChannel) -> RunOutcome:
        """Execute the entry and return how it ended."""
        ...

    def close(self) -> None:
        """Release what runs share. No run is in progress."""
        ...
