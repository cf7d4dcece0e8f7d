"""Composite loops: the components of a cycle of immediate edges, repeated until they converge.

In one epoch a loop runs at least one and at most `max_iterations` iterations. In an iteration each member runs in the
order of the plan. What it publishes to other members is visible immediately; everything that leaves the loop is held
until the loop ends. After each iteration the loop ends for the first of these reasons that applies:

    1. a member failed                                                           component_error
    2. convergence: single_pass, after_first_iteration and always end after the first iteration; stable_state ends when
       the loop's own edges carried the same values as in the iteration before
    3. a member reported that it has converged                                   component_report, or its own reason
    4. the reported residual is at or below the threshold                        residual_threshold
    5. the budget is spent                                                       budget_overrun
    6. the maximum number of iterations is reached                               max_iterations

A loop also ends when no member is ready (quiescent) and, from the second iteration on, when the run was asked to stop
(cancelled).

The held publications are then committed together or discarded together. They are discarded after an error; after a
solver that did not converge, unless `partial_success` says otherwise; and after a transaction that was cancelled.

    estimator ⇄ controller, controller → log;  max_iterations 5, residual_threshold 0.1

    iteration   controller publishes   residual   ends?                       log
    1           3.5                    0.9        no                          sees nothing yet
    2           3.1                    0.05       yes, residual_threshold     sees 3.5, then 3.1
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple, Protocol

import msgspec

from rota.graph.channels import ChannelFull, MessageChannel
from rota.graph.commit import Committer
from rota.graph.nodes import DeferredPublication, DeferredTarget, Node
from rota.graph.plan import Region
from rota.graph.reports import RunStopped
from rota.graph.spec import LoopPolicy

__all__ = ["EpochStep", "LoopOutcome", "LoopStep"]

_SINGLE_ITERATION = ("single_pass", "after_first_iteration", "always")
_NOT_CONVERGED = ("budget_overrun", "max_iterations", "cancelled", "component_error", "quiescent")


_END_EVENTS = {
    "budget_overrun": "loop_budget_overrun",
    "max_iterations": "loop_max_iterations_hit",
    "quiescent": "loop_quiescent",
    "component_error": "loop_error",
}


class EpochStep(Protocol):
    """A part of an epoch: one region, or a wave of regions."""

    nodes: tuple[Node, ...]

    def run(self, epoch_id: int, iteration_id: int, /) -> int:
        """Execute what is ready; return the number of invocations."""
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
        """Whether it ended because it converged."""
        return self.reason not in _NOT_CONVERGED


class LoopStep:
    """A composite loop's step in an epoch."""

    def __init__(
        self,
        region: Region,
        policy: LoopPolicy,
        members: Sequence[EpochStep],
        *,
        inner_edges: Sequence[Sequence[MessageChannel]],
        held_outputs: list[DeferredPublication],
        deferred: DeferredTarget,
        committer: Committer,
    ) -> None:
        self.id = region.id
        self.nodes = tuple(node for step in members for node in step.nodes)
        self._policy = policy
        self._members = tuple(members)
        self._inner_edges = tuple(tuple(edges) for edges in inner_edges)  # by member: those it publishes on
        self._held_outputs = held_outputs  # publications of members that leave the loop
        self._deferred = deferred  # where those go that are not immediate
        self._committer = committer
        self._iterations_max = max(1, policy.max_iterations)
        self._iteration_id = 0
        self.began_at_s = -math.inf  # when it last ran; a checkpoint keeps it, for `min_interval_ms`
        self.outcome: LoopOutcome | None = None  # the latest
        self._may_continue = False  # whether it ended, or was not run, while members may be ready
        self.runs = self.iterations = self.converged = self.budget_overruns = self.cancelled = self.discarded = 0

    def run(self, epoch_id: int, _iteration_id: int, /) -> int:
        """Run iterations until the loop ends; return the number of invocations."""
        now_s = self._committer.clock.monotonic()
        if now_s < self._next_at_s:
            self._may_continue = True
            return 0
        if self._policy.type == "coalesced_event":
            for node in self.nodes:
                node.trigger.keep_newest()
        return self._run_iterations(epoch_id, now_s)

    @property
    def _next_at_s(self) -> float:
        """When the loop may run again."""
        return self.began_at_s + self._policy.min_interval_ms / 1000

    def due_at_s(self, now_s: float, *, manual: bool = True, timers: bool = True) -> float:
        """Return from when on the loop can run without a new message; `math.inf` for never."""
        triggers = [node.trigger for node in self.nodes if not node.is_isolated]
        if any(trigger.every_iteration for trigger in triggers) and manual:
            return self._next_at_s
        if self._may_continue and any(trigger.may_be_ready for trigger in triggers):
            return self._next_at_s
        timed = [trigger.due_at_s(now_s, timers=timers) for trigger in triggers if trigger.is_timed]
        return max(self._next_at_s, min(timed, default=math.inf))

    def _run_iterations(self, epoch_id: int, began_at_s: float) -> int:
        total_executed, iteration = 0, 0
        values: dict[str, Any] = {}
        while True:
            if iteration and self._is_cancelled(epoch_id):
                reason = "cancelled"
                break
            before, failures = values, self._failures()
            try:
                executed, values = self._run_traced(epoch_id, iteration + 1)
            except RunStopped:
                self._end(epoch_id, iteration + 1, "component_error")
                raise
            if not executed:
                reason = "quiescent"
                break
            total_executed += executed
            iteration += 1
            reason = self._end_reason(
                iteration,
                failed=self._failures() > failures,
                stable=_equal_values(values, before),
                began_at_s=began_at_s,
            )
            if reason:
                break
        self._may_continue = reason != "quiescent"
        if iteration:
            self.began_at_s = began_at_s
            self._end(epoch_id, iteration, reason)
        return total_executed

    def _run_traced(self, epoch_id: int, iteration: int) -> tuple[int, dict[str, Any]]:
        """Run one iteration, between its events in the trace."""
        recorder, clock = self._committer.recorder, self._committer.clock
        if recorder is None:
            return self._run_iteration(epoch_id)
        began_at_s = clock.monotonic()
        fields = self._trace_fields(iteration=str(iteration), policy=self._policy.type)
        recorder.begin("loop_iteration", began_at_s, epoch_id, **fields)
        try:
            return self._run_iteration(epoch_id)
        finally:
            recorder.end("loop_iteration", began_at_s, clock.monotonic(), epoch_id, **fields)

    def _trace_fields(self, **attributes: str) -> dict[str, Any]:
        return {"component_id": self.id, "lane": self.nodes[0].lane.id, "attributes": attributes}

    def _trace(self, name: str, epoch_id: int, **attributes: str) -> None:
        if self._committer.recorder is not None:
            now_s = self._committer.clock.monotonic()
            self._committer.recorder.instant(name, now_s, epoch_id, **self._trace_fields(**attributes))

    def _run_iteration(self, epoch_id: int) -> tuple[int, dict[str, Any]]:
        """Run each member once; return the invocation count and, for stable_state, the values on the inner edges."""
        self._iteration_id += 1
        executed, values = 0, {}
        is_observed = self._policy.convergence == "stable_state"
        for position, member in enumerate(self._members):
            executed += member.run(epoch_id, self._iteration_id)
            if is_observed:  # before the next member takes it; the first look also sees what was left on other edges
                edges = self._inner_edges[position] if position else chain.from_iterable(self._inner_edges)
                newest = [(edge.id, edge.newest()) for edge in edges]
                values.update({edge: message.payload for edge, message in newest if message is not None})
        return executed, values

    def _end_reason(self, iteration: int, *, failed: bool, stable: bool, began_at_s: float) -> str:
        """Return why the loop ends after this iteration; empty if it continues."""
        policy, reported = self._policy, self._take_reports()
        if failed:
            return "component_error"
        if policy.convergence in _SINGLE_ITERATION or (policy.convergence == "stable_state" and stable):
            return policy.convergence
        if reported.reason:
            return reported.reason
        if policy.residual_threshold is not None and reported.residual <= policy.residual_threshold:
            return "residual_threshold"
        if policy.budget_ms and self._committer.clock.monotonic() - began_at_s > policy.budget_ms / 1000:
            return "budget_overrun"
        return "max_iterations" if iteration >= self._iterations_max else ""

    def _take_reports(self) -> _Reported:
        """Return and clear the members' reports of this iteration: the first reason, the largest residual."""
        reason, residuals = "", []
        for node in self.nodes:
            reason = reason or node.converged or ""
            residuals += [] if node.residual is None else [node.residual]
            node.converged = node.residual = None
        return _Reported(reason, max(residuals, default=math.inf))

    def _failures(self) -> int:
        return sum(node.failed for node in self.nodes)

    def _is_cancelled(self, epoch_id: int) -> bool:
        if not self._committer.stop_token.is_set:
            return False
        for event in ("requested", "observed"):
            self._trace(f"loop_cancellation_{event}", epoch_id)
        return True

    # --- held publications -----------------------------------------------------------------------

    def _end(self, epoch_id: int, iterations: int, reason: str) -> None:
        self.runs += 1
        self.iterations += iterations
        self.budget_overruns += reason == "budget_overrun"
        self.cancelled += reason == "cancelled"
        self.converged += reason not in _NOT_CONVERGED
        commits = self._should_commit(reason)
        if reason != "cancelled":  # that has events of its own
            event = _END_EVENTS.get(reason, "loop_converged")
            self._trace(event, epoch_id, reason=reason, iterations=str(iterations))
        if self._held_outputs and not commits:
            self._trace("loop_output_discarded", epoch_id, reason=reason, count=str(len(self._held_outputs)))
        self.outcome = LoopOutcome(self.id, epoch_id, iterations, reason, commits)
        if commits:
            self._commit_outputs()
            return
        self._discard_outputs(reason)
        if self._policy.partial_success == "fail_run" and reason != "component_error":
            message = f"loop {self.id} did not converge: {reason} (partial_success: fail_run)"
            self._committer.reports.error("runtime", "loop_not_converged", message, component_id=self.id)
            raise RunStopped

    def _should_commit(self, reason: str) -> bool:
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

    def _commit_outputs(self) -> None:
        for held in self._held_outputs:
            if held.channel.is_deferred:
                self._deferred.append(held)
            else:
                self._commit_one(held)
        self._held_outputs.clear()

    def _commit_one(self, held: DeferredPublication) -> None:
        try:
            held.channel.commit(held.payload, held.origin, held.timestamp_ms)
        except ChannelFull as problem:
            self._committer.reports.error("runtime", "channel_overflow", str(problem), component_id=self.id)
            raise RunStopped from problem

    def _discard_outputs(self, reason: str) -> None:
        if self._held_outputs:
            self.discarded += len(self._held_outputs)
            message = f"loop {self.id} ended with {reason}: {len(self._held_outputs)} publications were discarded"
            self._committer.reports.health("loop_discard", message, component_id=self.id)
            self._held_outputs.clear()


class _Reported(NamedTuple):
    """The members' reports in one iteration."""

    reason: str
    residual: float


def _equal_values(values: dict[str, Any], before: dict[str, Any]) -> bool:
    """Return whether the loop's edges carried equal values; values that cannot be compared count as different."""
    try:
        return bool(values) and bool(values == before)
    except Exception:  # a payload's == is the user's code; an array's result has no truth value
        return False
