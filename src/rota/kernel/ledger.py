"""The ledger: what was used, against what is allowed.

There are three levels. An agent's grant is a total. The budgets of a project and of all projects together are per
rolling window. A charge is always recorded, even beyond a limit, because the usage has happened. All usage goes
through `record_usage`: the agent's line, the windows of its project and of all projects, the contexts it draws on and
its flow change in one transaction.

Nothing here decides whether an entry may run (see policy/eligibility), and a claim writes nothing here: what live
claims may still use is computed from the claims.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple

import msgspec

from rota.decoding import decode_json
from rota.errors import (
    LedgerExists,
    LedgerInvalidAmount,
    LedgerInvalidRefund,
    LedgerInvalidWarnAt,
    LedgerUnknownDim,
    LimitExceeded,
)
from rota.kernel import contexts, flows, graph_budgets, usage_windows
from rota.kernel.budget_alerts import (
    ReachedWindow,
    check_alerts,
    crossed_shares,
    decode_alerts,
    encode_alerts,
    record_agent_alerts,
    record_window_alerts,
    still_alerted,
)
from rota.kernel.budget_loans import OpenLoan, open_loans, reserved_in_budgets, reserved_on_ledger
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.lookups import check_project_exists, find_agent
from rota.kernel.rows import Needs, decode_needs, decode_spent
from rota.kernel.settings import write_setting
from rota.kernel.store_policy import share_dim
from rota.model.budgets import ALERTS, BudgetLine, LedgerLine
from rota.model.checks import AMOUNT_MAX, DIMS_MAX, INTEGER_MAX, SECONDS_MAX, Checks
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
from rota.model.graph_budgets import GraphAccount, GraphBudgetLine
from rota.store import Row, Transaction
from rota.store.statements import budgets as sql
from rota.store.statements import claims as claim_sql

__all__ = [
    "WARN_AT",
    "ChargePreview",
    "ChargeResult",
    "Ledger",
    "Payer",
    "inherit_ledger",
    "ledger_lines",
    "record_usage",
]

WARN_AT = 0.8  # the default fraction of a grant at which a warning event is written
_NOTHING: Mapping[str, int] = {}
_checks = Checks("Ledger", LedgerInvalidAmount)
_warn = Checks("Ledger", LedgerInvalidWarnAt)
_refund = Checks("Ledger", LedgerInvalidRefund)


class ChargeResult(NamedTuple):
    """A ledger line after a charge."""

    used: int
    granted: int
    hard_limit: int
    over_limit: bool
    first_breach: bool  # this charge crossed the limit
    warned: bool  # this charge crossed the warning mark


class ChargePreview(NamedTuple):
    """A ledger line as a charge would leave it."""

    used: int
    would_use: int
    hard_limit: int
    would_exceed: bool


class Payer(NamedTuple):
    """The agent and project that a charge is recorded for, and the needs of the entry."""

    pid: int
    project_id: str | None
    needs: Needs
    sched_id: int | None = None
    covered: Mapping[str, Mapping[str, int]] = {}  # by limit and unit: what the run has acquired there before
    ask: str | None = None  # the key of the ask that this settles
    model: str | None = None  # that was used
    account: GraphAccount | None = None  # the graph run and node in whose budgets it counts


def record_usage(
    tx: Transaction, payer: Payer, amounts: Mapping[str, int], now: float, *, moves_flow: bool
) -> dict[str, ChargeResult]:
    """Record usage at every level; in a dimension without an agent line, only at the levels above."""
    charged = {dim: each for dim in amounts if (each := _charge_line(tx, payer.pid, dim, amounts[dim])) is not None}
    owners = [(usage_windows.ALL_PROJECTS, amounts)]
    if payer.project_id is not None:
        owners.append((payer.project_id, amounts))
    reached = usage_windows.add(tx, owners, now)
    moved: dict[str, int] = {}
    for context in contexts.contexts_for(tx, payer.needs, payer.pid, payer.project_id):
        covered = payer.covered.get(context.name or "", _NOTHING).get(context.unit, 0)
        moved |= contexts.charge(tx, [context], {context.unit: max(0, amounts.get(context.unit, 0) - covered)}, now)
    shared = amounts.get(share_dim(tx), 0) if moves_flow else 0
    moves = flows.moves_for_costs(tx, [(payer.pid, payer.project_id, shared)]) if shared else []
    event = LedgerCharged(
        amounts=dict(amounts),
        sched_id=payer.sched_id,
        project_id=payer.project_id,
        contexts=moved,
        flows=moves,
        ask=payer.ask,
        model=payer.model,
        account=None if payer.account is None else (payer.account.run_id, payer.account.node),
        outer=[] if payer.account is None else [(place.run_id, place.node) for place in payer.account.outer],
    )
    event_id = append(tx, event, now=now, pid=payer.pid)
    flows.save_moves(tx, moves, event_id=event_id)
    for dim, (line, shares) in charged.items():
        _record_crossings(tx, payer.pid, dim, line, now)
        if shares:
            record_agent_alerts(tx, payer.pid, dim, shares, used=line.used, limit=line.hard_limit, now=now)
    for window in reached:
        record_window_alerts(tx, ReachedWindow(*window), now)
    return {dim: line for dim, (line, _) in charged.items()}


def ledger_lines(tx: Transaction, pid: int, dims: Collection[str]) -> dict[str, ChargeResult]:
    """Return an agent's lines in some dimensions, as a charge that crosses no mark would leave them."""
    return {
        line.dim: ChargeResult(line.used, line.granted, line.hard_limit, line.used > line.hard_limit, False, False)
        for line in _lines(tx, pid)
        if line.dim in dims
    }


