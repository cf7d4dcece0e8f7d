"""Asking a limit from inside a run: acquire, wait, settle.

    acquire   ask a named limit for amounts; wait until it has them
    settle    say what was really used: it is recorded as the run's usage, and the limit gets the rest back

An ask is a row (limit_asks.py). Any transaction that may have changed the answer serves the limit: it grants the asks
that are next in order (policy/limit_order.py) as long as the limit has what the first of them asks for. So it does not
matter which process commits; a run that waits in another one finds its ask granted.

What a run has to leave to others: what other runs have reserved through `draws_on` and have not used, unless they wait
for a limit themselves. A run that asks for no more than it has reserved itself goes first. The request that its start
used is returned at its first ask, because from there on the run itself says when it makes requests.

Waiting cannot be for ever: amounts return one period after they were granted, and an ask above the limit is refused.
An ask is identified by the run's claim and a key, which its program chooses: repeating a call changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from rota.errors import AskExceedsLimit, ContextInvalid, ContextUnknown, LimitExceeded
from rota.kernel import contexts, limit_asks
from rota.kernel.claim_checks import ClaimChecks
from rota.kernel.completion import RunRow, charge_run
from rota.kernel.contexts import UNITS, ContextRow, to_ms, to_ms_up
from rota.kernel.environment import KernelEnvironment, read_due_summary
from rota.kernel.flows import SHARED_DIM
from rota.kernel.journal import append
from rota.kernel.limit_asks import ASKS_MAX, START, AskRow, encode_amounts
from rota.kernel.queue import Queue
from rota.kernel.rows import decode_needs, decode_spent
from rota.model.checks import Checks
from rota.model.events import LimitAcquired, LimitAwaited, LimitSettled
from rota.policy import limit_order, replenishment
from rota.policy.limit_order import ROOT, LimitAsk, ShareKey, ShareTime
from rota.store import Row, Transaction
from rota.store.author import acting_as
from rota.store.statements import claims as claim_sql
from rota.store.statements import limit_asks as sql

__all__ = ["SHARES_MAX", "WAITING_MAX", "LimitGrant", "LimitGrants", "Settlement"]

WAITING_MAX = 1_000  # asks of one limit that are ordered; later ones are served when these are fewer
SHARES_MAX = 2_000  # virtual times remembered of one limit; beyond that all of them are forgotten
_checks = Checks("Limit", ContextInvalid)


class LimitGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What a run asked of a limit, and whether it has it."""

    key: str
    name: str
    amounts: dict[str, int]
    granted_at: float | None = None  # None: it waits
    retry_at: float | None = None  # when time alone may serve the first that waits, if it waits


class Settlement(msgspec.Struct, frozen=True, kw_only=True):
    """What became of what a run had acquired, per unit."""

    charged: dict[str, int] = {}  # recorded as the run's usage
    returned: dict[str, int] = {}  # to the limit


class _Wanted(NamedTuple):
    """What a call asks for."""

    name: str
    amounts: dict[str, int]
    key: str


class _Standing(NamedTuple):
    """One limit in one unit, as of now."""

    context: ContextRow
    budget: int
    period_ms: int
    available: int
    reserved: int  # for others


