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

from rota.errors import MinderLost
from rota.host import orphans
from rota.host.command import Command, Exit
from rota.host.lineage import MARK, Mark, children_of
from rota.host.orphans import end_strays
from rota.host.reaper_client import Minder
from tests.host.support import ENV, PATIENCE_S, Pipe, client, dies, py, running, sh, state_of, until, watch

# A daemon as the books teach it: forked twice, a session of its own. It says its pid, and then its parent goes on.
DAEMON = textwrap.dedent(
    """
    import os, signal, sys
    def daemon():
        born, says = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() != 0:
                os._exit(0)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            {inside}
            print(os.getpid(), flush=True)
            os.write(says, b".")
            while True:
                signal.pause()
        os.wait()
        os.close(says)
        os.read(born, 1)
    """
)
ESCAPES = DAEMON.format(inside="pass")
ESCAPES_WITHOUT_A_MARK = DAEMON.format(
    inside="os.execve(sys.executable, [sys.executable, '-I', '-c', "
    "'import os, signal; print(os.getpid(), flush=True); signal.pause()'], {})"
)


def ended(found: Exit | None) -> Exit:
    assert found is not None
    return found


def test_what_a_command_leaves_in_its_group_is_killed_with_it(minder: Minder) -> None:
    with Pipe() as pipe, Pipe() as go:
        session = minder.spawn(sh("sleep 1000 & echo $!; read go; exit 3"), stdin=go.ours, stdout=pipe.theirs)
        pipe.close_theirs()
        member = watch(int(pipe.line()))
        go.close_theirs()
        assert dies(member)
        assert ended(session.wait(PATIENCE_S)).code == 3


def test_a_daemon_that_escaped_is_killed_before_its_commands_end_is_told(minder: Minder) -> None:
    with Pipe() as pipe:
        session = minder.spawn(py(ESCAPES + "\ndaemon(); sys.exit(4)"), stdout=pipe.theirs)
        pipe.close_theirs()
        daemon = int(pipe.line())
        found = ended(session.wait(PATIENCE_S))
        assert (found.code, found.strays) == (4, 1)
        assert state_of(daemon) == "X"


def test_a_whole_family_of_daemons_is_killed(minder: Minder) -> None:
    family = ESCAPES + "\nfor _ in range(20): daemon()\nos.kill(os.getpid(), 9)"
    with Pipe() as pipe:
        session = minder.spawn(py(family), stdout=pipe.theirs)
        pipe.close_theirs()
        daemons = [int(line) for line in pipe.rest().split()]
        found = ended(session.wait(PATIENCE_S))
    assert len(daemons) == found.strays == 20
    assert {state_of(pid) for pid in daemons} == {"X"}


def test_a_daemons_daemon_is_found_when_its_father_dies(minder: Minder) -> None:
    nested = textwrap.dedent(
        """
        import os, signal
        for _ in range(5):  # each child leaves the session and has the next one as its child
            if os.fork() != 0:
                break
            os.setsid()
        print(os.getpid(), flush=True)
        signal.pause()
        """
    )
    with Pipe() as pipe:
        session = minder.spawn(py(nested), stdout=pipe.theirs)
        pipe.close_theirs()
        family = [watch(int(pipe.line())) for _ in range(6)]
        session.kill()
        assert all(dies(member) for member in family)
        assert ended(session.wait(PATIENCE_S)).strays == 5


def test_a_stopped_daemon_is_killed_too(minder: Minder) -> None:
    with Pipe() as pipe:
        session = minder.spawn(py(ESCAPES + "\ndaemon(); signal.pause()"), stdout=pipe.theirs)
        pipe.close_theirs()
        daemon = int(pipe.line())
        watched = watch(daemon)
        os.kill(daemon, signal.SIGSTOP)
        until(lambda: state_of(daemon) == "T")
        session.kill()
        assert dies(watched)
        assert ended(session.wait(PATIENCE_S)).strays == 1


def test_what_a_daemon_used_is_in_its_sessions_usage(minder: Minder) -> None:
    greedy = DAEMON.format(inside="x = bytearray(80_000_000)")
    with Pipe() as pipe:
        session = minder.spawn(py(greedy + "\ndaemon(); signal.pause()"), stdout=pipe.theirs)
        pipe.close_theirs()
        pipe.line()
        session.kill()
        assert ended(session.wait(PATIENCE_S)).rss_bytes_max > 80_000_000


def test_another_sessions_daemon_is_left_alone(minder: Minder) -> None:
    with Pipe() as pipe, Pipe() as go:
        lives = minder.spawn(py(ESCAPES + "\ndaemon(); input()"), stdin=go.ours, stdout=pipe.theirs)
        pipe.close_theirs()
        daemon = int(pipe.line())
        until(lambda: daemon in children_of(minder.pid))
        for _ in range(5):
            assert ended(minder.spawn(sh("exit")).wait(PATIENCE_S)).strays == 0
        assert state_of(daemon) in {"S", "R"}
        watched = watch(daemon)
        go.close_theirs()
        assert dies(watched)
        assert ended(lives.wait(PATIENCE_S)).strays == 1


