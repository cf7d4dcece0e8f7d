"""Events as sentences for a person who watches a fleet, in the order in which they happened.

Not every event has a sentence. Charges, heartbeats and the state changes of agents occur by the thousand and are summed
up elsewhere. Sentences say what starts, what ends and how, and what may need action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from rota.model import events
from rota.model.events import Event, EventData

__all__ = ["TEXTS_PER_EVENT_MAX", "EntityNames", "EventText", "TextTone", "describe"]

TEXTS_PER_EVENT_MAX = 50  # the rest of a batch is counted in one more sentence

TextTone: TypeAlias = Literal["quiet", "plain", "good", "warn", "bad"]
Line: TypeAlias = tuple[TextTone, str]


class EventText(msgspec.Struct, frozen=True):
    """One sentence about one event. A quiet one is for the live view only, not for a log."""

    event_id: int
    at: float
    tone: TextTone
    text: str


class EntityNames(Protocol):
    """The names of agents and runs in the sentences."""

    def agent(self, pid: int | None) -> str:
        """The name of an agent."""
        ...

    def run(self, sched_id: int) -> str:
        """The run of an entry: the name of its agent and the id of the entry."""
        ...

    def why(self, sched_id: int, reason: str | None) -> str:
        """The outcome of a run that did not succeed."""
        ...

    def run_details(self, sched_id: int, at: float) -> str:
        """How long it ran and what stopped it, as far as known."""
        ...


def describe(event: Event, data: EventData, names: EntityNames) -> list[EventText]:
    """Return the sentences about an event, possibly none. Call it before the event is folded into `names`."""
    describer = _DESCRIBERS.get(type(data))
    if describer is None:
        return []
    lines = list(describer(data, event, names))
    if len(lines) > TEXTS_PER_EVENT_MAX:
        left = len(lines) - TEXTS_PER_EVENT_MAX
        lines = [*lines[:TEXTS_PER_EVENT_MAX], (lines[-1][0], f"… and {left:,} more like this")]
    return [EventText(event.event_id, event.ts, tone, text) for tone, text in lines]


# --- entries and runs ----------------------------------------------------------------------------


def _enqueued(data: events.EntriesEnqueued, event: Event, names: EntityNames) -> Iterator[Line]:
    if data.count == 1 and event.pid is not None:
        yield "quiet", f"{names.agent(event.pid)} #{data.first_id} queued"
    else:
        yield "quiet", "1 entry queued" if data.count == 1 else f"{data.count:,} entries queued"


def _claimed(data: events.EntriesClaimed, _event: Event, names: EntityNames) -> Iterator[Line]:
    for entry in data.entries:
        attempt = f", attempt {entry.attempt}" if entry.attempt > 1 else ""
        yield "plain", f"{names.agent(entry.pid)} #{entry.sched_id} started on {data.worker_id}{attempt}"


def _completed(data: events.EntriesCompleted, event: Event, names: EntityNames) -> Iterator[Line]:
    for entry in data.entries:
        details = names.run_details(entry.sched_id, event.ts)
        tone: TextTone = "good" if entry.exit_kind == "completed" else "bad"
        yield tone, f"{names.run(entry.sched_id)} {_outcome(entry.exit_kind, entry.outcome)}{details}"


def _progressed(data: events.RunProgressed, _event: Event, names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"{names.run(data.sched_id)} {data.fraction:.0%} {data.text}".rstrip()


def _returned(data: events.EntriesReturned, event: Event, names: EntityNames) -> Iterator[Line]:
    for sched_id in data.sched_ids:
        run, details = names.run(sched_id), names.run_details(sched_id, event.ts)
        pause_s = max(0.0, (data.runnable_at or event.ts) - event.ts)
        when = f" in {pause_s:.1f} s" if pause_s >= 0.05 else ""  # noqa: PLR2004  # less would be written as 0.0
        if data.verb == "reclaim":
            yield "warn", f"{run} was requeued: its claim expired; runs again{when}"
        elif data.verb == "retry":
            yield "warn", f"{run} {_failure(names.why(sched_id, data.reason))}{details}; retry{when or ' now'}"
        else:
            yield "plain", f"{run} {_RETURNS[data.verb]}{details}; continues{when or ' later'}"


_RETURNS = {"preempt": "was preempted by more urgent work", "yield": "yielded its slot"}


def _outcome(exit_kind: str, outcome: str | None) -> str:
    if exit_kind == "completed":
        return exit_kind
    return _readable(exit_kind if outcome is None or outcome == exit_kind else f"{exit_kind} ({outcome})")


def _failure(outcome: str) -> str:
    return outcome if outcome in ("failed", "crashed") else f"failed ({_readable(outcome)})"


def _readable(outcome: str) -> str:
    return outcome.replace("_", " ")


def _expired(data: events.EntriesExpired, _event: Event, _names: EntityNames) -> Iterator[Line]:
    start = "it did not start before its" if len(data.sched_ids) == 1 else "they did not start before their"
    yield "warn", f"{_entries(data.sched_ids)} expired: {start} deadline"


def _cancelled(data: events.EntriesCancelled, _event: Event, _names: EntityNames) -> Iterator[Line]:
    reason = f": {_readable(data.reason)}" if data.reason else ""
    yield "warn", f"{_entries(data.sched_ids)} cancelled{reason}"


def _cancel_requested(data: events.CancelRequested, _event: Event, names: EntityNames) -> Iterator[Line]:
    for sched_id in data.sched_ids:
        yield "plain", f"{names.run(sched_id)} was asked to stop{f' by {data.by}' if data.by else ''}"


def _entries(sched_ids: list[int]) -> str:
    return f"entry {sched_ids[0]}" if len(sched_ids) == 1 else f"{len(sched_ids):,} entries"


# --- agents, projects, limits ----------------------------------------------------------------------


def _quarantined(data: events.AgentQuarantined, event: Event, names: EntityNames) -> Iterator[Line]:
    if data.until_at is None:
        yield "bad", f"{names.agent(event.pid)} quarantined until its settings are corrected: {data.reason}"
        return
    left_s = max(0.0, data.until_at - event.ts)
    yield "bad", f"{names.agent(event.pid)} failed {data.failures} times in a row: quarantined for {left_s:.0f} s"


def _paused(data: events.Paused, _event: Event, names: EntityNames) -> Iterator[Line]:
    if not data.by.startswith("quarantine"):  # which has its own event
        yield "warn", f"{_subject(data, names)} paused by {data.by}{f': {data.reason}' if data.reason else ''}"


def _resumed(data: events.Resumed, _event: Event, names: EntityNames) -> Iterator[Line]:
    yield "plain", f"{_subject(data, names)} resumed by {data.by}"


def _subject(data: events.Paused | events.Resumed, names: EntityNames) -> str:
    if data.level == "agent":
        return f"{names.agent(int(data.key)) if data.key.isdecimal() else data.key} was"
    return "the fleet was" if data.level == "fleet" else f"project {data.key} was"


def _throttled(data: events.LimitThrottled, event: Event, _names: EntityNames) -> Iterator[Line]:
    left_s = max(0.0, data.until_at - event.ts)
    yield "warn", f"limit {data.name} is throttled: its users wait {left_s:.1f} s"


def _limit_resumed(data: events.LimitResumed, event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "plain", f"the pause of limit {data.name} was ended{_by(event)}"


def _granted(data: events.ProjectGranted, event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "warn", f"{_scope(data.from_project)} may reach into {_scope(data.to_project)}: granted{_by(event)}"


def _grant_revoked(data: events.ProjectGrantRevoked, event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "plain", f"{_scope(data.from_project)} no longer reaches into {_scope(data.to_project)}: revoked{_by(event)}"


def _scope(project_id: str) -> str:
    return f"project {project_id}" if project_id else "what has no project"


def _by(event: Event) -> str:
    return f" by {event.author}" if event.author else ""


def _awaited(data: events.LimitAwaited, _event: Event, names: EntityNames) -> Iterator[Line]:
    amounts = " and ".join(f"{amount:,} {unit}" for unit, amount in data.amounts.items())
    yield "warn", f"{names.run(data.sched_id)} waits for {amounts} of limit {data.name}"


def _acquired(data: events.LimitAcquired, _event: Event, names: EntityNames) -> Iterator[Line]:
    if data.waited_ms:
        yield "quiet", f"{names.run(data.sched_id)} waited {data.waited_ms / 1000:.1f} s for limit {data.name}"


def _warned(data: events.LedgerWarned, event: Event, names: EntityNames) -> Iterator[Line]:
    yield "warn", f"{names.agent(event.pid)} used {data.used:,} of {data.granted:,} {data.dim}"


def _breached(data: events.LedgerBreached, event: Event, names: EntityNames) -> Iterator[Line]:
    owner = {"agent": f"agent {names.agent(event.pid)}", "global": "the fleet"}.get(data.level, f"project {data.owner}")
    yield "bad", f"{owner} is over budget: {data.used:,} of {data.limit:,} {data.dim}"


def _depleted(data: events.ContextBudgetDepleted, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "warn", f"context {data.context_id} is exhausted until its refill"


# --- the scheduler itself ------------------------------------------------------------------------

_SUPERVISOR = {"draining": "is draining: it claims no more entries", "took_over": "took over from its previous process"}
_FAILURES = {"nonsense": "returned invalid decisions"}


def _supervisor(data: events.SupervisorChanged, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "plain", f"{data.worker_id} {_SUPERVISOR.get(data.verb, data.verb)}"


def _fired(data: events.TriggerFired, _event: Event, _names: EntityNames) -> Iterator[Line]:
    if data.created:
        yield "quiet", f"trigger {data.trigger} enqueued entry {data.sched_id}"


def _policy_chosen(data: events.PolicyChosen, _event: Event, _names: EntityNames) -> Iterator[Line]:
    policy = "the default policy" if data.policy is None else f"policy {data.policy.sentence()}"
    yield "plain", f"{data.by} set {policy}, shared by {data.share_by}"


def _fell_back(data: events.PolicyFellBack, _event: Event, _names: EntityNames) -> Iterator[Line]:
    failure = _FAILURES.get(data.failure, data.failure)
    yield "bad", f"policy {data.policy} {failure}: strict order replaces it ({data.detail})"


def _unreadable(data: events.RowUnreadable, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "bad", f"row {data.key} of {data.table} cannot be read and is left out: {data.problem}"


def _jumped(data: events.ClockJumped, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "warn", f"the wall clock jumped by {data.by_s:+.1f} s"


def _reloaded(_data: events.FleetReloaded, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "plain", "the fleet file was reloaded"


_DESCRIBERS: Mapping[type[EventData], Callable[[Any, Event, EntityNames], Iterable[Line]]] = {
    events.EntriesEnqueued: _enqueued,
    events.EntriesClaimed: _claimed,
    events.EntriesCompleted: _completed,
    events.RunProgressed: _progressed,
    events.EntriesReturned: _returned,
    events.EntriesExpired: _expired,
    events.EntriesCancelled: _cancelled,
    events.CancelRequested: _cancel_requested,
    events.AgentQuarantined: _quarantined,
    events.Paused: _paused,
    events.Resumed: _resumed,
    events.LimitThrottled: _throttled,
    events.LimitResumed: _limit_resumed,
    events.ProjectGranted: _granted,
    events.ProjectGrantRevoked: _grant_revoked,
    events.LimitAwaited: _awaited,
    events.LimitAcquired: _acquired,
    events.LedgerWarned: _warned,
    events.LedgerBreached: _breached,
    events.ContextBudgetDepleted: _depleted,
    events.SupervisorChanged: _supervisor,
    events.TriggerFired: _fired,
    events.PolicyChosen: _policy_chosen,
    events.PolicyFellBack: _fell_back,
    events.RowUnreadable: _unreadable,
    events.ClockJumped: _jumped,
    events.FleetReloaded: _reloaded,
}
