"""Python functions as agents: the same on a thread and in a worker process, except for what only a process can do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.clock import ManualClock
from rota.errors import FleetInvalid
from rota.fleet.agent_settings import RunPlan
from rota.fleet.runners import registry
from rota.fleet.runners.callable import CallableRunner
from rota.fleet.runners.contract import Outcome
from rota.fleet.runners.resources import Workshop
from rota.model.work import Limits
from tests.host.support import dies, until, watch
from tests.runtime import functions
from tests.runtime.lines import RecordingLine, Running, work

KINDS = ["thread", "process"]


@pytest.fixture(scope="module")
def runner() -> Iterator[CallableRunner]:
    with Workshop() as shop:
        named = {name: function for name, function in vars(functions).items() if callable(function)}
        runner = CallableRunner(shop, named, slots=2)
        yield runner
        runner.close()


def plan(kind: str, **fields: Any) -> RunPlan:
    return RunPlan(runner="callable", isolation=kind, **fields)  # type: ignore[arg-type]


Run = Callable[..., Outcome]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(runner: CallableRunner, line: RecordingLine, kind: str) -> Run:
    def run(name: str, payload: dict[str, Any] | None = None, **fields: Any) -> Outcome:
        return runner.run(work(plan(kind, **fields), payload, name=name), line)

    return run


# --- the same in both ----------------------------------------------------------------------------------


def test_a_function_is_given_its_run_and_says_what_it_does(
    runner: CallableRunner, line: RecordingLine, kind: str
) -> None:
    line.child_ended(1004, "read")
    given = work(plan(kind), {"url": "u"}, checkpoint={"next": 0}, deadline=5.0, workspace="/w", name="summarise")
    outcome = runner.run(given, line)
    assert outcome.exit_kind == "completed"
    assert outcome.result == {
        "url": "u", "words": 3, "key": "7:2:41", "saved": {"next": 0}, "left": {"tokens": 900},
        "remaining": {"tokens": 900}, "child": "read", "all": ["completed"], "cancelled": False, "deadline": 5.0,
        "payload": {"url": "u"}, "workspace": "/w", "agent": "summarise", "trigger": "manual",
    }  # fmt: skip
    assert line.said == [
        ("charge", {"tokens": 100}),
        ("checkpoint", {"next": 1}),
        ("throttled", 30.0, "api"),
        ("spawn", "reader", {"page": 3}, {"tokens": 5}, {"priority": 2}),
        ("wait_for", [1004], None),
        ("wait_for", [1004], None),
    ]
    assert line.text == "reading u\n"
    assert line.stops is not None
    assert set(outcome.usage) == {"cpu_s", "wall_s"}


def test_a_function_may_do_without_its_run_and_may_be_async(run: Run) -> None:
    assert run("plain", {"a": 1, "b": 2}).result == 3
    assert run("adds", {"a": 1, "b": 2}).result == 3
    assert run("annotated", {"a": 5}).result == [7, 5]


def test_a_function_is_found_by_its_name_behind_what_stands_around_it(run: Run) -> None:
    assert run("x", {"a": 4}, function="tests.runtime.functions:behind").result == 8


@pytest.mark.parametrize(
    "where", ["tests.runtime.functions:nothing", "no.such.module:f", "tests.runtime.functions:NOT_A_FUNCTION", "%"]
)
def test_a_function_that_is_not_there_says_so(run: Run, where: str) -> None:
    outcome = run("x", function=where)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "not_found")
    assert where in outcome.result["error"]


def test_an_agent_without_a_function_says_so(run: Run) -> None:
    assert run("stranger").result == {"error": "no function is registered for agent 'stranger'"}


def test_a_payload_that_does_not_fit_is_a_readable_sentence(run: Run) -> None:
    outcome = run("plain", {"a": 1, "c": 2})
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "payload_mismatch")
    assert "cannot be called with this payload" in outcome.result["error"]
    assert "(it has a, c)" in outcome.result["error"]


def test_what_a_function_raises_is_its_outcome(run: Run) -> None:
    outcome = run("raises")
    assert outcome.exit_kind == "failed"
    assert (outcome.result["error"], outcome.result["type"]) == ("ValueError: no network", "ValueError")
    assert "functions.py" in outcome.result["traceback"]
    assert "calling.py" not in outcome.result["traceback"]


def test_nothing_that_leaves_a_function_leaves_the_run(run: Run) -> None:
    assert run("leaves", {"how": "exit"}).result["type"] == "SystemExit"
    assert run("leaves", {"how": "interrupt"}).result["type"] == "KeyboardInterrupt"
    assert "could not be read" in run("unreadable").result["error"]
    assert run("surrogates").result["error"] == "ValueError: ?"


def test_a_result_is_json_of_a_limited_size(run: Run) -> None:
    assert run("returns", {"what": "set"}).result == [1]
    assert run("returns", {"what": "object"}).outcome == "result_not_json"
    assert run("returns", {"what": "key"}).outcome == "result_not_json"
    assert run("returns", {"what": "lone"}).outcome == "result_not_json"
    assert run("returns", {"what": "large"}).outcome == "result_too_large"


def test_yielding_is_not_an_end(run: Run) -> None:
    outcome = run("yields")
    assert (outcome.exit_kind, outcome.back_in_s) == ("completed", 2.5)


def test_what_is_refused_is_raised_where_it_was_asked(run: Run) -> None:
    assert run("refused").result == ["UnknownPid", "LedgerInvalidAmount", "WaitTimeout"]


def test_threads_of_a_function_may_ask_at_once(run: Run) -> None:
    assert run("in_threads").result == {"tokens": 900}


@pytest.mark.parametrize("name", ["looks", "waits"])
def test_a_function_that_is_asked_to_stop_ends_as_cancelled(
    runner: CallableRunner, line: RecordingLine, kind: str, name: str
) -> None:
    running = Running(runner, work(plan(kind), name=name), line)
    line.until(lambda: bool(line.text))
    assert line.ask_to_stop("drain")
    outcome = running.outcome()
    assert (outcome.exit_kind, outcome.result) == ("cancelled", {"error": "it was asked to stop: drain"})


def test_an_async_function_may_save_its_work_when_it_is_cancelled(
    runner: CallableRunner, line: RecordingLine, kind: str
) -> None:
    running = Running(runner, work(plan(kind), name="tidies"), line)
    line.until(lambda: bool(line.text))
    assert line.ask_to_stop("drain")
    assert running.outcome().exit_kind == "cancelled"
    assert line.said == [("checkpoint", {"why": "drain"})]


# --- on a thread ---------------------------------------------------------------------------------------


def test_on_a_thread_it_can_only_be_asked_and_what_is_not_in_force_is_said(
    runner: CallableRunner, line: RecordingLine
) -> None:
    limits = Limits(cpu_s=5, memory_bytes=10**9)
    runner.run(work(plan("thread", limits=limits), {"a": 1, "b": 1}, name="plain"), line)
    assert line.stops is not None
    assert (line.stops.terminate(), line.stops.kill()) == (False, False)
    assert [advisory.split()[0] for advisory in line.advisories] == ["cpu_s", "memory_bytes"]


def test_a_run_that_was_asked_to_stop_before_it_began_is_cancelled_at_once(runner: CallableRunner) -> None:
    line = RecordingLine()
    line._reason = "drain"
    assert runner.run(work(plan("thread"), name="waits"), line).exit_kind == "cancelled"


# --- in a process --------------------------------------------------------------------------------------


def test_in_a_process_it_can_be_killed_and_the_next_one_runs(runner: CallableRunner, line: RecordingLine) -> None:
    running = Running(runner, work(plan("process"), name="hangs"), line)
    line.until(lambda: bool(line.text))
    worker = watch(int(line.text.split()[1]))
    assert line.stops is not None
    assert line.stops.terminate() is False
    assert line.stops.kill()
    assert running.outcome().exit_kind == "cancelled"
    assert dies(worker)
    assert runner.run(work(plan("process"), {"a": 1, "b": 2}, name="plain"), line).result == 3


def test_a_crash_ends_its_run_alone(runner: CallableRunner, line: RecordingLine) -> None:
    outcome = runner.run(work(plan("process"), name="dies"), line)
    assert (outcome.exit_kind, outcome.result) == ("crashed", {"error": "the worker was ended by SIGSEGV"})
    assert "wall_s" in outcome.usage


def test_limits_hold_in_a_process_and_are_gone_for_the_next_run(runner: CallableRunner, line: RecordingLine) -> None:
    burnt = runner.run(work(plan("process", limits=Limits(cpu_s=0.5)), name="burns"), line)
    assert (burnt.exit_kind, burnt.outcome) == ("failed", "over_cpu")
    small = Limits(memory_bytes=300 * 1024 * 1024, open_files=50)
    hogged = runner.run(work(plan("process", limits=small), name="hogs"), line)
    assert (hogged.exit_kind, hogged.outcome) == ("failed", "over_memory")
    assert runner.run(work(plan("process", limits=small), name="hogs_files"), line).result < 50
    for _ in range(2):  # both workers
        assert runner.run(work(plan("process"), name="hogs_files"), line).result > 50


def test_a_function_that_does_not_stand_at_the_top_cannot_run_in_a_process(line: RecordingLine) -> None:
    with Workshop() as shop:
        runner = CallableRunner(shop, {"inner": lambda: 1})
        outcome = runner.run(work(plan("process"), name="inner"), line)
        assert "does not stand at the top" in outcome.result["error"]
        assert runner.run(work(plan("thread"), name="inner"), line).result == 1


def test_when_nobody_climbs_the_ladder_a_run_past_its_time_is_killed() -> None:
    clock = ManualClock()
    line = RecordingLine()
    with Workshop(clock) as shop:
        runner = CallableRunner(shop, {"hangs": functions.hangs}, slots=1)
        limits = Limits(wall_s=10)
        running = Running(runner, work(plan("process", limits=limits, stop_grace_s=2.0), name="hangs"), line)
        line.until(lambda: bool(line.text))
        clock.advance(14)
        outcome = running.outcome()
        runner.close()
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "timed_out")
    assert outcome.usage["wall_s"] == 14


def test_when_the_minder_is_lost_the_run_has_crashed_and_the_next_one_runs(line: RecordingLine) -> None:
    with Workshop() as shop:
        runner = CallableRunner(shop, vars(functions), slots=1)
        running = Running(runner, work(plan("process"), name="hangs"), line)
        line.until(lambda: bool(line.text))
        minder = shop.minder
        os.kill(minder.pid, signal.SIGKILL)
        assert running.outcome().exit_kind == "crashed"
        until(lambda: minder.is_lost)
        assert runner.run(work(plan("process"), {"a": 1, "b": 2}, name="plain"), line).result == 3
        runner.close()


def test_a_thread_that_outlives_its_call_does_not_disturb_the_next(line: RecordingLine, tmp_path: Path) -> None:
    """It waits for an answer on the line on which the next call comes."""
    told = tmp_path / "told"

    class Waiting(RecordingLine):
        def wait_for(self, *_said: Any, **_more: Any) -> list[Any]:
            told.with_suffix(".asked").write_text("")
            until(told.exists)  # the function has returned, and the thread has heard that nobody will answer
            return []

    with Workshop() as shop:
        runner = CallableRunner(shop, vars(functions), slots=1)
        runner.run(work(plan("process"), {"path": str(told)}, name="late"), Waiting())
        assert told.read_text() == "HostError"
        for _ in range(20):
            assert runner.run(work(plan("process"), {"a": 1, "b": 2}, name="plain"), line).result == 3
        runner.close()


# --- the registry --------------------------------------------------------------------------------------


def test_the_registry_makes_the_three_and_names_them_when_asked_for_another(line: RecordingLine) -> None:
    with Workshop() as shop:
        runner = registry.make("callable", shop, {"plain": functions.plain}, 1)
        assert runner.run(work(plan("thread"), {"a": 1, "b": 2}, name="plain"), line).result == 3
        for name in ("command", "ndjson"):
            registry.make(name, shop, {}, 1).close()
        with pytest.raises(FleetInvalid, match="command, ndjson, callable"):
            registry.make("carrier-pigeon", shop, {}, 1)


def test_a_package_may_add_a_runner_and_its_faults_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "pigeons-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: pigeons\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[rota.runners]\npigeon = tests.runtime.test_callable_runner:Pigeon\nbroken = no.such:thing\n"
        "command = tests.runtime.test_callable_runner:Pigeon\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._added.cache_clear()
    try:
        with Workshop() as shop:
            added, ours = (registry.make(name, shop, {}, 3) for name in ("pigeon", "command"))
            assert isinstance(added, Pigeon)
            assert added.slots == 3
            assert not isinstance(ours, Pigeon)  # what is built in cannot be replaced
            with pytest.raises(FleetInvalid, match=r"broken.*cannot be made"):
                registry.make("broken", shop, {}, 3)
    finally:
        registry._added.cache_clear()


class Pigeon:
    """A runner of another package."""

    def __init__(self, _workshop: Workshop, _functions: Any, slots: int) -> None:
        self.slots = slots

    def run(self, *_given: Any) -> Outcome:
        return Outcome()

    def close(self) -> None:
        """It flies away."""
