"""One transaction for a batch of requests.

A request that raises undoes its own changes and no others. Almost every request that raises has changed nothing by
then, so requests run without savepoints, which cost a twentieth of the work. If one raises after it has changed rows,
the whole transaction is rolled back and the batch runs again, this time with a savepoint before each request.

The batch runs in three steps: requests that write, then parked requests if a write may have changed their result, then
new requests that may park. So a new request sees what its own batch wrote, and takes nothing from requests that waited
longer. Of equivalent parked requests only the first is tried when it finds nothing.

If the commit fails (a full disk, an I/O error), the whole batch is rolled back. Its requests then run again one by one,
without the parked ones, so that each gets its own true result. The parked ones are tried after them, and again every
`RETRY_S` while that fails. An engine without savepoints goes the same way where others return to a savepoint.

Results are delivered after the commit. The caller of this module holds the write lock throughout. Code that runs under
it (the work, `on_commit`, `on_rollback` and the listeners) may read but not write: a write would wait for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from types import FunctionType
from typing import Any, TypeVar

from rota.errors import StoreError, StoreReplaced, StoreUnavailable
from rota.fault_log import FaultLog
from rota.store.engine import RequestFailed, TransactionLost, WriteEngine
from rota.store.parking import ParkedRequests
from rota.store.protocol import Transaction, TransactionEffects
from rota.store.requests import Request, RequestState

__all__ = ["RETRY_S", "BatchRunner"]

RETRY_S = 1.0  # how long the parked requests wait after the store itself has failed
T = TypeVar("T")


class _UndoNeeded(Exception):
    """A request of a shared transaction raised after it had changed rows, and there is no savepoint to return to."""


class BatchRunner:
    """Runs, commits and finishes requests. The write lock is held."""

    def __init__(
        self,
        engine: WriteEngine,
        mutex: threading.Lock,
        parked: ParkedRequests,
        is_writer_thread: Callable[[], bool],
    ) -> None:
        self.lock_owner: int | None = None  # the thread that holds the write lock
        self.listeners: tuple[Callable[[], None], ...] = ()  # called after every commit; they must not write
        self._engine = engine
        self._mutex = mutex  # guards the parked requests and the state of every request
        self._parked = parked
        self._is_writer_thread = is_writer_thread
        self._faults = FaultLog(__name__, expected=())  # of what is called after transactions
        self._foreign_commit = False  # another process has written, and `take_foreign_commit` has not reported it yet

    def use(self, engine: WriteEngine) -> None:
        """Use another engine from now on."""
        self._engine = engine

    def forget(self, mutex: threading.Lock) -> None:
        """In a forked child: forget the writer of another thread, which the child does not have."""
        self._mutex = mutex
        if self.lock_owner != threading.get_ident():
            self.lock_owner = None

    # --- one request, after a failure ------------------------------------------------------------

    def recover_single(
        self, work: Callable[[Transaction], T], effects: TransactionEffects, problem: BaseException
    ) -> T:
        """Roll back a single write that failed and raise its error; if the transaction was lost, run it once more."""
        request = Request(work)
        request.effects = effects
        rolled_back = self._engine.rollback()
        if isinstance(problem, TransactionLost):
            self._reset([request], [])
            self._run_again(request)
        elif rolled_back:
            self._fail(request, problem)
        else:  # an interrupt that came after the commit: the changes are durable, so listeners are notified
            request.error, request.applied = problem, True
        self._notify([request])
        return request.result()

    # --- a batch ---------------------------------------------------------------------------------

    def run(self, batch: list[Request[Any]]) -> None:
        """Run a batch and the parked requests it wakes, commit, notify, and finish them."""
        self.lock_owner = threading.get_ident()
        try:
            done = self._commit_or_retry(batch)
            try:
                self._notify(done)
            finally:
                self._finish(done)
        finally:
            self.lock_owner = None

    def _commit_or_retry(self, batch: list[Request[Any]]) -> list[Request[Any]]:
        """Give every request of the batch a result: in one commit, or else one by one."""
        try:
            try:
                return self._commit(batch)
            except _UndoNeeded as undone:  # rolled back, and no request has a result yet
                if not self._engine.has_savepoints:
                    raise RequestFailed from undone
                return self._commit(batch, savepoints=True)
        except RequestFailed:  # it may be a parked one, which would fail every later transaction too
            with self._mutex:
                batch = [*batch, *self._parked.take_all()]
            done = [self._run_again(request) for request in batch]
        except TransactionLost:
            done = [self._run_again(request) for request in batch]
        except BaseException as error:  # it could not even begin, or the program is being stopped
            done = [self._fail(request, error) for request in batch]
        store_failed = all(request.error is not None for request in done)
        with self._mutex:  # what could have woken parked requests was lost with the batch: try them, after a pause
            self._parked.retry_all_in(RETRY_S if store_failed else 0.0)
        return done

    def _commit(
        self, batch: list[Request[Any]], *, with_parked: bool = True, savepoints: bool = False
    ) -> list[Request[Any]]:
        """Run one transaction; return its requests in the order they ran."""
        try_parked = bool(self._parked.requests) and with_parked
        shared = len(batch) != 1 or try_parked
        writers = [request for request in batch if not request.may_park] if shared else batch
        newcomers = [request for request in batch if request.may_park] if shared else []
        parked: list[Request[Any]] = []
        self._engine.begin(alone=not batch and len(self._parked.requests) == 1)
        try:
            for request in writers:
                self._run_one(request, shared=shared, savepoints=savepoints)
            if try_parked and self._wakes_parked(batch):
                with self._mutex:
                    parked = self._parked.take_all()
                self._run_parked(parked, savepoints=savepoints)
            for request in newcomers:
                self._run_one(request, shared=shared, savepoints=savepoints)
            if not shared and batch[0].error is not None:
                self._engine.rollback()
            else:
                self._engine.commit()
        except BaseException as problem:
            if self._engine.rollback() or isinstance(problem, TransactionLost):
                self._reset(batch, parked)
                raise
            if isinstance(problem, StoreReplaced):  # committed into a file that is no longer at its path
                for request in (*writers, *parked, *newcomers):
                    request.error = problem
            # an interrupt that came after the commit: every request gets the result that is in the file
            elif len(batch) == 1:
                batch[0].error = problem
        return [*writers, *parked, *newcomers]

    def _wakes_parked(self, batch: list[Request[Any]]) -> bool:
        return not batch or any(request.effects.wake_parked for request in batch) or self.has_foreign_commit()

    def has_foreign_commit(self) -> bool:
        """Whether another process has written since the last call; `take_foreign_commit` reports it too."""
        found = self._engine.has_foreign_commit()
        self._foreign_commit = self._foreign_commit or found
        return found

    def take_foreign_commit(self) -> bool:
        """Whether `has_foreign_commit` found one since the last call of this method."""
        found, self._foreign_commit = self._foreign_commit, False
        return found

    def _run_again(self, request: Request[Any]) -> Request[Any]:
        """Run one request of a failed batch in a transaction of its own."""
        try:
            self._commit([request], with_parked=False)
        except TransactionLost as failure:
            lost = StoreUnavailable(f"nothing was written: {failure}", hint=self._engine.lost_hint)
            return self._fail(request, lost)
        except BaseException as error:  # whatever it is, the other requests still need their results
            return self._fail(request, error)
        return request

    def _run_one(self, request: Request[Any], *, shared: bool, savepoints: bool) -> None:
        """Run one request. If it raises, the error is its result and its own changes are undone."""
        engine = self._engine
        request.value, request.error, request.effects = None, None, TransactionEffects()
        savepoints = savepoints and shared  # an unshared transaction needs none: undoing the request is a full rollback
        if savepoints:
            engine.savepoint()
        changes = engine.changes()
        try:
            request.value = request.run(engine.transaction(request.effects))
            request.applied = True
        except TransactionLost:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and not self._is_writer_thread():
                raise  # an interrupt belongs to the thread it came to, even if the work is another caller's
            if shared and not savepoints and engine.changes() != changes:
                raise _UndoNeeded from error
            self._fail(request, error)
            if savepoints:
                engine.rollback_to()
        if savepoints:
            engine.release()

    def _run_parked(self, parked: list[Request[Any]], *, savepoints: bool) -> None:
        """Try the parked requests, oldest first; skip those equivalent to one that found nothing."""
        found_nothing: dict[Hashable, float | None] = {}  # equivalence key → when to try again
        for request in parked:
            if request.withdrawn or not request.may_park:  # its caller has just gone: let it take nothing
                continue
            key = request.equivalence_key
            if key in found_nothing:
                request.effects.retry_at = found_nothing[key]
                continue
            self._run_one(request, shared=True, savepoints=savepoints)
            if request.should_park and key is not None and request.effects.applies_to_equivalents:
                found_nothing[key] = request.effects.retry_at

    def _fail(self, request: Request[Any], error: BaseException) -> Request[Any]:
        """Make an error the result of a request whose changes are undone."""
        error = self._engine.cause_of(error)
        if isinstance(error, StoreError):
            try:
                self._engine.check_files()
            except StoreReplaced as cause:  # a replaced file looks damaged
                error = cause
        self.call_each(request.effects.on_rollback)
        request.value, request.error, request.applied = None, error, False
        request.effects = TransactionEffects()
        return request

    def _reset(self, batch: list[Request[Any]], parked: list[Request[Any]]) -> None:
        """Put requests of a lost transaction back to where they were before it; the parked ones wait on."""
        for request in [*batch, *parked]:
            self.call_each(request.effects.on_rollback)
            request.value, request.error, request.applied = None, None, False
            request.effects = TransactionEffects()
        with self._mutex:
            for request in parked:
                self._parked.settle(request)

    # --- after the commit ------------------------------------------------------------------------

    def _notify(self, done: list[Request[Any]]) -> None:
        """Notify other processes, the listeners here, and the `on_commit` calls of the requests."""
        applied = [request for request in done if request.applied]
        if applied:
            self.call_each((self._engine.notify_listeners, *self.listeners))
        for request in applied:
            if request.effects.on_commit:
                self.call_each(request.effects.on_commit)

    def _finish(self, done: list[Request[Any]]) -> None:
        if len(done) == 1 and not done[0].may_park:  # the usual case
            (only,) = done
            if only.condition is None and only.on_done is None:
                only.state = RequestState.DONE  # it ran on its caller's thread: no thread has to be woken
                return
            with self._mutex:
                only.move_to(RequestState.DONE)
            return
        with self._mutex:
            served_waiter = any(
                request.may_park and request.effects.wake_parked and not request.should_park for request in done
            )
            for request in done:
                self._parked.settle(request)
            if served_waiter:  # it may have changed the result of parked requests that were tried before it
                self._parked.retry_all_in(0.0)

    def call_each(self, calls: Iterable[Callable[[], object]]) -> None:
        """Call each after a transaction. One that raises is logged and affects neither the others nor the result."""
        for call in calls:
            try:
                call()
            except Exception as problem:
                self._faults.failed(f"{call!r}, called after a transaction", problem, of=_code_of(call))
            else:
                if self._faults.is_failing:
                    self._faults.worked(_code_of(call))


def _code_of(call: Callable[[], object]) -> Hashable:
    """Return what a call is known by: every transaction makes partials and lambdas of its own."""
    function = call.func if isinstance(call, partial) else call
    return function.__code__ if isinstance(function, FunctionType) else function
