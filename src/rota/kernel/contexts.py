"""Contexts: budgets per period, bound to an agent, a project, a call path, or a name that many share.

A name is how a provider's limit is written down: "openai, 200,000 tokens per 60 s" is one context that every
entry which draws on `openai` uses up, whatever project it is of. Exactly one authority pays besides: the call
path's context if the entry was spawned on one, else its agent's, else its project's, else none.

Where a context stands is an `Allowance` (see policy/replenishment): what was used comes back one period later,
and an overshoot is debt. Time is counted in whole milliseconds here.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from rota.errors import ContextExists, ContextInvalid, ContextUnknown, ProjectUnknown, StaleHandle
from rota.kernel.agents import find
from rota.kernel.core import Core, page
from rota.kernel.journal import append
from rota.kernel.rows import Needs
from rota.model import events
from rota.model.budgets import Handle, Refill, SchedulingContext
from rota.model.checks import AMOUNT_MAX, SECONDS_MAX, Checks
from rota.model.lifecycle import CONTEXT, ContextState, advance
from rota.policy import replenishment
from rota.policy.replenishment import Allowance
from rota.store import Row, Transaction
from rota.store.statements import contexts as sql
from rota.store.statements import projects as project_sql

__all__ = ["REFILL_MAX", "Contexts", "Ration", "charge", "in_ms", "rations_of", "refill", "units"]

REFILL_MAX = 256  # contexts refilled in one go
Unit = Literal["tokens", "requests"]
UNITS = ("tokens", "requests")
BOUND_TO = ("agent", "project", "call_path", "name")

_checks = Checks("SchedulingContext", ContextInvalid)
_encoder = msgspec.json.Encoder()


def in_ms(at: float) -> int:
    """An instant in whole milliseconds."""
    return round(at * 1000)


class Ration(NamedTuple):
    """A context as the kernel handles it."""

    context_id: int
    bound_to: str
    bound_id: str
    unit: Unit
    state: str
    allowance: Allowance
    refill_at: float | None
    throttled_until: float | None
    generation: int

    @property
    def name(self) -> str | None:
        """The name many share it by, if it is bound to one."""
        return self.bound_id if self.bound_to == "name" else None


def _ration(row: Row) -> Ration:
    context_id, bound_to, bound_id, unit, _, _, state, standing, refill_at, throttled_until, generation = row
    allowance = replenishment.lawful(msgspec.json.decode(standing, type=Allowance))
    return Ration(context_id, bound_to, bound_id, unit, state, allowance, refill_at, throttled_until, generation)


def rations_of(tx: Transaction, needs: Needs, pid: int, project_id: str | None) -> list[Ration]:
    """Every context an entry draws on: the names it lists, and the one authority that pays."""
    found = [_ration(row) for name in needs.draws_on for row in tx.run(sql.BOUND, ("name", name))]
    for bound_to, bound_id in (("call_path", needs.path), ("agent", str(pid)), ("project", project_id)):
        rows = tx.run(sql.BOUND, (bound_to, bound_id)) if bound_id is not None else []
        if rows:
            return found + [_ration(row) for row in rows]
    return found


def units(ration: Ration, amounts: dict[str, int]) -> int:
    """How much of a context usage is."""
    return amounts.get("tokens", 0) if ration.unit == "tokens" else amounts.get("requests", 0)


def charge(tx: Transaction, rations: list[Ration], amounts: dict[str, int], now: float) -> dict[str, int]:
    """Use up contexts, past what is available too; a negative amount gives back. The answer is for the fact."""
    moved: dict[str, int] = {}
    for ration in rations:
        amount = units(ration, amounts)
        if amount:
            moved[str(ration.context_id)] = amount
            _stand(tx, ration, applied(ration.allowance, amount, in_ms(now)), now)
    return moved


def applied(allowance: Allowance, amount: int, at_ms: int) -> Allowance:
    """An allowance after a charge, or after giving back where the amount is negative."""
    present = replenishment.refilled(allowance, at_ms)
    if amount < 0:
        return replenishment.refunded(present, -amount, at_ms)
    return replenishment.charged(present, amount, at_ms)


def refill(tx: Transaction, now: float) -> int:
    """Let come back what is due; the answer is how many contexts that concerned."""
    due = [_ration(row) for row in tx.run(sql.DUE, (now, REFILL_MAX))]
    for ration in due:
        _stand(tx, ration, replenishment.refilled(ration.allowance, in_ms(now)), now)
    return len(due)


def _stand(tx: Transaction, ration: Ration, allowance: Allowance, now: float) -> None:
    """Write where a context stands, and the fact if it ran dry or came back."""
    at_ms = in_ms(now)
    left = replenishment.available(allowance, at_ms)
    next_ms = replenishment.next_refill_at(allowance, at_ms)
    refill_at = None if next_ms is None else next_ms / 1000
    if ration.throttled_until is not None and ration.throttled_until > now:
        refill_at = min(refill_at or ration.throttled_until, ration.throttled_until)
    state = ration.state
    context_id = ration.context_id
    remaining = left - replenishment.debt(allowance, at_ms)
    if state == ContextState.ACTIVE and left == 0:
        state = advance(CONTEXT, state, "deplete", context_id)
        fact = events.ContextDepleted(context_id=context_id, remaining=remaining, refill_at=refill_at)
        append(tx, fact, now=now)
    elif state == ContextState.DEPLETED and left > 0:
        state = advance(CONTEXT, state, "replenish", context_id)
        append(tx, events.ContextReplenished(context_id=context_id, amount=left, remaining=remaining), now=now)
        tx.notes.wake = True
    standing = _encoder.encode(allowance).decode()
    tx.run(sql.STAND, (allowance.budget, allowance.period, state, standing, refill_at, context_id))


class Contexts:
    """Admitting, reading, changing and revoking contexts."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def create(
        self, *, bound_to: str, bound_id: str | int, budget: int, period_s: float, unit: str = "tokens"
    ) -> SchedulingContext:
        """Admit a context. One thing can be bound to one context of each unit."""
        _checks.one_of("bound_to", bound_to, BOUND_TO)
        bound = _checks.text("bound_id", str(bound_id) if type(bound_id) is int else bound_id)
        _checks.one_of("unit", unit, UNITS)
        _checks.whole("budget", budget, 1)
        period_ms = in_ms(_checks.number("period_s", period_s, 0.001, SECONDS_MAX))
        now = self._core.now()
        standing = _encoder.encode(replenishment.full(budget, period_ms, in_ms(now))).decode()

        def work(tx: Transaction) -> SchedulingContext:
            _check_bound(tx, bound_to, bound)
            if any(row[3] == unit for row in tx.run(sql.BOUND, (bound_to, bound))):
                raise ContextExists(f"{bound_to} {bound} has a context of {unit} already", bound_id=bound)
            state = advance(CONTEXT, CONTEXT.initial, "bind")
            row = (bound_to, bound, unit, budget, period_ms, state, standing)
            context_id = int(tx.run(sql.CREATE, row)[0][0])
            fact = events.ContextCreated(
                context_id=context_id, budget=budget, period=period_ms, bound_to=bound_to, bound_id=bound, unit=unit
            )
            append(tx, fact, now=now)
            return _shown(self._find(tx, context_id), now)

        return self._core.write(work)

    def get(self, context_id: int) -> SchedulingContext:
        """One context as it stands now."""
        now = self._core.now()
        return self._core.read(lambda tx: _shown(self._find(tx, context_id), now))

    def list(self, *, limit: int = 100, offset: int = 0) -> list[SchedulingContext]:
        """A page of contexts, by id."""
        now = self._core.now()
        rows = self._core.read(lambda tx: tx.run(sql.LIST, page(limit, offset)))
        return [_shown(_ration(row), now) for row in rows]

    def adjust(self, context_id: int, *, budget: int, period_s: float) -> SchedulingContext:
        """Other numbers, in force from the next refill on."""
        _checks.whole("budget", budget, 1)
        period_ms = in_ms(_checks.number("period_s", period_s, 0.001, SECONDS_MAX))
        now = self._core.now()

        def work(tx: Transaction) -> SchedulingContext:
            ration = self._valid(tx, context_id)
            append(
                tx,
                events.ContextAdjusted(context_id=context_id, changes={"budget": budget, "period": period_ms}),
                now=now,
            )
            allowance = replenishment.refilled(ration.allowance, in_ms(now))
            _stand(tx, ration, replenishment.adjusted(allowance, budget, period_ms, in_ms(now)), now)
            tx.notes.wake = True
            return _shown(self._find(tx, context_id), now)

        return self._core.write(work)

    def revoke(self, context_id: int) -> None:
        """Take a context back: every handle to it is stale from now on."""
        now = self._core.now()

        def work(tx: Transaction) -> None:
            ration = self._find(tx, context_id)
            advance(CONTEXT, ration.state, "revoke", context_id)
            tx.run(sql.REVOKE, (context_id,))
            append(tx, events.ContextRevoked(context_id=context_id), now=now)
            tx.notes.wake = True

        self._core.write(work)

    def resolve(self, handle: Handle) -> SchedulingContext:
        """The context a handle stands for, or the error that it was revoked."""
        if not isinstance(handle, Handle):
            raise _checks.refuse("handle", f"must be a Handle, not {type(handle).__name__}")
        context = self.get(handle.slot)
        if context.generation != handle.generation:
            raise StaleHandle(f"context {handle.slot} was revoked", context_id=handle.slot)
        return context

    def charge(self, context_id: int, amount: int, now: float | None = None) -> SchedulingContext:
        """Use up a context outside of any run."""
        _checks.whole("amount", amount, 0, AMOUNT_MAX)
        at = self._core.now(now)

        def work(tx: Transaction) -> SchedulingContext:
            ration = self._valid(tx, context_id)
            moved = charge(tx, [ration], {ration.unit: amount}, at)
            append(tx, events.LedgerCharged(amounts={ration.unit: amount}, contexts=moved), now=at)
            return _shown(self._find(tx, context_id), at)

        return self._core.write(work)

    def throttle(self, name: str, retry_after_s: float, *, by: int | None = None) -> float:
        """A provider asked for a pause: everybody who draws on this name waits. The answer is until when."""
        _checks.text("name", name)
        _checks.duration("retry_after_s", retry_after_s)
        if by is not None:
            _checks.whole("by", by, 1)
        now = self._core.now()
        until_at = now + retry_after_s

        def work(tx: Transaction) -> float:
            rows = tx.run(sql.THROTTLE, (until_at, name))
            if not rows:
                raise ContextUnknown(f"there is no limit named {name!r}", bound_id=name)
            latest_at = max(float(row[0]) for row in rows)
            append(tx, events.LimitThrottled(name=name, until_at=latest_at, by=by), now=now)
            return latest_at

        return self._core.write(work)

    def _find(self, tx: Transaction, context_id: int) -> Ration:
        rows = tx.run(sql.GET, (_checks.whole("context_id", context_id),))
        if not rows:
            raise ContextUnknown(f"there is no context {context_id}", context_id=context_id)
        return _ration(rows[0])

    def _valid(self, tx: Transaction, context_id: int) -> Ration:
        ration = self._find(tx, context_id)
        if ration.state == ContextState.REVOKED:
            raise StaleHandle(f"context {context_id} was revoked", context_id=context_id)
        return ration


def _check_bound(tx: Transaction, bound_to: str, bound_id: str) -> None:
    """An agent or a project must exist; a call path and a name need not, yet."""
    if bound_to == "agent":
        if not bound_id.isdecimal():
            raise _checks.refuse("bound_id", f"must be a pid, not {bound_id!r}")
        find(tx, int(bound_id))
    elif bound_to == "project" and not tx.run(project_sql.GET, (bound_id,)):
        raise ProjectUnknown(f"there is no project {bound_id!r}", project_id=bound_id)


def _shown(ration: Ration, now: float) -> SchedulingContext:
    at_ms = in_ms(now)
    allowance = replenishment.refilled(ration.allowance, at_ms)
    pending = tuple(Refill(at, amount) for at, amount in allowance.refills if at > at_ms)
    shown: dict[str, Any] = {
        "context_id": ration.context_id,
        "budget": allowance.budget,
        "period": allowance.period,
        "remaining": replenishment.available(allowance, at_ms) - replenishment.debt(allowance, at_ms),
        "refills": pending,
        "state": ration.state,
        "unit": ration.unit,
        "bound_to": ration.bound_to,
        "bound_id": ration.bound_id,
        "generation": ration.generation,
    }
    return SchedulingContext(**shown)
