"""The worker pool: isolated calls, each with one outcome, and a pool that recovers after every loss."""

from __future__ import annotations

import operator
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rota.clock import ManualClock
from rota.errors import InvalidInput, LimitExceeded, WorkersUnavailable
from rota.host import worker_messages
from rota.host.reaper_client import ReaperClient
from rota.host.worker_pool import EARLY_EXITS_MAX, WorkerPool
from rota.model.work import Limits
from tests.host import tasks
from tests.host.support import PATIENCE_S, Pipe, dies, open_descriptors, sh, until, watch


@pytest.fixture(scope="module")
def one_pool() -> Iterator[WorkerPool]:
    with ReaperClient() as reaper, WorkerPool(reaper, 2, preload=["tests.host.tasks"]) as pool:
        yield pool


@pytest.fixture
def pool(one_pool: WorkerPool) -> Iterator[WorkerPool]:
    """A pool shared by most tests: after each test it must have recovered."""
    yield one_pool
    check_recovered(one_pool)


def check_recovered(pool: WorkerPool) -> None:
    """Check that the pool has all its workers again, and that they work."""
    until(lambda: pool.idle == 2)
    assert pool.call(operator.add, (1, 1)).value == 2


# --- how a call ends ----------------------------------------------------------------------------------


def test_a_result_is_unpickled_where_it_was_received() -> None:
    """It may be large: the CPU time in front of it is not taken off by a copy."""
    sender, receiver = (worker_messages.WorkerConnection(sock) for sock in socket.socketpair())
    sender.send_result(worker_messages.MessageKind.VALUE, 0.5, b"pickled")
    _kind, payload = receiver.receive() or (None, b"")
    cpu_s, pickled = worker_messages.unpack_result(payload)
    assert (cpu_s, bytes(pickled), pickled.obj is payload) == (0.5, b"pickled", True)
    for connection in (sender, receiver):
        connection.close()


def test_a_function_returns(pool: WorkerPool) -> None:
    outcome = pool.call(divmod, (17, 5))
    assert (outcome.kind, outcome.value, outcome.ok) == ("returned", (3, 2), True)
    assert pool.call(int, ("ff",), {"base": 16}).value == 255


def test_a_call_runs_in_another_process(pool: WorkerPool) -> None:
    pid, parent, in_worker = pool.call(tasks.process_info).value
    assert pid != os.getpid()
    assert parent == pool._fork_server.session.pid
    assert in_worker
    assert tasks.process_info()[2] is False


def test_an_exception_is_returned_with_its_traceback(pool: WorkerPool) -> None:
    outcome = pool.call(tasks.fails)
    assert outcome.kind == "raised"
    assert isinstance(outcome.error, LookupError)
    assert (outcome.error_type, outcome.message) == ("LookupError", "on purpose")
    assert "in fails" in outcome.traceback


def test_an_exception_that_cannot_be_unpickled_is_returned_as_text(pool: WorkerPool) -> None:
    outcome = pool.call(tasks.raises_unsendable)
    assert (outcome.kind, outcome.error) == ("raised", None)
    assert (outcome.error_type, outcome.message) == ("Unsendable", "this and that")


@pytest.mark.parametrize(("function", "name"), [(tasks.leaves, "SystemExit"), (tasks.interrupts, "KeyboardInterrupt")])
def test_an_exception_that_would_end_a_program_only_ends_the_call(pool: WorkerPool, function: Any, name: str) -> None:
    outcome = pool.call(function)
    assert (outcome.kind, outcome.error_type) == ("raised", name)


def test_a_value_that_cannot_be_pickled(pool: WorkerPool) -> None:
    outcome = pool.call(tasks.returns_a_lambda)
    assert outcome.kind == "unpicklable"
    assert "lambda" in outcome.message


def test_a_value_that_cannot_be_unpickled(pool: WorkerPool) -> None:
    outcome = pool.call(tasks.returns_undecodable)
    assert (outcome.kind, outcome.error_type, outcome.message) == ("unpicklable", "ValueError", "not here")


