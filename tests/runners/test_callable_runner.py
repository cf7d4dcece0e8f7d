"""Functions as agents: the same on a thread and in a worker process, except for what only a process can do."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rota.clock import ManualClock
from rota.errors import FleetInvalid
from rota.fleet.agent_settings import AgentSettings
from rota.fleet.runners import registry
from rota.fleet.runners.callable import CallableRunner
from rota.fleet.runners.contract import RunOutcome
from rota.fleet.runners.resources import RunnerResources
from rota.model.work import Limits
from tests.host.support import dies, until, watch
from tests.runners import functions
from tests.runners.recording import RecordingChannel, Running, assignment

KINDS = ["thread", "process"]


@pytest.fixture(scope="module")
def runner() -> Iterator[CallableRunner]:
    with RunnerResources() as resources:
        named = {name: function for name, function in vars(functions).items() if callable(function)}
        runner = CallableRunner(resources, named, slots=2)
        yield runner
        runner.close()


def settings(kind: str, **fields: Any) -> AgentSettings:
    return AgentSettings(runner="callable", isolation=kind, **fields)  # type: ignore[arg-type]


Run = Callable[..., RunOutcome]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(runner: CallableRunner, channel: RecordingChannel, kind: str) -> Run:
    def run(name: str, payload: dict[str, Any] | None = None, **fields: Any) -> RunOutcome:
        return runner.run(assignment(settings(kind, **fields), payload, name=name), channel)

    return run


# --- the same in both ----------------------------------------------------------------------------------


def test_a_function_uses_its_context(runner: CallableRunner, channel: RecordingChannel, kind: str) -> None:
    channel.child_ended(1004, "read")
    given = assignment(
        settings(kind), {"url": "u"}, checkpoint={"next": 0}, deadline=5.0, workspace="/w", name="summarise"
    )
    outcome = runner.run(given, channel)
    assert outcome.exit_kind == "completed"
    assert outcome.result == {
        "url": "u", "words": 3, "key": "7:2:41", "saved": {"next": 0}, "left": {"tokens": 900},
        "remaining": {"tokens": 900}, "child": "read", "all": ["completed"], "cancelled": False, "deadline": 5.0,
        "payload": {"url": "u"}, "workspace": "/w", "agent": "summarise", "trigger": "manual",
    }  # fmt: skip
    assert channel.calls == [
        ("charge", {"tokens": 100}),
        ("checkpoint", {"next": 1}),
        ("throttled", 30.0, "api"),
        ("spawn", "reader", {"page": 3}, {"tokens": 5}, {"priority": 2}),
        ("wait_for", [1004], None),
        ("wait_for", [1004], None),
    ]
    assert channel.text == "reading u\n"
    assert channel.stop_handle is not None
    assert set(outcome.usage) == {"cpu_s", "wall_s"}


def test_a_function_may_have_no_context_and_may_be_async(run: Run) -> None:
    assert run("plain", {"a": 1, "b": 2}).result == 3
    assert run("adds", {"a": 1, "b": 2}).result == 3
    assert run("annotated", {"a": 5}).result == [7, 5]


def test_a_wrapped_function_is_found_by_its_name(run: Run) -> None:
    assert run("x", {"a": 4}, function="tests.runners.functions:behind").result == 8


@pytest.mark.parametrize(
    "where", ["tests.runners.functions:nothing", "no.such.module:f", "tests.runners.functions:NOT_A_FUNCTION", "%"]
)
def test_a_function_that_cannot_be_loaded_fails_the_run_with_its_path(run: Run, where: str) -> None:
    outcome = run("x", function=where)
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "not_found")
    assert where in outcome.result["error"]


def test_an_agent_without_a_function_fails_with_its_name(run: Run) -> None:
    assert run("unknown").result == {"error": "no function is registered for agent 'unknown'"}


def test_a_payload_that_does_not_fit_fails_with_a_readable_error(run: Run) -> None:
    outcome = run("plain", {"a": 1, "c": 2})
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "payload_mismatch")
    assert "the payload does not fit plain(" in outcome.result["error"]
    assert "the payload has a, c" in outcome.result["error"]


def test_an_exception_of_a_function_becomes_its_outcome(run: Run) -> None:
    outcome = run("raises")
    assert outcome.exit_kind == "failed"
    assert (outcome.result["error"], outcome.result["type"]) == ("ValueError: no network", "ValueError")
    assert "functions.py" in outcome.result["traceback"]
    assert "calling.py" not in outcome.result["traceback"]


def test_no_exception_of_a_function_leaves_the_runner(run: Run) -> None:
    assert run("leaves", {"how": "exit"}).result["type"] == "SystemExit"
    assert run("leaves", {"how": "interrupt"}).result["type"] == "KeyboardInterrupt"
    assert "could not be read" in run("unreadable").result["error"]
    assert run("surrogates").result["error"] == "ValueError: ?"


def test_a_result_must_be_json_of_limited_size(run: Run) -> None:
    assert run("returns", {"what": "set"}).result == [1]
    assert run("returns", {"what": "object"}).outcome == "result_not_json"
    assert run("returns", {"what": "key"}).outcome == "result_not_json"
    assert run("returns", {"what": "lone"}).outcome == "result_not_json"
    assert run("returns", {"what": "large"}).outcome == "result_too_large"


def test_yielding_is_not_an_end(run: Run) -> None:
    outcome = run("yields")
    assert (outcome.exit_kind, outcome.yield_after_s) == ("completed", 2.5)


def test_a_refused_call_raises_in_the_function(run: Run) -> None:
    assert run("refused").result == ["UnknownPid", "LedgerInvalidAmount", "WaitTimeout"]


def test_threads_of_a_function_may_use_the_context_concurrently(run: Run) -> None:
    assert run("in_threads").result == {"tokens": 900}


@pytest.mark.parametrize("name", ["looks", "waits"])
def test_a_function_that_is_asked_to_stop_ends_as_cancelled(
    runner: CallableRunner, channel: RecordingChannel, kind: str, name: str
) -> None:
    running = Running(runner, assignment(settings(kind), name=name), channel)
    channel.until(lambda: bool(channel.text))
    assert channel.request_stop("drain")
    outcome = running.outcome()
    assert (outcome.exit_kind, outcome.result) == ("cancelled", {"error": "stopped on request: drain"})


def test_an_async_function_may_save_its_work_when_it_is_cancelled(
    runner: CallableRunner, channel: RecordingChannel, kind: str
) -> None:
    running = Running(runner, assignment(settings(kind), name="tidies"), channel)
    channel.until(lambda: bool(channel.text))
    assert channel.request_stop("drain")
    assert running.outcome().exit_kind == "cancelled"
    assert channel.calls == [("checkpoint", {"why": "drain"})]


# --- on a thread ---------------------------------------------------------------------------------------


def test_a_function_on_a_thread_can_only_be_asked_to_stop_and_advisories_name_unenforced_limits(
    runner: CallableRunner, channel: RecordingChannel
) -> None:
    limits = Limits(cpu_s=5, memory_bytes=10**9)
    runner.run(assignment(settings("thread", limits=limits), {"a": 1, "b": 1}, name="plain"), channel)
    assert channel.stop_handle is not None
    assert (channel.stop_handle.terminate(), channel.stop_handle.kill()) == (False, False)
    assert [advisory.split()[0] for advisory in channel.advisories] == ["cpu_s", "memory_bytes"]


def test_a_run_that_was_asked_to_stop_before_it_started_is_cancelled_immediately(runner: CallableRunner) -> None:
    channel = RecordingChannel()
    channel._reason = "drain"
    assert runner.run(assignment(settings("thread"), name="waits"), channel).exit_kind == "cancelled"


# --- in a process --------------------------------------------------------------------------------------


def test_a_function_in_a_process_can_be_killed_and_the_next_one_runs(
    runner: CallableRunner, channel: RecordingChannel
) -> None:
    running = Running(runner, assignment(settings("process"), name="hangs"), channel)
    channel.until(lambda: bool(channel.text))
    worker = watch(int(channel.text.split()[1]))
    assert channel.stop_handle is not None
    assert channel.stop_handle.terminate() is False
    assert channel.stop_handle.kill()
    assert running.outcome().exit_kind == "cancelled"
    assert dies(worker)
    assert runner.run(assignment(settings("process"), {"a": 1, "b": 2}, name="plain"), channel).result == 3


def test_a_crash_ends_only_its_own_run(runner: CallableRunner, channel: RecordingChannel) -> None:
    outcome = runner.run(assignment(settings("process"), name="dies"), channel)
    assert (outcome.exit_kind, outcome.result) == ("crashed", {"error": "the worker was ended by SIGSEGV"})
    assert "wall_s" in outcome.usage


def test_all_cpu_time_of_a_call_in_a_process_is_its_own_also_if_it_is_killed(
    runner: CallableRunner, channel: RecordingChannel
) -> None:
    """Only that of the function's own thread counted, and nothing of a call that was killed or had crashed."""
    shared = runner.run(assignment(settings("process"), {"ms": 60}, name="works_by_others"), channel)
    assert shared.cpu_ms >= 120
    running = Running(runner, assignment(settings("process"), {"ms": 60}, name="works_and_hangs"), channel)
    channel.until(lambda: bool(channel.text))
    assert channel.stop_handle is not None
    channel.stop_handle.kill()
    assert 60 <= running.outcome().cpu_ms < 120  # without that of the call before
    assert running.outcome().usage["cpu_s"] == 1


