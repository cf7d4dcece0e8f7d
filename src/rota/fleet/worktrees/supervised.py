"""The worktrees of a supervisor's runs.

A worktree is made on the thread of its run, so a slow git delays only that run. It is removed on a thread of its own
after the entry's end was committed. What another supervisor left (it was killed, or the entry was cancelled while it
waited for its retry) is found by a sweep: at the start, and every `SWEEP_S` while there are worktrees of entries that
have not ended.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from rota.errors import RotaError, WorkspaceExists
from rota.fleet.live_run import LiveRun
from rota.fleet.runners.contract import RunOutcome
from rota.fleet.runners.resources import RunnerResources
from rota.fleet.worktrees.git import Git, GitFailed, WorktreeStopped
from rota.fleet.worktrees.preparation import prepare
from rota.fleet.worktrees.records import locked, read_record
from rota.fleet.worktrees.removal import WorktreeRemoval
from rota.model.events import Event
from rota.model.work import Agent, ReadyEntry
from rota.model.worktrees import WorktreeSettings
from rota.service.api import SchedulerApi
from rota.store.author import keeping_author

__all__ = ["SupervisedWorktrees"]

SWEEP_S = 60.0
CLOSE_S = 30.0  # how long a supervisor that ends waits for removals; the next one does the rest
_log = logging.getLogger("rota.fleet")


class SupervisedWorktrees:
    """Makes the worktrees of runs, and removes those of ended entries. It is a background task of the supervisor."""

    kinds: tuple[str, ...] = ()

    def __init__(self, api: SchedulerApi, resources: RunnerResources) -> None:
        self._api = api
        self._resources = resources
        self._folders: set[str] = set()  # that may have worktrees of entries
        self._sweep_at: float | None = None  # on the advancing clock
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        git = Git(resources, pause=self._closing.wait)
        self._removal = WorktreeRemoval(api, git, resources, api.clock)

    def watch(self, folder: str) -> None:
        """Look for worktrees of ended entries in a folder, soon and from time to time."""
        with self._lock:
            self._folders.add(folder)
            self._sweep_at = self._api.clock.monotonic()

    # --- runs ------------------------------------------------------------------------------------

    @staticmethod
    def path_for(entry: ReadyEntry, agent: Agent, settings: WorktreeSettings | None) -> str | None:
        """Return the folder of an entry's own or its agent's worktree; None if it is that of its workspace."""
        if settings is None or entry.project_id is None or entry.workspace is None:
            return None
        wanted = settings.workspace_id(entry.project_id, agent.name)
        is_own = wanted is not None and entry.workspace == wanted.replace("{entry}", str(entry.sched_id))
        return settings.path(agent.name, entry.sched_id) if is_own else None

    def execute(self, run: LiveRun, work: Callable[[], RunOutcome]) -> RunOutcome:
        """Do a run's work in its worktree, which is made first and locked meanwhile."""
        settings, path = run.assignment.settings.worktree, run.assignment.workspace
        if settings is None or path is None or not self._is_for(run, settings, path):
            return work()
        git = Git(self._resources, started=run.preparing, pause=run.wait_for_stop)
        try:
            with locked(path, run.wait_for_stop) as is_held:
                failed = self._prepare(run, settings, path, git) if is_held else _failed(f"{path} is in use")
                run.preparing(None)
                if run.stop_reason is not None:
                    return RunOutcome(exit_kind="cancelled")
                return work() if failed is None else failed
        except WorktreeStopped:
            return RunOutcome(exit_kind="cancelled")
        except (GitFailed, OSError) as problem:
            return _failed(str(problem))
        finally:
            run.preparing(None)

    def _is_for(self, run: LiveRun, settings: WorktreeSettings, path: str) -> bool:
        """Whether the settings are about the folder of this run: its entry may name another workspace."""
        return settings.per == "slot" or path == self.path_for(run.entry, run.assignment.agent, settings)

    def _prepare(self, run: LiveRun, settings: WorktreeSettings, path: str, git: Git) -> RunOutcome | None:
        if settings.per == "entry":
            with self._lock:
                self._folders.add(settings.folder)
            self._register(run.entry, path)
            if read_record(path) is None:
                self._say_what_is_elsewhere(run, settings)
        return prepare(run, settings, path, git, resources=self._resources, has_ended=self._removal.has_ended)

    def _say_what_is_elsewhere(self, run: LiveRun, settings: WorktreeSettings) -> None:
        """An entry that another host has claimed before may have unfinished work there, which does not come here."""
        entry, hosts = run.entry, dict[str, None]()
        try:
            for attempt in range(max(1, entry.attempt - 1), entry.attempt + 1):
                places = self._api.logs.places(entry.sched_id, attempt)
                hosts |= {place.host: None for place in places if not place.is_here}
        except RotaError:  # the run does not need to know it
            return
        if hosts:
            where = f"the worktree of entry {entry.sched_id} is on host {', '.join(hosts)}"
            run.log(f"rota: {where}; this run begins again from {settings.branch}\n".encode())

    def _register(self, entry: ReadyEntry, path: str) -> None:
        """Show the worktree among the workspaces of its project."""
        assert entry.workspace is not None and entry.project_id is not None  # noqa: S101, PT018  # see path_for
        try:
            self._api.projects.add_workspace(entry.workspace, entry.project_id, path, source="entry")
        except WorkspaceExists:
            pass  # of an earlier attempt
        except RotaError as problem:  # only the list of workspaces lacks it
            _log.warning("worktree %s is not among the workspaces of its project: %s", path, problem.message)

    def ended(self, run: LiveRun) -> None:
        """A run's end is committed: remove or keep its worktree, if its entry has ended for good."""
        settings, path = run.assignment.settings.worktree, run.assignment.workspace
        if settings is not None and path is not None and settings.per == "entry":
            self._do(lambda: self._settle(path))

    def _settle(self, path: str) -> None:
        if not self._removal.settle(path):
            self._plan_sweep()  # it is retried, or was given back

    # --- the sweep -------------------------------------------------------------------------------

    def on_events(self, events: Sequence[Event]) -> None:
        """It follows no events."""

    def due_in_s(self) -> float | None:
        """How long until the next sweep; None while there is nothing to look for."""
        with self._lock:
            return None if self._sweep_at is None else max(0.0, self._sweep_at - self._api.clock.monotonic())

    def on_due(self) -> None:
        """Sweep on the thread of removals."""
        with self._lock:
            self._sweep_at = None
        self._do(self._sweep)

    def _sweep(self) -> None:
        with self._lock:
            folders = sorted(self._folders)
        if sum(self._removal.sweep(folder) for folder in folders):
            self._plan_sweep()

    def _plan_sweep(self) -> None:
        with self._lock:
            if self._sweep_at is None:
                self._sweep_at = self._api.clock.monotonic() + SWEEP_S

    # --- the thread of removals ------------------------------------------------------------------

    def _do(self, job: Callable[[], None]) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=keeping_author(self._serve), name="rota-worktrees", daemon=True)
                self._thread.start()
        self._jobs.put(job)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except (RotaError, GitFailed, OSError) as problem:
                _log.warning("cannot remove the worktree of an ended entry now: %s", problem)
                self._plan_sweep()
            except WorktreeStopped:
                return  # the supervisor ends

    def close(self) -> None:
        """Finish the removals, for at most `CLOSE_S`."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            thread.join(CLOSE_S)
            if thread.is_alive():
                self._closing.set()


def _failed(problem: str) -> RunOutcome:
    error = f"its worktree cannot be made: {problem}"
    return RunOutcome(exit_kind="failed", outcome="workspace_failed", result={"error": error})
