"""`rota show`: everything about one entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.options import STORE, AsJson, Store

if TYPE_CHECKING:
    from rota.model import AttemptReport, EntryReport, LogPart, RelatedEntry
    from rota.service import SchedulerApi

__all__ = ["show"]

LOG_LINES = 20  # of the output of the last attempt
LOG_BYTES = 16 * 1024  # that are read for them
JSON_CHARS_MAX = 2_000  # of a payload or a result
_COLORS = {"succeeded": "green", "failed": "bold red", "running": "cyan", "expired": "yellow", "cancelled": "yellow"}
_ENDED = {
    "completed": "succeeded",
    "retry": "failed, tried again",
    "reclaim": "lost: its claim expired",
    "preempt": "preempted by more urgent work; counts no attempt",
    "yield": "yielded its slot; counts no attempt",
}


def show(
    sched_id: Annotated[int, typer.Argument(help="The entry id.")], store: Store = STORE, as_json: AsJson = False
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

    out, entry = console(), found.entry
    color = _COLORS.get(entry.status, "bold")
    verb = "was " if entry.status == "cancelled" else "is " if entry.status in ("waiting", "ready", "running") else ""
    out.print(f"[bold]{cell(found.agent)} #{entry.sched_id}[/] {verb}[{color}]{entry.status}[/]")
    fields = [(name, text) for name, text in _fields(found) if text]
    width = max(len(name) for name, _ in fields)
    for name, text in fields:
        out.print(f"  {name:{width}}  {text}", markup=False, soft_wrap=True)
    for number, attempt in enumerate(found.attempts, 1):
        is_last = number == len(found.attempts)
        _print_section(_attempt_heading(attempt, found), _attempt_lines(attempt, found, log if is_last else None))
    _print_section("result", _json_lines(_shown_result(found)))
    _print_section("payload", _json_lines(entry.payload))
    _print_section("children", [_related(each) for each in found.children])
    if not found.children_are_complete:
        out.print("  … and more", style="dim")
    _print_section("after", [*map(_related, found.after), *(f"#{each} (pruned)" for each in found.after_gone)])
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


def _fields(found: EntryReport) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the text of each fact; a fact without a text is left out."""
    from rota.cli.output import moment

    entry, at = found.entry, found.now
    yield "agent", f"{found.agent} (pid {entry.pid})"
    named = found.project if found.project in (None, entry.project_id) else f"{found.project} ({entry.project_id})"
    yield "project", named
    yield "status", _status(found)
    yield "progress", None if found.progress is None else f"{found.progress.fraction:.0%} {found.progress.text}".strip()
    yield "attempts", f"{entry.attempt} of {entry.max_attempts}" + _not_retried(found)
    yield "priority", str(entry.priority)
    yield "enqueued", moment(entry.created_at, at)
    times = {
        "runs from": entry.runnable_at if entry.state == "queued" else None,
        "started": entry.dispatched_at,
        "ended": entry.completed_at,
        "deadline": entry.deadline,
        "claim expires": entry.claim_expires_at,
    }
    yield from ((name, moment(instant, at) if instant else None) for name, instant in times.items())
    yield "worker", entry.worker_id
    yield "used", _amounts(found.usage)
    yield "at most", _amounts(entry.ceiling)
    yield "lent by parent", _amounts(found.lent)
    yield "limits", "; ".join(_limits(found))
    path = "" if found.workspace_path is None else f" ({found.workspace_path})"
    yield "workspace", None if entry.workspace is None else f"{entry.workspace}{path}"
    yield "trigger", entry.trigger
    yield "key", entry.key
    yield "tags", ", ".join(entry.tags)
    yield "kind", entry.kind
    yield "correlation", entry.correlation_id
    yield "parent", None if found.parent is None else _related(found.parent)
    yield "graph", _graph(found)
    yield "unreadable", entry.unreadable


_WAITS = {"time": "for its time", "after": "for others", "backoff": "for its next attempt", "worker": "for its worker"}


def _status(found: EntryReport) -> str:
    entry = found.entry
    detail = entry.outcome if entry.state in ("completed", "cancelled") else _WAITS.get(entry.hold or "")
    if entry.cancel_requested:
        detail = "asked to stop"
    return f"{entry.status} ({detail})" if detail else entry.status


def _not_retried(found: EntryReport) -> str:
    entry = found.entry
    if entry.status != "failed" or found.not_retried is None or entry.attempt >= entry.max_attempts:
        return ""
    return f"; not tried again: {found.not_retried}"


