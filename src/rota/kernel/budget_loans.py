"""Budget loans: a run lends a part of its budget to an entry that it spawns.

A run was admitted because the most it may use was free, and that amount stays reserved for it. If its child needed
free budget besides, a parent could wait for ever for a child that its own reservation blocks. So the loan moves: it
is subtracted from the parent's ceiling (or, without one, from its expected usage) and becomes the child's ceiling, in
one transaction.

    project budget 100      parent may use 100, has used 10        reserved 90
    lends 40 to a child     parent may use 60                      reserved 50 + 40 = 90
    the child used 25       parent may use 60                      reserved 50 + 15 = 65, used 10 + 25
    the parent collects     parent may use 60 + 15                 reserved 65

**The rest of a loan** is what the child may still use or has left: its ceiling minus what it has spent, whether it is
queued, running or ended. A retried child has what its earlier attempts left; what it lent to its own children is their
rest and no longer its own. So the rest is read from the child's row and needs no counter.

**A loan is open** from `lend` until the parent collects it, or until the claim under which the parent lent it ends. All
this time its rest is reserved: a token that may return to the parent must not be free for another run. It is reserved
in every account that the parent's own reservation is in (its agent's ledger, its project, all projects, its contexts),
and there only once: a child that runs reserves its rest itself in the accounts that it shares with its parent, and in
accounts of its own besides. A child that is claimed asks for nothing in the accounts in which its loan is reserved. If
the parent lives on an open loan itself, what it lends may return through it to its own lender; so it stays reserved in
that one's accounts, too, and so on upwards.

**When the parent's claim ends** nothing can return to it any more, so its loans end: children keep their ceiling, which
is reserved by their own claims as for any entry, and the rest of ended children is free. If the parent is retried, its
next attempt asks for its whole ceiling again. A parent that lives on a loan itself has what it and its children left of
that loan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from rota.errors import LedgerInvalidAmount
from rota.kernel import usage_windows
from rota.kernel.journal import append
from rota.kernel.rows import Needs, decode_needs, decode_spent
from rota.model.checks import Checks
from rota.model.events import BudgetLent, BudgetReturned
from rota.store import Transaction
from rota.store.statements import loans as sql

__all__ = [
    "OpenLoan",
    "collect",
    "end_attempt",
    "lend",
    "open_loans",
    "reserved_for_loans",
    "reserved_in_budgets",
    "reserved_on_ledger",
]

_ENDED = frozenset({"completed", "expired", "cancelled"})
_checks = Checks("Loan", LedgerInvalidAmount)
_encode = msgspec.json.Encoder(order="deterministic").encode


class Lender(NamedTuple):
    """A live run to which the rest of a loan may return."""

    sched_id: int
    pid: int
    project_id: str | None
    needs_text: str | None


class OpenLoan(NamedTuple):
    """A loan whose rest may return to its parent."""

    sched_id: int
    pid: int
    project_id: str | None
    state: str
    needs_text: str | None
    spent_text: str | None
    lent_text: str
    lenders: tuple[Lender, ...]  # the parent; if it lives on an open loan itself, also the parent's lenders

    @property
    def is_live(self) -> bool:
        """Whether the child runs."""
        return self.state == "dispatched"

    @property
    def rest(self) -> dict[str, int]:
        """What the child has not used, per dimension."""
        return _rest(self.lent_text, self.needs_text, self.spent_text)

    def is_reserved_in(self, owner: str) -> bool:
        """Whether the loan is reserved in the budgets of a project, or of all projects."""
        return owner == usage_windows.ALL_PROJECTS or any(lender.project_id == owner for lender in self.lenders)

    def is_reserved_on(self, pid: int) -> bool:
        """Whether the loan is reserved on an agent's ledger."""
        return any(lender.pid == pid for lender in self.lenders)


def open_loans(tx: Transaction) -> list[OpenLoan]:
    """Return the loans of all live runs that they have not collected."""
    rows = {row[0]: row for row in tx.run(sql.OPEN)}
    loans = []
    for sched_id, pid, project_id, state, needs_text, spent_text, lent_text, *parent in rows.values():
        lenders = [Lender(*parent)]
        # a parent is older than its child; one that is not, in a damaged row, ends the chain
        while (above := rows.get(lenders[-1].sched_id)) is not None and above[7] < above[0]:
            lenders.append(Lender(*above[7:]))
        loan = OpenLoan(sched_id, pid, project_id, state, needs_text, spent_text, lent_text, tuple(lenders))
        loans.append(loan)
    return loans


def reserved_for_loans(
    loans: Iterable[OpenLoan], *, is_lenders: Callable[[OpenLoan], bool], is_childs: Callable[[OpenLoan], bool]
) -> dict[str, int]:
    """Return what loans reserve in one account, besides the reservations of live claims there.

    The two functions say whether the account is one of a lender's, and one of the child's.
    """
    reserved: dict[str, int] = {}
    for loan in loans:
        if is_lenders(loan) and not (loan.is_live and is_childs(loan)):  # otherwise the child's own claim counts it
            _add(reserved, loan.rest)
    return reserved


