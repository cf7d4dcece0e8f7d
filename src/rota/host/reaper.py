"""The reaper: a small process that starts every command and leaves none of them behind.

Three tasks need a separate parent process with a single thread. It sets limits on itself, spawns and restores them
(see spawning.py) without another thread spawning in between. It is the *subreaper*: a process that a command leaves
behind becomes a child of the reaper, which finds it. And it detects that its client has died: the client's end of the
request socket closes when the client exits for any reason, including `kill -9`. Then the reaper acts on what it
started:

    on_loss = "kill"        every session is killed, with the orphans that escaped it (a fleet: no unsupervised work)
    on_loss = "continue"    every stopped session is continued and left alone (cores: no process stays stopped)

The life of a session, for a command that leaves a daemon behind:

    spawn   the leader starts in its own session: pid = process group = session      → started
    …       it starts a daemon: forked twice, own session; its parent exits, it becomes a child of the reaper
    exit    the leader exits and is *not* reaped yet: until then its pid cannot be reused,
            so a signal to its process group can only reach its process group
    kill    the group is killed; children of the reaper that belong to this session, or have its mark, are killed
    …       each exit may reveal grandchildren as new children: repeat until none is left
    reap    the leader is reaped and its exit is reported, with the usage of the whole session       → exit

Many commands take a millisecond. For a session that has its own report channel (see session.py), the reaper reports
the start only if the command still runs a moment later; otherwise start and exit are one report (→ ran), and the
reaper leaves the processors to the command meanwhile.

The module imports as little as possible: the process starts in about 40 ms and uses about 10 MB. It never blocks on
its client: reports that the client has not read are buffered, and the number of sessions bounds the buffer.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from rota.host.child_exits import ChildSignalFd, exited_child, reap, signal_group
from rota.host.frames import Frame, FrameWriter
from rota.host.lineage import MARK, Mark, OwnChildren, descendants_of, identity, mark_of_child, send_signal
from rota.host.request_loop import RequestLoop
from rota.host.spawning import WORKING_DIRECTORY, DecodedCommands, StepFailed, spawn, write_files
from rota.host.syscalls import become_subreaper

__all__ = ["Reaper", "main"]

KILL_ROUNDS_MAX = 200  # of KILL_ROUND_MS each: more are needed only if the kernel does not end a process
KILL_ROUND_MS = 50
GC_THRESHOLD = 50_000  # objects
START_REPORT_DELAY_MS = 2  # how long the start report of a session with its own channel waits while nothing happens
START_REPORT_DELAY_ROUNDS = 8  # and for how many rounds of the loop while something does
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXCPU)


class ChildSession:
    """A command that the reaper has started, and all its descendants."""

    __slots__ = ("cleanup", "id", "orphans", "pid", "reports", "start_report", "usage")

    def __init__(self, session_id: int, pid: int, cleanup: dict[str, Any], reports: FrameWriter) -> None:
        self.id, self.pid = session_id, pid
        self.reports = reports  # where its reports are sent
        self.start_report: dict[str, Any] | None = None  # until it is sent
        self.cleanup = cleanup  # files to write and folders to remove, of its control group
        self.orphans: set[int] = set()  # members that were killed after the leader had exited
        self.usage: dict[str, Any] | None = None  # of members that the reaper has reaped

    def send_start_report(self) -> None:
        """Report the start with a pidfd of the leader, unless it was reported."""
        report, self.start_report = self.start_report, None
        if report is not None:
            pidfd = _open_pidfd(self.pid)
            self.reports.put(report, () if pidfd is None else (pidfd,))

    def thaw(self) -> None:
        """Thaw its control group, so that frozen processes can exit or continue."""
        write_files(self.cleanup.get("thaw", ()))

    def kill(self) -> None:
        """Kill the leader's process group, and its control group if it has one."""
        if not self.cleanup:
            signal_group(self.pid, signal.SIGKILL)
            return
        write_files(self.cleanup.get("kill", ()))
        signal_group(self.pid, signal.SIGKILL)
        self.thaw()  # a frozen group of version 1 is killed only when it thaws

    def resume(self) -> None:
        """Continue all its processes."""
        self.thaw()
        signal_group(self.pid, signal.SIGCONT)

    def add_usage(self, usage: dict[str, Any]) -> None:
        """Add the usage of one member."""
        if self.usage is None:
            self.usage = {"user_s": 0.0, "system_s": 0.0, "rss_bytes_max": 0}
        self.usage["user_s"] += usage["user_s"]
        self.usage["system_s"] += usage["system_s"]
        self.usage["rss_bytes_max"] = max(self.usage["rss_bytes_max"], usage["rss_bytes_max"])


