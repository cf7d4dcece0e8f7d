"""A scene that the tests of the view paint, and the docs show."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType

from rota.cli.panels import Look, Scene, scene_view
from rota.model.budgets import BudgetLine, SchedulingContext
from rota.observe.event_text import EventText
from rota.observe.fleet_report import ProjectReport
from rota.observe.run_chart import RunEnding, RunSpan

NOW = 1_000.0


def project(name: str, weight: int, tokens: int, *, share: float, target: float, runs: int) -> ProjectReport:
    return ProjectReport(
        project_id=name,
        weight=weight * 1_000,
        runs=runs,
        failed=0,
        charged={"tokens": tokens},
        seconds=runs * 1.0,
        share=share,
        target=target,
    )


def span(project_id: str, start_s: float, end_s: float | None = None, ending: RunEnding | None = None) -> RunSpan:
    """A run that began and ended this many seconds ago."""
    end_at = None if end_s is None else NOW - end_s
    return RunSpan(1, 1, project_id, NOW - start_s, end_at, ending)


def fleet() -> Scene:
    """Two workers, three projects; one worker was killed a while ago."""
    return Scene(
        at=NOW,
        store="rota.db",
        policy="eevdf",
        worker_id="worker-a",
        uptime_s=83.0,
        slots=2,
        window_s=60.0,
        lanes=(
            (
                "worker-a",
                1,
                (span("research", 58, 40, "completed"), span("review", 40, 22, "failed"), span("review", 20)),
            ),
            (
                "worker-a",
                2,
                (span("research", 55, 31, "completed"), span("upkeep", 30, 12, "returned"), span("research", 10)),
            ),
            ("worker-b", 1, (span("research", 57, 35, "lost"),)),
        ),
        projects=(
            project("research", 3, 51_250, share=0.52, target=0.5, runs=51),
            project("review", 2, 31_000, share=0.31, target=1 / 3, runs=30),
            project("upkeep", 1, 17_000, share=0.17, target=1 / 6, runs=17),
        ),
        budgets=(
            BudgetLine(
                level="project",
                owner="research",
                dim="tokens",
                limit=100_000,
                window_s=86_400.0,
                used=51_250,
                reserved=2_000,
            ),
            BudgetLine(level="global", owner="*", dim="cost_micro", limit=50_000, window_s=86_400.0, used=60_000),
        ),
        limits=(
            SchedulingContext(
                context_id=1,
                budget=600,
                period=60_000,
                remaining=150,
                unit="requests",
                bound_to="name",
                bound_id="model-api",
                state="active",
            ),
        ),
        queued=24,
        running=2,
        finished=98,
        holds={"backoff": 1, "time": 3},
        retries=2,
        failures={"over_budget": 1},
        reclaimed=1,
        stories=(
            EventText(7, NOW - 22, "bad", "reviewer #40 ended failed (over budget) after 18.0 s, stopped by message"),
            EventText(8, NOW - 20, "plain", "tester #41 started on worker-a"),
            EventText(9, NOW - 10, "plain", "reader #42 started on worker-a"),
        ),
    )


def painted(what: RenderableType, width: int) -> list[str]:
    """The lines that a terminal without colours would show."""
    console = Console(record=True, width=width, file=io.StringIO(), color_system=None, legacy_windows=False)
    console.print(what)
    return [line.rstrip() for line in console.export_text().splitlines()]


def screen(scene: Scene, look: Look) -> str:
    return "\n".join(painted(scene_view(scene, look), look.width))
