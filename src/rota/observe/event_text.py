"""Facts as sentences: what a person who watches a fleet wants to be told, in the order in which it happened.

Not every fact is worth a sentence. A charge, a heartbeat, an agent's way through its states come by the thousand and
are summed up elsewhere; what is told here is what begins, what ends and how, and what somebody may want to act on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from rota.model import events as facts
from rota.model.events import Event, Fact

__all__ = ["STORIES_PER_FACT_MAX", "Names", "Story", "Tone", "tell"]

STORIES_PER_FACT_MAX = 50  # of a batch; the rest is counted in one more sentence

Tone: TypeAlias = Literal["quiet", "plain", "good", "warn", "bad"]
Said: TypeAlias = tuple[Tone, str]


class Story(msgspec.Struct, frozen=True):
    """One sentence about one fact. A quiet one is for who looks on, not for a log."""

    event_id: int
    at: float
    tone: Tone
    text: str


class Names(Protocol):
    """What the sentences call things."""

    def agent(self, pid: int | None) -> str:
        """An agent's name."""
        ...

    def run(self, sched_id: int) -> str:
        """The run of an entry, by its agent's name and the entry's number."""
        ...

    def why(self, sched_id: int, reason: str | None) -> str:
        """What a run that did not end well ended with."""
        ...

    def how_it_ran(self, sched_id: int, at: float) -> str:
        """How long it ran, and what ended it, as far as that is known."""
        ...


def tell(event: Event, fact: Fact, names: Names) -> list[Story]:
    """The sentences about a fact; none if it is not worth one. What the fact changes must not have been folded yet."""
    teller = _TELLERS.get(type(fact))
    if teller is None:
        return []
    said = list(teller(fact, event, names))
    if len(said) > STORIES_PER_FACT_MAX:
        left = len(said) - STORIES_PER_FACT_MAX
        said = [*said[:STORIES_PER_FACT_MAX], (said[-1][0], f"… and {left:,} more like this")]
    return [Story(event.event_id, event.ts, tone, text) for tone, text in said]


# --- entries and runs ----------------------------------------------------------------------------


def _enqueued(fact: facts.EntriesEnqueued, event: Event, names: Names) -> Iterator[Said]:
    if fact.count == 1 and event.pid is not None:
        yield "quiet", f"{names.agent(event.pid)} is to run: entry {fact.first_id}"
    else:
        what = "an entry" if fact.count == 1 else f"{fact.count:,} entries"
        yield "quiet", f"{what} joined the queue"


def _claimed(fact: facts.EntriesClaimed, _event: Event, names: Names) -> Iterator[Said]:
    for entry in fact.entries:
        again = f", attempt {entry.attempt}" if entry.attempt > 1 else ""
        yield "plain", f"{names.agent(entry.pid)} #{entry.sched_id} started on {fact.worker_id}{again}"


def _completed(fact: facts.EntriesCompleted, event: Event, names: Names) -> Iterator[Said]:
    for entry in fact.entries:
        how = names.how_it_ran(entry.sched_id, event.ts)
        if entry.exit_kind == "completed":
            yield "good", f"{names.run(entry.sched_id)} ended well{how}"
        else:
            yield "bad", f"{names.run(entry.sched_id)} ended {_outcome(entry.exit_kind, entry.outcome)}{how}"


def _returned(fact: facts.EntriesReturned, event: Event, names: Names) -> Iterator[Said]:
    for sched_id in fact.sched_ids:
        run, how = names.run(sched_id), names.how_it_ran(sched_id, event.ts)
        pause_s = max(0.0, (fact.runnable_at or event.ts) - event.ts)
        when = f" in {pause_s:.1f} s" if pause_s >= 0.05 else ""  # noqa: PLR2004  # what would be written as 0.0
        if fact.verb == "reclaim":
            yield "warn", f"{run} was taken back: nobody held on to its claim; to be run again{when}"
        elif fact.verb == "retry":
            yield "warn", f"{run} ended {_words(names.why(sched_id, fact.reason))}{how}; retried{when}"
        else:
            yield "plain", f"{run} {_BACK[fact.verb]}{how}; goes on{when or ' later'}"


_BACK = {"preempt": "made room for more urgent work", "yield": "gave its slot back"}


def _outcome(exit_kind: str, outcome: str | None) -> str:
    return _words(exit_kind if outcome is None or outcome == exit_kind else f"{exit_kind} ({outcome})")


def _words(outcome: str) -> str:
    return outcome.replace("_", " ")


def _expired(fact: facts.EntriesExpired, _event: Event, _names: Names) -> Iterator[Said]:
    whose = "its" if len(fact.sched_ids) == 1 else "their"
    yield "warn", f"{_entries(fact.sched_ids)} not run before {whose} deadline"


def _cancelled(fact: facts.EntriesCancelled, _event: Event, _names: Names) -> Iterator[Said]:
    why = f": {_words(fact.reason)}" if fact.reason else ""
    yield "warn", f"{_entries(fact.sched_ids)} cancelled{why}"


