"""Contexts: budgets per period, bound to an agent, a project, a call path, or a name that many entries share.

A named context is a limit, such as a provider's: "openai, 200,000 tokens per 60 s" is one context that every entry
with `draws_on=("openai",)` uses, whatever its project. In addition exactly one other context pays: that of the call
path if the entry was spawned on one, else that of its agent, else that of its project, if there is one.

A limit is the operator's and is shared by all projects, unless it is created for one project: then only the entries of
that project draw on it, and for the others there is no limit of that name. A run may pause a limit that its entry draws
on, for at most `THROTTLE_MAX_S`; an operator may pause any limit, and end the pause of any.

A context counts tokens, requests (the start of a run is one) or `cpu_ms`: CPU time, as measured when a run ends. A run
that used more than was left is debt, and the next run waits until it is refilled.

The state of a context's budget is an `Allowance` (see policy/replenishment): usage comes back one period later, and
usage beyond the budget is debt. Time is counted in whole milliseconds here: the instant of a charge is rounded up and
the instant of a reading down. So a unit returns at least one period after it was used, at most 2 ms later than that;
rounded to the nearest millisecond, it could return half a millisecond before a whole period had passed.

A context whose allowance cannot be read has none: what draws on it waits, and is told why. `adjust` gives it a new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from rota.decoding import decode_json
from rota.errors import ContextExists, ContextInvalid, ContextUnknown, StaleHandle
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.lookups import check_project_exists, find_agent
from rota.kernel.paging import page
from rota.kernel.rows import DECODE_ERRORS, PROBLEM_CHARS_MAX, Needs
from rota.model import events
from rota.model.budgets import Handle, Refill, SchedulingContext
from rota.model.checks import AMOUNT_MAX, SECONDS_MAX, Checks
from rota.model.lifecycle import CONTEXT, ContextState, advance
from rota.policy import replenishment
from rota.policy.replenishment import Allowance
from rota.store import Row, Transaction
from rota.store.statements import contexts as sql

__all__ = [
    "CPU_UNIT",
    "REFILL_MAX",
    "THROTTLE_MAX_S",
    "ContextRow",
    "Contexts",
    "apply_charge",
    "charge",
    "contexts_for",
    "contexts_from_rows",
    "cpu_contexts",
    "draws_on_cpu",
    "limits_named",
    "refill",
    "throttle_for_run",
    "to_ms",
    "to_ms_up",
    "unknown_context",
]

REFILL_MAX = 256  # contexts refilled in one transaction
CPU_CONTEXTS_MAX = 1_000  # that one report lists
THROTTLE_MAX_S = 86_400.0  # how long a limit is paused at most, unless the pause is renewed
Unit = Literal["tokens", "requests", "cpu_ms"]
UNITS = ("tokens", "requests", "cpu_ms")
CPU_UNIT = "cpu_ms"  # CPU time that was measured when a run ended, in milliseconds
BOUND_TO = ("agent", "project", "call_path", "name")

_checks = Checks("SchedulingContext", ContextInvalid)
_encoder = msgspec.json.Encoder()
_NO_ALLOWANCE = Allowance(1, 1, ((round(SECONDS_MAX * 1000), 1),))  # for one that cannot be read: nothing is available


def to_ms(at: float) -> int:
    """Convert an instant to whole milliseconds, rounded down."""
    at_ms = round(at * 1000)
    return at_ms - 1 if at_ms / 1000 > at else at_ms


def to_ms_up(at: float) -> int:
    """Convert an instant or a duration to whole milliseconds, rounded up."""
    at_ms = round(at * 1000)
    return at_ms + 1 if at_ms / 1000 < at else at_ms


class ContextRow(NamedTuple):
    """A context as stored, with its allowance decoded."""

    context_id: int
    bound_to: str
    bound_id: str
    unit: Unit
    state: str
    allowance: Allowance
    refill_at: float | None
    throttled_until: float | None
    generation: int
    project_id: str | None = None  # the project of a limit that only its entries draw on
    problem: str | None = None  # why its allowance cannot be read

    @property
    def name(self) -> str | None:
        """The name of the limit, if the context is bound to a name."""
        return self.bound_id if self.bound_to == "name" else None


def _from_row(row: Row) -> ContextRow:
    context_id, bound_to, bound_id, unit, _, _, state, allowance_text = row[:8]
    problem = None
    try:
        allowance = replenishment.checked(decode_json(allowance_text, Allowance))
    except DECODE_ERRORS as unreadable:
        allowance, problem = _NO_ALLOWANCE, f"allowance: {unreadable}"[:PROBLEM_CHARS_MAX]
    refill_at, throttled_until, generation, project_id = row[8:]
    times = refill_at, throttled_until
    return ContextRow(context_id, bound_to, bound_id, unit, state, allowance, *times, generation, project_id, problem)


def limits_named(tx: Transaction, name: str, project_id: str | None) -> list[ContextRow]:
    """Return the limits of a name that the runs of a project draw on, one for each unit."""
    return [_from_row(row) for row in tx.run(sql.NAMED_FOR, (name, project_id))]


def contexts_for(tx: Transaction, needs: Needs, pid: int, project_id: str | None) -> list[ContextRow]:
    """Return every context that an entry draws on: the limits it names, and the one other context that pays."""
    found = [limit for name in needs.draws_on for limit in limits_named(tx, name, project_id)]
    for bound_to, bound_id in (("call_path", needs.path), ("agent", str(pid)), ("project", project_id)):
        rows = tx.run(sql.BOUND, (bound_to, bound_id)) if bound_id is not None else []
        if rows:
            return found + [_from_row(row) for row in rows]
    return found


def draws_on_cpu(tx: Transaction, needs: Needs, pid: int, project_id: str | None) -> bool:
    """Whether an entry draws on a context of CPU time."""
    if not tx.run(sql.ANY_OF_CPU):
        return False
    return any(context.unit == CPU_UNIT for context in contexts_for(tx, needs, pid, project_id))


def charge(tx: Transaction, charged: list[ContextRow], amounts: dict[str, int], now: float) -> dict[str, int]:
    """Charge contexts, also beyond what is available; negative amounts refund. Returns the amounts by context id."""
    moved: dict[str, int] = {}
    for context in charged:
        amount = amounts.get(context.unit, 0)
        if amount and context.problem is None:
            moved[str(context.context_id)] = amount
            _save(tx, context, apply_charge(context.allowance, amount, now), now)
    return moved


def apply_charge(allowance: Allowance, amount: int, at: float) -> Allowance:
    """Return an allowance after a charge, or after a refund if the amount is negative."""
    at_ms = to_ms(at)
    present = replenishment.refilled(allowance, at_ms)
    if amount < 0:
        return replenishment.refunded(present, -amount, at_ms)
    return replenishment.charged(present, amount, to_ms_up(at))


def throttle_for_run(
    tx: Transaction, names: Sequence[str], retry_after_s: float, owner: tuple[int, str | None], now: float
) -> dict[str, float]:
    """Pause limits that a run of an agent and a project draws on; returns until when, by name."""
    pid, project_id = owner
    until_at = now + min(retry_after_s, THROTTLE_MAX_S)
    paused: dict[str, float] = {}
    for name in names:
        rows = tx.run(sql.THROTTLE, (until_at, name, False, project_id))
        if rows:
            paused[name] = max(float(row[0]) for row in rows)
            append(tx, events.LimitThrottled(name=name, until_at=paused[name], by=pid), now=now)
    return paused


def refill(tx: Transaction, now: float) -> int:
    """Refill the contexts that are due; returns their number."""
    due = [_from_row(row) for row in tx.run(sql.DUE, (now, REFILL_MAX))]
    for context in due:
        if context.problem is not None:  # it is not due again until it is adjusted
            tx.run(sql.STOP_REFILL, (context.context_id,))
            event = events.RowUnreadable(table="contexts", key=str(context.context_id), problem=context.problem)
            append(tx, event, now=now)
            continue
        _save(tx, context, replenishment.refilled(context.allowance, to_ms(now)), now)
    return len(due)


def _save(tx: Transaction, context: ContextRow, allowance: Allowance, now: float) -> None:
    """Write a context's allowance, and an event if it was depleted or replenished."""
    at_ms = to_ms(now)
    left = replenishment.available(allowance, at_ms)
    next_ms = replenishment.next_refill_at(allowance, at_ms)
    refill_at = None if next_ms is None else next_ms / 1000
    if context.throttled_until is not None and context.throttled_until > now:
        refill_at = min(refill_at or context.throttled_until, context.throttled_until)
    state = context.state
    context_id = context.context_id
    remaining = left - replenishment.debt(allowance, at_ms)
    if state == ContextState.ACTIVE and left == 0:
        state = advance(CONTEXT, state, "deplete", context_id)
        event = events.ContextBudgetDepleted(context_id=context_id, remaining=remaining, refill_at=refill_at)
        append(tx, event, now=now)
    elif state == ContextState.DEPLETED and left > 0:
        state = advance(CONTEXT, state, "replenish", context_id)
        append(tx, events.ContextReplenished(context_id=context_id, amount=left, remaining=remaining), now=now)
        tx.effects.wake_parked = True
    text = _encoder.encode(allowance).decode()
    tx.run(sql.UPDATE, (allowance.budget, allowance.period, state, text, refill_at, context_id))


