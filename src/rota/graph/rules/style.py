"""Style: what is allowed and does what it says, and that a second reader would ask about. Only `lint` looks here."""

from __future__ import annotations

from collections.abc import Iterator

from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex, Wire

__all__ = ["check_style"]


def check_style(index: GraphIndex) -> Iterator[Diagnostic]:
    """Notes about a graph that has no errors."""
    yield from _boundaries(index)
    for name in index.components:
        if len(index.components) > 1 and not index.into.get(name) and not index.out_of.get(name):
            message = f"component {name} has no edge: nothing reaches it and nothing leaves it"
            yield Diagnostic.of("diagnostic_note", message, f"components.{name}", components=[name])
    for wire in index.wires:
        yield from _edge(wire)


def _boundaries(index: GraphIndex) -> Iterator[Diagnostic]:
    if index.spec.graph.kind != "runnable":
        return
    roles = {component.boundary.role for component in index.components.values()}
    for side in ("input", "output"):
        if not roles & {side, "input_output"}:
            message = f"a runnable graph says where its {side} is: no component has boundary.role {side}"
            yield Diagnostic.of("diagnostic_note", message, "graph.kind")


def _edge(wire: Wire) -> Iterator[Diagnostic]:
    name, policy = wire.spec.id, wire.spec.policy
    path = f"edges.{name}.policy"
    if policy.mode in {"latest", "latched", "previous_tick"} and policy.capacity > 1:
        message = f"edge {name}: mode {policy.mode} keeps one message; a capacity of {policy.capacity} adds nothing"
        yield Diagnostic.of("diagnostic_note", message, f"{path}.capacity", edges=[name])
    if wire.spec.kind == "async" and policy.max_inflight == 0:
        message = f"edge {name}: nothing bounds how many messages are under way; max_inflight would"
        yield Diagnostic.of("diagnostic_note", message, f"{path}.max_inflight", edges=[name])
    if policy.copy_policy == "loaned_view" and policy.owner != "producer":
        message = f"edge {name}: a loan without an owner who takes it back; owner: producer would name one"
        yield Diagnostic.of("diagnostic_note", message, f"{path}.owner", edges=[name])
