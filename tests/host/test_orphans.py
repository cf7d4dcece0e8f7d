"""Nothing outlives its session, and no session outlives its client, however either ends."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rota.errors import ReaperLost
from rota.host import lineage
from rota.host.command import Command, SessionExit
from rota.host.lineage import MARK, Mark, children_of, kill_orphans
from rota.host.reaper_client import ReaperClient
from tests.host.support import ENV, PATIENCE_S, Pipe, client, dies, py, running, sh, state_of, until, watch

# A classic daemon: forked twice, with its own session. It prints its pid, and then its parent continues.
DAEMON = textwrap.dedent(
    """
    import os, signal, sys
    def daemon():
        started, reports = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            {inside}
            print(os.getpid(), flush=True)
            os.write(reports, b".")
            while True:
                signal.pause()
        os.wait()
        os.close(reports)
        os.read(started, 1)
    """
)
ESCAPES = DAEMON.format(inside="pass")
ESCAPES_WITHOUT_A_MARK = DAEMON.format(
    inside="os.execve(sys.executable, [sys.executable, '-I', '-c', "
    "'import os, signal; print(os.getpid(), flush=True); signal.pause()'], {})"
)

# Exits while a child in a session of its own is about to execute a program: until the kernel has freed the memory that
# it had, such a process has no environment. Prints the child's pid.
LEAVES_A_CHILD_IN_EXEC = """
import mmap, os, signal
BYTES = 256 << 20
def child_in_exec():
    child = os.fork()
    if child == 0:
        os.setsid()
        memory = mmap.mmap(-1, BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for at in range(0, BYTES, mmap.PAGESIZE):
            memory[at] = 1
        os.execvp("sleep", ["sleep", "1000"])
    def read(name):
        with open(f"/proc/{child}/{name}", "rb") as file:
            return file.read()
    while read("environ"):
        if read("cmdline").startswith(b"sleep"):
            os.kill(child, signal.SIGKILL)  # it was missed
            return None
    return child
while (child := child_in_exec()) is None:
    pass
os.write(1, b"%d\\n" % child)
os._exit(0)
"""


def ended(found: SessionExit | None) -> SessionExit:
    assert found is not None
    return found


def test_processes_left_in_the_group_are_killed_when_the_command_exits(reaper: ReaperClient) -> None:
    with Pipe() as pipe, Pipe() as go:
        session = reaper.spawn(sh("sleep 1000 & echo $!; read go; exit 3"), stdin=go.ours, stdout=pipe.theirs)
        pipe.close_theirs()
        member = watch(int(pipe.line()))
        go.close_theirs()
        assert dies(member)
        assert ended(session.wait(PATIENCE_S)).code == 3


def test_a_child_that_is_about_to_execute_a_program_is_killed_with_its_session(reaper: ReaperClient) -> None:
    with Pipe() as pipe:
        session = reaper.spawn(py(LEAVES_A_CHILD_IN_EXEC), stdout=pipe.theirs)
        pipe.close_theirs()
        child = int(pipe.line())  # perhaps it is dead already
        assert ended(session.wait(PATIENCE_S)).orphans_killed == 1
        assert state_of(child) == "X"


def test_an_escaped_daemon_is_killed_before_the_exit_is_reported(reaper: ReaperClient) -> None:
    with Pipe() as pipe:
        session = reaper.spawn(py(ESCAPES + "\ndaemon(); sys.exit(4)"), stdout=pipe.theirs)
        pipe.close_theirs()
        daemon = int(pipe.line())
        found = ended(session.wait(PATIENCE_S))
        assert (found.code, found.orphans_killed) == (4, 1)
        assert state_of(daemon) == "X"


def test_many_escaped_daemons_are_killed(reaper: ReaperClient) -> None:
    family = ESCAPES + "\nfor _ in range(20): daemon()\nos.kill(os.getpid(), 9)"
    with Pipe() as pipe:
        session = reaper.spawn(py(family), stdout=pipe.theirs)
        pipe.close_theirs()
        daemons = [int(line) for line in pipe.rest().split()]
        found = ended(session.wait(PATIENCE_S))
    assert len(daemons) == found.orphans_killed == 20
    assert {state_of(pid) for pid in daemons} == {"X"}


def test_a_daemon_of_a_daemon_is_found_when_its_parent_exits(reaper: ReaperClient) -> None:
    nested = textwrap.dedent(
        """
        import os, signal
        for _ in range(5):  # each child leaves the session and forks the next one
            if os.fork() != 0:
                break
            os.setsid()
        print(os.getpid(), flush=True)
        signal.pause()
        """
    )
    with Pipe() as pipe:
        session = reaper.spawn(py(nested), stdout=pipe.theirs)
        pipe.close_theirs()
        family = [watch(int(pipe.line())) for _ in range(6)]
        session.kill()
        assert all(dies(member) for member in family)
        assert ended(session.wait(PATIENCE_S)).orphans_killed == 5


def test_a_stopped_daemon_is_killed_too(reaper: ReaperClient) -> None:
    with Pipe() as pipe:
        session = reaper.spawn(py(ESCAPES + "\ndaemon(); signal.pause()"), stdout=pipe.theirs)
        pipe.close_theirs()
        daemon = int(pipe.line())
        watched = watch(daemon)
        os.kill(daemon, signal.SIGSTOP)
        until(lambda: state_of(daemon) == "T")
        session.kill()
        assert dies(watched)
        assert ended(session.wait(PATIENCE_S)).orphans_killed == 1


def test_the_usage_of_a_session_includes_its_daemons(reaper: ReaperClient) -> None:
    greedy = DAEMON.format(inside="x = bytearray(80_000_000)")
    with Pipe() as pipe:
        session = reaper.spawn(py(greedy + "\ndaemon(); signal.pause()"), stdout=pipe.theirs)
        pipe.close_theirs()
        pipe.line()
        session.kill()
        assert ended(session.wait(PATIENCE_S)).rss_bytes_max > 80_000_000


def test_the_daemon_of_another_session_is_left_alone(reaper: ReaperClient) -> None:
    with Pipe() as pipe, Pipe() as go:
        lives = reaper.spawn(py(ESCAPES + "\ndaemon(); input()"), stdin=go.ours, stdout=pipe.theirs)
        pipe.close_theirs()
        daemon = int(pipe.line())
        until(lambda: daemon in children_of(reaper.pid))
        for _ in range(5):
            assert ended(reaper.spawn(sh("exit")).wait(PATIENCE_S)).orphans_killed == 0
        assert state_of(daemon) in {"S", "R"}
        watched = watch(daemon)
        go.close_theirs()
        assert dies(watched)
        assert ended(lives.wait(PATIENCE_S)).orphans_killed == 1


def test_a_daemon_without_a_mark_is_killed_with_the_reaper() -> None:
    with Pipe() as pipe:
        reaper = ReaperClient()
        session = reaper.spawn(py(ESCAPES_WITHOUT_A_MARK + "\ndaemon()"), stdout=pipe.theirs)
        pipe.close_theirs()
        daemon = watch(int(pipe.line()))
        assert ended(session.wait(PATIENCE_S)).orphans_killed == 0  # its session is unknown
        reaper.close()
        assert dies(daemon)


FAMILY = """
import os, random, signal, sys
def daemon(depth):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if depth:
                daemon(depth - 1)
            signal.pause()
        os._exit(0)
for _ in range(random.randint(0, 3)):
    daemon(random.randint(0, 2))
if random.random() < 0.5:
    sys.exit(3)
signal.pause()
"""


def test_random_process_trees_leave_no_process(reaper: ReaperClient) -> None:
    def run(number: int) -> SessionExit | None:
        dice = random.Random(number)
        session = reaper.spawn(Command(argv=(sys.executable, "-I", "-S", "-c", FAMILY), env=ENV))
        if dice.random() < 0.3:
            session.signal(dice.choice([signal.SIGSTOP, signal.SIGTERM, signal.SIGUSR1]))
        if dice.random() < 0.5:
            session.terminate(0)
        session.kill()
        return session.wait(PATIENCE_S)

    with ThreadPoolExecutor(8) as threads:
        assert all(found is not None for found in threads.map(run, range(48)))
    until(lambda: not children_of(reaper.pid))
    assert not [pid for pid, mark in lineage.marked_processes() if mark.reaper == reaper.identity]


def test_closing_the_client_kills_every_session_and_reports_it() -> None:
    log: list[int | None] = []
    reaper = ReaperClient(on_exit=lambda _session, found: log.append(found.signal))
    with Pipe() as pipe:
        for _ in range(3):
            reaper.spawn(sh("trap '' TERM; echo ready; while :; do sleep 1000; done"), stdout=pipe.theirs)
            assert pipe.line() == "ready"
        reaper.close()
    assert log == [signal.SIGKILL] * 3


# --- the client dies ----------------------------------------------------------------------------------

CLIENT = """
import os, signal, sys
from rota.host.command import Command
from rota.host.reaper_client import ReaperClient
reaper = ReaperClient(on_loss={on_loss!r})
def start(script):
    return reaper.spawn(Command(argv=(sys.executable, "-I", "-c", script), env={{}}), stdout=1)
{body}
signal.pause()
"""


def lost(on_loss: str, body: str) -> str:
    return CLIENT.format(on_loss=on_loss, body=body)


def test_killing_the_client_kills_every_session_and_every_daemon() -> None:
    body = f"for _ in range(3): start({ESCAPES + 'print(os.getpid(), flush=True); daemon(); signal.pause()'!r})"
    with client(lost("kill", body)) as (process, pipe):
        all_processes = [watch(int(pipe.line())) for _ in range(6)]
        process.kill()
        assert all(dies(one) for one in all_processes)


def test_killing_the_client_kills_sessions_that_are_stopped() -> None:
    body = "start('import os; print(os.getpid(), flush=True); os.kill(os.getpid(), 19)')"
    with client(lost("kill", body)) as (process, pipe):
        pid = int(pipe.line())
        watched = watch(pid)
        until(lambda: state_of(pid) == "T")
        process.kill()
        assert dies(watched)


def test_killing_the_client_continues_every_session_with_on_loss_continue() -> None:
    stops = "import os; print(os.getpid(), flush=True); os.kill(os.getpid(), 19); print('continued', flush=True)"
    child = "import os, sys; os.fork(); os.fork();" + stops  # four processes of one group
    with client(lost("continue", f"start({child!r})")) as (process, pipe):
        pids = [int(pipe.line()) for _ in range(4)]
        until(lambda: {state_of(pid) for pid in pids} == {"T"})
        process.kill()
        assert [pipe.line() for _ in range(4)] == ["continued"] * 4


def test_a_stopped_member_that_left_the_group_is_continued_too() -> None:
    stops = DAEMON.format(inside="print(os.getpid(), flush=True); os.kill(os.getpid(), 19)")
    waits = stops + "print(os.getpid(), flush=True); daemon(); signal.pause()"
    with client(lost("continue", f"start({waits!r})")) as (process, pipe):
        leader, daemon = int(pipe.line()), int(pipe.line())
        until(lambda: state_of(daemon) == "T")
        process.kill()
        assert int(pipe.line()) == daemon
        for pid in (daemon, leader):  # they continue, as requested
            os.kill(pid, signal.SIGKILL)


def test_a_fork_of_the_client_does_not_keep_the_sessions_alive() -> None:
    body = """
start('import os, signal; print(os.getpid(), flush=True); signal.pause()')
if os.fork() == 0:  # as multiprocessing does; it inherits every descriptor
    print(os.getpid(), flush=True)
    signal.pause()
"""
    with client(lost("kill", body)) as (process, pipe):
        pids = [int(pipe.line()), int(pipe.line())]
        watched = {pid: watch(pid) for pid in pids}
        process.kill()
        fork = next(pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes().find(b"ReaperClient") >= 0)
        session = next(pid for pid in pids if pid != fork)
        assert dies(watched.pop(session))
        assert state_of(fork) in ("R", "S")
        os.kill(fork, signal.SIGKILL)
        assert dies(watched.pop(fork))


def test_a_reaper_whose_client_is_gone_at_its_start_exits_immediately() -> None:
    reaper = ReaperClient()
    command = reaper._process.args
    reaper.close()
    assert isinstance(command, list)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        arguments = [*command[:-4], str(theirs.fileno()), str(os.dup(theirs.fileno())), "1", "kill"]
        fds = [int(arguments[-4]), int(arguments[-3])]
        done = subprocess.run(arguments, pass_fds=fds, timeout=PATIENCE_S, check=False)  # its parent is not process 1
        os.close(fds[1])
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("garbage", "message"),
    [(b"nonsense\n", "is longer than"), (b"\x04\0\0\0\0\0\0\0what", "bad marshal data")],
)
def test_garbage_on_the_socket_ends_the_reaper_and_its_sessions(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, garbage: bytes, message: str
) -> None:
    with ReaperClient() as reaper, running(reaper, sh("echo ready; while :; do sleep 1000; done")) as (session, _pipe):
        reaper._requests.send(garbage)
        assert ended(session.wait(PATIENCE_S)).signal == signal.SIGKILL  # reported before the reaper exited
        until(lambda: state_of(reaper.pid) == "X")
    assert message in capfd.readouterr().err
    assert "exited unexpectedly" in caplog.text


# --- the reaper dies ----------------------------------------------------------------------------------


def test_killing_the_reaper_reports_its_sessions_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    log: list[bool] = []
    with ReaperClient(on_exit=lambda _session, found: log.append(found.lost)) as reaper, Pipe() as pipe:
        sessions = [
            reaper.spawn(py(ESCAPES + "\nprint(os.getpid(), flush=True); daemon(); signal.pause()"), stdout=pipe.theirs)
            for _ in range(3)
        ]
        all_processes = [watch(int(pipe.line())) for _ in range(6)]
        os.kill(reaper.pid, signal.SIGKILL)
        assert all(dies(one) for one in all_processes)
        assert [ended(session.wait(PATIENCE_S)).lost for session in sessions] == [True] * 3
        with pytest.raises(ReaperLost):
            reaper.spawn(sh("exit"))
        sessions[0].kill()  # has no effect any more
        assert sessions[0].signal(signal.SIGTERM) is False
    assert log == [True] * 3
    assert "3 sessions are reported as lost" in caplog.text


def test_killing_a_reaper_with_on_loss_continue_continues_stopped_sessions() -> None:
    stops = "import os; print('ready', flush=True); os.kill(os.getpid(), 19); print('continued', flush=True)"
    with ReaperClient(on_loss="continue") as reaper, Pipe() as pipe:
        session = reaper.spawn(py(stops), stdout=pipe.theirs)
        pipe.close_theirs()
        assert pipe.line() == "ready"
        until(lambda: state_of(session.pid) == "T")
        os.kill(reaper.pid, signal.SIGKILL)
        assert pipe.line() == "continued"
        assert ended(session.wait(PATIENCE_S)).lost


def test_a_spawn_fails_when_the_reaper_dies() -> None:
    exits: list[SessionExit] = []
    with ReaperClient(on_exit=lambda _session, found: exits.append(found)) as reaper:
        os.kill(reaper.pid, signal.SIGSTOP)  # it will never report
        until(lambda: state_of(reaper.pid) == "T")
        log: list[str] = []

        def spawn() -> None:
            try:
                reaper.spawn(sh("exit"))
            except ReaperLost:
                log.append("lost")

        thread = threading.Thread(target=spawn)
        thread.start()
        until(lambda: bool(reaper.sessions))
        os.kill(reaper.pid, signal.SIGKILL)
        thread.join(PATIENCE_S)
        assert log == ["lost"]
    assert exits == []  # it was raised, not passed to on_exit


# --- both die -----------------------------------------------------------------------------------------


def marked(on_loss: str) -> subprocess.Popen[bytes]:
    """A process with the mark of a dead reaper, as it remains when client and reaper are killed together."""
    mark = Mark(on_loss, "999999999.1", 1)
    return subprocess.Popen([sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE, env={MARK: str(mark)})


def test_orphans_of_a_dead_reaper_are_killed_at_the_next_start(reaper: ReaperClient) -> None:
    alive = running(reaper, py("print('ready', flush=True)\nwhile True: pass"))
    with alive as (session, _pipe), marked("kill") as orphan, marked("continue") as free:
        found = kill_orphans()
        assert orphan.pid in found
        assert session.pid not in found  # its reaper is alive
        assert free.pid not in found  # its reaper would have continued it
        assert orphan.wait(PATIENCE_S) == -signal.SIGKILL
        assert free.poll() is None
        free.kill()
    assert kill_orphans() == []


def test_a_text_in_another_format_is_not_a_mark() -> None:
    assert Mark.parse("") is None
    assert Mark.parse("another text") is None
    assert Mark.parse("kill.12.345.6") == Mark("kill", "12.345", 6)


def test_a_command_cannot_set_its_own_mark(reaper: ReaperClient) -> None:
    with Pipe() as pipe:
        session = reaper.spawn(Command(argv=("env",), env={**ENV, MARK: "kill.1.1.1"}), stdout=pipe.theirs)
        pipe.close_theirs()
        expected = f"{MARK}={Mark('kill', reaper.identity, session.id)}".encode()
        assert expected in pipe.rest().splitlines()
