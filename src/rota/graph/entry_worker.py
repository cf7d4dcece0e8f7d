"""The worker side of the queue lane: a worker that runs the entries of graphs.

    worker = EntryWorker(api, registry, ["research"])
    worker.run_ready()        # until no entry is ready
    worker.serve(stop_token)  # until it is asked to stop

The worker needs a scheduler API and the components. It is independent of the process that runs the graph, which may be
this one, another one, or one that has died and will be restarted. While a component runs, a second thread sends
heartbeats for its claim. If the claim is lost nevertheless, or the entry is to be cancelled, `cancel_requested()`
becomes true and the component's result is not used. A worker that is asked to stop finishes the entry it has claimed:
the run continues.

While the store cannot be reached, the worker waits and goes on afterwards (service/outages.py): `serve` until it is
asked to stop, `run_ready` for at most `OUTAGE_S`. If the response to a completion was lost, it is sent again; the store
refuses the second one. Entries in a lost response return to the queue when their claim expires.
"""

from __future__ import annotations

import math
import threading
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from rota.clock import Clock, SystemClock
from rota.decoding import convert
from rota.errors import ComponentInvalid, GraphRunFailed, RotaError, SchedUnknownId, StaleClaim, StoreUnavailable
from rota.graph.calling import BoundComponent, CoroutineRunner, execute
from rota.graph.component_registry import ComponentRegistry
from rota.graph.invocation import Invocation, Publication
from rota.graph.lanes.durable import EntryResult, entry_kind, json_value
from rota.graph.lifecycle import call_hook
from rota.graph.messages import Inputs
from rota.graph.reports import error_text
from rota.graph.scope import DetachedScope
from rota.graph.stop import StopToken
from rota.kernel.run_reports import Completion
from rota.model.checks import RESULT_BYTES_MAX
from rota.model.work import ReadyEntry
from rota.model.workers import WORKER_REFRESH_S, SlotPool, WorkerKind
from rota.service.api import SchedulerApi
from rota.service.outages import OUTAGE_S, call_through_outage
from rota.service.worker_registration import WorkerRegistration

__all__ = ["CLAIM_TIMEOUT_S", "HEARTBEAT_S", "EntryWorker", "run_entry"]

CLAIM_TIMEOUT_S = 60.0
HEARTBEAT_S = 15.0
WAIT_S = 0.5  # how long to wait for an entry before the stop token is checked again
ERROR_CHARS_MAX = 4_000  # of the error of a component, in a result


def run_entry(
    registry: ComponentRegistry, payload: Mapping[str, Any], stop_token: StopToken | None = None
) -> dict[str, Any]:
    """Run the invocation of an entry and return the entry's result. Raises if the component failed."""
    component_type = registry.find(payload["type"])
    instance = component_type.implementation(**payload["config"]) if component_type.kind == "class" else None
    component = BoundComponent(
        payload["component"],
        payload["lane"],
        component_type,
        instance,
        payload["channel_ports"],
        config=payload["config"] if component_type.kind == "function" else {},
        output_ports=frozenset(payload["output_ports"]),
        fills_every_input=payload["fills"],
        budget_s=payload["budget_s"],
    )
    scope = DetachedScope(payload["graph_config"], stop_token or StopToken(), "an entry of a queue")
    invocation = Invocation(component, scope, convert(payload["inputs"], Inputs), payload["epoch"])
    invocation.attempt = payload["attempt"] - 1  # the run decides about retries
    _run_lifecycle(component, invocation)
    if invocation.problem is not None:
        raise GraphRunFailed(
            f"component {component.id} failed: {error_text(invocation.problem)}"
        ) from invocation.problem
    return _result(component, invocation)


def _run_lifecycle(component: BoundComponent, invocation: Invocation) -> None:
    """Take a component instance through its whole lifecycle, for one invocation."""
    coroutines = CoroutineRunner()
    try:
        for hook in ("configure", "reset", "activate"):
            call_hook(component.instance, hook, coroutines)
        try:
            execute(component, invocation, coroutines)
        finally:
            call_hook(component.instance, "deactivate", coroutines)
    finally:
        coroutines.close()


def _result(component: BoundComponent, invocation: Invocation) -> dict[str, Any]:
    published = [
        Publication(
            each.port,
            json_value(f"what component {component.id} published on port {each.port}", each.payload),
            each.timestamp_ms,
        )
        for each in invocation.staged
    ]
    duration_s = invocation.ended_at_s - invocation.started_at_s
    result: dict[str, Any] = msgspec.to_builtins(EntryResult(published, duration_s))
    size = len(msgspec.json.encode(result))
    if size > RESULT_BYTES_MAX:
        raise ComponentInvalid(
            f"component {component.id} published {size:,} bytes; the maximum result size is {RESULT_BYTES_MAX:,}",
            hint="Publish less data, or a reference to where it is stored.",
            component_id=component.id,
        )
    return result


