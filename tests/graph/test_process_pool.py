"""The process_pool lane: isolated workers, hard timeouts that kill the process, crashes that fail one invocation.

Starting Python is slow, so most tests share one run in which each failure happens to its own component.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from rota.graph.components import component
from rota.graph.lanes import process_pool
from rota.graph.results import RuntimeRunnerResult
from rota.graph.run_options import SchedulerStopReason
from rota.graph.stop import StopToken
from tests.graph import process_parts as parts
from tests.graph.parts import burst, log
from tests.graph.worlds import make_runner, node, run, wire

TEST_TIMEOUT_S = 60.0  # real time; it only ends a test that hangs
TIMEOUT_MS = 1500
SIZE = 4  # each component is sent the numbers 0 to 3


def pool(workers: int = 1, **fields: Any) -> dict[str, Any]:
    return {"type": "process_pool", "max_threads": workers, **fields}


class World:
    """One run, and what each component in a worker process published."""

    def __init__(self, folder: Path) -> None:
        self.life = folder / "life"
        self.heard: dict[str, list[Any]] = {}

        @component("test.hear")
        def hear(value: Any, *, who: str) -> None:
            self.heard.setdefault(who, []).append(value)

        @component("test.locks")
        def locks() -> Any:
            return threading.Lock()

        workers = {
            "pid": node(parts.pid, "pid", lane="shared", on="any_input", reentrant=True),
            "later": node(parts.later, "later", lane="shared", on="any_input"),
            "context": node(parts.with_context, "context", lane="shared", on="any_input"),
            "state": node(parts.with_state, "state", lane="shared", on="any_input", on_error="continue"),
            "fail": node(parts.fail, "fail", lane="shared", on="any_input", on_error="continue"),
            "leave": node(parts.leave, "leave", lane="shared", on="any_input", on_error="continue"),
            "lock": node(parts.give_lock, "lock", lane="shared", on="any_input", on_error="continue"),
            "tally": node(parts.Tally, "tally", lane="shared", on="any_input"),
            "hang": node(parts.hang, "hang", lane="killed", on="any_input", on_error="continue", timeout_ms=TIMEOUT_MS),
            "crash": node(parts.crash, "crash", lane="crashed", on="any_input", on_error="continue"),
            "flaky": node(parts.flaky, "flaky", lane="killed", on="any_input", on_error="retry", max_attempts=2),
            "living": node(
                parts.Living,
                "living",
                lane="crashed",
                on="any_input",
                on_error="continue",
                config={"path": str(self.life)},
            ),
        }
        nodes = [
            node(burst, config={"size": SIZE}),
            node(locks),
            node(parts.pid, "given_locks", lane="shared", on="any_input", on_error="continue"),
            *workers.values(),
            *(node(hear, f"hear_{name}", on="any_input", config={"who": name}) for name in workers),
        ]
        wires = [
            wire("test.locks.out > given_locks.value", copy_policy="shared_view"),
            *(wire(f"parts.burst.out > {name}.value", mode="queue", capacity=99) for name in workers),
            *(wire(f"{name}.out > hear_{name}.value", mode="queue", capacity=99) for name in workers),
        ]
        lanes = {
            "main": {"type": "event_loop"},
            "shared": pool(2, nice_priority=5),
            "killed": pool(),
            "crashed": pool(),
        }
        self.result = run(nodes, wires, lanes=lanes, graph_config={"mode": "fast"}, trace=True, restore={"tally": 40})

    def errors(self, component_id: str) -> list[tuple[str, str]]:
        return [(each.code, each.message) for each in self.result.runtime_errors if each.component_id == component_id]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("process_pool"))


def _alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


class TestIsolation:
    def test_process_isolation(self, world: World) -> None:
        assert len(world.heard["pid"]) == SIZE
        assert os.getpid() not in world.heard["pid"]
        shared = {report.process_id for report in world.result.workers if report.lane == "shared"}
        assert shared >= set(world.heard["pid"])
        assert world.result.metric("runtime.scheduler.worker_count", lane="shared") == 2

    def test_async_components_run_there_too(self, world: World) -> None:
        assert world.heard["later"] == [1, 2, 3, 4]

    def test_the_context_works_in_a_worker_process(self, world: World) -> None:
        assert world.heard["context"] == [(number, "fast", 1, False) for number in range(SIZE)]

    def test_shared_state_is_refused_in_a_worker_process(self, world: World) -> None:
        assert "shared values are not available in a worker process" in world.errors("state")[0][1]

    def test_no_process_outlives_the_run(self, world: World) -> None:
        assert not any(_alive(report.process_id) for report in world.result.workers)

    def test_workers_appear_in_the_trace(self, world: World) -> None:
        assert world.result.trace is not None
        events = [event for event in world.result.trace.events() if event.name.startswith("component_execute")]
        assert {event.worker_id for event in events if event.component_id == "pid"} <= {0, 1}
        assert {event.worker_id for event in events if event.component_id == "hang"} == {0}

    def test_worker_settings_are_applied_to_the_process_and_read_back(self, world: World) -> None:
        for report in world.result.workers:
            wanted = 5 if report.lane == "shared" else os.getpriority(os.PRIO_PROCESS, 0)
            assert report.nice == wanted or report.advisories


class TestHardTimeout:
    def test_hard_timeout_kill(self, world: World) -> None:
        assert world.heard["hang"] == [0, 2, 3]  # the worker that took its place executed the rest
        ((code, message),) = world.errors("hang")
        assert code == "component_hard_timeout"
        assert f"killed after {TIMEOUT_MS} ms (timeout_ms)" in message
        events = [(event.kind, event.component_id) for event in world.result.health_events]
        assert ("worker_restarted", "hang") in events


class TestCrashes:
    def test_a_worker_that_crashes_fails_one_invocation_and_is_replaced(self, world: World) -> None:
        assert world.heard["crash"] == [0, 3]
        (first, second) = world.errors("crash")
        assert (first[0], second[0]) == ("worker_crashed", "worker_crashed")
        assert "exited with code 42" in first[1]
        assert "signal 9" in second[1]

    def test_with_retry_a_crash_is_retried_in_a_new_process(self, world: World) -> None:
        assert world.heard["flaky"] == [(0, 2), (1, 1), (2, 1), (3, 1)]
        assert world.errors("flaky") == []
        assert world.result.metric("runtime.component.retry_count", component_id="flaky", lane="killed") == 1

    def test_an_exception_is_structured_as_on_any_lane(self, world: World) -> None:
        error = next(each for each in world.result.runtime_errors if each.component_id == "fail")
        assert (error.phase, error.code, error.lane) == ("execute", "component_execute", "shared")
        assert error.message == "ValueError: no 0"

    def test_a_component_that_exits_fails_like_any_other(self, world: World) -> None:
        assert [code for code, message in world.errors("leave") if "SystemExit" in message] == [
            "component_execute"
        ] * SIZE

    def test_a_result_that_cannot_be_pickled_fails_one_invocation(self, world: World) -> None:
        assert len(world.errors("lock")) == SIZE
        assert "the result cannot be pickled" in world.errors("lock")[0][1]

    def test_an_input_that_cannot_be_pickled_fails_one_invocation(self, world: World) -> None:
        assert "a request to a worker process cannot be pickled" in world.errors("given_locks")[0][1]

    def test_a_component_that_cannot_be_sent_is_refused_before_the_first_epoch(self) -> None:
        @component
        def local(value: int = 0) -> int:
            return value

        result = run([node(local, lane="pool")], lanes={"pool": pool()})
        assert (result.epochs, result.scheduler_stop_reason) == (0, SchedulerStopReason.ERROR)
        assert "cannot be pickled" in result.errors[0]


class TestLifecycle:
    def test_a_component_is_started_again_in_a_new_worker(self, world: World) -> None:
        life = world.life.read_text().split()
        assert life[:2] == ["configure", "activate"]
        assert life.count("activate") >= 2  # its worker was lost: by itself, and perhaps by its neighbour
        assert life[-1] == "deactivate"
        assert world.heard["living"] == [0, 2, 3]

    def test_state_stays_in_one_worker_and_is_restored_and_snapshotted_there(self, world: World) -> None:
        assert world.heard["tally"] == [41, 42, 43, 44]
        assert world.result.snapshots == {"tally": 44}

    def test_a_failed_activate_fails_the_start(self) -> None:
        result = run([node(parts.BrokenStart, lane="pool")], lanes={"pool": pool()})
        error = result.runtime_errors[0]
        assert (result.epochs, error.phase, error.code) == (0, "activate", "component_activate")
        assert "no device" in error.message


class TestStop:
    def test_a_stop_reaches_the_component_in_its_process(self, tmp_path: Path) -> None:
        token, begun = StopToken(), tmp_path / "begun"
        nodes = [node(parts.wait_for_stop, "work", lane="pool", config={"path": str(begun)})]
        runner = make_runner(nodes, lanes={"pool": pool()}, steps=100, stop_token=token)
        results: list[RuntimeRunnerResult] = []
        thread = threading.Thread(target=lambda: results.append(runner.run()))
        thread.start()
        look_again = threading.Event()
        while not begun.exists():
            look_again.wait(0.01)
        token.request()
        thread.join(TEST_TIMEOUT_S)
        result = results[0]
        assert result.scheduler_stop_reason == SchedulerStopReason.STOP_REQUESTED
        observed = "runtime.component.cancellation_observed_count"
        assert result.metric(observed, component_id="work", lane="pool") == 1


SCRIPT = """
import os
from rota.graph import ComponentRegistry, RuntimeRunner, compile_graph, component, load_mapping

