"""The minder: one small process that starts every command and outlives none of them.

Why a process of its own? Three things only a parent with a single thread can do well. It can put limits on itself,
spawn and take them off (see spawning.py) without another thread spawning in between. It can be the *subreaper*:
whatever a command leaves behind becomes the minder's child and is found. And it can notice that its client died: the
client's end of the orders' socket closes when the client is gone, however it went, `kill -9` included. Then the
minder ends what it started:

    on_loss = "kill"        every session is killed, escaped orphans too (a fleet: nobody works on unwatched)
    on_loss = "continue"    every stopped session is continued and left alone (cores: nobody stays stopped for ever)

The life of a session, with a command that leaves a daemon behind:

    spawn   the leader starts in a session of its own: pid = process group = session      → started
    …       it starts a daemon: forked twice, own session; its parent dies, it becomes the minder's child
    exit    the leader dies and is *not* waited for yet: as long as it is not, its number cannot be given away,
            so killing "its group" can only mean its group
    sweep   the group is killed; among the minder's children those of this session, or with its mark, are killed
    …       each death may make grandchildren visible as new children: sweep again, until none is left
    bury    now the leader is waited for and the exit is told, with all that the session used       → exit

Many commands are over in a millisecond. To whoever follows one on a channel of its own (see channels.py) the minder
says the beginning only when the command still runs a moment later; else beginning and end are one report (→ ran), and
the command had the processors to itself meanwhile.

It imports as little as it can: it starts in some 40 ms and holds about 10 MB. It never waits for anybody: what its
client does not read yet is kept, and the number of sessions bounds how much that can be.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from rota.host.child_exits import BlockedBell, bury, dead_child, kill_group
from rota.host.frames import Frame, Inbox, Outbox
from rota.host.lineage import MARK, Mark, OwnChildren, descendants_of, identity, mark_of
from rota.host.spawning import HOME, Recipes, StepFailed, spawn, write
from rota.host.syscalls import become_subreaper

__all__ = ["Minder", "main"]

ENDING_ROUNDS_MAX = 200  # of ENDING_ROUND_MS each: longer only if the kernel itself does not let go of a process
ENDING_ROUND_MS = 50
COLLECT_AFTER = 50_000  # objects
BEGINNING_HELD_MS = 2  # how long the beginning of a followed session is not said if nothing happens
BEGINNING_HELD_TURNS = 8  # and for how many turns if something does
_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXCPU)


class Session:
    """A command that was started, and all that came from it."""

    __slots__ = ("at_end", "beginning", "id", "outbox", "pid", "strays", "usage")

    def __init__(self, session_id: int, pid: int, at_end: dict[str, Any], outbox: Outbox) -> None:
        self.id, self.pid = session_id, pid
        self.outbox = outbox  # where its reports go
        self.beginning: dict[str, Any] | None = None  # the report of it, as long as it was not said
        self.at_end = at_end  # files to write and folders to remove, of its control group
        self.strays: set[int] = set()  # members that had to be killed after the leader
        self.usage: dict[str, Any] | None = None  # of members we buried ourselves

    def say_beginning(self) -> None:
        """Report that it runs, with a descriptor for it; once."""
        beginning, self.beginning = self.beginning, None
        if beginning is not None:
            pidfd = _watch(self.pid)
            self.outbox.put(beginning, () if pidfd is None else (pidfd,))

    def thaw(self) -> None:
        """Let a frozen control group run, so that it can die or go on."""
        _write_all(self.at_end.get("thaw", ()))

    def kill(self) -> None:
        """Kill the leader's group, and its control group where there is one."""
        if not self.at_end:
            kill_group(self.pid, signal.SIGKILL)
            return
        _write_all(self.at_end.get("kill", ()))
        kill_group(self.pid, signal.SIGKILL)
        self.thaw()  # a frozen group of version 1 dies only when it thaws

    def resume(self) -> None:
        """Let everything of it run."""
        self.thaw()
        kill_group(self.pid, signal.SIGCONT)

    def add_usage(self, usage: dict[str, Any]) -> None:
        """Count what a member used."""
        if self.usage is None:
            self.usage = {"user_s": 0.0, "system_s": 0.0, "rss_bytes_max": 0}
        self.usage["user_s"] += usage["user_s"]
        self.usage["system_s"] += usage["system_s"]
        self.usage["rss_bytes_max"] = max(self.usage["rss_bytes_max"], usage["rss_bytes_max"])


