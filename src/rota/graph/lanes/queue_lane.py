"""The queue lane: an invocation becomes an entry of the durable queue, and the graph goes on when the entry has ended.

A ready invocation is enqueued with everything needed to run it elsewhere, as JSON, under a key made of run, epoch,
component and its number in that epoch. The epoch does not wait. At the first boundary after the entry has ended, what
it published is committed along the component's async edges; a failure is settled like any other, and with
`on_error: retry` the invocation is enqueued again under a key of its own. Whoever works off the queue runs entries with
`entry_worker`.

Because the key is a matter of the graph and not of this process, enqueueing the same invocation twice adds nothing.
That is what makes it safe to repeat an epoch after a crash (see `checkpoint`).

The store says after every commit that something changed. That is only noted; the run's own thread then looks whether
an entry of its own has ended, when it has nothing else to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from rota.errors import ComponentInvalid, GraphRunFailed, RotaError
from rota.graph.execution import Settlement
from rota.graph.invocation import Invocation, Scope
from rota.graph.lanes.as_json import as_json
from rota.graph.lanes.durable import DurableRun, EntryOutcome, EntryRequest, EntryResult
from rota.graph.messages import Inputs
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Node
from rota.graph.reports import RunStopped, words
from rota.graph.stop import Bell
from rota.model.checks import PAYLOAD_BYTES_MAX

__all__ = ["Pending", "QueueLane", "QueueStep"]

T = TypeVar("T")


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """An invocation whose entry has not ended yet."""

    entry_id: int = 0  # 0: it has none yet
    name: str  # run, epoch, component and number
    component_id: str
    epoch_id: int
    inputs: Inputs
    attempt: int = 1

    @property
    def key(self) -> str:
        """What makes its entry the only one; each attempt has one of its own."""
        return f"graph/{self.name}" if self.attempt == 1 else f"graph/{self.name}~{self.attempt}"


class QueueLane:
    """All queue lanes of a run: they share one durable queue. Only the run's thread calls it, except for `_ring`."""

    def __init__(
        self, run_id: str, settlement: Settlement, scope: Scope, bell: Bell, meters: Mapping[str, LaneMeter]
    ) -> None:
        self._run_id = run_id
        self._meters = meters
        self._settlement = settlement
        self._scope = scope
        self._bell = bell
        self._nodes: dict[str, Node] = {}
        self._run: DurableRun | None = None
        self._pending: dict[int, Pending] = {}  # by entry
        self._leave_alone: Callable[[], None] | None = None
        self._something_changed = False  # in the store, since the last look

    @property
    def outstanding(self) -> int:
        """Entries that have not ended, or whose end has not been seen."""
        return len(self._pending)

    def pending(self) -> tuple[Pending, ...]:
        """Invocations under way, to be written down."""
        return tuple(self._pending.values())

    def occupy(self, node: Node) -> None:
        """Serve this component too."""
        self._nodes[node.id] = node

    def open(self, run: DurableRun, pending: Sequence[Pending]) -> None:
        """Begin, with invocations that an earlier process left under way."""
        strangers = sorted({each.component_id for each in pending} - set(self._nodes))
        if strangers:
            gone = ", ".join(strangers)
            raise GraphRunFailed(
                f"the graph has changed since this run began: {gone} is on no queue lane", hint="Use a new run id."
            )
        self._run = run
        self._pending = {each.entry_id: each for each in pending}
        self._something_changed = True  # nobody told us about what ended meanwhile
        self._leave_alone = run.on_change(self._ring)

    def close(self) -> None:
        """End; entries under way go on without this process."""
        if self._leave_alone is not None:
            self._leave_alone()

    def _ring(self) -> None:
        self._something_changed = True
        self._bell.ring()

    def has_news(self) -> bool:
        """Whether an entry has ended that the next boundary would settle."""
        if not self._something_changed:
            return False
        self._something_changed = False  # first: what changes from now on is for the next look
        try:
            news = bool(self._opened.ended(tuple(self._pending)))
        except RotaError:  # the boundary will meet it too, and report it
            news = True
        if news:  # it stays news until a boundary has seen to it
            self._something_changed = True
        return news

    def cross_boundary(self) -> None:
        """Settle every invocation whose entry has ended, oldest first."""
        self._something_changed = False
        again: list[Pending] = []
        goes_on = True
        for entry_id, outcome in sorted(self._ask(lambda run: run.ended(tuple(self._pending))).items()):
            pending = self._pending.pop(entry_id)
            if self._may_try_again(pending, outcome):
                again.append(msgspec.structs.replace(pending, attempt=pending.attempt + 1))
            else:
                goes_on = self._settle(pending, outcome) and goes_on
        self._put(again)
        if not goes_on:
            raise RunStopped

    def enqueue(self, node: Node, ready: Sequence[Inputs], epoch_id: int) -> None:
        """Make entries of the invocations of a component that are ready in an epoch."""
        name = f"{self._run_id}/{epoch_id}/{node.id}"
        self._put(
            [
                Pending(name=f"{name}/{at}", component_id=node.id, epoch_id=epoch_id, inputs=inputs)
                for at, inputs in enumerate(ready)
            ]
        )

    def _put(self, wanted: Sequence[Pending]) -> None:
        """Enqueue all that can be, in one commit; what cannot fails by itself."""
        requests: list[EntryRequest] = []
        fitting: list[Pending] = []
        for pending in wanted:
            node = self._nodes[pending.component_id]
            try:
                requests.append(EntryRequest(pending.key, self._payload(node, pending), node.rank))
                fitting.append(pending)
            except ComponentInvalid as problem:
                if not self._settlement.fail(node, problem):
                    raise RunStopped from problem
        if requests:
            for pending, entry_id in zip(fitting, self._ask(lambda run: run.enqueue(requests)), strict=True):
                self._pending[entry_id] = msgspec.structs.replace(pending, entry_id=entry_id)
            self._measure()
            self._something_changed = True  # after a restart an entry of this key may have ended long ago

    def _measure(self) -> None:
        under_way = Counter(self._nodes[pending.component_id].lane.id for pending in self._pending.values())
        for lane, count in under_way.items():
            self._meters[lane].in_flight_count = max(self._meters[lane].in_flight_count, count)

    def _payload(self, node: Node, pending: Pending) -> dict[str, Any]:
        payload = {
            "run": self._run_id,
            "epoch": pending.epoch_id,
            "invocation": pending.name,
            "attempt": pending.attempt,
            "component": node.id,
            "type": node.spec.type,
            "lane": node.lane.id,
            "config": as_json(f"the configuration of {node.id}", dict(node.spec.config)),
            "graph_config": as_json("the configuration of the graph", dict(self._scope.config)),
            "channel_ports": list(node.unit.channel_ports),
            "output_ports": sorted(node.unit.output_ports),
            "fills": node.trigger.fills,
            "budget_s": node.unit.budget_s,
            "inputs": _checked_inputs(node, pending.inputs),
        }
        size = len(msgspec.json.encode(payload))
        if size > PAYLOAD_BYTES_MAX:
            raise ComponentInvalid(
                f"an entry of {node.id} would take {size:,} bytes; the queue takes {PAYLOAD_BYTES_MAX:,}",
                hint="Send less, or where the data can be found.",
                component_id=node.id,
            )
        return payload

    def _may_try_again(self, pending: Pending, outcome: EntryOutcome) -> bool:
        attempts_max = self._nodes[pending.component_id].unit.attempts_max
        return not outcome.succeeded and pending.attempt < attempts_max and not self._settlement.stop_token.is_set

    def _settle(self, pending: Pending, outcome: EntryOutcome) -> bool:
        node = self._nodes[pending.component_id]
        invocation = Invocation(node.unit, self._scope, pending.inputs, pending.epoch_id)
        invocation.begin()
        invocation.attempt = pending.attempt
        try:
            result = _result(node, outcome)
        except RotaError as problem:
            invocation.end(problem)
        else:
            invocation.end()
            invocation.staged = result.published
            invocation.started_at_s = invocation.ended_at_s - result.duration_s  # as its worker measured it
        return self._settlement.settle(node, invocation)

    @property
    def _opened(self) -> DurableRun:
        assert self._run is not None  # noqa: S101  # an epoch begins after `open`
        return self._run

    def _ask(self, question: Callable[[DurableRun], T]) -> T:
        """Ask the kernel. Its refusal is nobody's failure but the run's: nothing is lost, the epoch can be repeated."""
        try:
            return question(self._opened)
        except RotaError as problem:
            self._settlement.reports.error("runtime", "queue_unavailable", words(problem))
            raise RunStopped from problem


