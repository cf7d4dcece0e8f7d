"""A pool of Python processes for functions that need isolation: a call can be killed, and may crash alone.

A new interpreter takes tens of milliseconds to start, and its imports hundreds. So one process, the *fork server*,
imports everything once and forks the workers, each in about a millisecond; a worker runs call after call. The caller
talks to the worker directly, on its own thread: it sends the call and reads until the result arrives or the connection
ends.

    caller ──CALL────▶ worker            the most recently used idle worker is taken first: its caches are warm
    caller ◀─REPORT─── worker            a function may report values while it runs
    caller ◀─REQUEST── worker            or send a request and wait for the RESPONSE
    caller ◀─VALUE──── worker            and the worker is idle again

A call always ends with a `CallOutcome`, never with an exception of the pool. A worker that dies closes its connection;
the caller reads the end of file and gets the exit status from the fork server: `crashed`. A call that exceeds its
timeout is killed by a watchdog thread on the pool's clock, which looks the same to the caller: the connection ends, and
the outcome is `timed_out`. In both cases a new worker is requested immediately. The request contains the worker's end
of a new connection, so the next caller can already write to a worker that has not been forked yet.

The workers of a pool share nothing, but the calls in one worker do: module state that a function changes is visible to
the next call. `calls_max` replaces a worker after a number of calls. A caller whose calls belong together (objects that
one call creates and the next one uses) reserves a worker and names it in each call.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal

from rota.clock import Clock, SystemClock, wait_until
from rota.errors import HostError, InvalidInput, LimitExceeded, RotaError, WorkersUnavailable
from rota.host.call_outcome import (
    CallOutcome,
    describe_exit,
    describe_worker_exit,
    outcome_of_result,
    outcome_of_worker_exit,
)
from rota.host.fork_server_client import ForkServerClient
from rota.host.main_module import locate_main, this_process
from rota.host.reaper_client import ReaperClient
from rota.host.watchdog import Watchdog
from rota.host.worker_messages import (
    NOTICE_BYTES_MAX,
    GarbledMessage,
    MessageKind,
    WorkerConnection,
    pickle_call,
    unpack_result,
)
from rota.model.checks import Checks
from rota.model.work import Limits

__all__ = ["Worker", "WorkerCall", "WorkerPool"]

EARLY_EXITS_MAX = 5  # exits in a row of workers that never ran a call, or of fork servers

_checks = Checks("WorkerPool", InvalidInput)
_log = logging.getLogger("rota.host")


class Worker:
    """The pool's side of a worker."""

    __slots__ = ("calls", "connection", "cpu_s", "exit", "is_reserved", "kill_reason", "number")

    def __init__(self, number: int, connection: WorkerConnection) -> None:
        self.number = number
        self.connection = connection
        self.calls = 0
        self.cpu_s = 0.0  # of calls that have returned
        self.is_reserved = False
        self.kill_reason: Literal["timed_out", "killed", "crashed"] | None = None  # why the pool killed it
        self.exit: dict[str, Any] | None = None  # how it ended, as the fork server reports it


