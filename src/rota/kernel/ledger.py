"""The ledger: what was used, against what is allowed.

Three levels. An agent's grant is a total. A project's budget and everybody's are per rolling window. A charge
is always recorded, over a limit too: what was used was used. `charge` is the one door for usage: the agent's
line, its project's windows, everybody's, the contexts it draws on and its flow move in one transaction.

Nothing here decides whether an entry may run (see policy/eligibility), and a claim writes nothing here: what
live claims may still use is read from the claims themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from rota.errors import (
    LedgerExists,
    LedgerInvalidAmount,
    LedgerInvalidRefund,
    LedgerInvalidWarnAt,
    LedgerUnknownDim,
    ProjectUnknown,
)
from rota.kernel import contexts, flows, usage_windows
from rota.kernel.agents import find
from rota.kernel.core import Core
from rota.kernel.journal import append
from rota.kernel.rows import Needs, needs_of, spent_of
from rota.model.budgets import BudgetLine, LedgerLine
from rota.model.checks import AMOUNT_MAX, INTEGER_MAX, SECONDS_MAX, Checks
from rota.model.events import (
    BudgetSet,
    LedgerBreached,
    LedgerCharged,
    LedgerCreated,
    LedgerGranted,
    LedgerRefunded,
    LedgerWarned,
    ShareWindowSet,
)
from rota.store import Row, Transaction
from rota.store.statements import budgets as sql
from rota.store.statements import claims as claim_sql
from rota.store.statements import file as file_sql
from rota.store.statements import projects as project_sql

__all__ = ["SHARED_DIM", "Charged", "Ledger", "Payer", "record"]

SHARED_DIM = "tokens"  # the dimension that shares are counted in
WARN_AT = 0.8
_checks = Checks("Ledger", LedgerInvalidAmount)
_warn = Checks("Ledger", LedgerInvalidWarnAt)
_refund = Checks("Ledger", LedgerInvalidRefund)


class Charged(NamedTuple):
    """Where a line stands after a charge."""

    used: int
    granted: int
    hard_limit: int
    over_limit: bool
    first_breach: bool  # this charge crossed the limit
    warned: bool  # this charge crossed the warning mark


class Checked(NamedTuple):
    """What a charge would do."""

    used: int
    would_use: int
    hard_limit: int
    would_exceed: bool


class Payer(NamedTuple):
    """Who a charge falls upon."""

    pid: int
    project_id: str | None
    needs: Needs
    sched_id: int | None = None


def record(
    tx: Transaction, payer: Payer, amounts: Mapping[str, int], now: float, *, moves_flow: bool
) -> dict[str, Charged]:
    """Record usage at every level. Dimensions in which the agent has no line are recorded above it."""
    lines = {dim: line for dim in amounts if (line := _charge_line(tx, payer.pid, dim, amounts[dim])) is not None}
    owners = [(usage_windows.EVERYBODY, amounts)]
    if payer.project_id is not None:
        owners.append((payer.project_id, amounts))
    usage_windows.add(tx, owners, now)
    rations = contexts.rations_of(tx, payer.needs, payer.pid, payer.project_id)
    moved = contexts.charge(tx, rations, dict(amounts), now)
    shared = amounts.get(SHARED_DIM, 0) if moves_flow else 0
    moves = flows.after_cost(tx, [(payer.pid, payer.project_id, shared)]) if shared else []
    fact = LedgerCharged(
        amounts=dict(amounts), sched_id=payer.sched_id, project_id=payer.project_id, contexts=moved, flows=moves
    )
    event_id = append(tx, fact, now=now, pid=payer.pid)
    flows.save(tx, moves, event_id=event_id)
    for dim, line in lines.items():
        _tell(tx, payer.pid, dim, line, now)
    return lines


def _charge_line(tx: Transaction, pid: int, dim: str, amount: int) -> Charged | None:
    rows = tx.run(sql.LEDGER_CHARGE, (amount, pid, dim, INTEGER_MAX))
    if not rows:
        if tx.run(sql.LEDGER_LINE, (pid, dim)):
            raise _checks.refuse("amount", f"({amount:,}) is more than a ledger can count")
        return None
    _, _, used, granted, limit, warn_at = rows[0]
    before = used - amount
    mark = warn_at * granted
    return Charged(used, granted, limit, used > limit, before <= limit < used, before < mark <= used)


def _tell(tx: Transaction, pid: int, dim: str, line: Charged, now: float) -> None:
    if line.warned:
        append(tx, LedgerWarned(dim=dim, used=line.used, granted=line.granted), now=now, pid=pid)
    if line.first_breach:
        fact = LedgerBreached(level="agent", owner=str(pid), dim=dim, used=line.used, limit=line.hard_limit)
        append(tx, fact, now=now, pid=pid)


class Ledger:
    """Grants, charges, refunds, and the budgets of projects and of everybody."""

    def __init__(self, core: Core) -> None:
        self._core = core

    # --- an agent's lines ------------------------------------------------------------------------

    def create(self, pid: int, grants: Mapping[str, int], warn_at: float = WARN_AT) -> list[LedgerLine]:
        """Give an agent a total for each dimension: all of them or, if one exists or is wrong, none."""
        for dim, amount in _checks.mapping("grants", grants).items():
            _checks.text("dim", dim)
            _checks.whole(f"grants[{dim!r}]", amount, 1)
        _warn.number("warn_at", warn_at, 0, 1)
        now = self._core.now()

        def work(tx: Transaction) -> list[LedgerLine]:
            find(tx, pid)
            there = {line.dim for line in _lines(tx, pid)}
            for dim, amount in grants.items():
                if dim in there:
                    raise LedgerExists(f"agent {pid} has a line for {dim} already", pid=pid, dim=dim)
                tx.run(sql.LEDGER_CREATE, (pid, dim, amount, warn_at))
            append(tx, LedgerCreated(grants=dict(grants), warn_at=warn_at), now=now, pid=pid)
            return _lines(tx, pid)

        return self._core.write(work)

    def get(self, pid: int) -> list[LedgerLine]:
        """An agent's lines; none is no error."""
        return self._core.read(lambda tx: _lines(tx, pid))

    def charge(self, pid: int, dim: str, amount: int) -> Charged:
        """Record usage of one dimension in which the agent has a line."""
        _checks.text("dim", dim)
        _checks.whole("amount", amount, 0, AMOUNT_MAX)
        now = self._core.now()

        def work(tx: Transaction) -> Charged:
            project_id = find(tx, pid).project_id
            _line(tx, pid, dim)
            payer = Payer(pid, project_id, needs_of(None))
            return record(tx, payer, {dim: amount}, now, moves_flow=True)[dim]

        return self._core.write(work)

    def check(self, pid: int, dim: str, amount: int) -> Checked:
        """What a charge would do, without doing it."""
        _checks.whole("amount", amount, 0, AMOUNT_MAX)

        def work(tx: Transaction) -> Checked:
            line = _line(tx, pid, dim)
            would_use = line.used + amount
            return Checked(line.used, would_use, line.hard_limit, would_use > line.hard_limit)

        return self._core.read(work)

    def refund(self, pid: int, dim: str, amount: int) -> LedgerLine:
        """Give usage back, at every level; not more than was used."""
        _refund.whole("amount", amount, 0)
        now = self._core.now()

        def work(tx: Transaction) -> LedgerLine:
            project_id = find(tx, pid).project_id
            line = _line(tx, pid, dim)
            if amount > line.used:
                raise _refund.refuse("amount", f"({amount:,}) is more than was used ({line.used:,})")
            tx.run(sql.LEDGER_CHARGE, (-amount, pid, dim, INTEGER_MAX))
            for owner in (usage_windows.EVERYBODY, project_id):
                if owner is not None:
                    usage_windows.take_back(tx, owner, dim, amount, now)
            rations = contexts.rations_of(tx, needs_of(None), pid, project_id)
            moved = contexts.charge(tx, rations, {dim: -amount}, now)
            moves = flows.after_cost(tx, [(pid, project_id, -amount)]) if dim == SHARED_DIM else []
            event_id = append(tx, LedgerRefunded(amounts={dim: amount}, contexts=moved, flows=moves), now=now, pid=pid)
            flows.save(tx, moves, event_id=event_id)
            tx.notes.wake = True
            return _line(tx, pid, dim)

        return self._core.write(work)

    def update_grant(self, pid: int, dim: str, granted: int) -> LedgerLine:
        """Change a grant and with it the limit."""
        _checks.whole("granted", granted, 1)
        now = self._core.now()

        def work(tx: Transaction) -> LedgerLine:
            line = _line(tx, pid, dim)
            tx.run(sql.LEDGER_GRANT, (granted, pid, dim))
            append(tx, LedgerGranted(dim=dim, granted=granted, previous=line.granted), now=now, pid=pid)
            tx.notes.wake = True
            return _line(tx, pid, dim)

        return self._core.write(work)

    def list_breached(self) -> list[LedgerLine]:
        """Every line that is used up and more, by pid and dimension."""
        return [LedgerLine(*row) for row in self._core.read(lambda tx: tx.run(sql.LEDGER_BREACHED))]

    # --- projects and everybody ------------------------------------------------------------------

    def set_budget(
        self,
        level: Literal["project", "global"],
        owner: str,
        dim: str,
        limit: int | None,
        *,
        window_s: float = usage_windows.SHARE_WINDOW_S,
    ) -> None:
        """Set what a project, or everybody (`"*"`), may use per rolling window; None lifts the budget."""
        _checks.one_of("level", level, ("project", "global"))
        _checks.text("owner", owner)
        _checks.text("dim", dim)
        if (level == "global") != (owner == usage_windows.EVERYBODY):
            raise _checks.refuse("owner", f"of a {level} budget cannot be {owner!r}")
        if limit is not None:
            _checks.whole("limit", limit, 0)
        _checks.number("window_s", window_s, 1, SECONDS_MAX)
        now = self._core.now()

        def work(tx: Transaction) -> None:
            if level == "project" and not tx.run(project_sql.GET, (owner,)):
                raise ProjectUnknown(f"there is no project {owner!r}", project_id=owner)
            if limit is None:
                tx.run(sql.BUDGET_DROP, (owner, dim))
            else:
                for (before_s,) in tx.run(sql.BUDGET_WINDOW, (owner, dim)):
                    usage_windows.resize(tx, (owner, dim, before_s), window_s, now)
                usage_windows.open_window(tx, owner, dim, window_s)
                tx.run(sql.BUDGET_SET, (owner, dim, limit, window_s))
            append(tx, BudgetSet(level=level, owner=owner, dim=dim, limit=limit, window_s=window_s), now=now)
            tx.notes.wake = True

        self._core.write(work)

    def share_window(self) -> float:
        """How far back fair_share looks, in seconds."""
        return self._core.read(usage_windows.share_window_s)

    def set_share_window(self, window_s: float) -> None:
        """Have fair_share look back this far. What was used in that time, as far as it is known, counts at once."""
        _checks.number("window_s", window_s, 1, SECONDS_MAX)
        now = self._core.now()

        def work(tx: Transaction) -> None:
            before_s = usage_windows.share_window_s(tx)
            if before_s == window_s:
                return
            for owner, counted_s in tx.run(sql.WINDOWS_OF_DIM, (usage_windows.SHARE,)):
                usage_windows.resize(tx, (owner, usage_windows.SHARE, counted_s), window_s, now)
            tx.run(file_sql.META_SET, (usage_windows.SHARE_WINDOW, repr(float(window_s))))
            append(tx, ShareWindowSet(window_s=window_s, previous_s=before_s), now=now)
            tx.notes.wake = True

        self._core.write(work)

    def budgets(self) -> list[BudgetLine]:
        """Every project's and the global budgets: what was used in their windows, and what live runs may still use."""
        now = self._core.now()

        def work(tx: Transaction) -> list[BudgetLine]:
            live = tx.run(claim_sql.LIVE)
            return [_budget(row, live) for row in tx.run(sql.BUDGETS_ALL, (now,))]

        return self._core.read(work)


def _budget(row: Row, live: list[Row]) -> BudgetLine:
    owner, dim, amount, window_s, used = row
    everybody = owner == usage_windows.EVERYBODY
    reserved = sum(
        count * needs_of(needs).reserved(dim, 1, spent_of(spent))
        for _, project_id, _, needs, spent, count in live
        if everybody or project_id == owner
    )
    return BudgetLine(
        level="global" if everybody else "project",
        owner=owner,
        dim=dim,
        limit=amount,
        window_s=window_s,
        used=used,
        reserved=reserved,
    )


def _lines(tx: Transaction, pid: int) -> list[LedgerLine]:
    _checks.whole("pid", pid)
    return [LedgerLine(*row) for row in tx.run(sql.LEDGER_GET, (pid,))]


def _line(tx: Transaction, pid: int, dim: str) -> LedgerLine:
    _checks.whole("pid", pid)
    _checks.text("dim", dim)
    rows = tx.run(sql.LEDGER_LINE, (pid, dim))
    if not rows:
        raise LedgerUnknownDim(f"agent {pid} has no line for {dim!r}", pid=pid, dim=dim)
    return LedgerLine(*rows[0])