def test_limits_are_enforced_in_a_process_and_lifted_for_the_next_run(
    runner: CallableRunner, channel: RecordingChannel
) -> None:
    burnt = runner.run(assignment(settings("process", limits=Limits(cpu_s=0.5)), name="burns"), channel)
    assert (burnt.exit_kind, burnt.outcome) == ("failed", "over_cpu")
    assert burnt.cpu_ms >= 500
    small = Limits(memory_bytes=300 * 1024 * 1024, open_files=50)
    hogged = runner.run(assignment(settings("process", limits=small), name="hogs"), channel)
    assert (hogged.exit_kind, hogged.outcome) == ("failed", "over_memory")
    assert runner.run(assignment(settings("process", limits=small), name="hogs_files"), channel).result < 50
    for _ in range(2):  # both workers
        assert runner.run(assignment(settings("process"), name="hogs_files"), channel).result > 50


def test_a_function_that_is_not_at_the_top_level_cannot_run_in_a_process(channel: RecordingChannel) -> None:
    with RunnerResources() as resources:
        runner = CallableRunner(resources, {"inner": lambda: 1})
        outcome = runner.run(assignment(settings("process"), name="inner"), channel)
        assert "is not defined at the top level" in outcome.result["error"]
        assert runner.run(assignment(settings("thread"), name="inner"), channel).result == 1


