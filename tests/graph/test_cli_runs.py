"""The `rota graph` commands that run the graph: run, work, metrics, trace, bench; and Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rota.cli.graph_runs import progress
from rota.clock import ManualClock
from rota.errors import InvalidInput
from rota.graph import SCHEDULER_METRICS
from tests.graph.drafts import draft
from tests.graph.test_cli_checks import EXAMPLES, GRAPHS, PARTS, json_output, rota_graph
from tests.postgres_server import own_schema

DURABLE = EXAMPLES / "durable.yaml"
A_DAY = "trigger_policy: {type: on_event}, event_sources: [{type: timer, period_ms: 86400000}], "
ONCE = DURABLE.read_text().replace("{id: count, ", "{id: count, " + A_DAY)  # the timer fires once in the test
FAILING = """
from rota.graph import component

@component("demo.Fails")
def fails() -> None:
    raise ValueError("this one always fails")
"""

WAITING = """
import sys
from rota.graph import component

@component("demo.Waits")
def waits() -> None:
    print("waiting", flush=True)
    sys.stdin.readline()
"""


OF_COMPONENTS = [path for path in GRAPHS if "agent: " not in path.read_text()]  # test_example_report runs the other


@pytest.mark.parametrize("path", OF_COMPONENTS, ids=lambda path: path.stem)
def test_every_example_runs(path: Path, tmp_path: Path) -> None:
    output = json_output("run", path, "-c", PARTS, "--steps", "3", "--store", tmp_path / "rota.db")
    assert (output["ok"], output["stop_reason"], output["epochs"]) == (True, "tick_bound", 3)
    assert output["errors"] == []


def test_a_run_prints_the_output_of_its_components_and_then_its_result() -> None:
    assert rota_graph("run", EXAMPLES / "pipeline.yaml", "-c", PARTS, "--steps", "2").splitlines() == [
        "doubled: 2",
        "doubled: 4",
        "pipeline: ok, tick_bound after 2 epochs, 6 invocations",
    ]


def test_a_run_reports_rejected_invocations_and_overruns() -> None:
    assert "  pool: rejected_count 4" in rota_graph("run", EXAMPLES / "overflow.yaml", "-c", PARTS).splitlines()
    late = rota_graph("run", EXAMPLES / "overrun.yaml", "-c", PARTS, "--steps", "4")
    assert "beat: tick_overrun_count" in late


def test_the_agents_stay_within_their_token_budgets() -> None:
    text = rota_graph("run", EXAMPLES / "agents.yaml", "-c", PARTS)
    assert "a report on 15 notes: research 120 tokens, writing 60 of 100" in text


def test_a_writer_without_the_tokens_fails_the_run(tmp_path: Path) -> None:
    poor = tmp_path / "agents.yaml"
    poor.write_text((EXAMPLES / "agents.yaml").read_text().replace("token_budget: 100", "token_budget: 10"))
    text = rota_graph("run", poor, "-c", PARTS, code=1)
    assert "agents: failed, error after 1 epochs" in text
    assert "component write failed" in text


def test_the_control_loop_warms_the_room() -> None:
    text = rota_graph("run", EXAMPLES / "control_loop.yaml", "-c", PARTS, "--steps", "40")
    heats = [float(line.removeprefix("heat: ")) for line in text.splitlines() if line.startswith("heat: ")]
    assert len(heats) == 39  # each one is seen one epoch later
    assert abs(heats[-1] - heats[-2]) < abs(heats[2] - heats[1])


def test_a_failing_component_gives_exit_code_1_and_an_error_message(tmp_path: Path) -> None:
    (tmp_path / "failing_parts.py").write_text(FAILING)
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps(draft([{"id": "a", "type": "demo.Fails"}])))
    output = json_output("run", graph, "-c", tmp_path / "failing_parts.py", code=1)
    assert (output["ok"], output["stop_reason"]) == (False, "error")
    assert output["runtime_errors"][0]["component_id"] == "a"
    assert "this one always fails" in output["errors"][0]


def test_a_run_can_end_when_idle_or_after_a_time(tmp_path: Path) -> None:
    graph = tmp_path / "graph.yaml"
    graph.write_text((EXAMPLES / "pipeline.yaml").read_text())
    assert json_output("run", graph, "-c", PARTS, "--duration-ms", "0")["stop_reason"] == "duration_bound"
    output = json_output("run", graph, "-c", PARTS, "--until-idle", "--steps", "5")
    assert output["stop_reason"] == "tick_bound"  # a counter is never idle


def test_a_durable_graph_requires_the_option_store() -> None:
    with pytest.raises(InvalidInput, match="--store"):
        rota_graph("run", DURABLE, "-c", PARTS)


def test_a_durable_run_is_resumed_and_other_processes_run_its_entries(tmp_path: Path) -> None:
    def run(steps: int, *more: str) -> list[str]:
        store = ("--store", tmp_path / "rota.db", "--run-id", "first")
        return rota_graph("run", DURABLE, "-c", PARTS, "--steps", str(steps), *store, *more).splitlines()

    assert run(2, "--workers", "0") == ["durable: ok, tick_bound after 2 epochs, 4 invocations"]
    work: list[str | Path] = ["work", DURABLE, "-c", PARTS, "--store", tmp_path / "rota.db", "--until-idle"]
    assert rota_graph(*work) == "durable: entries run: 2\n"
    assert run(1, "--workers", "0")[:2] == ["doubled: 2", "doubled: 4"]
    assert json_output(*work) == {"graph": "durable", "entries_run": 1}
    assert run(1, "--workers", "0")[0] == "doubled: 6"


def test_other_hosts_run_the_entries_of_a_run_in_postgresql() -> None:
    with own_schema("work") as url:
        rota_graph("run", DURABLE, "-c", PARTS, "--steps", "2", "--workers", "0", "--store", url)
        assert rota_graph("work", DURABLE, "-c", PARTS, "--store", url, "--until-idle") == "durable: entries run: 2\n"


@pytest.mark.parametrize("option", [("--budget", "tokens=5"), ("--project", "lab"), ("--detach",)])
def test_an_option_for_graphs_of_agents_is_refused_where_it_has_no_effect(option: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match=f"{option[0]} has no effect: no component of .* is an agent"):
        rota_graph("run", EXAMPLES / "pipeline.yaml", "-c", PARTS, *option)


@pytest.mark.parametrize("option", ["--steps", "--duration-ms"])
def test_a_bound_of_epochs_is_refused_for_a_graph_of_agents(option: str) -> None:
    with pytest.raises(InvalidInput, match=f"{option} has no effect: a run of a graph of agents ends when"):
        rota_graph("run", EXAMPLES / "report.yaml", option, "3")


def test_a_durable_run_has_its_own_workers(tmp_path: Path) -> None:
    graph = tmp_path / "graph.yaml"
    graph.write_text(ONCE)
    store = ("--store", tmp_path / "rota.db", "--workers", "2")
    text = rota_graph("run", graph, "-c", PARTS, "--until-idle", *store)
    first, last = text.splitlines()
    assert first == "doubled: 2"
    assert last.startswith("durable: ok, idle after ")


def test_a_run_continues_after_entries_that_another_process_completed(tmp_path: Path) -> None:
    graph = tmp_path / "graph.yaml"
    graph.write_text(ONCE)
    store = ["--store", str(tmp_path / "rota.db")]
    rota = str(Path(sys.executable).parent / "rota")
    process = subprocess.Popen(
        [rota, "graph", "run", str(graph), "-c", PARTS, "--until-idle", "--workers", "0", *store],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        while rota_graph("work", graph, "-c", PARTS, "--until-idle", *store) != "durable: entries run: 1\n":
            assert process.poll() is None
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert output.splitlines()[0] == "doubled: 2"
    assert "durable: ok, idle after" in output


def test_metrics_has_all_twenty_names_for_every_lane() -> None:
    output = json_output("metrics", EXAMPLES / "overflow.yaml", "-c", PARTS)
    assert output["metric_schema_version"] == "1"
    for lane in ("main", "pool"):
        names = [each["name"] for each in output["metrics"] if each["lane"] == lane and "scheduler" in each["name"]]
        assert sorted(names) == sorted(SCHEDULER_METRICS)
    assert len(SCHEDULER_METRICS) == 20
    text = rota_graph("metrics", EXAMPLES / "overflow.yaml", "-c", PARTS)
    assert any(line.split() == ["runtime.scheduler.rejected_count", "pool", "4"] for line in text.splitlines())


def test_a_trace_as_text_json_ndjson_and_chrome(tmp_path: Path) -> None:
    arguments: list[Any] = ["trace", EXAMPLES / "overflow.yaml", "-c", PARTS]
    assert "scheduler_iteration_begin" in rota_graph(*arguments)
    output = json_output(*arguments)
    assert output["trace_schema_version"] == "1"
    names = [each["name"] for each in output["events"]]
    lines = [json.loads(line) for line in rota_graph(*arguments, "--format", "ndjson").splitlines()]
    assert sorted(each["name"] for each in lines) == sorted(names)
    path = tmp_path / "trace.json"
    rota_graph(*arguments, "--format", "chrome", "-o", path)
    tracks = [
        each["args"]["name"] for each in json.loads(path.read_text())["traceEvents"] if each["name"] == "thread_name"
    ]
    assert any(name.startswith("pool") for name in tracks)  # one per worker that executed an invocation


def test_bench_prints_the_time_per_epoch_and_per_invocation() -> None:
    output = json_output("bench", EXAMPLES / "pipeline.yaml", "-c", PARTS, "--steps", "10", "--runs", "3")
    assert (output["graph"], output["runs"], output["steps"], output["invocations"]) == ("pipeline", 3, 10, 30)
    assert len(output["seconds"]) == 3
    assert output["us_per_epoch"] == pytest.approx(output["us_per_invocation"] * 3)
    assert "10 epochs, 30 invocations" in rota_graph(
        "bench", EXAMPLES / "pipeline.yaml", "-c", PARTS, "--steps", "10", "--runs", "1"
    )


def test_progress_is_shown_on_a_terminal_and_at_intervals(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ManualClock()
    assert progress(100, clock) is None  # not a terminal
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show = progress(100, clock)
    assert show is not None
    for epoch in range(1, 9):
        clock.advance(0.0625)
        show(epoch)
    assert capsys.readouterr().err == "\repoch 4 of 100\repoch 8 of 100"


def rota_process(*arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(Path(sys.executable).parent / "rota"), "graph", "run", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_a_signal_stops_at_the_next_check_and_drains(number: signal.Signals) -> None:
    process = rota_process(EXAMPLES / "overrun.yaml", "-c", PARTS, "--duration-ms", "600000")
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "blink 1\n"  # it runs
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert "overrun: ok, stop_requested after" in output
    assert "Traceback" not in errors


def test_a_stop_that_waits_names_its_component_and_a_second_signal_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "slow_parts.py").write_text(WAITING)
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps(draft([{"id": "slow", "type": "demo.Waits"}])))
    process = rota_process(graph, "-c", tmp_path / "slow_parts.py", "--steps", "5")
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        assert process.stderr.readline() == "stopping: waiting for component slow; Ctrl-C ends it at once\n"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == -signal.SIGTERM
