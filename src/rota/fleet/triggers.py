"""Triggers: what enqueues agents without a person. No thread of its own; whoever supervises calls it.

    due(now)        fire what the clock makes due (cron, interval)
    hear(events)    fire what the journal makes due (event, after), in order
    begin(start)    fire what is due when a fleet starts (start)
    next_at()       when `due` is worth calling again

**Once, whoever fires.** A firing is an entry whose key says which trigger and which instant or event, such as
`trigger:reader:0:1767258000`. Two supervisors of one store that both fire make one entry.

**Neither lost nor repeated.** How far it has come (the last instant of each timed trigger, the last event that was
heard) is kept in a note in the store, after the entries are durable. Whoever dies in between fires again under the
same keys, which makes nothing new. Events that concern no trigger are noted every `HEARD_MAX`, so that a restart does
not read the whole journal again.

**Missed.** A timed trigger that missed several instants, because nobody ran or the machine slept, fires once, for the
last of them; with `catch_up = false` not at all if that is more than `LATE_MAX_S` ago. A trigger that is new, or was
changed, missed nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from rota.clock import Clock
from rota.errors import Conflict, InvalidInput, NotFound
from rota.fleet.agent_settings import plan_of, spec_for
from rota.fleet.config.tables import Fleet
from rota.fleet.trigger_times import TIMED, latest_by, next_after
from rota.model.events import EntriesCompleted, Event, TriggerFired
from rota.model.work import Agent, Trigger
from rota.service.api import Registers

__all__ = ["HEARD_MAX", "LATE_MAX_S", "Fired", "Triggers"]

HEARD_MAX = 1_000  # events heard before it is noted, if none of them fired anything
LATE_MAX_S = 60.0  # without catch_up, later than this is missed
_COMPLETED = EntriesCompleted.kind
_log = logging.getLogger("rota.triggers")


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """One firing."""

    agent: str
    key: str
    sched_id: int | None = None
    created: bool = False  # False: another supervisor, or an earlier life, had fired it already
    error: str | None = None  # it could not be enqueued, and never will be


class _Armed(msgspec.Struct):
    """A trigger at work."""

    agent: str
    number: int
    trigger: Trigger
    last_at: float = 0.0  # timed: the last instant that is dealt with; else the last event before it was armed
    next_at: float | None = None

    @property
    def label(self) -> str:
        return f"{self.agent}:{self.number}"

    @property
    def what(self) -> str:
        """What it goes by: one that goes by something else is another trigger."""
        made = self.trigger
        words = {"cron": f"{made.cron} {made.zone}", "interval": str(made.every_s), "event": made.event}
        return f"{made.kind} {words.get(made.kind, made.after)}"


class _Note(msgspec.Struct):
    """How far the triggers have come."""

    heard: int | None = None
    marks: dict[str, tuple[str, float]] = {}  # by label: what it goes by, and its `last_at`


class Triggers:
    """The triggers of one fleet over one store. Any thread may call any method."""

    def __init__(self, desk: Registers, clock: Clock, fleet: Fleet) -> None:
        self._desk, self._clock = desk, clock
        self._lock = threading.RLock()  # one firing at a time: notes are written in the order of what they note
        self._title = ""
        self._armed: list[_Armed] = []
        self._heard = self._noted = 0
        self.reload(fleet)

    def reload(self, fleet: Fleet) -> None:
        """Go on with what another file says; a trigger that is in both goes on where it was."""
        with self._lock:
            now = self._clock.now()
            self._title = fleet.title
            note = self._recall()
            cursor = self._desk.journal.cursor()
            self._heard = max(self._heard, cursor if note.heard is None else note.heard)
            self._armed = [
                _Armed(agent=name, number=number, trigger=table.trigger)
                for name, agent in fleet.agents.items()
                for number, table in enumerate(agent.triggers)
            ]
            for armed in self._armed:
                what, at = note.marks.get(armed.label, ("", 0.0))
                fresh_at = now if armed.trigger.kind in TIMED else float(cursor)
                self._deal(armed, at if what == armed.what else fresh_at)
            if self._armed:
                self._note()

    # --- when --------------------------------------------------------------------------------------

    def next_at(self) -> float | None:
        """When the next timed trigger fires; None if none ever does."""
        with self._lock:
            return min((armed.next_at for armed in self._timed() if armed.next_at is not None), default=None)

    @property
    def cursor(self) -> int:
        """The last event that was heard: where to follow the journal from."""
        return self._heard

    @property
    def wants_events(self) -> bool:
        """Whether any trigger goes by the journal."""
        return any(armed.trigger.kind in ("event", "after") for armed in self._armed)

    # --- firing ------------------------------------------------------------------------------------

    def begin(self, start: str) -> list[Fired]:
        """Fire the triggers on start, once for each start of the fleet, by whatever text tells starts apart."""
        with self._lock:
            started = [armed for armed in self._armed if armed.trigger.kind == "start"]
            return [self._fire(armed, start) for armed in started]

    def due(self, now: float) -> list[Fired]:
        """Fire each timed trigger whose instant has come."""
        with self._lock:
            late = [armed for armed in self._timed() if armed.next_at is not None and armed.next_at <= now]
            fired = [each for armed in late if (each := self._fire_timed(armed, now)) is not None]
            if late:
                self._note()
            return fired

    def hear(self, events: Sequence[Event]) -> list[Fired]:
        """Fire what these events are awaited by; those that were heard before are passed over."""
        with self._lock:
            fresh = [event for event in events if event.event_id > self._heard]
            fired = [each for event in fresh for each in self._fire_for(event)]
            if fresh:
                self._heard = fresh[-1].event_id
            if fired or self._heard - self._noted >= HEARD_MAX:
                self._note()
            return fired

    def _fire_timed(self, armed: _Armed, now: float) -> Fired | None:
        """Fire for the last instant up to now, and be done with all before it."""
        instant = latest_by(armed.trigger, now)
        if instant is None or instant <= armed.last_at:  # the wall clock was put back
            self._deal(armed, armed.last_at)
            return None
        missed = now - instant > LATE_MAX_S and not armed.trigger.catch_up
        fired = None if missed else self._fire(armed, f"{instant:.3f}".removesuffix(".000"))
        self._deal(armed, instant)
        return fired

    def _fire_for(self, event: Event) -> Iterator[Fired]:
        for armed in self._listening("event", event):
            if _matches(armed.trigger.event or "", event.kind):
                said = {"event_id": event.event_id, "kind": event.kind, "pid": event.pid, "payload": event.payload}
                yield self._fire(armed, str(event.event_id), said, cause=event.event_id)
        if event.kind == _COMPLETED and (followers := self._listening("after", event)):
            yield from self._fire_after(event, followers)

    def _listening(self, kind: str, event: Event) -> list[_Armed]:
        """The triggers of a kind that were armed before an event happened."""
        return [armed for armed in self._armed if armed.trigger.kind == kind and event.event_id > armed.last_at]

    def _fire_after(self, event: Event, followers: list[_Armed]) -> Iterator[Fired]:
        for sched_id in _completed(event):
            try:
                name = self._desk.agents.get(self._desk.queue.get(sched_id).pid).name
            except NotFound:  # pruned since
                continue
            for armed in followers:
                if armed.trigger.after == name:
                    said = {"event_id": event.event_id, "agent": name, "sched_id": sched_id}
                    yield self._fire(armed, f"{event.event_id}.{sched_id}", said, cause=event.event_id)

    def _fire(self, armed: _Armed, moment: str, said: dict[str, Any] | None = None, cause: int | None = None) -> Fired:
        """Enqueue, and record that it was. What can never be enqueued is told and passed over; the rest is raised."""
        key = f"trigger:{armed.label}:{moment}"
        try:
            agent = self._agent(armed.agent)
            payload = dict(armed.trigger.payload)
            if armed.trigger.event_as is not None and said is not None:
                payload[armed.trigger.event_as] = said
            more: dict[str, Any] = {} if armed.trigger.priority is None else {"priority": armed.trigger.priority}
            if cause is not None:
                more["causation_id"] = f"event:{cause}"
            spec = spec_for(agent, plan_of(agent), payload, key=key, trigger=armed.trigger.kind, **more)
            sched_id, created = self._desk.queue.enqueue_unique(spec, dedupe_by=("key",))
            self._desk.journal.record(TriggerFired(trigger=key, sched_id=sched_id, created=created), pid=agent.pid)
        except (InvalidInput, NotFound, Conflict) as problem:
            _log.warning("%s could not be enqueued: %s", key, problem)
            return Fired(agent=armed.agent, key=key, error=str(problem))
        return Fired(agent=armed.agent, key=key, sched_id=sched_id, created=created)

    # --- who, and how far --------------------------------------------------------------------------

    def _timed(self) -> Iterable[_Armed]:
        return (armed for armed in self._armed if armed.trigger.kind in TIMED)

    def _deal(self, armed: _Armed, at: float) -> None:
        armed.last_at = at
        armed.next_at = next_after(armed.trigger, at) if armed.trigger.kind in TIMED else None

    def _agent(self, name: str) -> Agent:
        """The living agent of a name, as it is now."""
        found = self._desk.agents.find(name)
        if not found:
            raise NotFound(f"no agent is called {name!r}", hint="Apply the fleet file first.")
        return found[0]

    def _recall(self) -> _Note:
        return msgspec.convert(self._desk.journal.recall(f"triggers:{self._title}") or {}, _Note)

    def _note(self) -> None:
        """Write down how far this one has come, unless another supervisor is further or it says nothing new."""
        known = self._recall()
        marks = {armed.label: (armed.what, armed.last_at) for armed in self._armed if armed.trigger.kind != "start"}
        for label, (what, at) in known.marks.items():
            if label in marks and marks[label][0] == what:
                marks[label] = (what, max(at, marks[label][1]))
        note = _Note(max(self._heard, known.heard or 0), marks)
        if note != known:
            self._desk.journal.remember(f"triggers:{self._title}", msgspec.to_builtins(note))
        self._noted = self._heard


def _matches(pattern: str, kind: str) -> bool:
    return kind.startswith(pattern[:-1]) if pattern.endswith("*") else kind == pattern


def _completed(event: Event) -> list[int]:
    """The entries that completed well in an event about endings."""
    return [entry[0] for entry in event.payload.get("entries", []) if entry[1] == "completed"]