class WorkerCall:
    """A running call. The thread that started it calls `outcome` once; any thread may `kill` or `notify` it."""

    def __init__(
        self,
        pool: WorkerPool,
        number: int,
        worker: Worker,
        on_report: Callable[[Any], None] | None,
        on_request: Callable[[Any], Any] | None,
    ) -> None:
        self.number = number
        self._pool = pool
        self._worker = worker
        self._on_report = on_report
        self._on_request = on_request
        self._timeout_token: int | None = None
        self._is_over = False
        self._outcome: CallOutcome | None = None

    def outcome(self) -> CallOutcome:
        """Wait for the end. Reports and requests of the function go to `on_report` and `on_request`, on this thread.

        An exception of `on_request` is raised in the function that sent the request.
        """
        if self._outcome is None:
            result = self._wait_for_result()
            if result is None:
                self._outcome = self._pool._wait_for_exit(self, self._worker)
            else:
                self._outcome = outcome_of_result(*result)
        return self._outcome

    def _wait_for_result(self) -> tuple[MessageKind, float, memoryview] | None:
        during = (MessageKind.REPORT, MessageKind.REQUEST)
        try:
            while (message := self._worker.connection.receive()) is not None and message[0] in during:
                if message[0] is MessageKind.REPORT:
                    self._handle_report(message[1])
                else:
                    self._respond(message[1])
            result = None if message is None else (message[0], *unpack_result(message[1]))
        except GarbledMessage:
            self._pool._kill(self, self._worker, "crashed")
            return None
        except BaseException:  # a Ctrl-C, or an exception of on_report: the caller no longer reads
            self._pool._abandon(self, self._worker)
            raise
        if result is not None:
            self._worker.cpu_s += result[1]
            self._pool._release(self, self._worker)
        return result

    def kill(self) -> None:
        """Kill the worker that runs the call."""
        self._pool._kill(self, self._worker, "killed")

    def notify(self, value: Any) -> bool:
        """Send a value to the function, which reads it with `worker.notices`. Return whether it was sent."""
        payload = pickle.dumps((self.number, value))
        if len(payload) > NOTICE_BYTES_MAX:
            raise LimitExceeded("notice_bytes_max", NOTICE_BYTES_MAX, len(payload))
        with self._pool._changed:
            return not self._is_over and self._worker.connection.try_send(MessageKind.NOTICE, payload)

    def _handle_report(self, payload: bytes) -> None:
        number, value = _unpickle(payload, 2)
        if number == self.number and self._on_report is not None:  # otherwise from a thread of an earlier call
            self._on_report(value)

    def _respond(self, payload: bytes) -> None:
        number, request_id, value = _unpickle(payload, 3)
        if number != self.number:
            return  # from a thread of an earlier call, which has failed because its call is over
        try:
            response = pickle.dumps((number, request_id, True, (self._on_request or _refuse_request)(value)))
        except Exception as problem:  # raised in the function that sent the request
            response = _pickle_failure(number, request_id, problem)
        with suppress(OSError):  # the worker has died: the next read finds out
            self._worker.connection.send(MessageKind.RESPONSE, response)


def _unpickle(payload: bytes, fields: int) -> tuple[Any, ...]:
    """Return the fields of a message of a worker."""
    try:
        message = pickle.loads(payload)  # noqa: S301  # from our own worker
    except Exception as problem:  # an object of the function may raise anything
        raise GarbledMessage(f"{type(problem).__name__}: {problem}") from problem
    if type(message) is not tuple or len(message) != fields:
        raise GarbledMessage(f"a message has {fields} fields")
    return message


def _refuse_request(_request: Any) -> None:
    raise HostError("this call does not accept requests", hint="Pass `on_request` when you start the call.")


def _pickle_failure(number: int, request_id: int, problem: Exception) -> bytes:
    try:
        return pickle.dumps((number, request_id, False, problem))
    except Exception:  # the reduce method of an exception may raise anything
        return pickle.dumps((number, request_id, False, HostError(f"{type(problem).__name__}: {problem}")))


