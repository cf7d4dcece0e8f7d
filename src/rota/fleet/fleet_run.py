"""A running fleet: applies its file to the store, fires its triggers, runs its agents and reloads the file on request.

A reload does not interrupt runs: the file is compared with the store and only the differences are applied. A run in
progress keeps the settings it started with; the agent's next run has the new ones. A file that is invalid changes
nothing, and the log says what is wrong with it.

Supervisors of one fleet are meant to have the same file, on one host or on many. Each notes in the store which file it
has applied, and logs a warning if another one that is alive has applied a different one (`FileComparison`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from rota.errors import RotaError
from rota.fleet.config.apply import apply_fleet
from rota.fleet.config.changes import FleetChanges
from rota.fleet.config.functions import put_on_path
from rota.fleet.config.loader import load_fleet
from rota.fleet.config.tables import Fleet, FleetFile, WorktreesTable
from rota.fleet.idle import IdleRule
from rota.fleet.notes import read_note
from rota.fleet.run_summary import RunSummary
from rota.fleet.signals import acting_on
from rota.fleet.supervisor import Supervisor, SupervisorSettings
from rota.fleet.triggers import Triggers
from rota.fleet.worker_lock import hold_worker_id
from rota.model.agent_names import agent_in_project
from rota.model.events import Event, FleetReloadRequested
from rota.service.api import SchedulerApi
from rota.service.dispatcher import Dispatcher
from rota.service.outages import call_through_outage
from rota.service.store_policies import FORGET
from rota.store.addresses import host_path, is_postgres

__all__ = ["FleetRun", "request_reload", "use_policy"]

TRIGGERING_MAX = 100  # events that triggers handle together: a supervisor that stops does so between two such batches
COMPARE_AFTER_S = 2.0  # after a reload: then the other supervisors have reloaded too
_OWN_FIELDS = ("store", "slots", "worker_id", "logs", "logs_max", "logs_bytes_max")  # each supervisor has its own
_DIGEST_CHARS = 16
_DIFFERENT_FILES = (
    "the fleet file %s differs from that of the supervisor on %s (pid %s, %s); the one that is applied last counts, so "
    "give both the same"
)
_log = logging.getLogger("rota.fleet")


def request_reload(api: SchedulerApi, by: str, title: str | None = None) -> int:
    """Ask the supervisors of a fleet (default: of all fleets on the store) to reload; return the event's id."""
    return api.journal.record(FleetReloadRequested(by=by, fleet=title))


