"""The settings of a node that is built in Python: its `execution`, its configuration, what it maps over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rota.decoding import convert
from rota.errors import GraphInvalid
from rota.graph.components import ComponentType
from rota.graph.graph_parts import checked_json
from rota.graph.node_ports import NodePort
from rota.graph.spec import ExecutionSpec

__all__ = ["checked_settings", "converted", "execution_of", "mapped_port"]


def execution_of(node_id: str, given: Mapping[str, Any]) -> ExecutionSpec:
    """Return a node's `execution`. A function that is mapped over is called for several items at a time."""
    fields = {name: value for name, value in given.items() if value not in (None, "")}
    if "map_over" in fields and "agent" not in fields:
        fields.setdefault("reentrant", True)
    found: ExecutionSpec = converted(f"node {node_id}", fields, ExecutionSpec)
    return found


def converted(place: str, fields: Mapping[str, Any], kind: Any) -> Any:
    """Return the struct of these fields; raises for one that a graph file could not contain."""
    try:
        return convert(fields, kind)
    except msgspec.ValidationError as problem:
        raise GraphInvalid(f"{place}: {problem}", hint="`rota graph schema` prints all fields and values.") from problem


def mapped_port(node_id: str, ports: Sequence[NodePort], map_over: str | bool) -> str:
    """Return the input that receives lists; empty if the node does not map over one."""
    places = [port.name for port in ports if port.takes_outputs and not port.many and not port.any_name]
    if map_over is False or map_over == "":
        return ""
    if map_over is True and places:
        return places[0]
    if map_over not in places:
        text = f"node {node_id} cannot map over {map_over if isinstance(map_over, str) else 'its first input'}"
        raise GraphInvalid(text, hint=f"The inputs it can map over: {', '.join(places) or 'none'}.")
    return str(map_over)


def checked_settings(node_id: str, settings: Mapping[str, Any], component_type: ComponentType) -> dict[str, Any]:
    """Return the configuration of a node; raises for a name that the function does not have."""
    known = component_type.config_names
    for name in settings:
        if known is not None and name not in known:
            text = f"node {node_id} has no parameter {name} that can be set"
            raise GraphInvalid(text, hint=f"What can be set: {', '.join(known) or 'nothing'}.")
    missing = [name for name in component_type.config_required if name not in settings]
    if missing:
        text = f"node {node_id} needs a value for {missing[0]}, which is a keyword-only parameter"
        raise GraphInvalid(text, hint=f"Set it when the node is added: g.node(…, {missing[0]}=…)")
    found: dict[str, Any] = checked_json(f"node {node_id}", dict(settings))
    return found