class Reaper:
    """Serves one client: starts its commands, signals them, and reports their starts and exits."""

    def __init__(self, requests: socket.socket, reports: socket.socket, client_pid: int, on_loss: str) -> None:
        self._child_exits = ChildSignalFd()
        self._loop = RequestLoop(
            requests,
            reports,
            self._child_exits,
            handle=self._handle,
            reap=self._reap,
            client_pidfd=_open_pidfd(client_pid),
        )
        self._reports = self._loop.reports
        self._children = OwnChildren()
        self._on_loss = on_loss
        self._identity = identity(os.getpid())
        self._mark = str(Mark(on_loss, self._identity, 0))[:-1]
        self._channels: dict[int | None, FrameWriter] = {}  # report channels; each buffers two reports at most
        self._sessions: dict[int, ChildSession] = {}  # by id
        self._leaders: dict[int, ChildSession] = {}  # by pid
        self._exited: dict[int, ChildSession] = {}  # leaders that have exited and are not reaped, by pid
        self._commands = DecodedCommands()
        self._delayed: list[list[Any]] = []  # [session whose start is not reported, remaining rounds]
        self._orphans: dict[int, ChildSession | None] = {}  # children we did not spawn; None: session unknown

    def run(self) -> None:
        """Serve until the client is gone, then kill or continue what it started."""
        try:
            while (events := self._loop.serve(START_REPORT_DELAY_MS if self._delayed else None)) is not None:
                if self._delayed:
                    self._send_start_reports(all_of_them=not events)
        finally:
            if self._on_loss == "continue":
                self._continue_all()
            else:
                self._kill_all()
            self._loop.flush(KILL_ROUND_MS)  # a client that closed regularly still reads; a dead one does not

    # --- requests --------------------------------------------------------------------------------

    def _handle(self, frame: Frame) -> None:
        request = frame.message
        if request["op"] == "spawn":
            self._spawn(frame)
            return
        if request["op"] == "channel":
            self._open_channel(frame)
            return
        session = self._sessions.get(request["id"])
        if session is None:
            return  # it has exited, and the report of that is on its way
        if request["op"] == "kill":
            session.kill()
        elif request["op"] == "signal":
            signal_group(session.pid, request["signal"])

    def _spawn(self, frame: Frame) -> None:
        request = self._commands.complete(frame.message)
        session_id = request["id"]
        request["env"][MARK] = f"{self._mark}{session_id}"
        reports = self._channels.get(request["channel"], self._reports)
        try:
            pid, in_force = spawn(request, frame)
        except StepFailed as failed:
            frame.close()
            reports.put({"what": "failed", "id": session_id, "step": failed.step, "errno": failed.number})
            return
        frame.close()  # before the report: the client may then wait for the command to close these descriptors
        session = ChildSession(session_id, pid, request["cleanup"], reports)
        self._sessions[session_id] = self._leaders[pid] = session
        session.start_report = {"what": "started", "id": session_id, "pid": pid, **in_force}
        if reports is self._reports:
            session.send_start_report()
        else:
            self._delayed.append([session, START_REPORT_DELAY_ROUNDS])

    def _send_start_reports(self, *, all_of_them: bool) -> None:
        """Report the starts that were delayed long enough, of sessions that still run."""
        for delayed in self._delayed:
            delayed[1] -= 1
            if all_of_them or not delayed[1]:
                delayed[0].send_start_report()
        self._delayed = [delayed for delayed in self._delayed if delayed[0].start_report is not None]

    def _open_channel(self, frame: Frame) -> None:
        """Add a report channel. If its descriptor got lost, its sessions are reported on the main socket."""
        for fd in frame.fds:
            channel = socket.socket(fileno=fd)
            channel.setblocking(False)
            self._channels[frame.message["id"]] = FrameWriter(channel)

    # --- exits -----------------------------------------------------------------------------------

    def _reap(self) -> None:
        while exited := self._newly_exited():
            for pid in exited:
                session = self._leaders.get(pid)
                if session is None:
                    self._reap_orphan(pid)
                else:
                    self._exited[pid] = session
                    session.kill()
            if self._exited:
                self._kill_orphans()
            if not self._leaders and not self._orphans:
                return  # no child is left

    def _newly_exited(self) -> list[int]:
        """Children that have exited and were not seen yet, at least one if there are any."""
        if not self._exited:
            pid = exited_child()
            return [] if pid is None else [pid]
        # an exited leader that is not reaped would always be found first, so look at each child by its pid
        return [pid for pid in self._children() if pid not in self._exited and exited_child(pid) is not None]

    def _kill_orphans(self) -> None:
        """Kill what exited leaders left behind, and reap the leaders that left nothing."""
        orphans = self._find_orphans()
        for pid, session in list(self._exited.items()):
            members = [orphan for orphan in orphans if self._orphans[orphan] is session]
            for orphan in members:
                _kill(orphan)
            session.orphans.update(members)
            if not members:
                self._reap_leader(pid, session)

    def _find_orphans(self) -> list[int]:
        """Our children that we did not spawn. The session of each is looked up once."""
        children = self._children()
        if len(children) <= len(self._leaders):
            return []  # all of them are leaders
        orphans = [pid for pid in children if pid not in self._leaders]
        for pid in orphans:
            if pid not in self._orphans:
                self._orphans[pid], is_left = self._session_of(pid)
                if is_left:
                    _kill(pid)  # the kernel's list of children may have missed it while its session ended
        return orphans

    def _session_of(self, orphan: int) -> tuple[ChildSession | None, bool]:
        """Return the session of an orphan, and whether it is left by one that is over."""
        with suppress(OSError):
            session = self._leaders.get(os.getsid(orphan))
            if session is not None:
                return session, False
        mark = mark_of_child(orphan)
        if mark is None or mark.reaper != self._identity:
            return None, False
        session = self._sessions.get(mark.session)
        return session, session is None

    def _reap_orphan(self, pid: int) -> None:
        session = self._orphans.pop(pid, None) or self._session_of(pid)[0]
        usage = reap(pid)
        if session is not None:
            session.add_usage(usage)

    def _reap_leader(self, pid: int, session: ChildSession) -> None:
        report = reap(pid)
        if session.usage is not None:
            session.add_usage(report)
            report |= session.usage
        del self._exited[pid], self._leaders[pid], self._sessions[session.id]
        report["what"], report["id"], report["orphans"] = "exit", session.id, len(session.orphans)
        if session.start_report is not None:  # one report for start and exit
            report = {**session.start_report, **report, "what": "ran"}
            session.start_report = None
        session.reports.put(report)

    # --- the end ---------------------------------------------------------------------------------

    def _continue_all(self) -> None:
        for session in self._sessions.values():
            session.resume()
        for pid in descendants_of(os.getpid()):
            send_signal(pid, signal.SIGCONT)

    def _kill_all(self) -> None:
        """Kill every session and every orphan, round after round, until no child is left."""
        folders = [folder for session in self._sessions.values() for folder in session.cleanup.get("remove", ())]
        for session in self._sessions.values():
            session.kill()
        for _round in range(KILL_ROUNDS_MAX):
            self._child_exits.clear()
            self._reap()
            living = [pid for pid in self._children() if pid not in self._exited]
            if not living and not self._exited:
                break
            for pid in living:
                _kill(pid)
            self._wait_for_child_exit()
        for folder in folders:
            _remove(folder)

    def _wait_for_child_exit(self) -> None:
        poll = select.poll()
        poll.register(self._child_exits.fileno(), select.POLLIN)
        poll.poll(KILL_ROUND_MS)


