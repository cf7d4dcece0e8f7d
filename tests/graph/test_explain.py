"""Explaining a plan: why each region runs when it does."""

from __future__ import annotations

from rota.graph.explain import explain_lines, region_stories
from rota.graph.shapes import explain_shape
from tests.graph.drafts import checked, draft

LANES = {"main": {"type": "event_loop", "priority": "x"}, "own": {"type": "isolated_thread"}}
GRAPH = draft(
    [{"id": "a", "execution": {"priority": "low"}}, "b", "c", {"id": "w", "lane": "own"}],
    ["a.out -> b.in", "b.out -> c.in", "c.out -> b.back", "c.far ~> w.in"],
    lanes=LANES,
    loops={"bc": ["b", "c"]},
    version=2,
)


def test_each_region_has_its_place_and_the_reason_for_it() -> None:
    plan = checked(GRAPH).plan
    assert plan is not None
    assert [(each.region, each.lane, each.place, each.because) for each in region_stories(plan)] == [
        ("a", "", 1, "waits for nobody; priority low"),
        ("bc", "", 2, "after a; priority normal; loop of b, c, fixed_point, up to 3 iterations"),
        ("w", "own", 1, "waits for nobody; priority normal"),
    ]


def test_the_explanation_reads_like_one() -> None:
    lines = list(explain_lines(checked(GRAPH)))
    assert lines[:5] == [
        "An epoch of draft:",
        "    1. a: waits for nobody; priority low",
        "    2. bc: after a; priority normal; loop of b, c, fixed_point, up to 3 iterations",
        "    1. [own] w: waits for nobody; priority normal",
        "",
    ]
    assert "  e3: c.far → w.in (delay)" in lines
    assert "Lanes and execution:" in lines


def test_a_graph_with_errors_is_explained_by_its_diagnostics() -> None:
    broken = draft(["a"], ["a.out -> nobody.in"])
    lines = list(explain_lines(checked(broken)))
    assert lines[1] == "Structure:"
    assert "nobody" in lines[2]
    assert lines[3].strip().startswith("→")
    shape = explain_shape(checked(broken))
    assert not shape["ok"]
    assert shape["regions"] == []
    assert [each["code"] for each in shape["diagnostic_groups"]["graph_structure"]] == ["unknown_component"]


def test_the_explanation_as_json_has_stories_and_groups() -> None:
    shape = explain_shape(checked(GRAPH))
    assert [each["region"] for each in shape["regions"]] == ["a", "bc", "w"]
    assert [each["graph_path"] for each in shape["diagnostic_groups"]["scheduler"]] == ["lanes.main.priority"]
