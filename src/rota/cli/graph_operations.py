"""`rota graph ps|show|cancel|resume|forget`: graph runs of a store, whichever process executes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli.options import STORE, AsJson, Limit, Offset, Store

if TYPE_CHECKING:
    from rota.model import GraphNodeReport, GraphRunInfo, GraphRunReport

__all__ = ["add_operations"]

Run = Annotated[str, typer.Argument(help="The run's name; `rota graph ps` lists them.", show_default=False)]


def add_operations(app: typer.Typer) -> None:
    """Add the commands to `rota graph`."""
    for command in (ps, show, cancel, resume, forget):
        app.command(command.__name__)(command)


def ps(
    *,
    status: Annotated[
        str | None, typer.Option("--status", help="Only running, waiting, succeeded, failed or cancelled runs.")
    ] = None,
    graph: Annotated[str | None, typer.Option("--graph", help="Only runs of this graph.")] = None,
    limit: Limit = 100,
    offset: Offset = 0,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """List graph runs, newest first."""
    from rota.cli.connection import open_api
    from rota.cli.output import console, now, print_json, print_table, when

    with open_api(store) as api:
        runs, total = api.graphs.list(status=status, graph=graph, limit=limit, offset=offset)
    if as_json:
        print_json({"runs": runs, "total": total})
        return
    at = now()
    rows = [
        (
            run.run_id,
            run.graph,
            run.project_id,
            run.status,
            run.next_epoch_id,
            run.sched_id,
            when(run.started_at, at),
            when(run.ended_at, at),
            run.unreadable or run.waits or run.error,
        )
        for run in runs
    ]
    columns = ("run", "graph", "project", "status", "epoch", "entry", "started", "ended", "waits for / error")
    empty = "no graph runs: start one with `rota graph run FILE`"
    print_table(columns, rows, empty=empty, optional=("project", "ended", "waits for / error"))
    if total > len(runs):
        console().print(f"{len(runs):,} of {total:,} runs", style="dim")


def show(run: Run, *, store: Store = STORE, as_json: AsJson = False) -> None:
    """Show a graph run: its nodes, their entries, what it waits for and what it used."""
    from rota.cli.connection import open_api
    from rota.cli.output import print_json, print_table

    with open_api(store) as api:
        report = api.graphs.show(run)
    if as_json:
        print_json(report)
        return
    from rota.cli.terminal_text import say

    for line in _run_lines(report):
        say(line)
    columns = ("node", "agent", "state", "epoch", "entries", "newest", "since", "used")
    rows = [_node_row(node) for node in report.nodes]
    print_table(columns, rows, empty="no nodes: the process that runs it has the graph", optional=("used", "since"))


def cancel(
    run: Run,
    *,
    stop: Annotated[
        bool, typer.Option("--stop/--no-stop", help="Ask running entries to stop, or let them end by themselves.")
    ] = True,
    by: Annotated[str | None, typer.Option("--by", help="Who does this, for the journal.")] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Cancel a graph run with its queued entries, and stop its running ones."""
    from rota.cli.connection import open_api
    from rota.cli.output import print_json
    from rota.cli.terminal_text import say

    with open_api(store) as api:
        done = api.graphs.cancel(run, stop=stop, by=by)
    if as_json:
        print_json(done)
        return
    verb = "is cancelled" if done.run.status == "cancelled" else f"had already {done.run.status}"
    parts = [f"queued entries cancelled: {done.cancelled:,}", f"running entries asked to stop: {done.stopped:,}"]
    if done.left:
        parts.append(f"running entries that end by themselves: {done.left:,}")
    say(f"run {run} {verb}: {', '.join(parts)}")
    if done.run.status == "cancelled" and done.run.sched_id is not None:
        say(f"To let it go on from its checkpoint: rota graph resume {run}")


