"""One execution of one component: what the component can read, and what it produced.

A component may ask for two objects by parameter name: `Invocation` and `GraphContext`. Everything done through them is
*staged*: publications, state changes and reports take effect after the invocation succeeded, in the order in which
invocations were accepted, and are discarded if it failed. So a component never sees its own publication while it runs,
and nothing downstream runs inside `publish`.

Cancellation is cooperative. `stop_requested` is true once the run was asked to stop. `cancel_requested()` is also true
once the invocation's own budget is spent; long work should check this one. Nothing is interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from rota.agent import Acquired
from rota.clock import Clock
from rota.errors import ComponentInvalid
from rota.graph.accounts import RunAccount
from rota.graph.messages import Inputs, Message
from rota.model.money import in_micro

__all__ = ["ComponentInfo", "GraphContext", "Invocation", "Publication", "Scope"]


class Publication(msgspec.Struct, frozen=True):
    """A payload that a component published, before it is on any edge."""

    port: str
    payload: Any
    timestamp_ms: float | None = None


class ComponentInfo(Protocol):
    """What an invocation reads about its component."""

    id: str
    lane: str
    channel_ports: tuple[str, ...]  # the port of each position in the inputs
    output_ports: frozenset[str]
    any_ports: bool
    budget_s: float  # 0: no budget


class Scope(Protocol):
    """What an invocation reads about its run."""

    clock: Clock
    config: Mapping[str, Any]

    @property
    def account(self) -> RunAccount:
        """Where what the component uses is counted; raises where that is not possible."""
        ...

    @property
    def stop_is_requested(self) -> bool:
        """Whether the run was asked to stop."""
        ...

    def state(self) -> Mapping[str, Any]:
        """Return the values that components share, as they were when the epoch began."""
        ...

    def submit(self, component_id: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> int | None:
        """Run a function in the background and deliver its result to the component."""
        ...

    def watch(self, component_id: str, future: Any) -> None:
        """Deliver a future to the component when it is done."""
        ...


class Invocation:
    """One execution of one component."""

    __slots__ = (
        "_component",
        "_scope",
        "attempt",
        "budget_spent_at_s",
        "cancel_observed",
        "code",
        "converged",
        "ended_at_s",
        "epoch_id",
        "inputs",
        "is_open",
        "is_over_budget",
        "loop_events",
        "new_state",
        "number",
        "problem",
        "residual",
        "staged",
        "started_at_s",
        "worker_id",
    )

    def __init__(self, component: ComponentInfo, scope: Scope, inputs: Inputs, epoch_id: int, number: int = 0) -> None:
        self._component = component
        self._scope = scope
        self.inputs = inputs
        self.epoch_id = epoch_id  # the epoch in which it became ready
        self.number = number  # the order in which invocations became ready on a lane
        self.worker_id: int | None = None
        self.attempt = 0
        self.problem: BaseException | None = None
        self.code = "component_execute"
        self.started_at_s = self.ended_at_s = 0.0
        self.cancel_observed = False
        self.budget_spent_at_s: float | None = None  # when the component or the run first noticed
        self.is_open = False
        self.is_over_budget = False  # a charge left less than nothing of a budget of its node or run
        self._discard_results()

    def _discard_results(self) -> None:
        """Clear everything that an attempt produced."""
        self.staged: list[Publication] = []
        self.new_state: dict[str, Any] = {}
        self.converged: str | None = None
        self.residual: float | None = None
        self.loop_events: tuple[tuple[str, Mapping[str, str]], ...] = ()  # of a loop that spans epochs, for the trace

    def begin(self) -> None:
        """Start an attempt."""
        self.attempt += 1
        self.problem = None
        self.is_open = True
        started = self._scope.clock.monotonic()
        if self.attempt == 1:  # the budget is for all attempts together
            self.started_at_s = started

    def end(self, problem: BaseException | None = None) -> None:
        """End the attempt; a failed attempt loses everything it staged."""
        self.is_open = False
        self.problem = problem
        self.ended_at_s = self._scope.clock.monotonic()
        if problem is not None:
            self._discard_results()

    def should_retry(self, attempts_max: int) -> bool:
        """Whether a failed attempt is followed by another one; never after the run was asked to stop."""
        # not `stop_requested`: only a check by the component itself counts as observed
        return self.problem is not None and self.attempt < attempts_max and not self._scope.stop_is_requested

    # --- for the component -----------------------------------------------------------------------

    @property
    def component_id(self) -> str:
        """The id of the component."""
        return self._component.id

    @property
    def lane(self) -> str:
        """The id of its lane."""
        return self._component.lane

    @property
    def stop_requested(self) -> bool:
        """Whether the run was asked to stop."""
        requested = self._scope.stop_is_requested  # read once: it may change at any time
        self.cancel_observed = self.cancel_observed or requested
        return requested

    def cancel_requested(self) -> bool:
        """Return whether to give up: the run was asked to stop, or a budget is spent."""
        return self.stop_requested or self.budget_exceeded or self.is_over_budget

    @property
    def budget_exceeded(self) -> bool:
        """Whether it has run longer than its budget."""
        now_s, budget_s = self._scope.clock.monotonic(), self._component.budget_s
        exceeded = budget_s > 0 and now_s - self.started_at_s > budget_s
        if exceeded and self.budget_spent_at_s is None:
            self.budget_spent_at_s = now_s
        return exceeded

    def messages(self, port: str) -> tuple[Message, ...]:
        """Return the messages that this invocation received on a port."""
        found: list[Message] = []
        for given, name in zip(self.inputs, self._component.channel_ports, strict=False):
            if name == port and given is not None:
                found.extend(given if isinstance(given, tuple) else (given,))
        return tuple(found)

    @property
    def cause(self) -> Message | None:
        """The message that made it run; None if no message did."""
        for given in self.inputs:
            if given:
                return given[-1] if isinstance(given, tuple) else given
        return None

    @property
    def causation_id(self) -> str:
        """The id of the message that made it run; empty if none did."""
        return "" if self.cause is None else self.cause.id

    @property
    def correlation_id(self) -> str:
        """The id of the first message of its chain; empty if no message made it run."""
        return "" if self.cause is None else self.cause.correlation_id


class GraphContext:
    """What the running component may do in its run."""

    __slots__ = ("invocation",)

    def __init__(self, invocation: Invocation) -> None:
        self.invocation = invocation

    @property
    def component_id(self) -> str:
        """The id of the component."""
        return self.invocation.component_id

    @property
    def epoch_id(self) -> int:
        """The epoch in which the invocation became ready, from 1."""
        return self.invocation.epoch_id

    @property
    def config(self) -> Mapping[str, Any]:
        """The graph's own configuration."""
        return self._open()._scope.config

    def cancel_requested(self) -> bool:
        """Return whether to give up: the run was asked to stop, or the budget is spent."""
        return self.invocation.cancel_requested()

    def publish(self, port: str, payload: Any, *, timestamp_ms: float | None = None) -> None:
        """Stage a payload for every edge that leaves this port."""
        invocation = self._open()
        if port not in invocation._component.output_ports:
            check_port(invocation._component, port)
        if timestamp_ms is not None:
            _check_timestamp(invocation._component, timestamp_ms)
        invocation.staged.append(Publication(port, payload, timestamp_ms))

    def report_converged(self, reason: str = "component_report") -> None:
        """Tell the component's loop that it may end after this iteration."""
        self._open().converged = reason

    def report_residual(self, residual: float) -> None:
        """Report the remaining error of the component's loop."""
        self._open().residual = residual

    @property
    def state(self) -> Mapping[str, Any]:
        """The values that components share, as they were when the epoch began."""
        return self._open()._scope.state()

    def set_state(self, key: str, value: Any) -> None:
        """Stage a shared value; all components see it from the next epoch on."""
        self._open().new_state[key] = value

    def submit(self, function: Callable[..., Any], *arguments: Any) -> int | None:
        """Run a function in the background and return the task's id; its result arrives on the port `task_ready`.

        Returns None if the component's loop already has `max_inflight` tasks in flight.
        """
        return self._open()._scope.submit(self.component_id, function, arguments)

    def watch(self, future: Any) -> None:
        """Deliver this future on the port `future_ready` when it is done."""
        self._open()._scope.watch(self.component_id, future)

    # --- as `ctx` of a function -------------------------------------------------------------------

    def charge(self, *, model: str | None = None, **amounts: float) -> dict[str, int]:
        """Record usage per dimension and return what is left of the budgets of this component and of its run.

        Amounts are whole numbers, except `usd`, in dollars. They count even if the invocation fails afterwards. Over
        a budget, `cancel_requested()` is true from now on.
        """
        return self._note(self._open()._scope.account.charge(self.component_id, in_micro(amounts), model))

    def remaining(self) -> dict[str, int]:
        """Return what is left of the budgets, per dimension."""
        return self._open()._scope.account.remaining(self.component_id)

    def acquire(self, name: str, /, *, wait_s: float | None = None, **amounts: int) -> Acquired:
        """Wait until a limit has these amounts, `tokens=900, requests=1`; settle what is returned after the call."""
        account = self._open()._scope.account
        key = account.acquire(name, amounts, wait_s)

        def settle(used: Mapping[str, int]) -> dict[str, int]:
            return self._note(account.settle(self.component_id, key, used))

        return Acquired(name, amounts, settle=settle, throttled=account.throttled)

    def settle(self, acquired: Acquired, **used: int) -> dict[str, int]:
        """Record what was used of what was acquired, as `acquired.settle` does."""
        return acquired.settle(**used)

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the work is, from 0 to 1, for people who look."""
        self._open()._scope.account.progress(fraction, text)

    def log(self, text: object, level: str = "info") -> None:
        """Write a line to the run's log."""
        label = "" if level == "info" else f"{level}: "
        line = f"{label}{self.component_id}: {text}\n"
        self._open()._scope.account.log(line.encode("utf-8", "replace"))

    def _note(self, left: dict[str, int]) -> dict[str, int]:
        if any(amount < 0 for amount in left.values()):
            self.invocation.is_over_budget = True
        return left

    def _open(self) -> Invocation:
        if not self.invocation.is_open:
            raise ComponentInvalid(
                f"component {self.component_id} used its context after its invocation had ended",
                hint="Use the context only while the component runs; start background work with `context.submit`.",
                component_id=self.component_id,
            )
        return self.invocation


def _check_timestamp(component: ComponentInfo, timestamp_ms: Any) -> None:
    """Raise if the timestamp is not a finite number, which triggers could not compare."""
    if type(timestamp_ms) not in (int, float) or not math.isfinite(timestamp_ms):
        raise ComponentInvalid(
            f"component {component.id} published a message with the invalid timestamp {timestamp_ms!r}",
            hint="Pass a finite number of milliseconds.",
            component_id=component.id,
        )


def check_port(component: ComponentInfo, port: str) -> None:
    """Raise if the component has no such output port."""
    if port not in component.output_ports and not component.any_ports:
        known = ", ".join(sorted(component.output_ports)) or "none"
        raise ComponentInvalid(
            f"component {component.id} has no output port {port!r}",
            hint=f"Its output ports: {known}.",
            component_id=component.id,
            port=port,
        )
