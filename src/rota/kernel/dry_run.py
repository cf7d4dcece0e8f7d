"""A rehearsal: what a claim would do, done for real and undone.

To say truly what a claim would return, the very same code has to run on the very same rows: what is due by now is
done first (held entries released, expired claims taken back, deadlines swept), then a pass offers and writes. So a
rehearsal is a transaction that writes and is always rolled back. It takes its turn like any writer, and for that
time it holds up the others; what it does is therefore bounded by whoever plays.

Nothing of it is left, in the file or in memory: the clockwork, the pulse it remembers, who was seen and the generator
that jitter comes from are copies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from rota.errors import SchedUnknownId
from rota.kernel.core import Core, Memo
from rota.kernel.due_summary import Pulse
from rota.kernel.maintenance import Clockwork
from rota.store import Row, Transaction
from rota.store.statements import journal as journal_sql
from rota.store.statements import queue as sql

__all__ = ["Stage", "rehearse"]

T = TypeVar("T")


class Stage(NamedTuple):
    """Where a rehearsal is played: everything that is due has been done."""

    tx: Transaction
    now: float
    beat: Pulse
    cursor: int  # the last event there truly is

    def row(self, sched_id: int) -> Row:
        """An entry as a claim would find it."""
        rows = self.tx.run(sql.GET, (sched_id,))
        if not rows:
            raise SchedUnknownId(sched_id)
        return rows[0]


def rehearse(core: Core, play: Callable[[Stage], T], *, now: float | None = None) -> T:
    """Do what is due, then whatever `play` does, answer with what it found, and undo it all."""
    given = None if now is None else core.now(now)
    apart = core._replace(chance=copy.copy(core.chance), memo=Memo(), seen=core.seen.copy())

    def work(tx: Transaction) -> T:
        cursor = int(tx.run(journal_sql.EVENT_ENDS)[0][1] or 0)
        at = core.now() if given is None else given
        beat, _ = Clockwork(apart).turn(tx, at, own_time=given is None)
        return play(Stage(tx, at, beat, cursor))

    return core.store.rehearse(work)
