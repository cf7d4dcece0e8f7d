"""A store whose calls can join a transaction that is already open.

Each kernel call asks the store for a transaction and waits for its commit. A daemon has many calls to serve at the same
time and no thread for each. So it posts a whole call as one write: while the call runs inside the writer's batch, every
`write`, `wait` and `read` it makes uses the batch's own transaction, and the call returns without a commit. Its result
is valid once the batch is durable; `on_done` is called then.

A posted call is one unit: all of its changes are committed or, if it raises, none. It may run more than once, after a
failed commit or after it was parked; that is safe because it has no effect outside the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from rota.errors import StoreReplaced
from rota.store.protocol import Row, Statement, Store, Transaction, WakeHandle
from rota.store.requests import PostedWrite

__all__ = ["JoinedStore", "PostingStore"]

T = TypeVar("T")


class PostingStore(Store, Protocol):
    """What a joined store needs of the one below it: a `Writer` that can also read."""

    lost: StoreReplaced | None

    def post(self, writes: Sequence[PostedWrite[Any]]) -> None:
        """Queue writes together, without waiting."""
        ...

    def try_run(self, writes: Sequence[PostedWrite[Any]]) -> bool:
        """Run writes on this thread if no other writer is active."""
        ...

    def wait_delivered(self) -> None:
        """Return when the batch whose results are being delivered has delivered all of them."""
        ...

    def withdraw(self, write: PostedWrite[Any]) -> None:
        """End the wait of a posted write."""
        ...

    @property
    def parked(self) -> int:
        """The number of parked requests."""
        ...

    @property
    def has_queued(self) -> bool:
        """Whether requests wait for the writer thread."""
        ...


class _OpenTransaction(threading.local):
    """The transaction that the current thread is inside of."""

    tx: Transaction | None = None


class JoinedStore(Store):
    """A store that also accepts posted writes."""

    def __init__(self, store: PostingStore) -> None:
        self.clock = store.clock
        self._store = store
        self._open = _OpenTransaction()

    @property
    def path(self) -> str | None:
        """The file's path with links resolved; None of a store in memory."""
        return self._store.path

    @property
    def host_name(self) -> str | None:
        """The name of this host, of a store that many hosts share."""
        return self._store.host_name

    @property
    def host_path(self) -> str | None:
        """The path beside which this host keeps files for the store; None of a store in memory."""
        return self._store.host_path

    # --- posted writes ---------------------------------------------------------------------------

    def posted_write(
        self,
        call: Callable[[], T],
        on_done: Callable[[], None],
        *,
        may_park: bool = False,
        equivalence_key: Hashable = None,
    ) -> PostedWrite[T]:
        """Wrap a call to be posted. With `may_park` it waits while its result is empty, until it is withdrawn."""

        def work(tx: Transaction) -> T:
            self._open.tx = tx
            try:
                return call()
            finally:
                self._open.tx = None

        return PostedWrite(work, on_done, may_park=may_park, equivalence_key=equivalence_key)

    def post(self, writes: Sequence[PostedWrite[Any]]) -> None:
        """Queue writes that share a commit; each one's `on_done` is called when it is done."""
        self._store.post(writes)

    def try_run(self, writes: Sequence[PostedWrite[Any]]) -> bool:
        """Run writes on this thread in one commit if no other writer is active; return whether they ran."""
        return self._store.try_run(writes)

    def wait_delivered(self) -> None:
        """Return when the batch whose results are being delivered has delivered all of them."""
        self._store.wait_delivered()

    @property
    def parked(self) -> int:
        """The number of parked requests."""
        return self._store.parked

    @property
    def has_queued(self) -> bool:
        """Whether writes wait for the writer thread."""
        return self._store.has_queued

    def withdraw(self, write: PostedWrite[Any]) -> None:
        """End the wait of a posted write."""
        self._store.withdraw(write)

    # --- the store protocol ----------------------------------------------------------------------

    @property
    def is_joined(self) -> bool:
        """Whether the caller is inside a posted write."""
        return self._open.tx is not None

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work in the open transaction, or in a new one."""
        tx = self._open.tx
        return self._store.write(work) if tx is None else work(tx)

    def wait(
        self,
        work: Callable[[Transaction], list[T]],
        timeout_s: float,
        equivalence_key: Hashable = None,
        handle: WakeHandle | None = None,
    ) -> list[T]:
        """Like write; it waits only outside of a posted write."""
        tx = self._open.tx
        return self._store.wait(work, timeout_s, equivalence_key, handle) if tx is None else work(tx)

    def interrupt(self, handle: WakeHandle) -> None:
        """Wake the request parked on this handle; if none is parked, the next wait returns immediately."""
        self._store.interrupt(handle)

    def dry_run(self, work: Callable[[Transaction], T]) -> T:
        """Run work as `write` does and always roll back."""
        return self._store.dry_run(work)

    def prefetch(self, reads: Iterable[tuple[Statement, Row]]) -> None:
        """Name reads that most transactions make after another process has written."""
        self._store.prefetch(reads)

    def on_failover(self, call: Callable[[Transaction, str, str], None]) -> None:
        """Call this when the database may have lost commits."""
        self._store.on_failover(call)

    def hold_worker_id(self, worker_id: str) -> AbstractContextManager[None]:
        """Hold a worker's id over all hosts during the block."""
        return self._store.hold_worker_id(worker_id)

    def read(self, work: Callable[[Transaction], T]) -> T:
        """Run work on one consistent view; inside a posted write, on what it has written so far."""
        tx = self._open.tx
        return self._store.read(work) if tx is None else work(tx)

    @property
    def lost(self) -> StoreReplaced | None:
        """The error of every call, once the store's file was found moved, deleted or replaced."""
        return self._store.lost

    def on_change(self, call: Callable[[], None], *, foreign_only: bool = False) -> Callable[[], None]:
        """Call this after every commit, or only after commits of other processes; returns a function that stops it."""
        return self._store.on_change(call, foreign_only=foreign_only)

    def backup(self, path: str, progress: Callable[[int, int], None] | None = None) -> None:
        """Copy everything to a new file while others write."""
        self._store.backup(path, progress)

    def check(self) -> list[str]:
        """Return the problems found in the file, one sentence each; empty if it is sound."""
        return self._store.check()

    def vacuum(self) -> None:
        """Rewrite everything, so that no space is left of deleted rows."""
        self._store.vacuum()

    def close(self) -> None:
        """Release the file. Waiting callers get StoreUnavailable."""
        self._store.close()
