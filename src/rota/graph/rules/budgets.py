"""Rules on budgets: dimensions and amounts, nodes against the run, and what happens over budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rota.graph.budgets import BUDGET_DIMENSIONS, amounts_of
from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex
from rota.graph.spec import Budget, ComponentSpec
from rota.model.money import amount_text, dim_text
from rota.model.value_types import closest

__all__ = ["check_budgets"]


def check_budgets(index: GraphIndex) -> Iterator[Diagnostic]:
    """Check the budget of the graph, then those of its components and what they do over budget."""
    graph = index.spec.graph.budget
    problems = list(_amounts(graph, "graph.budget"))
    yield from problems
    most = {} if problems else amounts_of(graph)
    for component in index.components.values():
        path = f"components.{component.id}.execution"
        problems = list(_amounts(component.execution.budget, f"{path}.budget", component.id))
        yield from problems
        if not problems:
            yield from _against_run(component, most, f"{path}.budget")
        yield from _over_budget(index, component, f"{path}.on_over_budget", has_run_budget=bool(graph))


def _amounts(budget: Budget | None, path: str, *components: str) -> Iterator[Diagnostic]:
    known = {}
    for dim, amount in (budget or {}).items():
        if dim in BUDGET_DIMENSIONS:
            known[dim] = amount
            continue
        similar = closest(dim, BUDGET_DIMENSIONS)
        guess = f"Did you mean {similar}? " if similar else ""
        fix = f"{guess}The dimensions are: {', '.join(BUDGET_DIMENSIONS)}."
        message = f"{path} has the unknown dimension {dim}"
        yield Diagnostic.of("invalid_budget", message, f"{path}.{dim}", components=components, fix=fix)
    try:
        amounts_of(known)
    except (ValueError, OverflowError) as problem:
        yield Diagnostic.of("invalid_budget", f"{path}: {problem}", path, components=components)


def _against_run(component: ComponentSpec, most: Mapping[str, int], path: str) -> Iterator[Diagnostic]:
    """A component that may use more than the whole run would never reach its own budget."""
    for dim, amount in amounts_of(component.execution.budget).items():
        if amount > most.get(dim, amount):
            what, own, run = dim_text(dim), amount_text(dim, amount), amount_text(dim, most[dim])
            message = f"component {component.id} may use {own} {what}, which is more than the run's {run}"
            fix = "Lower it, or raise the budget of the graph."
            yield Diagnostic.of("invalid_budget", message, path, components=[component.id], fix=fix)


def _over_budget(
    index: GraphIndex, component: ComponentSpec, path: str, *, has_run_budget: bool
) -> Iterator[Diagnostic]:
    name, wanted = component.id, component.execution.on_over_budget
    if wanted != "fail" and not component.execution.budget and not has_run_budget:
        message = f"component {name}: on_over_budget is not applied here: neither it nor the graph has a budget"
        yield Diagnostic.of("advisory_execution_field_ignored", message, path, components=[name])
    if wanted in ("fail", "wait"):
        return
    leaving = [edge.id for edge in index.outgoing.get(name, ())]
    if wanted not in leaving:
        message = f"component {name}: on_over_budget must be fail, wait or an edge that leaves it, not {wanted!r}"
        fix = f"Its edges: {', '.join(leaving) or 'none'}."
        yield Diagnostic.of("invalid_budget", message, path, components=[name], fix=fix)
