"""A pool of warm Python processes for functions that must be isolated: killable, and able to crash alone.

A fresh interpreter costs tens of milliseconds and its imports hundreds. So one process, the *nursery*, imports once,
and forks workers, each in about a millisecond; a worker serves call after call. The one who calls speaks with the
worker directly, on the caller's own thread: it sends, and blocks reading until the answer comes or the line ends.

    caller ──CALL──▶ worker            idle workers are taken last in, first out: the warmest first
    caller ◀─NOTE── worker             a function may say things while it runs
    caller ◀─ASK─── worker             or ask, and wait for the ANSWER
    caller ◀─VALUE─ worker             and the worker is idle again

How a call ends is always an `Outcome`, never an exception of the pool. A worker that dies closes its line; the caller
reads the end and learns from the nursery how it died: `crashed`. A call past its time is killed by a watchdog (one
thread, waiting on the pool's clock), which looks the same to the caller: the line ends, and the outcome is
`timed_out`. In both cases a new worker is ordered at once; the order is only a message with the worker's end of a
fresh line in it, so the next caller can already write to a worker that is being born.

Workers of one pool share nothing, but calls in one worker do: what a function leaves in a module the next call finds
there. `calls_max` gives a worker a bounded life.
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
from rota.host.command import Command
from rota.host.fork_server import CONTROL_FD, here, main_module
from rota.host.frames import Frame, Inbox, encode, send
from rota.host.outcome import Outcome, epitaph, how, of_answer, of_death
from rota.host.reaper_client import Minder, python_start
from rota.host.session import Session
from rota.host.watchdog import Watchdog
from rota.host.worker_messages import TELL_BYTES_MAX, Kind, Line, pickled_call
from rota.model.checks import Checks
from rota.model.work import Limits

__all__ = ["Call", "WarmWorkers"]

EARLY_DEATHS_MAX = 5  # workers in a row that died before they were given anything to do, or nurseries that died

_checks = Checks("WarmWorkers", InvalidInput)
_log = logging.getLogger("rota.host")


class _Worker:
    """The pool's side of a worker."""

    __slots__ = ("calls", "doom", "end", "line", "number")

    def __init__(self, number: int, line: Line) -> None:
        self.number = number
        self.line = line
        self.calls = 0
        self.doom: Literal["timed_out", "killed"] | None = None  # why we killed it
        self.end: dict[str, Any] | None = None  # how it ended, as the nursery tells it


class Call:
    """A call that runs. Whoever started it calls `outcome`, once; any thread may `kill` it or `tell` it something."""

    def __init__(
        self,
        pool: WarmWorkers,
        number: int,
        worker: _Worker,
        on_note: Callable[[Any], None] | None,
        on_ask: Callable[[Any], Any] | None,
    ) -> None:
        self.number = number
        self._pool = pool
        self._worker = worker
        self._on_note = on_note
        self._on_ask = on_ask
        self._watched: int | None = None  # the watchdog's token
        self._is_over = False
        self._outcome: Outcome | None = None

    def outcome(self) -> Outcome:
        """Wait for the end. What the function notes or asks on the way goes to `on_note` and `on_ask`, on this thread.

        What `on_ask` raises is raised again where the function asked.
        """
        if self._outcome is None:
            answer = self._wait_for_answer()
            self._outcome = of_answer(*answer) if answer is not None else self._pool._died(self, self._worker)
        return self._outcome

    def _wait_for_answer(self) -> tuple[Kind, bytes] | None:
        try:
            while (message := self._worker.line.receive()) is not None and message[0] in (Kind.NOTE, Kind.ASK):
                if message[0] is Kind.NOTE:
                    self._hear(message[1])
                else:
                    self._answer(message[1])
        except BaseException:  # a Ctrl-C, or what on_note raised: nobody waits for the worker any more
            self._pool._abandon(self, self._worker)
            raise
        if message is not None:
            self._pool._release(self, self._worker)
        return message

    def kill(self) -> None:
        """End it now, whatever it does."""
        self._pool._doom(self, self._worker, "killed")

    def tell(self, value: Any) -> bool:
        """Say something to the function, which hears it when it asks (`worker.told`); False when it cannot be said."""
        payload = pickle.dumps((self.number, value))
        if len(payload) > TELL_BYTES_MAX:
            raise LimitExceeded("tell_bytes_max", TELL_BYTES_MAX, len(payload))
        with self._pool._changed:
            return not self._is_over and self._worker.line.send_now(Kind.TELL, payload)

    def _hear(self, payload: bytes) -> None:
        number, value = pickle.loads(payload)  # noqa: S301  # from our own worker
        if number == self.number and self._on_note is not None:  # else a thread of an earlier call speaks late
            self._on_note(value)

    def _answer(self, payload: bytes) -> None:
        number, question, value = pickle.loads(payload)  # noqa: S301  # from our own worker
        if number != self.number:
            return  # a thread of an earlier call: it has been told that its call is over
        try:
            answer = pickle.dumps((number, question, True, (self._on_ask or _nobody)(value)))
        except Exception as problem:  # it is the function that asked, so it is the function that hears it
            answer = _pickled_problem(number, question, problem)
        with suppress(OSError):  # it has died: the next read says so
            self._worker.line.send(Kind.ANSWER, answer)