class WorkerPool:
    """A pool of worker processes. Any number of threads may call; each waits for an idle worker."""

    def __init__(
        self,
        reaper: ReaperClient,
        size: int,
        *,
        preload: Sequence[str] = (),
        main: bool = False,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        calls_max: int | None = None,
        stdout: int | None = 1,
        stderr: int | None = 2,
        load_timeout_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        """Start `size` workers that have imported `preload`.

        Functions and classes of the program's main module can be sent too; the module is run again for that under
        another name, so its actions must be under `if __name__ == "__main__"`. A worker does so when it needs such an
        object; with `main`, the fork server does it once for all. `env` is the whole environment of the workers; None
        is the environment of this process, without rota's own credentials. `limits` apply to each worker. If a module
        cannot be imported, or not within `load_timeout_s`, this raises WorkersUnavailable.
        """
        if this_process.is_loading:
            raise WorkersUnavailable(
                "the main module creates a worker pool while another process imports it",
                hint='Put the actions of the program under if __name__ == "__main__".',
            )
        self._size = _checks.whole("size", size, 1)
        self._calls_max = calls_max if calls_max is None else _checks.whole("calls_max", calls_max, 1)
        self._clock = clock or SystemClock()
        self._fork_server = ForkServerClient(reaper, env=env, limits=limits or Limits(), stdout=stdout, stderr=stderr)
        self._load_request = {
            "op": "load",
            "path": [str(folder) for folder in sys.path],
            "argv": [str(argument) for argument in sys.argv],
            "preload": [str(module) for module in preload],
            "main": locate_main(),
            "loads_main": main,
        }
        self._watchdog = Watchdog(self._clock, "rota-pool-watchdog")
        self._numbers = itertools.count(1)
        lock = threading.Lock()  # of all below
        self._freed = threading.Condition(lock)  # a worker is idle: wakes one caller
        self._changed = threading.Condition(lock)  # anything else
        self._workers: dict[int, Worker] = {}
        self._idle: list[Worker] = []  # the most recently used last
        self._early_exits = 0
        self._ready = False
        self._failed: str | None = None
        self._closing = False
        with self._changed:
            self._start_fork_server()
        self._listener = threading.Thread(target=self._listen, name="rota-pool", daemon=True)
        self._listener.start()
        self._wait_until_ready(load_timeout_s)

    @property
    def idle(self) -> int:
        """The number of idle workers."""
        with self._changed:
            return len(self._idle)

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        on_report: Callable[[Any], None] | None = None,
        on_request: Callable[[Any], Any] | None = None,
    ) -> CallOutcome:
        """Run a function in a worker and wait for its outcome."""
        call = self.start(function, args, kwargs, timeout_s=timeout_s, on_report=on_report, on_request=on_request)
        return call.outcome()

    def start(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        on_report: Callable[[Any], None] | None = None,
        on_request: Callable[[Any], Any] | None = None,
        worker: Worker | None = None,
    ) -> WorkerCall:
        """Start a function in a reserved worker, or wait for an idle one. `timeout_s` counts from the start."""
        number = next(self._numbers)
        payload = pickle_call(number, function, args, kwargs)
        worker = worker or self._take()
        call = WorkerCall(self, number, worker, on_report, on_request)
        if timeout_s is not None:
            call._timeout_token = self._watchdog.watch(timeout_s, lambda: self._kill(call, worker, "timed_out"))
        try:
            with suppress(OSError):  # if the worker has died, `outcome` reads the end of the connection
                worker.connection.send(MessageKind.CALL, payload)
        except BaseException:
            self._abandon(call, worker)
            raise
        return call

    def reserve(self) -> Worker:
        """Wait for an idle worker and reserve it for calls that name it, which find what earlier ones left there."""
        worker = self._take()
        worker.is_reserved = True
        return worker

    def release(self, worker: Worker) -> None:
        """End a reserved worker that runs no call; a new one takes its place."""
        with self._changed:
            worker.connection.close()

    def close(self) -> None:
        """Kill every worker; running calls end as killed, or as crashed if the pool has failed."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            for worker in self._workers.values():
                worker.kill_reason = worker.kill_reason or ("crashed" if self._failed else "killed")
            self._freed.notify_all()
        self._fork_server.shut_down()
        self._fork_server.end()
        self._watchdog.close()
        self._listener.join()

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # --- workers ---------------------------------------------------------------------------------

    def _take(self) -> Worker:
        with self._changed:
            while True:
                wait_until(self._clock, self._freed, lambda: bool(self._idle or self._failed or self._closing))
                if self._failed or self._closing:
                    raise WorkersUnavailable(self._failed or "the pool is closed")
                worker = self._idle.pop()
                if not worker.connection.is_closed_by_peer():
                    return worker
                worker.connection.close()  # it died idle; it is replaced when the fork server reports that

    def _release(self, call: WorkerCall, worker: Worker) -> None:
        """End the call. Its worker becomes idle, unless it is to end."""
        with self._changed:
            self._end_call(call)
            worker.calls += 1
            self._early_exits = 0
            if worker.kill_reason or worker.exit or self._closing or worker.calls == self._calls_max:
                worker.connection.close()  # the worker exits when it reads the end of file
            elif not worker.is_reserved:
                self._idle.append(worker)
                self._freed.notify()

    def _abandon(self, call: WorkerCall, worker: Worker) -> None:
        """Kill a worker whose caller no longer reads."""
        self._kill(call, worker, "killed")
        self._release(call, worker)

    def _wait_for_exit(self, call: WorkerCall, worker: Worker) -> CallOutcome:
        """Wait for the exit status of a worker whose connection has ended."""
        with self._changed:
            self._end_call(call)
            self._changed.wait_for(lambda: worker.exit is not None)
            worker.connection.close()
        return outcome_of_worker_exit(worker.kill_reason or "crashed", worker.exit or {}, worker.cpu_s)

    def _end_call(self, call: WorkerCall) -> None:
        call._is_over = True
        if call._timeout_token is not None:
            self._watchdog.cancel(call._timeout_token)

    def _kill(self, call: WorkerCall, worker: Worker, reason: Literal["timed_out", "killed", "crashed"]) -> None:
        with self._changed:
            if not call._is_over and worker.kill_reason is None:
                worker.kill_reason = reason
                self._fork_server.send({"op": "kill", "worker": worker.number})

    # --- the fork server -------------------------------------------------------------------------

    def _start_fork_server(self) -> None:
        self._fork_server.start()
        self._fork_server.send(self._load_request)
        for _ in range(self._size):
            self._request_worker()

    def _request_worker(self) -> None:
        ours, theirs = socket.socketpair()
        worker = Worker(next(self._numbers), WorkerConnection(ours))
        self._workers[worker.number] = worker
        self._idle.insert(0, worker)  # taken last
        with theirs:
            self._fork_server.send({"op": "fork", "worker": worker.number}, (theirs.fileno(),))
        self._freed.notify()

    def _wait_until_ready(self, timeout_s: float) -> None:
        with self._changed:
            wait_until(self._clock, self._changed, lambda: self._ready or self._failed is not None, timeout_s)
            failed = self._failed or (None if self._ready else f"loading took longer than {timeout_s:g} s")
        if failed is not None:
            self.close()
            raise WorkersUnavailable(failed)

    def _listen(self) -> None:
        restarted = True
        while restarted:
            for report in self._fork_server.reports():
                self._handle_report(report)
            restarted = self._restart_fork_server()

    def _handle_report(self, message: dict[str, Any]) -> None:
        with self._changed:
            if "ready" in message:
                self._ready = True
                if message["threads"] > 1:
                    _log.warning("a preloaded module has started threads; a forked worker may find their locks held")
            elif "load_failed" in message:
                self._fail(f"a module could not be imported:\n{message['load_failed']}")
            elif "fork_failed" in message:
                self._replace_worker(message["fork_failed"], {"not_started": os.strerror(message["errno"])})
            else:
                self._replace_worker(message["exit"], message)
            self._changed.notify_all()

    def _replace_worker(self, number: int, end: dict[str, Any]) -> None:
        """Record how a worker ended, and request another one."""
        worker = self._workers.pop(number)
        worker.exit = end
        worker.connection.shut_down()  # a process that the worker started may have kept it open
        if worker in self._idle:
            self._idle.remove(worker)
            worker.connection.close()
            self._count_early_exit(f"workers exit before they run a call: {describe_worker_exit(end)}")
        if self._failed is None and not self._closing:
            self._request_worker()

    def _restart_fork_server(self) -> bool:
        """Start another fork server after one has ended, with all its workers. Return whether it was started."""
        ended = self._fork_server.end()
        with self._changed:
            for worker in self._workers.values():
                worker.exit = {"not_started": "its fork server is gone"}
            for worker in self._idle:
                worker.connection.close()
            self._workers.clear()
            self._idle.clear()
            self._fork_server.close()
            if not self._closing and self._failed is None:
                self._count_early_exit(f"the fork server has exited: {describe_exit(ended)}")
            if not self._closing and self._failed is None:
                try:
                    self._start_fork_server()
                except RotaError as problem:
                    self._fail(str(problem))
            self._changed.notify_all()
            return not self._closing and self._failed is None

    def _count_early_exit(self, description: str) -> None:
        self._early_exits += 1
        if self._early_exits >= EARLY_EXITS_MAX:
            self._fail(description)

    def _fail(self, description: str) -> None:
        self._failed = self._failed or description
        self._freed.notify_all()
        self._fork_server.shut_down()
