"""Gauges that are read from the tables on each request: entries, agents, budgets, limits, slots, the policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Gauge

from rota.kernel import Kernel
from rota.observe.metric_labels import short
from rota.service.store_policies import StorePolicies

__all__ = ["ROWS_MAX", "TableMetrics"]

ROWS_MAX = 100  # budgets, limits or workers with series of their own; the rest is counted in rota_metrics_omitted


class TableMetrics:
    """The gauges of one kernel."""

    def __init__(self, kernel: Kernel, registry: CollectorRegistry) -> None:
        self._kernel = kernel

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, labels, registry=registry)

        self.entries = gauge("rota_entries", "Entries in each state.", "state")
        self.agents = gauge("rota_agents", "Agents in each state.", "state")
        self.policy = gauge("rota_policy_in_force", "The policy of the store.", "policy", "params", "share_by")
        budget = ("level", "project", "dimension")
        self.budget_used = gauge("rota_budget_used", "Usage in the window of a budget.", *budget)
        self.budget_reserved = gauge("rota_budget_reserved", "Reserved by runs in progress.", *budget)
        self.budget_limit = gauge("rota_budget_limit", "The budget of a project or of the fleet.", *budget)
        limit = ("limit", "unit")
        self.limit_used = gauge("rota_limit_used", "Used of a named limit in its period.", *limit)
        self.limit_available = gauge("rota_limit_available", "Available of a named limit; negative: debt.", *limit)
        self.slots = gauge("rota_slots", "Slots of a worker.", "worker")
        self.slots_busy = gauge("rota_slots_busy", "Runs of a worker.", "worker")
        self.workers = gauge("rota_workers", "Workers that are alive.")
        self.omitted = gauge("rota_metrics_omitted", "Budgets, limits and workers without series of their own.", "of")

    def update(self) -> None:
        """Read the tables."""
        _set(self.entries, [((state,), count) for state, count in self._kernel.queue.counts().items()])
        _set(self.agents, [((state,), count) for state, count in self._kernel.info()["live_states"].items()])
        self._set_policy()
        self._set_budgets()
        self._set_limits()
        self._set_workers()

    def _set_policy(self) -> None:
        in_force = StorePolicies(self._kernel.policies).get()
        params = ", ".join(f"{name}={value}" for name, value in in_force.params.items())
        _set(self.policy, [((in_force.name, short(params), in_force.share_by), 1)])

    def _set_budgets(self) -> None:
        lines = self._first("budgets", self._kernel.ledger.budgets())
        labelled = [
            ((line.level, "" if line.level == "global" else short(line.owner), short(line.dim)), line) for line in lines
        ]
        _set(self.budget_used, [(labels, line.used) for labels, line in labelled])
        _set(self.budget_reserved, [(labels, line.reserved) for labels, line in labelled])
        _set(self.budget_limit, [(labels, line.limit) for labels, line in labelled])

    def _set_limits(self) -> None:
        contexts = self._kernel.contexts.list(limit=10 * ROWS_MAX)
        named = self._first("limits", [context for context in contexts if context.bound_to == "name"])
        labelled = [((short(each.bound_id), short(each.unit)), each) for each in named]
        _set(self.limit_used, [(labels, each.budget - each.remaining) for labels, each in labelled])
        _set(self.limit_available, [(labels, each.remaining) for labels, each in labelled])

    def _set_workers(self) -> None:
        alive = self._kernel.workers.list()
        self.workers.set(len(alive))
        shown = self._first("workers", alive)
        _set(self.slots, [((short(worker.worker_id),), worker.slots) for worker in shown])
        _set(self.slots_busy, [((short(worker.worker_id),), worker.running) for worker in shown])

    def _first(self, of: str, rows: Sequence[Any]) -> Sequence[Any]:
        self.omitted.labels(of).set(max(0, len(rows) - ROWS_MAX))
        return rows[:ROWS_MAX]


def _set(gauge: Gauge, values: Sequence[tuple[tuple[str, ...], float]]) -> None:
    gauge.clear()
    for labels, value in values:
        gauge.labels(*labels).set(value)