def _charge_line(tx: Transaction, pid: int, dim: str, amount: int) -> tuple[ChargeResult, list[float]] | None:
    """Charge an agent's line; returns it with the alerts that are due, or None if the agent has no such line."""
    rows = tx.run(sql.LEDGER_CHARGE, (amount, pid, dim, INTEGER_MAX))
    if not rows:
        if tx.run(sql.LEDGER_LINE, (pid, dim)):
            raise _checks.refuse("amount", f"({amount:,}) is more than a ledger line can store")
        return None
    _, _, used, granted, limit, warn_at, alerts = rows[0]
    before = used - amount
    mark = warn_at * granted
    line = ChargeResult(used, granted, limit, used > limit, before <= limit < used, before < mark <= used)
    return line, crossed_shares(before, used, limit, decode_alerts(alerts))


def _record_crossings(tx: Transaction, pid: int, dim: str, line: ChargeResult, now: float) -> None:
    """Record that a charge crossed the warning mark or the limit."""
    if line.warned:
        append(tx, LedgerWarned(dim=dim, used=line.used, granted=line.granted), now=now, pid=pid)
    if line.first_breach:
        event = LedgerBreached(level="agent", owner=str(pid), dim=dim, used=line.used, limit=line.hard_limit)
        append(tx, event, now=now, pid=pid)


def inherit_ledger(tx: Transaction, pid: int, name: str, project_id: str | None, now: float) -> None:
    """Give a new agent the lines of the last dead agent of its name in its project, if that had any.

    What runs of the dead agent may still use counts as used: they charge the lines of the dead agent.
    """
    rows = tx.run(sql.LEDGERS_OF_DEAD, (name, project_id))
    for dead_pid, dim, used, granted, limit, warn_at, alerts in rows:
        reserved = reserved_on_ledger(open_loans(tx), dead_pid).get(dim, 0) + sum(
            count * decode_needs(needs).reserved(dim, 0, decode_spent(spent))
            for owner, _, _, needs, spent, count in tx.run(claim_sql.LIVE)
            if owner == dead_pid
        )
        total = min(used + reserved, INTEGER_MAX)
        tx.run(sql.LEDGER_INHERIT, (pid, dim, total, granted, limit, warn_at, alerts))
        event = LedgerCreated(grants={dim: granted}, warn_at=warn_at, used={dim: total}, inherited_from=dead_pid)
        append(tx, event, now=now, pid=pid)