class LimitGrants:
    """What runs acquire from limits."""

    _env: KernelEnvironment
    _queue: Queue

    def acquire(
        self, sched_id: int, token: int, name: str, amounts: Mapping[str, int], *, key: str, wait_s: float = 0.0
    ) -> LimitGrant:
        """Ask a limit for amounts, and wait for them; returns whether the run has them.

        While it waits the ask keeps its place, also between calls: call again with the same key. An ask above the limit
        raises `AskExceedsLimit`.
        """
        _checks.text("key", key)
        _checks.duration("wait_s", wait_s)
        wanted = _Wanted(_checks.text("name", name), _check_amounts(amounts), key)
        waiting: list[LimitGrant] = []  # of the last try

        def work(tx: Transaction) -> list[LimitGrant]:
            run = self._queue.live_run(tx, sched_id, _checks.whole("token", token))
            with acting_as(f"run:{sched_id}"):
                grant = self._try(tx, run, wanted, self._env.read_clock(tx))
            waiting[:] = [grant]
            return [] if grant.granted_at is None else [grant]

        if wait_s > 0:
            run = self._env.read(lambda tx: self._queue.live_run(tx, sched_id, _checks.whole("token", token)))
            found = self._env.store.wait(work, wait_s, ("limit", name, run.project_id))
        else:
            found = self._env.store.write(work)
        return found[0] if found else waiting[0]

    def settle(
        self, sched_id: int, token: int, key: str, used: Mapping[str, int] | None = None, *, node: str | None = None
    ) -> Settlement:
        """Say what was used of an ask; the coordinator of a graph run names the `node` that has used it.

        A unit that is not named was used as asked. What was used is recorded as usage of the run; what its charges have
        covered already counts once. An ask that waits is given up; one that was settled before changes nothing.
        """
        _checks.text("key", key)
        _checks.optional_text("node", node)
        given = _check_amounts(used or {}, least=0)

        def work(tx: Transaction) -> Settlement:
            now = self._env.read_clock(tx)
            run = self._queue.live_run(tx, sched_id, _checks.whole("token", token))
            rows = tx.run(sql.GET, (sched_id, key, token))
            if not rows:
                return Settlement()
            ask = AskRow(*rows[0])
            tx.run(sql.REMOVE, (ask.ask_id,))
            if ask.granted_at is None:
                tx.effects.wake_parked = True  # the next one is first
                return Settlement()
            with acting_as(f"run:{sched_id}"):
                return self._settle(tx, run, ask, _Wanted(ask.name, {**ask.asked, **given}, key), now, node=node)

        return self._env.store.write(work)

    def _settle(
        self, tx: Transaction, run: RunRow, ask: AskRow, settled: _Wanted, now: float, *, node: str | None
    ) -> Settlement:
        used = settled.amounts
        limits = contexts.limits_named(tx, ask.name, run.project_id)
        covered = {unit: amount - ask.rest.get(unit, 0) for unit, amount in ask.asked.items()}  # by charges
        unused = {unit: ask.asked[unit] - max(used[unit], covered[unit]) for unit in ask.asked}
        moved = limit_asks.refund(tx, limits, unused, ask.granted_at or 0.0, now)
        returned: dict[str, int] = {
            limit.unit: -moved[str(limit.context_id)] for limit in limits if str(limit.context_id) in moved
        }
        more = {unit: -amount for unit, amount in unused.items() if amount < 0}
        if more:
            moved |= contexts.charge(tx, [limit for limit in limits if limit.unit in more], more, now)
        event = LimitSettled(sched_id=run.sched_id, name=ask.name, used=dict(used), contexts=moved)
        append(tx, event, now=now, pid=run.pid)
        charged = {unit: used[unit] - covered[unit] for unit in ask.asked if used[unit] > covered[unit]}
        if charged:
            charge_run(tx, self._env, run, charged, now, covered={ask.name: charged}, ask=settled.key, node=node)
        self._env.cache.drop_due_summary()  # the limit refills
        return Settlement(charged=charged, returned=returned)

    def _try(self, tx: Transaction, run: RunRow, wanted: _Wanted, now: float) -> LimitGrant:
        """Add the ask if it is new, serve the limit, and return what became of the ask."""
        name, amounts, key = wanted
        limits = _find_limits(tx, run.project_id, wanted, now)
        own = run.sched_id, key, run.token
        is_new = not tx.run(sql.GET, own)
        added = _add_ask(tx, run, limits, wanted, now) if is_new else None
        retry_at = _Serving(tx, self._env, run, limits[0], now).serve(added)
        ask = AskRow(*tx.run(sql.GET, own)[0])
        if ask.granted_at is None:
            if is_new:
                append(tx, LimitAwaited(sched_id=run.sched_id, name=name, amounts=amounts), now=now, pid=run.pid)
            tx.effects.retry_at = retry_at
        else:
            retry_at = None
        asked = dict(ask.asked)
        return LimitGrant(key=key, name=ask.name, amounts=asked, granted_at=ask.granted_at, retry_at=retry_at)


def _check_amounts(amounts: Mapping[str, int], least: int = 1) -> dict[str, int]:
    for unit, amount in _checks.amounts("amounts", amounts).items():
        _checks.one_of("amounts", unit, UNITS)
        _checks.whole(f"amounts[{unit!r}]", amount, least)
    if least and not amounts:
        raise _checks.refuse("amounts", "must name tokens or requests")
    return dict(amounts)