def _amounts(amounts: Mapping[str, int]) -> str:
    """Amounts by dimension as a text; a cost is in dollars."""
    from rota.model import COST_DIM, dollars

    known = ((dim, amount) for dim, amount in amounts.items() if amount)
    return ", ".join(dollars(amount) if dim == COST_DIM else f"{amount:,} {dim}" for dim, amount in known)


def _limits(found: EntryReport) -> Iterator[str]:
    from rota.cli.output import when

    held = {use.name for use in found.limits}
    yield from (name for name in found.entry.draws_on if name not in held)
    for use in found.limits:
        state = f"waits, asked {when(use.asked_at, found.now)}" if use.granted_at is None else "holds"
        yield f"{use.name}: {state} {_amounts(use.amounts)}".rstrip()


def _graph(found: EntryReport) -> str | None:
    return None if found.graph is None else found.graph.sentence()


def _related(other: RelatedEntry) -> str:
    return f"{other.agent} #{other.sched_id} {other.status}"


# --- attempts --------------------------------------------------------------------------------------


def _attempt_heading(attempt: AttemptReport, found: EntryReport) -> str:
    how = attempt.ended or ("running" if found.entry.status == "running" else "end unknown")
    ended = _ENDED.get(how, how)
    return f"attempt {attempt.attempt} of {found.entry.max_attempts}: {ended}" + (
        f" ({attempt.outcome})" if attempt.outcome else ""
    )


def _attempt_lines(attempt: AttemptReport, found: EntryReport, log: LogPart | None) -> Iterator[str]:
    yield from filter(None, (_where(attempt), _when(attempt, found.now)))
    if used := _amounts(attempt.usage):
        yield f"used {used}"
    if attempt.error is not None:
        yield from _block("error", attempt.error)
    error = attempt.error or ""
    if attempt.exit_code is not None and attempt.exit_kind != "completed" and f"code {attempt.exit_code}" not in error:
        yield f"exit code {attempt.exit_code}"
    if attempt.signal is not None and attempt.signal not in error:
        yield f"signal {attempt.signal}"
    if attempt.stopped_by is not None:
        yield f"stopped by {attempt.stopped_by}"
    yield from attempt.enforced
    yield from (f"advisory: {each}" for each in attempt.advisories)
    if attempt.traceback is not None:
        yield "traceback"
        yield from (f"  {line}" for line in attempt.traceback.rstrip().splitlines())
    yield from _output(attempt, found, log)


def _where(attempt: AttemptReport) -> str:
    parts = (
        attempt.worker_id and f"worker {attempt.worker_id}",
        attempt.slot and f"slot {attempt.slot}",
        attempt.runner and f"runner {attempt.runner}",
        attempt.node and f"node {attempt.node}",
        attempt.os_pid and f"process {attempt.os_pid}",
        attempt.workspace and f"workspace {attempt.workspace}",
    )
    return ", ".join(part for part in parts if part)


def _when(attempt: AttemptReport, now_at: float) -> str:
    from rota.cli.output import local_time, span

    start = attempt.started_at or attempt.claimed_at
    parts = []
    if start is not None:
        parts.append(f"started {local_time(start, now_at)}")
    if attempt.ended_at is not None:
        parts.append(f"ended {local_time(attempt.ended_at, now_at)}")
        if start is not None:
            took_s = attempt.ended_at - start if attempt.wall_ms is None else attempt.wall_ms / 1000
            parts.append(f"took {span(took_s)}" if took_s >= 10 else f"took {took_s:.1f} s")  # noqa: PLR2004  # then tenths do not matter
    if attempt.cpu_ms:
        parts.append(f"CPU {attempt.cpu_ms / 1000:.1f} s")
    return ", ".join(parts)


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


def _block(name: str, text: str) -> Iterator[str]:
    first, *rest = text.rstrip().splitlines() or [""]
    yield f"{name}: {first}"
    yield from (f"  {line}" for line in rest)


# --- the rest --------------------------------------------------------------------------------------

_SHOWN_ABOVE = ("error", "type", "traceback", "exit_code", "signal", "output_tail", "advisories")


def _shown_result(found: EntryReport) -> Any:
    """The result without what the last attempt shows of it; while the entry has not ended, it is a checkpoint."""
    result = found.entry.result
    if found.entry.state != "completed" or not isinstance(result, dict):
        return result
    shown = _SHOWN_ABOVE if found.entry.exit_kind != "completed" else ("output_tail", "advisories")
    return {name: value for name, value in result.items() if name not in shown} or None


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
