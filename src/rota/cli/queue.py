"""`rota queue`: what waits, and what has been."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rota.cli.options import STORE, AsJson, Limit, Offset, Store

if TYPE_CHECKING:
    from rota.model.work import ReadyEntry

__all__ = ["queue"]

State = Literal["queued", "dispatched", "completed", "expired", "cancelled", "all"]


def queue(
    *,
    state: Annotated[State, typer.Option("--state", help="In which state.")] = "queued",
    agent: Annotated[str | None, typer.Option("--agent", help="Only of this agent, by pid or name.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only of this project.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only with this label.")] = None,
    exit_kind: Annotated[str | None, typer.Option("--exit-kind", help="Only what ended so.")] = None,
    limit: Limit = 100,
    offset: Offset = 0,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """List entries by number: those that wait, unless another state is named."""
    from rota.cli.connection import open_desk
    from rota.cli.output import console, print_json, print_table
    from rota.cli.typed import pid_of

    with open_desk(store) as desk:
        entries, total = desk.queue.list(
            state=None if state == "all" else state,
            pid=None if agent is None else pid_of(desk, agent),
            project_id=project,
            tag=tag,
            exit_kind=exit_kind,
            limit=limit,
            offset=offset,
        )
        counts = desk.queue.counts()
    if as_json:
        print_json({"entries": entries, "total": total, "counts": counts})
        return
    columns = ("entry", "agent", "project", "priority", "state", "when", "attempt", "trigger", "tags")
    print_table(columns, (_row(entry) for entry in entries), empty="no such entries")
    summary = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    console().print(f"{total:,} match; in all: {summary or 'none'}", style="dim")


def _row(entry: ReadyEntry) -> tuple[object, ...]:
    from rota.cli.output import now, when

    instant = entry.runnable_at if entry.state == "queued" else entry.completed_at or entry.dispatched_at
    hold = "kept" if entry.hold == "worker" else entry.hold
    state = entry.exit_kind if entry.state == "completed" else hold or entry.state
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
