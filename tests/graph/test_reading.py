"""Each structural mistake in a graph file has its own message, path, line and fix; no file can cause another error."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import GraphInvalid
from rota.graph.compiler import check
from rota.graph.diagnostics import CODES, Diagnostic
from rota.graph.document import InputLimits
from rota.graph.graph_reader import NO_LIMITS, GraphReader
from rota.graph.loader import load_mapping, load_text
from rota.graph.spec import ERROR_POLICIES, LANE_TYPES, GraphSpec
from tests.graph.drafts import BARE, corpus, draft

FILE = """\
schema_version: 2
graph:
  name: minimal
lanes:
  main:
    type: thread_pool
    max_threads: 2
components:
  - id: source
    type: demo.Source
    execution:
      lane: main
  - id: sink
    type: demo.Sink
    trigger_policy:
      type: any_input
      inputs: [in]
    execution:
      lane: main
edges:
  - id: wire
    kind: immediate
    from: source.out
    to: sink.in
    policy:
      capacity: 4
"""
BY_CODE = {code: info.fix for code, info in CODES.items()}
LANE, INPUTS = "lanes.main", "components.sink.trigger_policy.inputs"
WORKERS = "a whole number from 0 to 1,024"
ID = "an id of 1 to 128 printable characters"


def diagnostics_of(text: str, **limits: int) -> list[Diagnostic]:
    with pytest.raises(GraphInvalid) as caught:
        load_text(text, limits=InputLimits(**limits))
    return list(caught.value.diagnostics)


def the_only(text: str, **limits: int) -> Diagnostic:
    diagnostics = diagnostics_of(text, **limits)
    assert len(diagnostics) == 1, [each.sentence() for each in diagnostics]
    return diagnostics[0]


def test_the_file_is_valid() -> None:
    assert load_text(FILE).graph.name == "minimal"


@pytest.mark.parametrize(
    ("old", "new", "path", "line", "message"),
    [
        # of the wrong type
        ("max_threads: 2", "max_threads: two", f"{LANE}.max_threads", 6, f'{WORKERS}, found "two"'),
        ("max_threads: 2", "max_threads: 2.5", f"{LANE}.max_threads", 6, f"{WORKERS}, found 2.5"),
        ("max_threads: 2", "max_threads: true", f"{LANE}.max_threads", 6, f"{WORKERS}, found true"),
        ("max_threads: 2", "hz: fast", f"{LANE}.hz", 6, 'a number from 0 to 1,000,000, found "fast"'),
        ("max_threads: 2", "wall_clock_enabled: 1", f"{LANE}.wall_clock_enabled", 6, "true or false, found 1"),
        ("max_threads: 2", "cpu_affinity: 0", f"{LANE}.cpu_affinity", 6, "a list (each item: a whole number), found 0"),
        ("max_threads: 2", "cpu_affinity: [0, x]", f"{LANE}.cpu_affinity.1", 6, 'a whole number, found "x"'),
        ("type: demo.Source", "type: 7", "components.source.type", 9, "a string of 1 to 4096 characters, found 7"),
        ("inputs: [in]", "inputs: in", INPUTS, 16, f'a list (each item: {ID}), found "in"'),
        ("inputs: [in]", "inputs: [[]]", f"{INPUTS}.0", 16, f"{ID}, found an empty list"),
        ("id: sink", "id: 3", "components.[1].id", 13, f"{ID}, found 3"),
        ("  - id: source\n", "  - 5\n  - id: source\n", "components.[0]", 1, "a mapping, found 5"),
        ("name: minimal", "config: 3", "graph.config", 3, "a mapping (each value: any value), found 3"),
        # out of range
        ("max_threads: 2", "max_threads: 1025", f"{LANE}.max_threads", 6, f"{WORKERS}, found 1025"),
        ("max_threads: 2", "max_threads: -1", f"{LANE}.max_threads", 6, f"{WORKERS}, found -1"),
        ("max_threads: 2", "hz: -0.5", f"{LANE}.hz", 6, "a number from 0 to 1,000,000, found -0.5"),
        ("id: wire", 'id: "a\\nb"', "edges.a\nb.id", 21, f'{ID}, found "a\\nb"'),
        ("id: wire", 'id: ""', "edges.[0].id", 21, f'{ID}, found ""'),
        ("  main:\n", '  "a\\tb":\n', "lanes.a\tb", 5, f'{ID}, found "a\\tb"'),
    ],
)
def test_a_value_that_does_not_fit(old: str, new: str, path: str, line: int, message: str) -> None:
    diagnostic = next(each for each in diagnostics_of(FILE.replace(old, new)) if each.graph_path == path)
    assert diagnostic.message == f"{path}: expected {message}"
    assert (diagnostic.code, diagnostic.severity, diagnostic.line) == ("graph_validation_error", "error", line)
    assert diagnostic.suggested_fix == BY_CODE["graph_validation_error"]


@pytest.mark.parametrize(
    ("old", "new", "code", "sentence", "similar"),
    [
        (
            "type: thread_pool",
            "type: thread_pol",
            "unsupported_lane_type",
            f'line 6: lanes.main.type: must be one of {", ".join(LANE_TYPES)}, not "thread_pol"',
            "thread_pool",
        ),
        (
            "lane: main\nedges",
            "lane: main\n      on_error: ignore\nedges",
            "unsupported_error_policy",
            f'line 19: components.sink.execution.on_error: must be one of {", ".join(ERROR_POLICIES)}, not "ignore"',
            "",
        ),
        (
            "kind: immediate",
            "kind: [immediate]",
            "graph_validation_error",
            "line 21: edges.wire.kind: must be one of immediate, delay, state, async, not a list",
            "",
        ),
        (
            "capacity: 4",
            "readers: multipel",
            "invalid_channel_policy",
            'line 26: edges.wire.policy.readers: must be one of single, multi, multiple, not "multipel"',
            "multiple",
        ),
    ],
)
def test_a_value_that_is_none_of_the_choices(old: str, new: str, code: str, sentence: str, similar: str) -> None:
    diagnostic = the_only(FILE.replace(old, new))
    assert diagnostic.sentence() == f"error {code}: {sentence}"
    assert diagnostic.graph_path == sentence.split(": ")[1]
    assert diagnostic.suggested_fix == (f"Did you mean {similar}? " if similar else "") + "Use one of these values."


def test_a_value_in_an_edge_policy_has_the_code_of_the_policy() -> None:
    diagnostic = the_only(FILE.replace("capacity: 4", "capacity: 0"))
    assert diagnostic.code == "invalid_channel_policy"
    assert diagnostic.message == "edges.wire.policy.capacity: expected a whole number from 1 to 2,147,483,647, found 0"
    whole = the_only(FILE.replace("policy:\n      capacity: 4", "policy: 4"))
    assert (whole.code, whole.message) == ("invalid_channel_policy", "edges.wire.policy: expected a mapping, found 4")


@pytest.mark.parametrize(
    ("old", "path", "line", "fix"),
    [
        ("schema_version: 2\n", "schema_version", 1, "Add schema_version at the top of the file."),
        ("  name: minimal\n", "graph", 1, "Add graph at the top of the file."),
        ("    type: demo.Sink\n", "components.sink.type", 13, "Add the field."),
        ("      lane: main\nedges", "components.sink.execution", 13, "Add the field."),
        ("    kind: immediate\n", "edges.wire.kind", 21, "Add the field."),
    ],
)
def test_a_key_that_is_missing(old: str, path: str, line: int, fix: str) -> None:
    diagnostic = the_only(FILE.replace(old, "edges" if old.endswith("edges") else ""))
    assert diagnostic.message == f"{path} is required"
    assert (diagnostic.code, diagnostic.graph_path, diagnostic.line) == ("graph_validation_error", path, line)
    assert diagnostic.suggested_fix == fix


@pytest.mark.parametrize(
    ("old", "new", "path", "line", "fix"),
    [
        (
            "max_threads: 2",
            "max_thread: 2",
            "lanes.main.max_thread",
            6,
            "Did you mean max_threads? The fields are: type,",
        ),
        ("edges:", "composite_loop: []\nedges:", "composite_loop", 1, "Did you mean composite_loops? The fields are:"),
        ("capacity: 4", "zzz: 4", "edges.wire.policy.zzz", 26, "The fields are: mode, capacity, overflow,"),
        ("    from: source.out", "    from: source.out\n    form: x", "edges.wire.form", 21, "Did you mean from? "),
    ],
)
def test_a_key_that_does_not_exist(old: str, new: str, path: str, line: int, fix: str) -> None:
    diagnostic = the_only(FILE.replace(old, new))
    assert diagnostic.message == f"unexpected field {path}"
    assert (diagnostic.code, diagnostic.graph_path, diagnostic.line) == ("graph_validation_error", path, line)
    assert diagnostic.suggested_fix.startswith(fix)


def test_a_key_that_occurs_twice() -> None:
    diagnostic = the_only(
        FILE.replace("    id: wire", "").replace("    kind: immediate", "    kind: delay\n    kind: x")
    )
    assert (diagnostic.message, diagnostic.line) == ("duplicate key 'kind'", 23)
    twice = '{"schema_version": 1, "graph": {"name": "a", "name": "b"}}'
    assert the_only(twice).message == "duplicate key 'name'"


@pytest.mark.parametrize(
    ("new", "limits", "path", "line", "message"),
    [
        ("config: {a: [[[]]]}", {"config_depth": 3}, "graph.config.a", 3, "graph.config.a: nesting exceeds limit 3"),
        (
            "config: {a: xxxxx}",
            {"config_value_bytes": 4},
            "graph.config.a",
            3,
            "graph.config.a: value exceeds limit 4 bytes",
        ),
        ("config: {}", {"lanes": 0}, "lanes", 6, "runtime graph.lanes count exceeds limit 0"),
        ("config: {}", {"components": 1}, "components", 1, "runtime graph.components count exceeds limit 1"),
        ("config: {}", {"edges": 0}, "edges", 1, "runtime graph.edges count exceeds limit 0"),
        (
            "kind: internal_test",
            {"identifier_bytes": 6},
            "graph.name",
            3,
            "graph.name…: identifier exceeds limit 6 bytes",
        ),
        ("config: [[[]]]", {"nesting_depth": 3}, "", 4, "nesting exceeds limit 3"),
        ("config: {}", {"values": 8}, "", 8, "the file expands to more values than the limit 8"),
        ("config: {}", {"graph_input_bytes": 99}, "", None, "graph input size exceeds limit 99"),
    ],
)
def test_a_file_that_is_too_deep_or_too_large(
    new: str, limits: dict[str, int], path: str, line: int | None, message: str
) -> None:
    diagnostic = the_only(FILE.replace("  name: minimal", f"  name: minimal\n  {new}"), **limits)
    assert (diagnostic.message, diagnostic.graph_path, diagnostic.line) == (message, path, line)


def test_a_string_that_is_too_long_is_reported_with_a_path_of_limited_length() -> None:
    long, shown = "x" * 5000, "x" * 160 + "…"
    document = yaml.safe_load(FILE)
    document["edges"][0] |= {"id": long, long: 1}
    assert {each.graph_path: each.message for each in diagnostics_of(json.dumps(document))} == {
        f"edges.{shown}.id": f"edges.{shown}.id: string exceeds limit 4096 bytes",
        f"edges.{shown}.{shown}": f"unexpected field edges.{shown}.{shown}",
    }


def test_everything_that_is_wrong_with_one_component_is_reported() -> None:
    document = draft([{"id": "a", "colour": "red", "type": 3, "execution": {"priority": "urgent", "budget_ms": -1}}])
    with pytest.raises(GraphInvalid) as caught:
        load_mapping(document)
    assert {each.graph_path for each in caught.value.diagnostics} == {
        "components.a.colour",
        "components.a.type",
        "components.a.execution.priority",
        "components.a.execution.budget_ms",
    }


# --- graphs built in Python ----------------------------------------------------------------------


def changed(spec: GraphSpec, **changes: Any) -> GraphSpec:
    lane = msgspec.structs.replace(spec.lanes["main"], **changes)
    return msgspec.structs.replace(spec, lanes={"main": lane})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_threads": -1}, "lanes.main.max_threads: expected a whole number from 0 to 1,024, found -1"),
        ({"priority": None}, "lanes.main.priority: expected a string of 0 to 4096 characters, found null"),
        ({"policy": 3}, f"lanes.main.policy: expected {ID} or a mapping, found 3"),
        ({"type": "carousel"}, "lanes.main.type: must be one of event_loop, "),
    ],
)
def test_a_graph_built_in_python_is_checked_in_the_same_words(changes: dict[str, Any], message: str) -> None:
    (diagnostic,) = check(changed(load_text(FILE), **changes), platform=BARE).diagnostics
    assert diagnostic.message.startswith(message)
    assert diagnostic.graph_path == message.split(":", maxsplit=1)[0]


def test_a_value_that_json_cannot_express_is_a_diagnostic() -> None:
    (diagnostic,) = check(changed(load_text(FILE), policy=object()), platform=BARE).diagnostics
    assert diagnostic.message.startswith("the graph contains a value that a graph file cannot contain")


# --- any change of a valid file ------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5)
junk = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A valid document in which one to three values are replaced, removed or renamed."""
    document: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(corpus())))
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(_places(document)))
        what = draw(st.sampled_from(["replace", "remove", "rename"]))
        if what == "replace" or isinstance(container, list):
            container[key] = draw(junk)
        elif len(document) > 1:
            value = container.pop(key)
            if what == "rename":
                container[draw(st.text(max_size=8))] = value
    return document


