"""From messages to a call, and from what it returns to publications.

A `Unit` is a component that can be called: its code bound to its configuration, and a function from inputs to what the
code returns. It knows nothing of channels, so that it is the same thing in this process and in a worker process.

Most components take one message and return one payload or none. For them the call is made without anything in between
(`Unit.is_plain`): no invocation, no context, no list of publications. Whoever asks for `context`, is async, has several
outputs or may be retried goes through `perform`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeAlias

from rota.errors import ComponentInvalid
from rota.graph.components import REQUIRED, ComponentType, Parameter
from rota.graph.invocation import GraphContext, Invocation, Publication, check_port
from rota.graph.messages import Inputs, Message

__all__ = ["Call", "Coroutines", "Unit", "perform", "publications"]

Call: TypeAlias = Callable[[Inputs, GraphContext | None], Any]


class Coroutines:
    """Runs the coroutines of one thread, on an event loop that is made when the first one comes."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end."""
        if _a_loop_is_running():
            coroutine.close()
            raise ComponentInvalid(
                "an async component cannot run on a thread whose event loop is running already",
                hint="Run the graph in a thread of its own: await asyncio.to_thread(runner.run).",
            )
        if self._runner is None:
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        return self._runner.run(coroutine)

    def close(self) -> None:
        """End the event loop, if there is one."""
        if self._runner is not None:
            self._runner.close()
            self._runner = None


def _a_loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class Unit:
    """A component that can be called."""

    def __init__(
        self,
        component_id: str,
        lane: str,
        kind: ComponentType,
        instance: Any,
        channel_ports: Sequence[str],
        *,
        config: Mapping[str, Any],
        output_ports: frozenset[str],
        fills: bool,
        budget_s: float = 0.0,
        attempts_max: int = 1,
    ) -> None:
        self.id = component_id
        self.lane = lane
        self.kind = kind
        self.instance = instance  # None for a function, and for a class whose instances live in other processes
        self.channel_ports = tuple(channel_ports)
        self.output_ports = output_ports
        self.any_ports = kind.descriptor.any_ports
        self.budget_s = budget_s
        self.attempts_max = attempts_max
        self.output = next(iter(output_ports)) if len(output_ports) == 1 else None
        self._fills = fills
        self.configure(config)
        self.is_plain = not kind.injected and not kind.is_async and attempts_max == 1 and len(output_ports) <= 1

    def configure(self, config: Mapping[str, Any]) -> None:
        """Bind the code to its configuration; an instance was given its own when it was made."""
        if self.kind.kind == "class":
            code = _called_elsewhere if self.instance is None else self.instance.execute
        else:
            code = functools.partial(self.kind.implementation, **config) if config else self.kind.implementation
        self.call: Call = _binder(self.kind, code, self.channel_ports, self._fills)


def _called_elsewhere(*_arguments: Any, **_config: Any) -> None:
    raise AssertionError("this component's instances live in other processes")


def perform(unit: Unit, invocation: Invocation, coroutines: Coroutines) -> None:
    """Run a component to the end of its last attempt. What it did, or why it failed, is in the invocation."""
    while True:
        invocation.begin()
        try:
            _attempt(unit, invocation, coroutines)
        except Exception as problem:  # a component's failure is a result, not ours
            invocation.end(problem)
        else:
            invocation.end()
        if not invocation.may_be_repeated(unit.attempts_max):
            return


def _attempt(unit: Unit, invocation: Invocation, coroutines: Coroutines) -> None:
    context = GraphContext(invocation) if unit.kind.injected else None
    returned = unit.call(invocation.inputs, context)
    if unit.kind.is_async:
        returned = coroutines.run(returned)
    if returned is not None:
        invocation.staged.extend(publications(unit, returned))


def publications(unit: Unit, returned: Any) -> list[Publication]:
    """What a returned value publishes: on the only output, or on each port that a dictionary names."""
    if unit.output is not None:
        return [Publication(unit.output, returned)]
    if not isinstance(returned, Mapping):
        outputs = ", ".join(sorted(unit.output_ports))
        problem = f"has the outputs {outputs}" if outputs else "has no output"
        raise ComponentInvalid(
            f"component {unit.id} {problem} and returned {type(returned).__name__}",
            hint="Return a dictionary of port to payload, or None.",
            component_id=unit.id,
        )
    for port in returned:
        check_port(unit, port)
    return [Publication(port, payload) for port, payload in returned.items()]


# --- from messages to arguments ------------------------------------------------------------------


def _binder(kind: ComponentType, code: Callable[..., Any], ports: tuple[str, ...], fills: bool) -> Call:
    """The shortest way from inputs to a call that is right for this signature and these channels."""
    names = tuple(parameter.name for parameter in kind.parameters)
    if kind.injected or kind.takes_any or any(parameter.many for parameter in kind.parameters):
        return _Arguments(kind, code, ports)
    if not names:
        return lambda _inputs, _context: code()
    if fills and names == ports:
        return _one_argument(code) if len(names) == 1 else _each_argument(code)
    return _Arguments(kind, code, ports)


def _one_argument(code: Callable[..., Any]) -> Call:
    return lambda inputs, _context: code(inputs[0].payload)  # type: ignore[union-attr]  # the trigger fills it


def _each_argument(code: Callable[..., Any]) -> Call:
    return lambda inputs, _context: code(*[given.payload for given in inputs])  # type: ignore[union-attr]


class _Arguments:
    """The general way: every port may have one channel, several or none, each with a message, a batch or nothing."""

    def __init__(self, kind: ComponentType, code: Callable[..., Any], ports: tuple[str, ...]) -> None:
        self._kind = kind
        self._code = code
        self._places = {port: tuple(at for at, name in enumerate(ports) if name == port) for port in ports}
        positional = {parameter.name for parameter in kind.parameters}
        self._others = tuple(port for port in self._places if port not in positional) if kind.takes_any else ()
        self._named_objects = tuple(name for name in kind.injected if name not in positional)

    def __call__(self, inputs: Inputs, context: GraphContext | None) -> Any:
        positional: list[Any] = []
        for parameter in self._kind.parameters:
            if parameter.is_port:
                positional.extend(self._arguments(parameter, inputs))
            else:
                positional.append(_object(parameter.name, context))
        named = {name: _object(name, context) for name in self._named_objects}
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
        given = (inputs[at] for at in self._places.get(port, ()))
        return [_payload(each) for each in given if each is not None]

    def _one_or_all(self, port: str, payloads: list[Any]) -> Any:
        """A port with one edge gives its payload; one with several gives a tuple of what came."""
        return payloads[0] if len(self._places[port]) == 1 else tuple(payloads)


def _payload(given: Message | tuple[Message, ...]) -> Any:
    return tuple(each.payload for each in given) if isinstance(given, tuple) else given.payload


def _object(name: str, context: GraphContext | None) -> Any:
    if context is None:
        raise AssertionError("a component that asks for the run's objects is called with a context")
    return context if name == "context" else context.invocation


def _missing(port: str) -> ComponentInvalid:
    return ComponentInvalid(
        f"input {port!r} had no message when the component ran",
        hint="Give the parameter a default, or use a trigger that waits for every input.",
        port=port,
    )
