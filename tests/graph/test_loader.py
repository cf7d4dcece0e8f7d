"""Loading a graph file: all problems are reported, and the limits hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rota.errors import GraphInvalid, InvalidInput
from rota.graph.diagnostics import Diagnostic
from rota.graph.document import InputLimits
from rota.graph.graph_reader import DIAGNOSTICS_MAX
from rota.graph.loader import load, load_mapping, load_text, read_graph
from rota.graph.spec import GraphSpec
from tests.graph.drafts import draft

MINIMAL = """
schema_version: 1
graph: {name: minimal}
lanes: {main: {type: event_loop}}
components:
  - {id: source, type: demo.Source, execution: {lane: main}}
  - id: sink
    type: demo.Sink
    trigger_policy: {type: any_input, inputs: [in]}
    execution: {lane: main}
edges:
  - {id: wire, kind: immediate, from: source.out, to: sink.in}
"""


def refused(document: str | dict[str, Any], **options: Any) -> list[Diagnostic]:
    with pytest.raises(GraphInvalid) as caught:
        load_text(document, **options) if isinstance(document, str) else load_mapping(document, **options)
    assert caught.value.diagnostics
    return list(caught.value.diagnostics)


def the_only(document: str | dict[str, Any], **options: Any) -> Diagnostic:
    diagnostics = refused(document, **options)
    assert len(diagnostics) == 1, [each.sentence() for each in diagnostics]
    return diagnostics[0]


# --- accepted ------------------------------------------------------------------------------------


def test_yaml_json_and_a_dictionary_give_the_same_graph(tmp_path: Path) -> None:
    from_yaml = load_text(MINIMAL)
    document = draft(
        [{"id": "source", "type": "demo.Source"}, {"id": "sink", "type": "demo.Sink"}],
        [{"id": "wire", "from": "source.out", "to": "sink.in"}],
        graph={"name": "minimal"},
    )
    path = tmp_path / "graph.yaml"
    path.write_text(MINIMAL)
    assert from_yaml == load_mapping(document) == load(path)


def test_a_json_file_is_read_as_json(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    path.write_text(MINIMAL)
    with pytest.raises(GraphInvalid, match="not JSON"):
        load(path)


def test_null_means_missing_except_in_config() -> None:
    text = MINIMAL.replace("kind: immediate,", "kind: immediate, policy: ,").replace(
        "name: minimal", "name: minimal, clock: ~"
    )
    assert load_text(text) == load_text(MINIMAL)
    kept = load_text(MINIMAL.replace("{name: minimal}", "{name: minimal, config: {a: ~}}"))
    assert kept.graph.config == {"a": None}


def test_a_required_field_that_is_null_is_missing() -> None:
    assert the_only(MINIMAL.replace("kind: immediate", "kind: ")).message == "edges.wire.kind is required"


def test_any_key_can_be_the_id_of_a_lane() -> None:
    spec = load_text(MINIMAL.replace("main", "'on'").replace("lanes: {'on'", "lanes: {on"))
    assert list(spec.lanes) == ["on"]


def test_the_lines_of_a_file_are_known(tmp_path: Path) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(MINIMAL)
    loaded = read_graph(path)
    assert loaded.lines["components.sink"] == 7
    found = loaded.with_lines([Diagnostic.of("diagnostic_note", "x", "components.sink.trigger_policy.inputs")])
    assert found[0].line == 7


# --- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["schema_version", "graph", "lanes", "components", "edges"])
def test_a_missing_required_section_is_reported(field: str) -> None:
    document = draft(["a"])
    del document[field]
    assert f"{field} is required" in [each.message for each in refused(document)]


@pytest.mark.parametrize("version", [0, 3, "1", 1.0, True])
def test_a_schema_version_is_1_or_2(version: object) -> None:
    diagnostic = the_only({**draft(["a"]), "schema_version": version})
    assert diagnostic.message == "schema_version must be 1 or 2"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (MINIMAL + "extra: 1\n", "extra"),
        (MINIMAL.replace("name: minimal", "name: minimal, nme: x"), "graph.nme"),
        (MINIMAL.replace("type: event_loop", "type: event_loop, hertz: 3"), "lanes.main.hertz"),
        (MINIMAL.replace("type: demo.Source", "type: demo.Source, kind: x"), "components.source.kind"),
        (MINIMAL.replace("inputs: [in]", "inputs: [in], size: 3"), "components.sink.trigger_policy.size"),
        (MINIMAL.replace("to: sink.in", "to: sink.in, via: x"), "edges.wire.via"),
        (MINIMAL.replace("to: sink.in", "to: sink.in, policy: {depth: 3}"), "edges.wire.policy.depth"),
    ],
)
def test_an_unknown_field_is_refused_everywhere(text: str, path: str) -> None:
    diagnostic = the_only(text)
    assert diagnostic.graph_path == path
    assert diagnostic.message == f"unexpected field {path}"
    assert diagnostic.line is not None


def test_a_misspelt_value_or_field_suggests_the_closest_one() -> None:
    assert the_only(MINIMAL.replace("event_loop", "event_lop")).suggested_fix.startswith("Did you mean event_loop?")
    assert the_only(MINIMAL.replace("kind: immediate", "kind: imediate")).suggested_fix.startswith(
        "Did you mean immediate?"
    )
    assert the_only(MINIMAL.replace("{lane: main}", "{lnae: main, lane: main}", 1)).suggested_fix.startswith(
        "Did you mean lane?"
    )


@pytest.mark.parametrize(
    ("change", "code", "path"),
    [
        ({"lanes": {"main": {"type": "carousel"}}}, "unsupported_lane_type", "lanes.main.type"),
        (
            {"lanes": {"main": {"type": "event_loop", "max_threads": -1}}},
            "graph_validation_error",
            "lanes.main.max_threads",
        ),
        (
            {"lanes": {"main": {"type": "event_loop", "max_threads": 1.5}}},
            "graph_validation_error",
            "lanes.main.max_threads",
        ),
        (
            {"lanes": {"main": {"type": "event_loop", "max_threads": True}}},
            "graph_validation_error",
            "lanes.main.max_threads",
        ),
        ({"lanes": ["main"]}, "graph_validation_error", "lanes"),
        ({"components": {"a": 1}}, "graph_validation_error", "components"),
        ({"components": ["a"]}, "graph_validation_error", "components.[0]"),
        ({"graph": {"name": ""}}, "graph_validation_error", "graph.name"),
        ({"graph": {"name": "x", "kind": "toy"}}, "graph_validation_error", "graph.kind"),
        (
            {"graph": {"name": "x", "clock": {"runtime_domain": "system"}}},
            "graph_validation_error",
            "graph.clock.runtime_domain",
        ),
    ],
)
def test_an_invalid_value_has_its_code_and_path(change: dict[str, Any], code: str, path: str) -> None:
    diagnostic = the_only({**draft(), **change})
    assert (diagnostic.code, diagnostic.graph_path) == (code, path)


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ({"capacity": 0}, "invalid_channel_policy"),
        ({"mode": "newest"}, "invalid_channel_policy"),
        ({"overflow": "reject_new"}, "invalid_channel_policy"),
        ({"copy_policy": "steal"}, "invalid_channel_policy"),
        ({"readers": "many"}, "invalid_channel_policy"),
    ],
)
def test_an_invalid_value_in_an_edge_policy_is_an_invalid_channel_policy(policy: dict[str, Any], code: str) -> None:
    document = draft(["a", "b"], [{"from": "a.out", "to": "b.in", "policy": policy}])
    assert the_only(document).code == code


def test_an_unknown_priority_fails() -> None:
    document = draft([{"id": "a", "execution": {"priority": "urgent"}}])
    assert the_only(document).graph_path == "components.a.execution.priority"


@pytest.mark.parametrize("kind", ["action_goal", "action_cancel"])
def test_action_event_sources_are_reserved(kind: str) -> None:
    document = draft([{"id": "a", "event_sources": [{"type": kind}]}])
    assert the_only(document).graph_path == "components.a.event_sources.0.type"


def test_all_problems_are_reported_together() -> None:
    document = draft(
        ["a", {"id": "b", "colour": "red"}, {"id": "c", "execution": {"budget_ms": -1}}],
        [{"from": "a.out", "to": "b.in", "kind": "sudden"}],
        lanes={"main": {"type": "event_loop"}, "other": {"type": "carousel"}},
    )
    assert [each.graph_path for each in refused(document)] == [
        "lanes.other.type",
        "components.b.colour",
        "components.c.execution.budget_ms",
        "edges.e0.kind",
    ]


def test_the_number_of_diagnostics_is_limited() -> None:
    document = draft([{"id": f"c{n}", "colour": "red"} for n in range(DIAGNOSTICS_MAX + 7)])
    diagnostics = refused(document)
    assert len(diagnostics) == DIAGNOSTICS_MAX + 1
    assert diagnostics[-1].message == "7 more problems are not shown"


def test_the_error_has_the_first_problem_and_its_fix() -> None:
    with pytest.raises(GraphInvalid) as caught:
        load_text(MINIMAL.replace("kind: immediate, ", ""))
    assert str(caught.value) == "edges.wire.kind is required. Add the field."
    assert isinstance(caught.value, InvalidInput)


def test_a_file_that_cannot_be_opened_is_a_diagnostic(tmp_path: Path) -> None:
    with pytest.raises(GraphInvalid, match="No such file"):
        load(tmp_path / "nowhere.yaml")
    with pytest.raises(GraphInvalid, match="Is a directory"):
        load(tmp_path)


def test_a_dictionary_that_cannot_be_encoded_is_a_diagnostic() -> None:
    with pytest.raises(GraphInvalid, match="cannot be encoded as JSON"):
        load_mapping({"schema_version": 1, "graph": object()})
    endless: dict[str, Any] = {}
    endless["again"] = endless
    with pytest.raises(GraphInvalid, match="cannot be encoded as JSON"):
        load_mapping(endless)


# --- version 1 and version 2 ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lane", "execution", "path"),
    [
        ({"starvation_epochs": 8}, {}, "lanes.main.starvation_epochs"),
        ({"overflow_deadline_ms": 0}, {}, "lanes.main.overflow_deadline_ms"),
        ({"policy": "eevdf"}, {}, "lanes.main.policy"),
        ({}, {"max_attempts": 3}, "components.a.execution.max_attempts"),
        ({}, {"timeout_ms": 5}, "components.a.execution.timeout_ms"),
    ],
)
def test_version_1_refuses_the_fields_of_version_2(lane: dict[str, Any], execution: dict[str, Any], path: str) -> None:
    document = draft([{"id": "a", "execution": execution}], lanes={"main": {"type": "thread_pool", **lane}})
    diagnostic = the_only(document)
    assert (diagnostic.code, diagnostic.graph_path) == ("graph_validation_error", path)
    assert "set schema_version: 2" in diagnostic.suggested_fix
    assert load_mapping({**document, "schema_version": 2}).schema_version == 2


# --- limits --------------------------------------------------------------------------------------


def sized(lanes: int = 1, components: int = 0, edges: int = 0, loops: int = 0) -> dict[str, Any]:
    return draft(
        [f"c{n}" for n in range(components)],
        [{"from": "c0.out", "to": "c1.in"} for _ in range(edges)],
        lanes={f"l{n}": {"type": "event_loop"} for n in range(lanes)},
        loops={f"loop{n}": ["c0"] for n in range(loops)},
    )


@pytest.mark.parametrize(
    ("name", "limit", "within", "beyond"),
    [
        ("lanes", 256, sized(lanes=256), sized(lanes=257)),
        ("composite_loops", 1024, sized(components=1, loops=1024), sized(components=1, loops=1025)),
    ],
)
def test_a_count_at_its_limit_and_one_past_it(
    name: str, limit: int, within: dict[str, Any], beyond: dict[str, Any]
) -> None:
    load_mapping(within)
    messages = [each.message for each in refused(beyond)]
    assert messages == [f"runtime graph.{name} count exceeds limit {limit}"]


def test_a_caller_can_lower_the_limits_of_components_and_edges() -> None:
    limits = InputLimits(components=3, edges=2)
    load_mapping(sized(components=3, edges=2), limits=limits)
    assert the_only(sized(components=4), limits=limits).message == "runtime graph.components count exceeds limit 3"
    assert the_only(sized(components=2, edges=3), limits=limits).message == "runtime graph.edges count exceeds limit 2"


def test_a_graph_at_all_limits_can_be_loaded() -> None:
    limits = InputLimits(graph_input_bytes=4 * 1024 * 1024)
    spec = load_mapping(sized(components=4096, edges=8192), limits=limits)
    assert (len(spec.components), len(spec.edges)) == (4096, 8192)


@pytest.mark.parametrize("name", ["a" * 128, "é" * 64])
def test_an_id_may_have_128_bytes_and_no_more(name: str) -> None:
    load_mapping(draft([name], graph={"name": name}))
    assert refused(draft([name + "x"]))
    assert refused(draft(graph={"name": name + "x"}))


def test_an_id_that_is_too_long_with_its_prefix_is_refused() -> None:
    part = {"id": "s" * 100, "components": draft(["c" * 30])["components"], "edges": []}
    assert "identifier exceeds limit 128 bytes" in refused(draft(subgraphs=[part]))[0].message


@pytest.mark.parametrize("name", ["", "a\nb", "\x7f"])
def test_an_id_is_not_empty_and_has_no_control_characters(name: str) -> None:
    assert refused(draft([name]))
    assert refused(draft(lanes={name: {"type": "event_loop"}}))
    assert refused(draft(subgraphs=[cell(id=name)]))


def test_a_string_may_have_4096_bytes_and_no_more() -> None:
    load_mapping(draft([{"id": "a", "type": "t" * 4096}]))
    assert "string exceeds limit 4096 bytes" in refused(draft([{"id": "a", "type": "t" * 4097}]))[0].message
    assert "string exceeds limit 4096 bytes" in refused(draft([{"id": "a", "type": "é" * 2049}]))[0].message


def test_config_has_a_depth_of_8_and_values_of_4096_bytes() -> None:
    def nested(levels: int) -> Any:
        return 1 if levels == 0 else {"deeper": nested(levels - 1)}

    load_mapping(draft([{"id": "a", "config": {"x": nested(7), "y": "v" * 4096}}]))
    assert "nesting exceeds limit 8" in the_only(draft([{"id": "a", "config": {"x": nested(8)}}])).message
    assert "value exceeds limit 4096 bytes" in the_only(draft([{"id": "a", "config": {"x": "v" * 4097}}])).message
    assert (
        "value exceeds limit 4096 bytes" in the_only(draft([{"id": "a", "config": {"x": ["v" * 4090, 1, 2]}}])).message
    )


def test_a_string_that_cannot_be_encoded_as_utf8_is_a_diagnostic() -> None:
    text = '{"schema_version": 1, "graph": {"name": "\\ud800"}, "lanes": {}, "components": [], "edges": []}'
    assert "not valid UTF-8" in refused(text)[0].message


# --- subgraphs -----------------------------------------------------------------------------------


def cell(**changes: Any) -> dict[str, Any]:
    inside = draft(["source", {"id": "sink", "depends_on": ["source"]}], ["source.out -> sink.in"])
    part = {"id": "cell", "components": inside["components"], "edges": inside["edges"]}
    return {**part, **changes}


def test_a_subgraphs_id_is_the_prefix_of_every_id_in_it() -> None:
    loop = {"id": "round", "components": ["source", "sink"], "loop_policy": {"type": "fixed_point"}}
    spec = load_mapping(draft(["top"], subgraphs=[cell(composite_loops=[loop])]))
    assert [each.id for each in spec.components] == ["top", "cell.source", "cell.sink"]
    assert spec.components[2].depends_on == ("cell.source",)
    assert [(each.id, each.source, each.target) for each in spec.edges] == [
        ("cell.e0", "cell.source.out", "cell.sink.in")
    ]
    assert spec.composite_loops[0].id == "cell.round"
    assert spec.composite_loops[0].components == ("cell.source", "cell.sink")
    assert spec.components[1].execution.lane == "main"


def test_the_hierarchy_lists_the_ids_of_each_subgraph() -> None:
    (part,) = load_mapping(draft(subgraphs=[cell()])).hierarchy
    assert (part.id, part.template, part.expansion) == ("cell", "", "compile_time_namespace")
    assert (part.components, part.edges) == (("cell.source", "cell.sink"), ("cell.e0",))


@pytest.mark.parametrize("missing", ["id", "components", "edges"])
def test_a_subgraph_has_an_id_components_and_edges(missing: str) -> None:
    part = cell()
    del part[missing]
    assert f"{missing} is required" in refused(draft(subgraphs=[part]))[0].message


def test_a_subgraph_without_components_is_refused_and_without_edges_is_not() -> None:
    assert "components is required" in the_only(draft(subgraphs=[cell(components=[], edges=[])])).message
    load_mapping(draft(subgraphs=[cell(edges=[])]))


def test_two_subgraphs_with_the_same_id_are_refused() -> None:
    codes = [each.code for each in refused(draft(subgraphs=[cell(), cell()]))]
    assert codes == ["duplicate_id"]


def test_an_unknown_field_of_a_subgraph_is_refused() -> None:
    assert the_only(draft(subgraphs=[cell(lanes={})])).graph_path == "subgraphs.cell.lanes"


def test_a_problem_inside_a_subgraph_has_its_path_in_the_file() -> None:
    faulty = cell(edges=[{"id": "e", "from": "source.out", "to": "sink.in"}])
    assert the_only(draft(subgraphs=[faulty])).graph_path == "subgraphs.cell.edges.e.kind"


def test_subgraphs_count_towards_the_limits() -> None:
    parts = [cell(id=f"cell{n}") for n in range(3)]
    load_mapping(draft(subgraphs=parts), limits=InputLimits(components=6))
    messages = [each.message for each in refused(draft(subgraphs=parts), limits=InputLimits(components=5))]
    assert messages == ["runtime graph.components count exceeds limit 5"]


# --- templates -----------------------------------------------------------------------------------


def template(**changes: Any) -> dict[str, Any]:
    inside = draft(
        [
            {"id": "source", "type": "{{kind}}", "config": {"text": "a {{kind}} of {{size}}", "size": "{{size}}"}},
            {"id": "sink", "execution": {"budget_ms": "{{size}}"}},
        ],
        ["source.out -> sink.in"],
    )
    base = {"id": "pair", "parameters": ["kind", "size"], "components": inside["components"], "edges": inside["edges"]}
    return {**base, **changes}


def instance(name: str = "one", **parameters: Any) -> dict[str, Any]:
    return {"id": name, "template": "pair", "parameters": {"kind": "demo.Source", "size": 4, **parameters}}


def with_templates(*instances: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return draft(templates=[template(**changes)], template_instances=list(instances))


def test_an_instance_fills_the_placeholders_and_is_expanded_like_a_subgraph() -> None:
    spec = load_mapping(with_templates(instance("one"), instance("two", size=9)))
    assert [each.id for each in spec.components] == ["one.source", "one.sink", "two.source", "two.sink"]
    assert spec.components[0].type == "demo.Source"
    assert [each.template for each in spec.hierarchy] == ["pair", "pair"]


def test_a_placeholder_alone_keeps_the_type_of_its_value() -> None:
    spec = load_mapping(with_templates(instance("one"), instance("two", size=9)))
    assert [each.execution.budget_ms for each in spec.components] == [0, 4, 0, 9]
    assert spec.components[2].config == {"text": "a demo.Source of 9", "size": 9}


@pytest.mark.parametrize(("value", "written"), [(True, "true"), (2.5, "2.5"), ("x", "x")])
def test_a_placeholder_inside_a_string_is_inserted_as_text(value: object, written: str) -> None:
    inside = [{"id": "a", "type": "demo.Source", "execution": {"lane": "main"}, "config": {"text": "<{{size}}>"}}]
    spec = load_mapping(with_templates(instance(size=value), components=inside, edges=[]))
    assert spec.components[0].config == {"text": f"<{written}>"}


def test_braces_outside_of_templates_have_no_meaning() -> None:
    spec = load_mapping(draft([{"id": "a", "config": {"prompt": "Hello {{name}}"}}]))
    assert spec.components[0].config == {"prompt": "Hello {{name}}"}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (with_templates({**instance(), "parameters": {"kind": "x"}}), "the parameter size is missing"),
        (with_templates(instance(colour="red")), "unknown parameter colour"),
        (with_templates({**instance(), "template": "triple"}), "unknown template triple"),
        (with_templates(parameters=["kind"]), "the placeholder {{size}} does not match any parameter"),
        (with_templates(edges=[{"id": "{{kind", "kind": "immediate"}]), "unbalanced placeholder braces in '{{kind'"),
        (with_templates(edges=[{"id": "kind}}", "kind": "immediate"}]), "unbalanced placeholder braces in 'kind}}'"),
        (with_templates(edges=[{"{{kind}}": 1}]), "a placeholder is not allowed in a key: '{{kind}}'"),
        (with_templates(edges=[{"id": "{{ kind }}"}]), "the placeholder {{ kind }} does not match any parameter"),
        (with_templates(components=[], edges=[]), "templates.pair.components is required"),
        (with_templates(instance(), instance()), "duplicate id one"),
        (draft(templates=[template(), template()]), "templates: duplicate id pair"),
    ],
)
def test_a_template_that_is_filled_wrongly_is_a_load_error(document: dict[str, Any], words: str) -> None:
    assert words in refused(document)[0].message


@pytest.mark.parametrize("value", [None, ["x"], {"a": 1}])
def test_a_parameter_is_a_scalar(value: object) -> None:
    assert the_only(with_templates(instance(size=value))).graph_path.startswith("template_instances.one.parameters")


def test_a_filled_value_is_checked_like_any_other() -> None:
    diagnostic = the_only(with_templates(instance(size="many")))
    assert diagnostic.graph_path == "template_instances.one.components.sink.execution.budget_ms"


def test_a_string_that_exceeds_its_limit_when_filled_is_refused() -> None:
    inside = [{"id": "a", "type": "{{kind}}{{kind}}", "execution": {"lane": "main"}}]
    assert (
        "string exceeds limit 4096"
        in refused(with_templates(instance(kind="x" * 4000), components=inside, edges=[]))[0].message
    )


def test_the_values_of_all_template_instances_have_a_limit() -> None:
    components = [{"id": f"c{n}", "type": "t", "execution": {"lane": "main"}} for n in range(40)]
    document = with_templates(*(instance(f"i{n}") for n in range(40)), components=components, edges=[])
    messages = [each.message for each in refused(document, limits=InputLimits(values=2000))]
    assert messages == ["the template instances expand to more values than the limit 2000"]


def test_an_expanded_item_has_its_line_in_the_file(tmp_path: Path) -> None:
    text = MINIMAL + (
        "templates:\n"
        "  - id: pair\n"
        "    parameters: [kind]\n"
        "    components:\n"
        "      - {id: only, type: '{{kind}}', execution: {lane: main}}\n"
        "    edges: []\n"
        "template_instances:\n"
        "  - {id: one, template: pair, parameters: {kind: demo.Source}}\n"
    )
    path = tmp_path / "graph.yaml"
    path.write_text(text)
    loaded = read_graph(path)
    assert (
        loaded.lines["components.one.only"]
        == text.splitlines().index("      - {id: only, type: '{{kind}}', execution: {lane: main}}") + 1
    )
    assert isinstance(loaded.spec, GraphSpec)
