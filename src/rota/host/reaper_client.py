"""The client's side of the minder: start commands, be told of their ends.

`Minder` starts one minder process and speaks with it over two socket pairs. Any thread may `start` a command: it sends
its order under a lock and goes on; `spawn` also waits until the command runs. One thread listens: a beginning or an
end is told to the session (who waits there wakes), and an end then to `on_exit`, on the listening thread. What is
called there may start the next command, and must not wait for anything. Who orders a command and then does nothing
but follow it can have its reports come directly (`follow`, see channels.py); then `on_exit` is on that thread.

The two watch each other. If the client dies, its ends of the sockets close and the minder ends every session. If the
minder dies, the client reads an end of file: it then does what the minder would have done, as well as it can from
outside (the groups by their descriptors, escaped ones by their mark), and tells every session's exit as lost. If both
are killed in the same instant nobody is left to act; `end_strays`, at the next start, finds the rest by their mark:
it names a minder that no longer lives.
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
from typing import Any, Literal, Protocol, TypedDict, Unpack

from rota.clock import Clock, SystemClock
from rota.errors import CommandInvalid, HostError, HostUnsupported, LimitExceeded, MinderLost
from rota.host.advisory import Advisory, reason
from rota.host.affinity import advise, check_cores
from rota.host.channels import Channels
from rota.host.command import Command, Exit, Joining, Recipe, spawn_failed
from rota.host.frames import FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame, Inbox, encode, send
from rota.host.lineage import identity
from rota.host.orphans import ROUNDS_MAX, marked, send_signal
from rota.host.session import Session

__all__ = ["Joinable", "Minder", "Ordered", "python_start"]

LOSS_PATIENCE_MS = 2_000  # for each killed leader to die, when the minder is gone

_NO_GROUP = Joining()
_log = logging.getLogger("rota.host")


class Joinable(Protocol):
    """A control group that a command can be started in."""

    def joining(self, minder_pid: int) -> Joining:
        """How the minder gets there and back."""
        ...

    def take(self, session: Session) -> None:
        """This session is now being started in it."""
        ...


class Ordered(TypedDict, total=False):
    """What belongs to a start beside the command itself."""

    stdin: int | None  # a descriptor of ours, which we keep; None: nothing comes in, what goes out is dropped
    stdout: int | None
    stderr: int | None
    more_fds: dict[int, int]  # further numbers in the command, and descriptors of ours
    group: Joinable | None  # the control group to run in
    more_env: dict[str, str]  # variables of this start alone
    tag: Any  # to find it again in `on_exit`


class Minder:
    """Starts commands and minds them. Use it as a context; closing it ends every session."""

    def __init__(
        self,
        *,
        on_loss: Literal["kill", "continue"] = "kill",
        clock: Clock | None = None,
        on_exit: Callable[[Session, Exit], None] | None = None,
    ) -> None:
        if sys.platform != "linux":
            raise HostUnsupported("commands are minded on Linux only: there is no subreaper here, and no pidfd")
        self._clock = clock or SystemClock()
        self._on_exit = on_exit
        self._on_loss = on_loss
        self._owner_pid = os.getpid()
        self._ids = itertools.count(1)
        self._lock = threading.Lock()  # of all below
        self._sessions: dict[int, Session] = {}
        self._commands: dict[int, Command] = {}  # of those that have not begun
        self._closing = False
        self._lost = False
        self._sending = threading.Lock()
        self._channels = Channels(self._announce)
        # One socket for each direction: on a shared one, the minder's reading would wake who waits for its reports
        self._orders, orders = socket.socketpair()
        self._reports, reports = socket.socketpair()
        with orders, reports:
            try:
                self._process = _start([orders.fileno(), reports.fileno()], on_loss)
            except OSError as problem:
                self._orders.close()
                self._reports.close()
                raise HostError(f"the minder cannot be started: {problem}") from problem
        self.identity = identity(self._process.pid)
        self._listener = threading.Thread(target=self._listen, name="rota-minder", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        """The minder process."""
        return self._process.pid

    @property
    def is_lost(self) -> bool:
        """Whether the minder process is gone: a new one is needed."""
        return self._lost

    @property
    def sessions(self) -> list[Session]:
        """What runs, or is being started."""
        with self._lock:
            return list(self._sessions.values())

    def spawn(self, command: Command | Recipe, **ordered: Unpack[Ordered]) -> Session:
        """Start a command and wait until it runs; SpawnFailed says why it does not."""
        if threading.current_thread() is self._listener:
            raise HostError(
                "on_exit may not wait for a command to run", hint="Use start: this thread hears the answer."
            )
        session = self._order(command, _wired(ordered), ordered, refusal_is_told=False)
        session.started()
        return session

    def start(self, command: Command | Recipe, **ordered: Unpack[Ordered]) -> Session:
        """Order a command to be started and do not wait for it. If the system refuses, its end is told, with why.

        What can be known beforehand (no such program on the PATH, a descriptor that is not open) is raised at once.
        """
        return self._order(command, _wired(ordered), ordered)

    def follow(
        self,
        command: Command | Recipe,
        fds: dict[int, int],
        *,
        group: Joinable | None = None,
        more_env: dict[str, str] | None = None,
    ) -> Session:
        """As `start`, but this thread takes in the reports itself. The descriptors are given by their numbers there."""
        return self._order(command, fds, {"group": group, "more_env": more_env or {}}, followed=True)

    def _order(
        self,
        command: Command | Recipe,
        fds: dict[int, int],
        ordered: Ordered,
        *,
        followed: bool = False,
        refusal_is_told: bool = True,
    ) -> Session:
        recipe = command if isinstance(command, Recipe) else Recipe(command)
        group = ordered.get("group")
        joining = group.joining(self.pid) if group is not None else _NO_GROUP
        wanted = recipe.order(joining, ordered.get("more_env") or {})
        if recipe.command.cores is not None:
            check_cores(recipe.command.cores)
        if len(fds) > FRAME_FDS_MAX:
            raise LimitExceeded("frame_fds_max", FRAME_FDS_MAX, len(fds), field="fds")
        session = self._session(joining, ordered, followed=followed)
        session.refusal_is_told = refusal_is_told
        try:
            self._expect(session, recipe.command)
            if group is not None:
                group.take(session)
            self._send_spawn(session, wanted, fds)
        except BaseException:
            self._forget(session)
            raise
        return session

    def _session(self, joining: Joining, ordered: Ordered, *, followed: bool) -> Session:
        return Session(
            next(self._ids),
            self._clock,
            self._ask,
            joining.at_end,
            tag=ordered.get("tag"),
            channel=self._channels.take() if followed else None,
            hear=self._hear,
        )

    def _forget(self, session: Session) -> None:
        """It was not ordered after all."""
        with self._lock:
            self._sessions.pop(session.id, None)
            self._commands.pop(session.id, None)
        if session.channel is not None:
            self._channels.give_back(session.channel)

    def close(self) -> None:
        """End every session (or let it go on, as `on_loss` says) and the minder."""
        if os.getpid() != self._owner_pid:
            self._orders.close()  # we are a fork: the minder is our parent's
            self._reports.close()
            return
        with self._lock:
            first = not self._closing
            self._closing = True
        if first:
            with suppress(OSError):  # the minder may be gone already
                self._orders.shutdown(socket.SHUT_WR)
        if threading.current_thread() is not self._listener:
            self._listener.join()

    def __enter__(self) -> Minder:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # --- asking ----------------------------------------------------------------------------------

    def _expect(self, session: Session, command: Command) -> None:
        if os.getpid() != self._owner_pid:
            raise MinderLost("this process is a fork, and the minder is its parent's", hint="Make a minder here.")
        with self._lock:
            if self._lost or self._closing:
                raise MinderLost("the minder is closed" if self._closing else "the minder is gone")
            self._sessions[session.id] = session
            self._commands[session.id] = command

    def _announce(self, channel_id: int, fd: int) -> None:
        self._send({"op": "channel", "id": channel_id}, (fd,))

    def _send_spawn(self, session: Session, wanted: dict[str, Any], fds: dict[int, int]) -> None:
        wanted["id"], wanted["to"] = session.id, tuple(fds)
        wanted["channel"] = session.channel.id if session.channel is not None else None
        try:
            self._send(wanted, tuple(fds.values()))
        except MinderLost:
            for target, fd in fds.items():
                _check_open(target, fd)
            raise

    def _send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        frame = encode(message, fds)
        if len(frame) > FRAME_BYTES_MAX:
            raise LimitExceeded("frame_bytes_max", FRAME_BYTES_MAX, len(frame), field="argv")
        try:
            with self._sending:
                send(self._orders, frame, fds)
        except OSError as gone:
            raise MinderLost("the minder does not listen any more") from gone

    def _ask(self, message: dict[str, Any]) -> None:
        """For a session: what it asks for is moot when the minder is gone, for the session then is too."""
        with suppress(MinderLost):
            self._send(message)

    # --- listening -------------------------------------------------------------------------------

    def _listen(self) -> None:
        inbox = Inbox(self._reports)
        try:
            while (frames := inbox.receive()) is not None:
                for frame in frames:
                    self._hear(frame)
        except OSError:
            pass  # as good as an end of file
        finally:
            inbox.close()
            self._end()

    def _hear(self, frame: Frame) -> None:
        message = frame.message
        what, session_id = message["what"], message["id"]
        with self._lock:
            session = self._sessions.get(session_id) if what == "started" else self._sessions.pop(session_id, None)
            command = self._commands.pop(session_id, None)
        if session is None:  # followed, and told as lost by the listener in this moment
            frame.close()
        elif command is None:
            self._tell(session, _exit(session, message))
        elif what != "failed":  # started, or ran: then it is over too
            session.advisories = tuple(_advisories(command, message))
            if what == "ran":
                self._tell(session, _exit(session, message))
            else:
                session.begin(message["pid"], frame.fds[0] if frame.fds else None)
        else:
            refused = spawn_failed(command, command.cwd or ".", message["step"], message["errno"])
            self._tell(session, Exit(session_id=session_id, pid=0, refused=refused))

    def _tell(self, session: Session, ended: Exit) -> None:
        session.finish(ended)
        if session.channel is not None and not ended.lost:
            self._channels.give_back(session.channel)
        if self._on_exit is not None and (ended.pid or session.refusal_is_told):
            try:
                self._on_exit(session, ended)
            except Exception:
                _log.exception("on_exit failed for session %s; the next ends are told all the same", session.id)

    def _end(self) -> None:
        """The minder has ended, in order or not."""
        self._hear_the_rest()
        with self._lock:
            self._lost = True
            left = list(self._sessions.values())
            self._sessions.clear()
            self._commands.clear()
            in_order = self._closing
        if not in_order:
            self._do_what_the_minder_would(left)
        for session in left:
            self._tell(session, Exit(session_id=session.id, pid=session.pid, lost=True))
        self._process.wait()
        self._orders.close()
        self._reports.close()
        self._channels.close()

    def _hear_the_rest(self) -> None:
        """What was said on channels before the minder ended, and not yet taken in."""
        for session in self.sessions:
            while session.channel is not None and (frames := session.channel.receive(waits=False)):
                for frame in frames:
                    self._hear(frame)

    def _do_what_the_minder_would(self, left: list[Session]) -> None:
        _log.error("the minder (pid %s) is gone; its %s sessions end as lost", self.pid, len(left))
        number = signal.SIGCONT if self._on_loss == "continue" else signal.SIGKILL
        for session in left:
            session.end_alone(number, LOSS_PATIENCE_MS)
        for _round in range(ROUNDS_MAX):
            found = [pid for pid, mark in marked() if mark.minder == self.identity]
            for pid in found:
                send_signal(pid, number)
            if not found or number == signal.SIGCONT:
                return


def _wired(ordered: Ordered) -> dict[int, int]:
    """The descriptors of a command by the numbers they get there."""
    named = (ordered.get("stdin"), ordered.get("stdout"), ordered.get("stderr"))
    more = ordered.get("more_fds") or {}
    if any(target < len(named) for target in more):
        raise CommandInvalid("descriptors 0, 1 and 2 are given by name", field="fds")
    return {**{target: fd for target, fd in enumerate(named) if fd is not None}, **more}


def _check_open(target: int, fd: int) -> None:
    """Sending a descriptor that is not open fails; this says which."""
    try:
        os.fstat(fd)
    except OSError as closed:
        raise CommandInvalid(f"descriptor {fd}, to be {target}, is not open", field="fds") from closed


def _start(fds: list[int], on_loss: str) -> subprocess.Popen[bytes]:
    """Start the minder with nothing but the standard library: no site packages, no environment, no user's settings."""
    arguments = [*map(str, fds), str(os.getpid()), on_loss]
    return subprocess.Popen(  # noqa: S603  # our own program
        [*python_start("rota.host.reaper", "-I", "-S", "-X", "utf8"), *arguments],
        pass_fds=fds,
        start_new_session=True,  # a Ctrl-C in our terminal is for us, not for it
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={},
        cwd="/",
    )


def python_start(module: str, *flags: str) -> list[str]:
    """The command line that runs a module's `main` with this Python, finding rota where we found it."""
    root = str(Path(__file__).parents[2])
    prefix = ["-X", f"pycache_prefix={sys.pycache_prefix}"] if sys.pycache_prefix else []
    code = f"import sys; sys.path.append({root!r}); from {module} import main; main(sys.argv[1:])"
    return [sys.executable, *flags, *prefix, "-c", code]


def _exit(session: Session, message: dict[str, Any]) -> Exit:
    return Exit(
        session_id=session.id,
        pid=session.pid or message["pid"],  # the latter if this is the first that is heard of it
        code=message["code"],
        signal=message["signal"],
        cpu_user_s=message["user_s"],
        cpu_system_s=message["system_s"],
        rss_bytes_max=message["rss_bytes_max"],
        strays=message["strays"],
    )


def _advisories(command: Command, started: dict[str, Any]) -> Iterator[Advisory]:
    for what, number in started["unset"]:
        yield Advisory(what, reason(number), str(command.scheduling) if what == "scheduling" else "")
    if command.cores is not None:
        yield from advise(command.cores, frozenset(started["cores"]))
