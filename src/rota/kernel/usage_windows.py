"""Usage in a rolling window, kept as a running sum.

Adding up a day of charges at every claim would cost more than the claim. So each window has its sum, and the
usage in it lies in `BUCKETS` buckets of equal width: a charge goes into the present bucket and onto the sum,
and a bucket that has moved out of the window is taken off again. The sum is at most one bucket above the exact
one: a bucket leaves when all of it is out.

    a window of 24 h has buckets of 5 min: what was used at 12:03 lies in the bucket of 12:00 to 12:05 and
    counts until 12:05 the next day, at most 5 minutes too long

A window can be given another length (`resize`): what lies in it moves over, each bucket into the one of the new window
that its end falls into, so that nothing is forgotten too early. What a shorter window had forgotten stays forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from rota.store import Transaction
from rota.store.statements import budgets as sql
from rota.store.statements import file as file_sql

__all__ = [
    "BUCKETS",
    "EVERYBODY",
    "ROLL_MAX",
    "SHARE",
    "SHARE_WINDOW",
    "SHARE_WINDOW_S",
    "add",
    "add_runs",
    "close",
    "open_window",
    "resize",
    "roll",
    "share_window_s",
    "take_back",
]

BUCKETS = 288  # in one window
ROLL_MAX = 256  # windows rolled in one go
EVERYBODY = "*"  # the owner of global budgets
SHARE = "share"  # the dimension in which shares are counted: tokens, else seconds
SHARE_WINDOW_S = 24 * 3600.0  # what fair_share remembers, unless the file's setting says otherwise
SHARE_WINDOW = "share_window_s"  # that setting


def open_window(tx: Transaction, owner: str, dim: str, window_s: float) -> None:
    """Begin to count."""
    tx.run(sql.WINDOW_OPEN, (owner, dim, window_s))


def share_window_s(tx: Transaction) -> float:
    """What fair_share remembers in this file."""
    rows = tx.run(file_sql.META_GET, (SHARE_WINDOW,))
    return float(rows[0][0]) if rows else SHARE_WINDOW_S


def resize(tx: Transaction, window: tuple[str, str, float], new_s: float, now: float) -> None:
    """Count in a window of another length, with what still lies in it."""
    owner, dim, old_s = window
    if old_s == new_s:
        return
    held = tx.run(sql.BUCKETS_OF, (owner, dim, old_s))
    close(tx, owner, dim, old_s)
    open_window(tx, owner, dim, new_s)
    tx.run(sql.WINDOW_EMPTY, (owner, dim, new_s))  # it may have been counted in before, for somebody else's sake
    width_s = new_s / BUCKETS
    used = ended = 0
    for leaves_at, amount, runs in held:
        leaves_new_at = math.ceil((leaves_at - old_s) / width_s) * width_s + new_s
        if leaves_new_at > now:
            tx.run(sql.BUCKET_PUT, (owner, dim, new_s, leaves_new_at, amount, runs))
            used, ended = used + amount, ended + runs
    tx.run(sql.WINDOW_SET, (used, ended, owner, dim, new_s))


def close(tx: Transaction, owner: str, dim: str, window_s: float) -> None:
    """Count no more."""
    tx.run(sql.WINDOW_CLOSE, (owner, dim, window_s))
    tx.run(sql.WINDOW_EMPTY, (owner, dim, window_s))


def add(tx: Transaction, usage: Iterable[tuple[str, Mapping[str, int]]], now: float) -> None:
    """Add to every window of each owner what it used, per dimension."""
    _add(tx, [(owner, dim, amount, 0) for owner, amounts in usage for dim, amount in amounts.items() if amount], now)


def add_runs(tx: Transaction, ended: Iterable[tuple[str, int, int]], now: float) -> None:
    """Add to the projects' shares what their runs used and how many of them ended."""
    _add(tx, [(owner, SHARE, used, runs) for owner, used, runs in ended], now)


def _add(tx: Transaction, rows: list[tuple[str, str, int, int]], now: float) -> None:
    if rows:
        parameters = [(*row, now, BUCKETS) for row in rows]
        tx.run_many(sql.BUCKET_ADD, parameters)
        tx.run_many(sql.WINDOW_ADD, parameters)


def take_back(tx: Transaction, owner: str, dim: str, amount: int, now: float) -> None:
    """Give usage back: out of the newest buckets, and never more than is still in the window."""
    left: dict[float, int] = {}  # by window, what is still to be given back
    for window_s, leaves_at, held in tx.run(sql.BUCKETS_NEWEST, (owner, dim)):
        part = min(held, left.setdefault(window_s, amount))
        if part and leaves_at > now:
            left[window_s] -= part
            tx.run(sql.BUCKET_TAKE, (part, owner, dim, window_s, leaves_at))
            tx.run(sql.WINDOW_TAKE, (part, owner, dim, window_s))


def roll(tx: Transaction, now: float) -> int:
    """Take off what has left its window; the answer is how many windows were rolled."""
    due = tx.run(sql.WINDOWS_DUE, (now, ROLL_MAX))
    for owner, dim, window_s in due:
        left = tx.run(sql.BUCKETS_LEAVE, (owner, dim, window_s, now))
        used, ended = sum(row[0] for row in left), sum(row[1] for row in left)
        tx.run(sql.WINDOW_ROLL, (used, ended, owner, dim, window_s))
    return len(due)
