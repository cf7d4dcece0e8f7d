"""The account of a run: where its components count what they use, and what they have left.

One protocol, `RunAccount`, with the names of a function's `ctx`. Where a component runs decides which account it has:

    MemoryAccount    a run without a store: counted in this process, against the graph's own budgets
    StoreAccount     a run with a store that this process executes itself: counted in the ledger, for the graph's agent
    ChannelAccount   a run of the fleet: the claim of its coordinator or, on a queue lane, of the entry itself counts

The rules are the same everywhere and are written once, in `model.graph_budgets`: a line is used up when nothing is left
of it, and the strictest line counts. What is charged is recorded also beyond a budget, because it has happened.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from rota.clock import Clock
from rota.errors import ComponentInvalid, LedgerInvalidAmount
from rota.model.checks import Checks
from rota.model.graph_budgets import GraphBudgetLine, left_of
from rota.service.outages import call_through_outage, new_charge_key

__all__ = ["ChannelAccount", "ClaimChannel", "MemoryAccount", "RunAccount", "StoreAccount", "lines_for"]

_checks = Checks("charge", LedgerInvalidAmount)
_log = logging.getLogger("rota.graph")
T = TypeVar("T")


class RunAccount(Protocol):
    """Counts what the components of a run use."""

    @property
    def lines(self) -> tuple[GraphBudgetLine, ...]:
        """The budgets of the run and of its nodes, as of the last charge or `refresh`."""
        ...

    @property
    def outer_lines(self) -> tuple[GraphBudgetLine, ...]:
        """The budgets of the runs around this one, if it is that of a node of another run, and of those nodes."""
        ...

    def refresh(self) -> None:
        """Read the lines again: others may have charged them, and an operator may have raised them."""
        ...

    def charge(self, node: str, amounts: Mapping[str, int], model: str | None = None) -> dict[str, int]:
        """Record usage of a node and return what is left, per dimension."""
        ...

    def remaining(self, node: str) -> dict[str, int]:
        """Return what is left to a node, per dimension."""
        ...

    def acquire(self, name: str, amounts: Mapping[str, int], wait_s: float | None = None) -> str:
        """Wait until a limit has these amounts; return the key to settle them with."""
        ...

    def settle(self, node: str, key: str, used: Mapping[str, int] | None = None) -> dict[str, int]:
        """Record what was used of what was acquired, and return what is left."""
        ...

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """Pause a limit."""
        ...

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the work is."""
        ...

    def log(self, data: bytes) -> None:
        """Append a line to the log."""
        ...


def lines_for(account: RunAccount, node: str) -> list[GraphBudgetLine]:
    """Return the lines in which a node counts."""
    return [*(line for line in account.lines if line.node in ("", node)), *account.outer_lines]


