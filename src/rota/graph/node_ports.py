"""The inputs of a node that is built in Python: read from a function's signature or from an agent's.

def write(draft: str, *notes: str, words: int = 200) -> str

draft   by position or name, required        notes   several outputs, by position
words   by name only: a plain value, which becomes configuration
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import msgspec

from rota.errors import GraphInvalid
from rota.graph.components import INJECTED, ComponentType, hints_of
from rota.graph.type_hints import accepts, hint_text, item_hint

__all__ = ["NodePort", "agent_ports", "check_type", "function_ports", "output_hint"]


class NodePort(msgspec.Struct, frozen=True):
    """An input of a node."""

    name: str
    hint: Any = Any
    required: bool = False
    by_position: bool = True
    many: bool = False  # *args: takes several outputs
    any_name: bool = False  # **kwargs: takes every other name
    takes_outputs: bool = True  # False: plain values only
    is_mapped: bool = False  # receives lists, one item at a time

    def mapped(self) -> NodePort:
        """Return the port of a node that maps over it."""
        return msgspec.structs.replace(self, is_mapped=True)


def function_ports(component_type: ComponentType) -> list[NodePort]:
    """Return the inputs of a function or class component."""
    code = component_type.implementation
    if component_type.kind == "class":
        code = code.execute  # type: ignore[attr-defined]  # a class component has this method
    parameters = list(inspect.signature(code).parameters.values())
    if component_type.kind == "class":
        parameters = parameters[1:]  # without self
    ports = _ports(parameters, hints_of(code), outputs_by_name=False)
    return [port for port in ports if port.name not in INJECTED]


def agent_ports(agent: Any, parameters: Sequence[inspect.Parameter]) -> list[NodePort]:
    """Return the inputs of an agent that is a function: all its parameters but the context, all by name too."""
    return _ports(parameters, hints_of(_function(agent)), outputs_by_name=True)


def output_hint(code: Any) -> Any:
    """Return the annotated type of what a function, class component or agent returns."""
    if isinstance(code, ComponentType):
        code = code.implementation.execute if code.kind == "class" else code.implementation  # type: ignore[attr-defined]
    return hints_of(_function(code)).get("return", Any)


def check_type(node_id: str, port: NodePort, hint: Any, what: str) -> None:
    """Raise if the annotations rule out that a port takes this type."""
    wanted = port.hint
    if not port.is_mapped and accepts(wanted, hint):
        return
    if port.is_mapped and (accepts(list, hint) or accepts(tuple, hint)) and accepts(wanted, item_hint(hint)):
        return
    kind = f"a list of {hint_text(wanted)}" if port.is_mapped else hint_text(wanted)
    raise GraphInvalid(
        f"input {port.name} of node {node_id} takes {kind}, but {what} is {hint_text(hint)}",
        hint="Convert the value in a node between them, or correct the annotation.",
    )


def _ports(parameters: Sequence[inspect.Parameter], hints: dict[str, Any], *, outputs_by_name: bool) -> list[NodePort]:
    return [
        NodePort(
            each.name,
            hint=hints.get(each.name, Any),
            required=each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD),
            by_position=each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.VAR_POSITIONAL),
            many=each.kind is each.VAR_POSITIONAL,
            any_name=each.kind is each.VAR_KEYWORD,
            takes_outputs=outputs_by_name or each.kind is not each.KEYWORD_ONLY,
        )
        for each in parameters
    ]


def _function(code: Any) -> Any:
    return getattr(code, "__wrapped__", code)