class Contexts:
    """Creating, reading, changing and revoking contexts."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env

    def create(
        self,
        *,
        bound_to: str,
        bound_id: str | int,
        budget: int,
        period_s: float,
        unit: str = "tokens",
        project_id: str | None = None,
    ) -> SchedulingContext:
        """Create a context. Each target can have one context per unit.

        A limit, which is bound to a name, may be for the entries of one project only.
        """
        _checks.one_of("bound_to", bound_to, BOUND_TO)
        bound = _checks.name("bound_id", str(bound_id) if type(bound_id) is int else bound_id)
        _checks.one_of("unit", unit, UNITS)
        _checks.whole("budget", budget, 1)
        period_ms = to_ms_up(_checks.number("period_s", period_s, 0.001, SECONDS_MAX))
        if _checks.optional_text("project_id", project_id) is not None and bound_to != "name":
            raise _checks.refuse("project_id", "is only for a limit, which is bound to a name")

        def work(tx: Transaction) -> SchedulingContext:
            now = self._env.read_clock(tx)
            allowance_text = _encoder.encode(replenishment.full(budget, period_ms, to_ms(now))).decode()
            _check_bound(tx, bound_to, bound)
            if project_id is not None:
                check_project_exists(tx, project_id)
            known = [_from_row(row) for row in tx.run(sql.BOUND, (bound_to, bound))]
            if any((each.unit, each.project_id) == (unit, project_id) for each in known):
                raise ContextExists(f"{bound_to} {bound} already has a context of {unit}", bound_id=bound)
            if any((each.project_id is None) != (project_id is None) for each in known):
                whose = "of single projects" if project_id is None else "for all projects"
                raise ContextExists(f"the name {bound} is that of a limit {whose}; choose another", bound_id=bound)
            state = advance(CONTEXT, CONTEXT.initial, "bind")
            row = (bound_to, bound, unit, budget, period_ms, state, allowance_text, project_id)
            context_id = int(tx.run(sql.CREATE, row)[0][0])
            event = events.ContextCreated(
                context_id=context_id,
                budget=budget,
                period=period_ms,
                bound_to=bound_to,
                bound_id=bound,
                unit=unit,
                project_id=project_id,
            )
            append(tx, event, now=now)
            return _as_model(self._find(tx, context_id), now)

        return self._env.write(work)

    def get(self, context_id: int) -> SchedulingContext:
        """Return one context as of now."""
        now = self._env.now()
        return self._env.read(lambda tx: _as_model(self._find(tx, context_id), now))

    def list(self, *, limit: int = 100, offset: int = 0) -> list[SchedulingContext]:
        """Return a page of contexts by id."""
        now = self._env.now()
        rows = self._env.read(lambda tx: tx.run(sql.LIST, page(limit, offset)))
        return contexts_from_rows(rows, now)

    def adjust(self, context_id: int, *, budget: int, period_s: float) -> SchedulingContext:
        """Change budget and period, effective from the next refill."""
        _checks.whole("budget", budget, 1)
        period_ms = to_ms_up(_checks.number("period_s", period_s, 0.001, SECONDS_MAX))

        def work(tx: Transaction) -> SchedulingContext:
            now = self._env.read_clock(tx)
            context = self._find_valid(tx, context_id)
            append(
                tx,
                events.ContextAdjusted(context_id=context_id, changes={"budget": budget, "period": period_ms}),
                now=now,
            )
            allowance = replenishment.full(budget, period_ms, to_ms(now))
            if context.problem is None:
                present = replenishment.refilled(context.allowance, to_ms(now))
                allowance = replenishment.adjusted(present, budget, period_ms, to_ms(now))
            _save(tx, context, allowance, now)
            tx.effects.wake_parked = True
            return _as_model(self._find(tx, context_id), now)

        return self._env.write(work)

    def revoke(self, context_id: int) -> None:
        """Revoke a context: every handle to it becomes stale."""

        def work(tx: Transaction) -> None:
            now = self._env.read_clock(tx)
            context = self._find(tx, context_id)
            advance(CONTEXT, context.state, "revoke", context_id)
            tx.run(sql.REVOKE, (context_id,))
            append(tx, events.ContextRevoked(context_id=context_id), now=now)
            tx.effects.wake_parked = True

        self._env.write(work)

    def resolve(self, handle: Handle) -> SchedulingContext:
        """Return the context of a handle; raises `StaleHandle` if it was revoked."""
        if not isinstance(handle, Handle):
            raise _checks.refuse("handle", f"must be a Handle, not {type(handle).__name__}")
        context = self.get(handle.slot)
        if context.generation != handle.generation:
            raise StaleHandle(f"context {handle.slot} was revoked", context_id=handle.slot)
        return context

    def charge(self, context_id: int, amount: int, now: float | None = None) -> SchedulingContext:
        """Charge a context without a run."""
        _checks.whole("amount", amount, 0, AMOUNT_MAX)
        given = None if now is None else self._env.now(now)

        def work(tx: Transaction) -> SchedulingContext:
            at = self._env.read_clock(tx) if given is None else given
            context = self._find_valid(tx, context_id)
            moved = charge(tx, [context], {context.unit: amount}, at)
            append(tx, events.LedgerCharged(amounts={context.unit: amount}, contexts=moved), now=at)
            return _as_model(self._find(tx, context_id), at)

        return self._env.write(work)

    def throttle(self, name: str, retry_after_s: float, *, by: int | None = None) -> float:
        """Block every entry that draws on a limit, because its provider asked for a pause; returns until when."""
        _checks.text("name", name)
        _checks.number("retry_after_s", retry_after_s, 0, THROTTLE_MAX_S)
        if by is not None:
            _checks.whole("by", by, 1)

        def work(tx: Transaction) -> float:
            now = self._env.read_clock(tx)
            rows = tx.run(sql.THROTTLE, (now + retry_after_s, name, True, None))
            if not rows:
                raise unknown_limit(name)
            latest_at = max(float(row[0]) for row in rows)
            append(tx, events.LimitThrottled(name=name, until_at=latest_at, by=by), now=now)
            return latest_at

        return self._env.write(work)

    def resume(self, name: str) -> None:
        """End the pause of a limit, if it is paused."""
        _checks.text("name", name)

        def work(tx: Transaction) -> None:
            now = self._env.read_clock(tx)
            if not tx.run(sql.RESUME, (now, name)):
                raise unknown_limit(name)
            append(tx, events.LimitResumed(name=name), now=now)
            tx.effects.wake_parked = True

        self._env.write(work)

    def _find(self, tx: Transaction, context_id: int) -> ContextRow:
        rows = tx.run(sql.GET, (_checks.whole("context_id", context_id),))
        if not rows:
            raise unknown_context(context_id)
        return _from_row(rows[0])

    def _find_valid(self, tx: Transaction, context_id: int) -> ContextRow:
        context = self._find(tx, context_id)
        if context.state == ContextState.REVOKED:
            raise StaleHandle(f"context {context_id} was revoked", context_id=context_id)
        return context


def contexts_from_rows(rows: Iterable[Row], now: float) -> list[SchedulingContext]:
    """Build contexts as of now from rows."""
    return [_as_model(_from_row(row), now) for row in rows]


def cpu_contexts(tx: Transaction, now: float) -> list[SchedulingContext]:
    """Return the contexts of CPU time that are not revoked, as of now."""
    return contexts_from_rows(tx.run(sql.OF_CPU, (CPU_CONTEXTS_MAX,)), now)


def unknown_context(context_id: int) -> ContextUnknown:
    """Return the error for a context that does not exist."""
    return ContextUnknown(f"there is no context {context_id}", context_id=context_id)


def unknown_limit(name: str) -> ContextUnknown:
    """Return the error for a limit that does not exist."""
    return ContextUnknown(f"there is no limit named {name!r}", bound_id=name)


def _check_bound(tx: Transaction, bound_to: str, bound_id: str) -> None:
    """Check that an agent or a project exists; a call path and a name need not."""
    if bound_to == "agent":
        if not bound_id.isdecimal():
            raise _checks.refuse("bound_id", f"must be a pid, not {bound_id!r}")
        find_agent(tx, int(bound_id))
    elif bound_to == "project":
        check_project_exists(tx, bound_id)


def _as_model(context: ContextRow, now: float) -> SchedulingContext:
    at_ms = to_ms(now)
    allowance = replenishment.refilled(context.allowance, at_ms)
    pending = tuple(Refill(at, amount) for at, amount in allowance.refills if at > at_ms)
    fields: dict[str, Any] = {
        "context_id": context.context_id,
        "budget": allowance.budget,
        "period": allowance.period,
        "remaining": replenishment.available(allowance, at_ms) - replenishment.debt(allowance, at_ms),
        "refills": pending,
        "state": context.state,
        "unit": context.unit,
        "bound_to": context.bound_to,
        "bound_id": context.bound_id,
        "generation": context.generation,
        "project_id": context.project_id,
    }
    return SchedulingContext(**fields)
