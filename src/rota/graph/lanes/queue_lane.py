"""The queue lane: an invocation becomes an entry of the durable queue; the graph continues when the entry has ended.

A ready invocation is enqueued with everything needed to run it elsewhere, as JSON, under a key made of run, epoch,
component and its number in that epoch. The epoch does not wait. At the first epoch boundary after the entry has ended,
its publications are committed along the component's async edges; a failure is handled like any other, and with
`on_error: retry` the invocation is enqueued again under a key of its own. Workers run the entries with `entry_worker`.

The key depends only on the graph and the run, not on this process, so enqueueing the same invocation twice adds
nothing. This makes it safe to repeat an epoch after a crash (see `checkpoint`).

The store notifies after every commit of any process. The notification only sets a flag; the run's own thread checks
whether one of its entries has ended when it has nothing else to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from rota.decoding import convert
from rota.errors import ComponentInvalid, GraphRunFailed, RotaError
from rota.graph.commit import Committer
from rota.graph.invocation import Invocation, Scope
from rota.graph.lanes.durable import NEW_RUN_HINT, DurableRun, EntryOutcome, EntryRequest, EntryResult, json_value
from rota.graph.messages import Inputs
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Node
from rota.graph.reports import RunStopped, error_text
from rota.graph.stop import WakeSignal
from rota.model.checks import PAYLOAD_BYTES_MAX

__all__ = ["PendingInvocation", "QueueLane", "QueueStep"]

T = TypeVar("T")


class PendingInvocation(msgspec.Struct, frozen=True, kw_only=True):
    """An invocation whose entry has not ended yet."""

    entry_id: int = 0  # 0: not enqueued yet
    name: str  # run, epoch, component and number
    component_id: str
    epoch_id: int
    inputs: Inputs
    attempt: int = 1

    @property
    def key(self) -> str:
        """The unique key of its entry; each attempt has its own."""
        return f"graph/{self.name}" if self.attempt == 1 else f"graph/{self.name}~{self.attempt}"


class QueueLane:
    """All queue lanes of a run: they share one durable queue.

    Only the run's thread calls it, except for `_on_store_change`.
    """

    def __init__(
        self, run_id: str, committer: Committer, scope: Scope, wake_signal: WakeSignal, meters: Mapping[str, LaneMeter]
    ) -> None:
        self._run_id = run_id
        self._meters = meters
        self._committer = committer
        self._scope = scope
        self._wake_signal = wake_signal
        self._nodes: dict[str, Node] = {}
        self._run: DurableRun | None = None
        self._pending: dict[int, PendingInvocation] = {}  # by entry
        self._unsubscribe: Callable[[], None] | None = None
        self._store_changed = False  # since the last check

    @property
    def outstanding(self) -> int:
        """The number of entries that have not ended, or whose end was not seen yet."""
        return len(self._pending)

    def pending(self) -> tuple[PendingInvocation, ...]:
        """Return the invocations in flight, for a checkpoint."""
        return tuple(self._pending.values())

    def add_component(self, node: Node) -> None:
        """Add a component to this lane."""
        self._nodes[node.id] = node

    def open(self, run: DurableRun, pending: Sequence[PendingInvocation]) -> None:
        """Begin, with the invocations that an earlier process left in flight."""
        unknown = sorted({each.component_id for each in pending} - set(self._nodes))
        if unknown:
            names = ", ".join(unknown)
            raise GraphRunFailed(
                f"the graph has changed since this run began: {names} is not on a queue lane",
                hint=NEW_RUN_HINT,
            )
        self._run = run
        self._pending = {each.entry_id: each for each in pending}
        self._store_changed = True  # entries may have ended before this process subscribed
        self._unsubscribe = run.on_change(self._on_store_change)

    def close(self) -> None:
        """Stop listening to the store; entries in flight continue without this process."""
        if self._unsubscribe is not None:
            self._unsubscribe()

    def _on_store_change(self) -> None:
        self._store_changed = True
        self._wake_signal.notify()

    def has_ended_entries(self) -> bool:
        """Return whether an entry has ended that the next epoch boundary would commit."""
        if not self._store_changed:
            return False
        self._store_changed = False  # cleared first: later changes are for the next check
        try:
            has_ended = bool(self._durable_run.ended(tuple(self._pending)))
        except RotaError:  # the epoch boundary will fail with it too, and report it
            has_ended = True
        if has_ended:  # set until an epoch boundary has committed them
            self._store_changed = True
        return has_ended

    def commit_ended(self) -> None:
        """Commit every invocation whose entry has ended, oldest first."""
        self._store_changed = False
        retries: list[PendingInvocation] = []
        may_continue = True
        for entry_id, outcome in sorted(self._call_kernel(lambda run: run.ended(tuple(self._pending))).items()):
            pending = self._pending.pop(entry_id)
            if self._should_retry(pending, outcome):
                retries.append(msgspec.structs.replace(pending, attempt=pending.attempt + 1))
            else:
                may_continue = self._commit_outcome(pending, outcome) and may_continue
        self._put(retries)
        if not may_continue:
            raise RunStopped

    def enqueue(self, node: Node, ready: Sequence[Inputs], epoch_id: int) -> None:
        """Enqueue a component's invocations that are ready in an epoch."""
        name = f"{self._run_id}/{epoch_id}/{node.id}"
        self._put(
            [
                PendingInvocation(name=f"{name}/{index}", component_id=node.id, epoch_id=epoch_id, inputs=inputs)
                for index, inputs in enumerate(ready)
            ]
        )

    def _put(self, wanted: Sequence[PendingInvocation]) -> None:
        """Enqueue all invocations that can be encoded, in one commit; the others fail one by one."""
        requests: list[EntryRequest] = []
        fitting: list[PendingInvocation] = []
        for pending in wanted:
            node = self._nodes[pending.component_id]
            try:
                requests.append(EntryRequest(pending.key, self._payload(node, pending), node.rank))
                fitting.append(pending)
            except ComponentInvalid as problem:
                if not self._committer.fail(node, problem):
                    raise RunStopped from problem
        if requests:
            for pending, entry_id in zip(fitting, self._call_kernel(lambda run: run.enqueue(requests)), strict=True):
                self._pending[entry_id] = msgspec.structs.replace(pending, entry_id=entry_id)
            self._measure()
            self._store_changed = True  # after a restart the entry of this key may have ended already

    def _measure(self) -> None:
        in_flight = Counter(self._nodes[pending.component_id].lane.id for pending in self._pending.values())
        for lane, count in in_flight.items():
            self._meters[lane].in_flight_count = max(self._meters[lane].in_flight_count, count)

    def _payload(self, node: Node, pending: PendingInvocation) -> dict[str, Any]:
        payload = {
            "run": self._run_id,
            "epoch": pending.epoch_id,
            "invocation": pending.name,
            "attempt": pending.attempt,
            "component": node.id,
            "type": node.spec.type,
            "lane": node.lane.id,
            "config": json_value(f"the configuration of component {node.id}", dict(node.spec.config)),
            "graph_config": json_value("the configuration of the graph", dict(self._scope.config)),
            "channel_ports": list(node.component.channel_ports),
            "output_ports": sorted(node.component.output_ports),
            "fills": node.trigger.fills_every_input,
            "budget_s": node.component.budget_s,
            "inputs": _checked_inputs(node, pending.inputs),
        }
        size = len(msgspec.json.encode(payload))
        if size > PAYLOAD_BYTES_MAX:
            raise ComponentInvalid(
                f"an entry of component {node.id} has {size:,} bytes; the maximum is {PAYLOAD_BYTES_MAX:,}",
                hint="Publish less data, or a reference to where it is stored.",
                component_id=node.id,
            )
        return payload

    def _should_retry(self, pending: PendingInvocation, outcome: EntryOutcome) -> bool:
        attempts_max = self._nodes[pending.component_id].component.attempts_max
        return not outcome.succeeded and pending.attempt < attempts_max and not self._committer.stop_token.is_set

    def _commit_outcome(self, pending: PendingInvocation, outcome: EntryOutcome) -> bool:
        node = self._nodes[pending.component_id]
        invocation = Invocation(node.component, self._scope, pending.inputs, pending.epoch_id)
        invocation.begin()
        invocation.attempt = pending.attempt
        try:
            result = _result(node, outcome)
        except RotaError as problem:
            invocation.end(problem)
        else:
            invocation.end()
            invocation.staged = result.published
            invocation.started_at_s = invocation.ended_at_s - result.duration_s  # as the worker measured it
        return self._committer.commit(node, invocation)

    @property
    def _durable_run(self) -> DurableRun:
        assert self._run is not None  # noqa: S101  # `open` comes before the first epoch
        return self._run

    def _call_kernel(self, call: Callable[[DurableRun], T]) -> T:
        """Call the kernel. If it refuses, the run ends, but nothing is lost: the epoch can be repeated."""
        try:
            return call(self._durable_run)
        except RotaError as problem:
            self._committer.reports.error("runtime", "queue_unavailable", error_text(problem))
            raise RunStopped from problem


