"""Commands that show what happens: queue, ps, why, logs, events, top, doctor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rota.cli.exit_codes import FOUND, INTERRUPTED
from rota.cli.options import STORE, AsJson, Limit, Offset, Store
from rota.cli.terminal_text import harmless, say

if TYPE_CHECKING:
    from rich.console import Console

    from rota.model import Event, Explanation, ReadyEntry

__all__ = ["doctor", "events", "logs", "ps", "queue", "top", "why"]

LAST_EVENTS = 20  # shown by `rota events` without --since
ANY_WORKER = "any-worker"  # the worker whose claim `rota why` tries by default

State = Literal["queued", "dispatched", "completed", "expired", "cancelled", "all"]

_MARKS = {True: "[green]●[/]", False: "[red]●[/]"}
_VERDICTS = {"good": "[green]✓[/]", "note": "[yellow]![/]", "bad": "[red]✗[/]"}


def queue(
    *,
    state: Annotated[State, typer.Option("--state", help="Only entries in this state.")] = "queued",
    agent: Annotated[str | None, typer.Option("--agent", help="Only this agent's, by pid or name.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only this project's.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only entries with this label.")] = None,
    exit_kind: Annotated[str | None, typer.Option("--exit-kind", help="Only entries that ended this way.")] = None,
    limit: Limit = 100,
    offset: Offset = 0,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """List entries by id. Default: queued entries."""
    from rota.cli.arguments import pid_of
    from rota.cli.connection import open_api
    from rota.cli.output import console, print_json, print_table

    with open_api(store) as api:
        entries, total = api.queue.list(
            state=None if state == "all" else state,
            pid=None if agent is None else pid_of(api, agent),
            project_id=project,
            tag=tag,
            exit_kind=exit_kind,
            limit=limit,
            offset=offset,
        )
        counts = api.queue.counts()
    if as_json:
        print_json({"entries": entries, "total": total, "counts": counts})
        return
    columns = ("entry", "agent", "project", "priority", "state", "when", "attempt", "trigger", "tags")
    print_table(columns, (_queue_row(entry) for entry in entries), empty="no matching entries")
    summary = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    console().print(f"{total:,} match; in total: {summary or 'none'}", style="dim")


def _queue_row(entry: ReadyEntry) -> tuple[object, ...]:
    from rota.cli.output import now, when

    instant = entry.runnable_at if entry.state == "queued" else entry.completed_at or entry.dispatched_at
    hold = "reserved" if entry.hold == "worker" else entry.hold
    state = entry.exit_kind if entry.state == "completed" else hold or entry.state
    if entry.unreadable is not None:
        state = f"{state} (unreadable)"
    return (
        entry.sched_id,
        entry.pid,
        entry.project_id,
        entry.priority,
        state,
        when(instant, now()),
        f"{entry.attempt} of {entry.max_attempts}",
        entry.trigger,
        entry.tags,
    )


def ps(
    project: Annotated[str | None, typer.Option("--project", help="Only this project's.")] = None,
    limit: Limit = 100,
    offset: Offset = 0,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """List running entries with their worker and claim expiry."""
    from rota.cli.connection import open_api
    from rota.cli.output import now, print_json, print_table, when

    with open_api(store) as api:
        entries, total = api.queue.list(state="dispatched", project_id=project, limit=limit, offset=offset)
    if as_json:
        print_json({"entries": entries, "total": total})
        return
    at = now()
    rows = [
        (
            entry.sched_id,
            entry.pid,
            entry.project_id,
            entry.worker_id,
            entry.attempt,
            when(entry.dispatched_at, at),
            "stopping" if entry.cancel_requested else when(entry.claim_expires_at, at),
            entry.workspace,
        )
        for entry in entries
    ]
    columns = ("entry", "agent", "project", "worker", "attempt", "started", "claim expires", "workspace")
    print_table(columns, rows, empty="nothing is running")


# --- why ------------------------------------------------------------------------------------------


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


# --- logs, events, top ----------------------------------------------------------------------------


def logs(
    entry: Annotated[int, typer.Argument(help="The entry id.")],
    *,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="The attempt. Default: the last.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="The supervisor's log folder. Default: beside the store.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the bytes as they are, with escape codes.")] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Print the output of a run, also while it runs.

    Escape codes are shown, not obeyed: a program cannot control this terminal. --raw prints them.
    """
    import sys

    from rota.cli.output import print_json
    from rota.errors import NotFound
    from rota.fleet import find_logs

    where = folder or Path(f"{store}-logs")
    found = find_logs(where, entry)
    number = max(found, default=None) if attempt is None else attempt
    path = None if number is None else found.get(number)
    if path is None:
        which = f"entry {entry}" if attempt is None else f"attempt {attempt} of entry {entry}"
        hint = "It printed nothing, or another supervisor ran it: give its --folder."
        raise NotFound(f"there is no log of {which} in {where}", hint=hint, sched_id=entry)
    body = path.read_bytes()
    if as_json:
        text = body.decode("utf-8", "replace")
        print_json({"sched_id": entry, "attempt": number, "path": str(path.absolute()), "text": text})
    elif raw:
        sys.stdout.buffer.write(body)
        sys.stdout.flush()
    else:
        say(body.decode("utf-8", "backslashreplace").replace("\r\n", "\n"), nl=False)