def test_without_a_stop_escalation_a_run_over_its_wall_limit_is_killed() -> None:
    clock = ManualClock()
    channel = RecordingChannel()
    with RunnerResources(clock) as resources:
        runner = CallableRunner(resources, {"hangs": functions.hangs}, slots=1)
        limits = Limits(wall_s=10)
        running = Running(
            runner, assignment(settings("process", limits=limits, stop_grace_s=2.0), name="hangs"), channel
        )
        channel.until(lambda: bool(channel.text))
        clock.advance(14)
        outcome = running.outcome()
        runner.close()
    assert (outcome.exit_kind, outcome.outcome) == ("failed", "timed_out")
    assert outcome.usage["wall_s"] == 14


def test_when_the_reaper_is_lost_the_run_has_crashed_and_the_next_one_runs(channel: RecordingChannel) -> None:
    with RunnerResources() as resources:
        runner = CallableRunner(resources, vars(functions), slots=1)
        running = Running(runner, assignment(settings("process"), name="hangs"), channel)
        channel.until(lambda: bool(channel.text))
        reaper = resources.reaper
        os.kill(reaper.pid, signal.SIGKILL)
        assert running.outcome().exit_kind == "crashed"
        until(lambda: reaper.is_lost)
        assert runner.run(assignment(settings("process"), {"a": 1, "b": 2}, name="plain"), channel).result == 3
        runner.close()


