"""The mailbox: an actor beside the driver through which runs and their supervisor exchange messages.

A run calls `post` (a message without an answer), `ask` (it waits for the reply) and `stop` (it waits until it is asked
to stop). The driver has one `take` waiting at any time, and sends replies and stop requests with `deliver`. Messages of
one run arrive in the order in which it sent them. A task whose run has ended calls `exchange` with its answer, and
waits for the next run, which the driver sends with `hand_on`. Everything is bytes here: what they mean is the business
of the two ends.
"""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["ANSWER", "MAILBOX_NAMESPACE", "TAKE_MAX", "Mailbox"]

MAILBOX_NAMESPACE = "rota"  # of Ray: a run finds the mailbox by its name, and only if it has a message
ANSWER = "answer"  # the operation of a message that ends a run
TAKE_MAX = 500  # messages in one answer
Message = tuple[str, int, str, bytes]  # run, number of the request (0: no reply), operation, body


class Mailbox:
    """The messages of one driver's runs."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._arrived = asyncio.Event()
        self._replies: dict[tuple[str, int], asyncio.Future[bytes]] = {}
        self._stops: dict[str, asyncio.Future[str]] = {}
        self._next_runs: dict[int, asyncio.Future[bytes]] = {}  # by task

    async def post(self, run: str, operation: str, body: bytes) -> None:
        """Take a message of a run."""
        self._messages.append((run, 0, operation, body))
        self._arrived.set()

    async def ask(self, run: str, number: int, operation: str, body: bytes) -> bytes:
        """Take a request of a run and wait for its reply."""
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._replies[run, number] = reply
        self._messages.append((run, number, operation, body))
        self._arrived.set()
        try:
            return await reply
        finally:
            self._replies.pop((run, number), None)

    async def stop(self, run: str) -> str:
        """Wait until a run is asked to stop; return why. The empty text: it has ended."""
        return await self._stop_of(run)

    async def exchange(self, task: int, run: str, answer: bytes) -> bytes:
        """Take the answer of a run that has ended; return the next assignment of its task; empty: it ends."""
        self._next_runs[task] = asyncio.get_running_loop().create_future()
        self._messages.append((run, 0, ANSWER, answer))
        self._arrived.set()
        try:
            return await self._next_runs[task]
        finally:
            del self._next_runs[task]

    async def hand_on(self, given: list[tuple[int, bytes]]) -> None:
        """Give waiting tasks their next assignments."""
        for task, assignment in given:
            _resolve(self._next_runs.get(task), assignment)

    async def take(self) -> list[Message]:
        """Wait for messages and return them, at most `TAKE_MAX`."""
        await self._arrived.wait()
        taken, self._messages = self._messages[:TAKE_MAX], self._messages[TAKE_MAX:]
        if not self._messages:
            self._arrived.clear()
        return taken

    async def deliver(self, parcels: list[tuple[Any, ...]]) -> None:
        """Pass on replies (run, number, body), stop requests (run, reason) and the ends of runs (run,)."""
        for run, *rest in parcels:
            if not rest:
                self._end(run)
            elif len(rest) == 1:
                _resolve(self._stop_of(run), rest[0])
            else:
                _resolve(self._replies.get((run, rest[0])), rest[1])

    def _stop_of(self, run: str) -> asyncio.Future[str]:
        if run not in self._stops:
            self._stops[run] = asyncio.get_running_loop().create_future()
        return self._stops[run]

    def _end(self, run: str) -> None:
        _resolve(self._stops.pop(run, None), "")
        for key in [key for key in self._replies if key[0] == run]:
            self._replies.pop(key).cancel()


def _resolve(future: asyncio.Future[Any] | None, value: Any) -> None:
    if future is not None and not future.done():
        future.set_result(value)
