"""The rules of hooks, as pure functions: which events a hook is about, and what it is told.

A hook names what it wants to hear of (`on`): one of the names below, or any kind of event.

    failed         an entry ended failed or crashed, and is not retried any more
    quarantined    an agent is paused because it kept failing, or because its settings cannot be used
    budget_alert   usage reached a share of a budget at which an alert was asked for
    drained        a supervisor stops and all of its runs have ended: after Ctrl-C or SIGTERM, or with `--until-idle`
    worker_lost    a worker vanished without leaving

One event may be about several entries; each of them is a delivery of its own. An event about hooks and their own
entries is never delivered: a hook that fails would cause the next one, for ever.

What is delivered is a JSON object with the fields of `Notice`. It is the payload of the hook's entry, so it says what
was known when the event was read.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from rota.fleet.trigger_rules import matches_kind
from rota.model.events import (
    AgentQuarantined,
    BudgetAlert,
    EntriesCompleted,
    Event,
    SupervisorChanged,
    WorkerLost,
)
from rota.model.money import amount_text, dim_text
from rota.model.work import Agent, ReadyEntry
from rota.model.workers import lost_worker_text

__all__ = [
    "HOOK_KIND",
    "HOOK_PREFIX",
    "NAMES",
    "TEST",
    "TEST_KIND",
    "HookFilter",
    "Notice",
    "Subject",
    "entry_ids",
    "is_hook",
    "is_wanted",
    "kind_of",
    "make_notice",
    "subjects_of",
]

HOOK_KIND = "rota.hook"  # the kind of slot that deliveries need; the supervisor has such slots for them alone
HOOK_PREFIX = "hook:"  # of the names of the agents that hooks are
TEST = "test"
TEST_KIND = "hook.test"  # the kind of event with which `rota hooks test` asks for a delivery
NAMES: Mapping[str, str] = {  # what a hook may name, and the kind of event that says it
    "failed": EntriesCompleted.kind,
    "quarantined": AgentQuarantined.kind,
    "budget_alert": BudgetAlert.kind,
    "drained": SupervisorChanged.kind,
    "worker_lost": WorkerLost.kind,
}
FAILED = ("failed", "crashed")
ERROR_CHARS_MAX = 4_000  # of an error in a notice
PAYLOAD_BYTES_MAX = 64 * 1024  # of an event's own data in a notice


class HookFilter(NamedTuple):
    """What a hook wants to hear of: a name or a kind of event, of all or of one project or agent."""

    hook: str
    on: str
    project_id: str | None = None
    agent: str | None = None


class Subject(NamedTuple):
    """What one delivery is about: an entry, or the event as a whole."""

    sched_id: int | None = None


class NamedAgent(msgspec.Struct, frozen=True):
    """An agent in a notice."""

    pid: int
    name: str


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook is told."""

    id: str  # of this delivery: the same in every attempt
    hook: str
    event: str  # the name or kind that the hook asked for
    kind: str  # of the event in the journal
    event_id: int
    at: float  # seconds since 1970
    store: str
    agent: NamedAgent | None = None
    project: str | None = None
    entry: int | None = None
    status: str | None = None  # of the entry
    error: str | None = None
    summary: str  # one sentence for people
    hint: str  # a command that shows more
    payload: dict[str, Any] = {}  # the event's own data; {"omitted_bytes": N} if there is too much of it


def is_hook(agent: Agent) -> bool:
    """Whether an agent is a hook."""
    settings = agent.metadata.get("run")
    return isinstance(settings, dict) and settings.get("kind") == HOOK_KIND


def kind_of(name: str) -> str:
    """Return the kind of event, or the prefix of kinds, that a name in `on` means."""
    return TEST_KIND if name == TEST else NAMES.get(name, name)


def subjects_of(wanted: HookFilter, event: Event) -> list[Subject]:
    """Return the deliveries that an event asks for, as far as the event itself tells."""
    if wanted.on == TEST:
        is_asked = event.kind == TEST_KIND and event.pid is None and event.payload.get("hook") == wanted.hook
        return [Subject()] if is_asked else []
    if wanted.on not in NAMES:
        return [Subject(_entry_id(event))] if matches_kind(wanted.on, event.kind) else []
    if event.kind != NAMES[wanted.on]:
        return []
    if wanted.on == "failed":
        ended = event.payload.get("entries", [])
        return [Subject(entry[0]) for entry in ended if entry[1] in FAILED]
    if wanted.on == "drained" and event.payload.get("verb") != "drained":
        return []
    return [Subject(_entry_id(event))]


