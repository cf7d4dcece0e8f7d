"""`rota cpu sim`: run a scenario in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from rota.cli import output
from rota.cores import RULES, Rule
from rota.errors import InvalidInput
from rota.service import make_policy
from rota.sim import (
    Scenario,
    SimReport,
    Simulation,
    TimeSpread,
    apply_policy,
    build_simulation,
    draw_svg,
    load_scenario,
    make_report,
)

__all__ = ["PlotOptions", "PolicyOptions", "simulate"]

US, MS = 1_000, 1_000_000
FIGURES = 3  # significant figures of a time in ms
ROWS_MAX = 40  # threads shown; the JSON has all of them


class PlotOptions(NamedTuple):
    """The SVG file to write, and how much of the beginning to draw."""

    path: Path
    until_ms: int


class PolicyOptions(NamedTuple):
    """The policy, where it runs if it is of another package, and how often it ranks."""

    name: str
    isolation: Literal["thread", "process"]
    arrange_us: int


def simulate(
    path: Path, *, policy: PolicyOptions | None, seed: int | None, plot: PlotOptions | None, as_json: bool
) -> None:
    """Run a scenario to its end and print the report."""
    scenario = load_scenario(path)
    if seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=seed)
    simulation = _build(scenario, policy)
    simulation.run(scenario.duration_ms * MS)
    shown = make_report(simulation)
    title = (
        f"{path.name}: {scenario.cores} cores, {scenario.rule if policy is None else policy.name}, seed {scenario.seed}"
    )
    if plot is not None:
        _draw(simulation, title, plot)
    if as_json:
        output.print_json(shown)
        return
    console = output.console()
    console.print(_threads(shown, title))
    _totals(console, shown)
    if plot is not None:
        console.print(f"drawing: {plot.path}", markup=False)


def _build(scenario: Scenario, policy: PolicyOptions | None) -> Simulation:
    """Return a simulation under one of the engine's own rules, or under its default with another policy on top."""
    rule: Rule | None = next((one for one in RULES if policy is not None and one == policy.name), None)
    if policy is None or rule is not None:
        return build_simulation(scenario, rule=rule, observe=True)
    other = make_policy(policy.name, {}, policy.isolation)
    simulation = build_simulation(scenario, observe=True)
    apply_policy(simulation, other, policy.arrange_us * US, seed=scenario.seed)
    return simulation


def _draw(simulation: Simulation, title: str, plot: PlotOptions) -> None:
    text = draw_svg(simulation, title, until_ns=plot.until_ms * MS)
    try:
        plot.path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise InvalidInput(f"{plot.path} cannot be written: {problem.strerror}", field="plot") from problem


def _threads(shown: SimReport, title: str) -> Table:
    caption = "in ms. lag: minimum/maximum. latency: waking to running, response: request to completion; p50/p99/max."
    table = Table(
        title=title, title_justify="left", caption=caption, caption_justify="left", box=None, padding=(0, 2, 0, 0)
    )
    table.add_column("thread", overflow="ellipsis", no_wrap=True)
    for name in ("share%", "lag", "latency", "response", "switches", "moves"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in shown.threads[:ROWS_MAX]:
        table.add_row(
            one.name,
            f"{one.share_ppm / 10_000:.2f}",
            f"{_ms(one.lag_min_ns)}/{_ms(one.lag_max_ns)}",
            _spread(one.latency),
            _spread(one.response),
            f"{one.switches:,}",
            f"{one.migrations:,}",
        )
    if len(shown.threads) > ROWS_MAX:
        table.add_row(f"… and {len(shown.threads) - ROWS_MAX:,} more", *[""] * 6)
    return table


def _totals(console: Console, shown: SimReport) -> None:
    idle = ", ".join(f"core {one.core} {one.idle_ppm / 10_000:.1f} %" for one in shown.cores[:ROWS_MAX])
    counted = shown.counted
    console.print(f"idle: {idle}")
    console.print(
        f"{counted['picks']:,} picks, {counted['preemptions']:,} preemptions, {counted['migrations']:,} migrations, "
        f"{counted['steals']:,} steals, {counted['depletions']:,} depletions, [bold]{counted['misses']:,} misses[/]"
    )
    decisions = ", ".join(f"{count:,} × {name}" for name, count in shown.decisions.items())
    if decisions:
        console.print(f"decisions: {decisions}")


def _spread(spread: TimeSpread | None) -> str:
    return "–" if spread is None else "/".join(map(_ms, (spread.p50_ns, spread.p99_ns, spread.max_ns)))


def _ms(time_ns: int) -> str:
    """Format a time with three figures, so that a row fits on a narrow screen; the JSON has all digits."""
    time_ms = time_ns / MS
    decimals = max(0, FIGURES - len(f"{abs(time_ms):.0f}"))
    return f"{time_ms:,.{decimals}f}"