class Ledger:
    """Grants, charges, refunds, and the budgets of projects and of all projects together."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env

    # --- an agent's lines ------------------------------------------------------------------------

    def create(
        self,
        pid: int,
        grants: Mapping[str, int],
        warn_at: float = WARN_AT,
        *,
        alerts: tuple[float, ...] = ALERTS,
    ) -> list[LedgerLine]:
        """Grant an agent a total per dimension: all of them or, if one exists or is invalid, none."""
        for dim, amount in _checks.mapping("grants", grants).items():
            _checks.name("dim", dim)
            _checks.whole(f"grants[{dim!r}]", amount, 1)
        _warn.number("warn_at", warn_at, 0, 1)
        shares = encode_alerts(check_alerts(_checks, alerts))
        now = self._env.now()

        def work(tx: Transaction) -> list[LedgerLine]:
            find_agent(tx, pid)
            existing = {line.dim for line in _lines(tx, pid)}
            if len(existing) + len(grants) > DIMS_MAX:
                raise LimitExceeded("dims_max", DIMS_MAX, len(existing) + len(grants), field="grants")
            for dim, amount in grants.items():
                if dim in existing:
                    raise LedgerExists(f"agent {pid} already has a line for {dim}", pid=pid, dim=dim)
                tx.run(sql.LEDGER_CREATE, (pid, dim, amount, warn_at, shares))
            append(tx, LedgerCreated(grants=dict(grants), warn_at=warn_at), now=now, pid=pid)
            return _lines(tx, pid)

        return self._env.write(work)

    def get(self, pid: int) -> list[LedgerLine]:
        """Return an agent's lines, possibly none."""
        return self._env.read(lambda tx: _lines(tx, pid))

    def charge(self, pid: int, dim: str, amount: int) -> ChargeResult:
        """Record usage of one dimension in which the agent has a line."""
        _checks.text("dim", dim)
        _checks.whole("amount", amount, 0, AMOUNT_MAX)

        def work(tx: Transaction) -> ChargeResult:
            now = self._env.read_clock(tx)
            project_id = find_agent(tx, pid).project_id
            _line(tx, pid, dim)
            payer = Payer(pid, project_id, decode_needs(None))
            return record_usage(tx, payer, {dim: amount}, now, moves_flow=True)[dim]

        return self._env.write(work)

    def check(self, pid: int, dim: str, amount: int) -> ChargePreview:
        """Return what a charge would do, without recording it."""
        _checks.whole("amount", amount, 0, AMOUNT_MAX)

        def work(tx: Transaction) -> ChargePreview:
            line = _line(tx, pid, dim)
            would_use = line.used + amount
            return ChargePreview(line.used, would_use, line.hard_limit, would_use > line.hard_limit)

        return self._env.read(work)

    def refund(self, pid: int, dim: str, amount: int) -> LedgerLine:
        """Refund usage at every level, at most what was used.

        It is the agent's latest usage that is refunded: a window or period from which that has left does not change.
        """
        _refund.whole("amount", amount, 0)

        def work(tx: Transaction) -> LedgerLine:
            now = self._env.read_clock(tx)
            project_id = find_agent(tx, pid).project_id
            line = _line(tx, pid, dim)
            if amount > line.used:
                raise _refund.refuse("amount", f"({amount:,}) is more than was used ({line.used:,})")
            tx.run(sql.LEDGER_CHARGE, (-amount, pid, dim, INTEGER_MAX))
            for owner in (usage_windows.ALL_PROJECTS, project_id):
                if owner is not None:
                    usage_windows.subtract(tx, owner, dim, lambda at: min(amount, _used_since(tx, pid, at, dim)), now)
            moved: dict[str, int] = {}
            for context in contexts.contexts_for(tx, decode_needs(None), pid, project_id):
                since_at = now - context.allowance.period / 1000
                part = min(amount, _used_since(tx, pid, since_at, context.context_id))
                moved |= contexts.charge(tx, [context], {dim: -part}, now)
            moves = flows.moves_for_costs(tx, [(pid, project_id, -amount)]) if dim == share_dim(tx) else []
            event_id = append(tx, LedgerRefunded(amounts={dim: amount}, contexts=moved, flows=moves), now=now, pid=pid)
            flows.save_moves(tx, moves, event_id=event_id)
            tx.effects.wake_parked = True
            return _line(tx, pid, dim)

        return self._env.write(work)

    def update_grant(self, pid: int, dim: str, granted: int, *, alerts: tuple[float, ...] | None = None) -> LedgerLine:
        """Change a grant and, with it, the limit; and its alerts, if they are given."""
        _checks.whole("granted", granted, 1)
        shares = None if alerts is None else encode_alerts(check_alerts(_checks, alerts))
        now = self._env.now()

        def work(tx: Transaction) -> LedgerLine:
            line = _line(tx, pid, dim)
            tx.run(sql.LEDGER_GRANT, (granted, pid, dim))
            if shares is not None:
                tx.run(sql.LEDGER_ALERTS, (shares, pid, dim))
            append(tx, LedgerGranted(dim=dim, granted=granted, previous=line.granted), now=now, pid=pid)
            tx.effects.wake_parked = True
            return _line(tx, pid, dim)

        return self._env.write(work)

    def list_breached(self) -> list[LedgerLine]:
        """Return every line that is over its limit, by pid and dimension."""
        return [_ledger_line(row) for row in self._env.read(lambda tx: tx.run(sql.LEDGER_BREACHED))]

    # --- projects and all projects ---------------------------------------------------------------

    def set_budget(
        self,
        level: Literal["project", "global"],
        owner: str,
        dim: str,
        limit: int | None,
        *,
        window_s: float = usage_windows.SHARE_WINDOW_S,
        alerts: tuple[float, ...] | None = None,
    ) -> None:
        """Set the budget of a project, or of all projects (`"*"`), per rolling window; None removes it.

        `alerts` are the shares at which an alert is recorded; None keeps them as they are, `ALERTS` if it is new.
        """
        _checks.one_of("level", level, ("project", "global"))
        _checks.text("owner", owner)
        _checks.text("dim", dim) if limit is None else _checks.name("dim", dim)
        if (level == "global") != (owner == usage_windows.ALL_PROJECTS):
            raise _checks.refuse("owner", f"of a {level} budget cannot be {owner!r}")
        if limit is not None:
            _checks.whole("limit", limit, 0)
        _checks.number("window_s", window_s, 1, SECONDS_MAX)
        shares = None if alerts is None else encode_alerts(check_alerts(_checks, alerts))

        def work(tx: Transaction) -> None:
            now = self._env.read_clock(tx)
            if level == "project":
                check_project_exists(tx, owner)
            if limit is None:
                tx.run(sql.BUDGET_DROP, (owner, dim))
            else:
                kept, alerted = encode_alerts(ALERTS), "{}"
                for before_s, used, kept_text, alerted_text in tx.run(sql.BUDGET_WINDOW, (owner, dim)):
                    usage_windows.resize(tx, (owner, dim, before_s), window_s, now)
                    kept, alerted = kept_text, still_alerted(alerted_text, used, limit)
                usage_windows.open_window(tx, owner, dim, window_s)
                tx.run(sql.BUDGET_SET, (owner, dim, limit, window_s, kept if shares is None else shares, alerted))
                tx.run(sql.WINDOW_ALERT, (0, owner, dim, window_s))
            append(tx, BudgetSet(level=level, owner=owner, dim=dim, limit=limit, window_s=window_s), now=now)
            tx.effects.wake_parked = True

        self._env.write(work)

    # --- graph runs ------------------------------------------------------------------------------

    def open_graph_budgets(self, run_id: str, budgets: Mapping[str, Mapping[str, int]]) -> list[GraphBudgetLine]:
        """Give a graph run (node "") and its nodes budgets; those that exist stay as they are. Returns all of them."""
        _checks.text("run_id", run_id)
        for node, amounts in _checks.mapping("budgets", budgets).items():
            _checks.mapping(f"budgets[{node!r}]", amounts)

        def work(tx: Transaction) -> list[GraphBudgetLine]:
            pid = graph_budgets.find_run(tx, run_id)
            graph_budgets.open_lines(tx, run_id, budgets, self._env.read_clock(tx), pid)
            return graph_budgets.read_lines(tx, run_id)

        return self._env.write(work)

    def set_graph_budget(self, run_id: str, dim: str, limit: int, *, node: str = "") -> list[GraphBudgetLine]:
        """Set the budget of a graph run, or of one of its nodes; returns all of the run. What waits for it goes on."""
        _checks.text("run_id", run_id)

        def work(tx: Transaction) -> list[GraphBudgetLine]:
            graph_budgets.find_run(tx, run_id)
            line = GraphBudgetLine(run_id=run_id, node=node, dim=dim, limit=limit)
            graph_budgets.set_line(tx, self._env, line, self._env.read_clock(tx))
            return graph_budgets.read_lines(tx, run_id)

        return self._env.write(work)

    def charge_graph(
        self,
        run_id: str,
        amounts: Mapping[str, int],
        *,
        node: str = "",
        model: str | None = None,
        key: str | None = None,
    ) -> list[GraphBudgetLine]:
        """Record what a node of a graph used in the process that executes the run, which has no claim.

        It counts for the run's agent at every level. A second charge of the run with the same `key` records nothing.
        Returns the budgets of the run.
        """
        _checks.text("run_id", run_id)
        _checks.amounts("amounts", amounts)
        _checks.optional_name("model", model)
        _checks.optional_text("key", key)
        account = GraphAccount(run_id, node)
        account.check()

        def work(tx: Transaction) -> list[GraphBudgetLine]:
            now, pid = self._env.read_clock(tx), graph_budgets.find_run(tx, run_id)
            if key is not None and not graph_budgets.is_new_charge(tx, run_id, key):
                return graph_budgets.read_lines(tx, run_id)
            payer = Payer(pid, find_agent(tx, pid).project_id, decode_needs(None), model=model, account=account)
            record_usage(tx, payer, dict(amounts), now, moves_flow=True)
            graph_budgets.charge_lines(tx, account, amounts, now, pid)
            return graph_budgets.read_lines(tx, run_id)

        return self._env.write(work)

    def graph_budgets(self, run_id: str) -> list[GraphBudgetLine]:
        """Return the budgets of a graph run and of its nodes, with usage and what live runs have reserved."""
        _checks.text("run_id", run_id)

        def work(tx: Transaction) -> list[GraphBudgetLine]:
            lines = graph_budgets.read_lines(tx, run_id)
            return graph_budgets.with_reserved(lines, tx.run(claim_sql.LIVE)) if lines else []

        return self._env.read(work)

    # --- fair share ------------------------------------------------------------------------------

    def share_window(self) -> float:
        """Return how far back fair_share looks, in seconds."""
        return self._env.read(usage_windows.share_window_s)

    def set_share_window(self, window_s: float) -> None:
        """Set how far back fair_share looks. Recorded usage within the new window counts immediately."""
        _checks.number("window_s", window_s, 1, SECONDS_MAX)

        def work(tx: Transaction) -> None:
            now = self._env.read_clock(tx)
            before_s = usage_windows.share_window_s(tx)
            if before_s == window_s:
                return
            usage_windows.count_notes(tx, before_s, now)
            for owner, counted_s in tx.run(sql.WINDOWS_OF_DIM, (usage_windows.SHARE,)):
                usage_windows.resize(tx, (owner, usage_windows.SHARE, counted_s), window_s, now)
            write_setting(tx, usage_windows.SHARE_WINDOW_KEY, repr(float(window_s)))
            append(tx, ShareWindowSet(window_s=window_s, previous_s=before_s), now=now)
            tx.effects.wake_parked = True

        self._env.write(work)

    def budgets(self) -> list[BudgetLine]:
        """Return the project and global budgets, each with its usage and what live runs have reserved."""
        now = self._env.now()

        def work(tx: Transaction) -> list[BudgetLine]:
            live, loans = tx.run(claim_sql.LIVE), open_loans(tx)
            return [_budget(row, live, loans) for row in tx.run(sql.BUDGETS_ALL, (now,))]

        return self._env.read(work)


