"""The event_loop and fixed_rate lanes: components run on the run's own thread.

One thread, no queue, no lock: a ready component is called, its result is put on its edges, and the next component
follows. Most invocations take this path, so it is written for few steps: a plain component (see `calling`) costs its
call, two clock reads, one `Origin` and one `Message` per edge. The general path does the same through an `Invocation`;
a test checks that both have the same effect.
"""

from __future__ import annotations

from rota.graph.calling import CoroutineRunner, execute
from rota.graph.commit import Committer
from rota.graph.fan_out import expand, publish_lists
from rota.graph.invocation import Invocation, Scope
from rota.graph.messages import Inputs
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Node
from rota.graph.reports import COMPONENT_FAILURES, RunStopped

__all__ = ["InlineStep"]


class InlineStep:
    """A component's step in an epoch, executed on the run's own thread."""

    def __init__(
        self, node: Node, committer: Committer, scope: Scope, coroutines: CoroutineRunner, meter: LaneMeter
    ) -> None:
        self.nodes: tuple[Node, ...] = (node,)
        self._node = node
        self._committer = committer
        self._scope = scope
        self._coroutines = coroutines
        self._meter = meter
        self._clock = committer.clock
        self._trigger = node.trigger
        self._is_timed = node.trigger.is_timed

    def run(self, epoch_id: int, iteration_id: int) -> int:
        """Execute every ready invocation of the component; return the number of invocations."""
        if self._node.is_isolated:
            return 0
        ready = self._trigger.collect(self._clock.monotonic() if self._is_timed else 0.0, iteration_id)
        if self._node.map_over is not None:
            ready = expand(self._node, ready, self._committer, epoch_id)
        if not ready:
            if self._node.holds_messages:
                self._committer.record_suppression(self._node, epoch_id)
            return 0
        return self._run_plain(ready, epoch_id) if self._node.is_plain else self._run_general(ready, epoch_id)

    def _run_general(self, ready: list[Inputs], epoch_id: int) -> int:
        node = self._node
        for executed, inputs in enumerate(ready):
            if node.is_isolated:
                return executed
            invocation = Invocation(node.component, self._scope, inputs, epoch_id)
            execute(node.component, invocation, self._coroutines)
            if not self._committer.commit(node, invocation):
                raise RunStopped
        if not publish_lists(node, ready, self._committer, epoch_id):
            raise RunStopped
        return len(ready)

    def _run_plain(self, ready: list[Inputs], epoch_id: int) -> int:
        node, commit, monotonic = self._node, self._committer.commit_plain, self._clock.monotonic
        call, duration_s = node.component.call, 0.0
        for executed, inputs in enumerate(ready):
            if node.is_isolated:
                return executed
            started_at_s = monotonic()
            try:
                returned = call(inputs, None)
                ended_at_s = monotonic()
                commit(node, inputs, epoch_id, started_at_s, ended_at_s, returned, None)
                duration_s = ended_at_s - started_at_s
            except COMPONENT_FAILURES as problem:  # a result, not an error of the runner
                duration_s = self._failed(problem, started_at_s, inputs, epoch_id)
        node.last_epoch_id = epoch_id
        self._meter.last_callback_s = duration_s
        return len(ready)

    def _failed(self, problem: BaseException, started_at_s: float, inputs: Inputs, epoch_id: int) -> float:
        """Commit a failure of the plain path like any other; return how long the invocation took."""
        invocation = Invocation(self._node.component, self._scope, inputs, epoch_id)
        invocation.attempt, invocation.started_at_s = 1, started_at_s
        invocation.end(problem)
        if not self._committer.commit(self._node, invocation):
            raise RunStopped
        return invocation.ended_at_s - started_at_s