@component
def here() -> None:
    print("ran in", "the same" if os.getpid() == PARENT else "another", "process")

PARENT = int(os.environ.setdefault("PARENT_PID", str(os.getpid())))
GUARD
    registry = ComponentRegistry([here])
    spec = load_mapping({
        "schema_version": 2,
        "graph": {"name": "script", "kind": "internal_test"},
        "lanes": {"pool": {"type": "process_pool"}},
        "components": [{"id": "a", "type": "here", "execution": {"lane": "pool"}}],
        "edges": [],
    })
    result = RuntimeRunner(compile_graph(spec, registry), registry).run()
    print(result.ok, *result.errors)
"""


class TestScripts:
    def output(self, folder: Path, guard: str) -> str:
        script = folder / "script.py"
        script.write_text(SCRIPT.replace("GUARD", guard))
        done = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, timeout=TEST_TIMEOUT_S, check=False
        )
        return done.stdout + done.stderr

    def test_components_of_the_script_itself_are_found(self, tmp_path: Path) -> None:
        output = self.output(tmp_path, 'if __name__ == "__main__":')
        assert "ran in another process" in output
        assert "True" in output

    def test_a_script_without_a_main_guard_fails_with_a_hint(self, tmp_path: Path) -> None:
        assert "a worker process tried to run the graph again" in self.output(tmp_path, "if True:")


def test_retries_happen_in_the_worker() -> None:
    nodes = [node(burst, config={"size": 1}), node(parts.fail, "work", lane="pool", on="any_input", on_error="retry")]
    wires = [wire("parts.burst.out > work.value")]
    result = run(nodes, wires, lanes={"main": {"type": "event_loop"}, "pool": pool()})
    assert result.metric("runtime.component.retry_count", component_id="work", lane="pool") == 2
    assert log == []


def test_a_component_that_hangs_in_deactivate_costs_its_worker_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_pool, "START_TIMEOUT_S", 5.0)
    nodes = [
        node(burst, config={"size": 1}),
        node(parts.Stuck, "stuck", lane="pool", on="any_input"),
        node(parts.Tally, "tally", lane="pool", on="any_input"),
    ]
    wires = [wire("parts.burst.out > stuck.value"), wire("parts.burst.out > tally.value")]
    result = run(nodes, wires, lanes={"main": {"type": "event_loop"}, "pool": pool()})
    (error,) = result.runtime_errors
    assert (error.phase, error.component_id, error.fatal) == ("deactivate", "stuck", False)
    assert "worker 0 of lane pool did not reply to 'hook'" in error.message
