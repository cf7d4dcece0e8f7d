"""Budget loans: a run lends a part of its budget to an entry that it spawns.

A run was admitted because the most it may use was free, and that amount stays reserved for it. If its child needed
free budget besides, a parent could wait for ever for a child that its own reservation blocks. So the loan moves: it
is subtracted from the parent's ceiling (or, without one, from its expected usage) and becomes the child's ceiling, in
one transaction.

    project budget 100      parent may use 100, has used 10        reserved for it 90
    lends 40 to a child     parent may use 60                      reserved 50 + 40 = 90: no other run can take it
    the child used 25       parent may use 60 + 15                 reserved 65, used 10 + 25

The rest comes returned when the parent collects it. Until then the parent's ceiling is lower than it might be, never
higher, so no token can be spent twice. A retried child has what its earlier attempts left, not the whole loan again,
for which there might be no room.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rota.errors import LedgerInvalidAmount
from rota.kernel.journal import append
from rota.kernel.rows import Needs, decode_needs, decode_spent
from rota.model.checks import Checks
from rota.model.events import BudgetLent, BudgetReturned
from rota.store import Transaction
from rota.store.statements import loans as sql

__all__ = ["collect", "lend", "reduce_after_attempt"]

_checks = Checks("Loan", LedgerInvalidAmount)
_encode = msgspec.json.Encoder(order="deterministic").encode


def lend(tx: Transaction, parent_id: int, child: tuple[int, int], lent: Mapping[str, int], now: float) -> None:
    """Move budget from a parent to a child (sched_id, pid); raises if the parent does not have that much left."""
    needs, spent = _needs_and_spent(tx, parent_id)
    for dim, amount in lent.items():
        left = needs.requested(dim, 0) - spent.get(dim, 0)
        if amount > left:
            raise _checks.refuse("lent", f"({amount:,} {dim}) is more than the {max(left, 0):,} left to the run")
    _write(tx, parent_id, _changed(needs, {dim: -amount for dim, amount in lent.items()}))
    sched_id, pid = child
    event_id = append(tx, BudgetLent(sched_id=sched_id, parent_id=parent_id, amounts=dict(lent)), now=now, pid=pid)
    tx.run(sql.LEND, (sched_id, parent_id, _encode(lent).decode(), event_id))


def reduce_after_attempt(tx: Transaction, sched_id: int) -> None:
    """Subtract what a child has spent from its loan, before its next attempt."""
    rows = tx.run(sql.LOAN, (sched_id,))
    if rows:
        lent: dict[str, int] = msgspec.json.decode(rows[0][0])
        needs, spent = _needs_and_spent(tx, sched_id)
        used = {dim: -min(spent[dim], needs.ceiling.get(dim, 0)) for dim in lent if spent.get(dim)}
        _write(tx, sched_id, _changed(needs, used))


def collect(tx: Transaction, parent_id: int, parent_pid: int, now: float) -> dict[str, int]:
    """Return unused loans of ended children to their parent; returns the total per dimension."""
    returned: dict[str, int] = {}
    for sched_id, pid, text, since_id in tx.run(sql.SETTLED, (parent_id,)):
        lent: dict[str, int] = msgspec.json.decode(text)
        used = _used(tx, sched_id, pid, since_id)
        left = {dim: amount - used.get(dim, 0) for dim, amount in lent.items() if amount > used.get(dim, 0)}
        tx.run(sql.FORGET, (sched_id,))
        append(tx, BudgetReturned(sched_id=sched_id, parent_id=parent_id, amounts=left), now=now, pid=parent_pid)
        for dim, amount in left.items():
            returned[dim] = returned.get(dim, 0) + amount
    if returned:
        _write(tx, parent_id, _changed(_needs_and_spent(tx, parent_id)[0], returned))
    return returned


def _used(tx: Transaction, sched_id: int, pid: int, since_id: int) -> dict[str, int]:
    """Sum up what an entry was charged in all its attempts, from the journal."""
    used: dict[str, int] = {}
    for (text,) in tx.run(sql.CHARGED, (pid, since_id, sched_id)):
        amounts: dict[str, int] = msgspec.json.decode(text)
        for dim, amount in amounts.items():
            used[dim] = used.get(dim, 0) + amount
    return used


def _changed(needs: Needs, by: Mapping[str, int]) -> Needs:
    """Return needs with changed amounts: of the ceiling if there is one, else of the expected usage."""
    ceiling, expected = dict(needs.ceiling), dict(needs.expected)
    for dim, amount in by.items():
        target = ceiling if dim in ceiling else expected
        target[dim] = target.get(dim, 0) + amount
    changes: dict[str, Any] = {"ceiling": ceiling, "expected": expected}
    return msgspec.structs.replace(needs, **changes)


def _needs_and_spent(tx: Transaction, sched_id: int) -> tuple[Needs, Mapping[str, int]]:
    """Return an entry's needs and what its run has spent so far."""
    ((needs, spent),) = tx.run(sql.STANDING, (sched_id,))
    return decode_needs(needs), decode_spent(spent)


def _write(tx: Transaction, sched_id: int, needs: Needs) -> None:
    tx.run(sql.SET_NEEDS, (_encode(needs).decode(), sched_id))
