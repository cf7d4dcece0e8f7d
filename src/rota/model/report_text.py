"""An entry's report as names and texts: what `rota show` prints and the dashboard shows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rota.model.entry_report import AttemptReport, EntryReport, RelatedEntry
from rota.model.money import COST_DIM, dollars
from rota.time_text import local_time, moment, span, when

__all__ = ["attempt_heading", "attempt_lines", "name_agent", "related_text", "report_fields", "shown_result"]

_ENDED = {
    "completed": "succeeded",
    "retry": "failed, tried again",
    "reclaim": "lost: its claim expired",
    "preempt": "preempted by more urgent work; counts no attempt",
    "yield": "yielded its slot; counts no attempt",
}


def name_agent(text: str, pid: int, name: str) -> str:
    """Return a sentence that names the agent, where it has its pid."""
    return re.sub(rf"\bagent {pid}\b", lambda _: f"agent {name} (pid {pid})", text) if name else text


def report_fields(found: EntryReport) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the text of each fact; a fact without a text is left out."""
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
    yield "parent", None if found.parent is None else related_text(found.parent)
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
    known = ((dim, amount) for dim, amount in amounts.items() if amount)
    return ", ".join(dollars(amount) if dim == COST_DIM else f"{amount:,} {dim}" for dim, amount in known)


def _limits(found: EntryReport) -> Iterator[str]:
    held = {use.name for use in found.limits}
    yield from (name for name in found.entry.draws_on if name not in held)
    for use in found.limits:
        state = f"waits, asked {when(use.asked_at, found.now)}" if use.granted_at is None else "holds"
        yield f"{use.name}: {state} {_amounts(use.amounts)}".rstrip()


def _graph(found: EntryReport) -> str | None:
    return None if found.graph is None else found.graph.sentence()


def related_text(other: RelatedEntry) -> str:
    """Return another entry in a few words."""
    return f"{other.agent} #{other.sched_id} {other.status}"


def attempt_heading(attempt: AttemptReport, found: EntryReport) -> str:
    """Return which attempt it was and how it ended."""
    how = attempt.ended or ("running" if found.entry.status == "running" else "end unknown")
    ended = _ENDED.get(how, how)
    return f"attempt {attempt.attempt} of {found.entry.max_attempts}: {ended}" + (
        f" ({attempt.outcome})" if attempt.outcome else ""
    )


def attempt_lines(attempt: AttemptReport, found: EntryReport) -> Iterator[str]:
    """Yield what is known about an attempt, but for what it printed."""
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


def _where(attempt: AttemptReport) -> str:
    parts = (
        attempt.worker_id and f"worker {attempt.worker_id}",
        attempt.host and f"log on host {attempt.host}",
        attempt.slot and f"slot {attempt.slot}",
        attempt.runner and f"runner {attempt.runner}",
        attempt.node and f"node {attempt.node}",
        attempt.os_pid and f"process {attempt.os_pid}",
        attempt.workspace and f"workspace {attempt.workspace}",
    )
    return ", ".join(part for part in parts if part)


def _when(attempt: AttemptReport, now_at: float) -> str:
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


def _block(name: str, text: str) -> Iterator[str]:
    first, *rest = text.rstrip().splitlines() or [""]
    yield f"{name}: {first}"
    yield from (f"  {line}" for line in rest)


_SHOWN_ABOVE = ("error", "type", "traceback", "exit_code", "signal", "output_tail", "advisories")


def shown_result(found: EntryReport) -> Any:
    """The result without what the last attempt shows of it; while the entry has not ended, it is a checkpoint."""
    result = found.entry.result
    if found.entry.state != "completed" or not isinstance(result, dict):
        return result
    shown = _SHOWN_ABOVE if found.entry.exit_kind != "completed" else ("output_tail", "advisories")
    return {name: value for name, value in result.items() if name not in shown} or None
