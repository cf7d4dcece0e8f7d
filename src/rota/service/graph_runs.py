"""Graph runs for every caller: what the kernel stores, with the checks and reports that need to read a graph.

Graphs are read by `rota.graph`, which stands above this package and which most processes never need. So its functions
are loaded by name, when a graph is started or shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pkgutil import resolve_name
from typing import Any

import msgspec

from rota.errors import AmbiguousAgent, UnknownAgent
from rota.kernel import Kernel
from rota.kernel.graph_entries import NEWEST_MAX, node_reports
from rota.kernel.graph_run_rows import shown_run
from rota.kernel.graph_runs import GraphRuns
from rota.model.agent_names import agent_named
from rota.model.graph_budgets import GraphBudgetLine
from rota.model.graph_runs import GraphRunInfo, GraphRunReport

__all__ = ["GraphRunVerbs"]

_READ = "rota.graph.stored_documents:read_stored"
_OUTLINE = "rota.graph.stored_documents:outline"


class GraphRunVerbs(GraphRuns):
    """The methods for graph runs, in this process."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel.env, kernel.agents, kernel.queue)
        self._ledger = kernel.ledger

    def start(
        self,
        document: Mapping[str, Any],
        inputs: Mapping[str, Any] | None = None,
        run_id: str | None = None,
        project: str | None = None,
        budget: Mapping[str, int] | None = None,
    ) -> GraphRunInfo:
        """Check and store a graph, and enqueue the entry that coordinates its run."""
        read = resolve_name(_READ)(document)
        read.check_inputs(inputs or {})
        names = [name for _, name in read.agents]
        known = self.reachable_agents(names, project)
        if project is None and not all(known.values()) and (project := self.common_project(names)) is not None:
            known = self.reachable_agents(names, project)
        read.check_agents({name: _problem(name, found, project) for name, found in known.items()})
        return self.create(read.name, document, inputs, run_id=run_id, project_id=project, budgets=read.lines(budget))

    def show(self, run_id: str) -> GraphRunReport:
        """Return everything about a graph run."""
        run = self.stored(run_id)
        entries = self.entries.of_run(run_id)
        agents: dict[str, str | None] = {} if run.document is None else dict(resolve_name(_OUTLINE)(run.document))
        for entry in entries:  # also of nodes whose graph only another program has, and of those on a queue lane
            agents[entry.node] = agents.get(entry.node) or self._agents.get(entry.pid).name
        nodes = node_reports(list(agents.items()), entries, self.entries.counts(run_id), error=run.error)
        status, own = (None, {}) if run.sched_id is None else self.entries.coordinator(run.sched_id)
        usage: Counter[str] = Counter(own)
        for entry in entries:
            usage.update(entry.usage)
        open_ids = sorted(entry.sched_id for entry in entries if entry.status in ("waiting", "ready", "running"))
        budgets = self._ledger.graph_budgets(run_id)
        busy = {node.node for node in nodes if node.entries.keys() & {"waiting", "ready"}}
        return GraphRunReport(
            run=_with_budgets(shown_run(run), budgets, busy),
            document=run.document,
            nodes=nodes,
            waits_for=tuple(open_ids[:NEWEST_MAX]),
            usage=dict(usage),
            coordinator=status,
            budgets=tuple(budgets),
        )


def _with_budgets(run: GraphRunInfo, budgets: Iterable[GraphBudgetLine], busy: Collection[str]) -> GraphRunInfo:
    """Return a run that waits with the budgets that it waits for: used up, while nodes have entries in the queue."""
    if run.status != "waiting" or not busy:
        return run
    short = [line for line in budgets if line.left <= 0 and (not line.node or line.node in busy)]
    known = run.waits or ""
    more = [f"budget ({line.sentence()})" for line in short if line.sentence() not in known]
    return msgspec.structs.replace(run, waits="; ".join(filter(None, (run.waits, *more))))


def _problem(name: str, found: Any, project: str | None) -> str | None:
    """Return why a name does not mean one agent to a run of a project; None if it does."""
    try:
        agent_named(found, name, near=project)
    except (UnknownAgent, AmbiguousAgent) as problem:
        return problem.message
    return None
