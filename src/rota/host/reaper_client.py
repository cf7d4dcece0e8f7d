"""The client's side of the reaper: start commands and receive their exits.

`ReaperClient` starts one reaper process and talks to it over two socket pairs. Any thread may `start` a command: it
sends the request under a lock and returns; `spawn` also waits until the command runs. One thread listens for reports:
a start or an exit updates the session (which wakes the threads that wait for it), and an exit is then passed to
`on_exit`, on the listening thread. That callback may start the next command and must not wait for anything. A thread
that starts a command and does nothing but follow it can receive its reports directly (`follow`, see session.py);
`on_exit` is then called on that thread.

The two processes watch each other. If the client dies, its ends of the sockets close and the reaper ends every session.
If the reaper dies, the client reads an end of file: it then does what the reaper would have done, as far as possible
from outside (process groups by their pidfd, escaped processes by their mark), and reports the exit of every session as
lost. If both are killed at the same time, `kill_orphans` finds the rest at the next start by their mark, which names a
reaper that no longer exists.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from rota.clock import Clock, SystemClock
from rota.errors import CommandInvalid, HostError, HostUnsupported, LimitExceeded, ReaperLost
from rota.host.advisory import Advisory, explain_errno
from rota.host.cgroups import ControlGroup
from rota.host.command import Command, EncodedCommand, GroupJoin, SessionExit, spawn_failed
from rota.host.frames import FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame, encode, receive_all, send
from rota.host.lineage import KILL_ROUNDS_MAX, identity, marked_processes, send_signal
from rota.host.session import ReportChannels, Session
from rota.host.thread_settings import affinity_advisories, check_cores

__all__ = ["ReaperClient", "SpawnOptions", "python_command"]

LOSS_KILL_WAIT_MS = 2_000  # how long to wait for each killed leader to exit, when the reaper is gone

_NO_GROUP = GroupJoin()
_log = logging.getLogger("rota.host")


class SpawnOptions(TypedDict, total=False):
    """Options of one start beside the command itself."""

    stdin: int | None  # a descriptor of this process, which stays open here; None: /dev/null
    stdout: int | None
    stderr: int | None
    more_fds: dict[int, int]  # further descriptors: the number in the command, and the descriptor of this process
    group: ControlGroup | None  # the control group to run in
    more_env: dict[str, str]  # variables of this start alone
    tag: Any  # identifies the session in `on_exit`


class ReaperClient:
    """Starts commands and reports their exits. Use it as a context manager; closing it ends every session."""

    def __init__(
        self,
        *,
        on_loss: Literal["kill", "continue"] = "kill",
        clock: Clock | None = None,
        on_exit: Callable[[Session, SessionExit], None] | None = None,
    ) -> None:
        if sys.platform != "linux":
            raise HostUnsupported("commands need Linux: this system has no subreaper and no pidfd")
        self._clock = clock or SystemClock()
        self._on_exit = on_exit
        self._on_loss = on_loss
        self._owner_pid = os.getpid()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()  # of all below
        self._sessions: dict[int, Session] = {}
        self._commands: dict[int, Command] = {}  # of sessions that have not started
        self._closing = False
        self._lost = False
        self._sending = threading.Lock()
        self._channels = ReportChannels(self._announce_channel)
        # One socket for each direction: on a shared one, a read by the reaper would wake threads that wait for reports
        self._requests, requests = socket.socketpair()
        self._reports, reports = socket.socketpair()
        with requests, reports:
            try:
                self._process = _start_reaper([requests.fileno(), reports.fileno()], on_loss)
            except OSError as problem:
                self._requests.close()
                self._reports.close()
                raise HostError(f"the reaper process cannot be started: {problem}") from problem
        self.identity = identity(self._process.pid)
        self._listener = threading.Thread(target=self._listen, name="rota-reaper", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """The pid of the reaper process."""
        return self._process.pid

    @property
    def is_lost(self) -> bool:
        """Whether the reaper process has exited: create a new client."""
        return self._lost

    @property
    def sessions(self) -> list[Session]:
        """The sessions that run or are being started."""
        with self._lock:
            return list(self._sessions.values())

    def spawn(self, command: Command | EncodedCommand, **options: Unpack[SpawnOptions]) -> Session:
        """Start a command and wait until it runs. Raise SpawnFailed if it cannot be started."""
        if threading.current_thread() is self._listener:
            raise HostError(
                "on_exit must not wait for a command to start",
                hint="Use start instead of spawn: the thread of on_exit also receives the start report.",
            )
        session = self._start(command, _descriptors(options), options, reports_spawn_failure=False)
        session.wait_started()
        return session

    def start(self, command: Command | EncodedCommand, **options: Unpack[SpawnOptions]) -> Session:
        """Request the start of a command without waiting for it. If the start fails, `on_exit` gets the error.

        Errors that are known beforehand (no such program on the PATH, a closed descriptor) are raised immediately.
        """
        return self._start(command, _descriptors(options), options)

    def follow(
        self,
        command: Command | EncodedCommand,
        fds: dict[int, int],
        *,
        group: ControlGroup | None = None,
        more_env: dict[str, str] | None = None,
    ) -> Session:
        """Start a command whose reports the calling thread reads itself. `fds` are by their numbers in the command."""
        return self._start(command, fds, {"group": group, "more_env": more_env or {}}, followed=True)

    def _start(
        self,
        command: Command | EncodedCommand,
        fds: dict[int, int],
        options: SpawnOptions,
        *,
        followed: bool = False,
        reports_spawn_failure: bool = True,
    ) -> Session:
        encoded = command if isinstance(command, EncodedCommand) else EncodedCommand(command)
        group = options.get("group")
        join = group.join(self.pid) if group is not None else _NO_GROUP
        request = encoded.request(join, options.get("more_env") or {})
        if encoded.command.cores is not None:
            check_cores(encoded.command.cores)
        if len(fds) > FRAME_FDS_MAX:
            raise LimitExceeded("frame_fds_max", FRAME_FDS_MAX, len(fds), field="fds")
        session = self._create_session(join, options, followed=followed)
        session.reports_spawn_failure = reports_spawn_failure
        try:
            self._register(session, encoded.command)
            if group is not None:
                group.assign(session)
            self._send_spawn(session, request, fds)
        except BaseException:
            self._unregister(session)
            raise
        return session

    def _create_session(self, join: GroupJoin, options: SpawnOptions, *, followed: bool) -> Session:
        return Session(
            next(self._ids),
            self._clock,
            self._request,
            join.cleanup,
            tag=options.get("tag"),
            channel=self._channels.acquire() if followed else None,
            handle_report=self._handle_report,
        )

    def _unregister(self, session: Session) -> None:
        """Forget a session whose start was not requested."""
        with self._lock:
            self._sessions.pop(session.id, None)
            self._commands.pop(session.id, None)
        if session.channel is not None:
            self._channels.release(session.channel)

    def close(self) -> None:
        """End every session (or continue it, as `on_loss` says) and the reaper."""
        if os.getpid() != self._owner_pid:
            self._requests.close()  # this process is a fork: the reaper belongs to its parent
            self._reports.close()
            return
        with self._lock:
            first = not self._closing
            self._closing = True
        if first:
            with suppress(OSError):  # the reaper may have exited already
                self._requests.shutdown(socket.SHUT_WR)
        if threading.current_thread() is not self._listener:
            self._listener.join()

    def __enter__(self) -> ReaperClient:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # --- requests --------------------------------------------------------------------------------

    def _register(self, session: Session, command: Command) -> None:
        if os.getpid() != self._owner_pid:
            raise ReaperLost(
                "this process was forked, and the reaper belongs to its parent",
                hint="Create a ReaperClient after the fork.",
            )
        with self._lock:
            if self._lost or self._closing:
                raise ReaperLost("the reaper client is closed" if self._closing else "the reaper process has exited")
            self._sessions[session.id] = session
            self._commands[session.id] = command

    def _announce_channel(self, channel_id: int, fd: int) -> None:
        self._send({"op": "channel", "id": channel_id}, (fd,))

    def _send_spawn(self, session: Session, request: dict[str, Any], fds: dict[int, int]) -> None:
        request["id"], request["to"] = session.id, tuple(fds)
        request["channel"] = session.channel.id if session.channel is not None else None
        try:
            self._send(request, tuple(fds.values()))
        except ReaperLost:
            for target, fd in fds.items():
                _check_open(target, fd)
            raise

    def _send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        frame = encode(message, fds)
        if len(frame) > FRAME_BYTES_MAX:
            raise LimitExceeded("frame_bytes_max", FRAME_BYTES_MAX, len(frame), field="argv")
        try:
            with self._sending:
                send(self._requests, frame, fds)
        except OSError as gone:
            raise ReaperLost("the reaper process no longer accepts requests") from gone

    def _request(self, message: dict[str, Any]) -> None:
        """Send a request of a session. If the reaper is gone, so is the session, and nothing needs to be done."""
        with suppress(ReaperLost):
            self._send(message)

    # --- reports ---------------------------------------------------------------------------------

    def _listen(self) -> None:
        try:
            for frame in receive_all(self._reports):
                self._handle_report(frame)
        finally:
            self._on_reaper_exit()

    def _handle_report(self, frame: Frame) -> None:
        message = frame.message
        what, session_id = message["what"], message["id"]
        with self._lock:
            session = self._sessions.get(session_id) if what == "started" else self._sessions.pop(session_id, None)
            command = self._commands.pop(session_id, None)
        if session is None:  # the listener has just reported this session as lost
            frame.close()
        elif command is None:
            self._report_exit(session, _exit(session, message))
        elif what != "failed":  # started; or ran: then it has exited too
            session.advisories = tuple(_advisories(command, message))
            if what == "ran":
                self._report_exit(session, _exit(session, message))
            else:
                session.set_started(message["pid"], frame.fds[0] if frame.fds else None)
        else:
            error = spawn_failed(command, command.cwd or ".", message["step"], message["errno"])
            self._report_exit(session, SessionExit(session_id=session_id, pid=0, spawn_error=error))

    def _report_exit(self, session: Session, ended: SessionExit) -> None:
        session.set_ended(ended)
        if session.channel is not None and not ended.lost:
            self._channels.release(session.channel)
        if self._on_exit is not None and (ended.pid or session.reports_spawn_failure):
            try:
                self._on_exit(session, ended)
            except Exception:
                _log.exception("on_exit failed for session %s; later exits are still reported", session.id)

    def _on_reaper_exit(self) -> None:
        """The reaper has exited, after `close` or unexpectedly."""
        self._drain_channels()
        with self._lock:
            self._lost = True
            left = list(self._sessions.values())
            self._sessions.clear()
            self._commands.clear()
            expected = self._closing
        if not expected:
            self._clean_up_without_reaper(left)
        for session in left:
            self._report_exit(session, SessionExit(session_id=session.id, pid=session.pid, lost=True))
        self._process.wait()
        self._requests.close()
        self._reports.close()
        self._channels.close()

    def _drain_channels(self) -> None:
        """Handle the reports that the reaper sent on channels before it exited."""
        for session in self.sessions:
            while session.channel is not None and (frames := session.channel.receive(waits=False)):
                for frame in frames:
                    self._handle_report(frame)

    def _clean_up_without_reaper(self, left: list[Session]) -> None:
        _log.error("the reaper (pid %s) exited unexpectedly; %s sessions are reported as lost", self.pid, len(left))
        number = signal.SIGCONT if self._on_loss == "continue" else signal.SIGKILL
        for session in left:
            session.signal_without_reaper(number, LOSS_KILL_WAIT_MS)
        for _round in range(KILL_ROUNDS_MAX):
            found = [pid for pid, mark in marked_processes() if mark.reaper == self.identity]
            for pid in found:
                send_signal(pid, number)
            if not found or number == signal.SIGCONT:
                return


def _descriptors(options: SpawnOptions) -> dict[int, int]:
    """The descriptors of a command by their numbers in the command."""
    named = (options.get("stdin"), options.get("stdout"), options.get("stderr"))
    more = options.get("more_fds") or {}
    if any(target < len(named) for target in more):
        raise CommandInvalid("pass descriptors 0, 1 and 2 as stdin, stdout and stderr", field="fds")
    return {**{target: fd for target, fd in enumerate(named) if fd is not None}, **more}


def _check_open(target: int, fd: int) -> None:
    """Raise if a descriptor is not open: sending such a descriptor fails without saying which."""
    try:
        os.fstat(fd)
    except OSError as closed:
        raise CommandInvalid(f"descriptor {fd}, passed as {target}, is not open", field="fds") from closed


def _start_reaper(fds: list[int], on_loss: str) -> subprocess.Popen[bytes]:
    """Start the reaper with the standard library only: no site packages, environment or user settings."""
    arguments = [*map(str, fds), str(os.getpid()), on_loss]
    return subprocess.Popen(  # noqa: S603  # our own program
        [*python_command("rota.host.reaper", "-I", "-S", "-X", "utf8"), *arguments],
        pass_fds=fds,
        start_new_session=True,  # a Ctrl-C in the terminal is for the client only
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={},
        cwd="/",
    )


def python_command(module: str, *flags: str) -> list[str]:
    """The command line that runs a module's `main` with this Python and this installation of rota."""
    root = str(Path(__file__).parents[2])
    prefix = ["-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else []
    code = f"import sys; sys.path.append({root!r}); from {module} import main; main(sys.argv[1:])"
    return [sys.executable, *flags, *prefix, "-c", code]


def _exit(session: Session, message: dict[str, Any]) -> SessionExit:
    return SessionExit(
        session_id=session.id,
        pid=session.pid or message["pid"],  # the latter if no start was reported
        code=message["code"],
        signal=message["signal"],
        cpu_user_s=message["user_s"],
        cpu_system_s=message["system_s"],
        rss_bytes_max=message["rss_bytes_max"],
        orphans_killed=message["orphans"],
    )


def _advisories(command: Command, started: dict[str, Any]) -> Iterator[Advisory]:
    for what, number in started["unset"]:
        yield Advisory(what, explain_errno(number), str(command.scheduling) if what == "scheduling" else "")
    if command.cores is not None:
        yield from affinity_advisories(command.cores, frozenset(started["cores"]))
