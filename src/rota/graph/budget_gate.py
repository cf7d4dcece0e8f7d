"""Over budget: what happens to a component whose own budget, or whose run's, is used up.

In runs that have budgets, a component starts nothing more while nothing is left of one, and its `on_over_budget`
decides about the invocations that become ready:

    fail    each of them fails with the reason in numbers; `on_error` decides whether the run ends
    wait    they stay where they are: on the edges before the component, or in the queue as entries that no claim takes
    EDGE    a message with the reason is published on this edge, in place of what the component would have published

A component in the run's own process that takes no `context` cannot charge anything, and is never held up. One that does
is held up when more was used than allowed; an entry, which needs at least a little, also when exactly all of it was.
The gate stands before the trigger of a component that waits, and of one whose invocations become entries; others are
checked when each invocation starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from rota.graph.accounts import RunAccount, lines_for
from rota.graph.messages import Inputs
from rota.graph.reports import ReportedFailure
from rota.graph.triggers import ComponentTrigger, WrappedTrigger
from rota.model.graph_budgets import GraphBudgetLine, used_up

__all__ = [
    "RECHECK_S",
    "BudgetGate",
    "StartedOverBudget",
    "over_budget_line",
    "over_budget_message",
    "over_budget_text",
]


NO_ASK: Mapping[str, int] = {}
RECHECK_S = 5.0  # how late a run notices that a budget was raised for which it waits in its own process


def over_budget_line(
    account: RunAccount, node: str, *, is_entry: bool, ask: Mapping[str, int] = NO_ASK
) -> GraphBudgetLine | None:
    """Return the line that holds up a component, if there is one; `ask` is what its entry asks for."""
    line = used_up(lines_for(account, node), ask)
    return line if line is None or is_entry or line.left < 0 else None


def over_budget_text(node: str, line: GraphBudgetLine, ask: Mapping[str, int] = NO_ASK) -> str:
    """Return why a component is over budget, with a command that changes it."""
    asked = f", and {ask.get(line.dim, 1):,} more are asked for" if line.left > 0 else ""
    return f"component {node} is over budget: {line.sentence()}{asked}; raise it: {line.command}"


def over_budget_message(node: str, line: GraphBudgetLine | None, reason: str) -> dict[str, Any]:
    """Return the payload that is published on the edge which on_over_budget names."""
    numbers = (
        {} if line is None else {"of": line.node or "run", "dim": line.dim, "used": line.used, "limit": line.limit}
    )
    return {"over_budget": node, "reason": reason, **numbers}


class StartedOverBudget(ReportedFailure):
    """An invocation that did not start: nothing is left of a budget of its component or its run."""

    def __init__(self, node: str, line: GraphBudgetLine) -> None:
        super().__init__(over_budget_text(node, line))
        self.line = line


class BudgetGate(WrappedTrigger):
    """A trigger that is not ready while its component is over budget."""

    def __init__(self, inner: ComponentTrigger, *, waits: bool) -> None:
        super().__init__(inner)
        self._waits = waits
        self.over: Callable[[], GraphBudgetLine | None] = lambda: None  # set when the run is wired
        self.refuse: Callable[[Inputs, GraphBudgetLine], None] = lambda _inputs, _line: None
        self.hold: Callable[[GraphBudgetLine], None] = lambda _line: None
        self.waits_for: GraphBudgetLine | None = None  # what it waits for, while something is ready behind it
        self.recheck_s = math.inf  # how often to look whether the budget was raised
        self._checked_at_s = 0.0
        self._passed_in = -1  # the iteration in which it let an invocation pass
        self.is_timed = inner.is_timed or waits

    def due_at_s(self, now_s: float, *, timers: bool = True) -> float:
        """Return when the inner trigger is due; of one that waits, when to look again."""
        if self.waits_for is not None:
            return self._checked_at_s + self.recheck_s
        if self._passed_in >= 0 and self._inner.may_be_ready:
            return -math.inf
        return self._inner.due_at_s(now_s, timers=timers)

    def next(self, now_s: float, iteration_id: int, /) -> Inputs | None:
        """Return what the inner trigger returns, unless the component is over budget."""
        line = self.over()
        if line is None:
            self.waits_for = None
            if self._waits and iteration_id == self._passed_in:
                return None  # one at a time: it may be over budget after this one
            inputs = self._inner.next(now_s, iteration_id)
            self._passed_in = iteration_id if inputs is not None else -1
            return inputs
        if self._waits:
            self._checked_at_s = now_s
            if self._inner.may_be_ready and self.waits_for is None:
                self.waits_for = line
                self.hold(line)
            return None
        while (inputs := self._inner.next(now_s, iteration_id)) is not None:
            self.refuse(inputs, line)
        return None
