"""Where a reader of the journal looks up entries and graph runs: in a store of this process, or through the API."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Protocol

from rota.errors import RotaError
from rota.kernel import Kernel
from rota.kernel.traced_entries import TracedEntry, TracedRun, read_live, read_runs, read_traced, traced

__all__ = ["ApiSource", "StoreSource", "TraceSource"]

NAMES_MAX = 20_000  # agents whose names are kept


class TraceSource(Protocol):
    """Reads what events do not say."""

    def entries(self, sched_ids: Iterable[int]) -> dict[int, TracedEntry]:
        """Return the entries that still exist."""
        ...

    def runs(self, run_ids: Iterable[str]) -> dict[str, TracedRun]:
        """Return the graph runs that still exist."""
        ...

    def live(self) -> list[TracedEntry]:
        """Return the entries that run now."""
        ...


class StoreSource:
    """Reads a store that this process has opened, many entries with one statement."""

    def __init__(self, kernel: Kernel) -> None:
        self._env = kernel.env

    def entries(self, sched_ids: Iterable[int]) -> dict[int, TracedEntry]:
        """Return the entries that still exist."""
        return read_traced(self._env, sched_ids)

    def runs(self, run_ids: Iterable[str]) -> dict[str, TracedRun]:
        """Return the graph runs that still exist."""
        return read_runs(self._env, run_ids)

    def live(self) -> list[TracedEntry]:
        """Return the entries that run now."""
        return read_live(self._env)


class ApiSource:
    """Reads through the scheduler API of a daemon, one entry at a time; what is refused to the caller is left out."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._names: dict[int, str] = {}

    def entries(self, sched_ids: Iterable[int]) -> dict[int, TracedEntry]:
        """Return the entries that still exist."""
        found: dict[int, TracedEntry] = {}
        for sched_id in sorted(set(sched_ids)):
            with suppress(RotaError):
                entry = self._api.queue.get(sched_id)
                found[sched_id] = traced(entry, self._name(entry.pid))
        return found

    def runs(self, run_ids: Iterable[str]) -> dict[str, TracedRun]:
        """Return the graph runs that still exist."""
        found: dict[str, TracedRun] = {}
        for run_id in sorted(set(run_ids)):
            with suppress(RotaError):
                run = self._api.graphs.get(run_id)
                found[run_id] = TracedRun(run_id, run.graph, run.sched_id, run.started_at)
        return found

    def live(self) -> list[TracedEntry]:
        """Return the entries that run now."""
        page = self._api.queue.running(limit=1_000)
        return [traced(entry, self._name(entry.pid)) for entry in (each.entry for each in page.running)]

    def _name(self, pid: int) -> str:
        if pid not in self._names:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            self._names[pid] = f"agent {pid}"
            with suppress(RotaError):
                self._names[pid] = self._api.agents.get(pid).name
        return self._names[pid]
