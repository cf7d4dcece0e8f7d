"""One run of one component: what the component sees of it, and what it leaves behind.

`Invocation` and `GraphContext` are the two objects a component may ask for by name. Everything done through them is
only *staged*: publications, changes of state and reports take effect when the invocation has ended well, in the order
in which invocations were admitted, and are thrown away when it failed. So a component never sees its own publication
come back to it in the middle of its work, and nothing downstream runs inside `publish`.

Cancelling is cooperative. `stop_requested` says that the run was asked to stop. `cancel_requested()` says that, and
also that the invocation's own budget is spent; it is the one to look at in long work. Nobody is interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from rota.clock import Clock
from rota.errors import ComponentInvalid
from rota.graph.messages import Inputs, Message

__all__ = ["GraphContext", "Invocation", "Publication", "Scope", "Setting"]


class Publication(msgspec.Struct, frozen=True):
    """Something a component published, before it is on any edge."""

    port: str
    payload: Any
    timestamp_ms: float | None = None


class Setting(Protocol):
    """What an invocation knows of its component."""

    id: str
    lane: str
    channel_ports: tuple[str, ...]  # the port of each place in the inputs
    output_ports: frozenset[str]
    any_ports: bool
    budget_s: float  # 0 is none


class Scope(Protocol):
    """What an invocation knows of its run."""

    clock: Clock
    config: Mapping[str, Any]

    @property
    def stop_is_requested(self) -> bool:
        """Whether the run was asked to stop."""
        ...

    def state(self) -> Mapping[str, Any]:
        """The values that components share, as they stood when the epoch began."""
        ...

    def submit(self, component_id: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> int | None:
        """Run something in the background and tell the component when it is done."""
        ...

    def watch(self, component_id: str, future: Any) -> None:
        """Tell the component when a future is done."""
        ...


class Invocation:
    """One run of one component."""

    __slots__ = (
        "_scope",
        "_setting",
        "attempt",
        "budget_spent_at_s",
        "cancel_observed",
        "code",
        "converged",
        "ended_at_s",
        "epoch_id",
        "inputs",
        "is_open",
        "new_state",
        "number",
        "problem",
        "residual",
        "staged",
        "started_at_s",
        "worker_id",
    )

    def __init__(self, setting: Setting, scope: Scope, inputs: Inputs, epoch_id: int, number: int = 0) -> None:
        self._setting = setting
        self._scope = scope
        self.inputs = inputs
        self.epoch_id = epoch_id  # in which it became ready
        self.number = number  # the order in which invocations became ready on a lane
        self.worker_id: int | None = None
        self.attempt = 0
        self.problem: BaseException | None = None
        self.code = "component_execute"
        self.started_at_s = self.ended_at_s = 0.0
        self.cancel_observed = False
        self.budget_spent_at_s: float | None = None  # when somebody noticed
        self.is_open = False
        self._forget()

    def _forget(self) -> None:
        """Throw away whatever an attempt left behind."""
        self.staged: list[Publication] = []
        self.new_state: dict[str, Any] = {}
        self.converged: str | None = None
        self.residual: float | None = None

    def begin(self) -> None:
        """An attempt starts."""
        self.attempt += 1
        self.problem = None
        self.is_open = True
        started = self._scope.clock.monotonic()
        if self.attempt == 1:  # the budget is for all attempts together
            self.started_at_s = started

    def end(self, problem: BaseException | None = None) -> None:
        """The attempt is over; after a failure nothing of it is kept."""
        self.is_open = False
        self.problem = problem
        self.ended_at_s = self._scope.clock.monotonic()
        if problem is not None:
            self._forget()

    def may_be_repeated(self, attempts_max: int) -> bool:
        """Whether a failed attempt is followed by another: not when the run was asked to stop."""
        # not through `stop_requested`: only the component's own look counts as observed
        return self.problem is not None and self.attempt < attempts_max and not self._scope.stop_is_requested

    # --- for the component -----------------------------------------------------------------------

    @property
    def component_id(self) -> str:
        """The component that runs."""
        return self._setting.id

    @property
    def lane(self) -> str:
        """The lane it runs on."""
        return self._setting.lane

    @property
    def stop_requested(self) -> bool:
        """Whether the run was asked to stop."""
        requested = self._scope.stop_is_requested  # asked once: it may change at any time
        self.cancel_observed = self.cancel_observed or requested
        return requested

    def cancel_requested(self) -> bool:
        """Whether to give up: the run was asked to stop, or the budget is spent."""
        return self.stop_requested or self.budget_exceeded

    @property
    def budget_exceeded(self) -> bool:
        """Whether it has run longer than its budget."""
        now_s, budget_s = self._scope.clock.monotonic(), self._setting.budget_s
        exceeded = budget_s > 0 and now_s - self.started_at_s > budget_s
        if exceeded and self.budget_spent_at_s is None:
            self.budget_spent_at_s = now_s
        return exceeded

    def messages(self, port: str) -> tuple[Message, ...]:
        """The messages this invocation was given on a port."""
        found: list[Message] = []
        for given, name in zip(self.inputs, self._setting.channel_ports, strict=False):
            if name == port and given is not None:
                found.extend(given if isinstance(given, tuple) else (given,))
        return tuple(found)

    @property
    def cause(self) -> Message | None:
        """The message that made it run; None when no message did."""
        for given in self.inputs:
            if given:
                return given[-1] if isinstance(given, tuple) else given
        return None

    @property
    def causation_id(self) -> str:
        """The id of the message that made it run, or nothing."""
        return "" if self.cause is None else self.cause.id

    @property
    def correlation_id(self) -> str:
        """The root of the chain of messages it belongs to, or nothing."""
        return "" if self.cause is None else self.cause.correlation_id


class GraphContext:
    """The run, as the component that is running may act on it."""

    __slots__ = ("invocation",)

    def __init__(self, invocation: Invocation) -> None:
        self.invocation = invocation

    @property
    def component_id(self) -> str:
        """The component that runs."""
        return self.invocation.component_id

    @property
    def epoch_id(self) -> int:
        """The epoch in which it became ready, from 1."""
        return self.invocation.epoch_id

    @property
    def config(self) -> Mapping[str, Any]:
        """The graph's own configuration."""
        return self._open()._scope.config

    def cancel_requested(self) -> bool:
        """Whether to give up: the run was asked to stop, or the budget is spent."""
        return self.invocation.cancel_requested()

    def publish(self, port: str, payload: Any, *, timestamp_ms: float | None = None) -> None:
        """Stage a payload for every edge that leads away from this port."""
        invocation = self._open()
        if port not in invocation._setting.output_ports:
            check_port(invocation._setting, port)
        if timestamp_ms is not None:
            _check_timestamp(invocation._setting, timestamp_ms)
        invocation.staged.append(Publication(port, payload, timestamp_ms))

    def report_converged(self, reason: str = "component_report") -> None:
        """Tell the loop this component belongs to that it may end after this iteration."""
        self._open().converged = reason

    def report_residual(self, residual: float) -> None:
        """Tell the loop how far from its goal it still is."""
        self._open().residual = residual

    @property
    def state(self) -> Mapping[str, Any]:
        """The values that components share, as they stood when the epoch began."""
        return self._open()._scope.state()

    def set_state(self, key: str, value: Any) -> None:
        """Stage a shared value; everybody sees it from the next epoch on."""
        self._open().new_state[key] = value

    def submit(self, function: Callable[..., Any], *arguments: Any) -> int | None:
        """Run something in the background; its result arrives on `task_ready`. None: the loop has enough under way."""
        return self._open()._scope.submit(self.component_id, function, arguments)

    def watch(self, future: Any) -> None:
        """When this future is done, it arrives on the port `future_ready`."""
        self._open()._scope.watch(self.component_id, future)

    def _open(self) -> Invocation:
        if not self.invocation.is_open:
            raise ComponentInvalid(
                f"component {self.component_id} used its context after its invocation had ended",
                hint="Use the context inside execute only; background work reports through `context.submit`.",
                component_id=self.component_id,
            )
        return self.invocation


def _check_timestamp(setting: Setting, timestamp_ms: Any) -> None:
    """Refuse what triggers could not compare."""
    if type(timestamp_ms) not in (int, float) or not math.isfinite(timestamp_ms):
        raise ComponentInvalid(
            f"component {setting.id} published with the timestamp {timestamp_ms!r}",
            hint="A timestamp is a finite number of milliseconds.",
            component_id=setting.id,
        )


def check_port(setting: Setting, port: str) -> None:
    """Refuse an output port that the component does not have."""
    if port not in setting.output_ports and not setting.any_ports:
        known = ", ".join(sorted(setting.output_ports)) or "none"
        raise ComponentInvalid(
            f"component {setting.id} has no output port {port!r}",
            hint=f"It has: {known}.",
            component_id=setting.id,
            port=port,
        )
