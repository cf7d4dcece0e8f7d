"""A handle on a command that runs: signal it, wait for it, end it.

A signal goes to the command's whole process group. Where the kernel can (Linux 6.9), we send it ourselves through the
descriptor that the minder gave us: that costs a microsecond, and it can only ever reach this group, for a descriptor,
unlike a number, is not given away again. Elsewhere the minder sends it, which is as safe and costs a round trip.

`terminate` is the ladder: TERM; the grace, measured by the caller's clock; KILL. A stopped command cannot act on
TERM, so it is continued; KILL needs no consent, and goes through the minder, because only the minder finds what
escaped.

A session that is *followed* has a channel of its own: the thread that ordered it takes in its reports itself
(in `started`, `take_in` and `wait`), and nobody has to wake it.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rota.clock import Clock, wait_until
from rota.errors import CommandInvalid, MinderLost, NotAllowed, NotFound
from rota.host.advisory import Advisory
from rota.host.channels import Channel
from rota.host.command import AtEnd, Exit
from rota.host.cpu_clocks import process_cpu_ns
from rota.host.frames import Frame

__all__ = ["TO_THE_GROUP", "Ended", "Session"]

TO_THE_GROUP = 1 << 2  # PIDFD_SIGNAL_PROCESS_GROUP
_SIGNALS = frozenset(signal.valid_signals())


class Ended(NamedTuple):
    """How a session ended, and which rung of the ladder ended it."""

    exit: Exit
    by: Literal["itself", "term", "kill"]


class Session:
    """A command that was ordered, and runs unless it was refused. Any thread may use it."""

    def __init__(
        self,
        session_id: int,
        clock: Clock,
        ask: Callable[[dict[str, Any]], None],
        at_end: AtEnd,
        *,
        tag: Any = None,
        channel: Channel | None = None,
        hear: Callable[[Frame], None] = lambda _frame: None,
    ) -> None:
        self.id = session_id
        self.tag = tag  # whatever the caller wants to find again in `on_exit`
        self.channel = channel  # where its reports come in, if it is followed; else the listener takes them in
        self.pid = 0  # until it runs
        self.refusal_is_told = True  # to `on_exit`; else whoever spawns it raises it
        self.advisories: tuple[Advisory, ...] = ()  # what was asked and is not in force
        self._clock = clock
        self._ask = ask
        self._at_end = at_end
        self._hear = hear
        self._ordered_by = threading.get_ident()
        self._lock = threading.Lock()  # of all below
        self._changed: threading.Condition | None = None  # made by the first who waits: mostly nobody does
        self._pidfd: int | None = None
        self._exit: Exit | None = None

    @property
    def exit(self) -> Exit | None:
        """How it ended; None while it runs."""
        return self._exit

    def started(self) -> None:
        """Wait until it runs and has its `pid`; raise why if it was refused."""
        if self._is_followed_here:
            while not self.pid and self._exit is None:
                self.take_in(waits=True)
        else:
            with self._changes() as changed:
                changed.wait_for(lambda: self.pid or self._exit is not None)
        if self._exit is not None and self._exit.refused is not None:
            raise self._exit.refused
        if not self.pid:
            raise MinderLost("the minder was lost while it was to start a command")

    def take_in(self, *, waits: bool = False) -> None:
        """Take in what has come on its channel. For the thread that ordered it."""
        assert self.channel is not None  # noqa: S101  # it is followed
        frames = self.channel.receive(waits=waits)
        for frame in frames or ():
            self._hear(frame)
        if frames is None:
            self._wait(None)  # the minder is gone: what became of this session the listener says

    @property
    def _is_followed_here(self) -> bool:
        return self.channel is not None and threading.get_ident() == self._ordered_by

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait for the end: how it ended, or None when the time has passed. Who follows it waits without a limit."""
        if self._is_followed_here:
            assert timeout_s is None  # noqa: S101  # nobody else would take in that it has ended
            while self._exit is None:
                self.take_in(waits=True)
            if self._exit.lost and self.channel is not None:
                self.channel.close()  # the minder's end of it is gone
            return self._exit
        return self._wait(timeout_s)

    def _wait(self, timeout_s: float | None) -> Exit | None:
        with self._changes() as changed:
            wait_until(self._clock, changed, lambda: self._exit is not None, timeout_s)
            return self._exit

    @contextmanager
    def _changes(self) -> Iterator[threading.Condition]:
        """The lock, held, and what to wait on there."""
        with self._lock:
            if self._changed is None:
                self._changed = threading.Condition(self._lock)
            yield self._changed

    def signal(self, number: int) -> bool:
        """Send a signal to its process group; False when it has ended."""
        if number not in _SIGNALS:
            raise CommandInvalid(f"{number!r} is not a signal", field="number")
        with self._lock:  # so that the descriptor is not closed, and its number used again, meanwhile
            if self._exit is not None:
                return False
            if self._pidfd is not None and _group_signals.possible:
                try:
                    signal.pidfd_send_signal(self._pidfd, number, None, TO_THE_GROUP)
                except ProcessLookupError:
                    return False  # dead, and the report of it is on its way
                except PermissionError as refused:
                    raise NotAllowed(f"process {self.pid} has become another user's", pid=self.pid) from refused
                except OSError as problem:
                    if problem.errno != errno.EINVAL:
                        raise
                    _group_signals.possible = False
                else:
                    return True
        self._ask({"op": "signal", "id": self.id, "signal": int(number)})
        return True

    def kill(self) -> None:
        """Kill everything of it, now. The exit follows when nothing of it is left."""
        self._ask({"op": "kill", "id": self.id})

    def terminate(self, grace_s: float) -> Ended:
        """Ask it to end; if it has not when the grace is over, kill it. Waits until nothing of it is left."""
        if self._exit is not None:
            return Ended(self._exit, "itself")
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        _write_all(self._at_end.get("thaw", ()))
        if (ended := self.wait(grace_s)) is not None:
            return Ended(ended, "term")
        self.kill()
        ended = self.wait()
        assert ended is not None  # noqa: S101  # without a timeout, wait ends with the session
        return Ended(ended, "kill")

    def cpu_ns(self) -> int:
        """Processor time that its leader has used so far; once it has ended, what all of it used."""
        self.started()
        if self._exit is None:
            with suppress(NotFound):  # it has just been buried, and the report of it is on its way
                return process_cpu_ns(self.pid)
        ended = self.wait()
        assert ended is not None  # noqa: S101  # without a timeout, wait ends with the session
        return round((ended.cpu_user_s + ended.cpu_system_s) * 1e9)

    # --- for the one who made it -----------------------------------------------------------------

    def begin(self, pid: int, pidfd: int | None) -> None:
        """It runs: wake who waits for that."""
        with self._lock:
            self.pid, self._pidfd = pid, pidfd
            self._wake()

    def finish(self, ended: Exit) -> None:
        """It has ended: wake who waits. What is heard of only now has its pid from here."""
        with self._lock:
            self.pid = ended.pid
            self._exit = ended
            if self._pidfd is not None:
                os.close(self._pidfd)
                self._pidfd = None
            self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.notify_all()

    def end_alone(self, number: int, patience_ms: int) -> None:
        """Without a minder: send this to its group ourselves, and wait a little for its leader's death if it kills."""
        with self._lock:
            if number == signal.SIGKILL:
                _write_all(self._at_end.get("kill", ()))
            if self._pidfd is not None:
                self._signal_alone(self._pidfd, number)
            _write_all(self._at_end.get("thaw", ()))
            if self._pidfd is not None and number == signal.SIGKILL:
                died = select.poll()
                died.register(self._pidfd, select.POLLIN)
                died.poll(patience_ms)

    def _signal_alone(self, pidfd: int, number: int) -> None:
        with suppress(OSError):
            signal.pidfd_send_signal(pidfd, 0)  # as long as the leader is there, its group is its own
            os.killpg(self.pid, number)


def _write_all(files: Iterable[tuple[str, str]]) -> None:
    for path, text in files:
        with suppress(OSError):
            Path(path).write_text(text)


class _GroupSignals:
    """Whether this kernel can signal a group through a descriptor; found out by trying once."""

    possible = True


_group_signals = _GroupSignals()
