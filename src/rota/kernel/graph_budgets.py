"""The budgets of graph runs and of their nodes, as lines of the ledger.

The coordinator of a graph run holds no claim while the run waits, so the budget of a run cannot hang on a claim, as a
loan does (budget_loans.py). It is a line of its own, with what was used so far, and each node may have one, too:

    run r1           tokens    100,000      61,000 used
    run r1, writer   tokens     20,000      11,000 used

An entry that counts there names its run and node (`Needs.account`), and so does what it spawns. Its charges move both
lines in the transaction in which they move the ledger of its agent: whatever is killed, each charge counts once. What
live claims of the run may still use is derived from the claims, as for every budget. A node's entry is not claimed
while its ask does not fit into both lines; the coordinator's entry is, because it decides what happens then.

A node may be another graph. The account of the entries of the inner run then names the outer run and its node, too, and
a charge moves all of these lines. The inner coordinator decides what happens over the budgets of the outer run as over
its own; only if the outer node waits for its budget, the whole inner run does: its coordinator is not claimed.

A line can be raised at any time (`set_budget`), and entries that wait for it go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import product

import msgspec

from rota.errors import LedgerInvalidAmount, LimitExceeded
from rota.kernel import affinity
from rota.kernel.environment import KernelEnvironment
from rota.kernel.grants import may_reach
from rota.kernel.journal import append
from rota.kernel.rows import Needs, decode_needs, decode_spent
from rota.model.checks import DIMS_MAX, Checks
from rota.model.events import GraphBudgetSet, LedgerBreached
from rota.model.graph_budgets import NODE_CHARS_MAX, GraphAccount, GraphBudgetLine, GraphPlace, budget_owner
from rota.store import Row, Transaction
from rota.store.statements import budgets as budget_sql
from rota.store.statements import graph_budgets as sql
from rota.store.statements import loans as loan_sql
from rota.store.statements import queue as queue_sql

__all__ = [
    "LINES_MAX",
    "account_around",
    "charge_lines",
    "check_account",
    "count_in",
    "drop",
    "find_run",
    "forget_charges",
    "is_new_charge",
    "lines_of",
    "open_lines",
    "read_lines",
    "set_line",
    "with_reserved",
]

LINES_MAX = 10_000  # of one run
_checks = Checks("GraphBudget", LedgerInvalidAmount)
_encode = msgspec.json.Encoder(order="deterministic").encode


def check_account(tx: Transaction, account: GraphAccount, project_id: str | None) -> None:
    """Refuse an entry of a project that the run it would count in may not reach."""
    rows = tx.run(sql.RUN_OWNER, (account.run_id,))
    if rows and not may_reach(tx, rows[0][1], project_id):
        raise _checks.refuse("account", f"names a run that may not use this agent: {account.run_id!r}")


def count_in(tx: Transaction, sched_id: int, account: GraphAccount) -> None:
    """Make an entry count in the budgets of a run that began when it was claimed."""
    ((needs_text, _),) = tx.run(loan_sql.STANDING, (sched_id,))
    needs = msgspec.structs.replace(decode_needs(needs_text), account=account)
    tx.run(loan_sql.SET_NEEDS, (_encode(needs).decode(), sched_id))


def account_around(tx: Transaction, sched_id: int) -> GraphAccount | None:
    """Return the account of the node that a coordinator's run is, if it is one of another run."""
    rows = tx.run(loan_sql.STANDING, (sched_id,))
    account = decode_needs(rows[0][0]).account if rows else None
    return None if account is None else account.around


def find_run(tx: Transaction, run_id: str) -> int:
    """Return the agent of a graph run; raises if there is no such run."""
    rows = tx.run(sql.RUN_OWNER, (run_id,))
    if not rows:
        raise _checks.refuse("run_id", f"{run_id!r} is no graph run of this store; `rota graph ps` lists them")
    return int(rows[0][0])


# --- lines ---------------------------------------------------------------------------------------


def open_lines(
    tx: Transaction, run_id: str, budgets: Mapping[str, Mapping[str, int]], now: float, pid: int | None = None
) -> None:
    """Give a run (node "") and its nodes their budgets; lines that exist stay as they are, with what was used."""
    if sum(map(len, budgets.values())) > LINES_MAX:
        raise LimitExceeded("LINES_MAX", LINES_MAX, sum(map(len, budgets.values())), field="budget")
    for node, amounts in budgets.items():
        for dim, amount in amounts.items():
            _check(node, dim, amount)
            if tx.run(sql.OPEN, (run_id, node, dim, amount)):
                append(tx, GraphBudgetSet(run_id=run_id, node=node, dim=dim, limit=amount), now=now, pid=pid)


