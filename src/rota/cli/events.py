"""`rota events`: the journal, event by event."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.exit_codes import INTERRUPTED
from rota.cli.options import STORE, AsJson, OnlyAgent, Store
from rota.cli.terminal_text import harmless, say

if TYPE_CHECKING:
    from rota.model import Event

__all__ = ["events"]

LAST_EVENTS = 20  # shown by `rota events` without --since


def events(
    *,
    since: Annotated[int | None, typer.Option("--since", min=0, help="Only events after this id.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number, without --follow.")] = 1_000,
    agent: OnlyAgent = None,
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

    from rota.cli.output import local_time, now, print_json

    if kind is not None and not fnmatchcase(event.kind, kind):
        return
    if as_json:
        print_json(event)
    else:
        facts = " ".join(f"{name}={value}" for name, value in event.payload.items() if value not in ("", None, [], {}))
        agent = "" if event.pid is None else f" agent {event.pid}"
        by = f" by {event.author}" if event.author else ""
        say(harmless(f"{event.event_id} {local_time(event.ts, now())} {event.kind}{agent}{by} {facts}"))
    sys.stdout.flush()  # a program that follows reads it now
