"""A handle on a running command (signal it, wait for it, end it), and the channel on which its reports arrive.

A signal goes to the whole process group of the command. Where the kernel can (Linux 6.9), the client sends it through
the pidfd that the reaper passed on: that costs a microsecond and can only reach this group, because unlike a pid a
descriptor is never reused. Elsewhere the reaper sends it, which is equally safe and costs a round trip.

`terminate` escalates: SIGTERM, then a grace period on the caller's clock, then SIGKILL. A stopped command cannot act
on SIGTERM, so it is continued. SIGKILL goes through the reaper, because only the reaper finds what left the group.

Reports normally arrive on one socket, where one thread of the client listens. A thread that waits for a command is
woken by that listener, which the reaper has to wake first: two wake-ups, for the start and again for the exit of every
command. A thread that does nothing but follow one command can take a `ReportChannel` instead: the reaper sends the
reports of this session there, the thread reads them itself (in `wait_started`, `read_reports` and `wait`), and it can
poll the channel together with the output of the command.

A channel is created once and used by one session after another. It never holds more than the two reports of a session,
so writing to it never blocks. If the reaper dies, the channel reads an end of file; the listener then reports the exit
of the session, as for every other session.
"""

from __future__ import annotations

import errno
import itertools
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, NamedTuple

from rota.clock import Clock, wait_until
from rota.errors import CommandInvalid, NotAllowed, NotFound, ReaperLost
from rota.host.advisory import Advisory
from rota.host.command import GroupCleanup, SessionExit
from rota.host.frames import REPORT_BYTES, Frame, FrameReader
from rota.host.process_cpu import process_cpu_ns
from rota.host.spawning import write_files

__all__ = ["PIDFD_SIGNAL_PROCESS_GROUP", "ReportChannel", "ReportChannels", "Session", "Termination"]

PIDFD_SIGNAL_PROCESS_GROUP = 1 << 2
_SIGNALS = frozenset(signal.valid_signals())


class Termination(NamedTuple):
    """How a session ended, and which step of `terminate` ended it."""

    exit: SessionExit
    by: Literal["itself", "term", "kill"]


