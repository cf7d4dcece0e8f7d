"""`rota why`: why an entry is not running."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli.options import STORE, AsJson, Store

if TYPE_CHECKING:
    from rich.console import Console

    from rota.model import Explanation

__all__ = ["why"]

ANY_WORKER = "any-worker"  # the worker whose claim `rota why` tries by default

_MARKS = {True: "[green]●[/]", False: "[red]●[/]"}


def why(
    sched_id: Annotated[int, typer.Argument(help="The entry id.")],
    *,
    worker: Annotated[str, typer.Option("--worker", help="The worker whose claim is tried.")] = ANY_WORKER,
    max_n: Annotated[int, typer.Option("--max-n", min=1, help="How many entries the claim asks for.")] = 1,
    kind: Annotated[list[str] | None, typer.Option("--kind", help="A kind of slot the worker has; repeatable.")] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="The policy to try. Default: the policy in force.")
    ] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Explain why an entry is not running.

    Shows every blocking reason, the entries ahead, an estimated start and what would start it. Changes nothing.
    """
    from rota.cli.connection import open_api
    from rota.cli.output import console, print_json

    with open_api(store) as api:
        found = api.explain(sched_id, worker_id=worker, max_n=max_n, kinds=tuple(kind or ()), policy=policy)
    if as_json:
        print_json(found)
    else:
        _print_explanation(console(), found)


def _print_explanation(console: Console, found: Explanation) -> None:
    from rota.cli.output import cell

    state = cell(found.state)
    console.print(f"{_MARKS[found.starts]} entry {found.sched_id} of agent {found.pid} is [bold]{state}[/]")
    _print_reasons(console, found)
    _print_outlook(console, found)
    _print_history(console, found)
    claim = f"a claim of {found.max_n} by {found.worker_id}, with policy {found.policy} ({found.policy_source})"
    console.print(f"\nas of event {found.cursor}, for {claim}", style="dim", markup=False)


def _print_reasons(console: Console, found: Explanation) -> None:
    for heading, reasons in (("blocked by", found.blocking), ("eligible, but", found.ordering)):
        if reasons and found.state == "queued":
            console.print(f"\n[bold]{heading}[/]")
            for reason in reasons:
                code = type(reason).__struct_config__.tag
                console.print(f"  {code}: {reason.sentence()}{_instants(reason, found.now)}", markup=False)
    if found.state == "dispatched":
        for reason in found.blocking[1:]:  # the first says that it runs
            code = type(reason).__struct_config__.tag
            console.print(f"  {code}: {reason.sentence()}{_instants(reason, found.now)}", markup=False)
    for each in found.ahead:
        console.print(f"    {each.sched_id} of agent {each.pid}: {each.score}", style="dim", markup=False)
    if found.starts:
        console.print(f"  eligible: the next claim takes it ({found.policy})", markup=False)


def _instants(reason: object, now_at: float) -> str:
    """The instants of a reason, relative to now."""
    from rota.cli.output import when

    fields = (field for field in reason.__struct_fields__ if field.endswith("_at") or field == "deadline")  # type: ignore[attr-defined]  # it is a Struct
    shown = [when(at, now_at) for field in fields if (at := getattr(reason, field))]
    return f" ({', '.join(shown)})" if shown else ""


def _print_outlook(console: Console, found: Explanation) -> None:
    from rota.cli.output import cell, when

    if found.state == "queued" and not found.starts:
        starts = "unknown" if found.estimate.starts_at is None else when(found.estimate.starts_at, found.now)
        place = "" if found.position is None else f", position {found.position:,}"
        console.print(f"\n[bold]start[/]: {starts}{place} [dim]({cell(found.estimate.basis)})[/]")
    if found.changes:
        console.print("\n[bold]what would start it[/]")
    for change in found.changes:
        until = f", or wait: {when(change.until_at, found.now)}" if change.until_at else ""
        console.print(f"  {change.words}{until}", markup=False)
        if change.verb is not None:
            arguments = ", ".join(f"{name}={value!r}" for name, value in change.arguments.items())
            console.print(f"    {change.verb}({arguments})", style="dim", markup=False)


def _print_history(console: Console, found: Explanation) -> None:
    from rota.cli.output import when

    console.print(f"\n[bold]history[/]{'' if found.story_is_whole else ' [dim](incomplete)[/]'}")
    for step in found.story:
        by = f"  by {step.author}" if step.author else ""
        console.print(f"  {when(step.at, found.now):>12}  {step.words}{by}", markup=False)