def resume(run: Run, *, store: Store = STORE, as_json: AsJson = False) -> None:
    """Let a failed or cancelled graph run go on from its checkpoint."""
    from rota.cli.connection import open_api
    from rota.cli.output import print_json
    from rota.cli.terminal_text import say

    with open_api(store) as api:
        resumed = api.graphs.resume(run)
    if as_json:
        print_json(resumed)
    else:
        say(f"run {run} of {resumed.graph} goes on at epoch {resumed.next_epoch_id}: entry {resumed.sched_id}")


def forget(
    run: Run,
    *,
    cancel_first: Annotated[bool, typer.Option("--cancel", help="Cancel it first, if it has not ended.")] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Delete a graph run that has ended. Its entries stay until they are pruned."""
    from rota.cli.connection import open_api
    from rota.cli.output import print_json
    from rota.cli.terminal_text import say
    from rota.errors import GraphRunUnknown

    with open_api(store) as api:
        existed = api.graphs.forget(run, cancel=cancel_first)
    if not existed:
        raise GraphRunUnknown(f"there is no graph run {run!r}", run_id=run)
    if as_json:
        print_json({"run_id": run, "forgotten": True})
    else:
        say(f"run {run} is forgotten")


# --- texts ---------------------------------------------------------------------------------------


def _run_lines(report: GraphRunReport) -> list[str]:
    """Return what is said about the run as a whole."""
    from rota.cli.output import moment, now, span
    from rota.model import amounts_text

    run, at = report.run, now()
    where = f" in project {run.project_id}" if run.project_id else ""
    lines = [f"run {run.run_id} of {run.graph}{where}: {run.status}"]
    if run.unreadable is not None:
        lines.append(f"  its row is damaged: {run.unreadable}")
    if run.waits is not None:
        since = f" since {span(at - run.waits_since)}" if run.waits_since is not None else ""
        lines.append(f"  waits for {run.waits}{since}{_entries(report.waits_for)}")
    elif report.waits_for and run.ended_at is None:
        lines.append(f"  open entries:{_entries(report.waits_for)}")
    if run.error:
        lines.append(f"  error: {run.error}")
    lines.append(
        f"  started {moment(run.started_at, at)}" + (f", ended {moment(run.ended_at, at)}" if run.ended_at else "")
    )
    if run.sched_id is not None:
        state = f" ({report.coordinator})" if report.coordinator else ""
        lines.append(f"  coordinator: entry {run.sched_id}{state}, epoch {run.next_epoch_id}")
        if report.coordinator == "ready":  # no worker has claimed it yet
            lines.append(f"    why it is not running: rota why {run.sched_id}")
    for name, value in (("inputs", run.inputs), ("result", run.result)):
        if value not in (None, {}):
            lines.append(f"  {name}: {_json(value)}")
    for line in report.budgets:
        lines.append(f"  {line.sentence()}")
        if line.left <= 0 and run.ended_at is None:
            lines.append(f"    raise it: {line.command}")
    if report.usage:
        lines.append(f"  used: {amounts_text(report.usage)}")
    return [*lines, *_next_step(run)]


def _next_step(run: GraphRunInfo) -> list[str]:
    if run.sched_id is None:
        return []
    if run.status in ("failed", "cancelled"):
        return [f"  let it go on: rota graph resume {run.run_id}"]
    return [f"  stop it: rota graph cancel {run.run_id}"] if run.ended_at is None else []


def _entries(ids: tuple[int, ...]) -> str:
    return f" (entries {', '.join(map(str, ids))})" if ids else ""


def _node_row(node: GraphNodeReport) -> tuple[object, ...]:
    from rota.cli.output import now, when
    from rota.model import amounts_text

    counts = ", ".join(f"{count} {status}" for status, count in node.entries.items())
    newest = node.newest[-1] if node.newest else None
    used = amounts_text(node.usage) if node.usage else None
    since = when(node.since, now()) if node.since else None
    return node.node, node.agent or "in the coordinator", node.state, node.epoch_id, counts, newest, since, used


def _json(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
