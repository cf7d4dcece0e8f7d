"""`rota cancel`: entries that need not run any more."""

from __future__ import annotations

from typing import Annotated

import typer

from rota.cli.options import STORE, AsJson, By, Store

__all__ = ["cancel"]


def cancel(
    ids: Annotated[list[int] | None, typer.Argument(help="The entries.")] = None,
    *,
    stop: Annotated[bool, typer.Option("--stop", help="Also ask those that run to stop.")] = False,
    agent: Annotated[str | None, typer.Option("--agent", help="All that wait of this agent.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="All that wait of this project.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="All that wait with this label.")] = None,
    by: By = "operator",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Cancel entries that wait, by number or all that match; one that runs is only asked to stop."""
    from rota.cli.connection import open_desk
    from rota.cli.output import print_json
    from rota.cli.typed import filter_of

    with open_desk(store) as desk:
        wanted = filter_of(desk, ids, agent=agent, project=project, tag=tag)
        if wanted is not None:
            count = desk.queue.cancel_where(wanted, reason=by)
            print_json({"cancelled": count}) if as_json else typer.echo(f"{count:,} cancelled")
            return
        states = {}
        for sched_id in ids or ():
            states[sched_id] = desk.queue.request_cancel(sched_id, by=by) if stop else desk.queue.cancel(sched_id)[1]
    if as_json:
        print_json({"states": states})
        return
    for sched_id, state in states.items():
        typer.echo(f"entry {sched_id} {'was asked to stop' if state == 'dispatched' else f'is {state}'}")
