"""A store whose calls can join a transaction that is already open.

The kernel's verbs each ask the store for a transaction and wait for its commit. A daemon has many of them at hand
at once and no thread for each. So it posts a verb as a whole: while that runs inside the writer's group, every
`write`, `wait` and `read` it makes goes to the group's own transaction, and the verb returns without a commit. Its
answer counts once the group's commit is durable, which is when the one who posted it is told.

Whatever a posted verb wrote is one unit: all of it or, if it raises, nothing. A posted verb may be run again, when a
commit failed or when it waits; it has no effect but on the store, so nobody can tell.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

from rota.store.protocol import Nudge, Store, Transaction
from rota.store.requests import Posted
from rota.store.sqlite import SqliteStore

__all__ = ["JointStore"]

T = TypeVar("T")


class _Open(threading.local):
    """The transaction that the present thread is inside of."""

    tx: Transaction | None = None


class JointStore(Store):
    """A store, and the verbs posted to it."""

    def __init__(self, store: SqliteStore) -> None:
        self.clock = store.clock
        self._store = store
        self._open = _Open()

    # --- posting ---------------------------------------------------------------------------------

    def errand(
        self, verb: Callable[[], T], told: Callable[[], None], *, parks: bool = False, same: Hashable = None
    ) -> Posted[T]:
        """A verb to be posted. One that parks waits while its answer is empty, until it is withdrawn."""

        def work(tx: Transaction) -> T:
            self._open.tx = tx
            try:
                return verb()
            finally:
                self._open.tx = None

        return Posted(work, told, parks=parks, same=same)

    def post(self, errands: Sequence[Posted[Any]]) -> None:
        """Leave verbs with the writer: they share a commit, and each is told when it is answered."""
        self._store.post(errands)

    def run(self, errands: Sequence[Posted[Any]]) -> bool:
        """Run verbs here and now, in one commit, if nobody else writes; the answer is whether it was."""
        return self._store.run(errands)

    def settled(self) -> None:
        """Come back when the group whose answers are being given has all of them."""
        self._store.settled()

    @property
    def parked(self) -> int:
        """How many posted verbs and callers wait for something to be handed out."""
        return self._store.parked

    def withdraw(self, errand: Posted[Any]) -> None:
        """Let a posted verb wait no longer."""
        self._store.withdraw(errand)

    # --- a store ---------------------------------------------------------------------------------

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in the transaction that is open, or in one of its own."""
        tx = self._open.tx
        return self._store.write(work) if tx is None else work(tx)

    def wait(
        self,
        work: Callable[[Transaction], list[T]],
        timeout_s: float,
        same: Hashable = None,
        nudge: Nudge | None = None,
    ) -> list[T]:
        """Like write; only outside of a posted verb does it wait."""
        tx = self._open.tx
        return self._store.wait(work, timeout_s, same, nudge) if tx is None else work(tx)

    def nudge(self, nudge: Nudge) -> None:
        """Let whoever waits with this nudge go, empty-handed."""
        self._store.nudge(nudge)

    def rehearse(self, work: Callable[[Transaction], T]) -> T:
        """Run work as if it were to be written, and undo it."""
        return self._store.rehearse(work)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view: inside a posted verb, on what it has written so far."""
        tx = self._open.tx
        return self._store.read(work) if tx is None else work(tx)

    def on_change(self, call: Callable[[], None], *, foreign_only: bool = False) -> Callable[[], None]:
        """Have this called after every commit, of this process or only of others; the answer ends it."""
        return self._store.on_change(call, foreign_only=foreign_only)

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Copy everything to a new file while others go on."""
        self._store.backup(path, progress)

    def check(self) -> list[str]:
        """What is wrong with the file, in sentences; empty when nothing is."""
        return self._store.check()

    def close(self) -> None:
        """Release the file. Whoever still waits is told."""
        self._store.close()