def entry_ids(event: Event) -> list[int]:
    """Return the entries that an event names."""
    body = event.payload
    named: list[Any] = [
        body.get("sched_id"),
        *body.get("sched_ids", []),
        *(each[0] for each in body.get("entries", [])),
    ]
    return [each for each in named if type(each) is int]


def _entry_id(event: Event) -> int | None:
    sched_id = event.payload.get("sched_id")
    return sched_id if type(sched_id) is int else None


def is_wanted(wanted: HookFilter, event: Event, agent: Agent | None) -> bool:
    """Whether an event of this agent, or of none, passes the filters of a hook."""
    if wanted.agent is not None and (agent is None or agent.name != wanted.agent):
        return False
    return wanted.project_id is None or _project_of(event, agent) == wanted.project_id


def _project_of(event: Event, agent: Agent | None) -> str | None:
    if agent is not None:
        return agent.project_id
    body = event.payload
    owner = body.get("owner") if body.get("level") == "project" else body.get("project_id")
    return owner if isinstance(owner, str) else None


def make_notice(
    wanted: HookFilter, event: Event, agent: Agent | None, entry: ReadyEntry | None, *, delivery_id: str, store: str
) -> dict[str, Any]:
    """Return what a hook is told of an event, as JSON data."""
    error = _error_of(entry) or event.payload.get("reason")
    notice = Notice(
        id=delivery_id,
        hook=wanted.hook,
        event=wanted.on,
        kind=event.kind,
        event_id=event.event_id,
        at=event.ts,
        store=store,
        agent=None if agent is None else NamedAgent(agent.pid, agent.name),
        project=_project_of(event, agent),
        entry=None if entry is None else entry.sched_id,
        status=None if entry is None else entry.status,
        error=None if error is None else str(error)[:ERROR_CHARS_MAX],
        summary=_summary(wanted, event, agent, entry, None if error is None else str(error)),
        hint=_hint(wanted, event, agent, entry),
        payload=_bounded(event.payload),
    )
    body: dict[str, Any] = msgspec.to_builtins(notice)
    return body


def _error_of(entry: ReadyEntry | None) -> Any:
    if entry is None or entry.exit_kind in (None, "completed"):
        return None
    error = entry.result.get("error") if isinstance(entry.result, dict) else None
    return error or entry.outcome or entry.exit_kind


def _summary(  # noqa: PLR0911  # one for each name
    wanted: HookFilter, event: Event, agent: Agent | None, entry: ReadyEntry | None, error: str | None
) -> str:
    body, who = event.payload, "an agent" if agent is None else agent.name
    match wanted.on:
        case "failed" if entry is not None:
            why = (error or "no reason was given").strip().splitlines()[0]
            return f"{who} #{entry.sched_id} failed after attempt {entry.attempt} of {entry.max_attempts}: {why}"
        case "quarantined":
            failures = f"{body.get('failures')} failures in a row"
            return f"{who} is quarantined: {error or failures}"
        case "budget_alert":
            owner = {"agent": who, "global": "the budget of all projects"}.get(
                str(body.get("level")), body.get("owner")
            )
            dim, share = str(body.get("dim")), body.get("share", 0)
            used, limit = amount_text(dim, body.get("used", 0)), amount_text(dim, body.get("limit", 0))
            return f"{owner}: {share:.0%} of the {dim_text(dim)} budget is used, {used} of {limit}"
        case "drained":
            return f"worker {body.get('worker_id')} has drained: all of its runs have ended"
        case "worker_lost":
            return lost_worker_text(str(body.get("worker_id")), str(body.get("host")), int(body.get("entries", 0)))
        case "test":
            return f"this is a test of the hook {wanted.hook}"
    return event.kind if agent is None else f"{event.kind} of {who}"


def _hint(wanted: HookFilter, event: Event, agent: Agent | None, entry: ReadyEntry | None) -> str:
    if entry is not None:
        return f"rota show {entry.sched_id}"
    match wanted.on:
        case "quarantined" if agent is not None:
            return f"rota resume agent {shlex.quote(agent.name)}"
        case "budget_alert":
            return "rota usage"
        case "drained" | "worker_lost":
            return "rota ps"
        case "test":
            return "rota hooks"
    return f"rota events --since {event.event_id - 1} --limit 1"


def _bounded(payload: dict[str, Any]) -> dict[str, Any]:
    size = len(msgspec.json.encode(payload))
    return payload if size <= PAYLOAD_BYTES_MAX else {"omitted_bytes": size}