def _checked_inputs(node: Node, inputs: Inputs) -> Any:
    for given in inputs:
        for message in given if isinstance(given, tuple) else (given,):
            if message is not None:
                json_value(f"a message from edge {message.channel_id} to component {node.id}", message.payload)
    return msgspec.to_builtins(inputs)


def _result(node: Node, outcome: EntryOutcome) -> EntryResult:
    """Return the result of an entry; raises if the entry failed."""
    if not outcome.succeeded:
        raise GraphRunFailed(outcome.error)
    try:
        return convert(outcome.result, EntryResult)
    except msgspec.ValidationError as problem:
        raise ComponentInvalid(
            f"an entry of component {node.id} was completed with a result that has no publications: {problem}",
            hint="Run entries with `EntryWorker` or `run_entry`.",
        ) from problem


class QueueStep:
    """A component's step in an epoch: its ready invocations become entries."""

    def __init__(self, node: Node, lane: QueueLane, committer: Committer) -> None:
        self.nodes: tuple[Node, ...] = (node,)
        self._node = node
        self._lane = lane
        self._committer = committer
        lane.add_component(node)

    def run(self, epoch_id: int, iteration_id: int, /) -> int:
        """Enqueue every ready invocation; return the number of invocations."""
        node = self._node
        if node.is_isolated:
            return 0
        ready = node.trigger.collect(self._committer.clock.monotonic(), iteration_id)
        self._lane.enqueue(node, ready, epoch_id)
        return len(ready)
