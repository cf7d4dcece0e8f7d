"""Component types: what a graph's components are in Python, and what the compiler knows of them.

A component is a function, or a class with an `execute` method, marked with the `component` decorator:

    @component("demo.Scale")
    def scale(value: float, *, factor: float = 2.0) -> float:
        return value * factor

The decorator reads everything from the signature:

    value               a positional parameter is an input port; a port with a default does not need a message
    *parts              is one input port that accepts several edges
    **inputs            accepts every port that the edges name
    factor              a keyword-only parameter is configuration, from `config:` in the graph file
    -> float            the return value is published on the output port: `out`, or the ports named in `outputs=`
    context, invocation are not ports: they are the run's own objects, passed to a component that asks for the name

A component that returns None publishes nothing; one with several outputs returns a dictionary of port to payload.
`Batch[int]` annotates a port that a `batch` trigger fills: a tuple of payloads, each an int. A function may be `async`.

A class is instantiated once per run, with the configuration as keyword arguments; `execute` is read like a function. It
may also define any of these methods:

    configure, activate     called at the start of a run, in lifecycle order
    deactivate              called at the end of a run, in reverse order, for every component that was started
    reset, restore(state)   called before a run; `restore` instead of `reset` if there is a state to restore
    snapshot() -> state     called after a run
    reconfigure(**config)   takes a new configuration between two epochs; `validate_config(**config)` may refuse it

The decorated function or class is unchanged, so it can be called, tested and pickled as before.

`function_type` reads any other function, method or `functools.partial` in the same way, for graphs that are built in
Python and for types such as `shop.reports:write`. There every parameter may also be set by the configuration, and
payload types are not compared by name.

Ports belong to the component's type, not to the graph file. The compiler compares the edges of a graph with the
`ComponentDescriptor` of each type; it never looks at the code behind it.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, TypeAlias, TypeVar, overload

import msgspec

from rota.errors import ComponentInvalid
from rota.graph.spec import BoundaryRole

__all__ = [
    "EVENT_PORTS",
    "REQUIRED",
    "Batch",
    "Catalogue",
    "ComponentDescriptor",
    "ComponentType",
    "Parameter",
    "Port",
    "component",
    "component_type",
    "function_type",
    "hints_of",
]


# --- descriptors ---------------------------------------------------------------------------------


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output of a component. An empty schema or payload type is compatible with every other."""

    name: str
    schema: str = ""
    payload_type: str = ""
    required: bool = False  # inputs: the graph is refused if no edge leads here
    multiplicity: Literal["single", "multi"] = "single"  # inputs: how many edges may lead here
    large_payload: bool = False  # outputs: frames, blobs, documents; copying them is worth a warning
    configurable: bool = False  # inputs: the configuration may set it, instead of an edge


class ComponentDescriptor(msgspec.Struct, frozen=True, kw_only=True):
    """A component type as the compiler sees it: its name, its ports, its boundary role and its configuration."""

    type: str
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    role: BoundaryRole | None = None  # None: any role
    any_ports: bool = False  # accepts and publishes on every port that the edges name
    any_inputs: bool = False  # accepts every port that the edges name
    config_names: tuple[str, ...] | None = None  # None: any configuration
    config_required: tuple[str, ...] = ()

    def input(self, name: str) -> Port | None:
        """Return the input port of this name."""
        return next((port for port in self.inputs if port.name == name), None)

    def output(self, name: str) -> Port | None:
        """Return the output port of this name."""
        return next((port for port in self.outputs if port.name == name), None)


class Catalogue(Protocol):
    """Where the compiler looks up descriptors: a `ComponentRegistry`, or a dictionary in a test."""

    def describe(self, component_type: str) -> ComponentDescriptor | None:
        """Return the descriptor of this type, or None if the type is not registered."""
        ...


# --- the decorator -------------------------------------------------------------------------------

T = TypeVar("T")
_BATCH = "rota.batch"
Batch: TypeAlias = Annotated[tuple[T, ...], _BATCH]

ATTRIBUTE = "__rota_component__"
INJECTED = ("context", "invocation")
EVENT_PORTS = ("request", "task_ready", "future_ready", "start")  # ports that the runtime fills, not an edge
DEFAULT_OUTPUT = "out"
REQUIRED = inspect.Parameter.empty

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)

_Kind: TypeAlias = Literal["function", "class"]
_Implementation = TypeVar("_Implementation", bound=Callable[..., Any])
Outputs: TypeAlias = Sequence[str | Port] | Mapping[str, Any]


