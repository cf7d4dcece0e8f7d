"""Calls that run on a thread: each caller has a queue of its own, and the callers take turns.

So a caller with a thousand reads delays its own reads, not those of others. How many calls of one caller may wait is
limited. Everything here runs in the event loop, except the calls themselves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from rota.errors import LimitExceeded
from rota.rpc.authorization import Principal
from rota.rpc.daemon.pending_calls import PendingCall

__all__ = ["ReadQueue"]

Done = Callable[[PendingCall, "Future[Any]"], None]


class ReadQueue:
    """A few threads, and the calls that wait for one of them."""

    def __init__(
        self,
        name: str,
        threads: int,
        *,
        limit: str,
        waiting_max: int,
        deliver: Callable[..., None],
        may_start: Callable[[], bool] = lambda: True,
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"rota-{name}")
        self._free = threads
        self._limit, self._waiting_max = limit, waiting_max
        self._deliver = deliver  # from any thread: call this in the loop, with these arguments
        self._may_start = may_start  # whether a waiting call may start now; if not, `start_waiting` is called later
        self._waiting: dict[str, deque[tuple[PendingCall, Callable[[], Any], Done]]] = {}  # by caller, in turn

    def add(self, pending: PendingCall, work: Callable[[], Any], done: Done) -> None:
        """Run work on a thread, then call `done` in the loop; raises if too many calls of this caller wait."""
        caller = _caller(pending.principal)
        queue = self._waiting.get(caller)
        if queue is None:
            queue = self._waiting[caller] = deque()
        elif len(queue) >= self._waiting_max:
            raise LimitExceeded(self._limit, self._waiting_max, len(queue) + 1)
        queue.append((pending, work, done))
        self.start_waiting()

    @property
    def has_waiting(self) -> bool:
        """Whether calls wait."""
        return bool(self._waiting)

    def start_waiting(self) -> None:
        """Start waiting calls while threads are free; one whose client does not read its responses is passed over."""
        while self._free and self._waiting and self._may_start():
            found = self._take_next()
            if found is None:
                return
            self._free -= 1
            pending, work, done = found
            self._pool.submit(work).add_done_callback(partial(self._deliver, self._ended, pending, done))

    def _take_next(self) -> tuple[PendingCall, Callable[[], Any], Done] | None:
        for caller in list(self._waiting):
            queue = self._waiting.pop(caller)
            for _ in range(len(queue)):
                call = queue.popleft()
                if call[0].gone:
                    call[0].respond(None)
                elif call[0].origin is None or call[0].origin.may_run():
                    if queue:
                        self._waiting[caller] = queue  # at the end: the other callers are next
                    return call
                else:
                    queue.append(call)
            if queue:
                self._waiting[caller] = queue
        return None

    def _ended(self, pending: PendingCall, done: Done, future: Future[Any]) -> None:
        self._free += 1
        done(pending, future)
        self.start_waiting()

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown()


def _caller(principal: Principal) -> str:
    """Return what the queue of a caller is named after: its token, or the process of a local user."""
    return principal.peer if principal.peer.startswith("unix ") else principal.name