class EntryWorker:
    """Claims the entries of some graphs, one at a time, and runs them."""

    def __init__(
        self,
        api: SchedulerApi,
        registry: ComponentRegistry,
        graphs: Sequence[str],
        *,
        worker_id: str = "graph-worker",
        incarnation: str = "",
        clock: Clock | None = None,
        claim_timeout_s: float = CLAIM_TIMEOUT_S,
        heartbeat_s: float = HEARTBEAT_S,
        kind: WorkerKind = "entry_worker",
    ) -> None:
        self._api = api
        self._registry = registry
        incarnation = incarnation or uuid.uuid4().hex  # several processes may have the same worker_id
        kinds = tuple(entry_kind(graph) for graph in graphs)
        self._claim_options: dict[str, Any] = {
            "worker_id": worker_id,
            "incarnation": incarnation,
            "kinds": kinds,
            "claim_timeout_s": claim_timeout_s,
        }
        pools = (SlotPool(worker_id, 1, kinds),)
        self._make_registration = partial(WorkerRegistration, api, worker_id, incarnation, kind, lambda: pools)
        self._clock = clock or SystemClock()
        self._heartbeat_s = heartbeat_s

    def run_ready(self, max_entries: int | None = None) -> int:
        """Run up to `max_entries` entries until none is ready; return how many were run."""
        return self._run(StopToken(), max_entries, wait_s=0.0)

    def serve(self, stop_token: StopToken) -> int:
        """Run entries, and wait for more, until asked to stop; return how many were run."""
        return self._run(stop_token, None, wait_s=WAIT_S)

    def _run(self, stop_token: StopToken, max_entries: int | None, *, wait_s: float) -> int:
        count, limit_s = 0, math.inf if wait_s else OUTAGE_S
        ended: list[Completion] = []
        registration = self._make_registration()
        with _Heartbeats(self._api, self._clock, self._heartbeat_s, registration) as heartbeats:
            while True:
                over = stop_token.is_set or count == max_entries
                turn = partial(self._complete_and_claim, ended, wait_s=0.0 if over else wait_s, claims=not over)
                try:
                    entries = call_through_outage(
                        self._clock, turn, lambda: stop_token.is_set, limit_s=limit_s, repeats=True
                    )
                except StoreUnavailable:
                    if stop_token.is_set and not ended:  # asked to stop while it waits
                        return count
                    raise
                ended = [self._run_one(entry, heartbeats) for entry in entries]
                count += len(entries)
                if over or (not entries and not wait_s):
                    return count

    def _complete_and_claim(self, ended: list[Completion], *, wait_s: float, claims: bool) -> list[ReadyEntry]:
        """Complete the entries that were run and claim the next, in one commit; a lost claim's result is rejected."""
        if not claims:
            if ended:
                self._api.queue.complete_many(ended)
            return []
        if not ended:
            return self._api.claim(wait_s=wait_s, **self._claim_options)
        return self._api.complete_and_claim(ended, wait_s=wait_s, **self._claim_options).entries

    def _run_one(self, entry: ReadyEntry, heartbeats: _Heartbeats) -> Completion:
        cancel = StopToken()
        heartbeats.watch(entry, cancel)
        try:
            result: Any = run_entry(self._registry, entry.payload, cancel)
            exit_kind = "completed"
        except (Exception, SystemExit) as problem:  # a component's failure is an outcome, not an error of the worker
            error = problem.message if isinstance(problem, RotaError) else error_text(problem)
            exit_kind, result = "failed", {"error": error.encode("utf-8", "replace").decode()[:ERROR_CHARS_MAX]}
        finally:
            heartbeats.unwatch()
        if cancel.is_set:  # the component may have stopped half-way
            exit_kind, result = "cancelled", {"error": cancel.reason}
        return Completion(entry.sched_id, exit_kind, entry.token, result)


class _Heartbeats:
    """A thread that sends heartbeats for the claim of the running entry, and keeps the worker registered."""

    def __init__(self, api: SchedulerApi, clock: Clock, heartbeat_s: float, registration: WorkerRegistration) -> None:
        self._api = api
        self._registration = registration
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._changed = threading.Condition()
        self._watched: tuple[ReadyEntry, StopToken] | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._beat, name="rota-heartbeat", daemon=True)

    def __enter__(self) -> _Heartbeats:
        self._registration.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()
        self._registration.leave()

    def watch(self, entry: ReadyEntry, cancel: StopToken) -> None:
        """Send heartbeats for this entry from now on."""
        with self._changed:
            self._watched = entry, cancel

    def unwatch(self) -> None:
        """Stop sending heartbeats: the entry has ended."""
        with self._changed:
            self._watched = None

    def _beat(self) -> None:
        while True:
            with self._changed:
                if not self._is_over:
                    self._clock.wait(self._changed, min(self._heartbeat_s, WORKER_REFRESH_S))
                if self._is_over:
                    return
                watched = self._watched
            if watched is not None:
                self._beat_for(*watched)
            self._registration.renew_if_due()

    def _beat_for(self, entry: ReadyEntry, cancel: StopToken) -> None:
        try:
            beat = self._api.queue.heartbeat(entry.sched_id, entry.token or 0)
        except (StaleClaim, SchedUnknownId) as lost:
            cancel.request(error_text(lost))
        except RotaError:  # the queue is unreachable: retry at the next heartbeat; a claim survives a few missed ones
            return
        else:
            if beat.cancel_requested:
                cancel.request("the entry was cancelled")