class Parameter(msgspec.Struct, frozen=True):
    """A positional parameter of a component: an input port, or one of the run's own objects."""

    name: str
    default: Any  # REQUIRED: no default
    many: bool = False  # *args: one argument per edge

    @property
    def is_port(self) -> bool:
        """Whether messages fill this parameter."""
        return self.name not in INJECTED


class ComponentType(msgspec.Struct, frozen=True, kw_only=True):
    """A component type: its descriptor, and how to call its code."""

    descriptor: ComponentDescriptor
    implementation: Callable[..., Any]
    kind: _Kind
    parameters: tuple[Parameter, ...]  # all positional parameters, in order
    injected: tuple[str, ...]  # which of `context` and `invocation` it takes, positional or keyword-only
    takes_any: bool  # **inputs
    config_names: tuple[str, ...] | None  # None: any configuration
    config_required: tuple[str, ...]
    is_async: bool

    @property
    def name(self) -> str:
        """The type's name in a graph file."""
        return self.descriptor.type

    def check_config(self, component_id: str, config: Mapping[str, Any]) -> None:
        """Raise if a required configuration field is missing, or if the type does not know a given one."""
        missing = [name for name in self.config_required if name not in config]
        unknown = [] if self.config_names is None else [name for name in config if name not in self.config_names]
        if missing or unknown:
            problem = (
                f"config field {', '.join(missing)} is required"
                if missing
                else f"unknown config field {', '.join(unknown)}"
            )
            known = ", ".join(self.config_names or ()) or "none"
            raise ComponentInvalid(
                f"component {component_id} of type {self.name}: {problem}",
                hint=f"Its config fields are: {known}.",
                component_id=component_id,
            )


@overload
def component(type_or_implementation: _Implementation, /) -> _Implementation: ...


@overload
def component(
    type_or_implementation: str | None = None,
    /,
    *,
    inputs: Mapping[str, Any] | None = None,
    outputs: Outputs | None = None,
    role: BoundaryRole | None = None,
) -> Callable[[_Implementation], _Implementation]: ...


def component(
    type_or_implementation: Any = None,
    /,
    *,
    inputs: Mapping[str, Any] | None = None,
    outputs: Outputs | None = None,
    role: BoundaryRole | None = None,
) -> Any:
    """Declare a function or a class as a component. The default type name is the name of the function or class."""
    named = type_or_implementation is None or isinstance(type_or_implementation, str)
    type_name = type_or_implementation if named else None

    def decorate(implementation: _Implementation) -> _Implementation:
        reader = _SignatureReader(implementation, type_name or implementation.__name__, inputs or {}, outputs, role)
        setattr(implementation, ATTRIBUTE, reader.component_type())
        return implementation

    return decorate if named else decorate(type_or_implementation)


def component_type(decorated: Any) -> ComponentType | None:
    """Return the type that the decorator attached, or None. A subclass does not inherit it."""
    found = vars(decorated).get(ATTRIBUTE) if hasattr(decorated, "__dict__") else None
    return found if isinstance(found, ComponentType) else None


def function_type(function: Callable[..., Any], type_name: str) -> ComponentType:
    """Return the type of a function, method or partial without the decorator; with it, the decorator's own."""
    decorated = component_type(function)
    if decorated is not None:
        descriptor = msgspec.structs.replace(decorated.descriptor, type=type_name)
        return msgspec.structs.replace(decorated, descriptor=descriptor)
    return _SignatureReader(function, type_name, {}, None, None, is_plain=True).component_type()


# --- reading a signature -------------------------------------------------------------------------