class MemoryAccount:
    """The account of a run without a store. Any thread of the run may use it."""

    outer_lines: tuple[GraphBudgetLine, ...] = ()  # only a coordinator's run is that of a node

    def __init__(
        self,
        run_id: str,
        budgets: Mapping[str, Mapping[str, int]],
        advise: Callable[[str, str], None] = lambda _kind, _text: None,
    ) -> None:
        self._lines = {
            (node, dim): GraphBudgetLine(run_id=run_id, node=node, dim=dim, limit=limit)
            for node, amounts in budgets.items()
            for dim, limit in amounts.items()
        }
        self._advise = advise  # for a health event, of a kind and a text
        self._advised: set[str] = set()
        self._held: dict[str, dict[str, int]] = {}  # acquired and not settled, by key
        self._lock = threading.Lock()
        self.used: dict[str, dict[str, int]] = {}  # by node, with or without a budget

    @property
    def lines(self) -> tuple[GraphBudgetLine, ...]:
        """The budgets of the run and of its nodes."""
        return tuple(self._lines.values())

    def refresh(self) -> None:
        """Nothing: no other process has this account."""

    def charge(self, node: str, amounts: Mapping[str, int], model: str | None = None) -> dict[str, int]:
        """Record usage of a node and return what is left."""
        _checks.amounts("amounts", amounts)
        _checks.optional_name("model", model)
        with self._lock:
            used = self.used.setdefault(node, {})
            for dim, amount in amounts.items():
                used[dim] = used.get(dim, 0) + amount
                for key in dict.fromkeys([("", dim), (node, dim)]):
                    if key in self._lines:
                        line = self._lines[key]
                        self._lines[key] = msgspec.structs.replace(line, used=line.used + amount)
        return self.remaining(node)

    def remaining(self, node: str) -> dict[str, int]:
        """Return what is left to a node."""
        return left_of(lines_for(self, node))

    def set_budget(self, dim: str, limit: int, node: str = "") -> None:
        """Change a budget while the run goes on."""
        _checks.whole("limit", limit, 0)
        with self._lock:
            line = self._lines.get((node, dim)) or GraphBudgetLine(run_id="", node=node, dim=dim, limit=0)
            self._lines[node, dim] = msgspec.structs.replace(line, limit=limit)

    def acquire(self, name: str, amounts: Mapping[str, int], wait_s: float | None = None) -> str:  # noqa: ARG002
        """Grant it at once: a run without a store has no limits. A health event says so, once for each name."""
        _checks.text("name", name)
        _checks.amounts("amounts", amounts)
        with self._lock:
            key = str(len(self._held) + 1)
            self._held[key] = dict(amounts)
            is_new = name not in self._advised
            self._advised.add(name)
        if is_new:
            self._advise("limit_not_enforced", f"limit {name} is not enforced: this run has no store")
        return key

    def settle(self, node: str, key: str, used: Mapping[str, int] | None = None) -> dict[str, int]:
        """Record what was used of what was acquired; requests are no budget."""
        with self._lock:
            asked = self._held.get(key, {})
            self._held[key] = {}
        amounts = {dim: amount for dim, amount in {**asked, **(used or {})}.items() if dim != "requests"}
        return self.charge(node, amounts)

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """Nothing: a run without a store has no limits to pause."""

    def progress(self, fraction: float, text: str = "") -> None:
        """Nothing: a run without a store has no entry to report on."""
        _checks.number("fraction", fraction, 0, 1)
        _log.debug("%.0f%% %s", 100 * fraction, text)

    def log(self, data: bytes) -> None:
        """Write to the logger `rota.graph`."""
        _log.info("%s", data.decode("utf-8", "replace").rstrip("\n"))