def _places(value: Any) -> list[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in _places(value[key])]


@given(mutated(), st.sampled_from([json.dumps, yaml.safe_dump]))
def test_a_mutated_file_loads_or_is_refused_with_a_located_diagnostic(document: dict[str, Any], dump: Any) -> None:
    try:
        load_text(dump(document))
    except GraphInvalid as refusal:
        found = refusal.diagnostics
    else:
        return
    # a number that JSON cannot hold: the parser refuses it, and says no line
    unreadable = len(found) == 1 and found[0].message.endswith(("too large", "not a finite number"))
    assert unreadable or all(each.graph_path or each.line for each in found)
    for each in found:
        assert each.code in CODES
        assert not each.message.startswith(("Expected", "Object", "Invalid"))
        assert each.suggested_fix
    msgspec.json.encode(found)


@given(st.data())
def test_the_reader_and_msgspec_accept_the_same_graphs(data: st.DataObject) -> None:
    """A graph built in Python is checked by msgspec first: whatever it refuses, the reader must find."""
    plain = msgspec.to_builtins(load_mapping(data.draw(st.sampled_from(corpus()))))
    container, key = data.draw(st.sampled_from(_places(plain)))
    container[key] = data.draw(junk)
    try:
        msgspec.convert(plain, GraphSpec)
    except msgspec.ValidationError:
        accepted = False
    else:
        accepted = True
    reader = GraphReader(NO_LIMITS, 2, null_is_missing=False)
    reader.read(GraphSpec, plain)
    assert accepted or reader.found
