"""What clients have not read yet, bounded for each connection and for all of them together.

A response is handed to the operating system in parts. While the client does not read, the rest waits in the
connection's `Outbox`. All outboxes, together with the parts of requests that are not executed yet, share one
`BufferBudget`. When it is used up, the connection that has made no progress for the longest is dropped: a client that
reads, however slowly, makes progress; one that never reads does not. A dropped client is sent the rest of the message
that it is reading and then a frame that says why, if that rest is small, and has `LINGER_S` to read them.

Large requests are bounded by number: a connection needs a permit to receive more than `LARGE_REQUEST_BYTES`, and keeps
it until the response. Small requests need none, so they never wait for large ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from rota.rpc.daemon.transport import DaemonLimits

__all__ = [
    "LARGE_REQUEST_BYTES",
    "LINGER_S",
    "TURN_MAX",
    "BufferBudget",
    "Holder",
    "LargeRequests",
    "Outbox",
    "SharedMemory",
]

LARGE_REQUEST_BYTES = 64 * 1024
TURN_MAX = 16  # requests of one connection that are started before the other connections have their turn
PART_BYTES = 64 * 1024  # handed to the operating system at a time
HIGH_WATER_BYTES = 16 * 1024  # that the transport may hold before the outbox keeps the rest
LINGER_S = 5.0  # how long a client has to read the last message before it is disconnected
LAST_BYTES_MAX = 512 * 1024  # of the message that a dropped client is reading; in the middle of a larger one it ends


class Holder(Protocol):
    """A connection that holds a part of the budget."""

    def drop(self, limit: str) -> None:
        """Close the connection because of this limit, and give its part back."""
        ...


class BufferBudget:
    """The bytes that all connections hold for their clients."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[Holder, int] = {}  # by connection; the one without progress for the longest first
        self._lingering: dict[Holder, int] = {}  # of dropped connections
        self._lingering_bytes = 0
        self.used = 0

    def take(self, holder: Holder, size: int) -> None:
        """Hold this many bytes more; drop connections until all fit."""
        self._held[holder] = self._held.get(holder, 0) + size
        self.used += size
        while self.used > self._bytes_max:
            slowest = next(iter(self._held))
            slowest.drop("buffer_bytes_max")
            self.release(slowest)

    def give(self, holder: Holder, size: int) -> None:
        """Hold this many bytes less, which is progress."""
        held = self._held.pop(holder, None)
        if held is None:
            return  # it was dropped
        self.used -= min(size, held)
        if held > size:
            self._held[holder] = held - size

    def release(self, holder: Holder) -> None:
        """Give back all that a connection holds."""
        self.used -= self._held.pop(holder, 0)

    def may_linger(self, holder: Holder, size: int) -> bool:
        """Return whether a dropped connection may keep this many bytes until it is closed."""
        if self._lingering_bytes + size > self._bytes_max // 2:
            return False
        self._lingering[holder] = size
        self._lingering_bytes += size
        return True

    def closed(self, holder: Holder) -> None:
        """Forget a connection that is closed."""
        self.release(holder)
        self._lingering_bytes -= self._lingering.pop(holder, 0)


class LargeRequests:
    """The permits for large requests, given in the order in which they were asked for."""

    def __init__(self, count_max: int) -> None:
        self._free = count_max
        self._waiting: dict[object, Callable[[], None]] = {}

    def acquire(self, asker: object, granted: Callable[[], None]) -> bool:
        """Return whether there is a permit; if not, `granted` is called when one becomes free."""
        if self._free:
            self._free -= 1
            return True
        self._waiting[asker] = granted
        return False

    def withdraw(self, asker: object) -> None:
        """Stop waiting for a permit."""
        self._waiting.pop(asker, None)

    def release(self) -> None:
        """Return a permit; the first that waits gets it."""
        if self._waiting:
            self._waiting.pop(next(iter(self._waiting)))()
        else:
            self._free += 1


class SharedMemory:
    """What the connections of all transports share."""

    def __init__(self, limits: DaemonLimits) -> None:
        self.buffers = BufferBudget(limits.buffer_bytes_max)
        self.large = LargeRequests(limits.large_requests_max)


class Outbox:
    """What one client has not read yet. The protocol forwards `pause_writing` and `resume_writing` to it."""

    __slots__ = ("_at", "_budget", "_handed", "_holder", "_messages", "_transport", "paused", "size")

    def __init__(self, transport: Any, holder: Holder, budget: BufferBudget) -> None:
        self._transport = transport
        self._holder = holder
        self._budget = budget
        self._messages: deque[bytes] = deque()  # that the transport has not taken
        self._at = 0  # bytes of the first of them that it has taken
        self._handed = 0  # bytes in the transport when it last paused
        self.size = 0  # bytes of all of them
        self.paused = False  # the transport takes nothing more
        transport.set_write_buffer_limits(HIGH_WATER_BYTES)

    def send(self, message: bytes) -> None:
        """Send a message, now or when the client has read those before it."""
        if not self.paused and len(message) <= PART_BYTES and not self._messages:
            self._transport.write(message)
            return
        self._messages.append(message)
        self.size += len(message)
        self._budget.take(self._holder, len(message))
        self._write()

    def pause(self) -> None:
        """The transport takes nothing more."""
        self.paused = True
        self._handed = self._transport.get_write_buffer_size()
        self._budget.take(self._holder, self._handed)

    def resume(self) -> None:
        """The client has read; the transport takes more."""
        self.paused = False
        self._budget.give(self._holder, self._handed)
        self._write()

    def _write(self) -> None:
        while self._messages and not self.paused:
            message = self._messages[0]
            part = memoryview(message)[self._at : self._at + PART_BYTES]
            self._at += len(part)
            if self._at == len(message):
                self._messages.popleft()
                self._at = 0
                self.size -= len(message)
                self._budget.give(self._holder, len(message))
            self._transport.write(part)

    def clear(self) -> None:
        """Discard all that the transport has not taken."""
        self._messages.clear()
        self.size = self._at = 0

    def end(self, frame: bytes) -> bool:
        """Discard the messages that the transport has not begun, and write a last frame behind the one it has.

        Return False if that message is too large to keep.
        """
        rest = memoryview(self._messages[0])[self._at :] if self._at else memoryview(b"")
        self.clear()
        kept = len(rest) + self._transport.get_write_buffer_size()
        if len(rest) > LAST_BYTES_MAX or not self._budget.may_linger(self._holder, kept):
            return False
        self._transport.write(bytes(rest) + frame)
        return True
