"""The bench harness keeps its contract: fixed fields, honest ratios, no ratio without proof."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as command
from bench import harness
from bench.harness import Arena, Case, Measured

FIELDS = ["bench", "case", "n", "value", "unit", "baseline", "baseline_value", "ratio"]


def case(ours: float, theirs: float | None, *, unit: Any = "ops/s", same: bool = True) -> Case:
    def arena() -> Arena:
        base = None if theirs is None else (lambda: Measured(theirs, "answer"))
        return Arena(lambda: Measured(ours, "answer"), base, verify=lambda _a, _b: same)

    return Case("a-case", 10, unit, "a baseline", arena, rounds=3)


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *cases: Case) -> list[harness.Row]:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    return list(harness.run("test", cases))


def test_a_rate_is_better_high_and_a_time_is_better_low(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rate, time = run(tmp_path, monkeypatch, case(200, 100), case(200, 100, unit="ms"))
    assert (rate.ratio, time.ratio) == (2.0, 0.5)


def test_answers_that_differ_give_no_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = run(tmp_path, monkeypatch, case(200, 100, same=False))
    assert row.ratio is None


def test_a_figure_has_no_baseline_and_no_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (row,) = run(tmp_path, monkeypatch, case(200, None))
    assert (row.baseline, row.baseline_value, row.ratio) == (None, None, None)


def test_json_is_one_object_per_line_with_the_eight_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(command, "_cases", lambda _name: iter([case(200, 100)]))
    monkeypatch.setattr("sys.argv", ["bench", "tick", "--json"])
    assert command.main() == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert list(json.loads(line)) == FIELDS


def test_raw_rounds_and_the_machine_go_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, monkeypatch, case(200, 100))
    (path,) = tmp_path.iterdir()
    machine, row = map(json.loads, path.read_text().splitlines())
    assert machine["machine"]["cores"]
    assert row["rounds"] == [{"value": 200, "baseline_value": 100}] * 3


def test_the_table_marks_a_missed_goal(capsys: pytest.CaptureFixture[str]) -> None:
    row = harness.Row("b", "slow", 1, 1.0, "ops/s", "base", 2.0, 0.5, goal=1.0)
    assert harness.table([row]) is False
    assert "✗" in capsys.readouterr().out


CASES = {
    "fleet": [
        *("callable-4slots", "start-p50", "start-p99", "idle-cpu"),
        *("command-spawn", "command-group", "warm-process"),
    ],
    "host": ["reaper-start", "spawn", "spawn-8", "spawn-run", "warm-call", "warm-call-8"],
    "graph": [
        "pipeline-1000",
        "diamond-64",
        "pipeline-1000-bare",
        "diamond-64-bare",
        "pool-4",
        "trace-on",
        "compile-4096",
        "chain-100000",
        "ring-16000",
        "fleet-fanout",
        "epoch-idle",
    ],
    "telemetry": ["otel-on", "otel-off"],
    "web": ["events-shown", "memory-100-pages", "daemon-under-100-pages", "otel-on", "otel-off"],
    "postgres": [
        *("drain-100x4", "drain-100x1", "drain-10x4", "eevdf-100x4", "finished-1m", "latency"),
        *("round-trips-strict", "round-trips-eevdf", "early-release"),
    ],
    "ray": ["memory-1000", "in-flight-64", "start-p50"],
    "cpu": [
        "step-1k",
        "step-10k",
        "step-100k",
        "step-1m",
        "cores-16",
        "cores-256",
        "worst-step",
        "sim",
        *(
            f"{name}{kind}"
            for kind in ("", "-fallback")
            for name in (
                "live-weight-3-of-4",
                "live-budget-20-of-100",
                "live-two-cores",
                "live-sleepers",
                "live-driver-cost-20",
            )
        ),
        "fleet-weights",
    ],
    "tick": ["order-weighted-100k", "order-intent-100k", "order-weighted-1m", "top-100-of-100k", "world-10k"],
    "policy": [
        *(f"queue-push-pop-{size}" for size in ("1k", "10k", "100k", "1m")),
        *(f"queue-update-{size}" for size in ("1k", "1m")),
        *(f"eevdf-{size}" for size in ("1k", "10k", "100k", "1m")),
        "fair-share-1000x100k",
    ],
    "mcp": ["first-answer", "first-answer-cpu", "clients-100"],
    "daemon": [
        *("enqueue-1c", "enqueue-16c", "claim-complete-16c", "http-enqueue-16c"),
        *("wake-p50", "wake-p99", "memory"),
    ],
    "queue": [
        *(
            "enqueue-1t",
            "claim-complete-1t",
            "claim-complete-1t-projects",
            "enqueue-16t",
            "claim-complete-16t",
            "enqueue-many-100",
            "batch-100",
        ),
        *("drain-1w", "drain-4w", "drain-4w-to-1w", "fair-drain-4w", "eevdf-drain-4w", "isolated-drain"),
        *("depth-1m", "finished-1m", "sleepers-100k", "sleepers-due", "sleepers-due-worst-claim", "memory-1m"),
        *("writers-8p-worst-wait", "wake-up-p50", "wake-up-p99"),
        *(f"owners-10k-{policy}" for policy in ("eevdf", "edf", "round_robin", "weighted_priority", "fair_share")),
    ],
}


@pytest.mark.parametrize("bench", command.BENCHES)
def test_case_names_are_fixed(bench: str) -> None:
    assert [case.name for case in command._cases(bench)] == CASES[bench]


def test_every_bench_is_named_here() -> None:
    assert set(command.BENCHES) == set(CASES)
