"""Signals that a running fleet acts on.

A handler may interrupt the main thread anywhere, also while it holds a lock that the action needs, or one that starting
a thread needs. So a handler only puts the signal into a queue, which may be done anywhere; another thread acts on it.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

from rota.store.author import keeping_author

__all__ = ["acting_on"]


@contextmanager
def acting_on(signals: Sequence[signal.Signals], act: Callable[[], object]) -> Iterator[None]:
    """Call a function for each of these signals, on a thread of its own: one that waits does not hold up the next."""
    received: SimpleQueue[int | None] = SimpleQueue()

    def follow() -> None:
        while received.get() is not None:
            threading.Thread(target=keeping_author(act), daemon=True).start()

    threading.Thread(target=keeping_author(follow), name="rota-signals", daemon=True).start()
    before = {number: signal.signal(number, lambda got, _frame: received.put(got)) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        received.put(None)
