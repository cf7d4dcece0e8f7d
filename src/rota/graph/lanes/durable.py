"""The scheduler API, as runs with durable lanes use it.

An invocation is an entry: with a key of its own, so that enqueueing it twice adds nothing, and with everything needed
to run it (fleet_lane.py makes its spec). If a worker dies its claim expires and the kernel hands the entry out again;
how the entry ended says whether it failed for good.

The state of the run itself is a row that the kernel stores (see `kernel.graph_runs`). Every call here may be repeated:
while the store cannot be reached, a run waits (service/outages.py).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from rota.errors import ComponentInvalid, IllegalTransition, RotaError, SchedUnknownId, StaleClaim, StoreError
from rota.graph.invocation import Publication
from rota.graph.lanes.fleet_lane import EntryRequest, EntrySpecs
from rota.graph.reports import error_text
from rota.kernel.enqueue import ENQUEUE_MAX
from rota.model.agent_metadata import SETTINGS_KEY
from rota.model.graph_runs import TEMPLATE, GraphRun, coordinator_settings
from rota.model.work import Agent, ReadyEntry, ScheduleSpec
from rota.service.outages import call_through_outage
from rota.store.author import keeping_author

__all__ = ["NEW_RUN_HINT", "DurableRun", "DurableRuns", "EntryOutcome", "EntryResult", "is_interruption", "json_value"]

NEW_RUN_HINT = "Start a new run with another run_id (--run-id)."
REQUEST_BYTES = 2 * 1024 * 1024  # of entries that are sent to a daemon together; it takes 4 MiB in a request
ENDED_MAX = 64  # entries whose results are asked from a daemon together: of 256 KiB each, and it sends 32 MiB at most
WATCH_S = 30.0  # one wait for events of a store in another process
T = TypeVar("T")


def is_interruption(problem: BaseException) -> bool:
    """Whether a call failed for a reason that is not the graph's: the store is away, or another process has the run.

    Anything else would fail again, however often the run is tried.
    """
    return isinstance(problem, StoreError | StaleClaim)


class EntryResult(msgspec.Struct, frozen=True):
    """The result of an entry whose invocation of a component succeeded, as `run_entry` returns it."""

    published: list[Publication]
    duration_s: float


class EntryOutcome(NamedTuple):
    """How an entry ended."""

    succeeded: bool
    result: Any = None  # of a component, an `EntryResult` as JSON; of an agent, whatever it returned
    error: str = ""
    over_budget: bool = False  # it was stopped because it used more than it may
    cancelled: bool = False
    duration_s: float = 0.0  # of its last attempt


class DurableRuns:
    """A store of graph runs, in this process or at a daemon, and the agent that entries of components belong to.

    Without a `pid` each graph has an agent with its own name, which is created when its first run begins. A run that
    was `taken` before, as its coordinator does, is not taken again.
    """

    def __init__(
        self,
        api: Any,  # a kernel, a dispatcher or a client: it has agents, graphs and journal
        pid: int | None = None,
        *,
        project_id: str | None = None,  # of the agent that is created
        taken: GraphRun | None = None,
        is_stopping: Callable[[], bool] = lambda: False,
        is_lost: Callable[[], bool] = lambda: False,  # whether the claim of its coordinator was taken back
    ) -> None:
        self.api = self._api = api
        self._pid = pid
        self._project_id = project_id
        self._taken = taken
        self._is_stopping = is_stopping
        self._is_lost = is_lost

    def acquire(self, run_id: str, graph: str) -> DurableRun:
        """Begin or resume a run; a process that held it before can no longer write to it."""
        return DurableRun(self._api, self._taken or self.take(run_id, graph), self._is_stopping, self._is_lost)

    def take(self, run_id: str, graph: str) -> GraphRun:
        """Begin a run that this process executes itself, or take over one of another process."""
        run: GraphRun = self._api.graphs.take(run_id, graph, self._agent(graph))
        return run

    def _agent(self, graph: str) -> int:
        if self._pid is not None:
            return self._pid
        agents = self._api.agents
        found = [agent for agent in agents.find(graph) if agent.template == TEMPLATE]
        known = [agent for agent in found if agent.project_id == self._project_id]
        settings = {SETTINGS_KEY: msgspec.to_builtins(coordinator_settings())}
        if not known:
            return int(agents.create(graph, TEMPLATE, project_id=self._project_id, metadata=settings))
        agent: Agent = min(known, key=lambda each: each.pid)
        if SETTINGS_KEY not in agent.metadata:  # it was created by an earlier version
            agents.update(agent.pid, metadata={**agent.metadata, **settings})
        return agent.pid


class DurableRun:
    """One run, held by this process."""

    def __init__(self, api: Any, run: GraphRun, is_stopping: Callable[[], bool], is_lost: Callable[[], bool]) -> None:
        self._api = api
        self._run = run
        self._specs = EntrySpecs(api, run)
        self._is_stopping = is_stopping
        self._is_lost = is_lost
        self._store = getattr(getattr(api, "kernel", api), "store", None)  # None: in another process
        self._is_remote = self._store is None

    @property
    def checkpoint(self) -> bytes | None:
        """The latest checkpoint when the run was acquired; None for a new run."""
        return self._run.checkpoint

    @property
    def first_id(self) -> int:
        """The lowest id that an entry may have which the run has enqueued since it was started or resumed."""
        return self._run.sched_id or 0

    def specs(self, requests: Sequence[EntryRequest]) -> list[ScheduleSpec]:
        """Return the specs of entries; raises if the agent of one does not exist."""
        return [self._specs.make(request) for request in requests]

    def enqueue(self, specs: Sequence[ScheduleSpec]) -> list[int]:
        """Enqueue entries, in few commits, and return their ids; a known key returns the old entry."""
        ids: list[int] = []
        for batch in _batches(specs, REQUEST_BYTES if self._is_remote else None):
            ids += self._call(partial(self._api.graphs.enqueue, self._run.run_id, self._run.fence, batch))
        return ids

    def ended(self, entry_ids: Sequence[int]) -> dict[int, EntryOutcome]:
        """Return the outcomes of those of these entries that have ended."""
        found: dict[int, ReadyEntry | None] = {}
        step = ENDED_MAX if self._is_remote else max(1, len(entry_ids))
        for start in range(0, len(entry_ids), step):
            found |= self._call(partial(self._api.graphs.ended, list(entry_ids[start : start + step])))
        return {entry_id: _outcome(entry) for entry_id, entry in found.items()}

    def cancel_queued(self, entry_ids: Sequence[int]) -> None:
        """Cancel those of these entries that wait in the queue; those that run are stopped by their supervisor.

        The coordinator of a run that has begun and is about to go on decides itself: it may need nothing more.
        """
        for entry_id in entry_ids:
            with contextlib.suppress(IllegalTransition, SchedUnknownId):
                entry = self._call(partial(self._api.queue.get, entry_id))
                has_begun = entry.account is not None and entry.account.run_id != self._run.run_id
                if not (has_begun and entry.status == "ready"):
                    self._call(partial(self._api.queue.cancel, entry_id))

    def commit(self, next_epoch_id: int, checkpoint: bytes, waits: str | None = None) -> None:
        """Store a checkpoint in place of the previous one, and what the run waits for; durable when it returns."""
        if self._is_lost():  # components that failed since then did so because of that: the epoch is repeated
            text = f"the coordinator of run {self._run.run_id}, entry {self._run.sched_id}, has lost its claim"
            raise StaleClaim(text, sched_id=self._run.sched_id, run_id=self._run.run_id)
        commit = partial(self._api.graphs.commit, self._run.run_id, fence=self._run.fence)
        self._call(lambda: commit(next_epoch_id=next_epoch_id, checkpoint=checkpoint, waits=waits))

    def on_change(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call `notify` after every commit of any process, when an entry may have ended; return an unsubscriber."""
        if self._store is not None:
            return self._store.on_change(notify)  # type: ignore[no-any-return]
        watch = _JournalWatch(self._api, notify)
        return watch.close

    def _call(self, call: Callable[[], T]) -> T:
        return call_through_outage(self._api.clock, call, self._is_stopping, repeats=True)


