"""Handles: signals, the ladder from TERM to KILL, many at once, and nothing left open."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rota.clock import ManualClock
from rota.host import session as session_module
from rota.host.command import Exit
from rota.host.lineage import children_of
from rota.host.reaper_client import Minder
from rota.host.session import Ended
from tests.host.support import PATIENCE_S, Pipe, open_descriptors, py, running, sh, state_of, until

# Python, not a shell: a shell that is just starting a child may miss a signal, or stand in vfork when it is stopped
WAITS = """
import signal, sys
signal.signal(signal.SIGTERM, {on_term})
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9))
print("ready", flush=True)
while True:
    signal.pause()
"""
WAITING = py(WAITS.format(on_term="signal.SIG_DFL"))
POLITE = py(WAITS.format(on_term="lambda *_: sys.exit(7)"))
STUBBORN = py(WAITS.format(on_term="signal.SIG_IGN"))


def test_a_polite_command_ends_when_it_is_asked_to(minder: Minder) -> None:
    with running(minder, POLITE) as (session, _pipe):
        found = session.terminate(PATIENCE_S)
        assert (found.by, found.exit.code) == ("term", 7)


def test_a_command_that_ignores_term_is_killed_when_the_grace_is_over() -> None:
    clock = ManualClock()
    with Minder(clock=clock) as minder, running(minder, STUBBORN) as (session, _pipe):
        with ThreadPoolExecutor(1) as other:
            ladder = other.submit(session.terminate, 5.0)
            clock.until_parked()
            clock.advance(4.9)
            assert session.exit is None
            clock.advance(0.1)
            found = ladder.result(PATIENCE_S)
        assert (found.by, found.exit.signal) == ("kill", signal.SIGKILL)


def test_a_stopped_command_can_still_act_on_term(minder: Minder) -> None:
    with running(minder, POLITE) as (session, _pipe):
        session.signal(signal.SIGSTOP)
        until(lambda: state_of(session.pid) == "T")
        found = session.terminate(PATIENCE_S)
        assert (found.by, found.exit.code) == ("term", 7)


def test_a_stopped_command_can_be_killed(minder: Minder) -> None:
    with running(minder, WAITING) as (session, _pipe):
        session.signal(signal.SIGSTOP)
        until(lambda: state_of(session.pid) == "T")
        session.kill()
        found = session.wait(PATIENCE_S)
        assert found is not None
        assert found.signal == signal.SIGKILL


def test_terminating_what_has_ended_by_itself_says_so(minder: Minder) -> None:
    session = minder.spawn(sh("exit 3"))
    found = session.wait(PATIENCE_S)
    assert session.terminate(0) == Ended(found, "itself")  # type: ignore[arg-type]
    assert session.signal(signal.SIGTERM) is False


@pytest.mark.parametrize("by_descriptor", [True, False], ids=["by our descriptor", "by way of the minder"])
def test_a_signal_reaches_the_whole_group(minder: Minder, monkeypatch: pytest.MonkeyPatch, by_descriptor: bool) -> None:
    monkeypatch.setattr(session_module._group_signals, "possible", by_descriptor)
    family = """
import os, signal, sys, time
def hears(*_):
    os.write(1, b"member\\n" if member == 0 else b"leader\\n")
    if member != 0:
        os.wait()  # when the leader ends its members are killed
    sys.exit(0)
member = None
signal.signal(signal.SIGUSR1, hears)
member = os.fork()
if member == 0:
    print("ready", flush=True)
while True:
    time.sleep(0.01)  # a pause would sleep through a signal that comes just before it
