"""Executing calls for the event loop, without blocking it.

The loop must not block, and a commit takes as long as the disk takes. Calls are executed in three ways:

- *Writes* are collected while the loop reads requests and then run as one group, which shares a commit. Passing a group
  to the writer thread and waking the loop again costs more than a commit on a fast disk. So while commits are fast, the
  loop runs small groups itself; requests that arrive meanwhile form the next group. After one slow commit, groups go to
  the writer thread for a while; it wakes the loop once per commit. So a slow disk blocks the loop for one commit only.
- *Claims that wait* are posted to the writer and parked there. A waiting worker costs no thread, and the commit that
  makes an entry ready also claims it.
- *Reads* and calls that take several commits run on small thread pools.

Calls that wait for a change (the end of an entry, an event) wait in the loop (`pending_calls.py`).

Every call gets exactly one response. When its connection is lost, a call is withdrawn. If it was handed entries at that
moment, they return to the queue immediately instead of when their claims expire.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from rota.errors import Forbidden, RotaError
from rota.rpc.authorization import Principal, authorize
from rota.rpc.daemon.pending_calls import ChangeWaiters, PendingCall, Reply
from rota.rpc.handlers import RpcHandlers
from rota.rpc.methods import METHODS, Method
from rota.store import JoinedStore
from rota.store.requests import PostedWrite

__all__ = ["CallExecutor"]

READ_THREADS = 4
MULTI_COMMIT_THREADS = 2
INLINE_ENTRIES_MAX = 64  # entries that a group run in the loop may touch
FAST_COMMIT_S = 0.02
SLOW_DISK_S = 1.0  # how long groups go to the writer thread after a slow commit
NUDGES_MAX = 10_000  # workers whose nudges are remembered; the oldest is forgotten first
_log = logging.getLogger("rota.daemon")
_CLAIM = METHODS["kernel.sched.claim"]
_TURN = METHODS["kernel.run.turn"]


class CallExecutor:
    """Executes calls and delivers their results in the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, store: JoinedStore, handlers: RpcHandlers) -> None:
        self._loop = loop
        self._store = store
        self._handlers = handlers
        self._group: list[PostedWrite[Any]] = []  # the next group of writes
        self._group_entries = 0  # entries that it may touch
        self._inline_from = 0.0  # when the loop may run groups itself again
        self._delivered: deque[tuple[Callable[..., None], Any]] = deque()  # calls that other threads left for the loop
        self._woken = False  # the loop is about to run them
        self._readers = ThreadPoolExecutor(READ_THREADS, thread_name_prefix="rota-read")
        self._steppers = ThreadPoolExecutor(MULTI_COMMIT_THREADS, thread_name_prefix="rota-steps")
        self._waiters = ChangeWaiters(loop, handlers, self._readers, deliver=self._deliver, fail=self._fail)
        self.pending_calls: set[PendingCall] = set()  # without a response so far
        self._nudged: dict[tuple[str, str], None] = {}  # workers whose next claim must not wait
        self.wakes = 0  # how often the loop was woken to take results
        self._unsubscribe = store.on_change(self._waiters.committed)

    # --- accepting calls -------------------------------------------------------------------------

    def submit(self, method: Method, params: Any, principal: Principal, reply: Reply) -> PendingCall:
        """Execute a call; `reply` gets its result or error."""
        pending = PendingCall(method, params, principal, reply, self._finished)
        self.pending_calls.add(pending)
        match method.execution:
            case "write":
                self._post(pending, partial(self._handlers.execute, method, params, principal))
            case "claim":
                self._claim(pending)
            case "read":
                self._run_in(self._readers, pending)
            case "multi_commit":
                self._run_in(self._steppers, pending)
            case "wait":
                self._waiters.wait(pending)
            case "inline" if method.name == "kernel.sched.nudge":
                self._if_authorized(pending, self._nudge)
            case "inline":
                self._run_inline(pending)
        return pending

    def _if_authorized(self, pending: PendingCall, act: Callable[[PendingCall], None]) -> None:
        try:
            authorize(pending.principal, pending.method, pending.params)
        except RotaError as error:
            self._fail(pending, error)
        else:
            act(pending)

    def _run_inline(self, pending: PendingCall) -> None:
        try:
            pending.respond(self._handlers.execute(pending.method, pending.params, pending.principal))
        except RotaError as error:
            self._fail(pending, error)

    def _fail(self, pending: PendingCall, error: BaseException) -> None:
        if isinstance(error, Forbidden):
            self.record_denied(pending.principal, pending.method.name, error.message)
        pending.respond(None, error)

    def follow(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call this in the loop after commits; the returned function ends that."""
        return self._waiters.follow(call)

    def record_denied(self, principal: Principal, method: str | None, reason: str) -> None:
        """Record, with the next group of writes, that a call was denied."""
        record = partial(self._handlers.record_denied, principal, method, reason)
        self._add_to_group(self._store.posted_write(record, _ignore))

    # --- writes ----------------------------------------------------------------------------------

    def _post(self, pending: PendingCall, function: Callable[[], Any]) -> None:
        pending.write = write = self._store.posted_write(function, partial(self._deliver, self._written, pending))
        self._add_to_group(write, _entry_count(pending.params))

    def _add_to_group(self, write: PostedWrite[Any], entries: int = 1) -> None:
        self._group.append(write)
        self._group_entries += entries
        if len(self._group) == 1:
            self._loop.call_soon(self._run_group)  # after the loop has read all requests that are there

    def _run_group(self) -> None:
        writes, self._group = self._group, []
        entries, self._group_entries = self._group_entries, 0
        try:
            if entries > INLINE_ENTRIES_MAX or not self._run_group_inline(writes):
                self._store.post(writes)
        except RotaError as error:  # the store is closed
            for pending in [pending for pending in self.pending_calls if pending.write in writes]:
                pending.respond(None, error)

    def _run_group_inline(self, writes: list[PostedWrite[Any]]) -> bool:
        """Run a group in the loop, if commits are fast and no other thread writes; return whether it ran."""
        began_at = self._loop.time()
        if began_at < self._inline_from:
            return False
        self._woken = True  # results that are delivered meanwhile are taken below
        try:
            ran = self._store.try_run(writes)
        finally:
            self._woken = False
        ended_at = self._loop.time()
        if ended_at - began_at > FAST_COMMIT_S:
            self._inline_from = ended_at + SLOW_DISK_S
        if self._delivered:
            self._take_delivered()
        return ran

    def _written(self, pending: PendingCall) -> None:
        write = pending.write
        assert write is not None  # noqa: S101  # it was posted
        if write.error is not None:
            self._fail(pending, write.error)
        else:
            pending.respond(write.value)

    # --- claims ----------------------------------------------------------------------------------

    def _claim(self, pending: PendingCall) -> None:
        if pending.params.wait_s <= 0:
            self._post(pending, partial(self._handlers.execute, pending.method, pending.params, pending.principal))
        elif _ended_runs(pending.params):
            without_wait = msgspec.structs.replace(pending.params, wait_s=0.0)
            function = partial(self._handlers.execute, pending.method, without_wait, pending.principal)
            pending.write = self._store.posted_write(function, partial(self._deliver, self._completed, pending))
            self._add_to_group(pending.write, _entry_count(without_wait))
        else:
            self._park(pending, pending.params)

    def _completed(self, pending: PendingCall) -> None:
        """The runs are completed, durably. If no entry was claimed, wait for one."""
        write = pending.write
        assert write is not None  # noqa: S101  # it was posted
        result = write.value
        if result is None or result.entries or pending.gone:
            self._written(pending)
            return
        pending.completed = result
        self._park(pending, pending.params)

    def _park(self, pending: PendingCall, claim: Any) -> None:
        worker = claim.worker_id, claim.incarnation
        if worker in self._nudged:  # the nudge came before the claim began to wait
            self._nudged.pop(worker)
            self._respond_with(pending, [])
            return
        pending.write = self._store.posted_write(
            partial(self._try_claim, pending.method, claim, pending.principal),
            partial(self._deliver, self._claimed, pending),
            may_park=True,
            equivalence_key=(claim.policy, tuple(sorted(set(claim.kinds))), claim.admission_check),
        )
        pending.timer = self._loop.call_later(claim.wait_s, self._store.withdraw, pending.write)
        self._add_to_group(pending.write)

    def _try_claim(self, method: Method, claim: Any, principal: Principal) -> Any:
        """Return the claimed entries; an empty list keeps the posted write parked."""
        if method is _TURN:  # its reports are already written
            without_reports = msgspec.structs.replace(claim, reports=[], wait_s=0.0)
            return self._handlers.execute(method, without_reports, principal).entries
        plain = _CLAIM.params(**{name: getattr(claim, name) for name in _CLAIM.params.__struct_fields__})
        return self._handlers.execute(_CLAIM, plain, principal).entries

    def _nudge(self, pending: PendingCall) -> None:
        """Make a worker's waiting claim return; if none waits, its next claim does not wait."""
        worker = pending.params.worker_id, pending.params.incarnation
        found = [each for each in self.pending_calls if each.is_parked and _worker_of(each.params) == worker]
        for each in found:
            assert each.write is not None  # noqa: S101  # it is parked
            self._store.withdraw(each.write)
        if not found:
            if len(self._nudged) >= NUDGES_MAX:
                self._nudged.pop(next(iter(self._nudged)))
            self._nudged[worker] = None
        pending.respond(pending.method.codec.pack(pending.params, None))

    def _claimed(self, pending: PendingCall) -> None:
        write = pending.write
        assert write is not None  # noqa: S101  # it was posted
        if write.error is not None:
            self._fail(pending, write.error)
            return
        self._respond_with(pending, write.value or [])

    def _respond_with(self, pending: PendingCall, entries: list[Any]) -> None:
        result = pending.method.codec.result
        outcomes = [] if pending.completed is None else pending.completed.answers
        pending.respond(result(entries) if pending.method is _CLAIM else result(outcomes, entries))

    def withdraw(self, pending: PendingCall) -> None:
        """Give up a call whose connection is lost, if it has not run yet."""
        pending.gone = True
        pending.stop_waiting()
        if pending.write is not None and pending.write.may_park:
            self._store.withdraw(pending.write)
        elif pending.write is None and pending.method.execution == "wait":
            pending.respond(None)

    def _finished(self, pending: PendingCall, result: Any) -> None:
        """Forget a call. If its client is gone, return the entries it claimed to the queue."""
        self.pending_calls.discard(pending)
        if not pending.gone:
            return
        for entry in getattr(result, "entries", None) or ():
            if pending.method.execution == "claim" and entry.token is not None:
                put_back = partial(self._handlers.kernel.queue.put_back, entry.sched_id, token=entry.token)
                self._add_to_group(self._store.posted_write(put_back, _ignore))

    # --- reads, and calls that take several commits ----------------------------------------------

    def _run_in(self, pool: ThreadPoolExecutor, pending: PendingCall) -> None:
        future = pool.submit(self._handlers.execute, pending.method, pending.params, pending.principal)
        future.add_done_callback(partial(self._deliver, self._ran, pending))

    def _ran(self, pending: PendingCall, future: Future[Any]) -> None:
        if (error := future.exception()) is not None:
            self._fail(pending, error)
        else:
            pending.respond(future.result())

    # --- delivery into the loop ------------------------------------------------------------------

    def _deliver(self, call: Callable[..., None], pending: PendingCall | None, *more: Any) -> None:
        """From any thread: run `call` in the loop, which is woken once for all calls delivered by then."""
        self._delivered.append((call, (pending, *more)))
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._take_delivered)
            except RuntimeError:  # the loop has ended: no client is left
                _log.debug("a result arrived after the event loop had ended")

    def _take_delivered(self) -> None:
        self._store.wait_delivered()  # so that all results of a commit are taken together
        self.wakes += 1
        self._woken = False
        while self._delivered:
            call, args = self._delivered.popleft()
            call(*args)

    # --- stopping --------------------------------------------------------------------------------

    def stop_waiting(self) -> None:
        """Make every waiting call return what it has."""
        for pending in list(self.pending_calls):
            if pending.timer is not None:
                pending.timer.cancel()
                pending.timer = None
                if pending.write is not None and pending.write.may_park:
                    self._store.withdraw(pending.write)
                elif pending.method.execution == "wait":
                    self._waiters.check(pending, last=True)

    def close(self) -> None:
        """Stop the threads."""
        self._unsubscribe()
        self._readers.shutdown()
        self._steppers.shutdown()


def _ended_runs(params: Any) -> Any:
    """Return the runs that a claim completes, which must be durable before it waits."""
    return getattr(params, "completions", None) or getattr(params, "reports", None)


def _worker_of(params: Any) -> tuple[str, str]:
    return params.worker_id, params.incarnation


def _entry_count(params: Any) -> int:
    """Return how many entries a call may touch."""
    many = getattr(params, "specs", None) or _ended_runs(params) or ()
    return max(len(many), getattr(params, "max_n", 1))


def _ignore() -> None:
    """Ignore the result of a posted write."""
