"""Calls that have no response yet, and those of them that wait for a change.

A `PendingCall` lives from the moment a call is accepted to its one response. `ChangeWaiters` holds the calls that wait
for the end of an entry or for an event: check, wait, check again. Every commit triggers a check, which reads the store
and so runs on a thread. A change between a check and the wait is not missed, because the call subscribes to commits
before its first check. However many commits there are, a call has at most one check running and one more to follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec

from rota.errors import RotaError, WaitTimeout
from rota.rpc.authorization import Principal
from rota.rpc.handlers import RpcHandlers
from rota.rpc.methods import Method
from rota.store.requests import PostedWrite

__all__ = ["ChangeWaiters", "Deliver", "Origin", "PendingCall", "RunRead"]

Deliver: TypeAlias = Callable[..., None]  # from any thread: call this in the loop, with these arguments


class Origin(Protocol):
    """What a call comes from, and its response goes to."""

    def reply(self, result: Any, error: BaseException | None) -> None:
        """Take the result, also one that `encode` has encoded, or the error."""
        ...

    def encode(self, result: Any) -> bytes:
        """Encode a result, on any thread."""
        ...

    def may_run(self) -> bool:
        """Whether a read may run now; if not, the origin reports a change by `resume_reads`."""
        ...


class RunRead(Protocol):
    """Runs a read on a thread and then calls `done` in the loop."""

    def __call__(
        self, pending: PendingCall, params: Any, done: Callable[[PendingCall, Future[Any]], None], *, encode: bool
    ) -> None:
        """With `encode` the result is encoded on that thread."""
        ...


class PendingCall:
    """A call without a response so far."""

    __slots__ = (
        "_finished",
        "calls",
        "check_again",
        "checking",
        "completed",
        "ended",
        "gone",
        "method",
        "origin",
        "params",
        "principal",
        "timer",
        "unsubscribe",
        "unwatch",
        "write",
    )

    def __init__(
        self,
        method: Method,
        params: Any,
        principal: Principal,
        origin: Origin,
        finished: Callable[[PendingCall, Any], None],
    ) -> None:
        self._finished = finished
        self.method = method
        self.params = params
        self.principal = principal
        self.origin: Origin | None = origin  # None: it has its response
        self.calls: set[PendingCall] | None = None  # of the same connection, without a response
        self.write: PostedWrite[Any] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.unsubscribe: Callable[[], None] | None = None  # from the change it waits for
        self.completed: Any = None  # the result for the runs that it completed before it waits for entries
        self.checking = False  # a check is running
        self.check_again = False  # another check is needed after it
        self.gone = False  # the client is gone
        self.ended: RotaError | None = None  # the caller's rights have ended while it waited
        self.unwatch: Callable[[], None] | None = None  # whether they have

    def respond(self, result: Any, error: BaseException | None = None) -> None:
        """Send the response; only the first one counts."""
        self.stop_waiting()
        origin, self.origin = self.origin, None
        if origin is None:
            return
        if self.calls is not None:
            self.calls.discard(self)
        self._finished(self, result)
        if self.ended is not None:
            origin.reply(None, self.ended)
        elif not self.gone:
            origin.reply(result, error)

    @property
    def is_parked(self) -> bool:
        """Whether it waits for an entry to claim."""
        return self.write is not None and self.write.may_park and self.origin is not None

    @property
    def waits(self) -> bool:
        """Whether it may wait for something to happen."""
        return bool(getattr(self.params, "wait_s", 0.0) > 0)

    def stop_waiting(self) -> None:
        """Cancel its timer and its subscription."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.unsubscribe is not None:
            self.unsubscribe()
            self.unsubscribe = None
        if self.unwatch is not None:
            self.unwatch()
            self.unwatch = None


class ChangeWaiters:
    """The calls that wait for a change."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handlers: RpcHandlers,
        run_read: RunRead,
        *,
        deliver: Deliver,
        fail: Callable[[PendingCall, BaseException], None],
    ) -> None:
        self._loop = loop
        self._handlers = handlers
        self._run_read = run_read
        self._deliver = deliver
        self._fail = fail
        self._followers: dict[object, Callable[[], None]] = {}  # called after commits

    def wait(self, pending: PendingCall) -> None:
        """Respond once the change has happened, or `wait_s` has passed."""
        if pending.params.wait_s > 0:
            pending.timer = self._loop.call_later(pending.params.wait_s, self._time_out, pending)
        try:
            if pending.method.name == "kernel.sched.wait":
                ended = partial(self._deliver, self.check, pending)
                pending.unsubscribe = self._handlers.kernel.queue.watch(pending.params.sched_id, ended)
            elif pending.params.wait_s > 0:
                pending.unsubscribe = self.follow(partial(self.check, pending))
        except RotaError as error:
            self._fail(pending, error)
            return
        self.check(pending)

    def check(self, pending: PendingCall, *, last: bool = False) -> None:
        """Check whether the change has happened; `last`: respond with whatever is found."""
        if pending.origin is None:
            return
        if pending.checking and not last:
            pending.check_again = True
            return
        pending.checking, pending.check_again = True, False
        params = msgspec.structs.replace(pending.params, wait_s=0.0)
        is_last = last or pending.params.wait_s <= 0
        is_whole = pending.principal.projects is None  # else its events may be further on, as `_checked` finds out
        self._run_read(pending, params, partial(self._checked, last=is_last), encode=is_last and is_whole)

    def _checked(self, pending: PendingCall, future: Future[Any], *, last: bool) -> None:
        pending.checking = False
        error = future.exception()
        if isinstance(error, WaitTimeout):
            if last:
                text = error.message.replace("after 0 s", f"after {pending.params.wait_s:g} s")
                pending.respond(None, WaitTimeout(text, **error.data))
        elif error is not None:
            self._fail(pending, error)
        elif self._has_read_on(pending, future.result()):
            self.check(pending, last=last)
            return
        elif last or pending.method.name == "kernel.sched.wait" or future.result().events:
            pending.respond(future.result())
        if pending.check_again:
            self.check(pending)

    def _has_read_on(self, pending: PendingCall, result: Any) -> bool:
        """Move the cursor of a bound caller behind events of others; return whether there may be more behind them."""
        if pending.principal.projects is None or pending.method.name != "kernel.event.tail" or result.events:
            return False
        if result.next_cursor == pending.params.since:
            return False
        pending.params = msgspec.structs.replace(pending.params, since=result.next_cursor)
        return True

    def _time_out(self, pending: PendingCall) -> None:
        pending.timer = None
        self.check(pending, last=True)

    def follow(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call this in the loop after commits; the returned function ends that."""
        key = object()
        self._followers[key] = call
        return lambda: self._followers.pop(key, None) and None

    def committed(self) -> None:
        """From any thread: there was a commit, so call the followers."""
        if self._followers:
            self._deliver(self._call_followers, None)

    def _call_followers(self, _pending: None) -> None:
        for call in list(self._followers.values()):
            call()
