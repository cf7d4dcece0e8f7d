"""`rota demo` shows what it says, with real processes."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from rota.cli.demo_report import Demonstrated, Incidents, print_report
from rota.kernel import Kernel, ScheduleSpec
from rota.model.work import ReadyEntry
from rota.observe.fleet_report import FleetReport, ProjectReport, WaitTimes
from rota.store import open as open_store

ROTA = Path(sys.executable).parent / "rota"


def rota_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ROTA, "demo", *arguments], capture_output=True, text=True, check=False, timeout=110)


def test_everything_that_goes_wrong_is_survived_and_nothing_is_lost() -> None:
    done = rota_demo("--seconds", "5", "--json")
    assert done.returncode == 0, done.stderr
    shown = msgspec.json.decode(done.stdout)
    assert shown["nothing_lost"]
    assert shown["kill_survived"]
    assert shown["taken_over"]
    assert shown["over_budget_stopped"]
    assert shown["crasher_quarantined"]
    report = shown["report"]
    assert (report["lost"], report["queued"], report["running"]) == (0, 0, 0)
    assert report["finished"] == {"completed": report["enqueued"] - 2, "crashed": 1, "failed": 1}
    assert report["failures"]["over_budget"] == 1
    assert report["reclaimed"] >= len(shown["taken_over"])
    assert report["retries"] >= 2  # of the one that crashes
    tokens = {project["project_id"]: project["charged"]["tokens"] for project in report["projects"]}
    assert tokens.keys() == {"research", "review", "upkeep"}
    assert all(tokens.values())
    assert sum(project["share"] for project in shown["projects"].values()) == pytest.approx(1.0)
    assert "quarantined for 600 s" in done.stderr  # the view tells the story beside the report


def test_a_policy_that_does_not_exist_is_one_sentence() -> None:
    done = rota_demo("--policy", "nonsense")
    assert done.returncode == 3
    assert done.stderr.startswith("rota: ")
    assert "nonsense" in done.stderr
    assert "Traceback" not in done.stderr


# --- the report ----------------------------------------------------------------------------------


@pytest.fixture
def ended() -> Any:
    """Entries that ended like this."""
    kernel = Kernel(open_store(":memory:"))
    pid = kernel.agents.create("agent")

    def entry(exit_kind: str, outcome: str | None = None, **changes: Any) -> ReadyEntry:
        sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
        kernel.queue.claim(worker_id="w")
        kernel.queue.complete(sched_id, exit_kind, outcome=outcome)
        return msgspec.structs.replace(kernel.queue.get(sched_id), **changes)

    yield entry
    kernel.store.close()


def outcome(ended: Any, **changes: Any) -> Demonstrated:
    project = ProjectReport(
        project_id="research",
        weight=3_000,
        runs=10,
        failed=1,
        charged={"tokens": 9_000},
        seconds=12.0,
        share=0.52,
        target=0.5,
    )
    report = FleetReport(
        measure="tokens",
        projects=[project],
        jain=0.9991,
        waits=WaitTimes(count=10, p50_s=1.0, p99_s=2.5, max_s=3.0),
        retries=2,
        reclaimed=1,
        failures={"over_budget": 1},
        enqueued=10,
        finished={"completed": 9, "failed": 1},
        queued=0,
        running=0,
        lost=0,
    )
    told = {
        "orphans": [ended("completed", attempt=2, result={"began_at_step": 3})],
        "spender": ended("failed", "over_budget"),
        "stumbler": ended("crashed", attempt=3),
        "stumbler_paused_by": "quarantine",
    }
    incidents = Incidents(**{name: changes.pop(name, value) for name, value in told.items()})
    report = msgspec.structs.replace(report, **changes)
    return Demonstrated(policy="eevdf", seconds=61.2, shares=report, report=report, incidents=incidents)


def printed(shown: Demonstrated) -> str:
    console = Console(record=True, width=120, file=io.StringIO(), color_system=None)
    print_report(shown, console)
    return console.export_text()


def test_the_report_shows_shares_entries_and_incidents(ended: Any) -> None:
    shown = outcome(ended)
    assert shown.went_well
    text = printed(shown)
    assert "research         3      10     9,000    52.0%     50.0%    +2.0%" in text
    assert "Largest share error 2.0%; Jain's index 0.9991 (1 is fair)." in text
    assert "Entries: 10 enqueued, 10 ended (9 completed, 1 failed); 2 retries, 1 claims reclaimed." in text
    assert "✓ worker-b was killed holding #1 (attempt 2): worker-a retried and finished them; 1 resumed" in text
    assert "✓ the stumbler crashed 3 times, was retried, then quarantined" in text
    assert "✓ nothing lost: 10 entries enqueued, 10 ended" in text


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"lost": 1, "enqueued": 11}, "✗ 1 of 11 entries were lost"),
        ({"queued": 1, "enqueued": 11}, "✗ nothing lost: 11 entries enqueued, 10 ended, 1 not finished"),
        ({"orphans": []}, "✗ worker-b held no run with a checkpoint, so it was not killed"),
        ({"spender": None}, "✗ the spender should have been stopped over budget, but did not run"),
        ({"stumbler_paused_by": None}, "✗ the stumbler crashed 3 times, was retried, but not quarantined"),
    ],
)
def test_the_report_names_what_failed(ended: Any, changes: dict[str, Any], line: str) -> None:
    shown = outcome(ended, **changes)
    assert not shown.went_well
    assert line in printed(shown)


def test_entries_of_the_killed_worker_that_failed_count_as_a_failure(ended: Any) -> None:
    shown = outcome(ended, orphans=[ended("crashed", attempt=3)])
    assert not shown.went_well
    assert "✗ worker-b was killed holding #1 (attempt 3), and not all of them finished" in printed(shown)