class StoreAccount(MemoryAccount):
    """The account of a run that this process executes itself, in a store: its agent's ledger counts."""

    def __init__(
        self,
        api: Any,  # a kernel, a dispatcher or a client: it has the ledger
        run_id: str,
        budgets: Mapping[str, Mapping[str, int]],
        advise: Callable[[str, str], None] = lambda _kind, _text: None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(run_id, budgets, advise)
        self._ledger = api.ledger
        self._run_id = run_id
        self._budgets = budgets
        self._clock: Clock = api.clock
        self._is_stopping = is_stopping

    def open(self) -> None:
        """Store the budgets, once the run is there; those of a resumed run stay as they are."""
        if self._budgets:
            budgets = {node: dict(each) for node, each in self._budgets.items()}
            self._call(lambda: self._ledger.open_graph_budgets(self._run_id, budgets))
        self.refresh()

    def refresh(self) -> None:
        """Read the lines again."""
        lines = self._call(lambda: self._ledger.graph_budgets(self._run_id))
        self._lines = {(line.node, line.dim): line for line in lines}

    def charge(self, node: str, amounts: Mapping[str, int], model: str | None = None) -> dict[str, int]:
        """Record usage of a node in the ledger and return what is left."""
        charge = partial(self._ledger.charge_graph, node=node, model=model, key=new_charge_key())
        lines = self._call(lambda: charge(self._run_id, dict(amounts)))
        self._lines = {(line.node, line.dim): line for line in lines}
        return self.remaining(node)

    def _call(self, call: Callable[[], T]) -> T:
        """Make a call, waiting while the store cannot be reached: that is no fault of the component that counts."""
        return call_through_outage(self._clock, call, self._is_stopping, repeats=True)

    def acquire(self, name: str, amounts: Mapping[str, int], wait_s: float | None = None) -> str:  # noqa: ARG002
        """Raise: only a claim can hold what it asked a limit for."""
        raise ComponentInvalid(
            f"limit {name} cannot be acquired by a run that its own process executes",
            hint="Let a supervisor run it (`rota graph run`), or put the component on a queue or fleet lane.",
        )


class ClaimChannel(Protocol):
    """What a `ChannelAccount` needs of the channel of a run (see fleet/runners/contract.py)."""

    def charge(
        self, amounts: Mapping[str, int], model: str | None = None, *, node: str | None = None
    ) -> dict[str, int]:
        """Record usage and return what is left."""
        ...

    def remaining(self, node: str | None = None) -> dict[str, int]:
        """Return what is left."""
        ...

    def acquire(self, name: str, amounts: Mapping[str, int], wait_s: float | None = None) -> str:
        """Wait until a limit has these amounts."""
        ...

    def settle(self, key: str, used: Mapping[str, int] | None = None, *, node: str | None = None) -> dict[str, int]:
        """Record what was used of what was acquired."""
        ...

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """Pause a limit."""
        ...

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the work is."""
        ...

    def log(self, data: bytes) -> None:
        """Append output to the log."""
        ...


class ChannelAccount:
    """The account of components that run under a claim: that of the coordinator, or that of their own entry."""

    def __init__(
        self,
        channel: ClaimChannel,
        read_lines: Callable[[], Iterable[GraphBudgetLine]] = tuple,
        read_outer_lines: Callable[[], Iterable[GraphBudgetLine]] = tuple,
        *,
        names_nodes: bool,
    ) -> None:
        self._channel = channel
        self._read_lines = read_lines  # the lines of the run; an entry of its own needs none
        self._read_outer_lines = read_outer_lines
        self.outer_lines: tuple[GraphBudgetLine, ...] = ()
        self._names_nodes = names_nodes  # the coordinator says which node has used it; an entry is of one node
        self.lines: tuple[GraphBudgetLine, ...] = ()

    def refresh(self) -> None:
        """Read the lines again."""
        self.lines, self.outer_lines = tuple(self._read_lines()), tuple(self._read_outer_lines())

    def charge(self, node: str, amounts: Mapping[str, int], model: str | None = None) -> dict[str, int]:
        """Record usage of a node and return what is left."""
        if not self._names_nodes:
            return self._channel.charge(amounts, model)
        left = self._channel.charge(amounts, model, node=node)
        self.refresh()
        return self._least(left, node)

    def remaining(self, node: str) -> dict[str, int]:
        """Return what is left to a node."""
        if not self._names_nodes:
            return self._channel.remaining()
        return self._least(self._channel.remaining(node), node)

    def _least(self, left: dict[str, int], node: str) -> dict[str, int]:
        """Return what is left of the claim and of the lines of a node, whichever is less."""
        for dim, amount in left_of(lines_for(self, node)).items():
            left[dim] = min(amount, left.get(dim, amount))
        return left

    def acquire(self, name: str, amounts: Mapping[str, int], wait_s: float | None = None) -> str:
        """Wait until a limit has these amounts."""
        return self._channel.acquire(name, amounts, wait_s)

    def settle(self, node: str, key: str, used: Mapping[str, int] | None = None) -> dict[str, int]:
        """Record what was used of what was acquired."""
        if not self._names_nodes:
            return self._channel.settle(key, used)
        left = self._channel.settle(key, used, node=node)
        self.refresh()
        return self._least(left, node)

    def throttled(self, retry_after_s: float, name: str | None = None) -> None:
        """Pause a limit."""
        self._channel.throttled(retry_after_s, name)

    def progress(self, fraction: float, text: str = "") -> None:
        """Report how far the work is."""
        self._channel.progress(fraction, text)

    def log(self, data: bytes) -> None:
        """Append output to the log."""
        self._channel.log(data)