class _SignatureReader:
    """Builds a `ComponentType` from a signature, when the decorator runs."""

    def __init__(
        self,
        implementation: Callable[..., Any],
        type_name: str,
        inputs: Mapping[str, Any],
        outputs: Outputs | None,
        role: BoundaryRole | None,
        *,
        is_plain: bool = False,  # not decorated
    ) -> None:
        self._implementation = implementation
        self._type_name = type_name
        self._input_types = inputs
        self._output_names = outputs
        self._role = role
        self._is_plain = is_plain
        self._kind: _Kind = "class" if inspect.isclass(implementation) else "function"
        self._execute = self._find_execute()
        self._hints = hints_of(self._execute)
        declared = list(inspect.signature(self._execute).parameters.values())
        self._declared = declared[1:] if self._kind == "class" else declared  # without self

    def component_type(self) -> ComponentType:
        """Return the type that the signature describes."""
        takes_any = any(each.kind is each.VAR_KEYWORD for each in self._declared)
        names, required = self._configuration()
        return ComponentType(
            descriptor=ComponentDescriptor(
                type=self._type_name,
                inputs=tuple(self._port(each) for each in self._ports()),
                outputs=self._outputs(),
                role=self._role,
                any_ports=takes_any,
                config_names=names,
                config_required=required,
            ),
            implementation=self._implementation,
            kind=self._kind,
            parameters=tuple(
                Parameter(each.name, each.default, each.kind is each.VAR_POSITIONAL)
                for each in self._declared
                if each.kind in _POSITIONAL
            ),
            injected=tuple(each.name for each in self._declared if each.name in INJECTED),
            takes_any=takes_any,
            config_names=names,
            config_required=required,
            is_async=inspect.iscoroutinefunction(_function_of(self._execute)),
        )

    def _find_execute(self) -> Callable[..., Any]:
        execute = getattr(self._implementation, "execute", None) if self._kind == "class" else self._implementation
        is_plain = self._is_plain and self._kind == "function"
        if not callable(execute) or not (is_plain or inspect.isfunction(execute)):
            raise self._invalid("must be a function, or a class with a method `execute`")
        if inspect.isgeneratorfunction(_function_of(execute)) or inspect.isasyncgenfunction(_function_of(execute)):
            raise self._invalid("is a generator, which is not supported: publish through `context` instead")
        return execute

    def _ports(self) -> list[inspect.Parameter]:
        return [each for each in self._declared if each.kind in _POSITIONAL and each.name not in INJECTED]

    def _port(self, declared: inspect.Parameter) -> Port:
        hint = self._input_types.get(declared.name, self._hints.get(declared.name, Any))
        many = declared.kind is declared.VAR_POSITIONAL
        return Port(
            name=declared.name,
            payload_type="" if self._is_plain else _type_name(hint),
            # the runtime fills the event ports itself, so they need no edge
            required=declared.default is declared.empty and not many and declared.name not in EVENT_PORTS,
            multiplicity="multi" if many else "single",
            configurable=self._is_plain and not many,
        )

    def _outputs(self) -> tuple[Port, ...]:
        returned = self._hints.get("return", Any)
        if self._is_plain:
            return (Port(name=DEFAULT_OUTPUT),)
        if self._output_names is None:
            silent = returned is type(None) and "context" not in {each.name for each in self._declared}
            return () if silent else (Port(name=DEFAULT_OUTPUT, payload_type=_type_name(_not_none(returned))),)
        if isinstance(self._output_names, Mapping):
            return tuple(Port(name=name, payload_type=_type_name(hint)) for name, hint in self._output_names.items())
        only = len(self._output_names) == 1
        named = _type_name(_not_none(returned)) if only else ""
        return tuple(
            each if isinstance(each, Port) else Port(name=each, payload_type=named) for each in self._output_names
        )

    def _configuration(self) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
        """Return the known configuration fields (None: any), and the required ones."""
        if self._kind == "class":
            settings = list(inspect.signature(self._implementation).parameters.values())  # of __init__, without self
            if any(each.kind is each.VAR_KEYWORD for each in settings):
                return None, ()
        else:
            settings = [each for each in self._declared if each.kind is each.KEYWORD_ONLY and each.name not in INJECTED]
        names = tuple(each.name for each in settings)
        required = tuple(each.name for each in settings if each.default is each.empty)
        if self._is_plain:
            names += tuple(port.name for port in map(self._port, self._ports()) if port.configurable)
        return names, required

    def _invalid(self, problem: str) -> ComponentInvalid:
        return ComponentInvalid(f"component {self._type_name} {problem}", component_type=self._type_name)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a function, method or partial; none if they cannot be resolved."""
    try:
        return typing.get_type_hints(_function_of(function), include_extras=True)
    except Exception:  # a name that cannot be resolved here, or only by the type checker: the port accepts every type
        return {}


def _function_of(code: Any) -> Any:
    """Return the function behind a partial, or behind an object with `__call__`."""
    while isinstance(code, functools.partial):
        code = code.func
    return code if inspect.isroutine(code) or inspect.isclass(code) else code.__call__


def _not_none(hint: Any) -> Any:
    """Return X for `X | None`: a component that returns None publishes nothing."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kept = [each for each in typing.get_args(hint) if each is not type(None)]
        return kept[0] if len(kept) == 1 else Any
    return hint


def _type_name(hint: Any) -> str:
    """Return the payload type's name, by which two ports are compared; "" is compatible with every type."""
    hint = _not_none(hint)
    if typing.get_origin(hint) is Annotated:
        inner, *notes = typing.get_args(hint)
        return _type_name(typing.get_args(inner)[0] if _BATCH in notes else inner)
    if hint is Any or hint is object or isinstance(hint, TypeVar) or hint is type(None):
        return ""
    return hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
