"""Triggers enqueue agents without a person. They have no thread of their own; the supervisor calls them.

    fire_due()              fire timed triggers (cron, interval)
    fire_for(events)        fire triggers on events (event, after), in the order of the events
    fire_on_start(start)    fire triggers on the start of the fleet (start)
    due_in_s()              how long until `fire_due` has something to do

**One entry per firing.** A firing enqueues an entry whose key names the trigger and the instant or event, such as
`trigger:reader:0:1767258000`. If two supervisors of one store fire the same trigger, they create one entry.

**No firing is lost or repeated.** A note in the store holds the progress: the last instant of each timed trigger and
the last event that was handled. It is written after the entries are durable. A supervisor that dies in between fires
again under the same keys, which creates nothing new. Events that fire nothing advance the note every `EVENTS_MAX`
events, so that a restart does not read the whole journal again. A supervisor that is asked to stop leaves a backlog of
events to the next one (fleet_run.py).

**Two clocks.** A cron trigger follows the wall clock: it fires when that reaches an instant, and if it is put back, not
again at the same one. An interval has a time of its own, which starts as the wall clock's and then only advances, with
the advancing clock; so a jump of the wall clock neither fires it nor keeps it from firing. The note holds what this
time is ahead of the advancing clock. Without it (after a reboot) the time starts again, at the last instant that was
handled or, if that is later, at the wall clock's; so no key is used twice and it fires within one interval.

**A mark in the future** is what the note has if the wall clock was put back. A cron trigger believes it up to the next
instant at which it fires, which then passes; a later mark would silence it for longer than that, and is replaced by the
present. What fires then has the keys of instants, so those that have an entry already get no second one.

**Projects.** A fleet file belongs to an operator, so a trigger may name an agent of another project (`after`). But an
event of a user's own kind may come from a run, and it brings its payload: such an event fires the triggers of its own
project only, and of those that its project may reach by a grant. Events about no agent fire all.

**Hooks** are agents whose entries are deliveries (hook_rules.py). They are the operator's and hear of every project.

**Missed instants.** A timed trigger that missed several instants, because no supervisor ran or the machine slept, fires
once, for the last of them. With `catch_up = false` it does not fire if that is more than `LATE_MAX_S` ago. A new or
changed trigger has missed nothing, and neither has one whose progress in the note cannot be read: it starts now, and an
event records that the note was ignored.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from rota.clock import Clock
from rota.decoding import convert
from rota.errors import Conflict, InvalidInput, NotFound
from rota.fleet.agent_settings import settings_of, spec_for
from rota.fleet.hook_deliveries import HOOK_WAITING_MAX, HookDeliveries
from rota.fleet.hook_rules import HOOK_PREFIX, HookFilter, kind_of, subjects_of
from rota.fleet.notes import read_note, report_ignored
from rota.fleet.trigger_rules import INSTANT_MAX, TIMED, latest_by, matches_kind, next_after
from rota.model.agent_names import agent_in_project
from rota.model.events import RESERVED_PREFIX, EntriesCompleted, Event, TriggerFired
from rota.model.work import Agent, Trigger
from rota.service.api import KernelApi

__all__ = ["EVENTS_MAX", "LATE_MAX_S", "Firing", "TriggerSource", "Triggers"]

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


class TriggerEntry(Protocol):
    """One trigger of an agent."""

    @property
    def trigger(self) -> Trigger:
        """The trigger."""
        ...


class TriggeredAgent(Protocol):
    """An agent that has triggers."""

    @property
    def project(self) -> str | None:
        """Its project."""
        ...

    @property
    def triggers(self) -> Sequence[TriggerEntry]:
        """What enqueues it."""
        ...


class TriggerSource(Protocol):
    """Where triggers come from: a fleet, or the agents of a Python program."""

    @property
    def title(self) -> str:
        """The name under which the progress of its triggers is stored."""
        ...

    @property
    def agents(self) -> Mapping[str, TriggeredAgent]:
        """Its agents by name."""
        ...


class _ActiveTrigger(msgspec.Struct):
    """A trigger of the fleet, with its progress."""

    agent: str
    project_id: str | None
    number: int
    trigger: Trigger
    follows: tuple[str | None, str] | None = None  # project and name of the agent after which it fires
    last_at: float = 0.0  # timed: the last instant that was handled; otherwise the last event before it was added
    next_at: float | None = None
    offset_s: float = 0.0  # interval: its own time minus the advancing clock

    @property
    def label(self) -> str:
        return f"{self.agent}:{self.number}"

    @property
    def condition(self) -> str:
        """What fires it. A trigger whose condition changes counts as a new one."""
        trigger = self.trigger
        words = {"cron": f"{trigger.cron} {trigger.zone}", "interval": str(trigger.every_s), "event": trigger.event}
        words["hook"] = trigger.event
        return f"{trigger.kind} {words.get(trigger.kind, trigger.after)}"


class _Progress(msgspec.Struct):
    """The progress of all triggers, as the note in the store holds it."""

    heard: int | None = None  # id of the last handled event
    marks: dict[str, tuple[str, float]] = {}  # by label: the trigger's condition and `last_at`
    boot_id: str = ""  # the offsets count within this boot
    offsets: dict[str, float] = {}  # by label, of intervals


class _StoredProgress(msgspec.Struct):
    """The note before its parts are checked."""

    heard: Any = None
    marks: dict[str, Any] = {}
    boot_id: Any = ""
    offsets: dict[str, Any] = {}


def _readable(note: _StoredProgress, journal_end: int) -> tuple[_Progress, list[str]]:
    """Return what can be read of a note, and what is wrong with the rest. No event has an id after `journal_end`."""
    progress = _Progress(None, {})
    problems: list[str] = []
    if isinstance(note.boot_id, str):
        progress.boot_id = note.boot_id
        progress.offsets = {label: float(at) for label, at in note.offsets.items() if type(at) in (int, float)}
    if type(note.heard) is int and note.heard <= journal_end:
        progress.heard = note.heard
    elif note.heard is not None:
        problems.append(f"heard is {note.heard!r}, and the last event is {journal_end}")
    for label, mark in note.marks.items():
        try:
            condition, at = convert(mark, tuple[str, float])
        except msgspec.ValidationError as problem:
            problems.append(f"{label}: {problem}")
            continue
        if condition.startswith(TIMED) or at <= journal_end:
            progress.marks[label] = condition, at
        else:
            problems.append(f"{label}: its mark is event {at:.0f}, and the last event is {journal_end}")
    return progress, problems


class Triggers:
    """The triggers of one fleet on one store. Any thread may call any method."""

    def __init__(self, api: KernelApi, clock: Clock, fleet: TriggerSource, store: str = "") -> None:
        """`store` is the store's address as hooks are told it."""
        self._api, self._clock = api, clock
        self._deliveries = HookDeliveries(api, store)
        self._lock = threading.RLock()  # one call at a time, so that progress is saved in order
        self._title = ""
        self._active: list[_ActiveTrigger] = []
        self._cursor = self._saved_cursor = 0
        self.reload(fleet)

    def reload(self, fleet: TriggerSource) -> None:
        """Replace the triggers by those of another file; a trigger that is in both keeps its progress."""
        with self._lock:
            self._title = fleet.title
            progress = self._load_progress(reports=True)
            journal_end = self._api.journal.cursor()
            self._cursor = max(self._cursor, journal_end if progress.heard is None else progress.heard)
            self._active = [
                _ActiveTrigger(name, agent.project, number, table.trigger, _followed(fleet, table.trigger))
                for name, agent in (*_agents(fleet).items(), *getattr(fleet, "hook_agents", {}).items())
                for number, table in enumerate(agent.triggers)
            ]
            for active in self._active:
                self._start(active, progress, journal_end)
            if self._active:
                self._save_progress()

    def due_in_s(self) -> float | None:
        """Return how long until the next timed trigger fires, or None; a jump of the wall clock may change it."""
        with self._lock:
            waits = [
                at - self._time_of(active) for active in self._timed() if (at := self._next_at(active)) is not None
            ]
            return min(waits, default=None)

    @property
    def cursor(self) -> int:
        """The id of the last handled event: where to read on in the journal."""
        return self._cursor

    @property
    def wants_events(self) -> bool:
        """Whether any trigger fires on events."""
        return any(active.trigger.kind in ("event", "after", "hook") for active in self._active)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of event on which triggers fire; empty: all, because of a prefix."""
        found = set()
        for active in self._active:
            name = EntriesCompleted.kind if active.trigger.kind == "after" else active.trigger.event or ""
            kind = kind_of(name) if active.trigger.kind == "hook" else name
            if kind.endswith("*"):
                return ()
            found.add(kind)
        return tuple(sorted(found - {""}))

    def skip_to(self, event_id: int) -> None:
        """Count the events up to this one as handled: none of them is of the triggers' kinds."""
        with self._lock:
            self._cursor = max(self._cursor, event_id)
            if self._cursor - self._saved_cursor >= EVENTS_MAX:
                self._save_progress()

    # --- firing ------------------------------------------------------------------------------------

    def fire_on_start(self, start: str) -> list[Firing]:
        """Fire the triggers on start. `start` identifies this start of the fleet: each fires once for it."""
        with self._lock:
            on_start = [active for active in self._active if active.trigger.kind == "start"]
            return [self._fire(active, start) for active in on_start]

    def fire_due(self) -> list[Firing]:
        """Fire each timed trigger that is due."""
        with self._lock:
            due = [
                active
                for active in self._timed()
                if (at := self._next_at(active)) is not None and at <= self._time_of(active)
            ]
            firings = [firing for active in due if (firing := self._fire_timed(active)) is not None]
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

    def _fire_timed(self, active: _ActiveTrigger) -> Firing | None:
        """Fire for the last instant up to now and skip those before it."""
        now = self._time_of(active)
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
            if matches_kind(active.trigger.event or "", event.kind) and self._reaches(event, active.project_id):
                body = {"event_id": event.event_id, "kind": event.kind, "pid": event.pid, "payload": event.payload}
                yield self._fire(active, str(event.event_id), body, cause=event.event_id)
        for active in self._waiting_for("hook", event):
            yield from self._fire_hook(active, event)
        if event.kind == EntriesCompleted.kind and (followers := self._waiting_for("after", event)):
            yield from self._fire_after(event, followers)

    def _reaches(self, event: Event, project_id: str | None) -> bool:
        """Whether an event may fire a trigger of a project."""
        if event.pid is None or event.kind.startswith(RESERVED_PREFIX):
            return True
        origin = self._api.agents.get(event.pid).project_id
        if origin == project_id:
            return True
        return any((each.from_project, each.to_project) == (origin, project_id) for each in self._api.projects.grants())

    def _waiting_for(self, kind: str, event: Event) -> list[_ActiveTrigger]:
        """The triggers of a kind that were added before the event."""
        return [active for active in self._active if active.trigger.kind == kind and event.event_id > active.last_at]

    def _fire_after(self, event: Event, followers: list[_ActiveTrigger]) -> Iterator[Firing]:
        for sched_id in _completed(event):
            try:
                agent = self._api.agents.get(self._api.queue.get(sched_id).pid)
            except NotFound:  # the entry was pruned
                continue
            for active in followers:
                if active.follows == (agent.project_id, agent.name):
                    body = {"event_id": event.event_id, "agent": agent.name, "sched_id": sched_id}
                    yield self._fire(active, f"{event.event_id}.{sched_id}", body, cause=event.event_id)

    def _fire_hook(self, active: _ActiveTrigger, event: Event) -> Iterator[Firing]:
        """Enqueue the deliveries of a hook that an event asks for."""
        trigger = active.trigger
        name = active.agent.removeprefix(HOOK_PREFIX)
        wanted = HookFilter(name, trigger.event or "", trigger.only_project, trigger.only_agent)
        if not (subjects := subjects_of(wanted, event)):
            return
        for moment, notice in self._deliveries.of(wanted, event, subjects, active.number):
            yield self._fire(active, moment, notice=notice, cause=event.event_id)
        self._deliveries.drop_oldest(self._agent(active), not_queued=max(0, len(subjects) - HOOK_WAITING_MAX))

    def _fire(
        self,
        active: _ActiveTrigger,
        moment: str,
        event: dict[str, Any] | None = None,
        cause: int | None = None,
        notice: dict[str, Any] | None = None,
    ) -> Firing:
        """Enqueue an entry and record the firing. An entry that can never be enqueued is logged and skipped."""
        owner = active.label if active.project_id is None else f"{active.project_id}/{active.label}"
        key = f"trigger:{owner}:{moment}"
        try:
            agent = self._agent(active)
            payload = dict(active.trigger.payload if notice is None else notice)
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

    def _agent(self, active: _ActiveTrigger) -> Agent:
        """Return the living agent of a trigger: the one of its name in the project that the file gives."""
        agent = agent_in_project(self._api.agents.find(active.agent), active.project_id)
        if agent is None:
            place = "" if active.project_id is None else f" in project {active.project_id!r}"
            text = f"no agent is named {active.agent!r}{place}"
            raise NotFound(text, hint="Apply the fleet file again: `rota reload`.")
        return agent

    # --- progress ----------------------------------------------------------------------------------

    def _timed(self) -> Iterable[_ActiveTrigger]:
        return (active for active in self._active if active.trigger.kind in TIMED)

    def _start(self, active: _ActiveTrigger, progress: _Progress, journal_end: int) -> None:
        """Continue a trigger where the note says that it was; one that is new to the note starts now."""
        condition, at = progress.marks.get(active.label, ("", 0.0))
        is_known = condition == active.condition
        if active.trigger.kind not in TIMED:
            self._advance(active, at if is_known else float(journal_end))
            return
        active.offset_s = self._clock.now() - self._clock.monotonic()
        if is_known and progress.boot_id == self._clock.boot_id():
            active.offset_s = progress.offsets.get(active.label, active.offset_s)
            if not 0 <= self._time_of(active) < INSTANT_MAX:
                active.offset_s = self._clock.now() - self._clock.monotonic()
        self._advance(active, self._time_of(active))
        if is_known:
            self._continue_after(active, at)

    def _continue_after(self, active: _ActiveTrigger, mark: float) -> None:
        """Make a mark of the note the last instant that was handled, if it can be right."""
        now = self._time_of(active)
        if not 0 <= mark < INSTANT_MAX:
            return
        if mark > now and active.trigger.kind == "interval":
            active.offset_s += mark - now
        elif mark > now and mark > (next_after(active.trigger, now) or now):
            return
        if next_after(active.trigger, mark) is not None:
            self._advance(active, mark)

    def _time_of(self, active: _ActiveTrigger) -> float:
        """The time by which a trigger fires: the wall clock's, or the interval's own."""
        if active.trigger.kind == "cron":
            return self._clock.now()
        return self._clock.monotonic() + active.offset_s

    def _next_at(self, active: _ActiveTrigger) -> float | None:
        """When a timed trigger fires next; after the wall clock was put back, that may be earlier than it was."""
        if active.trigger.kind == "cron" and (active.next_at is None or active.last_at > self._clock.now()):
            mark, now = active.last_at, self._clock.now()
            self._advance(active, now)
            self._continue_after(active, mark)
        return active.next_at

    def _advance(self, active: _ActiveTrigger, at: float) -> None:
        active.last_at = at
        active.next_at = next_after(active.trigger, at) if active.trigger.kind in TIMED else None

    def _load_progress(self, *, reports: bool = False) -> _Progress:
        """Read the note; what cannot be true of it is left out, and with `reports` an event says so."""
        name = f"triggers:{self._title}"
        note = read_note(self._api, name, _StoredProgress, reports=reports)
        progress, problems = _readable(note, self._api.journal.cursor())
        if problems and reports:
            report_ignored(self._api, name, "; ".join(problems))
        return progress

    def _save_progress(self) -> None:
        """Write the note if it changes. Where another supervisor is further, its progress is kept."""
        stored = self._load_progress()
        for active in self._active:
            condition, at = stored.marks.get(active.label, ("", 0.0))
            if condition == active.condition and at > active.last_at:
                self._continue_after(active, at) if active.trigger.kind in TIMED else self._advance(active, at)
        marks = {
            active.label: (active.condition, active.last_at)
            for active in self._active
            if active.trigger.kind != "start"
        }
        offsets = {active.label: active.offset_s for active in self._active if active.trigger.kind == "interval"}
        progress = _Progress(max(self._cursor, stored.heard or 0), marks, self._clock.boot_id(), offsets)
        if progress != stored:
            self._api.journal.remember(f"triggers:{self._title}", msgspec.to_builtins(progress))
        self._saved_cursor = self._cursor


def _followed(fleet: TriggerSource, trigger: Trigger) -> tuple[str | None, str] | None:
    """The project and name of the agent of the file after which a trigger fires."""
    return None if trigger.after is None else (_agents(fleet)[trigger.after].project, trigger.after)


def _agents(fleet: TriggerSource) -> Mapping[str, TriggeredAgent]:
    """Return the agents of a source, and its graphs, whose entries are runs."""
    found: Mapping[str, TriggeredAgent] = getattr(fleet, "triggered", fleet.agents)
    return found


def _completed(event: Event) -> list[int]:
    """The entries of an event that completed successfully."""
    return [entry[0] for entry in event.payload.get("entries", []) if entry[1] == "completed"]