class Minder:
    """The minder's loop: orders in, deaths in, reports out."""

    def __init__(self, orders: socket.socket, reports: socket.socket, client_pid: int, on_loss: str) -> None:
        self._orders, self._reports = orders, reports
        self._inbox, self._outbox = Inbox(orders), Outbox(reports)
        self._bell = BlockedBell()
        self._children = OwnChildren()
        self._on_loss = on_loss
        self._identity = identity(os.getpid())
        self._mark = str(Mark(on_loss, self._identity, 0))[:-1]
        self._channels: dict[int | None, Outbox] = {}  # lines of their own; none ever holds more than two reports
        self._sessions: dict[int, Session] = {}  # by id
        self._leaders: dict[int, Session] = {}  # by pid
        self._dead: dict[int, Session] = {}  # leaders that have died and are not buried, by pid
        self._recipes = Recipes()
        self._held: list[list[Any]] = []  # [session whose beginning is not said yet, for how many more turns]
        self._adopted: dict[int, Session | None] = {}  # orphans that became our children; None: whose, nobody can say
        self._poll = select.poll()
        self._client = _watch(client_pid)
        self._orders_fd, self._bell_fd = orders.fileno(), self._bell.fileno()
        for fd in (self._orders_fd, self._bell_fd, self._client):
            if fd is not None:
                self._poll.register(fd, select.POLLIN)

    def run(self) -> None:
        """Serve until the client is gone, then end what it started."""
        try:
            while self._serve():
                pass
        finally:
            if self._on_loss == "continue":
                self._continue_all()
            else:
                self._kill_all()
            self._say_the_rest()

    def _serve(self) -> bool:
        """One turn of the loop; whether there is a client left to serve."""
        listening = True
        events = self._poll.poll(BEGINNING_HELD_MS if self._held else None)
        for fd, _events in events:
            if fd == self._client:
                return False
            if fd == self._bell_fd:
                self._bell.hush()
                self._reap()
            elif fd == self._orders_fd:
                listening = self._listen()
            else:  # there is room for reports again
                self._outbox.flush()
                self._poll.unregister(fd)
        if self._held:
            self._say_beginnings(all_of_them=not events)
        if self._outbox:  # what did not fit goes when there is room
            self._poll.register(self._reports, select.POLLOUT)
        return listening

    def _listen(self) -> bool:
        try:
            frames = self._inbox.receive()
        except ConnectionError:
            return False
        for frame in frames or ():
            self._obey(frame)
        return frames is not None

    # --- orders ----------------------------------------------------------------------------------

    def _obey(self, frame: Frame) -> None:
        order = frame.message
        if order["op"] == "spawn":
            self._spawn(frame)
            return
        if order["op"] == "channel":
            self._open_channel(frame)
            return
        session = self._sessions.get(order["id"])
        if session is None:
            return  # it has ended, and the report of that is on its way
        if order["op"] == "kill":
            session.kill()
        elif order["op"] == "signal":
            kill_group(session.pid, order["signal"])

    def _spawn(self, frame: Frame) -> None:
        order = self._recipes.whole(frame.message)
        session_id = order["id"]
        order["env"][MARK] = f"{self._mark}{session_id}"
        outbox = self._channels.get(order["channel"], self._outbox)
        try:
            pid, in_force = spawn(order, frame)
        except StepFailed as failed:
            frame.close()
            outbox.put({"what": "failed", "id": session_id, "step": failed.step, "errno": failed.number})
            return
        frame.close()  # before the answer: who hears that a command has started may wait for it to close them
        session = self._sessions[session_id] = self._leaders[pid] = Session(session_id, pid, order["at_end"], outbox)
        session.beginning = {"what": "started", "id": session_id, "pid": pid, **in_force}
        if outbox is self._outbox:
            session.say_beginning()
        else:
            self._held.append([session, BEGINNING_HELD_TURNS])

    def _say_beginnings(self, *, all_of_them: bool) -> None:
        """Say the beginnings that were held long enough, of sessions that still run."""
        for held in self._held:
            held[1] -= 1
            if all_of_them or not held[1]:
                held[0].say_beginning()
        self._held = [held for held in self._held if held[0].beginning is not None]

    def _open_channel(self, frame: Frame) -> None:
        """The client follows some sessions on a line of its own. If it did not arrive, ours serves them too."""
        for fd in frame.fds:
            line = socket.socket(fileno=fd)
            line.setblocking(False)
            self._channels[frame.message["id"]] = Outbox(line)

    # --- deaths ----------------------------------------------------------------------------------

    def _reap(self) -> None:
        while dead := self._newly_dead():
            for pid in dead:
                session = self._leaders.get(pid)
                if session is None:
                    self._bury_orphan(pid)
                else:
                    self._dead[pid] = session
                    session.kill()
            if self._dead:
                self._sweep()
            if not self._leaders and not self._adopted:
                return  # the sweep has seen that nobody else is there

    def _newly_dead(self) -> list[int]:
        """Some who died and were not seen yet; none when there are no more."""
        if not self._dead:
            pid = dead_child()
            return [] if pid is None else [pid]
        # a dead leader that is not buried would always be the first answer, so ask for each child by its number
        return [pid for pid in self._children() if pid not in self._dead and dead_child(pid) is not None]

    def _sweep(self) -> None:
        """Kill what dead leaders left behind, and bury those leaders that left nothing."""
        left = self._adopt()
        for pid, session in list(self._dead.items()):
            members = [orphan for orphan in left if self._adopted[orphan] is session]
            for orphan in members:
                _kill(orphan)
            session.strays.update(members)
            if not members:
                self._bury_leader(pid, session)

    def _adopt(self) -> list[int]:
        """Our children that we did not spawn. Each is asked once whose it is."""
        children = self._children()
        if len(children) <= len(self._leaders):
            return []  # we know them all
        orphans = [pid for pid in children if pid not in self._leaders]
        for pid in orphans:
            if pid not in self._adopted:
                self._adopted[pid] = self._whose(pid)
                if self._adopted[pid] is None and self._has_our_mark(pid):
                    _kill(pid)  # it outlived its session: the kernel's list of children may miss one that moves
        return orphans

    def _whose(self, orphan: int) -> Session | None:
        try:
            session = self._leaders.get(os.getsid(orphan))
        except OSError:
            session = None
        if session is not None:
            return session
        mark = mark_of(orphan)
        return self._sessions.get(mark.session) if mark is not None and mark.minder == self._identity else None

    def _has_our_mark(self, orphan: int) -> bool:
        mark = mark_of(orphan)
        return mark is not None and mark.minder == self._identity

    def _bury_orphan(self, pid: int) -> None:
        session = self._adopted.pop(pid, None) or self._whose(pid)
        usage = bury(pid)
        if session is not None:
            session.add_usage(usage)

    def _bury_leader(self, pid: int, session: Session) -> None:
        report = bury(pid)
        if session.usage is not None:
            session.add_usage(report)
            report |= session.usage
        del self._dead[pid], self._leaders[pid], self._sessions[session.id]
        report["what"], report["id"], report["strays"] = "exit", session.id, len(session.strays)
        if session.beginning is not None:  # nobody was told that it runs
            report = {**session.beginning, **report, "what": "ran"}
            session.beginning = None
        session.outbox.put(report)

    # --- the end ---------------------------------------------------------------------------------

    def _continue_all(self) -> None:
        for session in self._sessions.values():
            session.resume()
        for pid in descendants_of(os.getpid()):
            _send(pid, signal.SIGCONT)

    def _kill_all(self) -> None:
        """Kill every session and every orphan, round after round, until no child is left."""
        folders = [folder for session in self._sessions.values() for folder in session.at_end.get("remove", ())]
        for session in self._sessions.values():
            session.kill()
        for _round in range(ENDING_ROUNDS_MAX):
            self._bell.hush()
            self._reap()
            living = [pid for pid in self._children() if pid not in self._dead]
            if not living and not self._dead:
                break
            for pid in living:
                _kill(pid)
            self._wait_for_the_bell()
        for folder in folders:
            _remove(folder)

    def _wait_for_the_bell(self) -> None:
        bell = select.poll()
        bell.register(self._bell.fileno(), select.POLLIN)
        bell.poll(ENDING_ROUND_MS)

    def _say_the_rest(self) -> None:
        """A client that closed in order still reads; one that died does not, and we do not wait for it."""
        room = select.poll()
        room.register(self._reports, select.POLLOUT)
        while self._outbox and room.poll(ENDING_ROUND_MS):
            self._outbox.flush()
        self._outbox.close()
        self._inbox.close()


