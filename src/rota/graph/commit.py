"""The end of an invocation: commit or discard its publications, count and trace it, and handle a failure.

An invocation is *executed* where its lane says, perhaps on another thread or in another process. It is *committed*
here, one after the other in the order of acceptance, by the thread that owns the channels it publishes to. Therefore
the same graph commits the same values on every lane.

A component that failed has published nothing. Its `on_error` decides what happens next:

    fail_fast   the run ends with this error
    continue    the error is recorded; the component runs again when it is next ready
    isolate     the error is recorded; the component is removed from the run, and its messages are dropped
    retry       all `max_attempts` attempts have failed by now; then as fail_fast
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.clock import Clock
from rota.errors import GraphRunFailed, RotaError
from rota.graph.budget_gate import StartedOverBudget, over_budget_message
from rota.graph.calling import publications
from rota.graph.channels import ChannelFull
from rota.graph.invocation import Invocation, Publication
from rota.graph.messages import Inputs, Origin, origin_of
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Node, check_room, publish
from rota.graph.reports import Reports, error_text
from rota.graph.scope import SharedState
from rota.graph.stop import StopToken
from rota.graph.tracing import ExecutionRow, PlainExecutionRow, TraceRecorder
from rota.model.graph_budgets import GraphBudgetLine

__all__ = ["Committer"]

NO_ATTRIBUTES: Mapping[str, str] = {}


class Committer:
    """Commits the invocations of a run."""

    def __init__(
        self,
        clock: Clock,
        stop_token: StopToken,
        reports: Reports,
        *,
        recorder: TraceRecorder | None,
        state: SharedState,
        meters: Mapping[str, LaneMeter],
    ) -> None:
        self.clock = clock
        self.stop_token = stop_token
        self.reports = reports
        self.recorder = recorder
        self._state = state
        self._meters = meters
        self.fails_closed = False  # an invocation that takes longer than its budget ends the run

    def commit(self, node: Node, invocation: Invocation) -> bool:
        """Commit what an invocation staged, or handle its failure; False if the run must end."""
        origin = origin_of(invocation.inputs, invocation.epoch_id, invocation.ended_at_s)
        may_continue = True
        offered_before = self._offered(node)
        if invocation.problem is None:
            invocation.problem = self._publish_staged(node, invocation, origin)
        if invocation.problem is None:
            node.completed += 1
            node.converged = invocation.converged or node.converged
            node.residual = node.residual if invocation.residual is None else invocation.residual
        elif isinstance(invocation.problem, StartedOverBudget):
            line, reason = invocation.problem.line, error_text(invocation.problem)
            may_continue = self.over_budget(node, line, reason, invocation.inputs, invocation.epoch_id)
        else:
            may_continue = self.fail(node, invocation.problem, invocation.code)
        self._count(node, invocation)
        if self.recorder is not None:
            self._trace(node, invocation, origin, offered_before)
        return may_continue

    def commit_plain(  # noqa: PLR0917  # hot path: keyword arguments would add a third to its cost
        self,
        node: Node,
        inputs: Inputs,
        epoch_id: int,
        started_at_s: float,
        ended_at_s: float,
        returned: Any,
        worker_id: int | None,
    ) -> None:
        """Commit what a plain component returned: the same as `commit` in fewer steps."""
        if returned is not None or self.recorder is not None:
            origin = origin_of(inputs, epoch_id, ended_at_s)
            numbers: tuple[int, ...] | None = None
            if returned is not None:
                if node.component.output is None:
                    publications(node.component, returned)  # raises: the component has no output
                publish(node.output_route, returned, origin)
            if self.recorder is not None:
                if returned is not None:
                    numbers = tuple([channel.offered for channel in node.output_route.immediate])
                self.recorder.rows.append(
                    PlainExecutionRow(node.label, worker_id, started_at_s, ended_at_s, origin, numbers)
                )
        duration_s = ended_at_s - started_at_s
        node.completed += 1
        node.busy_s += duration_s
        if node.component.budget_s and duration_s > node.component.budget_s:
            self.record_over_budget(node, epoch_id, ended_at_s, duration_s, worker_id)
        if self.stop_token.is_set:
            self.record_cancellation(node, epoch_id, worker_id, observed=False)

    def _publish_staged(self, node: Node, invocation: Invocation, origin: Origin) -> Exception | None:
        try:
            if node.map_over is not None:
                node.map_over.keep(invocation.inputs, invocation.staged)
                self._state.stage(invocation.new_state)
                return None
            if node.must_check_room:
                check_room(node, invocation.staged)
            for publication in invocation.staged:
                route = node.routes.get(publication.port)
                if route is not None:
                    publish(route, publication.payload, origin, publication.timestamp_ms)
            self._state.stage(invocation.new_state)
        except ChannelFull as problem:
            invocation.code = "channel_overflow"
            return problem
        except RotaError as problem:  # a payload that cannot be copied
            return problem
        return None

    def publish_list(self, node: Node, values: list[Any], inputs: Inputs, epoch_id: int) -> bool:
        """Publish the results of all items of a list that a component maps over; False if the run must end."""
        try:
            check_room(node, [Publication(node.component.output or "", values)])
            publish(node.output_route, values, origin_of(inputs, epoch_id, self.clock.monotonic()))
        except ChannelFull as problem:
            return self.fail(node, problem, "channel_overflow")
        except RotaError as problem:  # a payload that cannot be copied
            return self.fail(node, problem)
        return True

    def fail(self, node: Node, problem: BaseException, code: str = "component_execute") -> bool:
        """Apply the component's `on_error`; False if the run must end."""
        node.failed += 1
        fatal = node.on_error in ("fail_fast", "retry") or code == "channel_overflow"
        self.reports.error(
            "runtime" if code == "channel_overflow" else "execute",
            code,
            error_text(problem),
            component_id=node.id,
            lane=node.lane.id,
            fatal=fatal,
        )
        if node.on_error == "isolate" and not node.is_isolated:
            node.isolate()
            message = f"component {node.id} failed and was removed from the run (on_error: isolate)"
            self.reports.health("component_isolated", message, component_id=node.id, lane=node.lane.id)
        return not fatal

    def over_budget(self, node: Node, line: GraphBudgetLine | None, reason: str, inputs: Inputs, epoch_id: int) -> bool:
        """Apply the component's `on_over_budget` to an invocation that is not run, or was stopped; False: end the run.

        One that waits is handled before it comes to this.
        """
        self.reports.health("over_budget", reason, component_id=node.id, lane=node.lane.id)
        if node.over_budget_route is None:
            return self.fail(node, GraphRunFailed(reason), "over_budget")
        payload = over_budget_message(node.id, line, reason)
        try:
            publish(node.over_budget_route, payload, origin_of(inputs, epoch_id, self.clock.monotonic()))
        except ChannelFull as problem:
            return self.fail(node, problem, "channel_overflow")
        return True

    def _count(self, node: Node, invocation: Invocation) -> None:
        duration_s = invocation.ended_at_s - invocation.started_at_s
        node.busy_s += duration_s
        node.retries += max(0, invocation.attempt - 1)
        node.last_epoch_id = invocation.epoch_id
        self._meters[node.lane.id].last_callback_s = duration_s
        budget_s = node.component.budget_s
        if budget_s and duration_s > budget_s:
            spent_at_s = invocation.budget_spent_at_s or invocation.ended_at_s
            self.record_over_budget(node, invocation.epoch_id, spent_at_s, duration_s, invocation.worker_id)
        if self.stop_token.is_set:
            self.record_cancellation(
                node, invocation.epoch_id, invocation.worker_id, observed=invocation.cancel_observed
            )

    def record_suppression(self, node: Node, epoch_id: int) -> None:
        """Record that messages wait for a component whose trigger is not ready, if any do."""
        waiting = sum(len(channel) for channel in node.trigger.woken_by)
        if not node.trigger.may_be_ready:
            return
        node.suppressions += 1
        if self.recorder is not None:
            why = {"trigger": node.spec.trigger_policy.type, "waiting": str(waiting)}
            self._instant("trigger_suppressed", node, epoch_id, self.clock.monotonic(), None, why)

    def record_over_budget(
        self, node: Node, epoch_id: int, at_s: float, duration_s: float, worker_id: int | None = None
    ) -> None:
        """Record that an invocation exceeded its budget."""
        node.budgets_exceeded += 1
        if self.fails_closed and not node.spec.execution.agent:  # an agent is not on the island's cores
            took = f"{duration_s * 1000:.3f} ms of {node.component.budget_s * 1000:g} ms"
            self.reports.error("execute", "island_overrun", f"it used {took}: the island stops", component_id=node.id)
        if self.recorder is not None:
            used = {"budget_ms": f"{node.component.budget_s * 1000:g}", "duration_ms": f"{duration_s * 1000:.3f}"}
            self._instant("component_timeout_budget_exceeded", node, epoch_id, at_s, worker_id, used)

    def record_cancellation(self, node: Node, epoch_id: int, worker_id: int | None = None, *, observed: bool) -> None:
        """Record that a stop was requested before an invocation ended, and whether the component checked for it."""
        node.cancellations_requested += 1
        node.cancellations_observed += observed
        if self.recorder is not None:
            now_s = self.clock.monotonic()
            self._instant("component_cancellation_requested", node, epoch_id, now_s, worker_id, NO_ATTRIBUTES)
            if observed:
                self._instant("component_cancellation_observed", node, epoch_id, now_s, worker_id, NO_ATTRIBUTES)

    def _instant(  # noqa: PLR0917  # one line at each of its three callers
        self, name: str, node: Node, epoch_id: int, at_s: float, worker_id: int | None, attributes: Mapping[str, str]
    ) -> None:
        if self.recorder is not None:
            self.recorder.instant(
                name,
                at_s,
                epoch_id,
                component_id=node.id,
                lane=node.lane.id,
                worker_id=worker_id,
                attributes=attributes,
            )

    def _offered(self, node: Node) -> dict[str, int]:
        """Return how many messages each edge was offered so far, to find later what this invocation added."""
        if self.recorder is None:
            return {}
        return {channel.id: channel.offered for route in node.routes.values() for channel in route.immediate}

    def _trace(self, node: Node, invocation: Invocation, origin: Origin, offered_before: Mapping[str, int]) -> None:
        committed = tuple(
            (channel.id, number)
            for route in node.routes.values()
            for channel in route.immediate
            for number in range(offered_before[channel.id] + 1, channel.offered + 1)
        )
        deferred = () if invocation.problem else _deferred_edges(node, invocation.staged)
        self.recorder.rows.append(  # type: ignore[union-attr]  # the caller has checked
            ExecutionRow(
                node.id,
                node.lane.id,
                invocation.worker_id,
                invocation.started_at_s,
                invocation.ended_at_s,
                origin,
                committed,
                deferred,
                _attributes(invocation),
            )
        )
        for name, attributes in invocation.loop_events:
            self._instant(name, node, invocation.epoch_id, invocation.ended_at_s, invocation.worker_id, attributes)


def _deferred_edges(node: Node, staged: list[Publication]) -> tuple[str, ...]:
    routes = (node.routes.get(publication.port) for publication in staged)
    return tuple(channel.id for route in routes if route for channel in route.deferred)


def _attributes(invocation: Invocation) -> Mapping[str, str]:
    if invocation.problem is not None:
        return {"error": error_text(invocation.problem), "attempts": str(invocation.attempt)}
    return {"attempts": str(invocation.attempt)} if invocation.attempt > 1 else NO_ATTRIBUTES