def _find_limits(tx: Transaction, project_id: str | None, wanted: _Wanted, now: float) -> list[ContextRow]:
    """Return the limits of a name; raises if there is none, none of the unit, or one that is too small."""
    name, amounts, _ = wanted
    limits = contexts.limits_named(tx, name, project_id)
    if not limits:
        hint = "`rota limits` lists them; `rota limits create name NAME --budget 60 --unit requests` makes one."
        raise ContextUnknown(f"there is no limit named {name!r}", bound_id=name, hint=hint)
    for unit in amounts:
        if all(limit.unit != unit for limit in limits):
            raise _checks.refuse("amounts", f"name {unit}, of which the limit {name} has no budget")
    for limit in limits:
        if limit.problem is not None:
            raise _checks.refuse("name", f"is a limit that cannot be read: {limit.problem}")
        asked, budget = amounts.get(limit.unit, 0), replenishment.refilled(limit.allowance, to_ms(now)).budget
        if asked > budget:
            text = f"{asked:,} {limit.unit} were asked of the limit {name}, which has {budget:,} per period"
            raise AskExceedsLimit(text, limit_name=name, unit=limit.unit, asked=asked, budget=budget)
    return limits


def _add_ask(tx: Transaction, run: RunRow, limits: list[ContextRow], wanted: _Wanted, now: float) -> int:
    """Add an ask that waits, and return its id."""
    name, amounts, key = wanted
    known = limit_asks.asks_of(tx, run.sched_id, run.token)
    if len(known) >= ASKS_MAX:
        held = [ask for ask in known if ask.granted_at is not None and ask.asked]
        if not held:
            raise LimitExceeded("asks_max", ASKS_MAX, len(known) + 1)
        tx.run(sql.REMOVE, (held[0].ask_id,))
    if run.spent_text is None:  # the sign that a run may have asks
        tx.run(claim_sql.SPEND, ("{}", run.sched_id))
    _return_start(tx, run, name, now)
    parts = [(amounts[limit.unit], limit.allowance.budget) for limit in limits if limit.unit in amounts]
    text = encode_amounts(amounts).decode()
    row = (run.sched_id, key, run.token, name, text, text, limit_order.ask_cost(parts), now)
    return int(tx.run(sql.ADD, row)[0][0])


def _return_start(tx: Transaction, run: RunRow, name: str, now: float) -> None:
    """At a run's first ask of a limit that it draws on: return the request that its start used."""
    mark = f"{START}:{name}"
    if name not in decode_needs(run.needs_text).draws_on or tx.run(sql.GET, (run.sched_id, mark, run.token)):
        return
    ask_id = tx.run(sql.ADD, (run.sched_id, mark, run.token, name, "{}", "{}", 1, now))[0][0]
    tx.run(sql.GRANT, (now, ask_id))
    limits = contexts.limits_named(tx, name, run.project_id)
    moved = limit_asks.refund(tx, limits, {"requests": 1}, run.dispatched_at or 0.0, now)
    if moved:
        event = LimitSettled(sched_id=run.sched_id, name=name, contexts=moved, by="start")
        append(tx, event, now=now, pid=run.pid)


# --- serving -------------------------------------------------------------------------------------


