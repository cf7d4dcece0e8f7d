"""`rota tail`: what happens, as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.exit_codes import INTERRUPTED
from rota.cli.options import STORE, AsJson, OnlyAgent, OnlyProject, Store

if TYPE_CHECKING:
    from rota.model import Event
    from rota.observe import EventText, FleetState, SentenceReader
    from rota.service import SchedulerApi

__all__ = ["tail"]

POLL_S = 20.0  # how long one request waits for events


def tail(
    *,
    count: Annotated[int, typer.Option("--lines", "-n", min=0, help="Begin with so many of the last ones.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing what happens.")] = False,
    since: Annotated[str | None, typer.Option("--since", help="Begin this long ago: 10m, 2h.")] = None,
    agent: OnlyAgent = None,
    project: OnlyProject = None,
    kind: Annotated[str | None, typer.Option("--kind", help="Only events of this kind: kernel.sched.*")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what happens by the thousand: charges, refills, agents' states.")
    ] = False,
    idle: Annotated[str | None, typer.Option("--idle", help="With --follow: stop after this long without one.")] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Say what happened, a sentence for each event, oldest first; with -f, also what happens next.

    It goes on when the daemon is restarted. `rota events` prints the events themselves.
    """
    from rota.cli.arguments import pid_of, seconds
    from rota.cli.connection import open_api
    from rota.observe import SentenceReader, TextFilter

    since_s = None if since is None else seconds(since, "since")
    idle_s = None if idle is None else seconds(idle, "idle")
    with open_api(store) as api:
        wanted = TextFilter(
            kind=kind,
            pid=None if agent is None else pid_of(api, agent),
            project_id=project,
            everything=everything or kind is not None,
        )
        printer = _Printer(as_json=as_json)
        try:
            reader = SentenceReader(api, wanted)
            for event, text in reader.history(count, since_s):
                printer.print(event, text, reader.state)
            for event, text in _follow(api, reader, idle_s) if follow else ():
                printer.print(event, text, reader.state)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


def _follow(
    api: SchedulerApi, reader: SentenceReader, idle_s: float | None = None
) -> Iterator[tuple[Event, EventText]]:
    """Yield what happens from now on, also after the daemon was away; end after `idle_s` without an event."""
    from functools import partial

    from rota.cli.outages import call_and_say_outage

    left_s = idle_s
    while left_s is None or left_s > 0:
        poll_s = POLL_S if left_s is None else min(left_s, POLL_S)
        ask = partial(api.journal.tail, reader.state.through_id, wait_s=poll_s)
        page = call_and_say_outage(api.clock, ask, limit_s=float("inf"), repeats=True)
        yield from reader.sentences(page)
        left_s = idle_s if page else None if left_s is None else left_s - poll_s


class _Printer:
    """Prints sentences with their local time; JSON keeps the numbers."""

    def __init__(self, *, as_json: bool) -> None:
        from rota.cli.output import console

        self._as_json = as_json
        self._console = console(force_terminal=None)

    def print(self, event: Event, text: EventText, state: FleetState) -> None:
        """Print one sentence."""
        from rota.cli.output import local_time, now, print_json

        if self._as_json:
            print_json(_fields(event, text, state))
            self._console.file.flush()  # a program that follows reads it now
            return
        from rich.text import Text

        from rota.cli.panels import TONES

        line = Text.assemble((f"{local_time(text.at, now())}  ", "dim"), (text.text, TONES[text.tone]))
        self._console.print(line, soft_wrap=True)


def _fields(event: Event, text: EventText, state: FleetState) -> dict[str, Any]:
    from rota.observe import project_named

    pid = text.pid
    return {
        "event_id": text.event_id,
        "at": text.at,
        "kind": event.kind,
        "tone": text.tone,
        "text": text.text,
        "pid": pid,
        "agent": None if pid is None else state.agent(pid),
        "project_id": state.project_of(pid) or project_named(event),
        "sched_id": text.sched_id,
        "author": event.author,
    }
