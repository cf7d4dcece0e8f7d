"""Two plans beside each other."""

from __future__ import annotations

from typing import Any

from rota.graph.compiler import compile_graph
from rota.graph.difference import Change, PlanDifference, compare_plans
from rota.graph.loader import load_mapping
from tests.graph.drafts import BARE, draft


def difference(before: dict[str, Any], after: dict[str, Any]) -> PlanDifference:
    one, other = (compile_graph(load_mapping(each), platform=BARE) for each in (before, after))
    return compare_plans(one, other)


def test_a_plan_is_the_same_as_itself() -> None:
    document = draft(["a", "b"], ["a.out -> b.in"])
    assert difference(document, document).same


def test_what_was_added_and_removed_is_named_with_its_section() -> None:
    before = draft(["a", "b"], ["a.out -> b.in"])
    after = draft(["a", "c"], ["a.out -> c.in"])
    found = difference(before, after)
    assert found.added == ("components.c", "regions.c")
    assert found.removed == ("components.b", "regions.b")
    assert Change(path="edges.e0.to", before="b.in", after="c.in") in found.changed


def test_a_change_is_named_down_to_its_field() -> None:
    before = draft(["a", "b"], [{"from": "a.out", "to": "b.in", "policy": {"mode": "queue", "capacity": 4}}])
    after = draft(["a", "b"], [{"from": "a.out", "to": "b.in", "policy": {"mode": "queue", "capacity": 8}}])
    assert difference(before, after).changed == (Change(path="edges.e0.policy.capacity", before=4, after=8),)


def test_an_order_that_changed_is_told_apart_from_one_that_grew() -> None:
    plain = draft(["a", "b"])
    grown = draft(["a", "x", "b"])
    turned = draft(["a", {"id": "b", "execution": {"priority": "high"}}])
    assert not difference(plain, grown).order_changed
    assert not difference(plain, grown).same
    assert difference(plain, turned).order_changed


def test_a_delay_edge_that_becomes_immediate_moves_regions() -> None:
    found = difference(draft(["b", "a"], ["a.out ~> b.in"]), draft(["b", "a"], ["a.out -> b.in"]))
    assert (found.order_before, found.order_after) == (("b", "a"), ("a", "b"))
    assert [each.path for each in found.changed] == [
        "edges.e0.kind",
        "regions.b.incoming_regions",
        "regions.a.outgoing_regions",
    ]
