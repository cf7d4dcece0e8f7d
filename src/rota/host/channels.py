"""Channels: a line of its own from the minder to the thread that follows one session.

Reports come in on one socket, and one thread of the client listens there. A thread that waits for a command would be
woken by that listener, which the minder has to wake first: two hops, twice in the life of every command. Whoever has
nothing to do but to follow one command can have the minder's reports about it come directly, and wait for them and for
the command's output in one poll.

A channel is made once and lent to one session after another; it never holds more than the two reports of a session, so
writing to it never blocks. That the minder is gone is read there as an end of file; what becomes of the session is
then said by the listener, as for every other.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable

from rota.host.frames import REPORT_BYTES, Frame, Inbox

__all__ = ["Channel", "Channels"]


class Channel:
    """The client's end."""

    def __init__(self, channel_id: int, sock: socket.socket) -> None:
        self.id = channel_id
        self._socket = sock
        self._inbox = Inbox(sock, REPORT_BYTES)
        self._reading = threading.Lock()  # the listener looks too, when the minder has ended

    def fileno(self) -> int:
        """What to poll."""
        return self._socket.fileno()

    def receive(self, *, waits: bool) -> list[Frame] | None:
        """The reports that have come; None when the minder is gone. With `waits`, at least one unless it is."""
        with self._reading:
            try:
                return self._inbox.receive(0 if waits else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
            except OSError:
                return None

    def close(self) -> None:
        """Close our end."""
        self._inbox.close()
        self._socket.close()


class Channels:
    """The channels of one minder: those that are free are kept for the next session."""

    def __init__(self, announce: Callable[[int, int], None]) -> None:
        self._announce = announce  # gives the minder its end of a new one
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._free: list[Channel] = []
        self._is_closed = False

    def take(self) -> Channel:
        """One that nobody uses."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return self._made()

    def give_back(self, channel: Channel) -> None:
        """Its session has ended, and that was the last word on it."""
        with self._lock:
            if not self._is_closed:
                self._free.append(channel)
                return
        channel.close()

    def close(self) -> None:
        """The minder is gone: nothing will come on any of them."""
        with self._lock:
            free, self._free = self._free, []
            self._is_closed = True
        for channel in free:
            channel.close()

    def _made(self) -> Channel:
        ours, theirs = socket.socketpair()
        with theirs:
            channel = Channel(next(self._ids), ours)
            try:
                self._announce(channel.id, theirs.fileno())
            except BaseException:
                channel.close()
                raise
        return channel
