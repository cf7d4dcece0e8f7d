"""Lending: a run gives a part of its budget to work that it spawns.

A run was admitted because what it may use at most was free, and that much stays reserved for it. If its child had to
find room beside that, a parent could wait for ever for a child that its own reservation keeps out. So what is lent
moves: it is taken off the parent's ceiling (or, without one, off what it was expected to use) and becomes the child's
ceiling, in one transaction.

    project budget 100      parent may use 100, has used 10        reserved for it 90
    lends 40 to a child     parent may use 60                      reserved 50 + 40 = 90: nobody could come in between
    the child used 25       parent may use 60 + 15                 reserved 65, used 10 + 25

What is left comes back when the parent collects. Until then its ceiling is lower than it might be, never higher, so
nobody can spend the same token twice. A child that is tried again has what its earlier attempts left, not all of it
once more: else there would be no room for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rota.errors import LedgerInvalidAmount
from rota.kernel.journal import append
from rota.kernel.rows import Needs, needs_of, spent_of
from rota.model.checks import Checks
from rota.model.events import BudgetLent, BudgetReturned
from rota.store import Transaction
from rota.store.statements import loans as sql

__all__ = ["after_attempt", "collect", "lend"]

_checks = Checks("Loan", LedgerInvalidAmount)
_encode = msgspec.json.Encoder(order="deterministic").encode


def lend(tx: Transaction, parent_id: int, child: tuple[int, int], lent: Mapping[str, int], now: float) -> None:
    """Take off the parent what it lends to a child (its sched_id and pid), which must be there to be lent."""
    needs, spent = _standing(tx, parent_id)
    for dim, amount in lent.items():
        left = needs.ask(dim, 0) - spent.get(dim, 0)
        if amount > left:
            raise _checks.refuse("lent", f"({amount:,} {dim}) is more than the {max(left, 0):,} that the run has left")
    _write(tx, parent_id, _moved(needs, {dim: -amount for dim, amount in lent.items()}))
    sched_id, pid = child
    event_id = append(tx, BudgetLent(sched_id=sched_id, parent_id=parent_id, amounts=dict(lent)), now=now, pid=pid)
    tx.run(sql.LEND, (sched_id, parent_id, _encode(lent).decode(), event_id))


def after_attempt(tx: Transaction, sched_id: int) -> None:
    """A child will be tried again: what it has spent is gone from what it was lent."""
    rows = tx.run(sql.LOAN, (sched_id,))
    if rows:
        lent: dict[str, int] = msgspec.json.decode(rows[0][0])
        needs, spent = _standing(tx, sched_id)
        used = {dim: -min(spent[dim], needs.ceiling.get(dim, 0)) for dim in lent if spent.get(dim)}
        _write(tx, sched_id, _moved(needs, used))


def collect(tx: Transaction, parent_id: int, parent_pid: int, now: float) -> dict[str, int]:
    """Give a parent back what its ended children left of what it had lent them; the sum is the answer."""
    back: dict[str, int] = {}
    for sched_id, pid, text, since_id in tx.run(sql.SETTLED, (parent_id,)):
        lent: dict[str, int] = msgspec.json.decode(text)
        used = _used(tx, sched_id, pid, since_id)
        left = {dim: amount - used.get(dim, 0) for dim, amount in lent.items() if amount > used.get(dim, 0)}
        tx.run(sql.FORGET, (sched_id,))
        append(tx, BudgetReturned(sched_id=sched_id, parent_id=parent_id, amounts=left), now=now, pid=parent_pid)
        for dim, amount in left.items():
            back[dim] = back.get(dim, 0) + amount
    if back:
        _write(tx, parent_id, _moved(_standing(tx, parent_id)[0], back))
    return back


def _used(tx: Transaction, sched_id: int, pid: int, since_id: int) -> dict[str, int]:
    """What an entry was charged in all its attempts, from the journal."""
    used: dict[str, int] = {}
    for (text,) in tx.run(sql.CHARGED, (pid, since_id, sched_id)):
        amounts: dict[str, int] = msgspec.json.decode(text)
        for dim, amount in amounts.items():
            used[dim] = used.get(dim, 0) + amount
    return used


def _moved(needs: Needs, by: Mapping[str, int]) -> Needs:
    """Needs with other amounts, where they stood: a ceiling if there is one, else what was expected."""
    ceiling, expected = dict(needs.ceiling), dict(needs.expected)
    for dim, amount in by.items():
        where = ceiling if dim in ceiling else expected
        where[dim] = where.get(dim, 0) + amount
    changes: dict[str, Any] = {"ceiling": ceiling, "expected": expected}
    return msgspec.structs.replace(needs, **changes)


def _standing(tx: Transaction, sched_id: int) -> tuple[Needs, Mapping[str, int]]:
    """What an entry asks for, and what its run has spent so far."""
    ((needs, spent),) = tx.run(sql.STANDING, (sched_id,))
    return needs_of(needs), spent_of(spent)


def _write(tx: Transaction, sched_id: int, needs: Needs) -> None:
    tx.run(sql.SET_NEEDS, (_encode(needs).decode(), sched_id))