def events(
    *,
    since: Annotated[int | None, typer.Option("--since", min=0, help="Only events after this id.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number, without --follow.")] = 1_000,
    agent: Annotated[str | None, typer.Option("--agent", help="Only this agent's, by pid or name.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only events of this kind: kernel.sched.*")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new events.")] = False,
    idle: Annotated[str | None, typer.Option("--idle", help="With --follow: stop after this long without one.")] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Print events, oldest first. Default: the last twenty."""
    from rota.cli.arguments import pid_of, seconds
    from rota.cli.connection import open_api
    from rota.errors import InvalidInput

    if follow and agent is not None:
        hint = "Leave out --agent, or filter by --kind."
        raise InvalidInput("--follow cannot filter by agent", field="agent", hint=hint)
    idle_s = None if idle is None else seconds(idle, "idle")
    with open_api(store) as api:
        start = max(0, api.journal.cursor() - LAST_EVENTS) if since is None else since
        if follow:
            found = api.journal.follow(start, wait_s=idle_s)
        else:
            pid = None if agent is None else pid_of(api, agent)
            found = _pages(api, 0 if since is None and pid is not None else start, limit, pid)
        try:
            for event in found:
                _print_event(event, kind, as_json=as_json)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _pages(api: Any, since: int, limit: int, pid: int | None) -> Iterator[Event]:
    """Yield up to `limit` events, page by page."""
    while limit > 0 and (page := api.journal.tail(since, limit, pid=pid)):
        yield from page
        since, limit = page[-1].event_id, limit - len(page)


def _print_event(event: Event, kind: str | None, *, as_json: bool) -> None:
    import sys
    from fnmatch import fnmatchcase

    from rota.cli.output import print_json

    if kind is not None and not fnmatchcase(event.kind, kind):
        return
    if as_json:
        print_json(event)
    else:
        facts = " ".join(f"{name}={value}" for name, value in event.payload.items() if value not in ("", None, [], {}))
        agent = "" if event.pid is None else f" agent {event.pid}"
        by = f" by {event.author}" if event.author else ""
        say(harmless(f"{event.event_id} {event.ts:.3f} {event.kind}{agent}{by} {facts}"))
    sys.stdout.flush()  # a program that follows reads it now


def top(store: Store = STORE, as_json: AsJson = False) -> None:
    """Show a live, full-screen view of a store.

    Slots, shares, budgets, limits, the queue and the last events. Ctrl-C ends it; --json prints one snapshot.
    """
    from rota.cli.connection import open_api
    from rota.cli.output import console, print_json

    with open_api(store) as api:
        if as_json:
            running, _ = api.queue.list(state="dispatched", limit=1_000)
            print_json(
                {
                    "cursor": api.journal.cursor(),
                    "counts": api.queue.counts(),
                    "running": running,
                    "budgets": api.ledger.budgets(),
                    "limits": api.contexts.list(),
                    "paused_by": api.projects.fleet_paused_by(),
                    "policy": api.policies.get(),
                }
            )
            return
        from rota.cli.view import LiveView

        with LiveView(api, console=console(), store=store, full_screen=True) as view:
            view.wait()


def doctor(store: Store = STORE, as_json: AsJson = False) -> None:
    """Check installation, store and platform; say what to fix.

    Exits with 1 if a check fails.
    """
    from rota.cli.doctor import examine
    from rota.cli.output import cell, console, print_json

    findings = list(examine(store))
    if as_json:
        print_json({"findings": findings})
    else:
        out, part = console(), ""
        for each in findings:
            if each.part != part:
                part = each.part
                out.print(f"[bold]{part}[/]")
            out.print(f"  {_VERDICTS[each.verdict]} {cell(each.words)}")
            if each.fix:
                out.print(f"      → {each.fix}", markup=False)
    if any(each.verdict == "bad" for each in findings):
        raise typer.Exit(FOUND)
