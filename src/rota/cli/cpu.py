"""`rota cpu sim`: a scenario under virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from rota.cli import output
from rota.cores.runqueue import RULES, Rule
from rota.errors import InvalidInput
from rota.policy import registry
from rota.sim.build import arrange, build
from rota.sim.plot import draw
from rota.sim.report import Report, Spread, report
from rota.sim.scenario import Scenario, load
from rota.sim.simulation import Simulation

__all__ = ["Drawing", "simulate"]

US, MS = 1_000, 1_000_000
FIGURES = 3  # of a time in ms
ROWS_MAX = 40  # threads shown; the rest is in the JSON


class Drawing(NamedTuple):
    """Where to draw, and how much of the beginning."""

    path: Path
    until_ms: int


def simulate(
    path: Path, *, policy: str | None, arrange_us: int, seed: int | None, drawing: Drawing | None, as_json: bool
) -> None:
    """Run a scenario to its end and show what happened."""
    scenario = load(path)
    if seed is not None:
        scenario = msgspec.structs.replace(scenario, seed=seed)
    simulation = _build(scenario, policy, arrange_us)
    simulation.run(scenario.duration_ms * MS)
    shown = report(simulation)
    title = f"{path.name}: {scenario.cores} cores, {policy or scenario.rule}, seed {scenario.seed}"
    if drawing is not None:
        _draw(simulation, title, drawing)
    if as_json:
        print(msgspec.json.encode(shown).decode())
        return
    console = output.console()
    console.print(_threads(shown, title))
    _totals(console, shown)
    if drawing is not None:
        console.print(f"drawn: {drawing.path}")


def _build(scenario: Scenario, policy: str | None, arrange_us: int) -> Simulation:
    """A simulation under one of the engine's own rules, or under its default with another policy that arranges."""
    rule: Rule | None = next((one for one in RULES if one == policy), None)
    if policy is None or rule is not None:
        return build(scenario, rule=rule, observe=True)
    arranging = registry.make(policy)
    simulation = build(scenario, observe=True)
    arrange(simulation, arranging, arrange_us * US)
    return simulation


def _draw(simulation: Simulation, title: str, drawing: Drawing) -> None:
    text = draw(simulation, title, until_ns=drawing.until_ms * MS)
    try:
        drawing.path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise InvalidInput(f"{drawing.path} cannot be written: {problem.strerror}", field="plot") from problem


def _threads(shown: Report, title: str) -> Table:
    caption = "in ms. lag: least/most owed. latency: waking to running, response: asked to done; p50/p99/max."
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


def _totals(console: Console, shown: Report) -> None:
    idle = ", ".join(f"core {one.core} {one.idle_ppm / 10_000:.1f} %" for one in shown.cores[:ROWS_MAX])
    counted = shown.counted
    console.print(f"idle: {idle}")
    console.print(
        f"{counted['picks']:,} picks, {counted['preemptions']:,} preemptions, {counted['migrations']:,} migrations, "
        f"{counted['steals']:,} steals, {counted['depletions']:,} depletions, [bold]{counted['misses']:,} misses[/]"
    )
    said = ", ".join(f"{count:,} × {name}" for name, count in shown.decisions.items())
    if said:
        console.print(f"told: {said}")


def _spread(spread: Spread | None) -> str:
    return "–" if spread is None else "/".join(map(_ms, (spread.p50_ns, spread.p99_ns, spread.max_ns)))


def _ms(time_ns: int) -> str:
    """Three figures, so that a row fits on a narrow screen; all of them are in the JSON."""
    time_ms = time_ns / MS
    decimals = max(0, FIGURES - len(f"{abs(time_ms):.0f}"))
    return f"{time_ms:,.{decimals}f}"
