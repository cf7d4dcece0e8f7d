"""The budgets of one run: joins the account, the gates before the components and the entries of durable lanes.

Lines are read once per epoch, and again after each charge in this process. A run without budgets does nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from rota.graph.accounts import MemoryAccount, RunAccount, StoreAccount, lines_for
from rota.graph.budget_gate import NO_ASK, RECHECK_S, BudgetGate, over_budget_line, over_budget_text
from rota.graph.commit import Committer
from rota.graph.messages import Inputs
from rota.graph.nodes import Node
from rota.graph.reports import RunStopped
from rota.graph.spec import DURABLE_LANE_TYPES
from rota.model.graph_budgets import GraphAccount, GraphBudgetLine, used_up

__all__ = ["RunBudgets"]

NESTED_RECHECK_S = 30.0  # of one whose run is a node of another: it is not woken when the budget of that is raised
COORDINATOR_RECHECK_S = 3600.0  # a coordinator that waits is woken when the budget is raised; this is the net below


class RunBudgets:
    """What components may use in one run. Only the run's thread calls it, except for the gates of other lanes."""

    def __init__(  # noqa: PLR0917  # the parts of a run
        self,
        account: RunAccount,
        nodes: Mapping[str, Node],
        gates: Mapping[str, BudgetGate],
        checked_at_start: Iterable[Node],
        committer: Committer,
        run_id: str,
        *,
        has_budgets: bool,
    ) -> None:
        self._account = account
        self._nodes = nodes
        self._gates = gates
        self._committer = committer
        self._run_id = run_id
        self._has_budgets = has_budgets
        self._epoch_id = 0
        for component_id, gate in gates.items():
            self._bind(nodes[component_id], gate)
        for node in checked_at_start:
            node.component.over_budget = partial(self.over, node)

    def _bind(self, node: Node, gate: BudgetGate) -> None:
        gate.over = partial(self.over, node)
        gate.refuse = partial(self._refuse, node)
        gate.hold = partial(self._hold, node)
        if isinstance(self._account, StoreAccount):
            gate.recheck_s = RECHECK_S
        elif not isinstance(self._account, MemoryAccount):
            gate.recheck_s = NESTED_RECHECK_S if self._account.outer_lines else COORDINATOR_RECHECK_S

    # --- the run ---------------------------------------------------------------------------------

    def open(self) -> None:
        """Store the budgets of a run that this process executes itself, once the run is there."""
        if isinstance(self._account, StoreAccount):
            self._account.open()

    def begin_epoch(self, epoch_id: int) -> None:
        """Read what was used and raised meanwhile."""
        self._epoch_id = epoch_id
        if self._has_budgets:
            self._account.refresh()

    @property
    def is_waiting(self) -> bool:
        """Whether a component of this process waits until a budget is raised."""
        return any(gate.waits_for is not None for gate in self._gates.values())

    def waits(self, pending: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
        """Yield which budgets the run waits for: of components in this process, and of these with entries' asks."""
        lines = [gate.waits_for for gate in self._gates.values()]
        if self._account.lines or self._account.outer_lines:
            waiting = (name for name in pending if self._nodes[name].spec.execution.on_over_budget == "wait")
            lines += [self.over(self._nodes[name], pending[name]) for name in waiting]
        for line in dict.fromkeys(filter(None, lines)):
            yield f"budget ({line.sentence()})"

    # --- components ------------------------------------------------------------------------------

    def over(self, node: Node, ask: Mapping[str, int] = NO_ASK) -> GraphBudgetLine | None:
        """Return the budget that holds up a component, if there is one."""
        return over_budget_line(self._account, node.id, is_entry=node.lane.type in DURABLE_LANE_TYPES, ask=ask)

    def _refuse(self, node: Node, inputs: Inputs, line: GraphBudgetLine) -> None:
        may_continue = self._committer.over_budget(node, line, over_budget_text(node.id, line), inputs, self._epoch_id)
        if not may_continue and not node.lane.independent:  # an independent lane sees the failure itself
            raise RunStopped

    def _hold(self, node: Node, line: GraphBudgetLine) -> None:
        text = f"{over_budget_text(node.id, line)}; it waits"
        self._committer.reports.health("over_budget", text, component_id=node.id, lane=node.lane.id)

    # --- entries ---------------------------------------------------------------------------------

    def entry_options(self, node: Node) -> dict[str, Any]:
        """Return the fields of the specs of a component's entries that make them count in the run's budgets."""
        if not self._has_budgets:
            return {}
        waits = node.spec.execution.on_over_budget == "wait"
        return {"account": GraphAccount(self._run_id, node.id, "wait" if waits else "fail")}

    def limits(self, node: Node) -> bool:
        """Whether the entries of a component count in a budget of this run."""
        return self._has_budgets and bool(lines_for(self._account, node.id))

    def must_cancel(self, node: Node, ask: Mapping[str, int]) -> bool:
        """Whether an entry of a component that still waits in the queue can never start: it does not wait for budgets.

        `ask` is what the entry asks for.
        """
        if not self._has_budgets or node.spec.execution.on_over_budget == "wait":
            return False
        return used_up(lines_for(self._account, node.id), ask) is not None

    def commit_stopped(self, node: Node, inputs: Inputs, epoch_id: int, error: str, *, ask: Mapping[str, int]) -> bool:
        """Apply `on_over_budget` to an entry that was stopped or cancelled over budget; False if the run must end."""
        line = self.over(node, ask)
        reason = (
            over_budget_text(node.id, line, ask) if line is not None else f"component {node.id} is over budget: {error}"
        )
        return self._committer.over_budget(node, line, reason, inputs, epoch_id)