class FleetRun:
    """A fleet that is applied to a store and ready to run."""

    def __init__(self, api: SchedulerApi, fleet: Fleet, **overrides: Any) -> None:
        self.api = api
        self.fleet = fleet
        self._overrides = overrides  # settings of the command line; they stay in force after a reload
        with self._worker_lock(), self._worker_id_on_hosts():
            pass  # a fleet that is started twice by mistake is refused before it changes the store
        call_through_outage(api.clock, api.journal.cursor, lambda: False)  # its daemon may be started after it
        self._comparison = FileComparison(api)
        put_on_path(fleet.folder)
        use_policy(api, fleet)
        self._comparison.start(fleet)
        self.changes = self._apply(fleet)
        self.supervisor = Supervisor(api, self._settings(fleet), functions={})
        self._watch_worktrees(fleet)
        self._hook_pids = _hook_pids(api, fleet)
        self._hook_loop = self.supervisor.serve_hooks(lambda: self._hook_pids)
        self._triggers = Triggers(api, api.clock, fleet, fleet.shown_store)
        steps = (self._reload_on_request, self._hook_loop.nudge)
        task = FleetTask(api, self._triggers, self._comparison, *steps, is_stopping=lambda: self.supervisor.is_stopping)
        self.supervisor.add_background_task(task)

    def run(self, *, until_idle: bool | IdleRule = False, handles_signals: bool = False) -> RunSummary:
        """Run the fleet; return what was done and, with `until_idle`, what is left."""
        with self._worker_lock(), self._reload_on_hangup() if handles_signals else nullcontext():
            self._triggers.fire_on_start(self.supervisor.incarnation)
            return self.supervisor.run(until_idle=until_idle, handles_signals=handles_signals)

    def _worker_lock(self) -> AbstractContextManager[None]:
        return hold_worker_id(_folder_beside_store(self.fleet, "workers"), self._settings(self.fleet).worker_id)

    def _worker_id_on_hosts(self) -> AbstractContextManager[None]:
        """Hold the id over all hosts of the store; while it runs, the supervisor does."""
        worker_id = self._settings(self.fleet).worker_id
        if worker_id is None or not isinstance(self.api, Dispatcher):
            return nullcontext()
        return self.api.kernel.store.hold_worker_id(worker_id)

    def reload(self, reload_id: int = 0) -> FleetChanges | None:
        """Read the file again and apply the differences; None, with an error in the log, if it is invalid.

        `reload_id` is the event that asked for it.
        """
        try:
            fleet = load_fleet(self.fleet.path)
            use_policy(self.api, fleet)
            self._comparison.reload(fleet, reload_id)
            changes = self._apply(fleet)
            self._triggers.reload(fleet)
            self._hook_pids = _hook_pids(self.api, fleet)
            self.supervisor.resize(self._settings(fleet).slots)
            self._watch_worktrees(fleet)
        except RotaError as problem:
            _log.error("fleet file not reloaded: %s", problem)
            return None
        messages = [*map(str, changes), *_supervisor_changes(self.fleet, fleet)]
        self.fleet = fleet
        _log.info("reloaded %s: %s", fleet.path, ", ".join(messages) or "nothing changed")
        return changes

    def _apply(self, fleet: Fleet) -> FleetChanges:
        changes = apply_fleet(self.api, fleet)
        if changes:
            self.api.journal.record(changes.to_event())
        return changes

    def _watch_worktrees(self, fleet: Fleet) -> None:
        """Remove what an earlier supervisor left of the worktrees of entries that have ended."""
        for name, project in fleet.projects.items():
            if isinstance(project.workspaces, WorktreesTable):
                worktrees = project.workspaces.settings(name, fleet.resolve)
                if worktrees is not None and worktrees.per == "entry":
                    self.supervisor.worktrees.watch(worktrees.folder)

    def _settings(self, fleet: Fleet) -> SupervisorSettings:
        preemption = fleet.scheduling.preemption
        settings: dict[str, Any] = {
            "slots": fleet.slots,
            "worker_id": fleet.worker_id,
            "preemption_thresholds": () if preemption is None else preemption.bands,
            "preemption_grace_s": None if preemption is None else preemption.grace_s,
            "logs_max": fleet.logs_max,
            "logs_bytes_max": int(fleet.logs_bytes_max),
            "logs": None if fleet.logs is None else fleet.resolve(fleet.logs),
            "ray": fleet.ray.cluster,
        }
        return SupervisorSettings(**(settings | self._overrides))

    def _reload_on_request(self, events: Sequence[Event]) -> None:
        asked = [event for event in events if event.kind == FleetReloadRequested.kind]
        ours = [event.event_id for event in asked if event.payload.get("fleet") in (None, self.fleet.title)]
        if ours:
            self.reload(ours[-1])

    def _reload_on_hangup(self) -> AbstractContextManager[None]:
        """Make SIGHUP request a reload, which the background thread then does like any other request."""
        return acting_on([signal.SIGHUP], lambda _signal: request_reload(self.api, "SIGHUP", self.fleet.title))


def use_policy(api: SchedulerApi, fleet: Fleet) -> None:
    """Make the file's policy the one of the store; raises `PolicyDiffers` if another author has given another.

    A file without a policy says nothing about it, and takes back what it said before.
    """
    by, known = fleet.author, api.policies.get()
    own = known.set_by == by
    if fleet.policy is not None:
        api.policies.set(fleet.policy_name, fleet.policy_params, isolation=fleet.policy_isolation, by=by, replace=own)
    elif own:
        api.policies.set(FORGET, by=by)
    if fleet.scheduling.share_by is not None:
        api.policies.set(share_by=fleet.scheduling.share_by, by=by, replace=known.share_by_set_by == by)


def _hook_pids(api: SchedulerApi, fleet: Fleet) -> list[int]:
    """The agents of a fleet's hooks, after it was applied."""
    found = (agent_in_project(api.agents.find(name), None) for name in fleet.hook_agents)
    return [agent.pid for agent in found if agent is not None]


def _folder_beside_store(fleet: Fleet, suffix: str) -> str:
    """A folder beside the store; beside the fleet file if the store is at a daemon."""
    if is_postgres(fleet.store_path):
        return f"{host_path(fleet.store_path)}-{suffix}"
    return fleet.resolve(f"rota-{suffix}") if ":" in fleet.store_path else f"{fleet.store_path}-{suffix}"


def _supervisor_changes(before: Fleet, after: Fleet) -> Iterator[str]:
    """What a new file changes in this supervisor and not in the store."""
    for field, old, new in (
        ("slots", before.slots, after.slots),
        ("policy", before.policy_text, after.policy_text),
    ):
        if old != new:
            yield f"{field} {old} → {new}"
    at_next_start = {
        "kinds of slots": set(before.slot_kinds) != set(after.slot_kinds),
        "store": before.store != after.store,
        "worker_id": before.worker_id != after.worker_id,
        "preemption": before.scheduling.preemption != after.scheduling.preemption,
        "logs_max": before.logs_max != after.logs_max,
        "logs_bytes_max": before.logs_bytes_max != after.logs_bytes_max,
        "logs": before.logs != after.logs,
        "ray": before.ray != after.ray,
    }
    yield from (f"{field} (takes effect at the next start)" for field, differs in at_next_start.items() if differs)


