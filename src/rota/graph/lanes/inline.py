"""Running a component where the scheduler stands: the event_loop and fixed_rate lanes.

One thread, no queue, no lock: a ready component is called, what it returns is put on its edges, and the next one is
looked at. This is the path most invocations take, so it is written for few steps: a plain component (see `calling`)
costs its call, two looks at the clock, one `Origin` and one `Message` per edge. The general path does the same through
an `Invocation`, and a test holds the two equal.
"""

from __future__ import annotations

from rota.graph.calling import Coroutines, perform
from rota.graph.execution import Settlement
from rota.graph.invocation import Invocation, Scope
from rota.graph.messages import Inputs
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Node
from rota.graph.reports import RunStopped

__all__ = ["InlineStep"]


class InlineStep:
    """A component's step in an epoch, executed on the scheduler's own thread."""

    def __init__(
        self, node: Node, settlement: Settlement, scope: Scope, coroutines: Coroutines, meter: LaneMeter
    ) -> None:
        self.nodes: tuple[Node, ...] = (node,)
        self._node = node
        self._settlement = settlement
        self._scope = scope
        self._coroutines = coroutines
        self._meter = meter
        self._clock = settlement.clock
        self._trigger = node.trigger
        self._is_timed = node.trigger.is_timed

    def run(self, epoch_id: int, turn: int) -> int:
        """Execute every ready invocation of the component; returns how many there were."""
        if self._node.is_isolated:
            return 0
        ready = self._trigger.collect(self._clock.monotonic() if self._is_timed else 0.0, turn)
        if not ready:
            return 0
        return self._run_plain(ready, epoch_id) if self._node.is_plain else self._run_general(ready, epoch_id)

    def _run_general(self, ready: list[Inputs], epoch_id: int) -> int:
        node = self._node
        for executed, inputs in enumerate(ready):
            if node.is_isolated:
                return executed
            invocation = Invocation(node.unit, self._scope, inputs, epoch_id)
            perform(node.unit, invocation, self._coroutines)
            if not self._settlement.settle(node, invocation):
                raise RunStopped
        return len(ready)

    def _run_plain(self, ready: list[Inputs], epoch_id: int) -> int:
        node, settle, monotonic = self._node, self._settlement.settle_plain, self._clock.monotonic
        call, duration_s = node.unit.call, 0.0
        for executed, inputs in enumerate(ready):
            if node.is_isolated:
                return executed
            started_at_s = monotonic()
            try:
                returned = call(inputs, None)
                ended_at_s = monotonic()
                settle(node, inputs, epoch_id, started_at_s, ended_at_s, returned, None)
                duration_s = ended_at_s - started_at_s
            except Exception as problem:  # a component's failure is a result, not ours
                duration_s = self._failed(problem, started_at_s, inputs, epoch_id)
        node.last_epoch_id = epoch_id
        self._meter.last_callback_s = duration_s
        return len(ready)

    def _failed(self, problem: Exception, started_at_s: float, inputs: Inputs, epoch_id: int) -> float:
        """The rare end of the short path: settle it like any other failure; returns how long it took."""
        invocation = Invocation(self._node.unit, self._scope, inputs, epoch_id)
        invocation.attempt, invocation.started_at_s = 1, started_at_s
        invocation.end(problem)
        if not self._settlement.settle(self._node, invocation):
            raise RunStopped
        return invocation.ended_at_s - started_at_s