def _cancel_requested(fact: facts.CancelRequested, _event: Event, names: Names) -> Iterator[Said]:
    for sched_id in fact.sched_ids:
        yield "plain", f"{names.run(sched_id)} was asked to stop{f' by {fact.by}' if fact.by else ''}"


def _entries(sched_ids: list[int]) -> str:
    return f"entry {sched_ids[0]} was" if len(sched_ids) == 1 else f"{len(sched_ids):,} entries were"


# --- agents, projects, limits ----------------------------------------------------------------------


def _quarantined(fact: facts.AgentQuarantined, event: Event, names: Names) -> Iterator[Said]:
    left_s = max(0.0, fact.until_at - event.ts)
    yield "bad", f"{names.agent(event.pid)} failed {fact.failures} times in a row: quarantined for {left_s:.0f} s"


def _paused(fact: facts.Paused, _event: Event, names: Names) -> Iterator[Said]:
    if fact.by != "quarantine":  # which is told by its own fact
        yield "warn", f"{_subject(fact, names)} paused by {fact.by}{f': {fact.reason}' if fact.reason else ''}"


def _resumed(fact: facts.Resumed, _event: Event, names: Names) -> Iterator[Said]:
    yield "plain", f"{_subject(fact, names)} resumed by {fact.by}"


def _subject(fact: facts.Paused | facts.Resumed, names: Names) -> str:
    if fact.level == "agent":
        return f"{names.agent(int(fact.key)) if fact.key.isdecimal() else fact.key} was"
    return "the fleet was" if fact.level == "fleet" else f"project {fact.key} was"


def _throttled(fact: facts.LimitThrottled, event: Event, _names: Names) -> Iterator[Said]:
    left_s = max(0.0, fact.until_at - event.ts)
    yield "warn", f"limit {fact.name} was throttled: all who draw on it wait {left_s:.1f} s"


def _warned(fact: facts.LedgerWarned, event: Event, names: Names) -> Iterator[Said]:
    yield "warn", f"{names.agent(event.pid)} used {fact.used:,} of {fact.granted:,} {fact.dim}"


def _breached(fact: facts.LedgerBreached, event: Event, names: Names) -> Iterator[Said]:
    whose = {"agent": f"agent {names.agent(event.pid)}", "global": "the fleet"}.get(fact.level, f"project {fact.owner}")
    yield "bad", f"{whose} is over budget: {fact.used:,} of {fact.limit:,} {fact.dim}"


def _depleted(fact: facts.ContextDepleted, _event: Event, _names: Names) -> Iterator[Said]:
    yield "warn", f"context {fact.context_id} is used up until it is refilled"


# --- the house itself ----------------------------------------------------------------------------


def _supervisor(fact: facts.SupervisorMoved, _event: Event, _names: Names) -> Iterator[Said]:
    words = {"draining": "takes nothing more", "took_over": "took over the work of an earlier life"}
    yield "plain", f"{fact.worker_id} {words.get(fact.verb, fact.verb)}"


def _fired(fact: facts.TriggerFired, _event: Event, _names: Names) -> Iterator[Said]:
    if fact.created:
        yield "quiet", f"trigger {fact.trigger} asked for entry {fact.sched_id}"


def _fell_back(fact: facts.PolicyFellBack, _event: Event, _names: Names) -> Iterator[Said]:
    yield "bad", f"policy {fact.policy} {fact.failure}: strict order takes its place ({fact.detail})"


def _jumped(fact: facts.ClockJumped, _event: Event, _names: Names) -> Iterator[Said]:
    yield "warn", f"the wall clock jumped by {fact.by_s:+.1f} s"


def _reloaded(_fact: facts.FleetReloaded, _event: Event, _names: Names) -> Iterator[Said]:
    yield "plain", "the fleet file was read anew"


_TELLERS: Mapping[type[Fact], Callable[[Any, Event, Names], Iterable[Said]]] = {
    facts.EntriesEnqueued: _enqueued,
    facts.EntriesClaimed: _claimed,
    facts.EntriesCompleted: _completed,
    facts.EntriesReturned: _returned,
    facts.EntriesExpired: _expired,
    facts.EntriesCancelled: _cancelled,
    facts.CancelRequested: _cancel_requested,
    facts.AgentQuarantined: _quarantined,
    facts.Paused: _paused,
    facts.Resumed: _resumed,
    facts.LimitThrottled: _throttled,
    facts.LedgerWarned: _warned,
    facts.LedgerBreached: _breached,
    facts.ContextDepleted: _depleted,
    facts.SupervisorMoved: _supervisor,
    facts.TriggerFired: _fired,
    facts.PolicyFellBack: _fell_back,
    facts.ClockJumped: _jumped,
    facts.FleetReloaded: _reloaded,
}
