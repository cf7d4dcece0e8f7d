"""`rota show`: everything about one entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.options import STORE, AsJson, Store, complete_entry

if TYPE_CHECKING:
    from rota.model import AttemptReport, EntryReport, LogPart
    from rota.service import SchedulerApi

__all__ = ["show"]

LOG_LINES = 20  # of the output of the last attempt
LOG_BYTES = 16 * 1024  # that are read for them
JSON_CHARS_MAX = 2_000  # of a payload or a result
_COLORS = {"succeeded": "green", "failed": "bold red", "running": "cyan", "expired": "yellow", "cancelled": "yellow"}


def show(
    sched_id: Annotated[int, typer.Argument(help="The entry id.", autocompletion=complete_entry)],
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Show everything about one entry: what happened in each attempt, and why.

    Each attempt has its error, traceback, usage and output; then follow the result, what the entry holds and belongs
    to, and its history in local time.
    """
    from rota.cli.connection import open_api
    from rota.cli.output import print_json

    with open_api(store) as api:
        found = api.show(sched_id)
        log = _read_log(api, found)
    if as_json:
        import msgspec

        print_json({**msgspec.to_builtins(found), "log": None if log is None else _log_fields(log)})
    else:
        _print_report(found, log)


def _read_log(api: SchedulerApi, found: EntryReport) -> LogPart | None:
    """Return the end of what the last attempt printed; None if there is nothing, or no attempt."""
    from rota.errors import RotaError

    if not found.attempts:
        return None
    try:
        part = api.logs.read(found.entry.sched_id, offset=-LOG_BYTES, limit_bytes=LOG_BYTES)
    except RotaError:  # a report without the log is better than none
        return None
    return part if part.data else None


def _log_fields(log: LogPart) -> dict[str, Any]:
    about = {name: getattr(log, name) for name in ("attempt", "offset", "total_bytes", "dropped_bytes", "ended")}
    return {**about, "text": log.data.decode("utf-8", "replace")}


# --- for people ------------------------------------------------------------------------------------


def _print_report(found: EntryReport, log: LogPart | None) -> None:
    from rota.cli.output import cell, console
    from rota.model import attempt_heading, attempt_lines, related_text, report_fields, shown_result

    out, entry = console(), found.entry
    color = _COLORS.get(entry.status, "bold")
    verb = "was " if entry.status == "cancelled" else "is " if entry.status in ("waiting", "ready", "running") else ""
    out.print(f"[bold]{cell(found.agent)} #{entry.sched_id}[/] {verb}[{color}]{entry.status}[/]")
    fields = [(name, text) for name, text in report_fields(found) if text]
    width = max(len(name) for name, _ in fields)
    for name, text in fields:
        out.print(f"  {name:{width}}  {text}", markup=False, soft_wrap=True)
    for number, attempt in enumerate(found.attempts, 1):
        is_last = number == len(found.attempts)
        output = _output(attempt, found, log if is_last else None)
        _print_section(attempt_heading(attempt, found), (*attempt_lines(attempt, found), *output))
    _print_section("result", _json_lines(shown_result(found)))
    _print_section("payload", _json_lines(entry.payload))
    _print_section("children", [related_text(each) for each in found.children])
    if not found.children_are_complete:
        out.print("  … and more", style="dim")
    _print_section("after", [*map(related_text, found.after), *(f"#{each} (pruned)" for each in found.after_gone)])
    heading = "history" if found.history_is_complete else "history (incomplete: a part of the journal is not kept)"
    _print_section(heading, _history(found))
    if entry.status == "failed":
        out.print(f"\nto run it again: rota retry {entry.sched_id}", style="dim", markup=False)
    elif entry.status in ("waiting", "ready"):
        out.print(f"\nwhy it is not running: rota why {entry.sched_id}", style="dim", markup=False)


def _print_section(heading: str, lines: Iterable[str]) -> None:
    from rota.cli.output import console

    shown = list(lines)
    if shown:
        out = console()
        out.print(f"\n{heading}", style="bold", markup=False)
        for line in shown:
            out.print(f"  {line}", markup=False, soft_wrap=True)


# --- attempts --------------------------------------------------------------------------------------


def _output(attempt: AttemptReport, found: EntryReport, log: LogPart | None) -> Iterator[str]:
    """The end of what the attempt printed: from the log, or what its result has."""
    text = attempt.output_tail if log is None else log.data.decode("utf-8", "replace")
    if text is None:
        return
    text = text.replace("\r\n", "\n")
    if attempt.traceback is not None:  # a function's log ends with its error, which is shown above
        text = text.removesuffix(f"{attempt.traceback}{attempt.error}\n")
    lines = text.rstrip().splitlines()
    if lines:
        part = ", the end" if log is None or log.offset > 0 or len(lines) > LOG_LINES else ""
        yield f"output{part} (all of it: rota logs {found.entry.sched_id} --attempt {attempt.attempt})"
        yield from (f"  {line}" for line in lines[-LOG_LINES:])


# --- the rest --------------------------------------------------------------------------------------


def _json_lines(value: Any) -> list[str]:
    import msgspec

    if value is None or value == {}:
        return []
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    if len(text) > JSON_CHARS_MAX:
        text = f"{text[:JSON_CHARS_MAX]}\n… ({len(text):,} characters in all: --json prints them)"
    return text.splitlines()


def _history(found: EntryReport) -> Iterator[str]:
    from rota.cli.output import local_time

    times = [local_time(step.at, found.now) for step in found.history]
    width = max(map(len, times), default=0)
    for time, step in zip(times, found.history, strict=True):
        by = f"  by {step.author}" if step.author else ""
        yield f"{time:>{width}}  {step.words}{by}"