# --- calls that may fail because their target is gone ------------------------------------------------


def _open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when a process exits; None where the system does not allow it."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _kill(pid: int) -> None:
    send_signal(pid, signal.SIGKILL)


def _remove(folder: str) -> None:
    with suppress(OSError):
        os.rmdir(folder)


# --- the process -----------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """Run the reaper process. Arguments: REQUESTS_FD REPORTS_FD CLIENT_PID ON_LOSS."""
    client_pid, on_loss = int(arguments[2]), arguments[3]
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for ignored in _IGNORED:  # it ends when its client does, not by a signal
        signal.signal(ignored, signal.SIG_IGN)
    gc.freeze()  # loaded objects stay, and the loop creates no cycles worth collecting every millisecond
    gc.set_threshold(GC_THRESHOLD)
    become_subreaper()
    os.chdir(WORKING_DIRECTORY)
    requests, reports = (socket.socket(fileno=int(fd)) for fd in arguments[:2])
    for sock in (requests, reports):
        sock.setblocking(False)
        sock.set_inheritable(False)
    reaper = Reaper(requests, reports, client_pid, on_loss)
    if os.getppid() == client_pid:  # otherwise the client died before we could watch it, and its pid may be reused
        reaper.run()


if __name__ == "__main__":
    main(sys.argv[1:])
