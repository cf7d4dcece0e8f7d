"""Write a `GraphSpec` as a graph file: the inverse of the loader.

Only what differs from its default is written, and of agents, inputs and outputs only what the loader does not fill
in. Subgraphs and templates are written as what they were expanded to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from rota.graph.agent_components import completed
from rota.graph.document import is_plain_text
from rota.graph.spec import AGENT_TYPE, FLEET_LANE, ComponentSpec, EventSource, GraphSpec, LaneSpec, TriggerPolicy

__all__ = ["graph_document", "graph_to_yaml"]

_BASE: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_BASE):  # type: ignore[misc]  # which base depends on the build of PyYAML
    """Quotes every text that the reader would take for something else: PyYAML writes 1e5 as it is."""


def _text(dumper: Any, text: str) -> Any:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if is_plain_text(text) else "'")


_Dumper.add_representer(str, _text)


def graph_to_yaml(spec: GraphSpec) -> str:
    """Return the text of a graph file that loads as this graph."""
    text = yaml.dump(
        graph_document(spec), Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120
    )
    return str(text)


def graph_document(spec: GraphSpec) -> dict[str, Any]:
    """Return the contents of a graph file that loads as this graph."""
    spec = _without_filled_in(spec)
    document: dict[str, Any] = {
        "schema_version": spec.schema_version,
        "graph": _fields(spec.graph),
        "lanes": {name: _fields(lane) for name, lane in spec.lanes.items()},
        "components": [_component(component) for component in spec.components],
        "edges": [_fields(edge) for edge in spec.edges],
    }
    if spec.composite_loops:
        document["composite_loops"] = [_fields(loop) for loop in spec.composite_loops]
    return document


def _without_filled_in(spec: GraphSpec) -> GraphSpec:
    """Return the graph without the lane and the triggers that `completed` fills in."""
    lanes = dict(spec.lanes)
    if next(reversed(lanes), "") == FLEET_LANE and lanes[FLEET_LANE] == LaneSpec(type="fleet"):
        del lanes[FLEET_LANE]
    bare = msgspec.structs.replace(spec, lanes=lanes, components=tuple(map(_without_trigger, spec.components)))
    filled_in = completed(bare)
    if list(filled_in.lanes) != list(spec.lanes):
        lanes = spec.lanes
    pairs = zip(spec.components, bare.components, filled_in.components, strict=True)
    components = tuple(short if full == given else given for given, short, full in pairs)
    return msgspec.structs.replace(spec, lanes=lanes, components=components)


def _without_trigger(component: ComponentSpec) -> ComponentSpec:
    return msgspec.structs.replace(component, trigger_policy=TriggerPolicy(), event_sources=(EventSource(),))


def _component(component: ComponentSpec) -> dict[str, Any]:
    fields = _fields(component)
    if component.execution.agent:
        if component.type == AGENT_TYPE:
            del fields["type"]
        if component.execution.lane == FLEET_LANE:
            del fields["execution"]["lane"]
    return fields


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    """Return the fields of a struct that differ from their defaults, under their names in a file."""
    kind = type(struct)
    required = len(kind.__struct_fields__) - len(kind.__struct_defaults__)
    found: dict[str, Any] = {}
    for at, (field, name) in enumerate(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)):
        value = getattr(struct, field)
        if at < required or value != _default(kind, at - required):
            found[name] = _amounts(value) if name == "budget" else _value(value)
    return found


def _amounts(budget: Mapping[str, float]) -> dict[str, float]:
    """Return a budget as people write it: 500, not 500.0."""
    return {dim: int(amount) if amount == int(amount) else amount for dim, amount in budget.items()}


def _default(kind: type[msgspec.Struct], at: int) -> Any:
    default = kind.__struct_defaults__[at]
    return default.factory() if hasattr(default, "factory") else default


def _value(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return _fields(value)
    if isinstance(value, tuple | list):
        return [_value(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _value(each) for name, each in value.items()}
    return value