def test_a_daemon_that_threw_its_mark_away_dies_with_the_minder() -> None:
    with Pipe() as pipe:
        minder = Minder()
        session = minder.spawn(py(ESCAPES_WITHOUT_A_MARK + "\ndaemon()"), stdout=pipe.theirs)
        pipe.close_theirs()
        daemon = watch(int(pipe.line()))
        assert ended(session.wait(PATIENCE_S)).strays == 0  # nobody can say whose it is
        minder.close()
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


def test_families_that_are_ended_in_every_way_leave_nobody(minder: Minder) -> None:
    def run(number: int) -> Exit | None:
        dice = random.Random(number)
        session = minder.spawn(Command(argv=(sys.executable, "-I", "-S", "-c", FAMILY), env=ENV))
        if dice.random() < 0.3:
            session.signal(dice.choice([signal.SIGSTOP, signal.SIGTERM, signal.SIGUSR1]))
        if dice.random() < 0.5:
            session.terminate(0)
        session.kill()
        return session.wait(PATIENCE_S)

    with ThreadPoolExecutor(8) as threads:
        assert all(found is not None for found in threads.map(run, range(48)))
    until(lambda: not children_of(minder.pid))
    assert not [pid for pid, mark in orphans.marked() if mark.minder == minder.identity]


def test_closing_the_minder_ends_every_session_and_says_so() -> None:
    log: list[int | None] = []
    minder = Minder(on_exit=lambda _session, found: log.append(found.signal))
    with Pipe() as pipe:
        for _ in range(3):
            minder.spawn(sh("trap '' TERM; echo ready; while :; do sleep 1000; done"), stdout=pipe.theirs)
            assert pipe.line() == "ready"
        minder.close()
    assert log == [signal.SIGKILL] * 3


# --- the client dies ----------------------------------------------------------------------------------

CLIENT = """
import os, signal, sys
from rota.host.command import Command
from rota.host.reaper_client import Minder
minder = Minder(on_loss={on_loss!r})
def start(script):
    return minder.spawn(Command(argv=(sys.executable, "-I", "-c", script), env={{}}), stdout=1)
{body}
signal.pause()
"""


def lost(on_loss: str, body: str) -> str:
    return CLIENT.format(on_loss=on_loss, body=body)


def test_killing_the_client_kills_every_session_and_every_daemon() -> None:
    body = f"for _ in range(3): start({ESCAPES + 'print(os.getpid(), flush=True); daemon(); signal.pause()'!r})"
    with client(lost("kill", body)) as (process, pipe):
        everyone = [watch(int(pipe.line())) for _ in range(6)]
        process.kill()
        assert all(dies(one) for one in everyone)


def test_killing_the_client_kills_sessions_that_are_stopped() -> None:
    body = "start('import os; print(os.getpid(), flush=True); os.kill(os.getpid(), 19)')"
    with client(lost("kill", body)) as (process, pipe):
        pid = int(pipe.line())
        watched = watch(pid)
        until(lambda: state_of(pid) == "T")
        process.kill()
        assert dies(watched)


def test_killing_the_client_continues_every_session_where_that_was_asked() -> None:
    stops = "import os; print(os.getpid(), flush=True); os.kill(os.getpid(), 19); print('goes on', flush=True)"
    child = "import os, sys; os.fork(); os.fork();" + stops  # four processes of one group
    with client(lost("continue", f"start({child!r})")) as (process, pipe):
        pids = [int(pipe.line()) for _ in range(4)]
        until(lambda: {state_of(pid) for pid in pids} == {"T"})
        process.kill()
        assert [pipe.line() for _ in range(4)] == ["goes on"] * 4


def test_a_stopped_member_that_left_the_group_is_continued_too() -> None:
    stops = DAEMON.format(inside="print(os.getpid(), flush=True); os.kill(os.getpid(), 19)")
    waits = stops + "print(os.getpid(), flush=True); daemon(); signal.pause()"
    with client(lost("continue", f"start({waits!r})")) as (process, pipe):
        leader, daemon = int(pipe.line()), int(pipe.line())
        until(lambda: state_of(daemon) == "T")
        process.kill()
        assert int(pipe.line()) == daemon
        for pid in (daemon, leader):  # they live on, as was asked
            os.kill(pid, signal.SIGKILL)


def test_a_fork_of_the_client_that_holds_its_socket_does_not_keep_the_sessions_alive() -> None:
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
        fork = next(pid for pid in pids if Path(f"/proc/{pid}/cmdline").read_bytes().find(b"Minder") >= 0)
        session = next(pid for pid in pids if pid != fork)
        assert dies(watched.pop(session))
        assert state_of(fork) == "S"
        os.kill(fork, signal.SIGKILL)
        assert dies(watched.pop(fork))


