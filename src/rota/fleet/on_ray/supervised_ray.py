"""Runs on Ray as a part of a supervisor: which shapes there are, and the slot loop for them.

The shapes come from the agents of the store and from the entries that wait. The loop is made when the first shape is
known; the cluster is connected when the first entry was claimed. So a supervisor without such agents does nothing here.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence

from rota.errors import LimitExceeded, NotFound, RotaError
from rota.fleet.agent_settings import SETTINGS_KEY, settings_of
from rota.fleet.config.apply import all_rows
from rota.fleet.live_run import LiveRun
from rota.fleet.on_ray.ray_loop import RayLoop
from rota.fleet.on_ray.ray_runs import RayRuns
from rota.fleet.runners.contract import RegisteredFunctions, RunOutcome
from rota.fleet.runners.resources import RunnerResources
from rota.fleet.slot_loop import SlotLoop
from rota.model.events import Event, ProcessCreated, ProcessUpdated
from rota.model.ray import RAY, RayCluster, RayShape, shape_of
from rota.model.work import Agent
from rota.model.workers import ONLY_KINDS, SlotPool
from rota.service.api import SchedulerApi
from rota.store.author import keeping_author

__all__ = ["SupervisedRay"]

DEMAND_S = 5.0  # how often the autoscaler is told what waits
DEMAND_MAX = 1_000  # runs that it is told
GROUPS_MAX = 1_000  # groups of waiting entries that are looked at
_log = logging.getLogger("rota.fleet")


class SupervisedRay:
    """The runs on Ray of one supervisor; a background task of it."""

    kinds = (ProcessCreated.kind, ProcessUpdated.kind)

    def __init__(
        self,
        api: SchedulerApi,
        cluster: RayCluster,
        resources: RunnerResources,
        functions: RegisteredFunctions,
        *,
        make_loop: Callable[[int], RayLoop],
        on_problems: Callable[[], None],
    ) -> None:
        self.loop: RayLoop | None = None
        self._api = api
        self._cluster = cluster
        self._make_loop = make_loop
        self._runs = RayRuns(resources, cluster, functions, on_room=self._look_again, on_problems=on_problems)
        self._on_problems = on_problems
        self._thread: threading.Thread | None = None
        self._is_serving = False
        self._follows = False  # the journal
        self._demand_at = 0.0

    # --- for the supervisor ----------------------------------------------------------------------

    def find_shapes(self) -> None:
        """Learn the shapes of all agents, and of the entries that wait."""
        for agent in all_rows(self._api.agents.list):
            self._add_agent(agent)
        for group in self._api.queue.unfinished(GROUPS_MAX):
            self._add(shape_of(group.kind))

    def serve(self) -> None:
        """Start the loop, now or when the first shape is known."""
        self._is_serving = True
        self._start()

    def execute(self, run: LiveRun, loop: SlotLoop) -> None:
        """Start a run; it ends in the loop that has claimed it.

        That may be one of the supervisor's own slots: the entry was queued before its agent ran on Ray.
        """
        self._runs.start(run, lambda outcome: loop.end(run, outcome))

    def execute_here(self, run: LiveRun, loop: SlotLoop, execute: Callable[[], RunOutcome]) -> RunOutcome | None:
        """Execute a run of another runner: at once, or on a thread if the loop of runs on Ray has claimed it.

        The entry was queued while its agent ran on Ray. That loop starts runs on its own thread, which must not wait.
        """
        if loop is not self.loop:
            return execute()
        thread = threading.Thread(
            target=keeping_author(lambda: loop.end(run, execute())), name="rota-ray-other", daemon=True
        )
        thread.start()
        return None

    @property
    def pool(self) -> SlotPool | None:
        """The slots for the register of workers; None without any."""
        if self.loop is None:
            return None
        _, free = self._runs.claimable(self.loop.free)
        slots = min(len(self.loop.runs) + free, self.loop.slots)
        return SlotPool(self.loop.worker_id, slots, (ONLY_KINDS, *self._runs.kinds), problems=self._runs.problems())

    @property
    def slot_kinds(self) -> tuple[str, ...]:
        """The kinds of all shapes."""
        return self._runs.kinds

    def stop_claiming(self) -> None:
        """Claim nothing more, and return what is not submitted yet to the queue."""
        self._is_serving = False
        if self.loop is not None:
            self.loop.stop_claiming()
            self._runs.release_held()

    def join(self) -> None:
        """Wait until the last run has ended."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Disconnect from the cluster."""
        self._runs.close()

    # --- background ------------------------------------------------------------------------------

    def on_events(self, events: Sequence[Event]) -> None:
        """Learn the shapes of agents that are new or were changed; at the first call, of all."""
        if not self._follows:  # what was created since `find_shapes` and before this thread follows the journal
            self._follows = True
            self.find_shapes()
        for event in events:
            if event.kind in self.kinds and event.pid is not None:
                try:
                    self._add_agent(self._api.agents.get(event.pid))
                except NotFound:
                    continue

    def due_in_s(self) -> float | None:
        """After a cluster was lost, and with `tell_demand` now and then."""
        retry_in_s = self._runs.retry_in_s()
        demand_in_s = self._demand_at - self._api.clock.monotonic() if self._tells_demand else None
        due = [each for each in (retry_in_s, demand_in_s) if each is not None]
        return max(0.0, min(due)) if due else None

    def on_due(self) -> None:
        """Let the loop claim, so that it connects again; tell the autoscaler what waits."""
        if self._runs.retry_in_s() == 0.0:
            self._look_again()
        if not self._tells_demand or self._api.clock.monotonic() < self._demand_at:
            return
        self._demand_at = self._api.clock.monotonic() + DEMAND_S
        waiting: Counter[RayShape] = Counter()
        for group in self._api.queue.unfinished(GROUPS_MAX):
            shape = shape_of(group.kind)
            if shape is not None and group.state == "queued" and group.hold is None:
                waiting[shape] += group.count
        self._runs.demand(waiting, DEMAND_MAX)

    @property
    def _tells_demand(self) -> bool:
        return self._cluster.tell_demand and self.loop is not None

    # --- shapes ----------------------------------------------------------------------------------

    def _add_agent(self, agent: Agent) -> None:
        stored = agent.metadata.get(SETTINGS_KEY)
        if isinstance(stored, dict) and stored.get("runner") == RAY:
            try:
                settings = settings_of(agent)
            except RotaError:
                return  # its entries are refused when they are claimed
            if settings is not None and settings.ray is not None:
                self._add(settings.ray.shape)

    def _add(self, shape: RayShape | None) -> None:
        if shape is None:
            return
        try:
            is_new = self._runs.add_shape(shape)
        except LimitExceeded as problem:
            _log.warning("runs of %s do not start here: %s", shape.sentence(), problem.message)
            return
        if is_new:
            self._start()
            self._look_again()
            self._on_problems()  # the register has one kind more

    def _start(self) -> None:
        if self.loop is None and self._runs.kinds:
            self.loop = self._make_loop(self._cluster.in_flight)
            self.loop.runs_on_ray = self._runs
        if self.loop is not None and self._thread is None and self._is_serving:
            self._thread = threading.Thread(target=keeping_author(self.loop.serve), name="rota-ray-slots", daemon=True)
            self._thread.start()

    def _look_again(self) -> None:
        if self.loop is not None:
            self.loop.look_again()
