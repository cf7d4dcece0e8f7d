"""The other half of the queue lane: a worker that runs the entries of graphs.

    worker = EntryWorker(desk, registry, ["research"])
    worker.run_ready()        # until nothing is ready
    worker.serve(stop_token)  # until it is asked to stop

It needs a desk and the components, and knows nothing of the process that runs the graph: that may be this one, another
one, or one that has died and will be back. While a component runs, a thread beside it holds on to the claim. When the
claim is lost all the same, or somebody wants the entry cancelled, the component sees it in `cancel_requested()`, and
nothing it brings is used. A worker that is asked to stop itself finishes what it has claimed: the run is not over.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rota.clock import Clock, SystemClock
from rota.errors import ComponentInvalid, GraphRunFailed, RotaError, SchedUnknownId, StaleClaim
from rota.graph.calling import Coroutines, Unit, perform
from rota.graph.component_registry import ComponentRegistry
from rota.graph.invocation import Invocation, Publication
from rota.graph.lanes.as_json import as_json
from rota.graph.lanes.durable import EntryResult, entry_kind
from rota.graph.lifecycle import call_hook
from rota.graph.messages import Inputs
from rota.graph.reports import words
from rota.graph.scope import DetachedScope
from rota.graph.stop import StopToken
from rota.kernel.claim_request import Completion
from rota.model.checks import RESULT_BYTES_MAX
from rota.model.work import ReadyEntry
from rota.service.api import Desk

__all__ = ["CLAIM_TIMEOUT_S", "HEARTBEAT_S", "EntryWorker", "run_entry"]

CLAIM_TIMEOUT_S = 60.0
HEARTBEAT_S = 15.0
WAIT_S = 0.5  # for an entry, before the stop token is looked at again


def run_entry(
    registry: ComponentRegistry, payload: Mapping[str, Any], stop_token: StopToken | None = None
) -> dict[str, Any]:
    """Run the invocation of an entry; the answer is the entry's result. Raises when the component failed."""
    kind = registry.find(payload["type"])
    instance = kind.implementation(**payload["config"]) if kind.kind == "class" else None
    unit = Unit(
        payload["component"],
        payload["lane"],
        kind,
        instance,
        payload["channel_ports"],
        config=payload["config"] if kind.kind == "function" else {},
        output_ports=frozenset(payload["output_ports"]),
        fills=payload["fills"],
        budget_s=payload["budget_s"],
    )
    scope = DetachedScope(payload["graph_config"], stop_token or StopToken(), "an entry of a queue")
    invocation = Invocation(unit, scope, msgspec.convert(payload["inputs"], Inputs), payload["epoch"])
    invocation.attempt = payload["attempt"] - 1  # trying again is decided by the run
    _live_through(unit, invocation)
    if invocation.problem is not None:
        raise GraphRunFailed(f"component {unit.id} failed: {words(invocation.problem)}") from invocation.problem
    return _result(unit, invocation)


def _live_through(unit: Unit, invocation: Invocation) -> None:
    """The whole life of an instance, for one invocation."""
    coroutines = Coroutines()
    try:
        for hook in ("configure", "reset", "activate"):
            call_hook(unit.instance, hook, coroutines)
        try:
            perform(unit, invocation, coroutines)
        finally:
            call_hook(unit.instance, "deactivate", coroutines)
    finally:
        coroutines.close()


def _result(unit: Unit, invocation: Invocation) -> dict[str, Any]:
    published = [
        Publication(each.port, as_json(f"what {unit.id} published on {each.port}", each.payload), each.timestamp_ms)
        for each in invocation.staged
    ]
    duration_s = invocation.ended_at_s - invocation.started_at_s
    result: dict[str, Any] = msgspec.to_builtins(EntryResult(published, duration_s))
    size = len(msgspec.json.encode(result))
    if size > RESULT_BYTES_MAX:
        raise ComponentInvalid(
            f"component {unit.id} published {size:,} bytes; an entry's result takes {RESULT_BYTES_MAX:,}",
            hint="Publish less, or where the data can be found.",
            component_id=unit.id,
        )
    return result


