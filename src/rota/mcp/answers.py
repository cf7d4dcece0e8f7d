"""What the tools return: short typed structures, made from those of the scheduler API.

Models pay for every word they read. So a line of a list has what is needed to choose an entry, times are readable
texts, and a value that is too long is left out and can be read in parts with `read_work`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from rota.mcp.tool import said
from rota.model.entry_report import AttemptReport, EntryReport, RelatedEntry
from rota.model.explanation import Explanation
from rota.model.work import Agent, ReadyEntry

__all__ = [
    "AgentLine",
    "AttemptLine",
    "EntryDetail",
    "EntryLine",
    "Outlook",
    "RunMean",
    "agent_line",
    "detail_of",
    "iso_time",
    "line_of",
    "outlook_of",
    "short_value",
]

VALUE_CHARS_MAX = 4_000  # of a payload, result or error in a result; longer ones are read in parts
HISTORY_MAX = 20  # steps of an entry's history, the last ones
ATTEMPTS_MAX = 10  # the last ones
RELATED_MAX = 50  # children or predecessors


def iso_time(at: float | None) -> str | None:
    """Return an instant as text: 2026-03-01T12:00:00+00:00. None if there is none, or it is beyond the calendar."""
    try:
        return None if at is None else dt.datetime.fromtimestamp(at, dt.UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return None


def short_value(value: Any) -> tuple[Any, bool]:
    """Return a JSON value if it is short, else None; and whether it was left out."""
    too_long = len(msgspec.json.encode(value)) > VALUE_CHARS_MAX
    return (None, True) if too_long else (value, False)


# --- entries -------------------------------------------------------------------------------------


class EntryLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry in a list."""

    sched_id: int
    agent: str
    project: str | None = None
    status: str
    priority: int = 0
    attempt: int = 0
    tags: tuple[str, ...] = ()
    enqueued_at: str | None = None
    not_before: Annotated[str | None, said("When it may start at the earliest, if that is in the future.")] = None
    deadline: str | None = None
    ended_at: str | None = None
    outcome: Annotated[str | None, said("How it ended, more exactly than its status.")] = None
    parent_id: int | None = None
    stop_requested: bool = False


def line_of(entry: ReadyEntry, agent: str) -> EntryLine:
    """Return an entry as a line."""
    return EntryLine(
        sched_id=entry.sched_id,
        agent=agent or f"pid {entry.pid}",
        project=entry.project_id,
        status=entry.status,
        priority=entry.priority,
        attempt=entry.attempt,
        tags=entry.tags,
        enqueued_at=iso_time(entry.created_at),
        not_before=iso_time(entry.runnable_at) if entry.hold == "time" else None,
        deadline=iso_time(entry.deadline),
        ended_at=iso_time(entry.completed_at),
        outcome=entry.outcome or entry.exit_kind,
        parent_id=entry.parent_id,
        stop_requested=entry.cancel_requested,
    )


class AttemptLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run of an entry."""

    attempt: int
    started_at: str | None = None
    ended_at: str | None = None
    ended: str | None = None
    worker: str | None = None
    wall_s: float | None = None
    usage: dict[str, int] = {}
    error: str | None = None


class Related(msgspec.Struct, frozen=True):
    """A parent, child or predecessor."""

    sched_id: int
    agent: str
    status: str


class EntryDetail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything about one entry. Values that are too long are left out: read them with read_work."""

    entry: EntryLine
    payload: Any = None
    result: Any = None
    left_out: Annotated[tuple[str, ...], said("Parts that are too long; read them with read_work.")] = ()
    progress: str | None = None
    attempts: tuple[AttemptLine, ...] = ()
    usage: Annotated[dict[str, int], said("Charged by all of its runs; cost_micro is 10^-6 dollars.")] = {}
    ceiling: dict[str, int] = {}
    lent: Annotated[dict[str, int], said("The budget that its parent lent it.")] = {}
    waits_on_limits: tuple[str, ...] = ()
    not_retried: str | None = None
    parent: Related | None = None
    children: tuple[Related, ...] = ()
    has_more_children: Annotated[bool, said("Only the first ones are listed.")] = False
    after: tuple[Related, ...] = ()
    history: Annotated[tuple[str, ...], said("The last steps, oldest first.")] = ()


def _related(found: RelatedEntry) -> Related:
    return Related(found.sched_id, found.agent, found.status)


