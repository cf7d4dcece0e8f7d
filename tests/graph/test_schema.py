"""The JSON Schema agrees with the loader on the rules about single fields."""

from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # it has no types
import pytest

from rota.errors import GraphInvalid
from rota.graph.loader import load_mapping
from rota.graph.schema import graph_schema
from rota.graph.spec import LANE_TYPES, LANE_TYPES_V1
from tests.graph.drafts import corpus, draft


def matches(document: dict[str, Any], version: Any = 1) -> bool:
    return bool(jsonschema.Draft202012Validator(graph_schema(version)).is_valid(document))


def loads(document: dict[str, Any]) -> bool:
    try:
        load_mapping(document)
    except GraphInvalid:
        return False
    return True


@pytest.mark.parametrize("version", [1, 2])
def test_the_schema_is_a_schema(version: Any) -> None:
    schema = graph_schema(version)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema")
    json.dumps(schema)


@pytest.mark.parametrize("document", corpus())
def test_a_file_that_loads_matches_the_schema(document: dict[str, Any]) -> None:
    assert loads(document)
    assert matches(document, document["schema_version"])


@pytest.mark.parametrize(
    "document",
    [
        {**draft(["a"]), "extra": 1},
        {**draft(["a"]), "schema_version": 3},
        draft([{"id": "a", "colour": "red"}]),
        draft([{"id": "", "type": "t"}]),
        draft([{"id": "a", "execution": {"priority": "urgent"}}]),
        draft([{"id": "a", "execution": {"budget_ms": -1}}]),
        draft(["a", "b"], [{"from": "a.out", "to": "b.in", "kind": "sudden"}]),
        draft(["a", "b"], [{"from": "a.out", "to": "b.in", "policy": {"capacity": 0}}]),
        draft(["a"], lanes={"main": {"type": "carousel"}}),
        draft(["a"], lanes={"main": {"type": "thread_pool", "max_threads": 1.5}}),
        draft(["a"], lanes={f"l{n}": {"type": "event_loop"} for n in range(257)}),
        draft(["a"], loops={"round": []}),
        draft(["a"], subgraphs=[{"id": "cell"}]),
    ],
)
def test_a_file_that_the_loader_refuses_for_one_field_does_not_match(document: dict[str, Any]) -> None:
    assert not loads(document)
    assert not matches(document)


def test_version_1_has_neither_the_lanes_nor_the_fields_of_version_2() -> None:
    one, two = graph_schema(1)["$defs"], graph_schema(2)["$defs"]
    assert one["LaneSpec"]["properties"]["type"]["enum"] == list(LANE_TYPES_V1)
    assert set(two["LaneSpec"]["properties"]["type"]["enum"]) == set(LANE_TYPES)
    assert set(two["LaneSpec"]["properties"]) - set(one["LaneSpec"]["properties"]) == {
        "starvation_epochs",
        "overflow_deadline_ms",
        "policy",
    }
    assert one["ExecutionSpec"]["properties"]["on_error"]["enum"] == ["fail_fast"]
    assert not matches(draft(["a"], lanes={"main": {"type": "thread_pool", "policy": "eevdf"}}))


def test_making_one_schema_does_not_change_the_other() -> None:
    before = json.dumps(graph_schema(2))
    graph_schema(1)
    assert json.dumps(graph_schema(2)) == before
