"""What a trace needs to know of entries besides their events: whose they are, and what caused them.

Readers of the journal ask for many entries at once. Payloads and results are not read: they may be large, and may be
secret.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgspec

from rota.kernel.environment import KernelEnvironment
from rota.kernel.graph_places import split_key
from rota.kernel.rows import decode_options, json_list
from rota.model.graph_places import TRIGGER
from rota.model.work import ReadyEntry
from rota.store import Row
from rota.store.statements import traces as sql

__all__ = ["READ_MAX", "TracedEntry", "TracedRun", "read_live", "read_runs", "read_traced", "traced"]

READ_MAX = 1_000  # entries read by one statement
LIVE_MAX = 10_000  # live entries read when a reader begins


class TracedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry, as a trace shows it."""

    sched_id: int
    pid: int
    agent: str
    project_id: str | None = None
    created_at: float
    priority: int = 0
    trigger: str = "manual"
    key: str | None = None
    parent_id: int | None = None
    correlation_id: str | None = None
    traceparent: str | None = None
    tracestate: str | None = None
    attempt: int = 0
    token: int | None = None  # of the live claim, or of the last one of an entry that has ended
    dispatched_at: float | None = None
    worker_id: str | None = None
    incarnation: str | None = None  # of the worker; "": no supervisor

    @property
    def graph_node(self) -> tuple[str, str, int] | None:
        """The graph run, the node and the epoch, if it is the entry of a node."""
        if self.trigger != TRIGGER or not self.correlation_id or not self.key:
            return None
        place = split_key(self.correlation_id, self.key)
        return None if place is None else (self.correlation_id, *place)


class TracedRun(msgspec.Struct, frozen=True):
    """A graph run, as a trace shows it."""

    run_id: str
    graph: str
    sched_id: int | None  # its coordinator
    started_at: float


def read_traced(env: KernelEnvironment, sched_ids: Iterable[int]) -> dict[int, TracedEntry]:
    """Return the entries with these ids that still exist."""
    left, found = iter(sorted(set(sched_ids))), {}
    while batch := list(islice(left, READ_MAX)):
        text = json_list(batch)
        for row in env.read(lambda tx: tx.run(sql.TRACED, (text,))):  # noqa: B023  # runs before the loop continues
            found[int(row[0])] = _entry(row)
    return found


def read_live(env: KernelEnvironment) -> list[TracedEntry]:
    """Return the entries that run now, at most `LIVE_MAX`."""
    return [_entry(row) for row in env.read(lambda tx: tx.run(sql.TRACED_LIVE, (LIVE_MAX,)))]


def read_runs(env: KernelEnvironment, run_ids: Iterable[str]) -> dict[str, TracedRun]:
    """Return the graph runs with these names that still exist."""
    text = json_list(sorted(set(run_ids)))
    return {str(row[0]): TracedRun(*row) for row in env.read(lambda tx: tx.run(sql.TRACED_RUNS, (text,)))}


def traced(entry: ReadyEntry, agent: str) -> TracedEntry:
    """Return an entry that was read in another way."""
    fields: dict[str, Any] = {name: getattr(entry, name, None) for name in TracedEntry.__struct_fields__}
    return TracedEntry(**(fields | {"agent": agent}))


def _entry(row: Row) -> TracedEntry:
    sched_id, pid, agent, project_id, created_at, priority, trigger, key, text, attempt, *claim = row
    token, dispatched_at, worker_id, incarnation = claim
    options = decode_options(text)
    return TracedEntry(
        sched_id=sched_id,
        pid=pid,
        agent=agent or f"agent {pid}",
        project_id=project_id,
        created_at=created_at,
        priority=priority,
        trigger=trigger,
        key=key,
        parent_id=options.parent_id,
        correlation_id=options.correlation_id,
        traceparent=options.traceparent,
        tracestate=options.tracestate,
        attempt=attempt,
        token=token,
        dispatched_at=dispatched_at,
        worker_id=worker_id,
        incarnation=incarnation,
    )
