"""New configuration for components that run: all of it or none of it, between two epochs.

Each change is checked first: function components against their signature, classes by their `validate_config`. Only when
all are fine are they applied. If applying one fails, those already applied are given their old configuration again and
the run ends with an error, because nobody can say what the failed one has done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from rota.errors import ComponentInvalid, ComponentUnknown
from rota.graph.nodes import Node
from rota.graph.reports import Reports, RunStopped, words

__all__ = ["Reconfiguration"]


class Reconfiguration:
    """Changes of configuration that wait for the next epoch."""

    def __init__(self, nodes: Mapping[str, Node], remote_lanes: frozenset[str], reports: Reports) -> None:
        self._nodes = nodes
        self._remote_lanes = remote_lanes
        self._reports = reports
        self._waiting: deque[Mapping[str, Mapping[str, Any]]] = deque()
        self._configs = {node.id: dict(node.spec.config) for node in nodes.values()}

    def ask(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        """Replace the configuration of these components when the next epoch begins; any thread may ask."""
        for component_id in changes:
            node = self._nodes.get(component_id)
            if node is None:
                raise ComponentUnknown(f"the graph has no component {component_id!r}", hint="Check its id.")
            self._check_can_change(node)
        self._waiting.append({name: dict(config) for name, config in changes.items()})

    def apply(self) -> None:
        """An epoch begins: apply what waits."""
        while self._waiting:
            changes = self._waiting.popleft()
            try:
                for component_id, config in changes.items():
                    self._validate(self._nodes[component_id], config)
            except Exception as problem:  # validate_config is the component's code
                self._refuse(problem)
            self._apply_all(changes)

    def _apply_all(self, changes: Mapping[str, Mapping[str, Any]]) -> None:
        applied: list[str] = []
        for component_id, config in changes.items():
            try:
                _apply(self._nodes[component_id], config)
            except Exception as problem:  # reconfigure is the component's code
                self._roll_back(applied)
                self._refuse(problem)
            applied.append(component_id)
        self._configs.update({name: dict(config) for name, config in changes.items()})

    def _roll_back(self, applied: list[str]) -> None:
        for component_id in reversed(applied):
            try:
                _apply(self._nodes[component_id], self._configs[component_id])
            except Exception as problem:  # it took the new one, and may still refuse the old one
                self._reports.error("runtime", "config_rollback", words(problem), component_id=component_id)

    def _check_can_change(self, node: Node) -> None:
        instance = node.unit.instance
        fixed = instance is not None and not hasattr(instance, "reconfigure")
        if fixed or node.lane.id in self._remote_lanes:
            where = "has no method `reconfigure`" if fixed else "lives in another process"
            raise ComponentInvalid(f"component {node.id} {where}: its configuration cannot change while it runs")

    def _validate(self, node: Node, config: Mapping[str, Any]) -> None:
        node.unit.kind.check_config(node.id, config)
        validate = getattr(node.unit.instance, "validate_config", None)
        if validate is not None:
            validate(**config)

    def _refuse(self, problem: Exception) -> None:
        self._reports.error("validate", "config_rejected", words(problem))
        raise RunStopped from problem


def _apply(node: Node, config: Mapping[str, Any]) -> None:
    if node.unit.instance is None:
        node.unit.configure(config)
    else:
        node.unit.instance.reconfigure(**config)
