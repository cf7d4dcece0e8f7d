"""Warm workers: isolated calls, each with one outcome, and a pool that is whole again after every loss."""

from __future__ import annotations

import operator
import os
import signal
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
from rota.host.reaper_client import Minder
from rota.host.worker_pool import EARLY_DEATHS_MAX, WarmWorkers
from rota.model.work import Limits
from tests.host import tasks
from tests.host.support import PATIENCE_S, Pipe, dies, open_descriptors, sh, until, watch


@pytest.fixture(scope="module")
def one_pool() -> Iterator[WarmWorkers]:
    with Minder() as minder, WarmWorkers(minder, 2, preload=["tests.host.tasks"]) as pool:
        yield pool


@pytest.fixture
def pool(one_pool: WarmWorkers) -> Iterator[WarmWorkers]:
    """One pool for most tests: whatever a test does to it, it must be whole again."""
    yield one_pool
    whole(one_pool)


def whole(pool: WarmWorkers) -> None:
    """The pool has all its workers again, and they work."""
    until(lambda: pool.idle == 2)
    assert pool.call(operator.add, (1, 1)).value == 2


# --- how a call ends ----------------------------------------------------------------------------------


def test_a_function_returns(pool: WarmWorkers) -> None:
    outcome = pool.call(divmod, (17, 5))
    assert (outcome.kind, outcome.value, outcome.ok) == ("returned", (3, 2), True)
    assert pool.call(int, ("ff",), {"base": 16}).value == 255


def test_it_runs_in_another_process_that_knows_what_it_is(pool: WarmWorkers) -> None:
    pid, parent, knows = pool.call(tasks.who).value
    assert pid != os.getpid()
    assert parent == pool._session.pid
    assert knows
    assert tasks.who()[2] is False


def test_what_it_raises_comes_back_as_itself_with_where_it_was_raised(pool: WarmWorkers) -> None:
    outcome = pool.call(tasks.fails)
    assert outcome.kind == "raised"
    assert isinstance(outcome.error, LookupError)
    assert (outcome.error_type, outcome.message) == ("LookupError", "as it must")
    assert "in fails" in outcome.traceback


def test_an_exception_that_cannot_be_made_again_comes_back_in_words(pool: WarmWorkers) -> None:
    outcome = pool.call(tasks.raises_unsendable)
    assert (outcome.kind, outcome.error) == ("raised", None)
    assert (outcome.error_type, outcome.message) == ("Unsendable", "this and that")


@pytest.mark.parametrize(("function", "name"), [(tasks.leaves, "SystemExit"), (tasks.interrupts, "KeyboardInterrupt")])
def test_what_would_end_a_program_only_ends_the_call(pool: WarmWorkers, function: Any, name: str) -> None:
    outcome = pool.call(function)
    assert (outcome.kind, outcome.error_type) == ("raised", name)


def test_a_value_that_cannot_be_sent(pool: WarmWorkers) -> None:
    outcome = pool.call(tasks.returns_a_lambda)
    assert outcome.kind == "unpicklable"
    assert "lambda" in outcome.message


def test_a_value_that_can_be_sent_and_not_be_made_again(pool: WarmWorkers) -> None:
    outcome = pool.call(tasks.returns_evil)
    assert (outcome.kind, outcome.error_type, outcome.message) == ("unpicklable", "ValueError", "not here")


