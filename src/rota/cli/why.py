"""`rota why`: why an entry is not running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli.options import STORE, AsJson, Store

if TYPE_CHECKING:
    from rich.console import Console

    from rota.model.explanation import Explanation

__all__ = ["why"]

_MARKS = {True: "[green]●[/]", False: "[red]●[/]"}


def why(
    sched_id: Annotated[int, typer.Argument(help="The entry.")],
    *,
    worker: Annotated[str, typer.Option("--worker", help="The worker whose claim is tried.")] = "anybody",
    max_n: Annotated[int, typer.Option("--max-n", min=1, help="How many entries it asks for.")] = 1,
    kind: Annotated[list[str] | None, typer.Option("--kind", help="A kind of slot it has; may be repeated.")] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="The policy it goes by; the one in force, if left out.")
    ] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Say why an entry is not running, who goes first, and what would start it. Nothing is changed."""
    from rota.cli.connection import open_desk
    from rota.cli.output import console, print_json

    with open_desk(store) as desk:
        told = desk.explain(sched_id, worker_id=worker, max_n=max_n, kinds=tuple(kind or ()), policy=policy)
    if as_json:
        print_json(told)
    else:
        _print(console(), told)


def _print(console: Console, told: Explanation) -> None:
    console.print(f"{_MARKS[told.starts]} entry {told.sched_id} of agent {told.pid} is [bold]{told.state}[/]")
    _print_reasons(console, told)
    _print_outlook(console, told)
    _print_story(console, told)
    claim = f"a claim of {told.max_n} by {told.worker_id}, with policy {told.policy} ({told.policy_source})"
    console.print(f"\ntrue at event {told.cursor}, for {claim}", style="dim", markup=False)


def _print_reasons(console: Console, told: Explanation) -> None:
    for heading, reasons in (("it may not run", told.blocking), ("it may run, and", told.ordering)):
        if reasons and told.state == "queued":
            console.print(f"\n[bold]{heading}[/]")
            for reason in reasons:
                code = type(reason).__struct_config__.tag
                console.print(f"  {code}: {reason.sentence()}{_seen_from(reason, told.now)}", markup=False)
    for each in told.ahead:
        console.print(f"    {each.sched_id} of agent {each.pid}: {each.score}", style="dim", markup=False)
    if told.starts:
        console.print(f"  nothing stands in its way: the next claim takes it ({told.policy})")


def _seen_from(reason: object, now_at: float) -> str:
    """The instants of a reason, seen from now."""
    from rota.cli.output import when

    fields = (field for field in reason.__struct_fields__ if field.endswith("_at") or field == "deadline")  # type: ignore[attr-defined]  # it is a Struct
    seen = [when(at, now_at) for field in fields if (at := getattr(reason, field))]
    return f" ({', '.join(seen)})" if seen else ""


def _print_outlook(console: Console, told: Explanation) -> None:
    from rota.cli.output import when

    if told.state == "queued" and not told.starts:
        starts = "nobody can say" if told.estimate.starts_at is None else when(told.estimate.starts_at, told.now)
        place = "" if told.position is None else f", position {told.position:,}"
        console.print(f"\n[bold]start[/]: {starts}{place} [dim]({told.estimate.basis})[/]")
    if told.changes:
        console.print("\n[bold]what would start it[/]")
    for change in told.changes:
        until = f", or wait: {when(change.until_at, told.now)}" if change.until_at else ""
        console.print(f"  {change.words}{until}", markup=False)
        if change.verb is not None:
            arguments = ", ".join(f"{name}={value!r}" for name, value in change.arguments.items())
            console.print(f"    {change.verb}({arguments})", style="dim", markup=False)


def _print_story(console: Console, told: Explanation) -> None:
    from rota.cli.output import when

    console.print(f"\n[bold]so far[/]{'' if told.story_is_whole else ' [dim](some of it is missing)[/]'}")
    for step in told.story:
        console.print(f"  {when(step.at, told.now):>12}  {step.words}", markup=False)