def test_a_minder_that_finds_its_client_gone_at_its_start_ends_at_once() -> None:
    minder = Minder()
    command = minder._process.args
    minder.close()
    assert isinstance(command, list)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        stranger = [*command[:-4], str(theirs.fileno()), str(os.dup(theirs.fileno())), "1", "kill"]
        fds = [int(stranger[-4]), int(stranger[-3])]
        done = subprocess.run(stranger, pass_fds=fds, timeout=PATIENCE_S, check=False)  # its parent is not process 1
        os.close(fds[1])
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("nonsense", "complaint"),
    [(b"nonsense\n", "a frame is longer than"), (b"\x04\0\0\0\0\0\0\0what", "bad marshal data")],
)
def test_nonsense_on_the_socket_ends_the_minder_and_what_it_started(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, nonsense: bytes, complaint: str
) -> None:
    with Minder() as minder, running(minder, sh("echo ready; while :; do sleep 1000; done")) as (session, _pipe):
        minder._orders.send(nonsense)
        assert ended(session.wait(PATIENCE_S)).signal == signal.SIGKILL  # told before it ended
        until(lambda: state_of(minder.pid) == "X")
    assert complaint in capfd.readouterr().err
    assert "is gone" in caplog.text


# --- the minder dies ----------------------------------------------------------------------------------


def test_killing_the_minder_ends_its_sessions_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    log: list[bool] = []
    with Minder(on_exit=lambda _session, found: log.append(found.lost)) as minder, Pipe() as pipe:
        sessions = [
            minder.spawn(py(ESCAPES + "\nprint(os.getpid(), flush=True); daemon(); signal.pause()"), stdout=pipe.theirs)
            for _ in range(3)
        ]
        everyone = [watch(int(pipe.line())) for _ in range(6)]
        os.kill(minder.pid, signal.SIGKILL)
        assert all(dies(one) for one in everyone)
        assert [ended(session.wait(PATIENCE_S)).lost for session in sessions] == [True] * 3
        with pytest.raises(MinderLost):
            minder.spawn(sh("exit"))
        sessions[0].kill()  # nothing is left to do, and nothing happens
        assert sessions[0].signal(signal.SIGTERM) is False
    assert log == [True] * 3
    assert "its 3 sessions end as lost" in caplog.text


def test_killing_a_minder_of_cores_continues_what_was_stopped() -> None:
    stops = "import os; print('ready', flush=True); os.kill(os.getpid(), 19); print('goes on', flush=True)"
    with Minder(on_loss="continue") as minder, Pipe() as pipe:
        session = minder.spawn(py(stops), stdout=pipe.theirs)
        pipe.close_theirs()
        assert pipe.line() == "ready"
        until(lambda: state_of(session.pid) == "T")
        os.kill(minder.pid, signal.SIGKILL)
        assert pipe.line() == "goes on"
        assert ended(session.wait(PATIENCE_S)).lost


def test_a_spawn_that_the_minder_dies_under_is_told() -> None:
    told: list[Exit] = []
    with Minder(on_exit=lambda _session, found: told.append(found)) as minder:
        os.kill(minder.pid, signal.SIGSTOP)  # it will never answer
        until(lambda: state_of(minder.pid) == "T")
        log: list[str] = []

        def spawn() -> None:
            try:
                minder.spawn(sh("exit"))
            except MinderLost:
                log.append("lost")

        thread = threading.Thread(target=spawn)
        thread.start()
        until(lambda: bool(minder.sessions))
        os.kill(minder.pid, signal.SIGKILL)
        thread.join(PATIENCE_S)
        assert log == ["lost"]
    assert told == []  # it was raised, and is not told as well


# --- both die -----------------------------------------------------------------------------------------


def marked(on_loss: str) -> subprocess.Popen[bytes]:
    """What is left when client and minder are killed in the same instant: a process with the mark of a dead minder."""
    mark = Mark(on_loss, "999999999.1", 1)
    return subprocess.Popen([sys.executable, "-I", "-c", "input()"], stdin=subprocess.PIPE, env={MARK: str(mark)})


def test_strays_of_a_dead_minder_are_ended_at_the_next_start(minder: Minder) -> None:
    alive = running(minder, py("print('ready', flush=True)\nwhile True: pass"))
    with alive as (session, _pipe), marked("kill") as stray, marked("continue") as free:
        found = end_strays()
        assert stray.pid in found
        assert session.pid not in found  # its minder lives
        assert free.pid not in found  # its minder would have let it go on
        assert stray.wait(PATIENCE_S) == -signal.SIGKILL
        assert free.poll() is None
        free.kill()
    assert end_strays() == []


def test_a_mark_that_is_not_ours_is_no_mark() -> None:
    assert Mark.parse("") is None
    assert Mark.parse("somebody's own word") is None
    assert Mark.parse("kill.12.345.6") == Mark("kill", "12.345", 6)


def test_a_command_may_not_choose_its_own_mark(minder: Minder) -> None:
    with Pipe() as pipe:
        session = minder.spawn(Command(argv=("env",), env={**ENV, MARK: "kill.1.1.1"}), stdout=pipe.theirs)
        pipe.close_theirs()
        expected = f"{MARK}={Mark('kill', minder.identity, session.id)}".encode()
        assert expected in pipe.rest().splitlines()
