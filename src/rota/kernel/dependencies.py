"""Dependencies: entries that wait for other entries (`after`).

An entry enqueued `after` others is held until each of them has completed successfully. Edges never change and name
only existing entries, so there is no cycle. When a predecessor ends otherwise, the entry's `on_failed` decides:
"cancel" cancels it (and so the entries that wait for it), "run" lets it run anyway, "hold" keeps it held until an
operator cancels or releases it; `release` changes its `on_failed` to "run". A retried predecessor keeps its id, so
its dependents wait through all its attempts.

One end may concern many dependents. They are processed in batches of `DEPENDENTS_MAX`: the first batch in the
transaction of the end, the rest by later maintenance, from a small table of predecessors that are still to be
processed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from rota.kernel import affinity
from rota.kernel.environment import KernelEnvironment
from rota.kernel.grants import may_reach, unreachable_entry
from rota.kernel.journal import append
from rota.kernel.progress import NoRepeats
from rota.kernel.rows import decode_options
from rota.model.events import EntriesCancelled, EntriesHeldForWorker
from rota.model.lifecycle import ENTRY
from rota.store import Row, Transaction
from rota.store.statements import queue as sql

__all__ = [
    "DEPENDENTS_MAX",
    "add_edges",
    "initial_hold",
    "resolve_dependents",
    "resolve_pending_dependents",
    "run_despite_failure",
]

DEPENDENTS_MAX = 1_000  # dependents processed in one transaction
_SUCCEEDED = ("completed", "completed")
_encode = msgspec.json.Encoder().encode


def initial_hold(tx: Transaction, after: Sequence[int], on_failed: str, from_project: str | None) -> str | None:
    """Return "after" if a new entry must wait, "cancel" if a predecessor has already failed, None if it may run.

    Raises `SchedUnknownId` for a predecessor that does not exist or that `from_project` may not reach.
    """
    found = {row[0]: row[1:] for row in tx.run_for(sql.STATES_OF, after)}
    for sched_id in after:
        if sched_id not in found or not may_reach(tx, from_project, found[sched_id][2]):
            raise unreachable_entry(sched_id)
    return _verdict([(state, exit_kind) for state, exit_kind, _ in found.values()], on_failed)


def add_edges(tx: Transaction, sched_id: int, after: Iterable[int]) -> None:
    """Write an entry's edges to its predecessors."""
    tx.run_many(sql.AFTER_ADD, [(sched_id, other) for other in dict.fromkeys(after)])


def resolve_dependents(tx: Transaction, env: KernelEnvironment, sched_ids: Sequence[int], now: float) -> list[int]:
    """Release or cancel the dependents of entries that have ended; returns the cancelled ones."""
    awaited = [row[0] for row in tx.run_for(sql.AWAITED, sched_ids)] if sched_ids else []
    if not awaited:
        return []
    tx.run_many(sql.PENDING_ADD, [(sched_id,) for sched_id in awaited])
    return resolve_pending_dependents(tx, env, now)


def resolve_pending_dependents(tx: Transaction, env: KernelEnvironment, now: float) -> list[int]:
    """Process at most `DEPENDENTS_MAX` dependents of ended entries; returns the cancelled ones."""
    left = DEPENDENTS_MAX
    resolved, seen = _Resolved([], [], []), NoRepeats("entries whose dependents are processed")
    while left > 0 and (rows := tx.run(sql.PENDING_NEXT)):
        predecessor, last_id = rows[0]
        seen.check([predecessor])
        dependents = tx.run(sql.DEPENDENTS, (predecessor, last_id, left))
        for dependent in dependents:
            _resolve(tx, env, dependent, now, resolved)
        if len(dependents) < left:
            tx.run(sql.PENDING_DONE, (predecessor,))
        else:
            tx.run(sql.PENDING_ADVANCE, (dependents[-1][0], predecessor))
        left -= len(dependents)
    _record(tx, env, resolved, now)
    return resolved.cancelled


def run_despite_failure(tx: Transaction, env: KernelEnvironment, dependent: Row, now: float) -> None:
    """Let an entry run although a predecessor failed; it still waits for predecessors that have not ended."""
    options = msgspec.structs.replace(decode_options(dependent[4]), on_failed="run")
    text = _encode(options).decode()
    tx.run(sql.SET_OPTIONS, (text, dependent[0]))
    resolved = _Resolved([], [], [])
    _resolve(tx, env, (*dependent[:4], text, *dependent[5:]), now, resolved)
    _record(tx, env, resolved, now)


class _Resolved(NamedTuple):
    """What became of dependents."""

    released: list[Row]
    held_for_worker: list[int]
    cancelled: list[int]


def _resolve(tx: Transaction, env: KernelEnvironment, dependent: Row, now: float, resolved: _Resolved) -> None:
    """Release, hold or cancel one dependent."""
    sched_id, runnable_at, options = dependent[0], dependent[3], dependent[4]
    predecessors = [(state, exit_kind) for _, state, exit_kind in tx.run(sql.PREDECESSORS, (sched_id,))]
    verdict = _verdict(predecessors, decode_options(options).on_failed)
    if verdict is None:
        hold = "time" if runnable_at > now else _affinity_hold(tx, env, dependent, now)
        tx.run(sql.RELEASE, (hold, sched_id))
        if hold == "worker":
            resolved.held_for_worker.append(sched_id)
        else:
            resolved.released.append(dependent)
    elif verdict == "cancel":
        tx.run(sql.CANCEL, (now, "predecessor_failed", sched_id))
        tx.run(sql.PENDING_ADD, (sched_id,))
        resolved.cancelled.append(sched_id)


def _affinity_hold(tx: Transaction, env: KernelEnvironment, dependent: Row, now: float) -> str | None:
    sched_id, _, _, runnable_at, options, kind, priority = dependent
    if options is None:
        return None
    entry = affinity.AffinityEntry(sched_id, decode_options(options).affinity, kind, priority, runnable_at)
    return affinity.hold_for_worker(tx, env, entry, now)


def _verdict(predecessors: Iterable[tuple[str | None, str | None]], on_failed: str) -> str | None:
    """Return None once each predecessor succeeded or was pruned; a failed one may decide before the others end."""
    waits = False
    for state, exit_kind in predecessors:
        if state is None or (state, exit_kind) == _SUCCEEDED:
            continue
        if state in ENTRY.final and on_failed == "run":
            continue
        if state in ENTRY.final and on_failed == "cancel":
            return "cancel"
        waits = True
    return "after" if waits else None


def _record(tx: Transaction, env: KernelEnvironment, resolved: _Resolved, now: float) -> None:
    released, held_for_worker, cancelled = resolved
    if released:
        affinity.record_released(tx, env, "after", released, now)
    if held_for_worker:
        append(tx, EntriesHeldForWorker(hold="after", sched_ids=held_for_worker), now=now)
        tx.effects.wake_parked = True
    if cancelled:
        append(tx, EntriesCancelled(sched_ids=cancelled, reason="predecessor_failed"), now=now)
