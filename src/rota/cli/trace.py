"""`rota trace`: a stretch of the journal as a file for a viewer of traces."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rota.cli.options import STORE, AsJson, Store
from rota.cli.terminal_text import say

if TYPE_CHECKING:
    from rota.model import Event
    from rota.telemetry import TraceSource

__all__ = ["export", "trace"]

PAGE_EVENTS = 1_000

trace = typer.Typer(help="Write what happened as a trace.", no_args_is_help=True)


@trace.callback()
def _group() -> None:
    """Write what happened as a trace."""


@trace.command()
def export(
    *,
    form: Annotated[
        Literal["perfetto", "chrome", "otlp"],
        typer.Option("--format", help="perfetto (binary), chrome (JSON) or otlp (JSON lines, for a collector)."),
    ] = "perfetto",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file. Default: standard output.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Begin this long ago: 10m, 2h.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="End this long ago: 5m.")] = None,
    after: Annotated[int | None, typer.Option("--after", min=0, help="Begin after this event.")] = None,
    through: Annotated[int | None, typer.Option("--through", min=0, help="End with this event.")] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Write a stretch of the journal as a trace. Default: all of it.

    ui.perfetto.dev opens perfetto and chrome files: a track for each slot, slices for waits and runs, instants for
    claims, preemptions and what budgets stopped, and arrows from runs to what they enqueued.
    """
    from rota.cli.connection import open_api
    from rota.cli.output import print_json
    from rota.errors import InvalidInput

    if (since is not None and after is not None) or (until is not None and through is not None):
        hint = "Give a time or an event, not both."
        raise InvalidInput("--since and --after, --until and --through exclude each other", field="since", hint=hint)
    if output is None and form == "perfetto" and sys.stdout.isatty():
        hint = "Give a file: rota trace export -o rota.perfetto-trace."
        raise InvalidInput("a perfetto trace is binary and cannot be printed", field="output", hint=hint)
    with open_api(store) as api:
        first, last = _stretch(api, since, until, after, through)
        end_at = api.clock.now() if last == api.journal.cursor() else None  # runs that go on have lasted until now
        body = _write(form, _pages(api, first, last), _source(api), store, end_at)
    if output is None:
        sys.stdout.buffer.write(body)
        sys.stdout.flush()
    else:
        try:
            output.write_bytes(body)
        except OSError as problem:
            text = f"{output} cannot be written: {problem.strerror}"
            hint = "Give another file: rota trace export -o rota.perfetto-trace."
            raise InvalidInput(text, field="output", hint=hint) from problem
        if as_json:
            print_json({"file": str(output), "first_event": first + 1, "last_event": last, "bytes": len(body)})
            return
        say(f"{output}: events {first + 1:,} to {last:,}, {len(body):,} bytes", err=True)


def _stretch(api: Any, since: str | None, until: str | None, after: int | None, through: int | None) -> tuple[int, int]:
    """Return the event after which to begin, and the last one."""
    from rota.cli.arguments import seconds
    from rota.errors import LimitExceeded
    from rota.observe import last_event_before
    from rota.telemetry import EVENTS_MAX

    end = api.journal.cursor()
    now = api.clock.now()
    first = after or 0
    if since is not None:
        first = last_event_before(api.journal, now - seconds(since, "since"), end)
    elif after is None:
        oldest = api.journal.tail(0, 1)
        first = oldest[0].event_id - 1 if oldest else 0
    last = end if through is None else min(through, end)
    if until is not None:
        last = last_event_before(api.journal, now - seconds(until, "until"), end)
    if last - first > EVENTS_MAX:
        error = LimitExceeded("events_max", EVENTS_MAX, last - first, field="since")
        error.hint = "Export a shorter stretch: rota trace export --since 1h."
        raise error
    return first, max(first, last)


def _pages(api: Any, first: int, last: int) -> Iterator[list[Event]]:
    while first < last and (page := api.journal.tail(first, PAGE_EVENTS)):
        first = page[-1].event_id
        yield [event for event in page if event.event_id <= last]


def _source(api: Any) -> TraceSource:
    from rota.telemetry import ApiSource, StoreSource

    kernel = getattr(api, "kernel", None)
    return ApiSource(api) if kernel is None else StoreSource(kernel)


def _write(form: str, pages: Iterator[list[Event]], source: TraceSource, store: str, end_at: float | None) -> bytes:
    import msgspec

    from rota import telemetry

    if form == "otlp":
        from rota.cli.about import installed_version
        from rota.store import without_password

        resource = {"service.name": "rota", "rota.store": without_password(store)}
        lines = telemetry.spans_to_otlp(telemetry.read_spans(pages, source, end_at), resource, installed_version())
        return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
    timeline = telemetry.make_timeline(pages, source, end_at)
    if form == "chrome":
        return msgspec.json.encode(telemetry.timeline_to_chrome(timeline)) + b"\n"
    return telemetry.timeline_to_perfetto(timeline)
