"""Keeping an entry for the worker it would rather have (`affinity`), for a while.

A worker may have at hand what a run needs: a checkout, a loaded model, a warm cache. An entry can name it, and is then
*kept* for it when it becomes ready for its first attempt: held, and so out of the way of everybody else's claims,
until the first of these:

    the worker asks for work and has room     it is ready, and that same claim chooses by its usual order
    `affinity_wait_s` is over                 it is ready for everybody, at that very instant
    the worker says that it leaves            the same; so it is for whatever becomes ready later
    somebody releases or forces it            affinity is a wish, and no reason to refuse

Nothing is kept for a worker that is not about (see attendance.py): that holds no claim and was not seen lately. A
worker with slots of several kinds asks as `name/kind` for each of them: who names `name` means any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from rota.kernel import flows
from rota.kernel.claims import Terms
from rota.kernel.due_summary import Pulse
from rota.kernel.journal import append
from rota.kernel.workers_seen import Attendance, names_of
from rota.model.events import EntriesReleased
from rota.store import Row, Transaction
from rota.store.statements import file as file_sql
from rota.store.statements import queue as sql

__all__ = [
    "AFFINITY_WAIT",
    "AFFINITY_WAIT_S",
    "RELEASE_MAX",
    "Wish",
    "affinity_wait_s",
    "forget",
    "has_asked",
    "has_left",
    "hold_for",
    "long_enough",
    "release",
    "tell_ready",
]

AFFINITY_WAIT_S = 120.0  # how long an entry is kept, unless the file's setting says otherwise
AFFINITY_WAIT = "affinity_wait_s"  # that setting
RELEASE_MAX = 1_000  # entries released in one go
_encode = msgspec.json.Encoder().encode


class Wish(NamedTuple):
    """An entry, the worker it would rather have, and its place among others."""

    sched_id: int
    worker_id: str | None
    kind: str | None
    priority: int
    runnable_at: float


def affinity_wait_s(tx: Transaction) -> float:
    """How long entries are kept in this file."""
    rows = tx.run(file_sql.META_GET, (AFFINITY_WAIT,))
    return float(rows[0][0]) if rows else AFFINITY_WAIT_S


def hold_for(tx: Transaction, seen: Attendance, wish: Wish, now: float) -> Literal["worker"] | None:
    """Why an entry that could be ready now is held: it is kept for a worker, if it names one that is about."""
    if wish.worker_id is None or not seen.is_about(tx, wish.worker_id, now):
        return None
    wait_s = affinity_wait_s(tx)
    if wait_s <= 0:
        return None
    tx.run(sql.KEEP, (*wish, now + wait_s))
    return "worker"


def has_asked(tx: Transaction, terms: Terms, beat: Pulse) -> None:
    """A worker has room: the first that are kept for it are ready, as many as it could take."""
    if beat.kept_until is None:
        return
    names = names_of(terms.worker.worker_id)
    asks = [(name, kind, terms.most) for name in names for kind in (None, *terms.kinds)]
    rows = [row for ask in asks for row in tx.run(sql.FIRST_KEPT, ask)]
    rows.sort(key=lambda row: (-row[3], row[4], row[0]))  # strictly
    release(tx, rows[: terms.most], terms.now)


def has_left(tx: Transaction, worker_id: str, now: float) -> None:
    """A worker takes nothing more: nothing is kept for it any longer."""
    tx.run(sql.KEEP_FOR_NO_LONGER, (now, worker_id))
    tx.notes.wake = True


def long_enough(tx: Transaction, now: float) -> None:
    """Release what was kept until now."""
    release(tx, tx.run(sql.KEPT_LONG_ENOUGH, (now, RELEASE_MAX)), now)


def release(tx: Transaction, rows: Sequence[Row], now: float) -> None:
    """Let entries that are kept be ready."""
    if rows:
        sched_ids = [row[0] for row in rows]
        forget(tx, sched_ids)
        tx.run_many(sql.RELEASE, [(None, sched_id) for sched_id in sched_ids])
        tell_ready(tx, "worker", rows, now)


def tell_ready(tx: Transaction, hold: str, rows: Sequence[Row], now: float) -> None:
    """Entries (id, agent, project, …) need not wait for that any more: record it, and who has something ready again."""
    event_id = append(tx, EntriesReleased(hold=hold, sched_ids=[row[0] for row in rows]), now=now)
    flows.touch(tx, {(row[1], row[2]) for row in rows}, event_id=event_id)
    tx.notes.wake = True


def forget(tx: Transaction, sched_ids: Sequence[int]) -> None:
    """Entries that may be kept wait for something else now, or for nothing any more."""
    tx.run(sql.KEEP_NO_MORE, (_encode(sched_ids).decode(),))