def _budget(row: Row, live: list[Row], loans: list[OpenLoan]) -> BudgetLine:
    owner, dim, amount, window_s, used, alerts = row
    is_global = owner == usage_windows.ALL_PROJECTS
    reserved = sum(
        count * decode_needs(needs).reserved(dim, 1, decode_spent(spent))
        for _, project_id, _, needs, spent, count in live
        if is_global or project_id == owner
    )
    return BudgetLine(
        level="global" if is_global else "project",
        owner=owner,
        dim=dim,
        limit=amount,
        window_s=window_s,
        used=used,
        reserved=reserved + reserved_in_budgets(loans, owner).get(dim, 0),
        alerts=decode_alerts(alerts),
    )


class _LedgerMove(msgspec.Struct):
    """The amounts of a charge or a refund, as its event has them."""

    amounts: dict[str, int] = {}
    contexts: dict[str, int] = {}  # negative in a refund


def _used_since(tx: Transaction, pid: int, since_at: float, what: str | int) -> int:
    """Return how much of a dimension, or of a context, an agent has used after an instant, minus its refunds."""
    used = 0
    for kind, payload in tx.run(sql.LEDGER_MOVES, (pid, since_at)):
        move = decode_json(payload, _LedgerMove)
        if isinstance(what, int):
            used += move.contexts.get(str(what), 0)
        else:
            used += move.amounts.get(what, 0) * (1 if kind == LedgerCharged.kind else -1)
    return max(0, used)


def _lines(tx: Transaction, pid: int) -> list[LedgerLine]:
    _checks.whole("pid", pid)
    return [_ledger_line(row) for row in tx.run(sql.LEDGER_GET, (pid,))]


def _ledger_line(row: Row) -> LedgerLine:
    pid, dim, used, granted, hard_limit, warn_at, alerts = row
    return LedgerLine(pid, dim, used, granted, hard_limit, warn_at, decode_alerts(alerts))


def _line(tx: Transaction, pid: int, dim: str) -> LedgerLine:
    _checks.whole("pid", pid)
    _checks.text("dim", dim)
    rows = tx.run(sql.LEDGER_LINE, (pid, dim))
    if not rows:
        raise LedgerUnknownDim(f"agent {pid} has no line for {dim!r}", pid=pid, dim=dim)
    return _ledger_line(rows[0])
