"""Loops that repeat until nothing is left, on a file that may be damaged.

Such a loop reads the next rows, deals with them, and repeats until there are none. On a sound file it ends. On a
damaged one an index may still name a row that its table has changed, or the keys of a page may not ascend, and then the
loop finds the same rows for ever, often inside a transaction that every other writer waits for. Two rules prevent this:

*The table decides.* A statement that finds what is due by an index of one state looks the state up in the table as well
(statements/claims.py). So an index alone makes no entry expire again, and each step changes the rows that it found.

*No row comes twice.* The loop passes the keys that each step has found to `NoRepeats`, which raises `StoreCorrupt` if
an earlier step found one of them. To keep every key of a long loop would need memory without bound. So only the keys of
one step are kept: of the 1st, 2nd, 4th, 8th … one. A loop that goes round in a circle meets them again as soon as the
kept step lies on the circle and the circle is shorter than the way to the next kept step.

A loop that deletes rows with `RETURNING` needs neither: what it returns is gone.

SQLite itself ends on every file. It counts the levels of a tree and the pages of a chain, and what a search for the
next larger key returns is larger, whatever the order of the keys; so a recursive query that steps from key to key ends
too.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable

from rota.errors import StoreCorrupt

__all__ = ["NoRepeats"]


class NoRepeats:
    """Checks that no step of a loop finds what an earlier step has found."""

    def __init__(self, rows: str) -> None:
        self._rows = rows  # what the keys are, in the plural, for the message
        self._steps = 0
        self._kept: frozenset[Hashable] = frozenset()

    def check(self, keys: Collection[Hashable]) -> None:
        """Raise StoreCorrupt if an earlier step has found one of these keys."""
        if not self._kept.isdisjoint(keys):
            again = next(key for key in keys if key in self._kept)
            text = f"the file is damaged: {self._rows}: {again} is found again and again"
            raise StoreCorrupt(text)
        self._steps += 1
        if self._steps & (self._steps - 1) == 0:  # a power of two
            self._kept = frozenset(keys)
