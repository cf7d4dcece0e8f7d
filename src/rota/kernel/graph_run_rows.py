"""The rows of graph runs: reading them, and the errors about them."""

from __future__ import annotations

from typing import Any

from rota.decoding import decode_json
from rota.errors import GraphRunExists, GraphRunRefused, GraphRunUnknown, InvalidPayload, StaleClaim, StoreCorrupt
from rota.kernel.environment import KernelEnvironment
from rota.kernel.paging import page
from rota.kernel.rows import DECODE_ERRORS, column_problem, join_problems
from rota.model.checks import Checks
from rota.model.graph_runs import ENDED, LIVE, STATUSES, GraphRun, GraphRunInfo
from rota.store import Row, Transaction
from rota.store.statements import graph_runs as sql

__all__ = [
    "RUN_ID_CHARS_MAX",
    "check_readable",
    "check_run_id",
    "find_info",
    "find_row",
    "read_runs",
    "refused",
    "run_from_row",
    "same_run",
    "shown_run",
    "stale",
    "state_text",
    "unknown_run",
]

_JSON_COLUMNS = {"inputs": dict[str, Any], "budget": dict[str, int], "result": Any, "document": dict[str, Any]}
RUN_ID_CHARS_MAX = 64  # the keys of a run's entries begin with it
_run = Checks("GraphRun", InvalidPayload)
_INFO_FIELDS = (
    "run_id", "graph", "pid", "project_id", "status", "sched_id", "next_epoch_id", "inputs", "budget", "waits",
    "waits_since", "error", "started_at", "updated_at", "ended_at", "resumes",
)  # fmt: skip


def read_runs(
    env: KernelEnvironment,
    *,
    status: str | None,
    graph: str | None,
    limit: int,
    offset: int,
    within: str | None = None,
) -> tuple[list[GraphRunInfo], int]:
    """Return a page of runs, newest first, and their number; `within` is a JSON list of projects."""
    if status is not None:
        _run.one_of("status", status, STATUSES)
    _run.optional_text("graph", graph)
    wanted, at = (status, graph, within), page(limit, offset)

    def work(tx: Transaction) -> tuple[list[GraphRunInfo], int]:
        rows = tx.run(sql.RUN_LIST, (*wanted, *at))
        return [shown_run(run_from_row(row)) for row in rows], int(tx.run(sql.RUN_COUNT, wanted)[0][0])

    return env.read(work)


def check_run_id(run_id: str) -> None:
    """Check a run's name."""
    if len(_run.text("run_id", run_id)) > RUN_ID_CHARS_MAX:
        raise _run.refuse("run_id", f"may have at most {RUN_ID_CHARS_MAX} characters, not {len(run_id)}")


def unknown_run(run_id: str) -> GraphRunUnknown:
    """Return the error for a run that does not exist."""
    return GraphRunUnknown(f"there is no graph run {run_id!r}", run_id=run_id)


def find_row(tx: Transaction, run_id: str) -> Row:
    """Return the row of a run, without its checkpoint; raises `GraphRunUnknown`."""
    rows = tx.run(sql.RUN_INFO, (run_id,))
    if not rows:
        raise unknown_run(run_id)
    return rows[0]


def find_info(tx: Transaction, run_id: str) -> GraphRunInfo:
    """Return a run; raises `GraphRunUnknown`."""
    return shown_run(run_from_row(find_row(tx, run_id)))


def shown_run(run: GraphRun) -> GraphRunInfo:
    """Return what callers other than the coordinator are told."""
    return GraphRunInfo(**{name: getattr(run, name) for name in GraphRunInfo.__struct_fields__})


def run_from_row(row: Row) -> GraphRun:
    """Return the run of a row."""
    *info, result, fence, document, checkpoint = row
    fields: dict[str, Any] = dict(zip(_INFO_FIELDS, info, strict=True)) | {"result": result, "document": document}
    problems = []
    for name, kind in _JSON_COLUMNS.items():
        text = fields.pop(name)
        try:
            if text is not None:
                fields[name] = decode_json(text, kind)
        except DECODE_ERRORS:
            problems.append(column_problem(name, text, kind))
    return GraphRun(
        **fields,
        fence=fence,
        checkpoint=checkpoint if checkpoint is None or isinstance(checkpoint, bytes) else str(checkpoint).encode(),
        unreadable=join_problems(*problems),
    )


def check_readable(run: GraphRun) -> None:
    """Raise `StoreCorrupt` if a run cannot go on because a column of its row is damaged."""
    if run.unreadable is not None:
        hint = f"Delete it and start another: `rota graph forget {run.run_id} --cancel`."
        raise StoreCorrupt(f"graph run {run.run_id} cannot be read: {run.unreadable}", hint=hint, run_id=run.run_id)


def same_run(run: GraphRun, graph: str, document: Any, inputs: dict[str, Any], project_id: str | None) -> GraphRunInfo:
    """Return the run that exists if it is the one that was asked for."""
    check_readable(run)
    differs = next(
        (
            what
            for what, one, other in (
                ("graph", run.graph, graph),
                ("project", run.project_id, project_id),
                ("document", run.document, document),
                ("inputs", run.inputs, inputs),
            )
            if one != other
        ),
        None,
    )
    if differs is None:
        return shown_run(run)
    raise GraphRunExists(
        f"run {run.run_id} exists with another {differs}",
        hint=f"Start the new run under another name, or see this one: `rota graph show {run.run_id}`.",
        run_id=run.run_id,
        graph=run.graph,
    )


def state_text(run: GraphRunInfo) -> str:
    """Return the state of a run as the end of a sentence about it."""
    if run.status in LIVE:
        return f"is {run.status}"
    return "was cancelled" if run.status == "cancelled" else f"has {run.status}"


def refused(run: GraphRunInfo, text: str, hint: str) -> GraphRunRefused:
    """Return the error for a verb that a run's state does not allow."""
    return GraphRunRefused(text, hint=hint, run_id=run.run_id, status=run.status)


def stale(tx: Transaction, run_id: str) -> StaleClaim:
    """Return the error for a process that no longer holds a run."""
    rows = tx.run(sql.RUN_INFO, (run_id,))
    run = run_from_row(rows[0]) if rows else None
    if run is not None and run.status in ENDED:
        text = f"run {run_id} has ended: {run.status}"
        hint = f"Resume it if it should go on: `rota graph resume {run_id}`."
    else:
        text = f"run {run_id} was taken by another process, or deleted"
        hint = "Another process continues this run; stop this one."
    return StaleClaim(text, hint=hint, run_id=run_id)