def _attempt(found: AttemptReport) -> AttemptLine:
    return AttemptLine(
        attempt=found.attempt,
        started_at=iso_time(found.started_at or found.claimed_at),
        ended_at=iso_time(found.ended_at),
        ended=found.outcome or found.ended,
        worker=found.worker_id,
        wall_s=None if found.wall_ms is None else found.wall_ms / 1_000,
        usage=found.usage,
        error=None if found.error is None else found.error[:VALUE_CHARS_MAX],
    )


def detail_of(found: EntryReport) -> EntryDetail:
    """Return everything about an entry, with what is too long left out."""
    payload, long_payload = short_value(found.entry.payload)
    result, long_result = short_value(found.entry.result)
    return EntryDetail(
        entry=line_of(found.entry, found.agent),
        payload=payload,
        result=result,
        left_out=tuple(part for part, long in (("payload", long_payload), ("result", long_result)) if long),
        progress=None if found.progress is None else f"{found.progress.fraction:.0%} {found.progress.text}".strip(),
        attempts=tuple(map(_attempt, found.attempts[-ATTEMPTS_MAX:])),
        usage=found.usage,
        ceiling=found.entry.ceiling,
        lent=found.lent,
        waits_on_limits=tuple(use.name for use in found.limits if use.granted_at is None),
        not_retried=found.not_retried,
        parent=None if found.parent is None else _related(found.parent),
        children=tuple(map(_related, found.children[:RELATED_MAX])),
        has_more_children=len(found.children) > RELATED_MAX or not found.children_are_complete,
        after=tuple(map(_related, found.after[:RELATED_MAX])),
        history=tuple(f"{iso_time(step.at)} {step.words}" for step in found.history[-HISTORY_MAX:]),
    )


# --- agents --------------------------------------------------------------------------------------


class AgentLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent in a list."""

    name: str
    pid: int
    project: str | None = None
    state: str
    priority: int = 0
    paused_by: str | None = None


def agent_line(agent: Agent) -> AgentLine:
    """Return an agent as a line."""
    return AgentLine(
        name=agent.name,
        pid=agent.pid,
        project=agent.project_id,
        state=agent.state,
        priority=agent.priority,
        paused_by=agent.paused_by,
    )


# --- why an entry waits, and what a run costs ----------------------------------------------------


class Outlook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an entry is not running, or would not run, and when it may start."""

    sched_id: Annotated[int | None, said("Null: the entry does not exist.")] = None
    agent: str
    status: str
    starts_now: Annotated[bool, said("Whether the next claim of a worker takes it.")]
    starts_at: Annotated[str | None, said("The estimated start; null if it is unknown.")] = None
    basis: Annotated[str, said("What the estimated start is based on.")]
    blocked_by: Annotated[tuple[str, ...], said("Why it may not run, whatever worker claims.")] = ()
    runs_later_because: Annotated[tuple[str, ...], said("It may run, but others run first.")] = ()
    workers: Annotated[str | None, said("Why no worker would claim it now.")] = None
    position: Annotated[int | None, said("1 is next; null if it is blocked or unknown.")] = None
    ahead: tuple[int, ...] = ()
    what_would_start_it: tuple[str, ...] = ()
    policy: str


def outlook_of(found: Explanation) -> Outlook:
    """Return an explanation in sentences."""
    return Outlook(
        sched_id=found.sched_id or None,
        agent=found.agent or f"pid {found.pid}",
        status=found.status,
        starts_now=found.starts and found.workers is None,
        starts_at=iso_time(found.start.starts_at),
        basis=found.start.basis,
        blocked_by=tuple(reason.sentence() for reason in found.blocking),
        runs_later_because=tuple(reason.sentence() for reason in found.ordering),
        workers=None if found.workers is None else found.workers.sentence(),
        position=found.position,
        ahead=tuple(each.sched_id for each in found.ahead),
        what_would_start_it=tuple(_change(change.words, change.arguments, change.verb) for change in found.changes),
        policy=found.policy,
    )


def _change(words: str, arguments: Mapping[str, Any], verb: str | None) -> str:
    given = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return words if verb is None else f"{words}: {verb}({given})"


class RunMean(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run of an agent has used on average."""

    runs: Annotated[int, said("How many runs the means are of; with none, nothing is known.")]
    failed: int = 0
    tokens: float | None = None
    cost_usd: float | None = None
    wall_s: float | None = None
    wait_p50_s: Annotated[float | None, said("Half of the runs waited no longer than this.")] = None
    expected: Annotated[dict[str, int], said("What the agent's settings declare for a run.")] = {}
    ceiling: Annotated[dict[str, int], said("The most that a run may use.")] = {}