class Session:
    """A command that is being started or runs, and its exit. Any thread may use it."""

    def __init__(
        self,
        session_id: int,
        clock: Clock,
        send_request: Callable[[dict[str, Any]], None],
        cleanup: GroupCleanup,
        *,
        tag: Any = None,
        channel: ReportChannel | None = None,
        handle_report: Callable[[Frame], None] = lambda _frame: None,
    ) -> None:
        self.id = session_id
        self.tag = tag  # the caller's own value, to identify the session in `on_exit`
        self.channel = channel  # where its reports arrive; None: the listener reads them
        self.pid = 0  # until it runs
        self.reports_spawn_failure = True  # to `on_exit`; otherwise `spawn` raises it
        self.advisories: tuple[Advisory, ...] = ()  # what was requested and is not in force
        self._clock = clock
        self._send_request = send_request
        self._cleanup = cleanup
        self._handle_report = handle_report
        self._started_by = threading.get_ident()
        self._lock = threading.Lock()  # of all below
        self._changed: threading.Condition | None = None  # created by the first waiter; usually there is none
        self._pidfd: int | None = None
        self._exit: SessionExit | None = None

    @property
    def exit(self) -> SessionExit | None:
        """How it ended; None while it runs."""
        return self._exit

    def wait_started(self) -> None:
        """Wait until it runs and has its `pid`. Raise SpawnFailed if it could not be started."""
        if self._is_followed_here:
            while not self.pid and self._exit is None:
                self.read_reports(waits=True)
        else:
            with self._changes() as changed:
                changed.wait_for(lambda: self.pid or self._exit is not None)
        if self._exit is not None and self._exit.spawn_error is not None:
            raise self._exit.spawn_error
        if not self.pid:
            raise ReaperLost("the reaper process exited while it was starting a command")

    def read_reports(self, *, waits: bool = False) -> None:
        """Handle the reports that have arrived on the channel. Only the thread that started the session calls this."""
        assert self.channel is not None  # noqa: S101  # a session with a channel
        frames = self.channel.receive(waits=waits)
        for frame in frames or ():
            self._handle_report(frame)
        if frames is None:
            self._wait(None)  # the reaper is gone: the listener reports the exit of this session

    @property
    def _is_followed_here(self) -> bool:
        return self.channel is not None and threading.get_ident() == self._started_by

    def wait(self, timeout_s: float | None = None) -> SessionExit | None:
        """Wait for the exit and return it; None after the timeout. The thread that follows it waits without timeout."""
        if self._is_followed_here:
            assert timeout_s is None  # noqa: S101  # no other thread would read the exit report
            while self._exit is None:
                self.read_reports(waits=True)
            if self._exit.lost and self.channel is not None:
                self.channel.close()  # the reaper's end of it is gone
            return self._exit
        return self._wait(timeout_s)

    def _wait(self, timeout_s: float | None) -> SessionExit | None:
        with self._changes() as changed:
            wait_until(self._clock, changed, lambda: self._exit is not None, timeout_s)
            return self._exit

    @contextmanager
    def _changes(self) -> Iterator[threading.Condition]:
        """Hold the lock, and yield the condition to wait on."""
        with self._lock:
            if self._changed is None:
                self._changed = threading.Condition(self._lock)
            yield self._changed

    def signal(self, number: int) -> bool:
        """Send a signal to its process group; False when it has exited."""
        if number not in _SIGNALS:
            raise CommandInvalid(f"{number!r} is not a signal", field="number")
        with self._lock:  # so that the descriptor is not closed, and its number reused, meanwhile
            if self._exit is not None:
                return False
            if self._pidfd is not None and _group_signals.possible:
                try:
                    signal.pidfd_send_signal(self._pidfd, number, None, PIDFD_SIGNAL_PROCESS_GROUP)
                except ProcessLookupError:
                    return False  # it has exited, and the report of that is on its way
                except PermissionError as refused:
                    raise NotAllowed(f"process {self.pid} now runs as another user", pid=self.pid) from refused
                except OSError as problem:
                    if problem.errno != errno.EINVAL:
                        raise
                    _group_signals.possible = False
                else:
                    return True
        self._send_request({"op": "signal", "id": self.id, "signal": int(number)})
        return True

    def kill(self) -> None:
        """Kill all its processes. The exit is reported when none of them is left."""
        self._send_request({"op": "kill", "id": self.id})

    def terminate(self, grace_s: float) -> Termination:
        """Send SIGTERM, kill it if it has not exited after the grace period, and wait until no process is left."""
        if self._exit is not None:
            return Termination(self._exit, "itself")
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        write_files(self._cleanup.get("thaw", ()))
        if (ended := self.wait(grace_s)) is not None:
            return Termination(ended, "term")
        self.kill()
        ended = self.wait()
        assert ended is not None  # noqa: S101  # without a timeout, wait returns an exit
        return Termination(ended, "kill")

    def cpu_ns(self) -> int:
        """CPU time that its leader has used so far; after the exit, what all its processes used."""
        self.wait_started()
        if self._exit is None:
            with suppress(NotFound):  # it has just been reaped, and the report of that is on its way
                return process_cpu_ns(self.pid)
        ended = self.wait()
        assert ended is not None  # noqa: S101  # without a timeout, wait returns an exit
        return round((ended.cpu_user_s + ended.cpu_system_s) * 1e9)

    # --- for the reaper client -------------------------------------------------------------------

    def set_started(self, pid: int, pidfd: int | None) -> None:
        """Record that it runs, and wake the waiting threads."""
        with self._lock:
            self.pid, self._pidfd = pid, pidfd
            self._wake()

    def set_ended(self, ended: SessionExit) -> None:
        """Record its exit, and wake the waiting threads. It also sets the pid, if no start was reported."""
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

    def signal_without_reaper(self, number: int, patience_ms: int) -> None:
        """Send a signal to its group without the reaper. After SIGKILL, wait briefly for the leader to exit."""
        with self._lock:
            if number == signal.SIGKILL:
                write_files(self._cleanup.get("kill", ()))
            if self._pidfd is not None:
                self._signal_group(self._pidfd, number)
            write_files(self._cleanup.get("thaw", ()))
            if self._pidfd is not None and number == signal.SIGKILL:
                exited = select.poll()
                exited.register(self._pidfd, select.POLLIN)
                exited.poll(patience_ms)

    def _signal_group(self, pidfd: int, number: int) -> None:
        with suppress(OSError):
            signal.pidfd_send_signal(pidfd, 0)  # while the leader exists, its group id cannot be reused
            os.killpg(self.pid, number)


class _GroupSignals:
    """Whether this kernel can signal a process group through a pidfd; found out by the first attempt."""

    possible = True


_group_signals = _GroupSignals()


# --- channels --------------------------------------------------------------------------------------


class ReportChannel:
    """The client's end of a channel on which the reaper reports about one session."""

    def __init__(self, channel_id: int, sock: socket.socket) -> None:
        self.id = channel_id
        self._socket = sock
        self._reader = FrameReader(sock, REPORT_BYTES)
        self._reading = threading.Lock()  # the listener reads too, when the reaper has exited

    def fileno(self) -> int:
        """The descriptor to poll."""
        return self._socket.fileno()

    def receive(self, *, waits: bool) -> list[Frame] | None:
        """Return the reports that have arrived; None when the reaper is gone. With `waits`, wait for a report."""
        with self._reading:
            try:
                return self._reader.receive(0 if waits else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return []
            except OSError:
                return None

    def close(self) -> None:
        """Close this end."""
        self._reader.close()
        self._socket.close()


class ReportChannels:
    """The channels of one reaper. Free channels are kept for the next session."""

    def __init__(self, announce: Callable[[int, int], None]) -> None:
        self._announce = announce  # sends the reaper its end of a new channel
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._free: list[ReportChannel] = []
        self._is_closed = False

    def acquire(self) -> ReportChannel:
        """Return a free channel, or a new one."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return self._create()

    def release(self, channel: ReportChannel) -> None:
        """Keep the channel of a session whose last report has arrived."""
        with self._lock:
            if not self._is_closed:
                self._free.append(channel)
                return
        channel.close()

    def close(self) -> None:
        """Close the free channels, when the reaper is gone."""
        with self._lock:
            free, self._free = self._free, []
            self._is_closed = True
        for channel in free:
            channel.close()

    def _create(self) -> ReportChannel:
        ours, theirs = socket.socketpair()
        with theirs:
            channel = ReportChannel(next(self._ids), ours)
            try:
                self._announce(channel.id, theirs.fileno())
            except BaseException:
                channel.close()
                raise
        return channel
