"""Graphs as stored documents: what `kernel.graph.start` and `rota run` check before a run begins.

A stored document is the same mapping that a graph file holds. Any supervisor may run it, so it may only name agents of
the store and functions that can be imported. Whether they can be is a question for the machine that runs them:
`missing_functions` asks it. All problems of a document are reported together.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

from rota.errors import GraphInvalid, InvalidInput
from rota.graph.budgets import lines_of
from rota.graph.compiler import check
from rota.graph.diagnostics import Diagnostic, worst_first
from rota.graph.document import InputLimits, read_document
from rota.graph.loader import load_mapping
from rota.graph.run_values import INPUT_TYPE, check_inputs
from rota.graph.spec import GraphSpec

__all__ = ["StoredGraph", "missing_functions", "outline", "read_mapping", "read_stored"]

Amounts = dict[str, int]


class StoredGraph(NamedTuple):
    """A document that was read and checked."""

    name: str
    spec: GraphSpec
    diagnostics: tuple[Diagnostic, ...]

    @property
    def agents(self) -> list[tuple[str, str]]:
        """The components that are agents, with the agents' names."""
        return [(each.id, each.execution.agent) for each in self.spec.components if each.execution.agent]

    def lines(self, budget: Mapping[str, int] | None) -> dict[str, Amounts]:
        """Return the budgets of a run and its nodes; the run's own is under the empty name, and may be given."""
        return lines_of(self.spec, budget)

    def check_inputs(self, given: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` if a run is given a value for which it has no input, or lacks one."""
        check_inputs({each.id: each for each in self.spec.components}, given)

    def check_input(self, name: str) -> None:
        """Raise `InvalidInput` if the graph has no input of this name."""
        inputs = [each.id for each in self.spec.components if each.type == INPUT_TYPE]
        if name not in inputs:
            hint = f"Its inputs: {', '.join(inputs) or 'none'}."
            raise InvalidInput(f"the graph has no input {name!r}", field="inputs", hint=hint)

    def missing_inputs(self, given: Mapping[str, Any]) -> list[str]:
        """Return the inputs without a default that are not given."""
        inputs = (each for each in self.spec.components if each.type == INPUT_TYPE)
        return [each.id for each in inputs if each.id not in given and "default" not in each.config]

    def check_agents(self, problems: Mapping[str, str | None]) -> None:
        """Raise `GraphInvalid` if the document has errors, or names agents that cannot be meant, by agent."""
        found = [
            _unknown_agent(node, agent, problem)
            for node, agent in self.agents
            if (problem := problems.get(agent)) is not None
        ]
        _refuse(self.name, (*self.diagnostics, *found))


def read_mapping(path: str | Path) -> dict[str, Any]:
    """Return the mapping in a graph file, as plain values; raises `GraphInvalid` if it cannot be read."""
    limits = InputLimits()
    try:
        with Path(path).open("rb") as file:
            data = file.read(limits.graph_input_bytes + 1)
    except OSError as problem:
        raise GraphInvalid(f"cannot be read: {problem.strerror}", hint="Check the path of the graph file.") from None
    document: dict[str, Any] = _plain(read_document(data, limits, "json" if Path(path).suffix == ".json" else "yaml"))
    return document


def _plain(value: Any) -> Any:
    """Return a value without the line numbers that its mappings have."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def read_stored(document: Mapping[str, Any]) -> StoredGraph:
    """Read a document; raises `GraphInvalid` if it is not a graph. Its other problems are in `diagnostics`."""
    spec = load_mapping(document)
    return StoredGraph(spec.graph.name, spec, check(spec).diagnostics)


def missing_functions(read: StoredGraph) -> list[Diagnostic]:
    """Return a diagnostic for each component whose function cannot be imported here."""
    found: list[Diagnostic] = []
    for each in read.spec.components:
        if each.execution.agent or ":" not in each.type:  # an agent, or a type that is registered
            continue
        try:
            resolve_name(each.type)
        except Exception as problem:  # the imported module may raise anything
            text = f"component {each.id}: {each.type} cannot be imported: {type(problem).__name__}: {problem}"
            fix = "Correct the name, or put the module where the supervisor can import it."
            found.append(Diagnostic.of("unknown_component", text, path=f"components.{each.id}.type", fix=fix))
    return found


def _unknown_agent(node: str, agent: str, problem: str) -> Diagnostic:
    text = f"component {node}: {problem}"
    fix = f"`rota agents` lists them; {agent} must be in the run's project, or granted: rota projects grant FROM TO."
    return Diagnostic.of("unknown_component", text, path=f"components.{node}.execution.agent", fix=fix)


def _refuse(name: str, diagnostics: tuple[Diagnostic, ...]) -> None:
    """Raise `GraphInvalid` with all diagnostics if one of them is an error."""
    errors = [each for each in diagnostics if each.is_error]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        text = f"graph {name}: {errors[0].message}{more}"
        raise GraphInvalid(text, diagnostics=worst_first(diagnostics), hint=errors[0].suggested_fix)


def outline(document: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return the nodes of a document, with their agents."""
    try:
        spec = load_mapping(document)
    except GraphInvalid:  # stored by another version
        return []
    return [(each.id, each.execution.agent or None) for each in spec.components]