def _checked_inputs(node: Node, inputs: Inputs) -> Any:
    for given in inputs:
        for message in given if isinstance(given, tuple) else (given,):
            if message is not None:
                as_json(f"what edge {message.channel_id} brings to {node.id}", message.payload)
    return msgspec.to_builtins(inputs)


def _result(node: Node, outcome: EntryOutcome) -> EntryResult:
    """What an entry brought; raises when it failed."""
    if not outcome.succeeded:
        raise GraphRunFailed(outcome.error)
    try:
        return msgspec.convert(outcome.result, EntryResult)
    except msgspec.ValidationError as problem:
        raise ComponentInvalid(
            f"an entry of {node.id} was completed with a result that does not say what was published: {problem}",
            hint="Run entries with `EntryWorker`, or with `run_entry`.",
        ) from problem


class QueueStep:
    """A component's step in an epoch: its ready invocations become entries."""

    def __init__(self, node: Node, lane: QueueLane, settlement: Settlement) -> None:
        self.nodes: tuple[Node, ...] = (node,)
        self._node = node
        self._lane = lane
        self._settlement = settlement
        lane.occupy(node)

    def run(self, epoch_id: int, turn: int, /) -> int:
        """Enqueue every ready invocation; returns how many there were."""
        node = self._node
        if node.is_isolated:
            return 0
        ready = node.trigger.collect(self._settlement.clock.monotonic(), turn)
        self._lane.enqueue(node, ready, epoch_id)
        return len(ready)
