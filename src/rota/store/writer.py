"""When a request is committed, on which thread, and together with which others.

A commit costs one disk flush, however much is in it. So requests that arrive during a commit should share the next one,
and a request that arrives alone should not wait for others. Three rules:

1. *Without contention the caller commits.* A caller that finds no active writer runs its work on its own thread: no
   hand-over, no other thread to wait for.
2. *With contention requests share a commit.* A caller that finds an active writer queues its request. The writer thread
   takes the whole queue as one batch with one commit (`batch.py`). No caller gets its result before the commit is
   durable.
3. *Waiting requests join the commit that serves them.* A request that found nothing yet (a claim on an empty queue) is
   parked (`parking.py`). A write that may change its result says so (`effects.wake_parked`), and the parked requests
   run again inside that same transaction, oldest first. So a waiting worker gets an entry in the commit that enqueues
   it.

Not every caller has a thread to wait on. A *posted* write is queued, shares commits and is parked like any other
request; a callback reports that it is done.

Two locks. The *mutex* guards the queue, the parked requests and the state of every request; it is never held while work
runs. Each waiting request has its own condition on the mutex, so a result wakes one thread and not all of them. The
*write lock* is held by the thread that runs a batch.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from rota.clock import Clock, SystemClock
from rota.errors import StoreError, StoreUnavailable
from rota.store.batch import BatchRunner
from rota.store.engine import WriteEngine
from rota.store.parking import ParkedRequests
from rota.store.protocol import Transaction, TransactionEffects, WakeHandle
from rota.store.requests import PostedWrite, Request, RequestState

__all__ = ["BATCH_MAX", "Writer"]

BATCH_MAX = 256  # requests in one commit
LOCK_WAIT_S = 0.005  # how long `try_run` waits for the write lock: mostly its holder is about to release it
T = TypeVar("T")


class Writer:
    """The only way to write. A store inherits it and adds reading."""

    def __init__(self, engine: WriteEngine, clock: Clock) -> None:
        self.clock = clock
        self._engine: WriteEngine = engine
        self._write_lock = threading.Lock()
        self._mutex = threading.Lock()  # guards all that follows, and the state of every request
        self._thread_wakeup = threading.Condition(self._mutex)
        self._queue: deque[Request[Any]] = deque()
        self._parked = ParkedRequests(self._mutex, clock, self._wake_thread)
        self._contended = False  # the writer thread wants the write lock, or its last batch was shared: queue up
        self._held = False  # a fork waits for the write lock, or has it
        self._has_write_lock = False  # the fork has it
        self._thread: threading.Thread | None = None
        self._closed = False
        self._closed_because = "the store is closed", "Open it again."
        self._listeners_lock = threading.Lock()  # guards the listeners; a callback under the mutex may end one
        self._foreign_listeners: tuple[Callable[[], None], ...] = ()  # called when another process has written
        self._batches = BatchRunner(engine, self._mutex, self._parked, self._is_writer_thread)

    # --- for callers -----------------------------------------------------------------------------

    @property
    def is_joined(self) -> bool:
        """Never: each write is a transaction of its own."""
        return False

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Run work and return its value once it is durable."""
        if not (self._contended or self._queue or self._parked.requests) and self._write_lock.acquire(blocking=False):
            try:
                if not (self._parked.requests or self._closed):  # checked again, now that the lock is held
                    return self._write_alone(work)
            finally:
                self._write_lock.release()
        request = Request(work)
        self._submit(request)
        return request.result()

    def _write_alone(self, work: Callable[[Transaction], T]) -> T:
        """Do what a batch of one write does while no request is parked, without a request.

        This path is short for a reason: after a disk flush the CPU caches are cold, and every call costs twice as much.
        """
        batches, engine, effects = self._batches, self._engine, TransactionEffects()
        batches.lock_owner = threading.get_ident()
        try:
            try:
                engine.begin(alone=True)
                value = work(engine.transaction(effects))
                engine.commit()
            except BaseException as problem:
                return batches.recover_single(work, effects, problem)
            if not engine.sole_user or batches.listeners or effects.on_commit:
                batches.call_each((engine.notify_listeners, *batches.listeners, *effects.on_commit))
            return value
        finally:
            batches.lock_owner = None

    def wait(
        self,
        work: Callable[[Transaction], list[T]],
        timeout_s: float,
        equivalence_key: Hashable = None,
        handle: WakeHandle | None = None,
    ) -> list[T]:
        """Like write, but while the result is empty, park the request until it has one, the timeout or an interrupt.

        Requests with equal keys are equivalent: when one finds nothing, the others are not tried, unless
        `effects.applies_to_equivalents` is False.
        """
        if timeout_s > 0:
            self._start_listening()
        hash(equivalence_key)  # raise for an unhashable key here, in the caller's own call
        give_up_at = self.clock.monotonic() + timeout_s
        request = Request(work, may_park=timeout_s > 0, equivalence_key=equivalence_key)
        request.handle = handle
        self._submit(request, give_up_at)
        return request.result() or []

    def interrupt(self, handle: WakeHandle) -> None:
        """Wake the request parked on this handle; if none is parked, the next wait returns immediately."""
        with self._mutex:
            handle.signalled = True
            for request in [each for each in self._parked.requests if each.handle is handle]:
                del self._parked.requests[request]
                self._parked.settle(request)

    def post(self, writes: Sequence[PostedWrite[Any]]) -> None:
        """Queue writes together, without waiting; each one's `on_done` is called when it is done."""
        if any(write.may_park for write in writes):
            self._start_listening()
        self._check_not_writing()
        with self._mutex:
            self._check_open()
            self._wake_thread()
            for request in writes:
                request.state = RequestState.QUEUED
            self._queue.extend(writes)

    def try_run(self, writes: Sequence[PostedWrite[Any]]) -> bool:
        """Run posted writes on this thread as one batch if no other writer is active; return whether they ran.

        A thread that has delivered its results, or looks whether another process has written, holds the write lock for
        a moment longer: it does not count as an active writer.
        """
        if any(write.may_park for write in writes):
            self._start_listening()
        if self._contended or self._queue or len(writes) > BATCH_MAX:
            return False
        if not self._write_lock.acquire(timeout=LOCK_WAIT_S):
            return False
        try:
            self._check_open()
            self._batches.run(list(writes))
        finally:
            self._write_lock.release()
        return True

    def withdraw(self, write: PostedWrite[Any]) -> None:
        """End the wait of a posted write: it is done now, or when its current run ends, with the result it has."""
        with self._mutex:
            write.withdrawn = True
            if write.state is RequestState.PARKED:
                del self._parked.requests[write]
                write.move_to(RequestState.DONE)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the write lock. A thread that has it already, such as a commit listener, may enter too."""
        if self._is_writing():
            yield
            return
        with self._write_lock:
            self._check_open()
            self._batches.lock_owner = threading.get_ident()
            try:
                yield
            finally:
                self._batches.lock_owner = None

    def check_foreign_commit(self) -> bool:
        """Whether another process has written since the last call; if so, run the parked requests again."""
        with self._write_lock:
            if self._closed:
                return False
            if self._batches.has_foreign_commit() and self._parked.requests:
                self._batches.run([])
            return self._batches.take_foreign_commit()

    def wait_delivered(self) -> None:
        """Return when the batch whose results are being delivered has delivered all of them; that is never long."""
        with self._mutex:
            pass

    @property
    def parked(self) -> int:
        """The number of parked requests."""
        return len(self._parked.requests)

    @property
    def has_queued(self) -> bool:
        """Whether requests wait for the writer thread."""
        return bool(self._queue)

    def on_change(self, call: Callable[[], None], *, foreign_only: bool = False) -> Callable[[], None]:
        """Call this after every commit, or only after commits of other processes; returns a function that stops it.

        It must not write.
        """
        with self._listeners_lock:
            self._foreign_listeners = (*self._foreign_listeners, call)
            if not foreign_only:
                self._batches.listeners = (*self._batches.listeners, call)
        self._start_listening()

        def stop() -> None:
            with self._listeners_lock:
                self._foreign_listeners = tuple(each for each in self._foreign_listeners if each is not call)
                self._batches.listeners = tuple(each for each in self._batches.listeners if each is not call)

        return stop

    def close(self) -> None:
        """Accept no more requests. Those that are queued or parked get StoreUnavailable."""
        self._check_not_writing()
        with self._mutex:
            self._closed = True
            for request in self._queue:
                self._parked.refuse(request)
            self._queue.clear()
            self._parked.close()
            self._thread_wakeup.notify()
        if self._thread is not None:
            self._thread.join()
        with self._write_lock:  # the active writer finishes first
            pass

    def _start_listening(self) -> None:
        """Called before a request may park or a listener is added: a store with other writers listens to them here."""

    def _submit(self, request: Request[Any], give_up_at: float | None = None) -> None:
        try:
            self._run_or_queue(request)
            if request.condition is not None:  # else it is done already
                self._await(request, request.condition, give_up_at)
        except BaseException:
            if request.condition is not None:
                self._abandon(request)
            raise

    def _run_or_queue(self, request: Request[Any]) -> None:
        if self._contended or self._queue or not self._write_lock.acquire(blocking=False):
            self._enqueue(request)
        else:
            try:
                self._check_open()
                self._batches.run([request])
            finally:
                self._write_lock.release()

    def _enqueue(self, request: Request[Any]) -> None:
        self._check_not_writing()
        with self._mutex:
            self._check_open()
            self._wake_thread()  # first: if no thread can be started, no request may stay in the queue
            request.state = RequestState.QUEUED
            request.condition = threading.Condition(self._mutex)
            self._queue.append(request)

    def _await(self, request: Request[Any], condition: threading.Condition, give_up_at: float | None) -> None:
        """Wait until the request is done. Only a parked request may time out: one that runs is done soon."""
        with self._mutex:
            while request.state is not RequestState.DONE:
                if request.state is not RequestState.PARKED or give_up_at is None:
                    condition.wait()
                    continue
                left_s = give_up_at - self.clock.monotonic()
                if left_s <= 0:
                    self._parked.requests.pop(request, None)
                    return
                self.clock.wait(condition, min(left_s, threading.TIMEOUT_MAX))

    def _abandon(self, request: Request[Any]) -> None:
        """The caller was interrupted and will not see the result: take the request out unless it is running."""
        with self._mutex:
            request.may_park = False  # if it is running now, it is not parked again
            self._parked.requests.pop(request, None)
            if request in self._queue:
                self._queue.remove(request)

    def _check_open(self) -> None:
        if self._closed:
            text, hint = self._closed_because
            raise StoreUnavailable(text, hint=hint, closed=True)

    def _is_writing(self) -> bool:
        return self._batches.lock_owner == threading.get_ident()

    def _check_not_writing(self) -> None:
        if self._is_writing():
            self._check_open()  # a child that was forked inside a write: it has nothing to wait for
            hint = "Use the open transaction; from a commit listener, write on another thread."
            raise StoreError("a write inside a write would wait for itself", hint=hint)

    # --- the writer thread -----------------------------------------------------------------------

    def _is_writer_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def _wake_thread(self) -> None:
        """Wake the writer thread, or start it. The mutex is held."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._serve, name="rota-writer", daemon=True)
            thread.start()
            self._thread = thread
        self._thread_wakeup.notify()

    def _serve(self) -> None:
        while True:
            with self._mutex:
                while self._held or not (self._closed or self._queue or self._parked.is_due()):
                    self.clock.wait(self._thread_wakeup, None if self._held else self._parked.until_due_s())
                if self._closed:
                    return
                self._contended = True  # else a caller that writes without a pause could starve this thread
            with self._write_lock:
                batch = self._take_queue()
                if batch or self._parked.requests:
                    self._batches.run(batch)

    def _take_queue(self) -> list[Request[Any]]:
        """Take the queued requests, up to the limit. An empty batch runs the parked requests only."""
        with self._mutex:
            batch = [self._queue.popleft() for _ in range(min(len(self._queue), BATCH_MAX))]
            for request in batch:
                request.state = RequestState.RUNNING
            # of callers that wait: what was posted together says nothing about others
            self._contended = self._held or sum(request.condition is not None for request in batch) > 1
            return batch

    # --- forks (forks.py) ------------------------------------------------------------------------

    def _hold_writers(self, give_up_at: float) -> bool:
        """Take the write lock before a fork; return whether it was free in time. Callers queue up meanwhile."""
        if not self._mutex.acquire(timeout=max(0.0, give_up_at - SystemClock.monotonic())):
            return False
        self._held = self._contended = True
        self._mutex.release()
        self._has_write_lock = self._write_lock.acquire(timeout=max(0.0, give_up_at - SystemClock.monotonic()))
        return self._has_write_lock

    def _release_writers(self) -> None:
        """Give back what `_hold_writers` took."""
        if not self._held:
            return
        if self._has_write_lock:
            self._write_lock.release()
        with self._mutex:
            self._held = self._contended = False
            self._thread_wakeup.notify()

    def _forget_writers(self) -> None:
        """In a forked child: forget the threads of the parent, their requests and the locks that they may hold."""
        self._mutex, self._listeners_lock = threading.Lock(), threading.Lock()
        self._thread_wakeup = threading.Condition(self._mutex)
        self._queue.clear()
        self._parked.forget(self._mutex)
        self._batches.forget(self._mutex)
        self._held = self._contended = False
        self._thread = None
        if self._batches.lock_owner is None:  # else the child is inside a write of its own, and releases it itself
            self._write_lock = threading.Lock()