"""
    with running(minder, py(family)) as (session, pipe):
        session.signal(signal.SIGUSR1)
        assert sorted([pipe.line(), pipe.line()]) == ["leader", "member"]


def test_a_kernel_that_cannot_signal_a_group_by_descriptor_is_not_asked_twice(
    minder: Minder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "TO_THE_GROUP", 1 << 20)  # a flag that no kernel knows
    monkeypatch.setattr(session_module._group_signals, "possible", True)
    with running(minder, WAITING) as (session, _pipe):
        assert session.signal(signal.SIGUSR1) is True
        found = session.wait(PATIENCE_S)
        assert found is not None
        assert found.code == 9
    assert not session_module._group_signals.possible


def test_waiting_ends_when_the_time_has_passed_on_the_callers_clock() -> None:
    clock = ManualClock()
    with Minder(clock=clock) as minder, running(minder, WAITING) as (session, _pipe), ThreadPoolExecutor(1) as other:
        waits = other.submit(session.wait, 60.0)
        clock.until_parked()
        clock.advance(60)
        assert waits.result(PATIENCE_S) is None


def test_processor_time_grows_while_it_runs_and_stands_still_while_it_is_stopped(minder: Minder) -> None:
    with running(minder, py("print('ready', flush=True)\nwhile True: pass")) as (session, _pipe):
        first = session.cpu_ns()
        until(lambda: session.cpu_ns() > first + 1_000_000)
        session.signal(signal.SIGSTOP)
        until(lambda: state_of(session.pid) == "T")
        stopped_at = session.cpu_ns()
        minder.spawn(sh("exit")).wait(PATIENCE_S)  # others go on meanwhile
        assert session.cpu_ns() == stopped_at
        session.signal(signal.SIGCONT)
        until(lambda: session.cpu_ns() > stopped_at)
    assert session.cpu_ns() >= stopped_at  # also when it has ended


def test_fifty_threads_spawn_at_once_and_each_gets_its_own_answer(minder: Minder) -> None:
    together = threading.Barrier(50)

    def run(number: int) -> tuple[int | None, str]:
        with Pipe() as pipe:
            together.wait()
            session = minder.spawn(sh(f"echo {number}; exit {number}"), stdout=pipe.theirs)
            pipe.close_theirs()
            line = pipe.line()
            found = session.wait(PATIENCE_S)
            return found.code if found else None, line

    with ThreadPoolExecutor(50) as threads:
        assert list(threads.map(run, range(50))) == [(number, str(number)) for number in range(50)]


def test_the_next_command_is_started_where_the_last_ones_end_is_told() -> None:
    log: list[int] = []
    done = threading.Event()

    def starts_the_next(_session: object, found: Exit) -> None:
        log.append(found.code or 0)
        if len(log) < 20:
            minder.start(sh(f"exit {len(log)}"))
        else:
            done.set()

    with Minder(on_exit=starts_the_next) as minder:
        minder.start(sh("exit 0"))
        assert done.wait(PATIENCE_S)
    assert log == list(range(20))


def test_a_command_that_was_ordered_can_be_killed_before_it_is_known_to_run(minder: Minder) -> None:
    for _ in range(20):
        session = minder.start(WAITING)
        session.kill()
        found = session.wait(PATIENCE_S)
        assert found is not None
        assert found.signal == signal.SIGKILL


def test_a_hundred_commands_are_ordered_without_waiting_for_any(minder: Minder) -> None:
    sessions = [minder.start(sh(f"exit {number}")) for number in range(100)]
    assert [found.code for session in sessions if (found := session.wait(PATIENCE_S))] == list(range(100))


def test_two_hundred_commands_leave_no_descriptor_no_zombie_and_no_memory_of_them(minder: Minder) -> None:
    minder.spawn(sh("exit")).wait(PATIENCE_S)
    before = open_descriptors(minder)
    sessions = [minder.spawn(sh(f"exit {number % 7}"), stdout=1, stderr=2) for number in range(200)]
    codes = [found.code for session in sessions if (found := session.wait(PATIENCE_S))]
    assert codes == [number % 7 for number in range(200)]
    assert open_descriptors(minder) == before
    assert children_of(minder.pid) == []
    assert minder.sessions == []


def test_a_client_that_does_not_listen_does_not_stop_the_minder() -> None:
    """While `on_exit` blocks, reports pile up in the minder, which goes on starting and burying."""
    go_on = threading.Event()
    log: list[int] = []

    def blocks(_session: object, _found: object) -> None:
        go_on.wait(PATIENCE_S)
        log.append(1)

    with Minder(on_exit=blocks) as minder, ThreadPoolExecutor(1) as other:
        first = minder.spawn(sh("exit"))
        first.wait(PATIENCE_S)
        many = other.submit(lambda: [minder.spawn(sh("exit")) for _ in range(100)])
        until(lambda: children_of(minder.pid) == [])
        assert log == []
        go_on.set()
        for session in many.result(PATIENCE_S):
            session.wait(PATIENCE_S)
    assert len(log) == 101
