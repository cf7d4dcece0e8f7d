"""`rota ps`: what runs now."""

from __future__ import annotations

from typing import Annotated

import typer

from rota.cli.options import STORE, AsJson, Limit, Offset, Store

__all__ = ["ps"]


def ps(
    project: Annotated[str | None, typer.Option("--project", help="Only of this project.")] = None,
    limit: Limit = 100,
    offset: Offset = 0,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """List what runs now: who holds it, since when, and until when."""
    from rota.cli.connection import open_desk
    from rota.cli.output import now, print_json, print_table, when

    with open_desk(store) as desk:
        entries, total = desk.queue.list(state="dispatched", project_id=project, limit=limit, offset=offset)
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
    columns = ("entry", "agent", "project", "worker", "attempt", "began", "claim ends", "workspace")
    print_table(columns, rows, empty="nothing runs")
