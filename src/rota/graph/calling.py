"""Calling a component: from messages to arguments, and from the return value to publications.

A `BoundComponent` can be called: it joins the component's code, its configuration and a function from inputs to the
code's return value. It does not know channels, so it works the same in the run's process and in a worker process.

Most components take one message and return one payload or None. Such a *plain* component (`is_plain`) is called
directly, without an `Invocation`, a context or a list of publications. A component that asks for `context`, is async,
has several outputs or may be retried goes through `execute`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from rota.errors import ComponentInvalid
from rota.graph.budget_gate import StartedOverBudget
from rota.graph.components import EVENT_PORTS, REQUIRED, ComponentType, Parameter
from rota.graph.invocation import GraphContext, Invocation, Publication, check_port
from rota.graph.messages import Inputs, Message
from rota.graph.reports import COMPONENT_FAILURES
from rota.model.graph_budgets import GraphBudgetLine

__all__ = ["BoundComponent", "ComponentCall", "CoroutineRunner", "execute", "execute_async", "publications"]

ComponentCall: TypeAlias = Callable[[Inputs, GraphContext | None], Any]


class CoroutineRunner:
    """Runs the coroutines of one thread, on an event loop that is created for the first one."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end and return its result."""
        if _has_running_loop():
            coroutine.close()
            raise ComponentInvalid(
                "an async component cannot run on a thread that already runs an event loop",
                hint="Run the graph in a thread of its own: await asyncio.to_thread(runner.run).",
            )
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        return self._runner.run(coroutine)

    def close(self) -> None:
        """Close the event loop, if there is one."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class BoundComponent:
    """A component that can be called."""

    def __init__(
        self,
        component_id: str,
        lane: str,
        component_type: ComponentType,
        instance: Any,
        channel_ports: Sequence[str],
        *,
        config: Mapping[str, Any],
        output_ports: frozenset[str],
        fills_every_input: bool,
        budget_s: float = 0.0,
        attempts_max: int = 1,
    ) -> None:
        self.id = component_id
        self.lane = lane
        self.type = component_type
        self.instance = instance  # None for a function, and for a class with instances in other processes only
        self.channel_ports = tuple(channel_ports)
        self.output_ports = output_ports
        self.any_ports = component_type.descriptor.any_ports
        self.budget_s = budget_s
        self.attempts_max = attempts_max
        self.over_budget: Callable[[], GraphBudgetLine | None] = lambda: None  # set in runs with budgets
        self.output = next(iter(output_ports)) if len(output_ports) == 1 else None
        self._fills_every_input = fills_every_input
        self.configure(config)
        self.is_plain = (
            not component_type.injected and not component_type.is_async and attempts_max == 1 and len(output_ports) <= 1
        )

    def configure(self, config: Mapping[str, Any]) -> None:
        """Bind a function to its configuration; an instance received its own when it was created."""
        component_type = self.type
        if component_type.kind == "class":
            code = _called_elsewhere if self.instance is None else self.instance.execute
        elif any(parameter.name in config for parameter in component_type.parameters):
            component_type, code = _with_fixed_arguments(component_type, config)
        else:
            code = functools.partial(component_type.implementation, **config) if config else self.type.implementation
        self.call: ComponentCall = _binder(component_type, code, self.channel_ports, self._fills_every_input)


def _called_elsewhere(*_arguments: Any, **_config: Any) -> None:
    raise AssertionError("this component's instances are in other processes")


def _with_fixed_arguments(
    component_type: ComponentType, config: Mapping[str, Any]
) -> tuple[ComponentType, Callable[..., Any]]:
    """Return the type without the parameters that the configuration sets, and code that takes the other ones."""
    declared = component_type.parameters
    named = {name: value for name, value in config.items() if name not in {each.name for each in declared}}
    left = tuple(each for each in declared if each.name not in config)

    def code(*arguments: Any, **others: Any) -> Any:
        rest = iter(arguments)
        positional: list[Any] = []
        for each in declared:
            if each.many:
                positional += rest
            else:
                positional.append(config[each.name] if each.name in config else next(rest))
        return component_type.implementation(*positional, **named, **others)

    return msgspec.structs.replace(component_type, parameters=left), code


def execute(component: BoundComponent, invocation: Invocation, coroutines: CoroutineRunner) -> None:
    """Run a component until it succeeds or its attempts are used up; the invocation holds the result or the failure."""
    while True:
        invocation.begin()
        try:
            _attempt(component, invocation, coroutines)
        except COMPONENT_FAILURES as problem:  # a result, not an error of the runner
            invocation.end(problem)
        else:
            invocation.end()
        if not invocation.should_retry(component.attempts_max):
            return


def _context(component: BoundComponent, invocation: Invocation) -> GraphContext | None:
    """Return the context of a component that asks for one; raises if it is over budget, so that it does not start."""
    if not component.type.injected:
        return None
    line = component.over_budget()
    if line is not None:
        raise StartedOverBudget(component.id, line)
    return GraphContext(invocation)


def _attempt(component: BoundComponent, invocation: Invocation, coroutines: CoroutineRunner) -> None:
    context = _context(component, invocation)
    returned = component.call(invocation.inputs, context)
    if component.type.is_async:
        returned = coroutines.run(returned)
    if returned is not None:
        invocation.staged.extend(publications(component, returned))


async def execute_async(component: BoundComponent, invocation: Invocation) -> None:
    """Do the same as `execute` for an async component, on an event loop that runs."""
    while True:
        invocation.begin()
        try:
            context = _context(component, invocation)
            returned = await component.call(invocation.inputs, context)
            if returned is not None:
                invocation.staged.extend(publications(component, returned))
        except COMPONENT_FAILURES as problem:  # a result, not an error of the runner
            invocation.end(problem)
        else:
            invocation.end()
        if not invocation.should_retry(component.attempts_max):
            return


def publications(component: BoundComponent, returned: Any) -> list[Publication]:
    """Return what a return value publishes: on the only output, or on each port that a dictionary names."""
    if component.output is not None:
        return [Publication(component.output, returned)]
    if not isinstance(returned, Mapping):
        outputs = ", ".join(sorted(component.output_ports))
        ports = f"has the outputs {outputs}" if outputs else "has no output"
        raise ComponentInvalid(
            f"component {component.id} {ports}, but returned a value of type {type(returned).__name__}",
            hint="Return a dictionary of port to payload, or `None`.",
            component_id=component.id,
        )
    for port in returned:
        check_port(component, port)
    return [Publication(port, payload) for port, payload in returned.items()]


# --- from messages to arguments ------------------------------------------------------------------


def _binder(
    component_type: ComponentType, code: Callable[..., Any], ports: tuple[str, ...], fills_every_input: bool
) -> ComponentCall:
    """Return the cheapest correct way from inputs to a call for this signature and these channels."""
    names = tuple(parameter.name for parameter in component_type.parameters)
    if (
        component_type.injected
        or component_type.takes_any
        or any(parameter.many for parameter in component_type.parameters)
    ):
        return _ArgumentBinder(component_type, code, ports)
    if not names:
        return lambda _inputs, _context: code()
    if fills_every_input and names == ports:
        return _one_argument(code) if len(names) == 1 else _each_argument(code)
    return _ArgumentBinder(component_type, code, ports)


def _one_argument(code: Callable[..., Any]) -> ComponentCall:
    return lambda inputs, _context: code(inputs[0].payload)  # type: ignore[union-attr]  # the trigger guarantees a message


def _each_argument(code: Callable[..., Any]) -> ComponentCall:
    return lambda inputs, _context: code(*[given.payload for given in inputs])  # type: ignore[union-attr]


class _ArgumentBinder:
    """The general way: a port may have one channel, several or none, each with a message, a batch or nothing."""

    def __init__(self, component_type: ComponentType, code: Callable[..., Any], ports: tuple[str, ...]) -> None:
        self._type = component_type
        self._code = code
        indexes: dict[str, list[int]] = {}
        for index, port in enumerate(ports):
            indexes.setdefault(port, []).append(index)
        self._indexes = {port: tuple(found) for port, found in indexes.items()}
        positional = {parameter.name for parameter in component_type.parameters}
        self._others = (
            tuple(port for port in self._indexes if port not in positional) if component_type.takes_any else ()
        )
        self._injected_names = tuple(name for name in component_type.injected if name not in positional)

    def __call__(self, inputs: Inputs, context: GraphContext | None) -> Any:
        positional: list[Any] = []
        for parameter in self._type.parameters:
            if parameter.is_port:
                positional.extend(self._arguments(parameter, inputs))
            else:
                positional.append(_object(parameter.name, context))
        named = {name: _object(name, context) for name in self._injected_names}
        for port in self._others:
            if payloads := self._payloads(port, inputs):
                named[port] = self._one_or_all(port, payloads)
        return self._code(*positional, **named)

    def _arguments(self, parameter: Parameter, inputs: Inputs) -> list[Any]:
        payloads = self._payloads(parameter.name, inputs)
        if parameter.many:
            return payloads
        if payloads:
            return [self._one_or_all(parameter.name, payloads)]
        if parameter.default is REQUIRED:
            raise _missing(parameter.name)
        return [parameter.default]

    def _payloads(self, port: str, inputs: Inputs) -> list[Any]:
        given = (inputs[index] for index in self._indexes.get(port, ()))
        return [_payload(each) for each in given if each is not None]

    def _one_or_all(self, port: str, payloads: list[Any]) -> Any:
        """Return the payload of a port with one edge; for a port with several edges, a tuple of payloads.

        A port of outside events may also have an edge; an event comes from one of both, and is passed alone.
        """
        is_one_event = port in EVENT_PORTS and len(payloads) == 1
        return payloads[0] if is_one_event or len(self._indexes[port]) == 1 else tuple(payloads)


def _payload(given: Message | tuple[Message, ...]) -> Any:
    return tuple(each.payload for each in given) if isinstance(given, tuple) else given.payload


def _object(name: str, context: GraphContext | None) -> Any:
    if context is None:
        raise AssertionError("a component with injected parameters must be called with a context")
    return context if name == "context" else context.invocation


def _missing(port: str) -> ComponentInvalid:
    return ComponentInvalid(
        f"input {port!r} had no message when the component ran",
        hint="Give the parameter a default value, or use a trigger that waits for every input (all_inputs).",
        port=port,
    )
