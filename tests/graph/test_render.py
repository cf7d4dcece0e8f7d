"""Drawings contain every component, loop and edge, and no name can break them."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from rota.graph.compiler import compile_graph
from rota.graph.loader import load_mapping
from rota.graph.mermaid import to_mermaid
from rota.graph.plan import Plan
from rota.graph.svg import place_boxes, to_svg
from tests.graph.drafts import BARE, draft

SVG = "{http://www.w3.org/2000/svg}"


def control_loop() -> Plan:
    parts: list[Any] = [
        {"id": "sensor", "boundary": {"role": "input"}},
        "estimator",
        "controller",
        {"id": "actuator", "lane": "pool", "boundary": {"role": "output"}},
    ]
    edges = [
        "sensor.out -> estimator.measurement",
        "estimator.state -> controller.state",
        "controller.correction -> estimator.correction",
        "controller.command ~> actuator.command",
    ]
    lanes = {"main": {"type": "event_loop"}, "pool": {"type": "thread_pool", "max_threads": 2}}
    document = draft(parts, edges, lanes=lanes, loops={"steering": ["estimator", "controller"]})
    return compile_graph(load_mapping(document), platform=BARE)


def named(name: str) -> Plan:
    """A graph in which everything has this name."""
    document = draft([name], lanes={"main": {"type": "event_loop"}}, graph={"name": name})
    return compile_graph(load_mapping(document), platform=BARE)


def test_mermaid_draws_loops_as_boxes_lanes_as_colours_and_edge_kinds_as_lines() -> None:
    assert to_mermaid(control_loop()).splitlines() == [
        "flowchart LR",
        '  subgraph r_c2["Loop: steering"]',
        '    c2["controller<br/>main"]',
        '    c1["estimator<br/>main"]',
        "  end",
        '  c0(["sensor<br/>main"])',
        '  c3(["actuator<br/>pool"])',
        '  c0 -->|"measurement"| c1',
        '  c1 -->|"state"| c2',
        '  c2 -->|"correction"| c1',
        '  c2 -.->|"delay: command"| c3',
        "  classDef lane0 fill:#dbeafe,stroke:#334155,color:#0f172a",
        "  class c0,c1,c2 lane0",
        "  classDef lane1 fill:#dcfce7,stroke:#334155,color:#0f172a",
        "  class c3 lane1",
    ]


def test_mermaid_groups_the_components_of_a_subgraph() -> None:
    inside = draft(["source", "sink"], ["source.out -> sink.in"])
    part = {"id": "cell", "components": inside["components"], "edges": inside["edges"]}
    drawing = to_mermaid(compile_graph(load_mapping(draft(["top"], subgraphs=[part])), platform=BARE))
    assert '  subgraph s_c1["Subgraph: cell"]' in drawing.splitlines()
    assert '    c1["cell.source<br/>main"]' in drawing.splitlines()


HOSTILE = ['a"]; click b "javascript:alert(1)', "<script>alert(1)</script>", "a&b#c`d\\e", "]]>", "end", "naïve 漢字"]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_can_break_out_of_a_mermaid_label(name: str) -> None:
    lines = to_mermaid(named(name)).splitlines()
    assert len(lines) == 4
    label = re.fullmatch(r'  c0\["(.*)<br/>main"\]', lines[1])
    assert label is not None
    assert not set('"<>`') & set(label[1])


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_can_break_out_of_an_svg(name: str) -> None:
    root = ET.fromstring(to_svg(named(name)))
    assert root.find(f"{SVG}title").text == name  # type: ignore[union-attr]
    assert root.find(f".//{SVG}script") is None


def test_svg_has_every_component_its_position_its_loop_and_its_edges() -> None:
    plan = control_loop()
    root = ET.fromstring(to_svg(plan))
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert {"sensor", "estimator", "controller", "actuator"} <= set(texts)
    assert any("steering" in (text or "") for text in texts)
    edges = [each for each in root.iter(f"{SVG}path") if each.get("marker-end")]
    assert len(edges) == len(plan.edges)
    assert [each.get("stroke-dasharray") for each in edges] == [None, None, None, "7 4"]


def test_svg_fetches_nothing() -> None:
    drawing = to_svg(control_loop())
    assert not re.search(r"href|<script|<image|@import|url\((?!#tip\))", drawing)


def test_boxes_do_not_overlap_and_are_to_the_right_of_their_predecessors() -> None:
    plan = control_loop()
    layout = place_boxes(plan)
    boxes = list(layout.components.values())
    for at, box in enumerate(boxes):
        for other in boxes[at + 1 :]:
            apart = box.x + box.width <= other.x or other.x + other.width <= box.x
            assert apart or box.y + box.height <= other.y or other.y + other.height <= box.y
    for region in plan.regions.values():
        for before in region.incoming_regions:
            left = layout.components[plan.regions[before].components[0]]
            assert left.x + left.width < layout.components[region.components[0]].x


def test_a_drawing_is_the_same_every_time() -> None:
    assert to_svg(control_loop()) == to_svg(control_loop())


def test_an_empty_graph_can_be_drawn() -> None:
    plan = compile_graph(load_mapping(draft()), platform=BARE)
    assert to_mermaid(plan) == "flowchart LR\n"
    assert ET.fromstring(to_svg(plan)).tag == f"{SVG}svg"


def test_independent_lanes_are_drawn_without_a_position_in_the_epoch() -> None:
    lanes = {"main": {"type": "event_loop"}, "own": {"type": "isolated_thread"}}
    document = draft(["a", {"id": "b", "lane": "own"}], ["a.out ~> b.in"], lanes=lanes, version=2)
    root = ET.fromstring(to_svg(compile_graph(load_mapping(document), platform=BARE)))
    assert [each.text for each in root.iter(f"{SVG}text") if each.get("text-anchor") == "end"] == ["1", "–"]


def test_control_characters_in_the_name_of_a_type_or_port_cannot_break_a_drawing() -> None:
    parts: list[Any] = [{"id": "a", "type": "demo.\x00\x1b"}, "b"]
    document = draft(parts, [{"id": "e", "from": "a.out", "to": "b.in\n\x02"}])
    document["components"][1]["trigger_policy"] = {"type": "manual"}
    plan = compile_graph(load_mapping(document), platform=BARE)
    drawn = ET.fromstring(to_svg(plan))
    assert any("demo.\ufffd\ufffd" in (text.text or "") for text in drawn.iter(f"{SVG}text"))
    assert '|"in\ufffd\ufffd"|' in to_mermaid(plan)


@pytest.mark.parametrize("name", HOSTILE)
def test_on_a_page_boxes_lead_to_entries_and_no_name_breaks_out_of_a_link(name: str) -> None:
    drawn = ET.fromstring(to_svg(named(name), {name: "running"}, links={name: "/entry/7"}))
    assert (drawn.get("class"), drawn.find(f"{SVG}style")) == ("picture", None)
    (link,) = drawn.iter(f"{SVG}a")
    assert link.get("href") == "/entry/7"
    assert (link.get("aria-label") or "").startswith(name)
    assert link.find(f"{SVG}text") is not None