def _nobody(_question: Any) -> None:
    raise HostError("nobody answers questions of this call", hint="Give the call an `on_ask`.")


def _pickled_problem(number: int, question: int, problem: Exception) -> bytes:
    try:
        return pickle.dumps((number, question, False, problem))
    except Exception:  # an exception's own reduce method may raise anything
        return pickle.dumps((number, question, False, HostError(f"{type(problem).__name__}: {problem}")))


class WarmWorkers:
    """A pool of warm worker processes. Any number of threads may call; each waits for an idle worker."""

    def __init__(
        self,
        minder: Minder,
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

        With `main`, functions of the program's main module can be called too; the module is run again for that, under
        another name, so what it does beyond defining things must stand under `if __name__ == "__main__"`.
        `env` is the whole environment of the workers; None is ours. `limits` hold for each worker. What cannot be
        loaded, or not within `load_timeout_s`, is told as WorkersUnavailable.
        """
        if here.is_nursery:
            raise WorkersUnavailable(
                "the main module makes a pool of workers while it is loaded for one",
                hint='Put what the program does under if __name__ == "__main__".',
            )
        self._minder = minder
        self._size = _checks.whole("size", size, 1)
        self._calls_max = calls_max if calls_max is None else _checks.whole("calls_max", calls_max, 1)
        self._clock = clock or SystemClock()
        self._command = _nursery_command(env, limits or Limits())
        self._stdout, self._stderr = stdout, stderr
        self._loading = {
            "op": "load",
            "path": [str(folder) for folder in sys.path],
            "argv": [str(argument) for argument in sys.argv],
            "preload": [str(module) for module in preload],
            "main": main_module() if main else None,
        }
        self._watchdog = Watchdog(self._clock, "rota-warm-watchdog")
        self._numbers = itertools.count(1)
        lock = threading.Lock()  # of all below
        self._freed = threading.Condition(lock)  # a worker is idle: one caller may go on
        self._changed = threading.Condition(lock)  # anything else
        self._workers: dict[int, _Worker] = {}
        self._idle: list[_Worker] = []  # the warmest last
        self._early_deaths = 0
        self._ready = False
        self._failed: str | None = None
        self._closing = False
        self._session: Session
        self._control: socket.socket
        with self._changed:
            self._start_nursery()
        self._listener = threading.Thread(target=self._listen, name="rota-warm", daemon=True)
        self._listener.start()
        self._wait_until_ready(load_timeout_s)

    @property
    def idle(self) -> int:
        """How many workers wait for work."""
        with self._changed:
            return len(self._idle)

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        on_note: Callable[[Any], None] | None = None,
        on_ask: Callable[[Any], Any] | None = None,
    ) -> Outcome:
        """Run a function in a worker and wait for how it ends."""
        return self.start(function, args, kwargs, timeout_s=timeout_s, on_note=on_note, on_ask=on_ask).outcome()

    def start(
        self,
        function: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        on_note: Callable[[Any], None] | None = None,
        on_ask: Callable[[Any], Any] | None = None,
    ) -> Call:
        """Give a function to an idle worker, waiting for one if need be. `timeout_s` counts from when it was given."""
        number = next(self._numbers)
        payload = pickled_call(number, function, args, kwargs)
        worker = self._take()
        call = Call(self, number, worker, on_note, on_ask)
        if timeout_s is not None:
            call._watched = self._watchdog.watch(timeout_s, lambda: self._doom(call, worker, "timed_out"))
        try:
            with suppress(OSError):  # if it has died, the line has ended, which is what `outcome` will read
                worker.line.send(Kind.CALL, payload)
        except BaseException:
            self._abandon(call, worker)
            raise
        return call

    def close(self) -> None:
        """End every worker; calls under way end as killed."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            for worker in self._workers.values():
                worker.doom = worker.doom or "killed"
            self._freed.notify_all()
        self._hang_up()
        self._session.kill()
        self._watchdog.close()
        self._listener.join()
        self._session.wait()

    def __enter__(self) -> WarmWorkers:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # --- workers, taken and given back -----------------------------------------------------------

    def _take(self) -> _Worker:
        with self._changed:
            while True:
                wait_until(self._clock, self._freed, lambda: bool(self._idle or self._failed or self._closing))
                if self._failed or self._closing:
                    raise WorkersUnavailable(self._failed or "the pool is closed")
                worker = self._idle.pop()
                if not worker.line.is_dead():
                    return worker
                worker.line.close()  # it died idle; its replacement is ordered when the nursery tells so

    def _release(self, call: Call, worker: _Worker) -> None:
        """The call is over and its worker, if it may live on, is idle."""
        with self._changed:
            self._end_call(call)
            worker.calls += 1
            self._early_deaths = 0
            if worker.doom or worker.end or self._closing or worker.calls == self._calls_max:
                worker.line.close()  # it ends when it reads that
            else:
                self._idle.append(worker)
                self._freed.notify()

    def _abandon(self, call: Call, worker: _Worker) -> None:
        """Nobody will read what the worker says: end it."""
        self._doom(call, worker, "killed")
        self._release(call, worker)

    def _died(self, call: Call, worker: _Worker) -> Outcome:
        """The line has ended: how did the worker?"""
        with self._changed:
            self._end_call(call)
            self._changed.wait_for(lambda: worker.end is not None)
            worker.line.close()
        return of_death(worker.doom or "crashed", worker.end or {})

    def _end_call(self, call: Call) -> None:
        call._is_over = True
        if call._watched is not None:
            self._watchdog.call_off(call._watched)

    def _doom(self, call: Call, worker: _Worker, why: Literal["timed_out", "killed"]) -> None:
        with self._changed:
            if not call._is_over and worker.doom is None:
                worker.doom = why
                self._order({"op": "kill", "worker": worker.number})

    # --- the nursery -----------------------------------------------------------------------------

    def _start_nursery(self) -> None:
        self._control, theirs = socket.socketpair()
        fds = {CONTROL_FD: theirs.fileno()}
        try:
            self._session = self._minder.spawn(
                self._command, stdout=self._stdout, stderr=self._stderr, more_fds=fds, tag=self
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        self._order(self._loading)
        for _ in range(self._size):
            self._order_worker()

    def _order(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        with suppress(OSError):  # if the nursery is gone, the listener reads the end of it
            send(self._control, encode(message, fds), fds)

    def _order_worker(self) -> None:
        ours, theirs = socket.socketpair()
        worker = _Worker(next(self._numbers), Line(ours))
        self._workers[worker.number] = worker
        self._idle.insert(0, worker)  # the coldest
        with theirs:
            self._order({"op": "fork", "worker": worker.number}, (theirs.fileno(),))
        self._freed.notify()

    def _wait_until_ready(self, timeout_s: float) -> None:
        with self._changed:
            wait_until(self._clock, self._changed, lambda: self._ready or self._failed is not None, timeout_s)
            failed = self._failed or (None if self._ready else f"loading took longer than {timeout_s:g} s")
        if failed is not None:
            self.close()
            raise WorkersUnavailable(failed)

    def _listen(self) -> None:
        while True:
            inbox = Inbox(self._control)
            try:
                while (frames := inbox.receive()) is not None:
                    for frame in frames:
                        self._hear(frame)
            except OSError:
                pass  # as good as an end of file
            if not self._nursery_ended():
                return

    def _hear(self, frame: Frame) -> None:
        message = frame.message
        with self._changed:
            if "ready" in message:
                self._ready = True
                if message["threads"] > 1:
                    _log.warning("what was preloaded has started threads; a fork may find their locks held for ever")
            elif "unready" in message:
                self._fail(f"a module could not be loaded:\n{message['unready']}")
            elif "unborn" in message:
                self._buried(message["unborn"], {"unborn": os.strerror(message["errno"])})
            else:
                self._buried(message["exit"], message)
            self._changed.notify_all()

    def _buried(self, number: int, end: dict[str, Any]) -> None:
        """A worker has ended: whoever waits for that may go on, and another takes its place."""
        worker = self._workers.pop(number)
        worker.end = end
        if worker in self._idle:
            self._idle.remove(worker)
            worker.line.close()
            self._count_early_death(f"workers die before they are given work: {epitaph(end)}")
        if self._failed is None and not self._closing:
            self._order_worker()

    def _nursery_ended(self) -> bool:
        """The nursery is gone, and its workers go with it. Whether another took its place."""
        self._session.kill()  # if it has only hung up, it is of no use either
        ended = self._session.wait()
        with self._changed:
            for worker in self._workers.values():
                worker.end = {"unborn": "its nursery is gone"}
            for worker in self._idle:
                worker.line.close()
            self._workers.clear()
            self._idle.clear()
            self._control.close()
            if not self._closing and self._failed is None:
                self._count_early_death(f"the process that makes workers has ended: {how(ended)}")
            if not self._closing and self._failed is None:
                try:
                    self._start_nursery()
                except RotaError as problem:
                    self._fail(str(problem))
            self._changed.notify_all()
            return not self._closing and self._failed is None

    def _count_early_death(self, why: str) -> None:
        self._early_deaths += 1
        if self._early_deaths >= EARLY_DEATHS_MAX:
            self._fail(why)

    def _fail(self, why: str) -> None:
        self._failed = self._failed or why
        self._freed.notify_all()
        self._hang_up()

    def _hang_up(self) -> None:
        """Let the nursery, and our listener, read an end of file."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)


def _nursery_command(env: Mapping[str, str] | None, limits: Limits) -> Command:
    whole = dict(os.environ if env is None else env)
    return Command(argv=tuple(python_start("rota.host.fork_server")), env=whole, limits=limits)
