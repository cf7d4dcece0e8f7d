"""What runs ask of named limits while they execute: waiting, held, and covered by charges.

An ask belongs to a claim. While it waits it is only a row; when it is granted (limit_grants.py), its amounts are
charged to the limit. From then on it is *held*, and its `rest` is what no charge of the run has covered yet:

    acquire tokens=900            the limit is charged 900; rest 900
    charge tokens=500             the ledger is charged 500, the limit nothing: 400 of the ask are left
    settle tokens=750             the ledger is charged the other 250; the limit gets 150 back

So a token that was acquired and then charged counts once. When the claim ends, what it held ends with it: a run that
was cancelled, killed or preempted, failed, or lost its claim returns the rest of its asks; a run that completed, or
yielded, has used it.

An amount returns to the limit by itself one period after it was granted. So an ask that is never settled costs no more
than what it asked for, and a refund is only given within that period: later it would be a second one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from rota.kernel import contexts
from rota.kernel.contexts import ContextRow, to_ms, to_ms_up
from rota.kernel.journal import append
from rota.kernel.rows import decode_spent
from rota.model.events import LimitSettled
from rota.store import Transaction
from rota.store.statements import limit_asks as sql

__all__ = ["ASKS_MAX", "START", "AskRow", "asks_of", "cover", "encode_amounts", "end_asks", "refund"]

ASKS_MAX = 256  # of one run at the same time; a run that settles none forgets the oldest
START = "start"  # the key of the row which says that the request of the run's start was returned

encode_amounts = msgspec.json.Encoder(order="deterministic").encode


class AskRow(NamedTuple):
    """One ask of a run: the columns of `statements.limit_asks.GET`."""

    ask_id: int
    name: str
    asked_text: str
    rest_text: str
    cost: int
    asked_at: float
    granted_at: float | None

    @property
    def asked(self) -> Mapping[str, int]:
        """What was asked for, per unit."""
        return decode_spent(self.asked_text)

    @property
    def rest(self) -> Mapping[str, int]:
        """What no charge has covered, per unit."""
        return decode_spent(self.rest_text)


def asks_of(tx: Transaction, sched_id: int, token: int | None) -> list[AskRow]:
    """Return the asks of a claim, oldest first."""
    return [AskRow(*row) for row in tx.run(sql.OF_RUN, (sched_id, token))]


def cover(tx: Transaction, sched_id: int, token: int | None, amounts: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Cover a charge by what the run holds of each limit; returns by limit and unit how much is covered."""
    covered: dict[str, dict[str, int]] = {}
    for ask in asks_of(tx, sched_id, token):
        if ask.granted_at is None:
            continue
        so_far, rest = covered.setdefault(ask.name, {}), dict(ask.rest)
        for unit, left in ask.rest.items():
            part = min(left, amounts.get(unit, 0) - so_far.get(unit, 0))
            if part > 0:
                so_far[unit] = so_far.get(unit, 0) + part
                rest[unit] = left - part
        if rest != ask.rest:
            tx.run(sql.SET_REST, (encode_amounts(rest).decode(), ask.ask_id))
    return covered


def refund(
    tx: Transaction, limits: list[ContextRow], unused: Mapping[str, int], granted_at: float, now: float
) -> dict[str, int]:
    """Return what an ask did not use to its limit, unless that has returned by itself; negative, by context id."""
    at_ms = to_ms(now)
    moved: dict[str, int] = {}
    for limit in limits:
        amount = unused.get(limit.unit, 0)
        if amount > 0 and to_ms_up(granted_at) + limit.allowance.period > at_ms:
            moved |= contexts.charge(tx, [limit], {limit.unit: -amount}, now)
    if moved:
        tx.effects.wake_parked = True
    return moved


def end_asks(
    tx: Transaction, sched_id: int, token: int | None, project_id: str | None, now: float, *, is_used: bool
) -> None:
    """End the asks of a claim that ends: what it held counts as used, or returns."""
    asks = asks_of(tx, sched_id, token)
    for ask in asks:
        if ask.granted_at is not None and not is_used:
            limits = contexts.limits_named(tx, ask.name, project_id)
            moved = refund(tx, limits, ask.rest, ask.granted_at, now)
            used = {unit: amount - ask.rest.get(unit, 0) for unit, amount in ask.asked.items()}
            append(tx, LimitSettled(sched_id=sched_id, name=ask.name, used=used, contexts=moved, by="end"), now=now)
        elif ask.granted_at is None:
            tx.effects.wake_parked = True  # the next one is first
    if asks:
        tx.run(sql.REMOVE_OF_RUN, (sched_id,))
