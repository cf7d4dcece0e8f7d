"""Session handles: signals, the escalation from TERM to KILL, many at the same time, and no leaks."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rota.clock import ManualClock
from rota.host import session as session_module
from rota.host.command import SessionExit
from rota.host.lineage import children_of
from rota.host.reaper_client import ReaperClient
from rota.host.session import Termination
from tests.host.support import PATIENCE_S, Pipe, open_descriptors, py, running, sh, state_of, until

# Python, not a shell: a shell that is starting a child may miss a signal, or be stopped inside vfork
WAITS = """
import signal, sys
signal.signal(signal.SIGTERM, {on_term})
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9))
print("ready", flush=True)
while True:
    signal.pause()
"""
WAITING = py(WAITS.format(on_term="signal.SIG_DFL"))
EXITS_ON_TERM = py(WAITS.format(on_term="lambda *_: sys.exit(7)"))
IGNORES_TERM = py(WAITS.format(on_term="signal.SIG_IGN"))


def test_a_command_that_handles_term_exits(reaper: ReaperClient) -> None:
    with running(reaper, EXITS_ON_TERM) as (session, _pipe):
        found = session.terminate(PATIENCE_S)
        assert (found.by, found.exit.code) == ("term", 7)


def test_a_command_that_ignores_term_is_killed_after_the_grace_period() -> None:
    clock = ManualClock()
    with ReaperClient(clock=clock) as reaper, running(reaper, IGNORES_TERM) as (session, _pipe):
        with ThreadPoolExecutor(1) as other:
            termination = other.submit(session.terminate, 5.0)
            clock.until_parked()
            clock.advance(4.9)
            assert session.exit is None
            clock.advance(0.1)
            found = termination.result(PATIENCE_S)
        assert (found.by, found.exit.signal) == ("kill", signal.SIGKILL)


def test_a_stopped_command_can_handle_term(reaper: ReaperClient) -> None:
    with running(reaper, EXITS_ON_TERM) as (session, _pipe):
        session.signal(signal.SIGSTOP)
        until(lambda: state_of(session.pid) == "T")
        found = session.terminate(PATIENCE_S)
        assert (found.by, found.exit.code) == ("term", 7)


def test_a_stopped_command_can_be_killed(reaper: ReaperClient) -> None:
    with running(reaper, WAITING) as (session, _pipe):
        session.signal(signal.SIGSTOP)
        until(lambda: state_of(session.pid) == "T")
        session.kill()
        found = session.wait(PATIENCE_S)
        assert found is not None
        assert found.signal == signal.SIGKILL


def test_terminating_an_exited_session_returns_its_exit(reaper: ReaperClient) -> None:
    session = reaper.spawn(sh("exit 3"))
    found = session.wait(PATIENCE_S)
    assert session.terminate(0) == Termination(found, "itself")  # type: ignore[arg-type]
    assert session.signal(signal.SIGTERM) is False


@pytest.mark.parametrize("by_descriptor", [True, False], ids=["by pidfd", "by the reaper"])
def test_a_signal_reaches_the_whole_group(
    reaper: ReaperClient, monkeypatch: pytest.MonkeyPatch, by_descriptor: bool
) -> None:
    monkeypatch.setattr(session_module._group_signals, "possible", by_descriptor)
    family = """
import os, signal, sys, time
def handler(*_):
    os.write(1, b"member\\n" if member == 0 else b"leader\\n")
    if member != 0:
        os.wait()  # when the leader exits its members are killed
    sys.exit(0)
member = None
signal.signal(signal.SIGUSR1, handler)
member = os.fork()
if member == 0:
    print("ready", flush=True)
while True:
    time.sleep(0.01)  # pause would miss a signal that arrives just before it
