"""Budgets of graph runs and of their nodes: which entry counts where, and what a line says.

The budget of a run is the most that all of its entries may use together; the budget of a node the most that all entries
of this node may use in the run. Both are lines of the ledger, in which usage is counted as it is charged. A line with
the node "" is the run's own.

A node may be another graph. What its run uses counts in the budgets of the inner run, and in those of the outer run and
its node: the account of an entry names all of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from rota.errors import LimitExceeded, SchedInvalidPayload
from rota.model.checks import Checks
from rota.model.money import amount_text, dim_text

__all__ = [
    "NESTED_MAX",
    "NODE_CHARS_MAX",
    "GraphAccount",
    "GraphBudgetLine",
    "GraphPlace",
    "budget_owner",
    "left_of",
    "used_up",
]

_NOTHING: Mapping[str, int] = {}
NESTED_MAX = 32  # runs around a run whose budgets count what it uses
NODE_CHARS_MAX = 256  # of a node's name
_account = Checks("GraphAccount", SchedInvalidPayload)


class GraphPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A graph run and a node of it, in whose budgets an entry counts."""

    run_id: str
    node: str = ""  # "": the run's coordinator, which counts in the budget of the run only
    on_over: Literal["fail", "wait"] = "fail"  # wait: a run over the budget goes back to the queue


class GraphAccount(GraphPlace, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The graph run and the node in whose budgets an entry counts; what it spawns counts there, too.

    If the run is that of a node of another run, the entry counts in the budgets of that node and run as well.
    """

    outer: tuple[GraphPlace, ...] = ()  # the innermost first; the store fills it in

    @property
    def places(self) -> tuple[GraphPlace, ...]:
        """All runs and nodes in whose budgets an entry with this account counts."""
        return (GraphPlace(self.run_id, self.node, self.on_over), *self.outer)

    @property
    def held_by(self) -> tuple[GraphPlace, ...]:
        """Those whose budgets hold up the entry; a coordinator decides what happens, unless its node waits."""
        return self.places if self.node else tuple(place for place in self.outer if place.on_over == "wait")

    @property
    def around(self) -> GraphAccount | None:
        """The account of the node that an entry with this account coordinates a run of; None if it is none."""
        places = self.places if self.node else self.outer
        return GraphAccount(places[0].run_id, places[0].node, places[0].on_over, places[1:]) if places else None

    def inside(self, around: GraphAccount | None) -> GraphAccount:
        """Return the account of an entry that counts in those of another account as well."""
        if around is None:
            return self
        outer = around.outer if around.run_id == self.run_id else around.places
        if len(outer) > NESTED_MAX:
            raise LimitExceeded("NESTED_MAX", NESTED_MAX, len(outer), field="account")
        return msgspec.structs.replace(self, outer=outer)

    def check(self) -> None:
        """Raise unless the names can be stored. Not done when a stored row is decoded: that must not raise."""
        if self.outer:
            raise _account.refuse("outer", "is filled in by the store")
        _account.text("run_id", self.run_id)
        if self.node != "":
            _account.text("node", self.node, NODE_CHARS_MAX)
        _account.one_of("on_over", self.on_over, ("fail", "wait"))


class GraphBudgetLine(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of a graph run, or of one of its nodes, in one dimension."""

    run_id: str
    node: str = ""  # "": of the whole run
    dim: str
    limit: int
    used: int = 0
    reserved: int = 0  # by live claims
    project_id: str | None = None  # of the run

    @property
    def left(self) -> int:
        """What was not used yet; negative if more was used than allowed."""
        return self.limit - self.used

    @property
    def command(self) -> str:
        """A command that raises it, to twice what was allowed or used."""
        amount = 2 * max(self.limit, self.used, 1)
        option = f" --node {shlex.quote(self.node)}" if self.node else ""
        return f"rota graph budget {shlex.quote(self.run_id)} {self.dim}={amount}{option}"

    def sentence(self) -> str:
        """Return the line in numbers."""
        owner = f"node {self.node}" if self.node else f"run {self.run_id}"
        used, limit = amount_text(self.dim, self.used), amount_text(self.dim, self.limit)
        return f"{dim_text(self.dim)} of {owner}: {used} of {limit} used"


def budget_owner(run_id: str, node: str) -> str:
    """Return the name of a run, or of a node in its run, in reasons and events."""
    return f"{run_id}/{node}" if node else run_id


def left_of(lines: Iterable[GraphBudgetLine]) -> dict[str, int]:
    """Return what is left per dimension, by the strictest of some lines."""
    left: dict[str, int] = {}
    for line in lines:
        left[line.dim] = min(line.left, left.get(line.dim, line.left))
    return left


def used_up(lines: Iterable[GraphBudgetLine], ask: Mapping[str, int] = _NOTHING) -> GraphBudgetLine | None:
    """Return the line of which the least is left, if less is left than is asked for: nothing more may start.

    Usage only grows, so what does not fit now fits when the budget is raised, not before. The least ask is 1.
    """
    found = [line for line in lines if line.left < max(1, ask.get(line.dim, 1))]
    return min(found, key=lambda line: (line.left, line.node, line.dim), default=None)