def test_a_function_that_the_worker_cannot_import(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_here() -> None: ...

    only_here.__qualname__ = "only_here"
    only_here.__module__ = "tests.host.tasks"
    monkeypatch.setattr(tasks, "only_here", only_here, raising=False)
    outcome = pool.call(only_here)
    assert (outcome.kind, outcome.error_type) == ("unloadable", "AttributeError")


def test_a_call_that_cannot_be_pickled_is_refused_and_takes_no_worker(pool: WorkerPool) -> None:
    with pytest.raises(InvalidInput, match="cannot be sent to another process"):
        pool.call(lambda: 1)
    with pytest.raises(InvalidInput):
        pool.call(tasks.echo, (threading.Lock(),))
    assert pool.idle == 2


def test_a_call_longer_than_its_limit_is_refused(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_messages, "CALL_BYTES_MAX", 1_000)
    with pytest.raises(LimitExceeded) as refused:
        pool.call(tasks.echo, ("x" * 1_000,))
    assert refused.value.limit == "call_bytes_max"


def test_large_values_can_be_sent_and_returned(pool: WorkerPool) -> None:
    value = os.urandom(20_000_000)
    assert pool.call(tasks.echo, (value,)).value == value


# --- how a worker ends --------------------------------------------------------------------------------


def test_a_worker_that_exits_ends_only_its_call(pool: WorkerPool) -> None:
    outcome = pool.call(os._exit, (3,))
    assert (outcome.kind, outcome.code, outcome.message) == ("crashed", 3, "the worker ended with code 3")


@pytest.mark.parametrize(("function", "number"), [(tasks.segfaults, signal.SIGSEGV), (os.abort, signal.SIGABRT)])
def test_a_worker_that_crashes_ends_only_its_call(pool: WorkerPool, function: Any, number: int) -> None:
    outcome = pool.call(function)
    assert (outcome.kind, outcome.signal) == ("crashed", number)


def test_the_pool_recovers_after_each_crash(pool: WorkerPool) -> None:
    for code in range(3 * EARLY_EXITS_MAX):
        assert pool.call(os._exit, (code,)).code == code


def test_a_process_started_by_a_crashed_function_is_killed(pool: WorkerPool) -> None:
    seen: list[int] = []

    def on_report(pid: int) -> None:
        seen.append(watch(pid))
        call.notify("exit")

    call = pool.start(tasks.starts_a_child_and_dies, on_report=on_report)
    assert call.outcome().kind == "crashed"
    assert dies(*seen)


def test_a_call_is_killed_after_its_timeout(reaper: ReaperClient) -> None:
    clock = ManualClock()
    with WorkerPool(reaper, 1, clock=clock) as pool, ThreadPoolExecutor(1) as other:
        call = pool.start(signal.pause, timeout_s=10)
        waits = other.submit(call.outcome)
        clock.until_parked()  # the watchdog
        clock.advance(9.9)
        assert not waits.done()
        clock.advance(0.1)
        outcome = waits.result(PATIENCE_S)
        assert (outcome.kind, outcome.signal) == ("timed_out", signal.SIGKILL)
        assert pool.call(operator.add, (1, 1), timeout_s=10).value == 2


def test_a_call_within_its_timeout_is_not_killed_later(reaper: ReaperClient) -> None:
    clock = ManualClock()
    with WorkerPool(reaper, 1, clock=clock) as pool:
        first = pool.call(tasks.process_info, timeout_s=1).value
        clock.advance(100)
        assert pool.call(tasks.process_info, timeout_s=1).value == first


def test_a_stopped_worker_is_killed_after_the_timeout(reaper: ReaperClient) -> None:
    clock = ManualClock()
    with WorkerPool(reaper, 1, clock=clock) as pool, ThreadPoolExecutor(1) as other:
        pid, *_ = pool.call(tasks.process_info).value
        os.kill(pid, signal.SIGSTOP)
        call = other.submit(pool.call, tasks.echo, (b"x" * 5_000_000,), timeout_s=5)  # more than the connection buffers
        clock.until_parked()
        clock.advance(5)
        assert call.result(PATIENCE_S).kind == "timed_out"


def test_a_call_can_be_killed(pool: WorkerPool) -> None:
    with Pipe() as pipe, ThreadPoolExecutor(1) as other:
        call = pool.start(tasks.reads_notices_until_stop, on_report=pipe.write_line)
        waits = other.submit(call.outcome)
        assert pipe.line() == "listening"
        call.kill()
        assert waits.result(PATIENCE_S).kind == "killed"
        call.kill()  # it is over: this does nothing


def test_the_outcome_can_be_read_twice(pool: WorkerPool) -> None:
    call = pool.start(tasks.process_info)
    first = call.outcome()
    others = [pool.start(tasks.process_info) for _ in range(2)]
    assert call.outcome() is first
    assert all(other.outcome().ok for other in others)


def test_a_reserved_worker_keeps_what_a_call_left_there_and_is_not_given_to_others(pool: WorkerPool) -> None:
    worker = pool.reserve()
    assert pool.start(tasks.keep, ("first",), worker=worker).outcome().value == ["first"]
    pid = pool.start(os.getpid, worker=worker).outcome().value
    assert pool.idle == 1
    assert pid not in {pool.call(os.getpid).value for _ in range(3)}
    assert pool.start(tasks.keep, ("second",), worker=worker).outcome().value == ["first", "second"]
    gone = watch(pid)
    pool.release(worker)
    assert dies(gone)


def test_a_reserved_worker_that_is_lost_ends_its_call_and_is_replaced(pool: WorkerPool) -> None:
    worker = pool.reserve()
    assert pool.start(os._exit, (4,), worker=worker).outcome().code == 4
    assert pool.start(os.getpid, worker=worker).outcome().kind == "crashed"
    pool.release(worker)


def test_a_call_ends_with_its_worker_although_another_process_has_the_connection(pool: WorkerPool) -> None:
    daemons: list[int] = []
    outcome = pool.call(tasks.leaves_its_connection_to_a_daemon, on_report=daemons.append)
    assert (outcome.kind, outcome.code) == ("crashed", 3)
    gone = watch(daemons[0])
    os.kill(daemons[0], signal.SIGKILL)
    assert dies(gone)


def test_a_worker_that_dies_idle_is_replaced(pool: WorkerPool) -> None:
    pid, *_ = pool.call(tasks.process_info).value
    gone = watch(pid)
    os.kill(pid, signal.SIGKILL)
    assert dies(gone)
    assert pool.call(tasks.process_info).value[0] != pid


def test_a_worker_is_replaced_after_calls_max_calls(reaper: ReaperClient) -> None:
    with WorkerPool(reaper, 1, calls_max=3) as pool:
        pids = [pool.call(tasks.process_info).value[0] for _ in range(7)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


def test_limits_apply_to_each_worker(reaper: ReaperClient) -> None:
    with WorkerPool(reaper, 1, limits=Limits(memory_bytes=150_000_000)) as pool:
        assert pool.call(tasks.grows, (300_000_000,)).error_type == "MemoryError"
        assert pool.call(tasks.grows, (1_000,)).value == 1_000


# --- messages during a call ---------------------------------------------------------------------------


def test_reports_arrive_in_order(pool: WorkerPool) -> None:
    received: list[int] = []
    assert pool.call(tasks.reports, (1_000,), on_report=received.append).value == 1_000
    assert received == list(range(1_000))


def test_reports_from_several_threads_arrive_complete(pool: WorkerPool) -> None:
    received: list[str] = []
    assert pool.call(tasks.reports_from_threads, (20,), on_report=received.append).ok
    assert received == ["x" * 5_000] * 20


def test_a_caller_can_notify_its_function(pool: WorkerPool) -> None:
    with ThreadPoolExecutor(1) as other, Pipe() as pipe:
        call = pool.start(tasks.reads_notices_until_stop, on_report=pipe.write_line)
        waits = other.submit(call.outcome)
        assert pipe.line() == "listening"
        assert call.notify("soon")
        assert call.notify("stop")
        assert waits.result(PATIENCE_S).value == ["soon", "stop"]
        assert call.notify("too late") is False


def test_a_notice_must_be_small(pool: WorkerPool) -> None:
    call = pool.start(tasks.reads_notices_until_stop)
    with pytest.raises(LimitExceeded):
        call.notify("x" * 5_000)
    call.notify("stop")
    assert call.outcome().ok


def test_a_report_after_its_call_is_dropped(reaper: ReaperClient) -> None:
    with Pipe() as go, Pipe() as done, WorkerPool(reaper, 1, stdout=go.ours, stderr=done.theirs) as pool:
        pool.call(tasks.thread_that_reports_late, (1,))  # descriptor 1 of the worker is the pipe it reads
        go.write_line("now")
        assert done.line() == "reported"
        received: list[object] = []
        assert pool.call(tasks.reports, (5,), on_report=received.append).ok
        assert received == [0, 1, 2, 3, 4]


def test_an_exception_of_on_report_is_raised_and_the_pool_recovers(pool: WorkerPool) -> None:
    def fails(_value: object) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        pool.call(tasks.reads_notices_until_stop, on_report=fails)


# --- the pool -----------------------------------------------------------------------------------------


def test_many_threads_share_few_workers(pool: WorkerPool) -> None:
    with ThreadPoolExecutor(16) as threads:
        values = list(threads.map(lambda number: pool.call(divmod, (number, 7)).value, range(400)))
    assert values == [divmod(number, 7) for number in range(400)]
    assert pool.idle == 2


def test_concurrent_calls_and_crashes_lose_nothing(pool: WorkerPool) -> None:
    def one(number: int) -> tuple[str, object]:
        outcome = pool.call(os._exit, (4,)) if number % 5 == 0 else pool.call(tasks.echo, (number,))
        return outcome.kind, outcome.value

    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(one, range(100)))
    assert seen == [("crashed", None) if number % 5 == 0 else ("returned", number) for number in range(100)]


def test_calls_of_one_worker_share_state_and_workers_do_not(reaper: ReaperClient) -> None:
    with WorkerPool(reaper, 1) as pool:
        assert pool.call(tasks.keep, (1,)).value == [1]
        assert pool.call(tasks.keep, (2,)).value == [1, 2]
        pool.call(os._exit, (0,))
        assert pool.call(tasks.keep, (3,)).value == [3]


def test_workers_have_different_random_numbers(reaper: ReaperClient) -> None:
    with WorkerPool(reaper, 1, calls_max=1, preload=["random"]) as pool:
        assert len({pool.call(tasks.draws).value for _ in range(5)}) == 5


def test_the_environment_is_inherited_or_the_given_one(
    reaper: ReaperClient, pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pool.call(tasks.environment, ("PATH",)).value == os.environ["PATH"]
    monkeypatch.setenv("SECRET", "x")
    with WorkerPool(reaper, 1, env={"PATH": "/bin"}) as scrubbed:
        assert scrubbed.call(tasks.environment, ("SECRET",)).value is None


def test_output_is_flushed_before_the_result(reaper: ReaperClient) -> None:
    with Pipe() as pipe, WorkerPool(reaper, 1, stdout=pipe.theirs) as pool:
        assert pool.call(tasks.prints, ("hello",)).ok
        assert pipe.line() == "hello"


def test_closing_kills_running_calls_and_every_worker(reaper: ReaperClient) -> None:
    pool = WorkerPool(reaper, 2)
    pid, *_ = pool.call(tasks.process_info).value
    gone = watch(pid)
    calls = [pool.start(signal.pause) for _ in range(2)]
    pool.close()
    pool.close()  # a second close does nothing
    assert [call.outcome().kind for call in calls] == ["killed", "killed"]
    assert dies(gone)
    with pytest.raises(WorkersUnavailable, match="closed"):
        pool.call(tasks.process_info)


def test_a_caller_that_waits_for_a_worker_fails_when_the_pool_closes(reaper: ReaperClient) -> None:
    clock = ManualClock()
    pool = WorkerPool(reaper, 1, clock=clock)
    busy = pool.start(signal.pause)
    with ThreadPoolExecutor(1) as other:
        waits = other.submit(pool.call, tasks.process_info)
        clock.until_parked()
        pool.close()
        with pytest.raises(WorkersUnavailable):
            waits.result(PATIENCE_S)
    assert busy.outcome().kind == "killed"


def test_a_killed_fork_server_is_replaced_and_its_calls_crash(pool: WorkerPool) -> None:
    with ThreadPoolExecutor(1) as other:
        call = pool.start(signal.pause)
        waits = other.submit(call.outcome)
        os.kill(pool._fork_server.session.pid, signal.SIGKILL)
        outcome = waits.result(PATIENCE_S)
    assert outcome.kind == "crashed"


def test_a_pool_whose_reaper_was_killed_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    with ReaperClient() as reaper, WorkerPool(reaper, 1) as pool:
        call = pool.start(signal.pause)
        os.kill(reaper.pid, signal.SIGKILL)
        assert call.outcome().kind == "crashed"
        with pytest.raises(WorkersUnavailable):
            pool.call(tasks.process_info)
    assert "the reaper" in caplog.text


def test_calls_of_a_pool_that_has_failed_end_as_crashed(reaper: ReaperClient) -> None:
    """Nobody has asked for their end, so their runs are tried again."""
    pool = WorkerPool(reaper, 1)
    call = pool.start(signal.pause)
    with pool._changed:
        pool._failed = "its workers die"
    pool.close()
    assert call.outcome().kind == "crashed"


def test_a_module_that_cannot_be_imported_is_reported(reaper: ReaperClient) -> None:
    with pytest.raises(WorkersUnavailable, match="No module named 'no_such_module'"):
        WorkerPool(reaper, 1, preload=["no_such_module"])


def test_an_import_that_takes_too_long_is_reported(
    reaper: ReaperClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text("import signal\nsignal.pause()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    clock = ManualClock()
    with ThreadPoolExecutor(1) as other:
        pool = other.submit(WorkerPool, reaper, 1, preload=["slow"], load_timeout_s=7, clock=clock)
        clock.until_parked()
        clock.advance(7)
        with pytest.raises(WorkersUnavailable, match="longer than 7 s"):
            pool.result(PATIENCE_S)


def test_a_pool_fails_when_its_workers_exit_before_they_run_a_call(
    reaper: ReaperClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that makes every fork exit: without a limit the pool would fork workers endlessly."""
    (tmp_path / "deadly.py").write_text("import os\nos.register_at_fork(after_in_child=lambda: os._exit(9))\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(WorkersUnavailable, match=r"exit before they run a call: the worker ended with code 9"):
        _call_when_no_worker_is_left(reaper)


def _call_when_no_worker_is_left(reaper: ReaperClient) -> None:
    with WorkerPool(reaper, 2, preload=["deadly"]) as pool:
        until(lambda: pool.idle == 0 and pool._failed is not None)
        pool.call(tasks.process_info)


def test_a_preloaded_module_that_starts_threads_causes_a_warning(
    reaper: ReaperClient, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "threaded.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with WorkerPool(reaper, 1, preload=["threaded"]):
        assert "has started threads" in caplog.text


def test_a_module_that_replaces_the_sigchld_handler_does_not_break_the_fork_server(
    reaper: ReaperClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "handler_module.py").write_text("import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with WorkerPool(reaper, 1, preload=["handler_module"]) as pool:
        assert pool.call(os._exit, (6,)).code == 6


@pytest.mark.parametrize("fields", [{"size": 0}, {"size": True}, {"size": 1, "calls_max": 0}])
def test_invalid_pool_settings_are_refused(reaper: ReaperClient, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        WorkerPool(reaper, **fields)


def test_calls_and_crashes_leak_no_descriptor(reaper: ReaperClient) -> None:
    reaper.spawn(sh("exit")).wait(PATIENCE_S)  # now the reaper has opened all its permanent descriptors
    before = open_descriptors(reaper)
    with WorkerPool(reaper, 2) as pool:
        for number in range(40):
            pool.call(os._exit, (0,)) if number % 4 == 0 else pool.call(tasks.echo, (number,))
    until(lambda: open_descriptors(reaper) == before)


# --- the main module ----------------------------------------------------------------------------------

PROGRAM = """
from rota.host.reaper_client import ReaperClient
from rota.host.worker_pool import WorkerPool

class Thing:
    def __init__(self, number): self.number = number

def double(thing): return Thing(2 * thing.number)

{guard}
    with ReaperClient() as reaper, WorkerPool(reaper, 1, main={main}) as pool:
        print(pool.call(double, (Thing(21),)).value.number)
"""


def run_program(tmp_path: Path, guard: str, *how: str, main: bool = True) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(PROGRAM.format(guard=guard, main=main))
    command = [sys.executable, *(how or ("program.py",))]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("main", [True, False], ids=["loaded before", "loaded on demand"])
@pytest.mark.parametrize("how", [("program.py",), ("-m", "program")], ids=["as a file", "as a module"])
def test_functions_and_classes_of_the_main_module_can_be_called(
    tmp_path: Path, how: tuple[str, ...], main: bool
) -> None:
    done = run_program(tmp_path, 'if __name__ == "__main__":', *how, main=main)
    assert (done.stdout, done.returncode) == ("42\n", 0), done.stderr


def test_a_main_module_without_a_guard_gets_a_hint(tmp_path: Path) -> None:
    done = run_program(tmp_path, "if True:")
    assert done.returncode != 0
    assert "Put the actions of the program under if __name__" in done.stderr
