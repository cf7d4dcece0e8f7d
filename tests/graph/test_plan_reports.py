"""Reports about plans: why each region runs when it does, and the difference of two plans."""

from __future__ import annotations

from typing import Any

from rota.graph.compiler import compile_graph
from rota.graph.loader import load_mapping
from rota.graph.plan_reports import (
    FieldChange,
    PlanDifference,
    compare_plans,
    explanation_lines,
    explanation_to_dict,
    region_placements,
)
from tests.graph.drafts import BARE, checked, draft

# --- the explanation -----------------------------------------------------------------------------

LANES = {"main": {"type": "event_loop", "priority": "x"}, "own": {"type": "isolated_thread"}}
GRAPH = draft(
    [{"id": "a", "execution": {"priority": "low"}}, "b", "c", {"id": "w", "lane": "own"}],
    ["a.out -> b.in", "b.out -> c.in", "c.out -> b.back", "c.far ~> w.in"],
    lanes=LANES,
    loops={"bc": ["b", "c"]},
    version=2,
)


def test_each_region_has_its_position_and_the_reason() -> None:
    plan = checked(GRAPH).plan
    assert plan is not None
    assert [(each.region, each.lane, each.place, each.because) for each in region_placements(plan)] == [
        ("a", "", 1, "no predecessors; priority low"),
        ("bc", "", 2, "after a; priority normal; loop of b, c, fixed_point, up to 3 iterations"),
        ("w", "own", 1, "no predecessors; priority normal"),
    ]


def test_the_explanation_as_text() -> None:
    lines = list(explanation_lines(checked(GRAPH)))
    assert lines[:5] == [
        "An epoch of draft:",
        "    1. a: no predecessors; priority low",
        "    2. bc: after a; priority normal; loop of b, c, fixed_point, up to 3 iterations",
        "    1. [own] w: no predecessors; priority normal",
        "",
    ]
    assert "  e3: c.far → w.in (delay)" in lines
    assert "Lanes and execution:" in lines


def test_the_explanation_of_a_graph_with_errors_has_only_its_diagnostics() -> None:
    broken = draft(["a"], ["a.out -> missing.in"])
    lines = list(explanation_lines(checked(broken)))
    assert lines[1] == "Structure:"
    assert "missing target component" in lines[2]
    assert lines[3].strip().startswith("→")
    shape = explanation_to_dict(checked(broken))
    assert not shape["ok"]
    assert shape["regions"] == []
    assert [each["code"] for each in shape["diagnostic_groups"]["graph_structure"]] == ["unknown_component"]


def test_the_explanation_as_json_has_placements_and_groups() -> None:
    shape = explanation_to_dict(checked(GRAPH))
    assert [each["region"] for each in shape["regions"]] == ["a", "bc", "w"]
    assert [each["graph_path"] for each in shape["diagnostic_groups"]["scheduler"]] == ["lanes.main.priority"]


# --- the difference of two plans -----------------------------------------------------------------


def difference(before: dict[str, Any], after: dict[str, Any]) -> PlanDifference:
    one, other = (compile_graph(load_mapping(each), platform=BARE) for each in (before, after))
    return compare_plans(one, other)


def test_equal_plans_have_no_difference() -> None:
    document = draft(["a", "b"], ["a.out -> b.in"])
    assert difference(document, document).same


def test_additions_and_removals_have_their_section() -> None:
    before = draft(["a", "b"], ["a.out -> b.in"])
    after = draft(["a", "c"], ["a.out -> c.in"])
    found = difference(before, after)
    assert found.added == ("components.c", "regions.c")
    assert found.removed == ("components.b", "regions.b")
    assert FieldChange(path="edges.e0.to", before="b.in", after="c.in") in found.changed


def test_a_change_has_the_path_of_its_field() -> None:
    before = draft(["a", "b"], [{"from": "a.out", "to": "b.in", "policy": {"mode": "queue", "capacity": 4}}])
    after = draft(["a", "b"], [{"from": "a.out", "to": "b.in", "policy": {"mode": "queue", "capacity": 8}}])
    assert difference(before, after).changed == (FieldChange(path="edges.e0.policy.capacity", before=4, after=8),)


def test_a_new_region_alone_does_not_change_the_order() -> None:
    plain = draft(["a", "b"])
    grown = draft(["a", "x", "b"])
    reordered = draft(["a", {"id": "b", "execution": {"priority": "high"}}])
    assert not difference(plain, grown).order_changed
    assert not difference(plain, grown).same
    assert difference(plain, reordered).order_changed


def test_a_delay_edge_that_becomes_immediate_moves_regions() -> None:
    found = difference(draft(["b", "a"], ["a.out ~> b.in"]), draft(["b", "a"], ["a.out -> b.in"]))
    assert (found.order_before, found.order_after) == (("b", "a"), ("a", "b"))
    assert [each.path for each in found.changed] == [
        "edges.e0.kind",
        "regions.b.incoming_regions",
        "regions.a.outgoing_regions",
    ]