def reserved_on_ledger(loans: Iterable[OpenLoan], pid: int) -> dict[str, int]:
    """Return what loans reserve on an agent's ledger, besides its live claims."""
    return reserved_for_loans(
        loans, is_lenders=lambda loan: loan.is_reserved_on(pid), is_childs=lambda loan: loan.pid == pid
    )


def reserved_in_budgets(loans: Iterable[OpenLoan], owner: str) -> dict[str, int]:
    """Return what loans reserve in the budgets of a project, or of all projects, besides the live claims."""
    return reserved_for_loans(
        loans,
        is_lenders=lambda loan: loan.is_reserved_in(owner),
        is_childs=lambda loan: owner in (usage_windows.ALL_PROJECTS, loan.project_id),
    )


def lend(tx: Transaction, parent_id: int, child: tuple[int, int], lent: Mapping[str, int], now: float) -> None:
    """Move budget from a parent to a new child (sched_id, pid); raises if the parent does not have that much left."""
    needs, spent = _needs_and_spent(tx, parent_id)
    for dim, amount in lent.items():
        left = needs.requested(dim, 0) - spent.get(dim, 0)
        if amount > left:
            raise _checks.refuse("lent", f"({amount:,} {dim}) is more than the {max(left, 0):,} left to the run")
    _write(tx, parent_id, _changed(needs, {dim: -amount for dim, amount in lent.items()}))
    sched_id, pid = child
    event_id = append(tx, BudgetLent(sched_id=sched_id, parent_id=parent_id, amounts=dict(lent)), now=now, pid=pid)
    tx.run(sql.LEND, (sched_id, parent_id, _encode(lent).decode(), event_id))
    childs, _ = _needs_and_spent(tx, sched_id)
    _write(tx, sched_id, msgspec.structs.replace(childs, lender=parent_id))


def collect(tx: Transaction, parent_id: int, parent_pid: int, token: int, now: float) -> dict[str, int]:
    """Return the rests of ended children to their parent; returns the total per dimension."""
    returned: dict[str, int] = {}
    for loan in _loans_of(tx, parent_id, token):
        if loan.state in _ENDED and loan.returned_text is None:
            rest = {dim: amount for dim, amount in loan.rest.items() if amount}
            tx.run(sql.SETTLE, (_encode(rest).decode(), loan.sched_id))
            event = BudgetReturned(sched_id=loan.sched_id, parent_id=parent_id, amounts=rest)
            append(tx, event, now=now, pid=parent_pid)
            _add(returned, rest)
    if returned:
        _write(tx, parent_id, _changed(_needs_and_spent(tx, parent_id)[0], returned))
    return returned


def end_attempt(tx: Transaction, sched_id: int, token: int | None) -> None:
    """End the loans that a run has given under a claim, and set what its entry may use in its next attempt."""
    needs, spent = _needs_and_spent(tx, sched_id)
    given = _loans_of(tx, sched_id, token or 0)
    own = tx.run(sql.LOAN, (sched_id,))
    change: dict[str, int] = {}
    for loan in given:
        if own:  # what it lent is gone from its own loan, but for the rest of children that have ended
            _add(change, loan.rest if loan.state in _ENDED and loan.returned_text is None else {})
        else:
            _add(change, decode_spent(loan.lent_text))
            _add(change, decode_spent(loan.returned_text), -1)
        if loan.state not in _ENDED:
            _write(tx, loan.sched_id, msgspec.structs.replace(decode_needs(loan.needs_text), lender=None))
    for (text,) in own:
        used = {dim: min(spent[dim], needs.ceiling.get(dim, 0)) for dim in decode_spent(text) if dim in spent}
        _add(change, used, -1)
    if given:
        tx.run(sql.FORGET, (sched_id, token or 0))
    if change:
        _write(tx, sched_id, _changed(needs, change))


class _GivenLoan(NamedTuple):
    """A loan that a run has given: the columns of `statements.loans.GIVEN`."""

    sched_id: int
    state: str
    needs_text: str | None
    spent_text: str | None
    lent_text: str
    returned_text: str | None  # None: it is open

    @property
    def rest(self) -> dict[str, int]:
        """What the child has not used, per dimension."""
        return _rest(self.lent_text, self.needs_text, self.spent_text)


def _loans_of(tx: Transaction, parent_id: int, token: int) -> list[_GivenLoan]:
    """Return the loans that a run gave under a claim. Its token is the id of the event before them."""
    return [_GivenLoan(*row) for row in tx.run(sql.GIVEN, (parent_id, token))]


def _rest(lent_text: str, needs_text: str | None, spent_text: str | None) -> dict[str, int]:
    needs, spent = decode_needs(needs_text), decode_spent(spent_text)
    return {dim: max(0, needs.ceiling.get(dim, 0) - spent.get(dim, 0)) for dim in decode_spent(lent_text)}


def _add(total: dict[str, int], amounts: Mapping[str, int], sign: int = 1) -> None:
    for dim, amount in amounts.items():
        total[dim] = total.get(dim, 0) + sign * amount


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
