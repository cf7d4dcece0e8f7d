"""What a runner is: how an entry is run, and what is said while it runs.

A slot is a thread of the supervisor. It takes an `Assignment`, calls its runner's `run`, which returns when the run has
ended, and hands the `Outcome` on. While it runs, the runner speaks with the supervisor through its `Line`: it says that
the work began, what was charged, where a restart could go on, that a provider wants a pause. What the line records is
durable when the call returns.

A run is stopped by a ladder of three rungs, each tried when the grace of the one before has passed:

    ask         a message that a cooperative agent acts on (it may save a checkpoint first)
    terminate   SIGTERM
    kill        SIGKILL

A runner offers the rungs it has (`Stops`); the record says which one worked. Asking for a stop never blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from rota.fleet.agent_settings import RunPlan
from rota.model.work import Agent, ReadyEntry

__all__ = ["Assignment", "Line", "Outcome", "Rung", "Runner", "Stops"]

Rung = Literal["ask", "terminate", "kill"]


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what is to be run, and with what. (sched_id, attempt, token) of the entry is its idempotency key."""

    entry: ReadyEntry
    agent: Agent
    plan: RunPlan
    slot: str
    workspace: str | None = None  # the folder it was given
    remaining: dict[str, int] = {}  # of its budgets, per dimension, when it began
    checkpoint: dict[str, Any] | None = None  # what its last attempt saved


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended."""

    exit_kind: Literal["completed", "failed", "crashed", "cancelled"] = "completed"
    outcome: str | None = None  # finer: timed_out, over_budget, spawn_failed, …
    result: Any = None  # JSON; what there is of it, if the run did not end well
    usage: dict[str, int] = {}  # measured at the end, on top of what was charged on the way
    back_in_s: float | None = None  # not an end: the agent gives its slot back and wants to run again this much later


class Stops(Protocol):
    """How a run can be ended from outside. Each answers whether it has that rung; none of them waits."""

    def ask(self, reason: str) -> bool:
        """Tell the agent to stop."""
        ...

    def terminate(self) -> bool:
        """Send SIGTERM to all of it."""
        ...

    def kill(self) -> bool:
        """Kill all of it."""
        ...


class Line(Protocol):
    """What a run may say to its supervisor, and ask of it. Any thread of the run may use it."""

    @property
    def stop_reason(self) -> str | None:
        """Why the run was asked to stop; None as long as it was not."""
        ...

    def began(self, stops: Stops, *, os_pid: int | None = None, advisories: Sequence[str] = ()) -> None:
        """The work is under way, and can be stopped like this. If a stop was asked for already, it happens now."""
        ...

    def log(self, data: bytes) -> None:
        """Keep output, within `limits.log_bytes`: the beginning and the end of it."""
        ...

    def log_tail(self) -> str:
        """The end of what was logged, for a result."""
        ...

    def charge(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """Record usage; the answer is what is left, per dimension. A run past its ceiling is stopped: over_budget."""
        ...

    def remaining(self) -> dict[str, int]:
        """What is left of its ceiling and its agent's grants, per dimension."""
        ...

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Save where the work stands: the next attempt is given it."""
        ...

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """A provider wants a pause: everybody who draws on that limit waits. None: every limit this run draws on."""
        ...

    def spawn(self, agent: str, payload: Mapping[str, Any], lent: Mapping[str, int], **said: Any) -> int:
        """Enqueue child work for an agent by name, with a part of this run's budget; the child's sched_id."""
        ...

    def wait_for(self, sched_ids: Sequence[int], wait_s: float | None = None) -> list[ReadyEntry]:
        """Wait until children have ended. The slot is given up meanwhile, and taken again before this returns."""
        ...


class Runner(Protocol):
    """Runs one entry to its end, on the calling thread. It never raises: what went wrong is in the outcome."""

    def run(self, work: Assignment, line: Line) -> Outcome:
        """Run it."""
        ...

    def close(self) -> None:
        """Let go of what runs share. No run is under way."""
        ...
