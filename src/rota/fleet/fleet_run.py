"""A fleet file, running: the store agrees with it, its triggers fire, its agents run, and it can be read anew.

A reload changes nothing that runs: what the file says is compared with the store, and only the difference is applied.
Running work goes on under the plan it began with; the next run of an agent has the new one. A file that cannot be read
leaves everything as it is, and says why.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from rota.errors import RotaError
from rota.fleet.config.apply import apply
from rota.fleet.config.changes import Changes
from rota.fleet.config.file import load
from rota.fleet.config.tables import Fleet
from rota.fleet.name_lock import held_name
from rota.fleet.supervisor import Settings, Supervisor
from rota.fleet.triggers import Triggers
from rota.model.events import Event
from rota.policy import registry
from rota.service.api import Desk
from rota.service.dispatcher import Dispatcher
from rota.service.policy_in_force import announce

__all__ = ["RELOAD", "FleetRun", "ask_for_reload"]

RELOAD = "fleet.reload"  # the event that asks every supervisor of a fleet to read its file anew
_log = logging.getLogger("rota.runtime")


def ask_for_reload(desk: Desk, by: str, title: str | None = None) -> int:
    """Ask whoever runs a fleet on this store to read its file anew; of one title, or of all."""
    return desk.journal.append(None, RELOAD, {"by": by, "fleet": title})


class FleetRun:
    """A fleet at work."""

    def __init__(self, desk: Desk, fleet: Fleet, **overrides: Any) -> None:
        self.desk = desk
        self.fleet = fleet
        self._overrides = overrides  # settings of the command line: they outlast a reload
        with self._name():
            pass  # whoever is started twice by mistake changes nothing, neither in the store
        self.changes = self._apply(fleet)
        self._announce_policy(fleet)
        self.supervisor = Supervisor(desk, self._settings(fleet), functions={})
        self._triggers = Triggers(desk, desk.clock, fleet)
        self.supervisor.add_duty(_FleetDuty(desk, self._triggers, self._reload_if_asked))

    def run(self, *, until_idle: bool = False, handles_signals: bool = False) -> int:
        """Run the fleet; the answer is how many runs have ended."""
        with self._name(), self._on_hangup() if handles_signals else nullcontext():
            self._triggers.begin(self.supervisor.incarnation)
            return self.supervisor.run(until_idle=until_idle, handles_signals=handles_signals)

    def _name(self) -> AbstractContextManager[None]:
        return held_name(_beside(self.fleet, "workers"), self._settings(self.fleet).worker_id)

    def reload(self) -> Changes | None:
        """Read the file anew and apply the difference; None, and a line in the log, if it cannot be."""
        try:
            fleet = load(self.fleet.path)
            changes = self._apply(fleet)
            self._triggers.reload(fleet)
            self._use_policy(fleet)
            self.supervisor.resize(self._settings(fleet).slots)
        except RotaError as problem:
            _log.error("the fleet file was not reloaded: %s", problem)
            return None
        told = [*map(str, changes), *_changes_here(self.fleet, fleet)]
        self.fleet = fleet
        _log.info("reloaded %s: %s", fleet.path, ", ".join(told) or "nothing changed")
        return changes

    def _apply(self, fleet: Fleet) -> Changes:
        changes = apply(self.desk, fleet)
        if changes:
            self.desk.journal.record(changes.fact())
        return changes

    def _use_policy(self, fleet: Fleet) -> None:
        """An embedded desk goes on with the file's policy; a daemon's policy is the daemon's."""
        if isinstance(self.desk, Dispatcher) and self.desk.policy.name != fleet.policy_name:
            self.desk.policy = registry.make(fleet.policy_name, **fleet.policy_params)
            self._announce_policy(fleet)

    def _announce_policy(self, fleet: Fleet) -> None:
        if isinstance(self.desk, Dispatcher):
            announce(self.desk.journal, fleet.policy_name, by=f"fleet {fleet.title}", params=fleet.policy_params)

    def _settings(self, fleet: Fleet) -> Settings:
        preemption = fleet.scheduling.preemption
        said: dict[str, Any] = {
            "slots": fleet.slots,
            "worker_id": fleet.worker_id,
            "preemption_marks": () if preemption is None else preemption.bands,
            "preemption_grace_s": None if preemption is None else preemption.grace_s,
            "logs_max": fleet.logs_max,
            "logs": _beside(fleet, "logs"),
        }
        return Settings(**(said | self._overrides))

    def _reload_if_asked(self, events: Sequence[Event]) -> None:
        asked = [event.payload.get("fleet") for event in events if event.kind == RELOAD]
        if any(title in (None, self.fleet.title) for title in asked):
            self.reload()

    @contextmanager
    def _on_hangup(self) -> Iterator[None]:
        """SIGHUP asks for a reload, on the watch's thread like everybody else's wish."""

        def ask(_number: int, _frame: object) -> None:
            # not on this thread, which may be in the middle of a write
            asks = partial(ask_for_reload, self.desk, "SIGHUP", self.fleet.title)
            threading.Thread(target=asks, daemon=True).start()

        before = signal.signal(signal.SIGHUP, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGHUP, before)


def _beside(fleet: Fleet, what: str) -> str:
    """A folder beside the store, or beside the fleet file if the store is a daemon's."""
    return fleet.at(f"rota-{what}") if ":" in fleet.store_path else f"{fleet.store_path}-{what}"


def _changes_here(before: Fleet, after: Fleet) -> Iterator[str]:
    """What a file changes in this supervisor alone, and not in the store."""
    for field, old, new in (
        ("slots", before.slots, after.slots),
        ("policy", before.policy_name, after.policy_name),
    ):
        if old != new:
            yield f"{field} {old} → {new}"
    later = {
        "kinds of slots": set(before.slot_kinds) != set(after.slot_kinds),
        "store": before.store != after.store,
        "worker_id": before.worker_id != after.worker_id,
        "preemption": before.scheduling.preemption != after.scheduling.preemption,
        "logs_max": before.logs_max != after.logs_max,
    }
    yield from (f"{field} (from the next start on)" for field, changes in later.items() if changes)


class _FleetDuty:
    """The fleet's part of the watch: triggers and wishes to reload."""

    kinds = (RELOAD,)

    def __init__(self, desk: Desk, triggers: Triggers, reload_if_asked: Callable[[Sequence[Event]], None]) -> None:
        self._desk = desk
        self._triggers = triggers
        self._reload_if_asked = reload_if_asked

    def hear(self, events: Sequence[Event]) -> None:
        self._reload_if_asked(events)
        # triggers follow from a cursor of their own, which outlives a restart
        while self._triggers.wants_events and (fresh := self._desk.journal.tail(self._triggers.cursor)):
            self._triggers.hear(fresh)

    def next_at(self) -> float | None:
        return self._triggers.next_at()

    def due(self, now: float) -> None:
        self._triggers.due(now)