# --- small acts that may fail because what they are for is gone ------------------------------------


def _watch(pid: int) -> int | None:
    """A descriptor that says when a process ends; None where the system does not allow it."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _send(pid: int, signal_number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal_number)


def _kill(pid: int) -> None:
    _send(pid, signal.SIGKILL)


def _write_all(files: Iterable[list[str]]) -> None:
    for path, text in files:
        with suppress(OSError):
            write(path, text)


def _remove(folder: str) -> None:
    with suppress(OSError):
        os.rmdir(folder)


# --- the process -----------------------------------------------------------------------------------


def main(arguments: list[str]) -> None:
    """What the minder process runs: ORDERS_FD REPORTS_FD CLIENT_PID ON_LOSS."""
    client_pid, on_loss = int(arguments[2]), arguments[3]
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for ignored in _IGNORED:  # its life hangs on its client alone
        signal.signal(ignored, signal.SIG_IGN)
    gc.freeze()  # what it has loaded stays; and what it makes from now on has no cycles worth a look each millisecond
    gc.set_threshold(COLLECT_AFTER)
    become_subreaper()
    os.chdir(HOME)
    orders, reports = (socket.socket(fileno=int(fd)) for fd in arguments[:2])
    for sock in (orders, reports):
        sock.setblocking(False)
        sock.set_inheritable(False)
    minder = Minder(orders, reports, client_pid, on_loss)
    if os.getppid() == client_pid:  # else it died before we could watch it, and its number may be another's
        minder.run()


if __name__ == "__main__":
    main(sys.argv[1:])
