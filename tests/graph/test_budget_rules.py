"""Budgets in a graph file: how they are read, what is refused, and what the plan says of them."""

from __future__ import annotations

from typing import Any

import pytest

from rota.errors import GraphInvalid
from rota.graph.budgets import lines_of
from rota.graph.compiler import compile_graph
from rota.graph.loader import load_mapping
from rota.graph.plan_reports import plan_to_dict
from rota.graph.schema import graph_schema
from tests.graph.drafts import checked, draft


def graph(*, budget: Any = None, version: int = 2, **execution: Any) -> dict[str, Any]:
    """Two components; the first with these fields of its execution."""
    info: dict[str, Any] = {"name": "draft"} if budget is None else {"name": "draft", "budget": budget}
    edges = [{"id": "wire", "kind": "immediate", "from": "a.out", "to": "b.in"}]
    return draft([{"id": "a", "execution": execution}, "b"], edges, version=version, graph=info)


def problems(**fields: Any) -> list[str]:
    """The messages about budgets of a graph that is read, or of one that is not."""
    try:
        result = checked(graph(**fields))
    except GraphInvalid as refused:
        return [refused.message]
    return [each.message for each in result.diagnostics if "budget" in each.graph_path]


def test_a_budget_is_read_as_lines_of_the_ledger() -> None:
    spec = load_mapping(graph(budget={"tokens": 1000, "usd": 0.25}, budget_ms=5, on_over_budget="wait"))
    assert lines_of(spec) == {"": {"tokens": 1000, "cost_micro": 250_000}}
    assert lines_of(spec, {"tokens": 70}) == {"": {"tokens": 70, "cost_micro": 250_000}}


def test_the_plan_says_what_components_and_the_run_may_use() -> None:
    document = graph(budget={"tokens": 1000})
    document["components"][0]["execution"] |= {"budget": {"tokens": 400}, "on_over_budget": "wire"}
    plan = plan_to_dict(compile_graph(load_mapping(document)))
    assert plan["budget"] == {"tokens": 1000}
    first, second = plan["components"]
    assert (first["budget"], first["on_over_budget"]) == ({"tokens": 400}, "wire")
    assert "budget" not in second


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"budget": {"tokens": -1}}, "a number of at least 0, found -1"),
        ({"budget": {"tokens": "many"}}, "expected"),
        ({"budget": 5}, "expected"),
        ({"budget": {"token": 5}}, "graph.budget has the unknown dimension token"),
        ({"budget": {"tokens": 1.5}}, "tokens must be a whole number, not 1.5"),
        ({"budget": {"tokens": 1e300}}, "tokens must be"),
        ({"budget": {"usd": 0.0000001}}, "six digits"),
        ({"budget": {"usd": 1, "cost_micro": 1}}, "the same"),
        ({"on_over_budget": "explode", "budget": {"tokens": 1}}, "on_over_budget must be fail, wait or an edge"),
        ({"on_over_budget": "", "budget": {"tokens": 1}}, "on_over_budget"),
        ({"on_over_budget": "wait"}, "on_over_budget is not applied here"),
    ],
)
def test_what_is_no_budget_is_named(fields: dict[str, Any], words: str) -> None:
    found = problems(**fields)
    assert len(found) == 1
    assert words in found[0]


def test_a_component_may_not_use_more_than_its_run() -> None:
    document = graph(budget={"usd": 1, "tokens": 10})
    document["components"][0]["execution"]["budget"] = {"usd": 1.5, "tokens": 10}
    found = [each for each in checked(document).diagnostics if each.code == "invalid_budget"]
    assert [each.message for each in found] == ["component a may use $1.50 cost, which is more than the run's $1.00"]
    assert found[0].suggested_fix == "Lower it, or raise the budget of the graph."


def test_the_edge_of_another_component_is_refused() -> None:
    document = graph(budget={"tokens": 10})
    document["components"][1]["execution"]["on_over_budget"] = "wire"
    (found,) = [each for each in checked(document).diagnostics if each.code == "invalid_budget"]
    assert found.suggested_fix == "Its edges: none."


def test_an_unknown_dimension_has_a_suggestion() -> None:
    (found,) = [each for each in checked(graph(budget={"token": 5})).diagnostics if each.code == "invalid_budget"]
    assert found.suggested_fix.startswith("Did you mean tokens? The dimensions are: tokens,")


def test_schema_1_has_no_budgets() -> None:
    with pytest.raises(GraphInvalid, match=r"unexpected field graph.budget in schema_version 1"):
        load_mapping(graph(budget={"tokens": 1}, version=1))
    document = graph(version=1)
    document["components"][0]["execution"]["budget"] = {"tokens": 1}
    with pytest.raises(GraphInvalid, match=r"unexpected field components.a.execution.budget in schema_version 1"):
        load_mapping(document)
    parts = graph_schema(1)["$defs"]
    assert "budget" not in parts["GraphInfo"]["properties"]
    assert "budget" in graph_schema(2)["$defs"]["GraphInfo"]["properties"]
