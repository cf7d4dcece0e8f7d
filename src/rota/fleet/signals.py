"""Signals that a running fleet acts on.

A Python handler runs on the main thread only, between two of its instructions: it may interrupt that thread while it
holds a lock that the action needs, and it does not run at all while the thread waits for a lock and the signal has
reached another thread, or has come just before the wait. So nothing is left to the handler. Python also writes the
number of each signal, from whichever thread gets it, to a descriptor (`signal.set_wakeup_fd`); a thread reads it there
and acts on it.

There is one such descriptor per process. Where it is in use already (another `acting_on`, an event loop), the signals
of its owner are passed on.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from rota.store.author import keeping_author

__all__ = ["acting_on"]

READ_BYTES = 256  # signals read at a time


@contextmanager
def acting_on(signals: Sequence[signal.Signals], act: Callable[[int], object]) -> Iterator[None]:
    """Call a function with each of these signals, on a thread of its own: one that waits does not hold up the next.

    The block ends when the calls have ended: what they tell and record is not lost if the process ends soon after.
    """
    acts: list[threading.Thread] = []
    read_end, write_end = socket.socketpair()
    write_end.setblocking(False)  # Python refuses one on which a handler could wait
    owner = signal.set_wakeup_fd(write_end.fileno(), warn_on_full_buffer=False)

    def follow() -> None:
        while numbers := read_end.recv(READ_BYTES):
            for number in numbers:
                if number in signals:
                    acts[:] = [each for each in acts if each.is_alive()]
                    acts.append(threading.Thread(target=keeping_author(act), args=(number,), daemon=True))
                    acts[-1].start()
                elif owner != -1:
                    with suppress(OSError):
                        os.write(owner, bytes([number]))

    thread = threading.Thread(target=keeping_author(follow), name="rota-signals", daemon=True)
    thread.start()
    before = {number: signal.signal(number, _written) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(owner)
        write_end.close()  # after what is written, the thread reads the end
        thread.join()
        read_end.close()
        for each in acts:
            each.join()


def _written(_signal: int, _frame: object) -> None:
    """Do nothing: Python has written the signal to the descriptor, which it does for a signal with a handler."""
