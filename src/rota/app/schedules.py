"""Schedules: `@rota.agent(every=…)` and `@rota.agent(cron=…)` enqueue an agent while a supervisor runs.

They are triggers, as in a fleet file (fleet/triggers.py): one entry per instant, however many supervisors run, and
nothing is repeated or lost by a restart. Each agent has its own note of progress in the store, so that programs with
different agents can share a store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rota.app.agent_options import AgentOptions
from rota.app.moments import seconds_of
from rota.errors import InvalidInput
from rota.fleet.runners.calling import parameters_of
from rota.fleet.trigger_rules import EVERY_S_MIN, cron_problem, zone_problem
from rota.fleet.triggers import Firing, Triggers
from rota.model.events import Event
from rota.model.work import Trigger
from rota.service.api import SchedulerApi

__all__ = ["Schedules", "trigger_of"]


def trigger_of(options: AgentOptions, function: Callable[..., Any] | None) -> Trigger | None:
    """Return the trigger that an agent's options ask for, if any; raise `InvalidInput` if it could never work."""
    if "every" in options and "cron" in options:
        raise InvalidInput("an agent has either every or cron", field="cron", hint="Register a second agent.")
    if "every" not in options and "cron" not in options:
        if "zone" in options:
            raise InvalidInput("zone is the time zone of cron, and there is none", field="zone")
        return None
    if function is not None:
        _check_payload(function, options.get("payload") or {})
    if "every" in options:
        every_s = seconds_of("every", options["every"])
        if every_s < EVERY_S_MIN:
            raise InvalidInput(f"every must be at least {EVERY_S_MIN:g} s, not {every_s:g}", field="every")
        return Trigger(kind="interval", every_s=every_s)
    cron: Any = options["cron"]
    zone = options.get("zone", "UTC")
    problem = cron_problem(cron) if isinstance(cron, str) else "it is no text"
    if problem is not None:
        hint = 'Give minute, hour, day, month and weekday: "0 9 * * 1-5" is nine o\'clock from Monday to Friday.'
        raise InvalidInput(f"cron {cron!r} cannot be used: {problem}", field="cron", hint=hint)
    if (wrong := zone_problem(zone)) is not None:
        raise InvalidInput(wrong, field="zone")
    return Trigger(kind="cron", cron=cron, zone=zone)


def _check_payload(function: Callable[..., Any], payload: Mapping[str, Any]) -> None:
    """Refuse a schedule for a function that needs arguments which no schedule gives."""
    missing = [
        parameter.name
        for parameter in parameters_of(function)
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        and parameter.name not in payload
    ]
    if missing:
        text = f"a schedule cannot run {function.__name__}: it needs {', '.join(missing)}"
        raise InvalidInput(text, field="every", hint="Give defaults, or the arguments with payload={…}.")


class _ScheduledTrigger(msgspec.Struct, frozen=True):
    trigger: Trigger


class _ScheduledAgent(msgspec.Struct, frozen=True):
    project: str | None
    triggers: tuple[_ScheduledTrigger, ...]


class _Source(msgspec.Struct, frozen=True):
    """One agent, as a source of triggers."""

    title: str
    agents: dict[str, _ScheduledAgent]


class Schedules:
    """The schedules of a program; a background task of its supervisors. They begin when `start` is called."""

    kinds: tuple[str, ...] = ()  # no events: the schedules depend on time only

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._triggers: dict[str, Triggers] = {}  # by title, of those that have begun

    def add(self, agent: str, project: str | None, trigger: Trigger | None) -> None:
        """Schedule an agent; replaces an earlier schedule of it, None removes it."""
        title = f"agent {agent}" if project is None else f"agent {project}/{agent}"
        self._triggers.pop(title, None)
        self._sources.pop(title, None)
        if trigger is not None:
            self._sources[title] = _Source(title, {agent: _ScheduledAgent(project, (_ScheduledTrigger(trigger),))})

    def include(self, other: Schedules) -> None:
        """Have the schedules of another program, too."""
        self._sources |= other._sources

    def start(self, api: SchedulerApi) -> None:
        """Begin the schedules that have not begun, or continue them where an earlier process was."""
        for title, source in self._sources.items():
            if title not in self._triggers:
                self._triggers[title] = Triggers(api, api.clock, source)

    def on_events(self, events: Sequence[Event]) -> None:
        """Nothing: see `kinds`."""

    def due_in_s(self) -> float | None:
        """Return how long until the next schedule is due."""
        waits = [due_s for triggers in self._triggers.values() if (due_s := triggers.due_in_s()) is not None]
        return min(waits, default=None)

    def on_due(self) -> None:
        """Enqueue what is due."""
        self.fire_due()

    def fire_due(self) -> list[Firing]:
        """Enqueue what is due and return what fired."""
        return [firing for triggers in self._triggers.values() for firing in triggers.fire_due()]
