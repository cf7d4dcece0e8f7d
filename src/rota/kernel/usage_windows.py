"""Usage in rolling windows, kept as running sums.

Summing up a day of charges at every claim would cost more than the claim. So each window stores its sum, and its
usage is divided into `BUCKETS` buckets of equal width: a charge is added to the current bucket and to the sum, and a
bucket that has left the window is subtracted. A bucket leaves when all of it is outside, so the sum may exceed the
exact value by at most one bucket.

    a window of 24 h has buckets of 5 min: usage at 12:03 is in the bucket from 12:00 to 12:05 and counts until
    12:05 on the next day, at most 5 minutes too long

The runs that end count in the share windows of their projects. Every process would write these few rows in every turn,
and on a server that is a tenth of a turn. So ended runs are only noted (`ShareNotes`), in one row, and the notes of
many turns are added to the windows together. The statement that reads shares (`shares`) adds what is noted to the sum
of the window, so a policy sees the same whenever that happens.

A window can get another length (`resize`): each bucket moves into the bucket of the new window that contains its end,
so nothing is dropped too early. What a shorter window has dropped stays dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec

from rota.decoding import decode_json
from rota.kernel.settings import read_number
from rota.store import Row, Transaction
from rota.store.statements import budgets as sql

__all__ = [
    "ALL_PROJECTS",
    "BUCKETS",
    "ROLL_MAX",
    "SHARE",
    "SHARE_WINDOW_KEY",
    "SHARE_WINDOW_S",
    "ProjectRuns",
    "ShareNotes",
    "add",
    "close",
    "count_notes",
    "open_window",
    "resize",
    "roll",
    "share_window_s",
    "subtract",
]

BUCKETS = 288  # in one window
ROLL_MAX = 256  # windows rolled in one transaction
NOTED_TURNS_MAX = 64  # of one process, until what is noted is added to the windows
ALL_PROJECTS = "*"  # the owner of global budgets and of the usage of all projects together
SHARE = "share"  # the dimension of project shares: what `share_by` names (see store_policy)
SHARE_WINDOW_S = 24 * 3600.0  # the default of the setting
SHARE_WINDOW_KEY = "share_window_s"  # the setting in the store: how far back fair_share looks


ProjectRuns: TypeAlias = dict[str, tuple[int, int]]  # by project: the usage and the number of runs that ended
_encode = msgspec.json.Encoder().encode


def open_window(tx: Transaction, owner: str, dim: str, window_s: float) -> None:
    """Start counting usage of a dimension in a window."""
    tx.run(sql.WINDOW_OPEN, (owner, dim, window_s))


def share_window_s(tx: Transaction) -> float:
    """Return how far back fair_share looks in this store, in seconds."""
    return read_number(tx, SHARE_WINDOW_KEY, SHARE_WINDOW_S)


def resize(tx: Transaction, window: tuple[str, str, float], new_s: float, now: float) -> None:
    """Change the length of a window, keeping the usage that is still in it."""
    owner, dim, old_s = window
    if old_s == new_s:
        return
    held = tx.run(sql.BUCKETS_OF, (owner, dim, old_s))
    close(tx, owner, dim, old_s)
    open_window(tx, owner, dim, new_s)
    tx.run(sql.WINDOW_EMPTY, (owner, dim, new_s))  # another budget may have counted in a window of this length before
    width_s = new_s / BUCKETS
    used = ended = 0
    for leaves_at, amount, runs in held:
        leaves_new_at = math.ceil((leaves_at - old_s) / width_s) * width_s + new_s
        if leaves_new_at > now:
            tx.run(sql.BUCKET_PUT, (owner, dim, new_s, leaves_new_at, amount, runs))
            used, ended = used + amount, ended + runs
    tx.run(sql.WINDOW_SET, (used, ended, owner, dim, new_s))


def close(tx: Transaction, owner: str, dim: str, window_s: float) -> None:
    """Stop counting and delete the window's buckets."""
    tx.run(sql.WINDOW_CLOSE, (owner, dim, window_s))
    tx.run(sql.WINDOW_EMPTY, (owner, dim, window_s))


def add(tx: Transaction, usage: Iterable[tuple[str, Mapping[str, int]]], now: float) -> list[Row]:
    """Add usage per dimension to every window of each owner.

    Returns the windows that have reached the amount at which an alert may be due: owner, dimension, length and usage.
    """
    rows = [(owner, dim, amount, 0) for owner, amounts in usage for dim, amount in amounts.items() if amount]
    parameters = [(*row, now, BUCKETS) for row in rows]
    if not parameters:
        return []
    tx.run_many(sql.BUCKET_ADD, parameters)
    windows = (window for each in parameters for window in tx.run(sql.WINDOW_CHARGE, each))
    return [window[:4] for window in windows if window[4] is not None and window[3] >= window[4]]


