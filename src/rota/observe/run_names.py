"""The names of agents and runs, as the sentences about events need them: what is known from the events so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

from rota.model.work import ReadyEntry
from rota.observe.event_names import FailedRun
from rota.observe.recent_usage import AgentName
from rota.observe.run_chart import RunSpan

__all__ = ["NO_PROJECT", "Lookup", "RunNames", "ShownRun", "error_of"]

NO_PROJECT = ""  # for runs of agents without a project; it has no share

Lookup: TypeAlias = Callable[[int], ReadyEntry | None]  # reads an entry, to say whose it is and why its run failed


class ShownRun(msgspec.Struct):
    """A run in progress."""

    pid: int
    project_id: str
    start_at: float
    span: RunSpan | None
    attempt: int = 1
    exit_kind: str | None = None  # as reported by its runner, just before the entry changes
    outcome: str | None = None
    stopped_by: str | None = None


class RunNames:
    """The agents by pid, and the runs in progress."""

    def __init__(self, agents: Mapping[int, AgentName], lookup: Lookup | None) -> None:
        self._agents = dict(agents)
        self._runs: dict[int, ShownRun] = {}
        self._lookup = lookup

    def look_up_with(self, lookup: Lookup | None) -> None:
        """From now on, read entries with this function; None: do not read any."""
        self._lookup = lookup

    def agent(self, pid: int | None) -> str:
        """The name of an agent; its pid if the name is unknown."""
        tag = self._agents.get(pid) if pid is not None else None
        return tag.name if tag is not None else f"agent {pid}"

    def run(self, sched_id: int) -> str:
        """A run: the name of its agent and the id of the entry."""
        pid = self.agent_of(sched_id)
        if pid is None and self._lookup is not None:
            entry = self._lookup(sched_id)
            pid = None if entry is None else entry.pid
        return f"{self.agent(pid)} #{sched_id}" if pid is not None else f"entry {sched_id}"

    def agent_of(self, sched_id: int) -> int | None:
        """The pid of the agent of a run, if its start was folded."""
        run = self._runs.get(sched_id)
        return None if run is None else run.pid

    def project_of(self, pid: int | None) -> str | None:
        """The project of an agent, if it is known and has one."""
        return self._project_of(pid) or None

    def why(self, sched_id: int, reason: str | None) -> str:
        """The outcome of a run that did not succeed, as precise as known."""
        run = self._runs.get(sched_id)
        reported = None if run is None else run.outcome or run.exit_kind
        return reported or reason or "failed"

    def failed_run(self, sched_id: int) -> FailedRun:
        """The attempt that failed, and its error if the entry can be read."""
        run = self._runs.get(sched_id)
        attempt = 0 if run is None else run.attempt
        entry = None if self._lookup is None else self._lookup(sched_id)
        if entry is None:
            return FailedRun(attempt)
        attempt = attempt or entry.attempt
        return FailedRun(attempt, entry.max_attempts, error_of(entry, attempt))

    def run_details(self, sched_id: int, at: float) -> str:
        """How long it ran, and which stop step ended it, if any."""
        run = self._runs.get(sched_id)
        if run is None:
            return ""
        stopped = f", stopped by {run.stopped_by}" if run.stopped_by is not None else ""
        return f" after {max(0.0, at - run.start_at):.1f} s{stopped}"

    def _project_of(self, pid: int | None) -> str:
        tag = self._agents.get(pid) if pid is not None else None
        return tag.project_id or NO_PROJECT if tag is not None else NO_PROJECT


def error_of(entry: ReadyEntry, attempt: int) -> str | None:
    """Return the error of an attempt of an entry."""
    error = next((each.error for each in entry.errors if each.attempt == attempt), None)
    if error is None and attempt == entry.attempt and isinstance(entry.result, dict):
        error = entry.result.get("error")
    return error if isinstance(error, str) else None
