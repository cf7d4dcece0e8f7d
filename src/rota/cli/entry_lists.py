"""Commands that list entries: queue and ps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rota.cli.options import STORE, AsJson, Limit, Offset, OnlyAgent, OnlyProject, Store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rota.cli.embedded_api import EmbeddedApi
    from rota.model import ReadyEntry, RunningEntry
    from rota.rpc import Client

__all__ = ["ps", "queue"]

State = Literal["queued", "dispatched", "completed", "expired", "cancelled", "all"]
QUEUED = ("waiting", "ready")  # what `rota queue` lists by default


def queue(
    *,
    status: Annotated[
        list[str] | None,
        typer.Option(
            "--status",
            help="Only entries of this status: waiting, ready, running, succeeded, failed, expired or cancelled; "
            "repeatable, or with commas. Default: waiting,ready.",
        ),
    ] = None,
    search: Annotated[
        str | None, typer.Option("--search", help="Only entries whose payload, result or errors hold this text.")
    ] = None,
    agent: OnlyAgent = None,
    project: OnlyProject = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only entries with this label.")] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only entries in this stored state.")] = None,
    exit_kind: Annotated[str | None, typer.Option("--exit-kind", help="Only entries that ended this way.")] = None,
    limit: Limit = 100,
    offset: Offset = 0,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """List entries by id. Default: those that wait or are ready.

    A search lists entries of every status, newest first. It looks at the newest 100,000 entries that match.
    """
    from rota.cli.arguments import agent_names, pid_of, statuses
    from rota.cli.connection import open_api
    from rota.cli.output import print_json
    from rota.errors import InvalidInput

    if search is not None and offset:
        raise InvalidInput("a search has no --offset", field="offset", hint="Give a larger --limit.")
    wanted: dict[str, Any] = {"project_id": project, "tag": tag, "exit_kind": exit_kind, "status": statuses(status)}
    wanted["state"] = None if state == "all" else state
    if status is None and state is None and exit_kind is None and search is None:
        wanted["status"] = QUEUED
    with open_api(store) as api:
        wanted["pid"] = None if agent is None else pid_of(api, agent)
        is_complete: bool | None = None
        if search is None:
            entries, total = api.queue.list(limit=limit, offset=offset, **wanted)
        else:
            entries, is_complete = api.queue.search(search, limit=limit, **wanted)
            total = len(entries)
        counts = api.queue.counts(by="status")
        names = agent_names(api, (entry.pid for entry in entries))
    if as_json:
        found = {"entries": entries, "total": total, "counts": counts, "agents": names}
        print_json(found if is_complete is None else {**found, "is_complete": is_complete})
        return
    _print_entries(entries, names)
    _print_summary(len(entries), total, counts, is_complete, limit)


def _print_entries(entries: list[ReadyEntry], names: dict[int, str]) -> None:
    from rota.cli.output import moment, now, print_table

    at = now()
    rows = [
        (
            entry.sched_id,
            names.get(entry.pid),
            entry.pid,
            entry.project_id,
            entry.priority,
            _status_cell(entry),
            moment(_instant(entry), at),
            f"{entry.attempt} of {entry.max_attempts}",
            entry.trigger,
            entry.tags,
        )
        for entry in entries
    ]
    columns = ("entry", "agent", "pid", "project", "priority", "status", "when", "attempt", "trigger", "tags")
    print_table(columns, rows, empty="no matching entries", optional=("project", "tags"))


def _instant(entry: ReadyEntry) -> float | None:
    """When a queued entry may run, a running one started, or another one ended."""
    return entry.runnable_at if entry.state == "queued" else entry.completed_at or entry.dispatched_at


def _status_cell(entry: ReadyEntry) -> str:
    """The status, with what it waits for or how it ended."""
    if entry.unreadable is not None:
        return f"{entry.status} (unreadable)"
    match entry.status:
        case "waiting":
            detail: str | None = "reserved" if entry.hold == "worker" else entry.hold
        case "running":
            detail = "stopping" if entry.cancel_requested else None
        case "failed":
            detail = entry.outcome or ("crashed" if entry.exit_kind == "crashed" else None)
        case _:
            detail = None
    return f"{entry.status} ({detail})" if detail else entry.status


def _print_summary(shown: int, total: int, counts: dict[str, int], is_complete: bool | None, limit: int) -> None:
    from rota.cli.output import console

    summary = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    matching = f"{shown:,} of {total:,} that match" if shown < total else f"{total:,} match"
    console().print(f"{matching}; in total: {summary or 'none'}", style="dim")
    if is_complete is False:
        more = "Give a larger --limit." if shown == limit else "Give --status or --agent to search further back."
        console().print(f"The search stopped before the oldest entries. {more}", style="yellow")
    elif shown and any(status in counts for status in ("failed", "running")):
        console().print("`rota show ID` shows everything about one of them.", style="dim", markup=False)


def ps(
    project: OnlyProject = None,
    limit: Limit = 100,
    offset: Offset = 0,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """List running entries with their worker, how far they are, and when their claim expires."""
    from rota.cli.connection import open_api
    from rota.cli.output import print_json, print_table

    with open_api(store) as api:
        running, total = api.queue.running(project_id=project, limit=limit, offset=offset)
        silent = _silent_workers(api) if running and not as_json else {}
    if as_json:
        print_json({"running": running, "entries": [each.entry for each in running], "total": total})
        return
    columns = (
        "entry", "agent", "pid", "project", "worker", "attempt", "started", "progress", "waits for", "claim expires",
        "workspace",
    )  # fmt: skip
    optional = ("project", "progress", "waits for", "workspace")
    rows = [_running_row(run, silent) for run in running]
    print_table(columns, rows, empty="nothing is running", optional=optional)


def _silent_workers(api: EmbeddedApi | Client) -> dict[str | None, float]:
    """Return when each worker was last seen that was not seen lately, by the names under which it claims."""
    from rota.errors import Forbidden

    try:
        found = api.workers.list(lost=True)
    except Forbidden:  # workers are the operator's
        return {}
    return {pool.worker_id: worker.seen_at for worker in found if worker.silent for pool in worker.pools}


def _running_row(run: RunningEntry, silent: Mapping[str | None, float]) -> tuple[object, ...]:
    from rota.cli.output import moment, now, span, when

    entry, at = run.entry, now()
    progress = None if run.progress is None else f"{run.progress.fraction:.0%} {run.progress.text}".rstrip()
    seen_at = silent.get(entry.worker_id)
    silence = "" if seen_at is None else f" (silent for {span(at - seen_at)})"
    return (
        entry.sched_id,
        run.agent,
        entry.pid,
        entry.project_id,
        f"{entry.worker_id or ''}{silence}" or None,
        f"{entry.attempt} of {entry.max_attempts}",
        moment(entry.dispatched_at, at),
        progress,
        tuple(f"limit {wait.name}, {when(wait.asked_at, at)}" for wait in run.waits_for),
        "stopping" if entry.cancel_requested else when(entry.claim_expires_at, at),
        entry.workspace,
    )
