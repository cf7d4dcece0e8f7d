"""Dependencies: entries that wait for other entries (`after`).

An entry enqueued `after` others is held until each of them has completed successfully. Edges never change and name
only existing entries, so there is no cycle. When a predecessor ends otherwise, the entry's `on_failed` decides:
"cancel" cancels it (and so the entries that wait for it), "run" lets it run anyway, "hold" keeps it held until an
operator cancels or releases it; `release` changes its `on_failed` to "run". A retried predecessor keeps its id, so
its dependents wait through all its attempts.

A run may return to the queue and wait there for the *first* of several entries to end, however it ends (`wait_for_any`;
the coordinator of a graph run does this). Only then do the edges of an entry change. An entry that has ended before the
run returned makes it ready at once, in the same transaction, so no end is missed.

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
    "wait_for_any",
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


def wait_for_any(tx: Transaction, sched_id: int, options_text: str | None, awaits: Iterable[int]) -> bool:
    """Make an entry wait for the first of others to end; returns False if one of them has ended already."""
    wanted = dict.fromkeys(awaits)
    states = [row[1] for row in tx.run_for(sql.STATES_OF, list(wanted))]  # without those that were pruned
    if len(states) < len(wanted) or any(state in ENTRY.final for state in states):
        return False
    present = {row[0] for row in tx.run(sql.AFTER_OF, (sched_id,))}
    tx.run_many(sql.AFTER_REMOVE, [(sched_id, other) for other in sorted(present - wanted.keys())])
    add_edges(tx, sched_id, (other for other in wanted if other not in present))
    options = decode_options(options_text)
    if options.on_failed != "any":
        text = _encode(msgspec.structs.replace(options, on_failed="any")).decode()
        tx.run(sql.SET_OPTIONS, (text, sched_id))
    return True


def resolve_dependents(tx: Transaction, env: KernelEnvironment, sched_ids: Sequence[int], now: float) -> list[int]:
    """Release or cancel the dependents of entries that have ended; returns the cancelled ones."""
    awaited = [row[0] for row in tx.run_for(sql.AWAITED, sched_ids)] if sched_ids else []
    if not awaited:
        return []
    env.cache.invalidate()  # entries of any owner may be released or cancelled
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
    if verdict == "wake":
        tx.run(sql.WAKE, (now, sched_id))
        resolved.released.append(dependent)
    elif verdict is None:
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
    """Return None once each predecessor succeeded or was pruned; a failed one may decide before the others end.

    "wake": the entry waits for the first of its predecessors, and one has ended.
    """
    if on_failed == "any":
        return "wake" if any(state is None or state in ENTRY.final for state, _ in predecessors) else "after"
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
