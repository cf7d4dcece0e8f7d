"""Composite loops: the components of a cycle of immediate edges, going round until they agree.

In one epoch a loop goes round at least once and at most `max_iterations` times. In an iteration each member runs in the
order of the plan; what it publishes to other members is visible at once, everything that leaves the loop is kept back.
After each iteration these are asked, in this order, whether it was the last:

    1. convergence: single_pass, after_first_iteration and always end after the first; stable_state ends when the loop's
       own edges carried the same values as in the iteration before
    2. a member reported that it has converged           reason: component_report, or what it said
    3. the residual it reported is at the threshold or below                     residual_threshold
    4. the budget is spent                                                       budget_overrun
    5. it has gone round often enough                                            max_iterations

A loop also ends when nobody in it is ready any more (quiescent), when a member failed (component_error), and, from the
second iteration on, when the run was asked to stop (cancelled).

What was kept back is then committed as a whole, or thrown away as a whole: after an error always, after a solver that
did not converge unless `partial_success` says otherwise, and after a transaction that was cancelled.

    estimator ⇄ controller, controller → log;  max_iterations 5, residual_threshold 0.1

    iteration   controller publishes   residual   ends?                       log
    1           3.5                    0.9        no                          sees nothing yet
    2           3.1                    0.05       yes, residual_threshold     sees 3.5, then 3.1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from rota.graph.channels import Channel, ChannelFull
from rota.graph.execution import Settlement
from rota.graph.nodes import Deferred, DeferredList, Node
from rota.graph.plan import Region
from rota.graph.reports import RunStopped
from rota.graph.spec import LoopPolicy

__all__ = ["LoopOutcome", "LoopStep", "Step"]

_AFTER_ONE = ("single_pass", "after_first_iteration", "always")
_NOT_CONVERGED = ("budget_overrun", "max_iterations", "cancelled", "component_error", "quiescent")


class Step(Protocol):
    """A part of an epoch: one region, or a wave of them."""

    nodes: tuple[Node, ...]

    def run(self, epoch_id: int, turn: int, /) -> int:
        """Execute what is ready; returns how many invocations there were."""
        ...


class LoopOutcome(msgspec.Struct, frozen=True):
    """How a loop ended in one epoch."""

    loop_id: str
    epoch_id: int
    iterations: int
    reason: str
    committed: bool

    @property
    def converged(self) -> bool:
        """Whether it ended because its members agreed."""
        return self.reason not in _NOT_CONVERGED


class LoopStep:
    """A composite loop's step in an epoch."""

    def __init__(
        self,
        region: Region,
        policy: LoopPolicy,
        members: Sequence[Step],
        *,
        inner_edges: Sequence[Channel],
        kept_back: list[Deferred],
        deferred: DeferredList,
        settlement: Settlement,
    ) -> None:
        self.id = region.id
        self.nodes = tuple(node for step in members for node in step.nodes)
        self._policy = policy
        self._members = tuple(members)
        self._inner_edges = tuple(inner_edges)
        self._kept_back = kept_back  # what members published to the world outside
        self._deferred = deferred  # where that goes if it is not immediate
        self._settlement = settlement
        self._iterations_max = max(1, policy.max_iterations)
        self._turn = 0
        self._began_at_s = -math.inf
        self.outcome: LoopOutcome | None = None  # the latest
        self.runs = self.iterations = self.converged = self.budget_overruns = self.cancelled = self.discarded = 0

    def run(self, epoch_id: int, _turn: int, /) -> int:
        """Go round until the loop is over; returns how many invocations there were."""
        now_s = self._settlement.clock.monotonic()
        if now_s - self._began_at_s < self._policy.min_interval_ms / 1000:
            return 0
        if self._policy.type == "coalesced_event":
            for node in self.nodes:
                node.trigger.keep_newest()
        return self._go_round(epoch_id, now_s)

    def _go_round(self, epoch_id: int, began_at_s: float) -> int:
        executed_in_all, iteration = 0, 0
        values: dict[str, Any] = {}
        while True:
            if iteration and self._is_cancelled(epoch_id):
                reason = "cancelled"
                break
            before, failures = values, self._failures()
            try:
                executed, values = self._iterate(epoch_id)
            except RunStopped:
                self._end(epoch_id, iteration + 1, "component_error")
                raise
            if not executed:
                reason = "quiescent"
                break
            executed_in_all += executed
            iteration += 1
            reason = self._ending(
                iteration, failed=self._failures() > failures, stable=_same(values, before), began_at_s=began_at_s
            )
            if reason:
                break
        if iteration:
            self._began_at_s = began_at_s
            self._end(epoch_id, iteration, reason)
        return executed_in_all

    def _iterate(self, epoch_id: int) -> tuple[int, dict[str, Any]]:
        """Run each member once; the answer also has what the loop's own edges carried, where that matters."""
        self._turn += 1
        executed, values = 0, {}
        for member in self._members:
            executed += member.run(epoch_id, self._turn)
            if self._policy.convergence == "stable_state":  # before the next member takes it
                newest = [(edge.id, edge.newest()) for edge in self._inner_edges]
                values.update({edge: message.payload for edge, message in newest if message is not None})
        return executed, values

    def _ending(self, iteration: int, *, failed: bool, stable: bool, began_at_s: float) -> str:
        """Why the loop is over after this iteration; empty when it goes on."""
        policy, reported = self._policy, self._take_reports()
        if failed:
            return "component_error"
        if policy.convergence in _AFTER_ONE or (policy.convergence == "stable_state" and stable):
            return policy.convergence
        if reported.reason:
            return reported.reason
        if policy.residual_threshold is not None and reported.residual <= policy.residual_threshold:
            return "residual_threshold"
        if policy.budget_ms and self._settlement.clock.monotonic() - began_at_s > policy.budget_ms / 1000:
            return "budget_overrun"
        return "max_iterations" if iteration >= self._iterations_max else ""

    def _take_reports(self) -> _Reported:
        """What members said in this iteration: the first reason, the largest residual."""
        reason, residuals = "", []
        for node in self.nodes:
            reason = reason or node.converged or ""
            residuals += [] if node.residual is None else [node.residual]
            node.converged = node.residual = None
        return _Reported(reason, max(residuals, default=math.inf))

    def _failures(self) -> int:
        return sum(node.failed for node in self.nodes)

    def _is_cancelled(self, epoch_id: int) -> bool:
        settlement = self._settlement
        if not settlement.stop_token.is_set:
            return False
        if settlement.recorder is not None:
            for what in ("requested", "observed"):
                settlement.recorder.instant(
                    f"loop_cancellation_{what}",
                    settlement.clock.monotonic(),
                    epoch_id,
                    component_id=self.id,
                    lane=self.nodes[0].lane.id,
                )
        return True

    # --- what was kept back ----------------------------------------------------------------------

    def _end(self, epoch_id: int, iterations: int, reason: str) -> None:
        self.runs += 1
        self.iterations += iterations
        self.budget_overruns += reason == "budget_overrun"
        self.cancelled += reason == "cancelled"
        self.converged += reason not in _NOT_CONVERGED
        keep = self._keeps(reason)
        self.outcome = LoopOutcome(self.id, epoch_id, iterations, reason, keep)
        if keep:
            self._release()
            return
        self._throw_away(reason)
        if self._policy.partial_success == "fail_run" and reason != "component_error":
            message = f"loop {self.id} did not converge: {reason}"
            self._settlement.reports.error("runtime", "loop_not_converged", message, component_id=self.id)
            raise RunStopped

    def _keeps(self, reason: str) -> bool:
        policy = self._policy
        if reason == "component_error":
            return False
        if reason not in _NOT_CONVERGED:
            return True
        if policy.partial_success:
            return policy.partial_success == "commit_outputs"
        if policy.type == "transaction":
            return reason != "cancelled"
        return policy.type != "solver_iteration"

    def _release(self) -> None:
        for kept in self._kept_back:
            if kept.channel.is_deferred:
                self._deferred.append(kept)
            else:
                self._commit(kept)
        self._kept_back.clear()

    def _commit(self, kept: Deferred) -> None:
        try:
            kept.channel.commit(kept.payload, kept.origin, kept.timestamp_ms)
        except ChannelFull as problem:
            self._settlement.reports.error("runtime", "channel_overflow", str(problem), component_id=self.id)
            raise RunStopped from problem

    def _throw_away(self, reason: str) -> None:
        if self._kept_back:
            self.discarded += len(self._kept_back)
            message = f"loop {self.id} ended with {reason}: {len(self._kept_back)} publications were thrown away"
            self._settlement.reports.health("loop_discard", message, component_id=self.id)
            self._kept_back.clear()


class _Reported(NamedTuple):
    """What members said in one iteration."""

    reason: str
    residual: float


def _same(values: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether the loop's edges carried the same values; what cannot be compared is not the same."""
    try:
        return bool(values) and bool(values == before)
    except Exception:  # the == of a payload is the user's code; that of an array has no truth value
        return False