class _Serving:
    """Grants the asks that are next at one limit, in one transaction."""

    def __init__(self, tx: Transaction, env: KernelEnvironment, run: RunRow, limit: ContextRow, now: float) -> None:
        self._tx = tx
        self._env = env
        self._run = run  # the run that asks now
        self._name = name = limit.bound_id
        self._project = limit.project_id  # a limit of this project; None: for all projects
        self._order = name if self._project is None else f"{name}\n{self._project}"  # no name has a line end
        self._now = now
        self._shares: dict[ShareKey, ShareTime] = {
            (level, share): ShareTime(time, clock) for level, share, time, clock in tx.run(sql.SHARES, (self._order,))
        }
        self._standing: list[_Standing] = []

    def serve(self, added: int | None) -> float | None:
        """Grant asks as long as the limit has enough; returns when time alone may serve one more.

        `added` is the ask that is new.
        """
        at_ms = to_ms(self._now)
        while True:
            self._read_standing()
            rows = {row[0]: row for row in self._tx.run(sql.WAITING, (self._name, self._project, WAITING_MAX))}
            waiting = [LimitAsk(*row[:6]) for row in rows.values() if _is_possible(row, self._standing)]
            self._end_contention(waiting)
            if added in rows and ROOT in self._shares:
                self._move(limit_order.joined_shares(LimitAsk(*rows[added][:6]), waiting, self._shares))
            added = None
            first = [ask for ask in waiting if _is_reserved(rows[ask.ask_id])] or waiting
            ask = limit_order.next_ask(first, self._shares)
            if ask is None:
                return None
            amounts = decode_spent(rows[ask.ask_id][7])
            ready_ms = _ready_ms(self._standing, amounts, self._paced_ms())
            if ready_ms is None or ready_ms > at_ms:
                if ROOT not in self._shares:
                    self._move({ROOT: ShareTime(at_ms)})
                return None if ready_ms is None else ready_ms / 1000
            self._grant(ask, rows[ask.ask_id], amounts)

    def _read_standing(self) -> None:
        due = self._env.cache.due_summary(self._tx) or read_due_summary(self._tx)
        checks = ClaimChecks(self._tx, self._env.cache, self._now, due)
        at_ms, self._standing = to_ms(self._now), []
        for limit in contexts.limits_named(self._tx, self._name, self._run.project_id):
            allowance = replenishment.refilled(limit.allowance, at_ms)
            available, reserved = replenishment.available(allowance, at_ms), checks.reserved_for_ask(limit)
            context = limit._replace(allowance=allowance)
            self._standing.append(_Standing(context, allowance.budget, allowance.period, available, reserved))

    def _end_contention(self, waiting: list[LimitAsk]) -> None:
        """Forget the shares when no other run waits and half of the limit is available."""
        is_plenty = all(2 * each.available >= each.budget for each in self._standing)
        if ROOT in self._shares and len(waiting) <= 1 and is_plenty:
            self._tx.run(sql.SHARES_FORGET, (self._order,))
            self._shares = {}

    def _paced_ms(self) -> int:
        """Return from when on the next ask is served: never more than a period from now."""
        at_ms = to_ms(self._now)
        if ROOT not in self._shares:
            return at_ms
        latest_ms = at_ms + max(each.period_ms for each in self._standing)
        return min(max(at_ms, self._shares[ROOT].virtual_time), latest_ms)

    def _grant(self, ask: LimitAsk, row: Row, amounts: Mapping[str, int]) -> None:
        """Charge the limit for an ask."""
        sched_id, asked_at = row[6], row[8]
        moved = contexts.charge(self._tx, [each.context for each in self._standing], dict(amounts), self._now)
        self._tx.run(sql.GRANT, (self._now, ask.ask_id))
        event = LimitAcquired(
            sched_id=sched_id,
            name=self._name,
            amounts=dict(amounts),
            contexts=moved,
            waited_ms=max(0, round((self._now - asked_at) * 1000)),
        )
        append(self._tx, event, now=self._now, pid=ask.pid)
        self._env.cache.drop_due_summary()  # the limit refills
        if sched_id != self._run.sched_id:  # another run, whose call may be parked
            self._tx.effects.wake_parked = True
            self._tx.effects.applies_to_equivalents = False
        if ROOT not in self._shares:
            return
        changed = limit_order.moved_shares(ask, self._shares)
        parts = [(amounts.get(each.context.unit, 0), each.budget, each.period_ms) for each in self._standing]
        changed[ROOT] = changed[ROOT]._replace(virtual_time=self._paced_ms() + limit_order.pace(parts))
        if len(self._shares) > SHARES_MAX:
            self._tx.run(sql.SHARES_FORGET, (self._order,))
            self._shares = {}
        self._move(changed)

    def _move(self, changed: Mapping[ShareKey, ShareTime]) -> None:
        self._tx.run_many(sql.SHARE_SET, [(self._order, *share, *times) for share, times in changed.items()])
        self._shares |= changed


def _is_possible(row: Row, standing: list[_Standing]) -> bool:
    """Whether a limit that was lowered meanwhile can still serve an ask."""
    amounts = decode_spent(row[7])
    return all(amounts.get(each.context.unit, 0) <= each.budget for each in standing)


def _is_reserved(row: Row) -> bool:
    """Whether a run asks for no more tokens than it has reserved: it takes nothing from the others, and goes first."""
    name, needs, spent, held = row[9:]
    tokens = decode_spent(row[7]).get(SHARED_DIM, 0)
    if not tokens or name not in decode_needs(needs).draws_on:
        return False
    return tokens <= decode_needs(needs).reserved(SHARED_DIM, 1, decode_spent(spent)) - (held or 0)


def _ready_ms(standing: list[_Standing], amounts: Mapping[str, int], paced_ms: int) -> int | None:
    """Return from when on a limit can serve an ask, if no more is used; None if that does not depend on time alone."""
    ready_ms = paced_ms
    for each in standing:
        throttled_until = each.context.throttled_until
        if throttled_until is not None:
            ready_ms = max(ready_ms, to_ms_up(throttled_until))
        amount = amounts.get(each.context.unit, 0)
        if amount and each.available - each.reserved < amount:
            covered_ms = replenishment.covered_at(each.context.allowance, amount + each.reserved)
            if covered_ms is None:
                return None
            ready_ms = max(ready_ms, covered_ms)
    return ready_ms
