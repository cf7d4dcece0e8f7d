"""The outcome of the demonstration, as data and as text."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from rota.model import WEIGHT_UNIT, ReadyEntry
from rota.observe import FleetReport

__all__ = ["Demonstrated", "Incidents", "print_report"]


class Incidents(msgspec.Struct, frozen=True, kw_only=True):
    """The intended failures and how each entry ended."""

    orphans: list[ReadyEntry]  # entries the killed worker held
    spender: ReadyEntry | None
    stumbler: ReadyEntry | None
    stumbler_paused_by: str | None

    @property
    def kill_survived(self) -> bool:
        """Whether every entry of the killed worker was retried and succeeded, or failed as its agent is meant to."""
        meant_to_fail = {entry.sched_id for entry in (self.spender, self.stumbler) if entry is not None}
        ended = (
            entry.exit_kind == "completed" or (entry.exit_kind is not None and entry.sched_id in meant_to_fail)
            for entry in self.orphans
        )
        return bool(self.orphans) and all(ended)

    @property
    def over_budget_stopped(self) -> bool:
        """Whether the run over its budget was stopped."""
        return self.spender is not None and self.spender.outcome == "over_budget"

    @property
    def crasher_quarantined(self) -> bool:
        """Whether the crashing agent was retried, then quarantined."""
        retried = self.stumbler is not None and self.stumbler.attempt > 1
        return retried and self.stumbler_paused_by == "quarantine"


class Demonstrated(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a demonstration."""

    policy: str
    seconds: float
    shares: FleetReport  # while every project had a backlog
    report: FleetReport  # at the end
    incidents: Incidents

    @property
    def nothing_lost(self) -> bool:
        """Whether every entry ended and is accounted for."""
        return self.report.lost == 0 and self.report.queued == 0 and self.report.running == 0

    @property
    def went_well(self) -> bool:
        """Whether everything that should be shown was seen."""
        seen = self.incidents
        return self.nothing_lost and seen.kill_survived and seen.over_budget_stopped and seen.crasher_quarantined

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome for `--json`."""
        shares = {project.project_id: project for project in self.shares.projects}
        return {
            "policy": self.policy,
            "seconds": round(self.seconds, 3),
            "went_well": self.went_well,
            "nothing_lost": self.nothing_lost,
            "kill_survived": self.incidents.kill_survived,
            "taken_over": [entry.sched_id for entry in self.incidents.orphans],
            "over_budget_stopped": self.incidents.over_budget_stopped,
            "crasher_quarantined": self.incidents.crasher_quarantined,
            "share_error": self.shares.share_error,
            "jain": self.shares.jain,
            "projects": {
                name: {"share": project.share, "target": project.target, "error": project.error}
                for name, project in shares.items()
            },
            "report": msgspec.to_builtins(self.report),
        }


def print_report(shown: Demonstrated, console: Console) -> None:
    """Print the report for people."""
    report = shown.report
    console.print()
    console.rule(f"[bold]{shown.seconds:.0f} seconds under {shown.policy}")
    console.print(_shares(shown))
    console.print(
        f"Largest share error {shown.shares.share_error:.1%}; Jain's index {shown.shares.jain:.4f} (1 is fair).\n"
        f"Waits from ready to claimed: median {report.waits.p50_s:.2f} s, "
        f"99th percentile {report.waits.p99_s:.2f} s, longest {report.waits.max_s:.2f} s.\n"
        f"Entries: {report.enqueued:,} enqueued, {sum(report.finished.values()):,} ended "
        f"({', '.join(f'{count:,} {how}' for how, count in report.finished.items())}); "
        f"{report.retries:,} retries, {report.reclaimed:,} claims reclaimed.",
        highlight=False,
    )
    for well, text in _findings(shown):
        console.print(f"  {'[green]✓[/]' if well else '[bold red]✗[/]'} {text}", highlight=False)
    console.print(_NEXT, highlight=False)


def _shares(shown: Demonstrated) -> Table:
    table = Table("project", "weight", "runs", "tokens", "share", "target", "error", box=None, padding=(0, 2))
    for column in table.columns[1:]:
        column.justify = "right"
    for project in shown.shares.projects:
        table.add_row(
            project.project_id,
            f"{project.weight / WEIGHT_UNIT:g}",
            f"{project.runs:,}",
            f"{project.charged.get('tokens', 0):,}",
            f"{project.share:.1%}",
            f"{project.target:.1%}",
            f"{project.error:+.1%}",
        )
    return table


def _findings(shown: Demonstrated) -> list[tuple[bool, str]]:
    seen = shown.incidents
    return [
        (seen.kill_survived, _kill(seen)),
        (seen.over_budget_stopped, _spending(seen)),
        (seen.crasher_quarantined, _crashing(seen)),
        (shown.nothing_lost, _account(shown.report)),
    ]


def _kill(seen: Incidents) -> str:
    if not seen.orphans:
        return "worker-b held no run with a checkpoint, so it was not killed"
    held = ", ".join(f"#{entry.sched_id} (attempt {entry.attempt})" for entry in seen.orphans)
    if not seen.kill_survived:
        return f"worker-b was killed holding {held}, and not all of them finished"
    went_on = [entry for entry in seen.orphans if isinstance(entry.result, dict) and entry.result.get("began_at_step")]
    where = f"; {len(went_on)} resumed from a checkpoint" if went_on else ""
    return f"worker-b was killed holding {held}: worker-a retried and finished them{where}"


def _spending(seen: Incidents) -> str:
    if seen.over_budget_stopped:
        return "the spender exceeded its ceiling and was stopped: over budget"
    how = "did not run" if seen.spender is None else f"ended {seen.spender.outcome or seen.spender.exit_kind}"
    return f"the spender should have been stopped over budget, but {how}"


def _crashing(seen: Incidents) -> str:
    attempts = seen.stumbler.attempt if seen.stumbler is not None else 0
    last = "then quarantined" if seen.crasher_quarantined else "but not quarantined"
    return f"the stumbler crashed {attempts} times, was retried, {last}"


def _account(report: FleetReport) -> str:
    ended = sum(report.finished.values())
    if report.lost:
        return f"{report.lost:,} of {report.enqueued:,} entries were lost"
    left = f", {report.queued + report.running:,} not finished" if report.queued + report.running else ""
    return f"nothing lost: {report.enqueued:,} entries enqueued, {ended:,} ended{left}"


_NEXT = """
[dim]Try next:[/]
  rota demo --policy fair_share    the same under another policy; strict lets projects starve
  rota demo --json                 the report for a program
  rota policy list                 every policy with its waiting bound
  rota docs demo                   what the screen and the report show"""
