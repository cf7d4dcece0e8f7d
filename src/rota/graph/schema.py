"""The JSON Schema of graph files, for editors and other tools. It is generated from the structs of the loader.

The schema covers the rules about single fields. `compiler.check` checks the rules that relate several fields, for
example that edges lead to existing components.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rota.graph.document import InputLimits
from rota.graph.expansion import GraphFile
from rota.graph.spec import ERROR_POLICIES_V1, EVENT_SOURCES_V1, LANE_TYPES_V1, VERSION_2_FIELDS

__all__ = ["graph_schema"]

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def graph_schema(version: Literal[1, 2] = 2) -> dict[str, Any]:
    """Return the JSON Schema of graph files of this version."""
    schema = msgspec.json.schema(GraphFile)
    parts: dict[str, Any] = schema["$defs"]
    root = parts["GraphFile"]["properties"]
    root["schema_version"] = {"const": version}
    _add_limits(root)
    if version == 1:
        _remove_version_2(parts)
    return {"$schema": DIALECT, "title": f"rota graph file, schema version {version}", **schema}


def _add_limits(root: dict[str, Any]) -> None:
    limits = InputLimits()
    root["lanes"]["maxProperties"] = limits.lanes
    root["components"]["maxItems"] = limits.components
    root["edges"]["maxItems"] = limits.edges
    root["composite_loops"]["maxItems"] = limits.composite_loops


def _remove_version_2(parts: dict[str, Any]) -> None:
    for name, section in (("LaneSpec", "lanes"), ("ExecutionSpec", "execution"), ("GraphInfo", "graph")):
        for field in VERSION_2_FIELDS[section]:
            del parts[name]["properties"][field]
    parts.pop("LanePolicy")
    parts["LaneSpec"]["properties"]["type"]["enum"] = list(LANE_TYPES_V1)
    parts["EventSource"]["properties"]["type"]["enum"] = list(EVENT_SOURCES_V1)
    parts["ExecutionSpec"]["properties"]["on_error"]["enum"] = list(ERROR_POLICIES_V1)
