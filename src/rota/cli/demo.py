"""`rota demo`: one entry all the way, then who ran when under three policies."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rota.app import Rota
from rota.model.events import Event
from rota.policy import registry
from rota.tick import AgentDescriptor, SchedulerConfig, TickWorld

__all__ = ["show"]

TICKS_MAX = 60
MARGIN = 40  # columns beside the strip
AGENTS = (("deploy", 10.0, "red"), ("review", 6.0, "yellow"), ("research", 3.0, "green"), ("cleanup", 1.0, "cyan"))
POLICIES = ("strict", "weighted_priority", "eevdf")


def show() -> None:
    """Print the demonstration."""
    console = Console()
    console.rule("[bold]One entry, all the way")
    _one_entry(console)
    console.print()
    console.rule("[bold]Four agents, room for one at a time: who ran when")
    ticks = max(20, min(TICKS_MAX, console.width - MARGIN))
    for policy in POLICIES:
        _who_ran_when(console, policy, ticks)
    console.print(
        "\n[dim]strict starves whoever is less important; aging lets everybody through in the end; "
        "eevdf gives each its share.\nNext: read docs/architecture.md, or try `rota policy list`.[/]"
    )


def _one_entry(console: Console) -> None:
    with Rota(":memory:") as rota:

        @rota.agent()
        def summarise(run: Any, url: str) -> dict[str, Any]:
            return {"read": url, "attempt": run.attempt}

        job = summarise.enqueue(url="a page", priority=5)
        rota.run(until_idle=True)
        for event in rota.kernel.journal.tail():
            console.print(_story(event))
        console.print(f"  → result of entry {job.sched_id}: {job.result()}", style="bold")


def _story(event: Event) -> Text:
    facts = ", ".join(f"{name}={value}" for name, value in event.payload.items() if value not in ("", None))
    return Text.assemble(f"  {event.event_id:>2} ", (f"{event.kind:26}", "cyan"), (facts, "dim"))


def _who_ran_when(console: Console, policy: str, ticks: int) -> None:
    ran: dict[int, list[int]] = {}
    world = TickWorld(
        SchedulerConfig(policy=policy, max_per_tick=1),
        step=lambda pid, world: ran.setdefault(pid, []).append(world.tick),
    )
    pids = {world.spawn(AgentDescriptor(agent_id=name, priority=priority)): color for name, priority, color in AGENTS}
    world.run(ticks)
    table = Table(box=None, padding=(0, 1), show_header=False)
    for (pid, color), (name, priority, _) in zip(pids.items(), AGENTS, strict=True):
        turns = ran.get(pid, [])
        strip = "".join("█" if tick in turns else "·" for tick in range(ticks))
        share = f"{len(turns) / ticks:4.0%}"
        table.add_row(f"{name} ({priority:g})", Text(strip, style=color), share, _longest_wait(turns, ticks))
    console.print(f"\n[bold]{policy}[/]  [dim]{registry.make(policy).sentence}[/]")
    console.print(table)


def _longest_wait(turns: list[int], ticks: int) -> Text:
    """The longest stretch without a turn."""
    if not turns:
        return Text("never ran", style="bold red")
    longest = max(later - earlier for earlier, later in zip([-1, *turns], [*turns, ticks], strict=True)) - 1
    return Text(f"longest wait {longest}", style="dim")