class EntryWorker:
    """Claims the entries of some graphs, one at a time, and runs them."""

    def __init__(
        self,
        desk: Desk,
        registry: ComponentRegistry,
        graphs: Sequence[str],
        *,
        worker_id: str = "graph-worker",
        incarnation: str = "",
        clock: Clock | None = None,
        claim_timeout_s: float = CLAIM_TIMEOUT_S,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self._desk = desk
        self._registry = registry
        self._terms: dict[str, Any] = {
            "worker_id": worker_id,
            "incarnation": incarnation,
            "kinds": tuple(entry_kind(graph) for graph in graphs),
            "claim_timeout_s": claim_timeout_s,
        }
        self._clock = clock or SystemClock()
        self._heartbeat_s = heartbeat_s

    def run_ready(self, most: int | None = None) -> int:
        """Run entries until none is ready, at most so many; returns how many were run."""
        return self._run(StopToken(), most, wait_s=0.0)

    def serve(self, stop_token: StopToken) -> int:
        """Run entries, and wait for more, until asked to stop; returns how many were run."""
        return self._run(stop_token, None, wait_s=WAIT_S)

    def _run(self, stop_token: StopToken, most: int | None, *, wait_s: float) -> int:
        count = 0
        ended: list[Completion] = []
        with _Heart(self._desk, self._clock, self._heartbeat_s) as heart:
            while True:
                over = stop_token.is_set or count == most
                entries = self._turn_over(ended, wait_s=0.0 if over else wait_s, claims=not over)
                ended = [self._run_one(entry, heart) for entry in entries]
                count += len(entries)
                if over or (not entries and not wait_s):
                    return count

    def _turn_over(self, ended: list[Completion], *, wait_s: float, claims: bool) -> list[ReadyEntry]:
        """Hand in what was run and take the next, in one commit; a claim that was lost meanwhile is refused."""
        if not claims:
            if ended:
                self._desk.queue.complete_many(ended)
            return []
        if not ended:
            return self._desk.claim(wait_s=wait_s, **self._terms)
        return self._desk.complete_and_claim(ended, wait_s=wait_s, **self._terms).entries

    def _run_one(self, entry: ReadyEntry, heart: _Heart) -> Completion:
        cancel = StopToken()
        heart.hold(entry, cancel)
        try:
            result: Any = run_entry(self._registry, entry.payload, cancel)
            exit_kind = "completed"
        except (Exception, SystemExit) as problem:  # a component's failure is an outcome, not ours
            error = problem.message if isinstance(problem, RotaError) else words(problem)
            exit_kind, result = "failed", {"error": error}
        finally:
            heart.let_go()
        if cancel.is_set:  # it may have given up half-way
            exit_kind, result = "cancelled", {"error": cancel.reason}
        return Completion(entry.sched_id, exit_kind, entry.token, result)


class _Heart:
    """A thread that holds on to the claim of the entry that runs."""

    def __init__(self, desk: Desk, clock: Clock, heartbeat_s: float) -> None:
        self._desk = desk
        self._clock = clock
        self._heartbeat_s = heartbeat_s
        self._changed = threading.Condition()
        self._held: tuple[ReadyEntry, StopToken] | None = None
        self._is_over = False
        self._thread = threading.Thread(target=self._beat, name="rota-heart", daemon=True)

    def __enter__(self) -> _Heart:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()

    def hold(self, entry: ReadyEntry, cancel: StopToken) -> None:
        """Hold on to this one from now on."""
        with self._changed:
            self._held = entry, cancel

    def let_go(self) -> None:
        """It has ended."""
        with self._changed:
            self._held = None

    def _beat(self) -> None:
        while True:
            with self._changed:
                if not self._is_over:
                    self._clock.wait(self._changed, self._heartbeat_s)
                if self._is_over:
                    return
                held = self._held
            if held is not None:
                self._beat_for(*held)

    def _beat_for(self, entry: ReadyEntry, cancel: StopToken) -> None:
        try:
            beat = self._desk.queue.heartbeat(entry.sched_id, entry.token or 0)
        except (StaleClaim, SchedUnknownId) as lost:
            cancel.request(words(lost))
        except RotaError:  # the queue cannot be reached: the next beat tries again, and the claim outlives a few
            return
        else:
            if beat.cancel_requested:
                cancel.request("the entry was cancelled")
