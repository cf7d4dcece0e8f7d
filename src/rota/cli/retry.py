"""`rota retry`: once more."""

from __future__ import annotations

from typing import Annotated

import typer

from rota.cli.options import STORE, AsJson, Store

__all__ = ["retry"]


def retry(
    ids: Annotated[list[int] | None, typer.Argument(help="The entries.")] = None,
    *,
    agent: Annotated[str | None, typer.Option("--agent", help="All of this agent that ended badly.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="All of this project that ended badly.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="All with this label that ended badly.")] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Run entries again: one that backs off at once, one that ended badly as a new entry."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_json, print_table
    from rota.cli.typed import filter_of

    with open_desk(store) as desk:
        wanted = filter_of(desk, ids, agent=agent, project=project, tag=tag)
        if wanted is not None:
            again = desk.queue.retry_where(wanted)
        else:
            again = {sched_id: desk.queue.retry(sched_id) for sched_id in ids or ()}
    if as_json:
        print_json({"retried": again})
    else:
        print_table(("entry", "runs again as"), again.items(), empty="nothing to run again")