def test_a_run_that_finds_its_workers_gone_ends_none_that_another_run_has_started(channel: RecordingChannel) -> None:
    """Two runs find the pool without a reaper. The first one makes a new pool; the second one must not close that."""
    with RunnerResources() as resources:
        runner = CallableRunner(resources, vars(functions), slots=2)
        first = runner._pool()
        os.kill(resources.reaper.pid, signal.SIGKILL)
        until(lambda: first._failed is not None)
        running = Running(runner, assignment(settings("process"), name="hangs"), channel)
        channel.until(lambda: bool(channel.text))
        runner._discard(first)
        assert runner.run(assignment(settings("process"), {"a": 1, "b": 2}, name="plain"), channel).result == 3
        os.kill(int(channel.text.split()[1]), signal.SIGKILL)
        assert running.outcome().exit_kind == "crashed"
        runner.close()


def test_a_thread_that_outlives_its_call_does_not_disturb_the_next_call(
    channel: RecordingChannel, tmp_path: Path
) -> None:
    """It waits for a reply on the connection that also carries the next call."""
    told = tmp_path / "told"

    class Waiting(RecordingChannel):
        def wait_for(self, *_args: Any, **_options: Any) -> list[Any]:
            told.with_suffix(".asked").write_text("")
            until(told.exists)  # the function has returned, and the thread knows that no reply will come
            return []

    with RunnerResources() as resources:
        runner = CallableRunner(resources, vars(functions), slots=1)
        runner.run(assignment(settings("process"), {"path": str(told)}, name="late"), Waiting())
        assert told.read_text() == "HostError"
        for _ in range(20):
            assert runner.run(assignment(settings("process"), {"a": 1, "b": 2}, name="plain"), channel).result == 3
        runner.close()


# --- the registry --------------------------------------------------------------------------------------


def test_the_registry_creates_the_three_runners_and_lists_them_for_an_unknown_name(channel: RecordingChannel) -> None:
    with RunnerResources() as resources:
        runner = registry.make("callable", resources, {"plain": functions.plain}, 1)
        assert runner.run(assignment(settings("thread"), {"a": 1, "b": 2}, name="plain"), channel).result == 3
        for name in ("command", "ndjson"):
            registry.make(name, resources, {}, 1).close()
        with pytest.raises(FleetInvalid, match="command, ndjson, callable"):
            registry.make("carrier-pigeon", resources, {}, 1)


def test_a_package_may_add_a_runner_and_errors_name_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "pigeons-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: pigeons\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(
        "[rota.runners]\npigeon = tests.runners.test_callable_runner:Pigeon\nbroken = no.such:thing\n"
        "command = tests.runners.test_callable_runner:Pigeon\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._added.cache_clear()
    try:
        with RunnerResources() as resources:
            added, ours = (registry.make(name, resources, {}, 3) for name in ("pigeon", "command"))
            assert isinstance(added, Pigeon)
            assert added.slots == 3
            assert not isinstance(ours, Pigeon)  # a built-in runner cannot be replaced
            with pytest.raises(FleetInvalid, match=r"broken.*cannot be created"):
                registry.make("broken", resources, {}, 3)
    finally:
        registry._added.cache_clear()


class Pigeon:
    """A runner from another package."""

    def __init__(self, _resources: RunnerResources, _functions: Any, slots: int) -> None:
        self.slots = slots

    def run(self, *_given: Any) -> RunOutcome:
        return RunOutcome()

    def close(self) -> None:
        """Nothing to release."""