def test_a_function_that_the_worker_cannot_find(pool: WarmWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_here() -> None: ...

    only_here.__qualname__ = "only_here"
    only_here.__module__ = "tests.host.tasks"
    monkeypatch.setattr(tasks, "only_here", only_here, raising=False)
    outcome = pool.call(only_here)
    assert (outcome.kind, outcome.error_type) == ("unloadable", "AttributeError")


def test_a_call_that_cannot_be_sent_is_refused_and_no_worker_is_taken(pool: WarmWorkers) -> None:
    with pytest.raises(InvalidInput, match="cannot be sent to another process"):
        pool.call(lambda: 1)
    with pytest.raises(InvalidInput):
        pool.call(tasks.echo, (threading.Lock(),))
    assert pool.idle == 2


def test_a_call_longer_than_its_limit_is_refused(pool: WarmWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_messages, "CALL_BYTES_MAX", 1_000)
    with pytest.raises(LimitExceeded) as refused:
        pool.call(tasks.echo, ("x" * 1_000,))
    assert refused.value.limit == "call_bytes_max"


def test_large_values_travel_both_ways(pool: WarmWorkers) -> None:
    value = os.urandom(20_000_000)
    assert pool.call(tasks.echo, (value,)).value == value


# --- how a worker ends --------------------------------------------------------------------------------


def test_a_worker_that_exits_takes_only_its_call_with_it(pool: WarmWorkers) -> None:
    outcome = pool.call(os._exit, (3,))
    assert (outcome.kind, outcome.code, outcome.message) == ("crashed", 3, "the worker ended with code 3")


@pytest.mark.parametrize(("function", "number"), [(tasks.segfaults, signal.SIGSEGV), (os.abort, signal.SIGABRT)])
def test_a_worker_that_crashes_takes_only_its_call_with_it(pool: WarmWorkers, function: Any, number: int) -> None:
    outcome = pool.call(function)
    assert (outcome.kind, outcome.signal) == ("crashed", number)


def test_crash_after_crash_the_pool_refills(pool: WarmWorkers) -> None:
    for code in range(3 * EARLY_DEATHS_MAX):
        assert pool.call(os._exit, (code,)).code == code


def test_what_a_crashed_function_started_is_killed_with_it(pool: WarmWorkers) -> None:
    seen: list[int] = []

    def sees(pid: int) -> None:
        seen.append(watch(pid))
        call.tell("now die")

    call = pool.start(tasks.starts_a_child_and_dies, on_note=sees)
    assert call.outcome().kind == "crashed"
    assert dies(*seen)


def test_a_call_past_its_time_is_really_killed(minder: Minder) -> None:
    clock = ManualClock()
    with WarmWorkers(minder, 1, clock=clock) as pool, ThreadPoolExecutor(1) as other:
        call = pool.start(signal.pause, timeout_s=10)
        waits = other.submit(call.outcome)
        clock.until_parked()  # the watchdog
        clock.advance(9.9)
        assert not waits.done()
        clock.advance(0.1)
        outcome = waits.result(PATIENCE_S)
        assert (outcome.kind, outcome.signal) == ("timed_out", signal.SIGKILL)
        assert pool.call(operator.add, (1, 1), timeout_s=10).value == 2


def test_a_call_in_time_is_not_killed_later(minder: Minder) -> None:
    clock = ManualClock()
    with WarmWorkers(minder, 1, clock=clock) as pool:
        first = pool.call(tasks.who, timeout_s=1).value
        clock.advance(100)
        assert pool.call(tasks.who, timeout_s=1).value == first


def test_a_stopped_worker_is_killed_when_its_time_is_over(minder: Minder) -> None:
    clock = ManualClock()
    with WarmWorkers(minder, 1, clock=clock) as pool, ThreadPoolExecutor(1) as other:
        pid, *_ = pool.call(tasks.who).value
        os.kill(pid, signal.SIGSTOP)
        call = other.submit(pool.call, tasks.echo, (b"x" * 5_000_000,), timeout_s=5)  # more than the line holds
        clock.until_parked()
        clock.advance(5)
        assert call.result(PATIENCE_S).kind == "timed_out"


def test_who_started_a_call_can_kill_it(pool: WarmWorkers) -> None:
    with Pipe() as pipe, ThreadPoolExecutor(1) as other:
        call = pool.start(tasks.repeats_until_told_to_stop, on_note=pipe.say)
        waits = other.submit(call.outcome)
        assert pipe.line() == "listening"
        call.kill()
        assert waits.result(PATIENCE_S).kind == "killed"
        call.kill()  # it is over: nothing happens


def test_asking_twice_for_the_outcome_gives_the_same(pool: WarmWorkers) -> None:
    call = pool.start(tasks.who)
    first = call.outcome()
    others = [pool.start(tasks.who) for _ in range(2)]
    assert call.outcome() is first
    assert all(other.outcome().ok for other in others)


def test_a_worker_that_dies_idle_is_replaced(pool: WarmWorkers) -> None:
    pid, *_ = pool.call(tasks.who).value
    gone = watch(pid)
    os.kill(pid, signal.SIGKILL)
    assert dies(gone)
    assert pool.call(tasks.who).value[0] != pid


def test_a_worker_lives_for_so_many_calls(minder: Minder) -> None:
    with WarmWorkers(minder, 1, calls_max=3) as pool:
        pids = [pool.call(tasks.who).value[0] for _ in range(7)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


def test_limits_hold_for_each_worker(minder: Minder) -> None:
    with WarmWorkers(minder, 1, limits=Limits(memory_bytes=150_000_000)) as pool:
        assert pool.call(tasks.grows, (300_000_000,)).error_type == "MemoryError"
        assert pool.call(tasks.grows, (1_000,)).value == 1_000


# --- speaking while it runs ---------------------------------------------------------------------------


def test_a_function_notes_things_to_its_caller_in_order(pool: WarmWorkers) -> None:
    heard: list[int] = []
    assert pool.call(tasks.notes, (1_000,), on_note=heard.append).value == 1_000
    assert heard == list(range(1_000))


def test_notes_from_several_threads_arrive_whole(pool: WarmWorkers) -> None:
    heard: list[str] = []
    assert pool.call(tasks.notes_from_threads, (20,), on_note=heard.append).ok
    assert heard == ["x" * 5_000] * 20


def test_a_caller_tells_its_function_to_stop(pool: WarmWorkers) -> None:
    with ThreadPoolExecutor(1) as other, Pipe() as pipe:
        call = pool.start(tasks.repeats_until_told_to_stop, on_note=pipe.say)
        waits = other.submit(call.outcome)
        assert pipe.line() == "listening"
        assert call.tell("soon")
        assert call.tell("stop")
        assert waits.result(PATIENCE_S).value == ["soon", "stop"]
        assert call.tell("too late") is False


def test_what_is_told_must_be_small(pool: WarmWorkers) -> None:
    call = pool.start(tasks.repeats_until_told_to_stop)
    with pytest.raises(LimitExceeded):
        call.tell("x" * 5_000)
    call.tell("stop")
    assert call.outcome().ok


def test_a_note_that_comes_after_its_call_is_nobodys(minder: Minder) -> None:
    with Pipe() as go, Pipe() as done, WarmWorkers(minder, 1, stdout=go.ours, stderr=done.theirs) as pool:
        pool.call(tasks.thread_that_notes_late, (1,))  # the worker's stdout is the pipe to read from
        go.say("now")
        assert done.line() == "said"
        heard: list[object] = []
        assert pool.call(tasks.notes, (5,), on_note=heard.append).ok
        assert heard == [0, 1, 2, 3, 4]


def test_a_callback_that_fails_is_the_callers_own_and_the_pool_is_whole_again(pool: WarmWorkers) -> None:
    def fails(_value: object) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        pool.call(tasks.repeats_until_told_to_stop, on_note=fails)


# --- the pool -----------------------------------------------------------------------------------------


def test_many_threads_share_few_workers(pool: WarmWorkers) -> None:
    with ThreadPoolExecutor(16) as threads:
        values = list(threads.map(lambda number: pool.call(divmod, (number, 7)).value, range(400)))
    assert values == [divmod(number, 7) for number in range(400)]
    assert pool.idle == 2


def test_calls_and_crashes_at_once_lose_nothing(pool: WarmWorkers) -> None:
    def one(number: int) -> tuple[str, object]:
        outcome = pool.call(os._exit, (4,)) if number % 5 == 0 else pool.call(tasks.echo, (number,))
        return outcome.kind, outcome.value

    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(one, range(100)))
    assert seen == [("crashed", None) if number % 5 == 0 else ("returned", number) for number in range(100)]


def test_a_worker_remembers_and_workers_do_not_share(minder: Minder) -> None:
    with WarmWorkers(minder, 1) as pool:
        assert pool.call(tasks.keep, (1,)).value == [1]
        assert pool.call(tasks.keep, (2,)).value == [1, 2]
        pool.call(os._exit, (0,))
        assert pool.call(tasks.keep, (3,)).value == [3]


def test_workers_draw_different_numbers(minder: Minder) -> None:
    with WarmWorkers(minder, 1, calls_max=1, preload=["random"]) as pool:
        assert len({pool.call(tasks.draws).value for _ in range(5)}) == 5


def test_the_environment_is_ours_or_the_one_that_was_given(
    minder: Minder, pool: WarmWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pool.call(tasks.environment, ("PATH",)).value == os.environ["PATH"]
    monkeypatch.setenv("SECRET", "x")
    with WarmWorkers(minder, 1, env={"PATH": "/bin"}) as scrubbed:
        assert scrubbed.call(tasks.environment, ("SECRET",)).value is None


def test_what_a_function_prints_is_out_before_its_answer(minder: Minder) -> None:
    with Pipe() as pipe, WarmWorkers(minder, 1, stdout=pipe.theirs) as pool:
        assert pool.call(tasks.prints, ("hello",)).ok
        assert pipe.line() == "hello"


def test_closing_ends_calls_under_way_and_every_worker(minder: Minder) -> None:
    pool = WarmWorkers(minder, 2)
    pid, *_ = pool.call(tasks.who).value
    gone = watch(pid)
    calls = [pool.start(signal.pause) for _ in range(2)]
    pool.close()
    pool.close()  # twice is once
    assert [call.outcome().kind for call in calls] == ["killed", "killed"]
    assert dies(gone)
    with pytest.raises(WorkersUnavailable, match="closed"):
        pool.call(tasks.who)


def test_who_waits_for_a_worker_when_the_pool_closes_is_told(minder: Minder) -> None:
    clock = ManualClock()
    pool = WarmWorkers(minder, 1, clock=clock)
    busy = pool.start(signal.pause)
    with ThreadPoolExecutor(1) as other:
        waits = other.submit(pool.call, tasks.who)
        clock.until_parked()
        pool.close()
        with pytest.raises(WorkersUnavailable):
            waits.result(PATIENCE_S)
    assert busy.outcome().kind == "killed"


def test_when_the_nursery_is_killed_its_calls_crash_and_another_takes_its_place(pool: WarmWorkers) -> None:
    with ThreadPoolExecutor(1) as other:
        call = pool.start(signal.pause)
        waits = other.submit(call.outcome)
        os.kill(pool._session.pid, signal.SIGKILL)
        outcome = waits.result(PATIENCE_S)
    assert outcome.kind == "crashed"


def test_when_the_minder_is_killed_the_pool_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with Minder() as minder, WarmWorkers(minder, 1) as pool:
        call = pool.start(signal.pause)
        os.kill(minder.pid, signal.SIGKILL)
        assert call.outcome().kind == "crashed"
        with pytest.raises(WorkersUnavailable):
            pool.call(tasks.who)
    assert "the minder" in caplog.text


def test_a_module_that_cannot_be_loaded_is_told_with_its_reason(minder: Minder) -> None:
    with pytest.raises(WorkersUnavailable, match="No module named 'no_such_module'"):
        WarmWorkers(minder, 1, preload=["no_such_module"])


def test_a_module_that_takes_for_ever_to_load_is_given_up(
    minder: Minder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow.py").write_text("import signal\nsignal.pause()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    clock = ManualClock()
    with ThreadPoolExecutor(1) as other:
        pool = other.submit(WarmWorkers, minder, 1, preload=["slow"], load_timeout_s=7, clock=clock)
        clock.until_parked()
        clock.advance(7)
        with pytest.raises(WorkersUnavailable, match="longer than 7 s"):
            pool.result(PATIENCE_S)


def test_workers_that_die_before_they_are_given_work_end_the_pool(
    minder: Minder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that makes every fork die: without a limit the pool would make workers for ever."""
    (tmp_path / "deadly.py").write_text("import os\nos.register_at_fork(after_in_child=lambda: os._exit(9))\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(WorkersUnavailable, match=r"die before they are given work: the worker ended with code 9"):
        _use_when_nobody_is_left(minder)


def _use_when_nobody_is_left(minder: Minder) -> None:
    with WarmWorkers(minder, 2, preload=["deadly"]) as pool:
        until(lambda: pool.idle == 0 and pool._failed is not None)
        pool.call(tasks.who)


def test_modules_that_start_threads_are_warned_about(
    minder: Minder, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    (tmp_path / "threaded.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    with WarmWorkers(minder, 1, preload=["threaded"]):
        assert "has started threads" in caplog.text


def test_a_module_that_listens_for_dead_children_itself_does_not_deafen_the_nursery(
    minder: Minder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jealous.py").write_text("import signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with WarmWorkers(minder, 1, preload=["jealous"]) as pool:
        assert pool.call(os._exit, (6,)).code == 6


@pytest.mark.parametrize("fields", [{"size": 0}, {"size": True}, {"size": 1, "calls_max": 0}])
def test_a_pool_that_nobody_can_mean_is_refused(minder: Minder, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        WarmWorkers(minder, **fields)


def test_calls_and_crashes_leave_no_descriptor_open(minder: Minder) -> None:
    minder.spawn(sh("exit")).wait(PATIENCE_S)  # by now it has opened all it ever will
    before = open_descriptors(minder)
    with WarmWorkers(minder, 2) as pool:
        for number in range(40):
            pool.call(os._exit, (0,)) if number % 4 == 0 else pool.call(tasks.echo, (number,))
    until(lambda: open_descriptors(minder) == before)


# --- the main module ----------------------------------------------------------------------------------

PROGRAM = """
from rota.host.reaper_client import Minder
from rota.host.worker_pool import WarmWorkers

class Thing:
    def __init__(self, number): self.number = number

def double(thing): return Thing(2 * thing.number)

{guard}
    with Minder() as minder, WarmWorkers(minder, 1, main=True) as pool:
        print(pool.call(double, (Thing(21),)).value.number)
"""


def run_program(tmp_path: Path, guard: str, *how: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(PROGRAM.format(guard=guard))
    command = [sys.executable, *(how or ("program.py",))]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.mark.parametrize("how", [("program.py",), ("-m", "program")], ids=["as a file", "as a module"])
def test_functions_and_classes_of_the_main_module_can_be_used(tmp_path: Path, how: tuple[str, ...]) -> None:
    done = run_program(tmp_path, 'if __name__ == "__main__":', *how)
    assert (done.stdout, done.returncode) == ("42\n", 0), done.stderr


def test_a_main_module_that_makes_its_pool_unguarded_is_told_what_to_do(tmp_path: Path) -> None:
    done = run_program(tmp_path, "if True:")
    assert done.returncode != 0
    assert "Put what the program does under if __name__" in done.stderr
