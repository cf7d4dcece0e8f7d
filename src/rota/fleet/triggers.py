"""Triggers enqueue agents without a person. They have no thread of their own; the supervisor calls them.

    fire_due(now)           fire timed triggers (cron, interval)
    fire_for(events)        fire triggers on events (event, after), in the order of the events
    fire_on_start(start)    fire triggers on the start of the fleet (start)
    next_at()               when `fire_due` has something to do

**One entry per firing.** A firing enqueues an entry whose key names the trigger and the instant or event, such as
`trigger:reader:0:1767258000`. If two supervisors of one store fire the same trigger, they create one entry.

**No firing is lost or repeated.** A note in the store holds the progress: the last instant of each timed trigger and
the last event that was handled. It is written after the entries are durable. A supervisor that dies in between fires
again under the same keys, which creates nothing new. Events that fire nothing advance the note every `EVENTS_MAX`
events, so that a restart does not read the whole journal again.

**Missed instants.** A timed trigger that missed several instants, because no supervisor ran or the machine slept, fires
once, for the last of them. With `catch_up = false` it does not fire if that is more than `LATE_MAX_S` ago. A new or
changed trigger has missed nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from rota.clock import Clock
from rota.errors import Conflict, InvalidInput, NotFound
from rota.fleet.agent_settings import settings_of, spec_for
from rota.fleet.config.tables import Fleet
from rota.fleet.trigger_rules import TIMED, latest_by, matches_kind, next_after
from rota.model.events import EntriesCompleted, Event, TriggerFired
from rota.model.work import Agent, Trigger
from rota.service.api import KernelApi

__all__ = ["EVENTS_MAX", "LATE_MAX_S", "Firing", "Triggers"]

EVENTS_MAX = 1_000  # events without a firing after which the progress is saved
LATE_MAX_S = 60.0  # without catch_up, a firing that is later than this is skipped
_log = logging.getLogger("rota.fleet")


class Firing(msgspec.Struct, frozen=True, kw_only=True):
    """One firing of a trigger."""

    agent: str
    key: str
    sched_id: int | None = None
    created: bool = False  # False: the entry existed, from another supervisor or an earlier process
    error: str | None = None  # why the entry could not be enqueued; it is not tried again


class _ActiveTrigger(msgspec.Struct):
    """A trigger of the fleet, with its progress."""

    agent: str
    number: int
    trigger: Trigger
    last_at: float = 0.0  # timed: the last instant that was handled; otherwise the last event before it was added
    next_at: float | None = None

    @property
    def label(self) -> str:
        return f"{self.agent}:{self.number}"

    @property
    def condition(self) -> str:
        """What fires it. A trigger whose condition changes counts as a new one."""
        trigger = self.trigger
        words = {"cron": f"{trigger.cron} {trigger.zone}", "interval": str(trigger.every_s), "event": trigger.event}
        return f"{trigger.kind} {words.get(trigger.kind, trigger.after)}"


class _Progress(msgspec.Struct):
    """The progress of all triggers, as the note in the store holds it."""

    heard: int | None = None  # id of the last handled event
    marks: dict[str, tuple[str, float]] = {}  # by label: the trigger's condition and `last_at`


class Triggers:
    """The triggers of one fleet on one store. Any thread may call any method."""

    def __init__(self, api: KernelApi, clock: Clock, fleet: Fleet) -> None:
        self._api, self._clock = api, clock
        self._lock = threading.RLock()  # one call at a time, so that progress is saved in order
        self._title = ""
        self._active: list[_ActiveTrigger] = []
        self._cursor = self._saved_cursor = 0
        self.reload(fleet)

    def reload(self, fleet: Fleet) -> None:
        """Replace the triggers by those of another file; a trigger that is in both keeps its progress."""
        with self._lock:
            now = self._clock.now()
            self._title = fleet.title
            progress = self._load_progress()
            journal_end = self._api.journal.cursor()
            self._cursor = max(self._cursor, journal_end if progress.heard is None else progress.heard)
            self._active = [
                _ActiveTrigger(agent=name, number=number, trigger=table.trigger)
                for name, agent in fleet.agents.items()
                for number, table in enumerate(agent.triggers)
            ]
            for active in self._active:
                condition, at = progress.marks.get(active.label, ("", 0.0))
                new_at = now if active.trigger.kind in TIMED else float(journal_end)
                self._advance(active, at if condition == active.condition else new_at)
            if self._active:
                self._save_progress()

    def next_at(self) -> float | None:
        """Return when the next timed trigger fires, or None."""
        with self._lock:
            return min((active.next_at for active in self._timed() if active.next_at is not None), default=None)

    @property
    def cursor(self) -> int:
        """The id of the last handled event: where to read on in the journal."""
        return self._cursor

    @property
    def wants_events(self) -> bool:
        """Whether any trigger fires on events."""
        return any(active.trigger.kind in ("event", "after") for active in self._active)

    # --- firing ------------------------------------------------------------------------------------

    def fire_on_start(self, start: str) -> list[Firing]:
        """Fire the triggers on start. `start` identifies this start of the fleet: each fires once for it."""
        with self._lock:
            on_start = [active for active in self._active if active.trigger.kind == "start"]
            return [self._fire(active, start) for active in on_start]

    def fire_due(self, now: float) -> list[Firing]:
        """Fire each timed trigger that is due."""
        with self._lock:
            due = [active for active in self._timed() if active.next_at is not None and active.next_at <= now]
            firings = [firing for active in due if (firing := self._fire_timed(active, now)) is not None]
            if due:
                self._save_progress()
            return firings

    def fire_for(self, events: Sequence[Event]) -> list[Firing]:
        """Fire the triggers on these events; events that were handled before are skipped."""
        with self._lock:
            new = [event for event in events if event.event_id > self._cursor]
            firings = [firing for event in new for firing in self._fire_event(event)]
            if new:
                self._cursor = new[-1].event_id
            if firings or self._cursor - self._saved_cursor >= EVENTS_MAX:
                self._save_progress()
            return firings

    def _fire_timed(self, active: _ActiveTrigger, now: float) -> Firing | None:
        """Fire for the last instant up to now and skip those before it."""
        instant = latest_by(active.trigger, now)
        if instant is None or instant <= active.last_at:  # the wall clock was put back
            self._advance(active, active.last_at)
            return None
        is_missed = now - instant > LATE_MAX_S and not active.trigger.catch_up
        firing = None if is_missed else self._fire(active, f"{instant:.3f}".removesuffix(".000"))
        self._advance(active, instant)
        return firing

    def _fire_event(self, event: Event) -> Iterator[Firing]:
        for active in self._waiting_for("event", event):
            if matches_kind(active.trigger.event or "", event.kind):
                body = {"event_id": event.event_id, "kind": event.kind, "pid": event.pid, "payload": event.payload}
                yield self._fire(active, str(event.event_id), body, cause=event.event_id)
        if event.kind == EntriesCompleted.kind and (followers := self._waiting_for("after", event)):
            yield from self._fire_after(event, followers)

    def _waiting_for(self, kind: str, event: Event) -> list[_ActiveTrigger]:
        """The triggers of a kind that were added before the event."""
        return [active for active in self._active if active.trigger.kind == kind and event.event_id > active.last_at]

    def _fire_after(self, event: Event, followers: list[_ActiveTrigger]) -> Iterator[Firing]:
        for sched_id in _completed(event):
            try:
                name = self._api.agents.get(self._api.queue.get(sched_id).pid).name
            except NotFound:  # the entry was pruned
                continue
            for active in followers:
                if active.trigger.after == name:
                    body = {"event_id": event.event_id, "agent": name, "sched_id": sched_id}
                    yield self._fire(active, f"{event.event_id}.{sched_id}", body, cause=event.event_id)

    def _fire(
        self, active: _ActiveTrigger, moment: str, event: dict[str, Any] | None = None, cause: int | None = None
    ) -> Firing:
        """Enqueue an entry and record the firing. An entry that can never be enqueued is logged and skipped."""
        key = f"trigger:{active.label}:{moment}"
        try:
            agent = self._agent(active.agent)
            payload = dict(active.trigger.payload)
            if active.trigger.event_as is not None and event is not None:
                payload[active.trigger.event_as] = event
            options: dict[str, Any] = {} if active.trigger.priority is None else {"priority": active.trigger.priority}
            if cause is not None:
                options["causation_id"] = f"event:{cause}"
            spec = spec_for(agent, settings_of(agent), payload, key=key, trigger=active.trigger.kind, **options)
            sched_id, created = self._api.queue.enqueue_unique(spec, dedupe_by=("key",))
            self._api.journal.record(TriggerFired(trigger=key, sched_id=sched_id, created=created), pid=agent.pid)
        except (InvalidInput, NotFound, Conflict) as problem:
            _log.warning("trigger of agent %s fired and could not enqueue %s: %s", active.agent, key, problem)
            return Firing(agent=active.agent, key=key, error=str(problem))
        return Firing(agent=active.agent, key=key, sched_id=sched_id, created=created)

    def _agent(self, name: str) -> Agent:
        """Return the living agent of a name."""
        found = self._api.agents.find(name)
        if not found:
            raise NotFound(f"no agent is named {name!r}", hint="Apply the fleet file again: `rota reload`.")
        return found[0]

    # --- progress ----------------------------------------------------------------------------------

    def _timed(self) -> Iterable[_ActiveTrigger]:
        return (active for active in self._active if active.trigger.kind in TIMED)

    def _advance(self, active: _ActiveTrigger, at: float) -> None:
        active.last_at = at
        active.next_at = next_after(active.trigger, at) if active.trigger.kind in TIMED else None

    def _load_progress(self) -> _Progress:
        return msgspec.convert(self._api.journal.recall(f"triggers:{self._title}") or {}, _Progress)

    def _save_progress(self) -> None:
        """Write the note if it changes. Where another supervisor is further, its progress is kept."""
        stored = self._load_progress()
        marks = {
            active.label: (active.condition, active.last_at)
            for active in self._active
            if active.trigger.kind != "start"
        }
        for label, (condition, at) in stored.marks.items():
            if label in marks and marks[label][0] == condition:
                marks[label] = (condition, max(at, marks[label][1]))
        progress = _Progress(max(self._cursor, stored.heard or 0), marks)
        if progress != stored:
            self._api.journal.remember(f"triggers:{self._title}", msgspec.to_builtins(progress))
        self._saved_cursor = self._cursor


def _completed(event: Event) -> list[int]:
    """The entries of an event that completed successfully."""
    return [entry[0] for entry in event.payload.get("entries", []) if entry[1] == "completed"]