class ShareNotes:
    """How one process records ended runs: noted, or added to the share windows at once if it ranks projects by them."""

    def __init__(self) -> None:
        self.ranks = False  # if it does, its notes would only have to be summed up again in every pass
        self._turns_left = 1  # a process may end after one run: its first turn adds what it and others have noted

    def add(self, tx: Transaction, runs: ProjectRuns, event_id: int, window_s: float, now: float) -> float:
        """Record the runs whose end is this event; returns when the first usage that was added leaves its window."""
        if self.ranks:
            _add_runs(tx, [(owner, *counted, now) for owner, counted in runs.items()])
            return now + window_s
        tx.run(sql.SHARE_NOTE, (event_id, now, _encode(runs).decode()))
        self._turns_left -= 1
        return now + window_s if self._turns_left else self.count(tx, window_s, now)

    def count(self, tx: Transaction, window_s: float, now: float) -> float:
        """Add everything that is noted to the windows; returns when the first of it leaves."""
        self._turns_left = NOTED_TURNS_MAX
        return count_notes(tx, window_s, now)

    def count_any(self, tx: Transaction, window_s: float, now: float) -> float:
        """Like `count`, but if nothing is noted, nothing is written."""
        return self.count(tx, window_s, now) if tx.run(sql.SHARE_NOTES_ANY) else now + window_s


def count_notes(tx: Transaction, window_s: float, now: float = 0.0) -> float:
    """Add the runs that are noted to the share windows, if they are still in these; returns when the first leaves."""
    width_s = window_s / BUCKETS
    sums: dict[tuple[str, int], tuple[int, int, float]] = {}  # by project and bucket: usage, runs, the last instant
    for noted_at, text in tx.run(sql.SHARE_NOTES_TAKE):
        if not isinstance(noted_at, float) or noted_at + window_s + width_s <= now:
            continue
        for owner, (used, runs) in _runs_in(text).items():
            bucket = owner, int(noted_at / width_s)
            before, runs_before, last_at = sums.get(bucket, (0, 0, noted_at))
            sums[bucket] = before + used, runs_before + runs, max(last_at, noted_at)
    _add_runs(tx, [(owner, *found) for (owner, _), found in sums.items()])
    return min((last_at for _, _, last_at in sums.values()), default=now) + window_s


def _runs_in(text: str) -> ProjectRuns:
    """Return what a note says; nothing if it is damaged: no run may fail to end because of it."""
    try:
        return decode_json(text, ProjectRuns)
    except (msgspec.DecodeError, TypeError):
        return {}


def _add_runs(tx: Transaction, ended: Iterable[tuple[str, int, int, float]]) -> None:
    """Add ended runs (owner, usage, number, when) to the share windows of their projects."""
    parameters = [(owner, SHARE, used, runs, ended_at, BUCKETS) for owner, used, runs, ended_at in ended]
    tx.run_many(sql.BUCKET_ADD, parameters)
    tx.run_many(sql.WINDOW_ADD, parameters)


def subtract(tx: Transaction, owner: str, dim: str, used_since: Callable[[float], int], now: float) -> None:
    """Subtract refunded usage from every window; `used_since` returns how much of it was used after an instant.

    The oldest buckets go first: if they hold usage of another agent, what remains leaves the window later than it
    should, and never earlier.
    """
    left: dict[float, int] = {}  # by window, what is still to be subtracted
    for window_s, leaves_at, held in tx.run(sql.BUCKETS_OLDEST, (owner, dim)):
        if window_s not in left:
            left[window_s] = used_since(now - window_s)
        part = min(held, left[window_s])
        if part and leaves_at > now:
            left[window_s] -= part
            tx.run(sql.BUCKET_TAKE, (part, owner, dim, window_s, leaves_at))
            tx.run(sql.WINDOW_TAKE, (part, owner, dim, window_s))


def roll(tx: Transaction, now: float) -> list[str]:
    """Subtract usage that has left its window; returns the owners of the windows."""
    due = tx.run(sql.WINDOWS_DUE, (now, ROLL_MAX))
    for owner, dim, window_s in due:
        left = tx.run(sql.BUCKETS_LEAVE, (owner, dim, window_s, now))
        used, ended = sum(row[0] for row in left), sum(row[1] for row in left)
        tx.run(sql.WINDOW_ROLL, (used, ended, owner, dim, window_s))
    return [row[0] for row in due]
