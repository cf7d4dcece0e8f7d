"""Runners: how an entry is run. One protocol; here, a Python function on the caller's own thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from rota.model.work import ReadyEntry

__all__ = ["CallableRunner", "Outcome", "Run", "Runner"]


class Run(msgspec.Struct, frozen=True):
    """What an agent is told about its run. (sched_id, attempt, token) is its idempotency key."""

    sched_id: int
    attempt: int
    token: int | None
    deadline: float | None


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended."""

    exit_kind: str
    result: Any = None


class Runner(Protocol):
    """Runs one entry to its end. It never raises: what went wrong is in the outcome."""

    def run(self, entry: ReadyEntry) -> Outcome:
        """Run it."""
        ...


class CallableRunner:
    """Runs Python functions by the pid of their agent."""

    def __init__(self, functions: Mapping[int, Callable[..., Any]]) -> None:
        self._functions = functions

    def run(self, entry: ReadyEntry) -> Outcome:
        """Call the agent's function with the payload as keyword arguments."""
        function = self._functions.get(entry.pid)
        if function is None:
            return Outcome("failed", {"error": f"no function is registered for agent {entry.pid}"})
        run = Run(entry.sched_id, entry.attempt, entry.token, entry.deadline)
        try:
            result = function(run, **entry.payload)
            msgspec.json.encode(result)
        except Exception as problem:  # an agent's fault is an outcome, not ours
            return Outcome("failed", {"error": f"{type(problem).__name__}: {problem}"})
        return Outcome("completed", result)
