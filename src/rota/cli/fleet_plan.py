"""`rota run --plan` prints what a fleet would do; `rota run --schema` prints the JSON Schema of its file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rota import store
from rota.cli import output
from rota.cli.connection import open_client
from rota.cli.terminal_text import harmless
from rota.clock import Clock, SystemClock, local_time
from rota.errors import StoreMissing
from rota.fleet import Fleet, FleetPlan, fleet_schema, load_fleet, plan_fleet
from rota.kernel import Kernel
from rota.model import amount_text, dim_text, dollars
from rota.rpc import Client, is_remote

__all__ = ["print_plan", "print_schema"]

ROWS_MAX = 50  # of one table; --json prints all


def print_schema() -> None:
    """Print the JSON Schema of a fleet file."""
    output.print_json(fleet_schema(), indent=2)


def print_plan(
    path: str | os.PathLike[str], *, as_json: bool, clock: Clock | None = None, console: Console | None = None
) -> FleetPlan:
    """Print the plan of a fleet and return it. The store is opened only if it exists, and only to read.

    A daemon is asked what its store has.
    """
    fleet = load_fleet(path)
    now = (clock or SystemClock()).now()
    with _read_only(fleet) as api:
        plan = plan_fleet(fleet, now, api, None if api is None else api.policies.get())
    if as_json:
        output.print_json(plan, file=None if console is None else console.file)
    else:
        _print(plan, console or output.console())
    return plan


@contextmanager
def _read_only(fleet: Fleet) -> Iterator[Client | Kernel | None]:
    if is_remote(fleet.store_path):
        with open_client(fleet.store_path) as client:
            yield client
        return
    try:
        opened = store.open(fleet.store_path, read_only=True, create=False)
    except StoreMissing:
        yield None  # the first run creates it
        return
    try:
        yield Kernel(opened)
    finally:
        opened.close()


def _print(plan: FleetPlan, console: Console) -> None:
    state = "exists" if plan.store_exists else "will be created"
    console.print(f"[bold]{escape(plan.fleet)}[/]  {plan.slots} slots, store {escape(plan.store)} ({state})")
    console.print(f"[bold]{escape(plan.policy)}[/]  [dim]{escape(plan.policy_sentence)}[/]")
    made = (_projects, _agents, _graphs, _budgets, _limits, _prices, _cpu, _triggers)
    for table in (make(plan) for make in made):
        if table.row_count:
            console.print()
            console.print(table)
    _print_list(console, "Changes to the store", plan.changes, "cyan")
    _print_list(console, "Warnings", plan.warnings, "yellow")


def _print_list(console: Console, title: str, lines: list[str], color: str) -> None:
    if lines:
        console.print(f"\n[bold]{title}[/]")
        for line in lines[:ROWS_MAX]:
            console.print(f"  [{color}]•[/] {escape(harmless(line))}", highlight=False)
        if len(lines) > ROWS_MAX:
            console.print(f"  and {len(lines) - ROWS_MAX} more")


def _fill(table: Table, rows: list[tuple[str, ...]]) -> Table:
    for row in rows[:ROWS_MAX]:
        table.add_row(*map(output.cell, row))
    if len(rows) > ROWS_MAX:
        table.caption = f"and {len(rows) - ROWS_MAX} more"
    return table


def _share(value: float | None) -> str:
    return "by priority" if value is None else f"{value:.1%}"


def _projects(plan: FleetPlan) -> Table:
    table = Table("project", "weight", "share when all are busy", "slots", "cap", "agents", title="Projects")
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
            for row in plan.projects
        ],
    )


def _agents(plan: FleetPlan) -> Table:
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
            for row in plan.agents
        ],
    )


def _graphs(plan: FleetPlan) -> Table:
    table = Table("graph", "project", "file", "nodes", "budget of a run", "runs per hour", title="Graphs")
    return _fill(
        table,
        [
            (
                row.name,
                row.project,
                row.file,
                ", ".join([*row.agents, *([f"{row.functions} in the coordinator"] if row.functions else [])]),
                ", ".join(f"{amount_text(dim, each)} {dim_text(dim)}" for dim, each in row.budget.items()) or "–",
                f"{row.runs_per_hour:.4g}{' and more' if row.and_more else ''}",
            )
            for row in plan.graphs
        ],
    )


def _budgets(plan: FleetPlan) -> Table:
    table = Table("budget of", "dimension", "limit", "used", "per", "use per hour", "lasts", title="Budgets")
    return _fill(
        table,
        [
            (
                f"{row.level} {row.owner}" if row.level != "global" else "all projects",
                dim_text(row.dim),
                amount_text(row.dim, row.limit),
                amount_text(row.dim, row.used),
                "total" if row.window_h is None else f"{row.window_h:g} h",
                amount_text(row.dim, round(row.use_per_hour)),
                row.told if row.ends_at is None else f"{row.told} ({local_time(row.ends_at)})",
            )
            for row in plan.budgets
        ],
    )


def _cpu(plan: FleetPlan) -> Table:
    table = Table("of", "setting", "value", "is", "how", title="CPU")
    return _fill(table, [(row.owner, row.setting, row.value, row.state, row.how) for row in plan.cpu])


def _limits(plan: FleetPlan) -> Table:
    table = Table("limit", "unit", "budget", "per", "used by", title="Limits")
    return _fill(
        table,
        [
            (row.name, row.unit, f"{row.budget:,}", f"{row.period_s:g} s", ", ".join(row.drawn_by) or "no agent")
            for row in plan.limits
        ],
    )


def _prices(plan: FleetPlan) -> Table:
    table = Table("model", "input", "cached input", "output", title="Prices of a million tokens")
    rows = [
        (row.model, *(dollars(each) for each in (row.input_micro, row.cached_input_micro, row.output_micro)))
        for row in plan.prices
    ]
    return _fill(table, rows)


def _triggers(plan: FleetPlan) -> Table:
    table = Table("agent", "trigger", "next firings", title="Triggers")
    return _fill(
        table,
        [(row.agent, row.what, ", ".join(map(local_time, row.next_at)) or "not timed") for row in plan.triggers],
    )