def _batches(specs: Sequence[ScheduleSpec], bytes_max: int | None) -> Iterator[list[ScheduleSpec]]:
    """Yield specs in order, in batches of at most `ENQUEUE_MAX`, and of at most `bytes_max` unless one is larger."""
    batch: list[ScheduleSpec] = []
    used = 0
    for spec in specs:
        size = 0 if bytes_max is None else len(msgspec.json.encode(spec))
        if batch and (len(batch) == ENQUEUE_MAX or (bytes_max is not None and used + size > bytes_max)):
            yield batch
            batch, used = [], 0
        batch.append(spec)
        used += size
    if batch:
        yield batch


class _JournalWatch:
    """A thread that calls a function when a store in another process may have changed."""

    def __init__(self, api: Any, notify: Callable[[], None]) -> None:
        self._api = api
        self._notify = notify
        self._is_closed = threading.Event()
        threading.Thread(target=keeping_author(self._watch), name="rota-graph-watch", daemon=True).start()

    def _watch(self) -> None:
        cursor = 0
        while not self._is_closed.is_set():
            try:
                cursor = self._api.journal.wait(cursor, WATCH_S)
            except RotaError:  # the daemon is away: the run's own calls report it
                self._is_closed.wait(1.0)
            self._notify()

    def close(self) -> None:
        """Stop watching after the wait in progress."""
        self._is_closed.set()


def _outcome(entry: ReadyEntry | None) -> EntryOutcome:
    if entry is None:
        return EntryOutcome(succeeded=False, error="the entry was pruned before the run saw how it ended")
    if entry.state == "completed" and entry.exit_kind == "completed":
        return EntryOutcome(succeeded=True, result=entry.result, duration_s=_duration_s(entry))
    return EntryOutcome(
        succeeded=False,
        error=_failure_text(entry),
        over_budget=entry.outcome == "over_budget",
        cancelled=entry.state == "cancelled",
        duration_s=_duration_s(entry),
    )


def _duration_s(entry: ReadyEntry) -> float:
    return max(0.0, (entry.completed_at or 0.0) - (entry.dispatched_at or entry.completed_at or 0.0))


def _failure_text(entry: ReadyEntry) -> str:
    """Return why an entry did not succeed: its worker's error, else how it ended."""
    if isinstance(entry.result, dict) and isinstance(entry.result.get("error"), str):
        return str(entry.result["error"])
    ending = " ".join(filter(None, (entry.state, entry.exit_kind, entry.outcome)))
    return f"entry {entry.sched_id} ended without a result: {ending}"


def json_value(what: str, value: Any) -> Any:
    """Return a value as it reads back from JSON; raises if that is not the same value."""
    try:
        back = msgspec.json.decode(msgspec.json.encode(value))
        same = bool(back == value)
    except Exception as problem:  # the value's own methods may raise anything
        raise _not_json(what, value, error_text(problem)) from problem
    if not same:
        raise _not_json(what, value, "it changes when it is read back")
    return back


def _not_json(what: str, value: Any, reason: str) -> ComponentInvalid:
    return ComponentInvalid(
        f"{what} is a {type(value).__name__} that cannot be stored as JSON: {reason}",
        hint="In a graph with a queue lane use only dictionaries, lists, strings, numbers, booleans and `None`.",
    )