class _AppliedFile(msgspec.Struct, frozen=True):
    """Which supervisor applied a file of the fleet last; a note in the store."""

    host: str = ""
    os_pid: int = 0
    file: str = ""
    digest: str = ""  # of what the file says for all supervisors
    reload_id: int = 0  # the event that asked for it; 0: the supervisor started


class FileComparison:
    """Compares the file of a supervisor with what another one has applied.

    When it starts, with the last one. When all reload, each replaces the note of the one before; a moment later, those
    whose note was replaced compare.
    """

    def __init__(self, api: SchedulerApi) -> None:
        self._api = api
        self._own: _AppliedFile | None = None
        self._name = ""
        self._compare_at: float | None = None  # monotonic

    def start(self, fleet: Fleet) -> None:
        """Note the file of a supervisor that starts, and compare it."""
        self._note(fleet, 0)
        self._compare(is_start=True)
        self._save()

    def reload(self, fleet: Fleet, reload_id: int) -> None:
        """Note the file of a supervisor that reloads."""
        self._note(fleet, reload_id)
        self._save()
        self._compare_at = self._api.clock.monotonic() + COMPARE_AFTER_S

    def due_in_s(self) -> float | None:
        """How long until it is to compare; None: there is nothing to compare."""
        return None if self._compare_at is None else max(0.0, self._compare_at - self._api.clock.monotonic())

    def compare_if_due(self) -> None:
        """Compare if it is time."""
        if self.due_in_s() == 0.0:
            self._compare_at = None
            self._compare(is_start=False)

    def _note(self, fleet: Fleet, reload_id: int) -> None:
        self._name = f"fleet-file:{fleet.title}"
        self._own = _AppliedFile(socket.gethostname(), os.getpid(), fleet.path, _digest(fleet), reload_id)

    def _save(self) -> None:
        self._api.journal.remember(self._name, msgspec.to_builtins(self._own))

    def _compare(self, *, is_start: bool) -> None:
        own, last = self._own, read_note(self._api, self._name, _AppliedFile)
        if own is None or last.digest == own.digest or not (is_start or last.reload_id == own.reload_id):
            return  # or it has not reloaded yet
        where, workers = (last.host, last.os_pid), self._api.workers.list()
        alive = {(each.host, each.os_pid) for each in workers if each.alive and each.kind == "supervisor"}
        if where in alive and where != (own.host, own.os_pid):
            _log.warning(_DIFFERENT_FILES, own.file, last.host, last.os_pid, last.file)


def _digest(fleet: Fleet) -> str:
    """Return a digest of what a file says for all supervisors of a fleet, with its graphs."""
    given = {field: getattr(fleet, field) for field in FleetFile.__struct_fields__ if field not in _OWN_FIELDS}
    documents = {name: agent.document for name, agent in fleet.graph_agents.items()}
    text = msgspec.json.encode([fleet.title, given, documents], enc_hook=str, order="deterministic")
    return hashlib.sha256(text).hexdigest()[:_DIGEST_CHARS]


class FleetTask:
    """The background task of a fleet: fires triggers and reloads the file on request."""

    kinds = (FleetReloadRequested.kind,)

    def __init__(
        self,
        api: SchedulerApi,
        triggers: Triggers,
        comparison: FileComparison,
        reload_on_request: Callable[[Sequence[Event]], None],
        nudge_hooks: Callable[[], None],
        *,
        is_stopping: Callable[[], bool],
    ) -> None:
        self._is_stopping = is_stopping
        self._api = api
        self._triggers = triggers
        self._comparison = comparison
        self._reload_on_request = reload_on_request
        self._nudge_hooks = nudge_hooks

    def on_events(self, events: Sequence[Event]) -> None:
        self._reload_on_request(events)
        # triggers read the journal from their own cursor, which is kept across restarts
        while self._triggers.wants_events and (end := self._api.journal.cursor()) > self._triggers.cursor:
            new = self._api.journal.tail(self._triggers.cursor, TRIGGERING_MAX, kinds=self._triggers.kinds)
            if not new:
                self._triggers.skip_to(end)
            elif self._triggers.fire_for(new):
                self._nudge_hooks()
            if self._is_stopping():  # a backlog is left to the next supervisor, which goes on from the cursor
                return

    def due_in_s(self) -> float | None:
        waits = (self._triggers.due_in_s(), self._comparison.due_in_s())
        return min((each for each in waits if each is not None), default=None)

    def on_due(self) -> None:
        self._triggers.fire_due()
        self._comparison.compare_if_due()
