"""Waiting for a change, in the loop: an entry's end, an event.

Look, then wait, then look again. Whoever commits rings, and the loop looks: on a thread, since looking reads the file.
What changed between looking and waiting has rung already, because the bell is hung up before the first look. However
often it rings meanwhile, one look is under way for each who waits, and one more comes after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import msgspec

from rota.errors import RotaError, WaitTimeout
from rota.rpc.daemon.jobs import Job
from rota.rpc.handlers import Office

__all__ = ["Tell", "Waiting"]

Tell: TypeAlias = Callable[..., None]  # from any thread: have this called in the loop, with these arguments


class Waiting:
    """Those who wait for a change."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        office: Office,
        readers: ThreadPoolExecutor,
        *,
        tell: Tell,
        fail: Callable[[Job, BaseException], None],
    ) -> None:
        self._loop = loop
        self._office = office
        self._readers = readers
        self._tell = tell
        self._fail = fail
        self._followers: dict[object, Callable[[], None]] = {}  # who wants to hear of commits

    def wait(self, job: Job) -> None:
        """Answer it once what it waits for has happened, or its time has passed."""
        if job.params.wait_s > 0:
            job.timer = self._loop.call_later(job.params.wait_s, self._give_up, job)
        try:
            if job.method.name == "kernel.sched.wait":
                ring = partial(self._tell, self.look, job)
                job.end_watch = self._office.kernel.queue.watch(job.params.sched_id, ring)
            elif job.params.wait_s > 0:
                job.end_watch = self.follow(partial(self.look, job))
        except RotaError as error:
            self._fail(job, error)
            return
        self.look(job)

    def look(self, job: Job, *, last: bool = False) -> None:
        """Look whether it has happened; `last`: whatever is found is the answer."""
        if job.reply is None:
            return
        if job.looks and not last:
            job.rung = True
            return
        job.looks, job.rung = True, False
        params = msgspec.structs.replace(job.params, wait_s=0.0)
        future = self._readers.submit(self._office.run, job.method, params, job.caller)
        future.add_done_callback(partial(self._tell, partial(self._seen, last=last or job.params.wait_s <= 0), job))

    def _seen(self, job: Job, future: Future[Any], *, last: bool) -> None:
        job.looks = False
        error = future.exception()
        if isinstance(error, WaitTimeout):
            if last:
                text = error.message.replace("after 0 s", f"after {job.params.wait_s:g} s")
                job.answer(None, WaitTimeout(text, **error.data))
        elif error is not None:
            self._fail(job, error)
        elif last or job.method.name == "kernel.sched.wait" or future.result().events:
            job.answer(future.result())
        if job.rung:
            self.look(job)

    def _give_up(self, job: Job) -> None:
        job.timer = None
        self.look(job, last=True)

    def follow(self, call: Callable[[], None]) -> Callable[[], None]:
        """Have this called in the loop after commits; the answer ends it."""
        mark = object()
        self._followers[mark] = call
        return lambda: self._followers.pop(mark, None) and None

    def committed(self) -> None:
        """From any thread: something was committed, so let those who follow look."""
        if self._followers:
            self._tell(self._ring_followers, None)

    def _ring_followers(self, _job: None) -> None:
        for call in list(self._followers.values()):
            call()
