"""Alerts: an event when usage reaches a share of a budget.

An agent's budget is a total, so a share is crossed by exactly one charge, which compares its usage before and after.
The budget of a project is per rolling window: usage leaves it and comes back, and a fleet that stays near a share would
cross it every few minutes. So each share is recorded at most once per length of the window, or again after the budget
was changed so that the share was no longer reached.

A charge pays nothing for this. The window that it adds to has the usage at which the next alert is due (`alert_at`),
and the same statement returns both. Only when that is reached are the shares looked up. When usage leaves a window, or
is refunded, `alert_at` becomes 0: the next charge looks up the shares and sets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from math import ceil
from typing import Any, NamedTuple

import msgspec

from rota.decoding import decode_json
from rota.kernel.journal import append
from rota.kernel.rows import DECODE_ERRORS
from rota.kernel.usage_windows import ALL_PROJECTS
from rota.model.budgets import ALERTS, ALERTS_MAX
from rota.model.checks import INTEGER_MAX, Checks
from rota.model.events import BudgetAlert
from rota.store import Transaction
from rota.store.statements import budgets as sql

__all__ = [
    "ReachedWindow",
    "check_alerts",
    "crossed_shares",
    "decode_alerts",
    "encode_alerts",
    "record_agent_alerts",
    "record_window_alerts",
    "still_alerted",
]

SHARE_MAX = 10.0  # an alert may be for usage beyond the budget
_encode = msgspec.json.Encoder().encode


class ReachedWindow(NamedTuple):
    """A window whose usage has reached the amount at which an alert may be due."""

    owner: str
    dim: str
    window_s: float
    used: int


def check_alerts(checks: Checks, alerts: Any) -> tuple[float, ...]:
    """Check the shares of a budget at which an alert is recorded; returns them in order, each once."""
    checks.sequence("alerts", alerts)
    if len(alerts) > ALERTS_MAX:
        raise checks.refuse("alerts", f"may be at most {ALERTS_MAX}, not {len(alerts)}")
    for share in alerts:
        if not checks.number("alerts", share, 0, SHARE_MAX) > 0:
            raise checks.refuse("alerts", "must be shares above 0, such as 0.8")
    return tuple(sorted({float(share) for share in alerts}))


def encode_alerts(alerts: Sequence[float]) -> str:
    """Return shares as they are stored."""
    return _encode(list(alerts)).decode()


@lru_cache(maxsize=256)
def decode_alerts(text: Any) -> tuple[float, ...]:
    """Return stored shares; the default ones if they cannot be read."""
    try:
        return decode_json(text, tuple[float, ...])
    except DECODE_ERRORS:
        return ALERTS


def _mark(share: float, limit: int) -> int:
    """The usage at which a share of a limit is reached, exactly: 0.8 of 10 is 8."""
    return min(max(1, ceil(Decimal(str(share)) * limit)), INTEGER_MAX)


def crossed_shares(before: int, used: int, limit: int, alerts: Sequence[float]) -> list[float]:
    """Return the shares that usage reached when it went from one amount to another."""
    return [share for share in alerts if before < _mark(share, limit) <= used]


def record_agent_alerts(
    tx: Transaction, pid: int, dim: str, shares: list[float], *, used: int, limit: int, now: float
) -> None:
    """Record the shares of an agent's budget that a charge has crossed."""
    for share in shares:
        fact = BudgetAlert(level="agent", owner=str(pid), dim=dim, share=share, used=used, limit=limit)
        append(tx, fact, now=now, pid=pid)


def record_window_alerts(tx: Transaction, window: ReachedWindow, now: float) -> None:
    """Record the shares of a budget that are reached and were not recorded within its window; arm the next one."""
    owner, dim, window_s, used = window
    rows = tx.run(sql.BUDGET_ALERTS, (owner, dim, window_s))
    next_at: int | None = None
    if rows:
        limit, alerts_text, alerted_text = rows[0]
        alerts, alerted = decode_alerts(alerts_text), _alerted(alerted_text)
        reached = [share for share in alerts if _mark(share, limit) <= used]
        new = [share for share in reached if not now - window_s < alerted.get(str(share), -INTEGER_MAX) <= now]
        for share in new:
            fact = BudgetAlert(
                level="global" if owner == ALL_PROJECTS else "project",
                owner=owner,
                dim=dim,
                share=share,
                used=used,
                limit=limit,
                window_s=window_s,
            )
            append(tx, fact, now=now)
        if new:
            alerted |= {str(share): now for share in new}
            tx.run(sql.BUDGET_ALERTED, (_encode(alerted).decode(), owner, dim))
        next_at = min((_mark(share, limit) for share in alerts if share not in reached), default=None)
    tx.run(sql.WINDOW_ALERT, (next_at, owner, dim, window_s))


def still_alerted(text: Any, used: int, limit: int) -> str:
    """Return what stays recorded of a budget whose limit changes: the shares that are reached under the new one."""
    kept = {share: at for share, at in _alerted(text).items() if _mark(float(share), limit) <= used}
    return _encode(kept).decode()


def _alerted(text: Any) -> dict[str, float]:
    try:
        return decode_json(text, dict[str, float])
    except DECODE_ERRORS:
        return {}
