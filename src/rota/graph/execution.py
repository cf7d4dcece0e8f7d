"""What becomes of an invocation after it ran: commit or throw away, count, trace, and deal with a failure.

An invocation is *performed* wherever its lane says, perhaps on another thread or in another process. It is *settled*
here, one after the other in the order of admission, by whoever owns the channels it publishes to. That is why the same
graph commits the same values on every lane.

A component that fails has committed nothing. Its `on_error` then decides:

    fail_fast   the run ends with this error
    continue    the error is recorded; the component runs again when it is next ready
    isolate     the error is recorded; the component takes part no more, and nothing waits for it
    retry       it was tried `max_attempts` times in a row before it came here; then as fail_fast
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rota.clock import Clock
from rota.errors import RotaError
from rota.graph.calling import publications
from rota.graph.channels import ChannelFull
from rota.graph.invocation import Invocation, Publication
from rota.graph.messages import Inputs, Origin, origin_of
from rota.graph.metrics import LaneMeter
from rota.graph.nodes import Node, check_room, publish
from rota.graph.reports import Reports, words
from rota.graph.state import SharedState
from rota.graph.stop import StopToken
from rota.graph.tracing import Brief, Executed, Recorder

__all__ = ["Settlement"]

NO_ATTRIBUTES: Mapping[str, str] = {}


class Settlement:
    """Settles the invocations of a run."""

    def __init__(
        self,
        clock: Clock,
        stop_token: StopToken,
        reports: Reports,
        *,
        recorder: Recorder | None,
        state: SharedState,
        meters: Mapping[str, LaneMeter],
    ) -> None:
        self.clock = clock
        self.stop_token = stop_token
        self.reports = reports
        self.recorder = recorder
        self._state = state
        self._meters = meters

    def settle(self, node: Node, invocation: Invocation) -> bool:
        """Commit what an invocation staged, or deal with its failure; False when the run must end."""
        origin = origin_of(invocation.inputs, invocation.epoch_id, invocation.ended_at_s)
        goes_on = True
        before = self._offered(node)
        if invocation.problem is None:
            invocation.problem = self._commit(node, invocation, origin)
        if invocation.problem is None:
            node.completed += 1
            node.converged = invocation.converged or node.converged
            node.residual = node.residual if invocation.residual is None else invocation.residual
        else:
            goes_on = self.fail(node, invocation.problem, invocation.code)
        self._count(node, invocation)
        if self.recorder is not None:
            self._trace(node, invocation, origin, before)
        return goes_on

    def settle_plain(  # noqa: PLR0917  # once per invocation: named arguments would cost a third of it
        self,
        node: Node,
        inputs: Inputs,
        epoch_id: int,
        started_at_s: float,
        ended_at_s: float,
        returned: Any,
        worker_id: int | None,
    ) -> None:
        """Commit what a plain component returned. It does what `settle` does, in fewer steps."""
        if returned is not None or self.recorder is not None:
            origin = origin_of(inputs, epoch_id, ended_at_s)
            numbers: tuple[int, ...] | None = None
            if returned is not None:
                if node.unit.output is None:
                    publications(node.unit, returned)  # which refuses: there is nowhere to publish it
                publish(node.out, returned, origin)
            if self.recorder is not None:
                if returned is not None:
                    numbers = tuple([channel.offered for channel in node.out.now])
                self.recorder.rows.append(Brief(node.label, worker_id, started_at_s, ended_at_s, origin, numbers))
        duration_s = ended_at_s - started_at_s
        node.completed += 1
        node.busy_s += duration_s
        if node.unit.budget_s and duration_s > node.unit.budget_s:
            self.note_budget(node, epoch_id, ended_at_s, duration_s, worker_id)
        if self.stop_token.is_set:
            self.note_cancellation(node, epoch_id, worker_id, observed=False)

    def _commit(self, node: Node, invocation: Invocation, origin: Origin) -> Exception | None:
        try:
            if node.guarded:
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

    def fail(self, node: Node, problem: BaseException, code: str = "component_execute") -> bool:
        """Do what the component's `on_error` says; False when the run must end."""
        node.failed += 1
        fatal = node.on_error in ("fail_fast", "retry") or code == "channel_overflow"
        self.reports.error(
            "runtime" if code == "channel_overflow" else "execute",
            code,
            words(problem),
            component_id=node.id,
            lane=node.lane.id,
            fatal=fatal,
        )
        if node.on_error == "isolate" and not node.is_isolated:
            node.isolate()
            message = f"component {node.id} failed and takes part no more"
            self.reports.health("component_isolated", message, component_id=node.id, lane=node.lane.id)
        return not fatal

    def _count(self, node: Node, invocation: Invocation) -> None:
        duration_s = invocation.ended_at_s - invocation.started_at_s
        node.busy_s += duration_s
        node.retries += max(0, invocation.attempt - 1)
        node.last_epoch_id = invocation.epoch_id
        self._meters[node.lane.id].last_callback_s = duration_s
        budget_s = node.unit.budget_s
        if budget_s and duration_s > budget_s:
            spent_at_s = invocation.budget_spent_at_s or invocation.ended_at_s
            self.note_budget(node, invocation.epoch_id, spent_at_s, duration_s, invocation.worker_id)
        if self.stop_token.is_set:
            self.note_cancellation(node, invocation.epoch_id, invocation.worker_id, observed=invocation.cancel_observed)

    def note_budget(
        self, node: Node, epoch_id: int, at_s: float, duration_s: float, worker_id: int | None = None
    ) -> None:
        """An invocation took longer than it may."""
        node.budgets_exceeded += 1
        if self.recorder is not None:
            used = {"budget_ms": f"{node.unit.budget_s * 1000:g}", "duration_ms": f"{duration_s * 1000:.3f}"}
            self._instant("component_timeout_budget_exceeded", node, epoch_id, at_s, worker_id, used)

    def note_cancellation(self, node: Node, epoch_id: int, worker_id: int | None = None, *, observed: bool) -> None:
        """A stop was requested before an invocation ended, and perhaps the component looked."""
        node.cancellations_requested += 1
        node.cancellations_observed += observed
        if self.recorder is not None:
            now_s = self.clock.monotonic()
            self._instant("component_cancellation_requested", node, epoch_id, now_s, worker_id, NO_ATTRIBUTES)
            if observed:
                self._instant("component_cancellation_observed", node, epoch_id, now_s, worker_id, NO_ATTRIBUTES)

    def _instant(  # noqa: PLR0917  # one event, said in one line by its three callers
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
        """How many messages each edge had been offered, to tell later what this invocation added."""
        if self.recorder is None:
            return {}
        return {channel.id: channel.offered for route in node.routes.values() for channel in route.now}

    def _trace(self, node: Node, invocation: Invocation, origin: Origin, before: Mapping[str, int]) -> None:
        committed = tuple(
            (channel.id, number)
            for route in node.routes.values()
            for channel in route.now
            for number in range(before[channel.id] + 1, channel.offered + 1)
        )
        later = () if invocation.problem else _deferred_edges(node, invocation.staged)
        self.recorder.rows.append(  # type: ignore[union-attr]  # the caller looked
            Executed(
                node.id,
                node.lane.id,
                invocation.worker_id,
                invocation.started_at_s,
                invocation.ended_at_s,
                origin,
                committed,
                later,
                _attributes(invocation),
            )
        )


def _deferred_edges(node: Node, staged: list[Publication]) -> tuple[str, ...]:
    routes = (node.routes.get(publication.port) for publication in staged)
    return tuple(channel.id for route in routes if route for channel in route.later)


def _attributes(invocation: Invocation) -> Mapping[str, str]:
    if invocation.problem is not None:
        return {"error": words(invocation.problem), "attempts": str(invocation.attempt)}
    return {"attempts": str(invocation.attempt)} if invocation.attempt > 1 else NO_ATTRIBUTES