"""
    with running(reaper, py(family)) as (session, pipe):
        session.signal(signal.SIGUSR1)
        assert sorted([pipe.line(), pipe.line()]) == ["leader", "member"]


def test_a_kernel_that_cannot_signal_a_group_by_pidfd_is_tried_once(
    reaper: ReaperClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "PIDFD_SIGNAL_PROCESS_GROUP", 1 << 20)  # a flag that no kernel has
    monkeypatch.setattr(session_module._group_signals, "possible", True)
    with running(reaper, WAITING) as (session, _pipe):
        assert session.signal(signal.SIGUSR1) is True
        found = session.wait(PATIENCE_S)
        assert found is not None
        assert found.code == 9
    assert not session_module._group_signals.possible


def test_wait_times_out_on_the_clock_of_the_caller() -> None:
    clock = ManualClock()
    with (
        ReaperClient(clock=clock) as reaper,
        running(reaper, WAITING) as (session, _pipe),
        ThreadPoolExecutor(1) as other,
    ):
        waits = other.submit(session.wait, 60.0)
        clock.until_parked()
        clock.advance(60)
        assert waits.result(PATIENCE_S) is None


def test_cpu_time_grows_while_it_runs_and_not_while_it_is_stopped(reaper: ReaperClient) -> None:
    with running(reaper, py("print('ready', flush=True)\nwhile True: pass")) as (session, _pipe):
        first = session.cpu_ns()
        until(lambda: session.cpu_ns() > first + 1_000_000)
        session.signal(signal.SIGSTOP)
        until(lambda: state_of(session.pid) == "T")
        stopped_at = session.cpu_ns()
        reaper.spawn(sh("exit")).wait(PATIENCE_S)  # other sessions run meanwhile
        assert session.cpu_ns() == stopped_at
        session.signal(signal.SIGCONT)
        until(lambda: session.cpu_ns() > stopped_at)
    assert session.cpu_ns() >= stopped_at  # also after its exit


def test_fifty_threads_spawn_at_the_same_time_and_each_gets_its_own_session(reaper: ReaperClient) -> None:
    together = threading.Barrier(50)

    def run(number: int) -> tuple[int | None, str]:
        with Pipe() as pipe:
            together.wait()
            session = reaper.spawn(sh(f"echo {number}; exit {number}"), stdout=pipe.theirs)
            pipe.close_theirs()
            line = pipe.line()
            found = session.wait(PATIENCE_S)
            return found.code if found else None, line

    with ThreadPoolExecutor(50) as threads:
        assert list(threads.map(run, range(50))) == [(number, str(number)) for number in range(50)]


def test_on_exit_may_start_the_next_command() -> None:
    log: list[int] = []
    done = threading.Event()

    def starts_the_next(_session: object, found: SessionExit) -> None:
        log.append(found.code or 0)
        if len(log) < 20:
            reaper.start(sh(f"exit {len(log)}"))
        else:
            done.set()

    with ReaperClient(on_exit=starts_the_next) as reaper:
        reaper.start(sh("exit 0"))
        assert done.wait(PATIENCE_S)
    assert log == list(range(20))


def test_a_command_can_be_killed_before_its_start_is_reported(reaper: ReaperClient) -> None:
    for _ in range(20):
        session = reaper.start(WAITING)
        session.kill()
        found = session.wait(PATIENCE_S)
        assert found is not None
        assert found.signal == signal.SIGKILL


def test_a_hundred_commands_are_started_without_waiting(reaper: ReaperClient) -> None:
    sessions = [reaper.start(sh(f"exit {number}")) for number in range(100)]
    assert [found.code for session in sessions if (found := session.wait(PATIENCE_S))] == list(range(100))


def test_two_hundred_commands_leave_no_descriptor_no_zombie_and_no_session(reaper: ReaperClient) -> None:
    reaper.spawn(sh("exit")).wait(PATIENCE_S)
    before = open_descriptors(reaper)
    sessions = [reaper.spawn(sh(f"exit {number % 7}"), stdout=1, stderr=2) for number in range(200)]
    codes = [found.code for session in sessions if (found := session.wait(PATIENCE_S))]
    assert codes == [number % 7 for number in range(200)]
    assert open_descriptors(reaper) == before
    assert children_of(reaper.pid) == []
    assert reaper.sessions == []


def test_a_client_that_does_not_read_reports_does_not_block_the_reaper() -> None:
    """While `on_exit` blocks, the reaper buffers reports and continues to start and reap commands."""
    go_on = threading.Event()
    log: list[int] = []

    def blocks(_session: object, _found: object) -> None:
        go_on.wait(PATIENCE_S)
        log.append(1)

    with ReaperClient(on_exit=blocks) as reaper, ThreadPoolExecutor(1) as other:
        first = reaper.spawn(sh("exit"))
        first.wait(PATIENCE_S)
        many = other.submit(lambda: [reaper.spawn(sh("exit")) for _ in range(100)])
        until(lambda: children_of(reaper.pid) == [])
        assert log == []
        go_on.set()
        for session in many.result(PATIENCE_S):
            session.wait(PATIENCE_S)
    assert len(log) == 101
