"""Commands that list entries: queue and ps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rota.cli.options import STORE, AsJson, Limit, Offset, Store

if TYPE_CHECKING:
    from rota.model import ReadyEntry

__all__ = ["ps", "queue"]

State = Literal["queued", "dispatched", "completed", "expired", "cancelled", "all"]


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
