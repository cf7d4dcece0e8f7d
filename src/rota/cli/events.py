"""`rota events`: what happened, and what happens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.exits import INTERRUPTED
from rota.cli.options import STORE, AsJson, Store

if TYPE_CHECKING:
    from rota.model.events import Event

__all__ = ["events"]

LAST = 20  # events that are shown where no beginning is named


def events(
    *,
    since: Annotated[int | None, typer.Option("--since", min=0, help="Those after this event.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, without --follow.")] = 1_000,
    agent: Annotated[str | None, typer.Option("--agent", help="Only this agent's own, by pid or name.")] = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only of this kind: kernel.sched.*")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    idle: Annotated[str | None, typer.Option("--idle", help="End when nothing came for so long.")] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Print events, oldest first, one to a line: the last twenty, or those since one; --follow goes on."""
    from rota.cli.connection import open_desk
    from rota.cli.typed import pid_of, seconds
    from rota.errors import InvalidInput

    if follow and agent is not None:
        raise InvalidInput("--follow follows everybody", field="agent", hint="Leave out --agent, or filter by --kind.")
    idle_s = None if idle is None else seconds(idle, "idle")
    with open_desk(store) as desk:
        start = max(0, desk.journal.cursor() - LAST) if since is None else since
        if follow:
            found = desk.journal.follow(start, wait_s=idle_s)
        else:
            pid = None if agent is None else pid_of(desk, agent)
            found = _some(desk, 0 if since is None and pid is not None else start, limit, pid)
        try:
            for event in found:
                _print(event, kind, as_json=as_json)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _some(desk: Any, since: int, limit: int, pid: int | None) -> Iterator[Event]:
    """So many events, in as many answers as it takes."""
    while limit > 0 and (events := desk.journal.tail(since, limit, pid=pid)):
        yield from events
        since, limit = events[-1].event_id, limit - len(events)


def _print(event: Event, kind: str | None, *, as_json: bool) -> None:
    import sys
    from fnmatch import fnmatchcase

    from rota.cli.output import print_json

    if kind is not None and not fnmatchcase(event.kind, kind):
        return
    if as_json:
        print_json(event)
    else:
        facts = " ".join(f"{name}={value}" for name, value in event.payload.items() if value not in ("", None, [], {}))
        who = "" if event.pid is None else f" agent {event.pid}"
        sys.stdout.write(f"{event.event_id} {event.ts:.3f} {event.kind}{who} {facts}\n")
    sys.stdout.flush()  # whoever follows reads it now