def set_line(tx: Transaction, env: KernelEnvironment, line: GraphBudgetLine, now: float) -> None:
    """Set a budget of a run or a node; what was used stays. Entries that wait for it, and the coordinator, go on."""
    run_id, node, dim, limit = line.run_id, line.node, line.dim, line.limit
    _check(node, dim, limit)
    known = {(line.node, line.dim) for line in read_lines(tx, run_id)}
    if (node, dim) not in known and sum(each[0] == node for each in known) >= DIMS_MAX:
        raise LimitExceeded("dims_max", DIMS_MAX, DIMS_MAX + 1, field="dim")
    tx.run(sql.SET, (run_id, node, dim, limit))
    append(tx, GraphBudgetSet(run_id=run_id, node=node, dim=dim, limit=limit), now=now, correlation_id=run_id)
    tx.effects.wake_parked = True
    waiting = tx.run(sql.COORDINATOR_WAITING, (run_id,))  # perhaps for this: a component of its process may wait
    if waiting:
        tx.run(queue_sql.WAKE, (now, waiting[0][0]))
        affinity.record_released(tx, env, "time", waiting, now)


def _check(node: str, dim: str, amount: int) -> None:
    if node != "":
        _checks.text("node", node, NODE_CHARS_MAX)
    _checks.name("dim", dim)
    _checks.whole("limit", amount, 0)


def drop(tx: Transaction, run_id: str) -> None:
    """Delete the budgets of a run that is forgotten."""
    tx.run(sql.DROP, (run_id,))


def read_lines(tx: Transaction, run_id: str) -> list[GraphBudgetLine]:
    """Return the budgets of a run and of its nodes, without reservations."""
    return [_line(row) for row in tx.run(sql.LINES, (run_id,))]


def lines_of(tx: Transaction, places: Iterable[GraphPlace]) -> list[GraphBudgetLine]:
    """Return the lines of nodes and of their runs."""
    return [_line(row) for place in places for row in tx.run(sql.LINES_OF_NODE, (place.run_id, place.node))]


def with_reserved(lines: Iterable[GraphBudgetLine], live: Iterable[Row]) -> list[GraphBudgetLine]:
    """Return lines with what live claims reserve; `live` has the rows of `statements.claims.LIVE`."""
    claims = [(decode_needs(needs), decode_spent(spent), count) for _, _, _, needs, spent, count in live]
    return [_reserved(line, claims) for line in lines]


def _reserved(line: GraphBudgetLine, claims: list[tuple[Needs, Mapping[str, int], int]]) -> GraphBudgetLine:
    reserved = sum(
        count * needs.reserved(line.dim, 1, spent)
        for needs, spent, count in claims
        if counts_in(needs.account, line) and needs.account is not None and needs.account.node
    )
    return msgspec.structs.replace(line, reserved=reserved)


def counts_in(account: GraphAccount | None, line: GraphBudgetLine) -> bool:
    """Whether an entry with this account counts in a line."""
    return account is not None and any(
        place.run_id == line.run_id and line.node in ("", place.node) for place in account.places
    )


def _line(row: Row) -> GraphBudgetLine:
    run_id, node, dim, amount, used, project_id = row
    return GraphBudgetLine(run_id=run_id, node=node, dim=dim, limit=amount, used=used, project_id=project_id)


# --- charges -------------------------------------------------------------------------------------


def is_new_charge(tx: Transaction, run_id: str, key: str) -> bool:
    """Remember the key of a charge that has no claim; False if the run has charged with it.

    It is kept under the fence of the run, as those of an entry are under the entry: the negative of it is no entry.
    """
    ((_pid, _project_id, fence),) = tx.run(sql.RUN_OWNER, (run_id,))
    return bool(tx.run(budget_sql.CHARGE_KEY_ADD, (-fence, key)))


def forget_charges(tx: Transaction, fence: int) -> None:
    """Forget the keys of charges that the process with this fence has made."""
    tx.run(budget_sql.CHARGE_KEYS_REMOVE, (-fence,))


def charge_lines(
    tx: Transaction, account: GraphAccount, amounts: Mapping[str, int], now: float, pid: int
) -> GraphBudgetLine | None:
    """Add usage to the lines of an account, and record where it crosses a limit; returns one over which a run stops."""
    over: GraphBudgetLine | None = None
    held_by = account.held_by
    for place, (dim, amount) in product(account.places, amounts.items()):
        for node, limit, used in tx.run(sql.CHARGE, (amount, place.run_id, place.node, dim)):
            if used > limit and place in held_by:
                over = GraphBudgetLine(run_id=place.run_id, node=node, dim=dim, limit=limit, used=used)
            if used - amount <= limit < used:
                owner = budget_owner(place.run_id, node)
                event = LedgerBreached(level="graph", owner=owner, dim=dim, used=used, limit=limit)
                append(tx, event, now=now, pid=pid)
    return over
