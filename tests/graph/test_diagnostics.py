"""Every diagnostic: a graph that has it, and a similar one that does not."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import msgspec
import pytest

import rota.graph
from rota.errors import GraphInvalid
from rota.graph.compiler import check, compile_graph, lint
from rota.graph.components import ComponentDescriptor, Port
from rota.graph.diagnostics import CODES, SEVERITIES, Diagnostic, worst_first
from rota.graph.loader import load_mapping
from rota.graph.plan_reports import diagnostic_groups, validation_to_dict
from rota.graph.spec import ExecutionSpec, LaneSpec
from tests.graph.drafts import BARE, DictCatalogue, checked, draft, found, only


def edge(kind: str = "immediate", **policy: Any) -> dict[str, Any]:
    return {"id": "wire", "kind": kind, "from": "a.out", "to": "b.in", "policy": policy}


def pair(kind: str = "immediate", **policy: Any) -> dict[str, Any]:
    return draft(["a", "b"], [edge(kind, **policy)])


# --- the table -----------------------------------------------------------------------------------

ERRORS = {
    "unknown_component",
    "unknown_port",
    "payload_type_mismatch",
    "missing_required_input",
    "boundary_role_mismatch",
    "port_multiplicity_mismatch",
    "duplicate_id",
    "immediate_cycle_without_loop",
    "partial_composite_loop",
    "decorative_composite_loop",
    "multi_state_writer",
    "invalid_move_only_multireader",
    "invalid_channel_policy",
    "unsupported_lane_type",
    "trigger_missing_input",
    "incompatible_trigger_edge_mode",
    "unsupported_error_policy",
    "graph_validation_error",
    "immediate_edge_crosses_independent_lane",
    "invalid_budget",
}
WARNINGS = {
    "backpressure_risk",
    "large_payload_copy",
    "high_queue_depth_latency_risk",
    "trigger_never_ready",
    "required_input_not_awaited",
    "subgraph_hidden_cycle",
}
ADVISORIES = {"optional_input_unconnected", "advisory_lane_field_ignored", "advisory_execution_field_ignored"}


def test_the_table_has_every_code_with_its_severity() -> None:
    by_severity = {
        severity: {name for name, code in CODES.items() if code.severity == severity} for severity in SEVERITIES
    }
    assert by_severity == {
        "error": ERRORS,
        "warning": WARNINGS,
        "advisory": ADVISORIES,
        "info": {"diagnostic_note"},
    }


def test_every_code_has_a_meaning_and_a_fix() -> None:
    for code in CODES.values():
        assert code.meaning
        assert code.fix.endswith(".")


def test_the_codes_used_in_the_source_are_those_of_the_table() -> None:
    used = set()
    for path in Path(rota.graph.__path__[0]).rglob("*.py"):
        if path.name != "diagnostics.py":
            texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
            used |= {text for text in texts if isinstance(text, str) and text in CODES}
    assert used == set(CODES)


def test_a_diagnostic_has_code_severity_category_path_ids_and_a_fix() -> None:
    shape = msgspec.to_builtins(only(pair(mode="latest", overflow="block")))
    assert shape == {
        "code": "invalid_channel_policy",
        "severity": "error",
        "category": "channel",
        "message": "edge wire: mode latest keeps the newest message and cannot use overflow block",
        "graph_path": "edges.wire.policy.overflow",
        "involved_components": (),
        "involved_edges": ("wire",),
        "suggested_fix": "Use overflow: overwrite, or mode: queue.",
        "line": None,
    }


def test_errors_come_first() -> None:
    notes = [Diagnostic.of(code, code) for code in ("diagnostic_note", "backpressure_risk", "duplicate_id")]
    assert [each.severity for each in worst_first(notes)] == ["error", "warning", "info"]


def test_explain_groups_by_category_and_names_them_all() -> None:
    groups = diagnostic_groups(checked(pair(mode="queue", capacity=512, overflow="block")).diagnostics)
    assert list(groups) == ["graph_structure", "scheduler", "channel", "payload", "trigger"]
    assert [each["code"] for each in groups["channel"]] == ["backpressure_risk", "high_queue_depth_latency_risk"]
    assert not groups["payload"]


# --- names ---------------------------------------------------------------------------------------


def test_a_simple_graph_has_no_diagnostics() -> None:
    assert found(pair()) == []


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (draft(["a", "a"]), "components.a"),
        (draft(["a", "b"], [edge(), edge()]), "edges.wire"),
    ],
)
def test_duplicate_id(document: dict[str, Any], path: str) -> None:
    diagnostic = next(each for each in checked(document).diagnostics if each.code == "duplicate_id")
    assert diagnostic.graph_path == path


def test_duplicate_id_of_loops_and_inside_a_loop() -> None:
    circle = draft(["a", "b"], ["a.out -> b.in", "b.out -> a.in"], loops={"ab": ["a", "b", "a"]})
    assert found(circle) == ["duplicate_id"]
    twice = draft(["a", "b"], ["a.out -> b.in", "b.out -> a.in"], loops={"ab": ["a", "b"]})
    twice["composite_loops"] *= 2
    assert "duplicate_id" in found(twice)


def test_duplicate_id_of_a_loop_and_a_component_that_is_not_in_it() -> None:
    circle = ["a.out -> b.in", "b.out -> a.in"]
    assert found(draft(["a", "b", "c"], circle, loops={"c": ["a", "b"]})) == ["duplicate_id"]
    assert "duplicate_id" not in found(draft(["a", "b", "c"], circle, loops={"a": ["a", "b"]}))


def test_unknown_component_at_either_end_of_an_edge() -> None:
    diagnostic = only(draft(["a"], ["a.out -> missing.in"]))
    assert (diagnostic.code, diagnostic.graph_path) == ("unknown_component", "edges.e0.to")
    assert (diagnostic.involved_components, diagnostic.involved_edges) == (("missing",), ("e0",))
    assert only(draft(["a"], ["missing.out -> a.in"])).graph_path == "edges.e0.from"


def test_unknown_component_in_depends_on_and_in_a_loop() -> None:
    assert only(draft([{"id": "a", "depends_on": ["missing"]}])).code == "unknown_component"
    assert "unknown_component" in found(draft(["a"], ["a.out -> a.in"], loops={"round": ["a", "missing"]}))


def test_unknown_component_for_an_unregistered_type() -> None:
    diagnostic = only(draft(["a"]), DictCatalogue())
    assert (diagnostic.code, diagnostic.graph_path) == ("unknown_component", "components.a.type")
    assert found(draft(["a"])) == []  # without a catalogue, types are not checked


@pytest.mark.parametrize("end", ["a", "a.", ".out"])
def test_an_end_of_an_edge_is_a_component_and_a_port(end: str) -> None:
    diagnostic = checked(draft(["a", "b"], [{"from": end, "to": "b.in"}])).errors[0]
    assert (diagnostic.code, diagnostic.graph_path) == ("graph_validation_error", "edges.e0.from")


def test_a_lane_must_exist() -> None:
    diagnostic = checked(draft([{"id": "a", "lane": "nowhere"}])).errors[0]
    assert (diagnostic.code, diagnostic.graph_path) == ("graph_validation_error", "components.a.execution.lane")


def test_an_unused_lane_gets_a_note() -> None:
    lanes = {"main": {"type": "event_loop"}, "spare": {"type": "event_loop"}}
    diagnostic = only(draft(["a"], lanes=lanes))
    assert (diagnostic.code, diagnostic.severity, diagnostic.graph_path) == ("diagnostic_note", "info", "lanes.spare")


def test_depends_on_must_not_form_a_cycle() -> None:
    document = draft(
        [{"id": "a", "depends_on": ["c"]}, {"id": "b", "depends_on": ["a"]}, {"id": "c", "depends_on": ["b"]}]
    )
    diagnostic = only(document)
    assert diagnostic.code == "graph_validation_error"
    assert diagnostic.message == "depends_on forms a cycle among a,b,c"


def test_depends_on_lists_a_component_once() -> None:
    assert only(draft(["a", {"id": "b", "depends_on": ["a", "a"]}])).code == "duplicate_id"


# --- cycles and loops ----------------------------------------------------------------------------

CIRCLE = ["a.out -> b.in", "b.out -> c.in", "c.out -> a.in"]


def test_immediate_cycle_without_loop() -> None:
    diagnostic = only(draft(["c", "b", "a"], CIRCLE))
    assert diagnostic.code == "immediate_cycle_without_loop"
    assert diagnostic.message.startswith("immediate cycle detected among components a,b,c; ")
    assert diagnostic.involved_components == ("a", "b", "c")
    assert diagnostic.involved_edges == ("e0", "e1", "e2")


def test_a_component_that_feeds_itself_is_a_cycle() -> None:
    assert only(draft(["a"], ["a.out -> a.in"])).code == "immediate_cycle_without_loop"
    by_hand = {"id": "a", "trigger_policy": {"type": "manual"}}
    assert found(draft([by_hand], ["a.out -> a.in"], loops={"round": ["a"]})) == []


@pytest.mark.parametrize("kind", ["delay", "state", "async"])
def test_a_deferred_edge_breaks_a_cycle(kind: str) -> None:
    edges: list[Any] = [*CIRCLE[:2], {"from": "c.out", "to": "a.in", "kind": kind}]
    components = ["a", "b", "c"]
    assert "immediate_cycle_without_loop" not in found(draft(components, edges))


def test_a_loop_of_exactly_the_cycle_is_accepted() -> None:
    components: list[Any] = [
        {"id": "a", "event_sources": [{"type": "manual"}], "trigger_policy": {"type": "manual"}},
        "b",
        "c",
    ]
    assert found(draft(components, CIRCLE, loops={"abc": ["c", "a", "b"]})) == []


@pytest.mark.parametrize("members", [["a", "b"], ["a", "b", "c", "d"]])
def test_partial_composite_loop(members: list[str]) -> None:
    codes = found(draft(["a", "b", "c", "d"], CIRCLE, loops={"part": members}))
    assert {"partial_composite_loop", "immediate_cycle_without_loop"} <= set(codes)


def test_decorative_composite_loop() -> None:
    assert only(draft(["a", "b"], ["a.out -> b.in"], loops={"trim": ["a", "b"]})).code == "decorative_composite_loop"
    assert only(draft(["a", "b"], ["a.out -> b.in"], loops={"trim": ["a"]})).code == "decorative_composite_loop"


def test_a_component_is_in_one_loop() -> None:
    document = draft(["a", "b"], ["a.out -> b.in", "b.out -> a.in"], loops={"one": ["a", "b"], "two": ["b", "a"]})
    assert {each.code for each in checked(document).errors} == {"graph_validation_error"}


def test_subgraph_hidden_cycle() -> None:
    inside = draft([{"id": "x", "trigger_policy": {"type": "manual"}}])
    part = {"id": "cell", "components": inside["components"], "edges": []}
    edges = ["a.out -> cell.x.in", "cell.x.out -> a.in"]
    document = draft(["a"], edges, loops={"round": ["a", "cell.x"]}, subgraphs=[part])
    diagnostic = only(document)
    assert (diagnostic.code, diagnostic.severity) == ("subgraph_hidden_cycle", "warning")
    assert (
        found(draft(["a", "b"], ["a.o -> b.i", "b.o -> a.i"], loops={"round": ["a", "b"]}))
        == ["trigger_never_ready"] * 2
    )


# --- lanes ---------------------------------------------------------------------------------------


def on(lane_type: str, version: int = 1, execution: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return draft(
        [{"id": "a", "execution": execution or {}}], lanes={"main": {"type": lane_type, **fields}}, version=version
    )


@pytest.mark.parametrize("kind", ["isolated_thread", "manual_step", "process_pool", "queue"])
def test_unsupported_lane_type_in_version_1(kind: str) -> None:
    diagnostic = only(on(kind))
    assert (diagnostic.code, diagnostic.graph_path) == ("unsupported_lane_type", "lanes.main.type")
    assert diagnostic.suggested_fix == "Set schema_version: 2."
    assert found(on(kind, version=2)) == []


@pytest.mark.parametrize("policy", ["continue", "isolate", "retry"])
def test_unsupported_error_policy_in_version_1(policy: str) -> None:
    diagnostic = only(on("event_loop", execution={"on_error": policy}))
    assert (diagnostic.code, diagnostic.graph_path) == ("unsupported_error_policy", "components.a.execution.on_error")
    assert diagnostic.suggested_fix == "Set schema_version: 2."
    assert found(on("event_loop", version=2, execution={"on_error": policy})) == []


def test_a_graph_built_in_python_is_checked_against_its_version() -> None:
    spec = load_mapping(draft(["a"]))
    lane = LaneSpec(type="thread_pool", policy="eevdf")
    later = msgspec.structs.replace(spec, lanes={"main": lane})
    assert [each.graph_path for each in check(later, platform=BARE).errors] == ["lanes.main.policy"]
    component = msgspec.structs.replace(spec.components[0], execution=ExecutionSpec(lane="main", timeout_ms=5))
    later = msgspec.structs.replace(spec, components=(component,))
    assert [each.graph_path for each in check(later, platform=BARE).errors] == ["components.a.execution.timeout_ms"]


def test_a_graph_built_in_python_is_checked_against_the_ranges() -> None:
    spec = msgspec.structs.replace(
        load_mapping(draft(["a"])), lanes={"main": LaneSpec(type="thread_pool", max_threads=-1)}
    )
    assert check(spec, platform=BARE).errors[0].message.startswith("lanes")
    with pytest.raises(GraphInvalid):
        compile_graph(spec, platform=BARE)


@pytest.mark.parametrize("value", [object(), "\ud800", {1: object()}])
def test_a_graph_built_in_python_contains_only_values_of_a_file(value: object) -> None:
    spec = load_mapping(draft(["a"]))
    info = msgspec.structs.replace(spec.graph, config={"x": value}, name="y" if value != "\ud800" else "\ud800")
    diagnostic = check(msgspec.structs.replace(spec, graph=info), platform=BARE).errors[0]
    assert diagnostic.code == "graph_validation_error"


@pytest.mark.parametrize("policy", ["eevdf", {"name": "weighted_priority", "params": {"max_wait": 5}}])
def test_a_lane_may_name_any_registered_policy(policy: object) -> None:
    assert found(on("thread_pool", version=2, policy=policy)) == []


@pytest.mark.parametrize("policy", ["missing", {"name": "strict", "params": {"colour": "red"}}])
def test_an_unknown_policy_or_policy_parameter_is_an_error(policy: object) -> None:
    diagnostic = only(on("thread_pool", version=2, policy=policy))
    assert (diagnostic.code, diagnostic.graph_path) == ("graph_validation_error", "lanes.main.policy")


def test_immediate_edge_crosses_independent_lane() -> None:
    lanes = {"main": {"type": "event_loop"}, "own": {"type": "isolated_thread"}, "hand": {"type": "manual_step"}}

    def across(kind: str, source: str, target: str) -> list[str]:
        parts = [{"id": "a", "lane": source}, {"id": "b", "lane": target}]
        used = {name: lanes[name] for name in (source, target)}
        return found(draft(parts, [edge(kind)], lanes=used, version=2))

    for source, target in [("main", "own"), ("own", "main"), ("main", "hand"), ("own", "hand")]:
        assert across("immediate", source, target) == ["immediate_edge_crosses_independent_lane"]
        for kind in ("delay", "state", "async"):
            assert across(kind, source, target) == []
    assert across("immediate", "own", "own") == []
    lanes["other"] = lanes["own"]  # the same settings, but another lane
    assert across("immediate", "own", "other") == ["immediate_edge_crosses_independent_lane"]


def test_a_queue_lane_sends_on_async_edges_only() -> None:
    lanes = {"main": {"type": "event_loop"}, "durable": {"type": "queue"}}

    def leaving(kind: str) -> list[str]:
        return found(draft([{"id": "a", "lane": "durable"}, "b"], [edge(kind)], lanes=lanes, version=2))

    assert [leaving(kind) for kind in ("immediate", "delay", "state")] == [["invalid_channel_policy"]] * 3
    assert leaving("async") == []


# --- channels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["latest", "latched", "previous_tick"])
@pytest.mark.parametrize("overflow", ["drop_newest", "block"])
def test_a_mode_that_keeps_the_newest_message_cannot_refuse_it(mode: str, overflow: str) -> None:
    assert only(pair(mode=mode, overflow=overflow)).code == "invalid_channel_policy"


@pytest.mark.parametrize("mode", ["queue", "ring_buffer", "barrier"])
def test_a_mode_that_keeps_several_can_drop_the_newest(mode: str) -> None:
    assert found(pair(mode=mode, overflow="drop_newest")) == []


@pytest.mark.parametrize("kind", ["immediate", "delay", "state"])
def test_max_inflight_is_for_async_edges(kind: str) -> None:
    assert only(pair(kind, max_inflight=1)).graph_path == "edges.wire.policy.max_inflight"
    assert found(pair("async", max_inflight=1)) == []


@pytest.mark.parametrize("readers", ["multi", "multiple"])
def test_invalid_move_only_multireader(readers: str) -> None:
    assert "invalid_move_only_multireader" in found(pair(copy_policy="move_only", readers=readers))
    assert found(pair(copy_policy="move_only")) == []


def test_multi_state_writer() -> None:
    edges = [{"kind": "state", "from": "a.out", "to": "c.in"}, {"kind": "state", "from": "b.out", "to": "c.in"}]
    diagnostic = only(draft(["a", "b", "c"], edges))
    assert (diagnostic.code, diagnostic.involved_edges) == ("multi_state_writer", ("e0", "e1"))
    edges[1]["kind"] = "delay"
    assert found(draft(["a", "b", "c"], edges)) == []


def test_a_producer_owns_the_payload_on_one_edge_only() -> None:
    edges = [{"from": "a.out", "to": f"{name}.in", "policy": {"owner": "producer"}} for name in "bc"]
    assert "invalid_channel_policy" in found(draft(["a", "b", "c"], edges))


def test_a_deep_queue_that_blocks_has_two_risks() -> None:
    diagnostics = checked(pair(mode="queue", capacity=512, overflow="block")).diagnostics
    assert [each.code for each in diagnostics] == ["backpressure_risk", "high_queue_depth_latency_risk"]
    assert {each.severity for each in diagnostics} == {"warning"}


def test_high_queue_depth_latency_risk_starts_at_256() -> None:
    assert found(pair(mode="queue", capacity=255, overflow="drop_oldest")) == []
    assert found(pair(mode="queue", capacity=256, overflow="drop_oldest")) == ["high_queue_depth_latency_risk"]
    assert found(pair(mode="latest", capacity=999)) == []


def test_backpressure_risk_where_a_slow_reader_can_lose_messages() -> None:
    document = pair(mode="queue", capacity=4, overflow="drop_oldest", readers="multi")
    assert found(document) == ["backpressure_risk"]
    plan = checked(document).plan
    assert plan is not None
    assert plan.edges["wire"].slow_reader_drop_risk
    assert found(pair(mode="queue", capacity=4, overflow="fail_fast", readers="multi")) == []


@pytest.mark.parametrize(
    ("field", "value"), [("preserve_order", False), ("owner", "producer"), ("copy_policy", "loaned_view")]
)
def test_advisory_execution_field_ignored_for_unused_channel_fields(field: str, value: Any) -> None:
    diagnostic = only(pair(**{field: value}))
    assert (diagnostic.code, diagnostic.severity) == ("advisory_execution_field_ignored", "advisory")
    assert diagnostic.graph_path == f"edges.wire.policy.{field}"


# --- payloads and ports --------------------------------------------------------------------------


def catalogue_of(sends: Port | None = None, takes: Port | None = None, **more: Any) -> DictCatalogue:
    """A source type `s` and a sink type `t`."""
    return DictCatalogue(
        s=ComponentDescriptor(type="s", outputs=(sends or Port(name="out"),)),
        t=ComponentDescriptor(type="t", inputs=(takes or Port(name="in"),), **more),
    )


def typed(edges: list[Any] | None = None, **sink: Any) -> dict[str, Any]:
    return draft([{"id": "a", "type": "s"}, {"id": "b", "type": "t", **sink}], [edge()] if edges is None else edges)


def test_unknown_port_at_either_end() -> None:
    assert found(typed(), catalogue_of()) == []
    diagnostic = only(typed(), catalogue_of(sends=Port(name="result")))
    assert (diagnostic.code, diagnostic.graph_path) == ("unknown_port", "edges.wire.from")
    assert diagnostic.suggested_fix == "The outputs of a are: result."
    assert "unknown_port" in found(typed(), catalogue_of(takes=Port(name="value")))


def test_a_type_with_any_ports_accepts_all_ports() -> None:
    anything = DictCatalogue(
        s=ComponentDescriptor(type="s", any_ports=True), t=ComponentDescriptor(type="t", any_ports=True)
    )
    assert found(typed(), anything) == []


@pytest.mark.parametrize("field", ["schema", "payload_type"])
def test_payload_type_mismatch(field: str) -> None:
    def joined(left: str, right: str) -> list[str]:
        sends = msgspec.structs.replace(Port(name="out"), **{field: left})
        takes = msgspec.structs.replace(Port(name="in"), **{field: right})
        return found(typed(), catalogue_of(sends, takes))

    assert joined("text", "number") == ["payload_type_mismatch"]
    assert joined("text", "text") == joined("text", "") == joined("", "number") == []


def test_missing_required_input_and_optional_input_unconnected() -> None:
    required = Port(name="in", required=True)
    no_edges: list[Any] = []
    assert only(typed(no_edges), catalogue_of(takes=required)).code == "missing_required_input"
    optional = only(typed(no_edges), catalogue_of())
    assert (optional.code, optional.severity) == ("optional_input_unconnected", "advisory")


REQUIRED = Port(name="in", required=True)
TIMER = [{"type": "timer", "period_ms": 5}]


@pytest.mark.parametrize(
    ("trigger", "sources", "cause"),
    [
        ("manual", None, "manual: every epoch"),
        ("on_event", None, "on_event: every epoch"),
        ("on_event", TIMER, "a timer"),
        ("manual", [{"type": "manual"}, {"type": "message", "input": "in"}], "manual: every epoch"),
    ],
)
@pytest.mark.parametrize("kind", ["immediate", "delay", "state"])
def test_required_input_not_awaited_by_a_component_that_runs_without_messages(
    kind: str, trigger: str, sources: Any, cause: str
) -> None:
    how: dict[str, Any] = {"trigger_policy": {"type": trigger}} | ({"event_sources": sources} if sources else {})
    diagnostic = only(typed([edge(kind)], **how), catalogue_of(takes=REQUIRED))
    assert (diagnostic.code, diagnostic.severity) == ("required_input_not_awaited", "warning")
    assert diagnostic.message == f"component b requires input in, and its trigger ({cause}) does not wait for it"
    assert found(typed([edge(kind)], **how), catalogue_of()) == []  # the input is optional


@pytest.mark.parametrize("trigger", ["any_input", "all_inputs", "debounce", "watermark", "task_ready", "request"])
def test_a_trigger_that_waits_for_the_required_input_has_no_warning(trigger: str) -> None:
    waits: dict[str, Any] = {"trigger_policy": {"type": trigger, "inputs": ["in"]}}
    assert found(typed(**waits), catalogue_of(takes=REQUIRED)) == []
    by_source: dict[str, Any] = {
        "trigger_policy": {"type": "on_event"},
        "event_sources": [{"type": "message", "input": "in"}],
    }
    assert found(typed(**by_source), catalogue_of(takes=REQUIRED)) == []


def test_required_input_not_awaited_by_a_trigger_of_any_of_several_inputs() -> None:
    catalogue = DictCatalogue(
        s=ComponentDescriptor(type="s", outputs=(Port(name="out"),)),
        t=ComponentDescriptor(type="t", inputs=(REQUIRED, Port(name="more", required=True))),
    )
    edges = [edge(), {**edge(), "id": "second", "to": "b.more"}]
    any_of = typed(edges, trigger_policy={"type": "any_input", "inputs": ["in", "more"]})
    assert found(any_of, catalogue) == ["required_input_not_awaited"] * 2
    assert found(typed(edges, trigger_policy={"type": "all_inputs", "inputs": ["in", "more"]}), catalogue) == []
    side = typed(edges, trigger_policy={"type": "any_input", "inputs": ["in"]})
    assert only(side, catalogue).message == (
        "component b requires input more, and its trigger (any_input of in) does not wait for it"
    )
    kept = [edge(), {**edge("state"), "id": "second", "to": "b.more"}]
    assert found(typed(kept, trigger_policy={"type": "any_input", "inputs": ["in"]}), catalogue) == []


def test_port_multiplicity_mismatch() -> None:
    edges = [edge(), {**edge(), "id": "second"}]
    diagnostic = only(typed(edges), catalogue_of())
    assert (diagnostic.code, diagnostic.involved_edges) == ("port_multiplicity_mismatch", ("wire", "second"))
    assert found(typed(edges), catalogue_of(takes=Port(name="in", multiplicity="multi"))) == []


@pytest.mark.parametrize(
    ("asked", "offered", "fits"),
    [
        ("input", "input", True),
        ("input", "input_output", True),
        ("output", "input", False),
        ("input", "processing", False),
        ("input_output", "input", False),
        ("input", None, True),
        ("processing", "input", True),
    ],
)
def test_boundary_role_mismatch(asked: str, offered: Any, fits: bool) -> None:
    codes = found(typed(boundary={"role": asked}), catalogue_of(role=offered))
    assert codes == ([] if fits else ["boundary_role_mismatch"])


def test_configuration_is_checked_against_the_type() -> None:
    def configured(**config: Any) -> list[str]:
        known = catalogue_of(config_names=("rate", "unit"), config_required=("rate",))
        return [each.graph_path for each in checked(typed(config=config), known).errors]

    assert configured(rate=1) == configured(rate=1, unit="s") == []
    assert configured(unit="s") == ["components.b.config.rate"]
    assert configured(rate=1, colour="red") == ["components.b.config.colour"]
    assert found(typed(config={"anything": 1}), catalogue_of()) == []


def test_large_payload_copy() -> None:
    large = Port(name="out", large_payload=True)
    assert only(typed(), catalogue_of(sends=large)).code == "large_payload_copy"
    assert found(typed([edge(copy_policy="shared_view")]), catalogue_of(sends=large)) == []
    assert found(typed(), catalogue_of(sends=Port(name="out", payload_type="VideoFrame"))) == ["large_payload_copy"]
    assert found(draft([{"id": "a", "type": "camera.FrameInput"}, "b"], [edge()])) == ["large_payload_copy"]


# --- triggers ------------------------------------------------------------------------------------


def triggered(sources: list[Any] | None = None, edges: list[Any] | None = None, **trigger: Any) -> dict[str, Any]:
    sink: dict[str, Any] = {"id": "b", "trigger_policy": trigger}
    if sources is not None:
        sink["event_sources"] = sources
    return draft(["a", sink], ["a.out -> b.in"] if edges is None else edges)


def test_trigger_missing_input_for_a_listed_input_without_an_edge() -> None:
    diagnostic = only(triggered(type="any_input", inputs=["in", "other"]))
    assert (diagnostic.code, diagnostic.involved_components) == ("trigger_missing_input", ("b",))
    assert "other" in diagnostic.message


def test_trigger_missing_input_for_a_trigger_or_source_without_inputs() -> None:
    assert only(triggered(type="any_input")).code == "trigger_missing_input"
    assert found(triggered([{"type": "message"}], type="any_input", input="in")) == ["trigger_missing_input"]
    assert found(triggered([{"type": "message", "input": "in"}], type="any_input")) == []


@pytest.mark.parametrize("port", ["request", "task_ready", "future_ready"])
def test_a_port_that_the_runtime_fills_needs_no_edge(port: str) -> None:
    assert found(triggered([{"type": port}], [], type="any_input", inputs=[port])) == []


def test_a_timer_may_not_be_mixed_with_input() -> None:
    timer = {"type": "timer", "period_ms": 5}
    message = {"type": "message", "inputs": ["in"]}
    assert found(triggered([timer, message], type="on_event")) == ["incompatible_trigger_edge_mode"]
    assert found(triggered([timer], type="any_input", inputs=["in"])) == ["incompatible_trigger_edge_mode"]
    assert found(triggered([timer], type="on_event")) == []


def test_time_sync_needs_one_clock() -> None:
    def synced(second: str) -> list[str]:
        edges = [
            {"from": "a.x", "to": "b.x", "policy": {"timestamp_domain": "device"}},
            {"from": "a.y", "to": "b.y", "policy": {"timestamp_domain": second}},
        ]
        return found(triggered(None, edges, type="time_sync", inputs=["x", "y"]))

    assert synced("device") == []
    assert synced("system") == ["incompatible_trigger_edge_mode"]


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        ({"type": "batch"}, "requires batch_size or batch_window_ms"),
        ({"type": "rate_limit"}, "requires positive min_interval_ms"),
        ({"type": "debounce", "debounce_window_ms": 5}, "debounce_window_ms must be 0"),
        ({"type": "condition"}, "requires a condition"),
    ],
)
def test_a_trigger_with_an_invalid_number_or_condition(trigger: dict[str, Any], words: str) -> None:
    diagnostic = only(triggered(inputs=["in"], **trigger))
    assert diagnostic.code == "graph_validation_error"
    assert words in diagnostic.message


@pytest.mark.parametrize(
    "trigger",
    [
        {"type": "batch", "batch_size": 2},
        {"type": "batch", "batch_window_ms": 2},
        {"type": "rate_limit", "min_interval_ms": 2},
        {"type": "debounce"},
        {"type": "watermark", "watermark_lateness_ms": 2},
        {"type": "condition", "condition": "event_timestamp_present"},
    ],
)
def test_triggers_with_all_required_fields(trigger: dict[str, Any]) -> None:
    assert found(triggered(inputs=["in"], **trigger)) == []


def test_a_timer_needs_a_period_and_a_component_an_event_source() -> None:
    assert "positive period_ms" in only(triggered([{"type": "timer"}], type="on_event")).message
    assert "at least one event_source" in only(triggered([], type="any_input", inputs=["in"])).message


def test_trigger_never_ready_if_two_components_wait_for_each_other() -> None:
    both = {"type": "all_inputs", "inputs": ["in", "back"]}
    edges = ["source.out -> join.in", "join.out ~> echo.in", "echo.out ~> join.back"]
    components: list[Any] = ["source", {"id": "join", "trigger_policy": both}, "echo"]
    diagnostics = checked(draft(components, edges)).diagnostics
    assert [(each.code, each.involved_components) for each in diagnostics] == [
        ("trigger_never_ready", ("join",)),
        ("trigger_never_ready", ("echo",)),
    ]
    components[1] = {"id": "join", "trigger_policy": {**both, "type": "any_input"}}
    assert found(draft(components, edges)) == []


@pytest.mark.parametrize(
    ("sources", "trigger", "ready"),
    [
        ([{"type": "message", "inputs": ["in"]}], {"type": "on_event"}, False),
        ([{"type": "message", "inputs": ["in"]}], {"type": "manual"}, False),
        ([{"type": "message", "inputs": ["in"]}, {"type": "manual"}], {"type": "on_event"}, True),
        ([{"type": "manual"}], {"type": "on_event", "inputs": ["in"]}, False),
        ([{"type": "request"}], {"type": "request"}, True),
        ([{"type": "timer", "period_ms": 5}], {"type": "on_event"}, True),
    ],
)
def test_trigger_never_ready_depends_on_the_event_sources(
    sources: list[Any], trigger: dict[str, Any], ready: bool
) -> None:
    feeds_itself = ["b.out ~> b.in"]
    codes = found(draft([{"id": "b", "event_sources": sources, "trigger_policy": trigger}], feeds_itself))
    assert codes == ([] if ready else ["trigger_never_ready"])


@pytest.mark.parametrize(("condition", "ready"), [("all_inputs_ready", False), ("any_input_ready", True)])
def test_trigger_never_ready_depends_on_the_condition(condition: str, ready: bool) -> None:
    trigger = {"type": "condition", "condition": condition, "inputs": ["in", "back"]}
    edges = ["a.out -> b.in", "b.out ~> b.back"]
    codes = found(draft(["a", {"id": "b", "trigger_policy": trigger}], edges))
    assert codes == ([] if ready else ["trigger_never_ready"])


# --- execution and loops -------------------------------------------------------------------------


def test_advisory_execution_field_ignored_for_a_timeout_outside_process_pool() -> None:
    diagnostic = only(on("thread_pool", 2, {"timeout_ms": 50}))
    assert (diagnostic.code, diagnostic.graph_path) == (
        "advisory_execution_field_ignored",
        "components.a.execution.timeout_ms",
    )
    assert found(on("process_pool", 2, {"timeout_ms": 50})) == []


def test_advisory_execution_field_ignored_for_attempts_without_retry() -> None:
    assert found(on("event_loop", 2, {"max_attempts": 5})) == ["advisory_execution_field_ignored"]
    assert found(on("event_loop", 2, {"max_attempts": 5, "on_error": "retry"})) == []


@pytest.mark.parametrize("priority", ["high", "normal", "low", "background"])
def test_a_supported_priority_is_not_advisory(priority: str) -> None:
    assert found(on("event_loop", execution={"priority": priority})) == []


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        ({"max_inflight": 2}, "max_inflight"),
        ({"drop_policy": "drop_newest"}, "drop_policy"),
        ({"convergence": "someday"}, "convergence"),
    ],
)
def test_advisory_execution_field_ignored_for_unused_loop_fields(policy: dict[str, Any], field: str) -> None:
    document = draft([{"id": "a", "trigger_policy": {"type": "manual"}}], ["a.out -> a.in"], loops={"round": ["a"]})
    document["composite_loops"][0]["loop_policy"] = {"type": "fixed_point", **policy}
    assert only(document).graph_path == f"composite_loops.round.loop_policy.{field}"
    document["composite_loops"][0]["loop_policy"]["type"] = "async_task"
    assert found(document) == ([] if field != "convergence" else ["advisory_execution_field_ignored"])


# --- refusing ------------------------------------------------------------------------------------


def test_advisories_succeed_errors_fail_and_strict_fails_warnings_too() -> None:
    advisory = checked(pair(preserve_order=False)).diagnostics
    warning = checked(pair(mode="queue", overflow="block", capacity=4)).diagnostics
    error = checked(pair(max_inflight=3)).diagnostics
    assert [validation_to_dict(each)["ok"] for each in (advisory, warning, error)] == [True, True, False]
    assert [validation_to_dict(each, strict=True)["ok"] for each in (advisory, warning, error)] == [True, False, False]


def test_compile_refuses_with_every_diagnostic() -> None:
    document = draft(["a", "b"], ["a.out -> missing.in", "a.out -> b.in", "b.out -> a.in"])
    with pytest.raises(GraphInvalid) as caught:
        compile_graph(load_mapping(document), platform=BARE)
    codes = {each.code for each in caught.value.diagnostics}
    assert codes >= {"unknown_component", "immediate_cycle_without_loop"}
    assert "(and 1 more)" in str(caught.value)


# --- lint ----------------------------------------------------------------------------------------


def notes(document: dict[str, Any]) -> list[str]:
    diagnostics = lint(load_mapping(document), platform=BARE).diagnostics
    return [each.graph_path for each in diagnostics if each.code == "diagnostic_note"]


def internal(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "graph": {"name": "draft", "kind": "internal_test"}}


def test_lint_notes_a_runnable_graph_without_boundaries() -> None:
    assert notes(pair()) == ["graph.kind", "graph.kind"]
    bounded = draft([{"id": "a", "boundary": {"role": "input"}}, {"id": "b", "boundary": {"role": "output"}}], [edge()])
    assert notes(bounded) == []
    assert notes(internal(pair())) == []


def test_lint_notes_unusual_components_and_edges() -> None:
    assert notes(internal(pair(mode="latest", capacity=3))) == ["edges.wire.policy.capacity"]
    assert notes(internal(pair("async"))) == ["edges.wire.policy.max_inflight"]
    assert notes(internal(pair(copy_policy="loaned_view"))) == ["edges.wire.policy.owner"]
    assert notes(internal(draft(["a", "b", "c"], [edge()]))) == ["components.c"]


def test_lint_adds_no_notes_if_there_are_errors() -> None:
    diagnostics = lint(load_mapping(pair(max_inflight=3)), platform=BARE).diagnostics
    assert [each.code for each in diagnostics] == ["invalid_channel_policy"]
