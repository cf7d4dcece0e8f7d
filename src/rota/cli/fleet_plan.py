"""`rota run --plan` and `rota run --schema`: what a fleet would do, and how its file is written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rota import store
from rota.clock import Clock, SystemClock
from rota.fleet.config.file import load
from rota.fleet.config.plan import FleetPlan, plan
from rota.fleet.config.tables import Fleet, schema
from rota.kernel import Kernel

__all__ = ["print_schema", "show"]

ROWS_MAX = 50  # of one table; --json has them all


def print_schema() -> None:
    """Print the JSON Schema of a fleet file."""
    print(msgspec.json.format(msgspec.json.encode(schema())).decode())


def show(
    path: str | os.PathLike[str], *, as_json: bool, clock: Clock | None = None, console: Console | None = None
) -> FleetPlan:
    """Print what a fleet would do. Nothing is written; a store is opened only if it exists, and only to read."""
    fleet = load(path)
    now = (clock or SystemClock()).now()
    with _read_only(fleet) as desk:
        made = plan(fleet, now, desk)
    console = console or Console()
    if as_json:
        console.out(msgspec.json.encode(made).decode(), highlight=False)
    else:
        _print(made, console)
    return made


@contextmanager
def _read_only(fleet: Fleet) -> Iterator[Kernel | None]:
    if not Path(fleet.store_path).is_file():
        yield None
        return
    opened = store.open(fleet.store_path, read_only=True)
    try:
        yield Kernel(opened)
    finally:
        opened.close()


def _print(made: FleetPlan, console: Console) -> None:
    known = "as it stands" if made.store_exists else "to be made"
    console.print(f"[bold]{escape(made.fleet)}[/]  {made.slots} slots, store {escape(made.store)} ({known})")
    console.print(f"[bold]{escape(made.policy)}[/]  [dim]{escape(made.policy_sentence)}[/]")
    for table in (_projects(made), _agents(made), _budgets(made), _limits(made), _triggers(made)):
        if table.row_count:
            console.print()
            console.print(table)
    _print_list(console, "Would change in the store", made.changes, "cyan")
    _print_list(console, "Look again", made.warnings, "yellow")


def _print_list(console: Console, title: str, lines: list[str], color: str) -> None:
    if lines:
        console.print(f"\n[bold]{title}[/]")
        for line in lines[:ROWS_MAX]:
            console.print(f"  [{color}]•[/] {escape(line)}", highlight=False)
        if len(lines) > ROWS_MAX:
            console.print(f"  and {len(lines) - ROWS_MAX} more")


def _fill(table: Table, rows: list[tuple[str, ...]]) -> Table:
    for row in rows[:ROWS_MAX]:
        table.add_row(*(escape(cell) for cell in row))
    if len(rows) > ROWS_MAX:
        table.caption = f"and {len(rows) - ROWS_MAX} more"
    return table


def _share(value: float | None) -> str:
    return "by priority" if value is None else f"{value:.1%}"


def _projects(made: FleetPlan) -> Table:
    table = Table("project", "weight", "share when all are busy", "slots", "cap", "agents", title="Who gets what")
    return _fill(
        table,
        [
            (
                row.name,
                f"{row.weight:g}",
                _share(row.share),
                "–" if row.slots is None else f"{row.slots:.2f}",
                "–" if row.max_concurrent is None else str(row.max_concurrent),
                str(row.agents),
            )
            for row in made.projects
        ],
    )


def _agents(made: FleetPlan) -> Table:
    table = Table("agent", "project", "runner", "priority", "share", "runs per hour", title="Agents")
    return _fill(
        table,
        [
            (
                row.name,
                row.project,
                row.runner,
                str(row.priority),
                _share(row.share),
                f"{row.runs_per_hour:.4g}{' and more' if row.and_more else ''}",
            )
            for row in made.agents
        ],
    )


def _budgets(made: FleetPlan) -> Table:
    table = Table(
        "budget of", "dimension", "limit", "used", "per", "use per hour", "lasts", title="Which budget ends when"
    )
    return _fill(
        table,
        [
            (
                f"{row.level} {row.owner}" if row.level != "global" else "everybody",
                row.dim,
                f"{row.limit:,}",
                f"{row.used:,}",
                "total" if row.window_h is None else f"{row.window_h:g} h",
                f"{row.use_per_hour:,.0f}",
                row.told if row.ends_at is None else f"{row.told} ({_moment(row.ends_at)})",
            )
            for row in made.budgets
        ],
    )


def _limits(made: FleetPlan) -> Table:
    table = Table("limit", "unit", "budget", "per", "drawn on by", title="Shared limits")
    return _fill(
        table,
        [
            (row.name, row.unit, f"{row.budget:,}", f"{row.period_s:g} s", ", ".join(row.drawn_by) or "nobody")
            for row in made.limits
        ],
    )


def _triggers(made: FleetPlan) -> Table:
    table = Table("agent", "trigger", "next firings", title="What enqueues whom")
    return _fill(
        table,
        [(row.agent, row.what, ", ".join(map(_moment, row.next_at)) or "when it happens") for row in made.triggers],
    )


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
