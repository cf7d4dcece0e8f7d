"""A claim pass: select entries, check each one, then write all claims with one event.

The code that chooses the order (strict order here, a policy in the service) calls `try_claim` for one entry after the
other. Each entry is checked against everything that can block it, including what the same pass has claimed before. It
is either added to the pass or refused with a reason, and a refusal also excludes the entries that would be refused for
the same reason. `write` then stores all claims: one event, whose id is the claim token of each of them.

An entry whose row cannot be read is claimed and ended in the same transaction, as failed with the outcome `unreadable`:
it can never run, and it must not keep the entries behind it from running. A caller that got nothing else tries again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from functools import cached_property
from operator import itemgetter
from typing import Any, Literal, TypeVar

import msgspec

from rota.kernel import affinity, contexts, flows
from rota.kernel.claim_checks import CheckedEntry, ClaimChecks
from rota.kernel.completion import UNREADABLE, end_runs
from rota.kernel.contexts import ContextRow
from rota.kernel.environment import UNLIMITED, DueSummary, KernelEnvironment
from rota.kernel.flows import NO_PROJECT, ServedFlows
from rota.kernel.journal import append
from rota.kernel.maintenance import Maintenance, lift_holds, promote, restore_holds
from rota.kernel.paging import READ_MAX
from rota.kernel.rows import (
    ATTEMPT,
    CREATED_AT,
    DEADLINE,
    KIND,
    NEEDS,
    PAYLOAD,
    PID,
    PRIORITY,
    PROJECT,
    RESULT,
    RUNNABLE_AT,
    UNREADABLE_NEEDS,
    claimed_entry,
    decode_needs,
    encode_json,
    json_list,
    unreadable_columns,
)
from rota.kernel.run_reports import RunEnd
from rota.kernel.turn import TurnRequest
from rota.model import reasons
from rota.model.checks import RESULT_BYTES_MAX
from rota.model.events import ClaimedEntry, EntriesClaimed
from rota.model.lifecycle import EntryState
from rota.model.reasons import BlockingBase
from rota.model.work import ReadyEntry
from rota.model.workers import ONLY_KINDS
from rota.store import Row, Statement, Transaction
from rota.store.author import MAINTENANCE, acting_as
from rota.store.statements import claims as sql
from rota.store.statements import projects as project_sql
from rota.store.statements import ready_heads as head_sql

__all__ = ["CLAIM_BYTES_MAX", "ClaimPass", "PendingClaim", "begin_claim", "read_of_ready", "read_ready_ahead"]

CLAIM_BYTES_MAX = 16 * 1024 * 1024  # payload bytes after which a claim takes no more entries, to bound its response

_sched_id = itemgetter(-1)
READY_WITHOUT_INDEX_MAX = 10_000  # ready entries for which a dry run creates an index that is rolled back
REFILL_MAX = 8  # entries of an agent that are read together when those read ahead are used up
_NONE = "[]"
_NO_FLOWS = ServedFlows()
_DISPATCHED = str(EntryState.DISPATCHED)


T = TypeVar("T")


class IndexNeeded(Exception):
    """A dry run needs an index that takes long to create."""

    def __init__(self, statement: Statement) -> None:
        super().__init__(statement.name)
        self.statement = statement


class PendingClaim(msgspec.Struct, frozen=True, gc=False):
    """An entry that a pass claims, before the claim is written."""

    row: Row
    workspace: str | None
    estimate: int
    reason: str  # why the policy chose it

    @property
    def pid(self) -> int:
        """The entry's agent."""
        return self.row[PID]  # type: ignore[no-any-return]  # a row is untyped

    @property
    def project_id(self) -> str | None:
        """The entry's project."""
        return self.row[PROJECT]  # type: ignore[no-any-return]  # a row is untyped


def read_of_ready(request: TurnRequest) -> tuple[Statement, Row]:
    """Return the read that `read_ready_ahead` makes, for `Transaction.read_together`."""
    return sql.READY_AT_ANY_TIME, (request.kinds_text, min(request.max_n, READ_MAX))


def read_ready_ahead(tx: Transaction, env: KernelEnvironment, request: TurnRequest, now: float) -> list[Row] | None:
    """Read the first ready entries before runs are ended, for `begin_claim`; None if more than reading is due.

    On a server the read can be part of the first round trip, and the writes of the ends are followed by those of the
    claims, without an answer between them.
    """
    due = env.cache.due_summary(tx)
    if due is None or due.is_due(now) or due.affinity_until is not None or request.now is not None:
        return None
    if request.except_agents or due.fleet_paused_by is not None or due.any_stopped or due.any_ledger or due.any_capped:
        return None  # the pass reads none, or leaves some out
    rows = tx.run(*read_of_ready(request))
    for row in rows:
        if row[RUNNABLE_AT] > now or (row[DEADLINE] is not None and row[DEADLINE] <= now):
            return None  # rarely: the clock was moved, or a deadline passes now
    return rows


def begin_claim(
    tx: Transaction,
    env: KernelEnvironment,
    maintenance: Maintenance,
    request: TurnRequest,
    ahead: list[Row] | None = None,
) -> ClaimPass:
    """Do what is due, release what was held for the worker, and return the pass of its claim.

    `ahead` are the first ready entries, if they were read in this transaction and none has become ready since.
    """
    now = env.read_clock(tx, writes=False)
    if ahead is not None and ((known := env.cache.due_summary(tx)) is None or known.is_due(now)):
        ahead = None
    due = maintenance.run_due(tx, now, now_from_clock=True, sweeps=request.now is None, claimant=request.worker)
    env.workers_seen.mark_seen(request.worker.worker_id, env.clock_offset.read_at)
    if due.affinity_until is not None:
        affinity.release_for_claim(tx, env, request, now)
        # while entries are held for workers, one worker's empty result says nothing about another worker's
        tx.effects.applies_to_equivalents = False
    claim = ClaimPass(tx, env, request, now, due)
    claim.ahead = ahead
    if request.now is not None:
        claim.lift_holds()
    return claim


def _plus(known: AbstractSet[T], one: T) -> set[T]:
    """Return the set with one more: the same one, if it is a set of the pass."""
    if isinstance(known, set):
        known.add(one)
        return known
    return {*known, one}


class ClaimPass:
    """One round of claims inside one transaction."""

    ahead: list[Row] | None = None  # the first ready entries, if they were read before
    token: int | None = None  # of the claims, once they are written
    all_blocked = False  # a reason was found that blocks every entry
    _checks: ClaimChecks | None = None  # made at the first entry that needs a look-up
    _bytes = 0  # of the payloads claimed so far
    ended_unreadable: Collection[int] = ()  # entries that `write` has ended because they cannot be read
    # what it leaves out; nearly every claim leaves out nothing, so the first one that is added makes a set (`_plus`)
    blocked_pids: AbstractSet[int] = frozenset()  # agents whose entries need no further check
    blocked_projects: AbstractSet[str] = frozenset()
    _open_projects: AbstractSet[str | None] = frozenset((None,))  # whose own row cannot block an entry
    blocked_needs: AbstractSet[str] = frozenset()  # needs that no entry can have met now
    refused_groups: AbstractSet[str] = frozenset()  # "pid|kind|needs" of refused entries
    agents_elsewhere: AbstractSet[int] = frozenset()  # agents whose first entry only another worker can run
    _blocked_heads: AbstractSet[int | str] = frozenset()  # agents and projects whose first entry it cannot take
    _skipped_ids: AbstractSet[int] = frozenset()  # claimed ones that came again: a damaged index has an entry twice

    def __init__(
        self, tx: Transaction, env: KernelEnvironment, request: TurnRequest, now: float, due: DueSummary
    ) -> None:
        """`now` is the clock's; the entries are seen at the request's time, if it has one."""
        self.tx = tx
        self.env = env
        self.request = request
        self.claimed_at = now
        self.now = now if request.now is None else request.now
        self._kinds = request.kinds if ONLY_KINDS in request.kinds else (None, *request.kinds)  # that it takes
        self.lifted: list[Row] = []  # held entries that only this claim sees
        self.has_unreleased = due.held_at is not None and due.held_at <= now  # held entries that are due
        self._due = due
        self.claimed: list[PendingClaim] = []
        self._claimed_ids: set[int] = set()
        self.claimed_by_agent: dict[int, list[PendingClaim]] = {}  # those that went through try_claim
        self._ahead: dict[int, tuple[list[Row], bool]] = {}  # by agent: entries read ahead, and whether more exist
        if request.except_agents:
            self.blocked_pids = self.agents_elsewhere = frozenset(request.except_agents)

    @property
    def remaining(self) -> int:
        """How many more entries this claim can take."""
        return 0 if self.all_blocked or self._bytes >= CLAIM_BYTES_MAX else self.request.max_n - len(self.claimed)

    @cached_property
    def share_dim(self) -> str:
        """The dimension of usage that sharing counts on this store."""
        return self.env.cache.share_dim(self.tx)

    @property
    def is_fleet_paused(self) -> bool:
        """Whether an operator has paused everything."""
        return self._due.fleet_paused_by is not None

    @property
    def is_full(self) -> bool:
        """Whether the claim has reached its number of entries or its size."""
        return len(self.claimed) >= self.request.max_n or self._bytes >= CLAIM_BYTES_MAX

    @property
    def _claim_checks(self) -> ClaimChecks:
        if self._checks is None:
            self._checks = ClaimChecks(
                self.tx,
                self.env.cache,
                self.now,
                self._due,
                clock_now=self.claimed_at,
                check_budgets=self.request.check_budgets,
            )
        return self._checks

    # --- checking and claiming -------------------------------------------------------------------

    def try_claim(self, row: Row, *, estimate: int = 0, reason: str = "") -> BlockingBase | None:
        """Claim an entry and return None, or return the first reason that blocks it."""
        sched_id, project_id, workspace = row[0], row[PROJECT], None
        if sched_id in self._claimed_ids:  # a pass that proposes it twice gets it once
            self._skipped_ids = _plus(self._skipped_ids, sched_id)
            return reasons.NotQueued(state=_DISPATCHED)
        if (
            self._due.any_limit
            or row[NEEDS] is not None
            or not (project_id in self._open_projects or self._is_open(project_id))
        ):
            entry = CheckedEntry.from_row(row)
            if entry.needs is not UNREADABLE_NEEDS:  # otherwise `write` ends it, and nothing can block that
                blocked = self._claim_checks.first_blocking_reason(entry)
                if blocked is not None:
                    self._exclude(entry, blocked)
                    return blocked
                workspace = self._claim_checks.add_claim(entry)
        # else only its own row decides, and that is ready
        claim = PendingClaim(row, workspace, estimate, reason)
        self.claimed.append(claim)
        self._claimed_ids.add(sched_id)
        self.claimed_by_agent.setdefault(row[PID], []).append(claim)
        self._bytes += len(row[PAYLOAD]) + len(row[RESULT] or "")
        return None

    def _is_open(self, project_id: str) -> bool:
        """Whether a project's own row cannot block an entry."""
        if self.env.cache.project(self.tx, project_id) != UNLIMITED:
            return False
        self._open_projects = _plus(self._open_projects, project_id)
        return True

    def blocking_reasons(self, row: Row) -> list[BlockingBase]:
        """Return every reason that blocks an entry."""
        found = self._claim_checks.blocking_reasons(CheckedEntry.from_row(row))
        problem = unreadable_columns(row)
        return found if problem is None else [*found, reasons.Unreadable(problem=problem)]

    def prefetch_owners(self, rows: list[Row]) -> None:
        """Load the agents and projects of many entries, before the entries are checked."""
        if self._due.any_limit:
            self._claim_checks.prefetch(rows)
        else:
            self.env.cache.projects(self.tx, {row[PROJECT] for row in rows if row[PROJECT] is not None})

    def _exclude(self, entry: CheckedEntry, reason: BlockingBase) -> None:
        """Exclude the entries that would be refused for the same reason."""
        self.refused_groups = _plus(self.refused_groups, f"{entry.pid}|{entry.kind or ''}|{entry.needs_text or ''}")
        self._blocked_heads = _plus(self._blocked_heads, entry.project_id or NO_PROJECT)
        match reason:
            case reasons.PausedByOperator(level="fleet"):
                self.all_blocked = True
            case reasons.PausedByOperator(level="agent") | reasons.CapReached(level="agent"):
                self.blocked_pids = _plus(self.blocked_pids, entry.pid)
            case reasons.OverBudget(level="agent", ask=0):
                self.blocked_pids = _plus(self.blocked_pids, entry.pid)
            case reasons.OverBudget(level="global") if _is_used_up(reason):
                self.all_blocked = True
            case reasons.OverBudget(level="project") if _is_used_up(reason):
                self._exclude_project(entry)
            case (
                reasons.ProjectInactive()
                | reasons.PausedByOperator(level="project")
                | reasons.CapReached(level="project")
            ):
                self._exclude_project(entry)
            case reasons.LimitExhausted() if entry.needs_text is not None:
                self.blocked_needs = _plus(self.blocked_needs, entry.needs_text)

    def _exclude_project(self, entry: CheckedEntry) -> None:
        if entry.project_id is not None:
            self.blocked_projects = _plus(self.blocked_projects, entry.project_id)

    # --- selecting entries -----------------------------------------------------------------------

    def claim_in_strict_order(self) -> None:
        """Claim the first entries in strict order, continuing after those that are refused."""
        if self._due.fleet_paused_by is not None:
            return
        if self._due.any_capped:
            self.blocked_pids |= {row[0] for row in self.tx.run(sql.CAPPED_OUT)}
        while (remaining := self.remaining) > 0:
            rows = self.ready_entries(limit=min(remaining, READ_MAX))
            if len(rows) > 1:
                self.prefetch_owners(rows)
            refused, unreleased = 0, self._first_unreleased() if self.has_unreleased else None
            for row in rows:
                if self._bytes >= CLAIM_BYTES_MAX:
                    return
                if unreleased is not None and _strict_order(row) > unreleased:
                    break
                refused += self.try_claim(row) is not None
            if unreleased is not None and self.remaining > 0:
                self._release_due()
            elif not refused and len(rows) < READ_MAX:
                return

    def release_all_due(self) -> None:
        """Release every held entry that is due, for a policy that has to see all of them."""
        while self.has_unreleased:
            self._release_due()

    def _first_unreleased(self) -> tuple[int, float, int] | None:
        """Return the place in strict order of the first held entry that is due; None if all are released."""
        rows = self.tx.run(sql.HELD_DUE, (self.claimed_at, 1))
        return (-rows[0][7], rows[0][8], rows[0][0]) if rows else None

    def _release_due(self) -> None:
        with acting_as(MAINTENANCE):
            self.has_unreleased = promote(self.tx, self.env, self.claimed_at)
        self.env.cache.drop_due_summary()

    def lift_holds(self) -> None:
        """Let this claim see held entries that are runnable at the request's time, until `restore_holds`."""
        held_at = self._due.held_at
        if self.now > self.claimed_at and held_at is not None and held_at <= self.now:
            self.lifted = lift_holds(self.tx, self.env, self.now, self.request.worker.worker_id)

    def restore_holds(self) -> None:
        """Hold the lifted entries again that were not claimed."""
        restore_holds(self.tx, self.lifted, self._claimed_ids)
        self.lifted = []

    def blocked_agents(self) -> set[int]:
        """Return the agents all of whose entries would be refused: paused, at their cap, or over their grant."""
        found: set[int] = set(self.blocked_pids)
        if self._due.any_stopped:
            found.update(row[0] for row in self.tx.run(sql.STOPPED))
        if self._due.any_capped:
            found.update(row[0] for row in self.tx.run(sql.CAPPED_OUT))
        if self._due.any_ledger and self.request.check_budgets:
            found.update(row[0] for row in self.tx.run(sql.BREACHED))
        return found

    def exclude_blocked_agents(self) -> None:
        """Leave the entries of blocked agents out of everything that this pass reads."""
        self.blocked_pids |= self.blocked_agents()

    def excluded(self) -> tuple[frozenset[int], frozenset[str], frozenset[str], frozenset[str]]:
        """Return what this pass leaves out, for a pass that continues it in another transaction (see `exclude`)."""
        return (
            frozenset(self.blocked_pids),
            frozenset(self.blocked_projects),
            frozenset(self.blocked_needs),
            frozenset(self.refused_groups),
        )

    def exclude(
        self,
        pids: frozenset[int],
        projects: frozenset[str],
        needs: frozenset[str],
        groups: frozenset[str],
    ) -> None:
        """Leave out what an earlier pass has left out."""
        self.blocked_pids |= pids
        self.blocked_projects |= projects
        self.blocked_needs |= needs
        self.refused_groups |= groups

    def has_more_ready(self, pid: int, claimed: int | None = None) -> bool:
        """Whether an agent has ready entries besides those claimed, even if this claim cannot take them."""
        count = len(self.claimed_by_agent.get(pid, ())) if claimed is None else claimed
        return bool(len(self.tx.run(sql.READY_IDS, (pid, count + 1))) > count)

    def ready_entries(self, project_id: str | None = None, *, limit: int | None = None) -> list[Row]:
        """Return the next entries in strict order that are not excluded, of one project or of all."""
        count = self.remaining if limit is None else limit
        filtered = (
            self._due.any_stopped or self._due.any_ledger or self.claimed or self.refused_groups or self.blocked_pids
        )
        ahead, self.ahead = self.ahead, None
        if project_id is None and not filtered:
            if ahead is not None:
                return ahead
            return self.tx.run(sql.READY, (self.now, self.request.kinds_text, count))
        parameters = self._filter_parameters(count)
        if project_id is None:
            return self.tx.run(sql.READY_UNBLOCKED, parameters)
        return self.tx.run(sql.READY_OF_PROJECT, (*parameters, project_id or None))

    def nearest_deadlines(self, limit: int) -> list[Row]:
        """Return the next entries by deadline that are not excluded."""
        return self.tx.run(sql.READY_BY_DEADLINE, self._filter_parameters(limit))

    def _filter_parameters(self, limit: int) -> tuple[Any, ...]:
        """Return the parameters of the statements that leave out what this pass has excluded or claimed."""
        sets = (self.blocked_pids, self.blocked_projects, self.blocked_needs, self.refused_groups, self._claimed_ids)
        excluded = tuple(json_list(each) if each else _NONE for each in sets)
        return self.now, self.request.kinds_text, limit, self.request.check_budgets, *excluded

    def ensure_index(self, by: Literal["agent", "project", "deadline"]) -> None:
        """Create the index of ready entries by agent, project or deadline if it does not exist.

        A transaction that is rolled back would create it for nothing, each time: if that takes long, it raises
        `IndexNeeded` instead.
        """
        statements = {"agent": sql.INDEX_BY_AGENT, "project": sql.INDEX_BY_PROJECT, "deadline": sql.INDEX_BY_DEADLINE}
        name = f"idx_sched_queue_pickable_by_{by}"
        if self.env.is_isolated and self.tx.run(sql.COSTLY_INDEX, (name, READY_WITHOUT_INDEX_MAX)):
            raise IndexNeeded(statements[by])
        self.tx.run(statements[by])

    def read_ahead(self, pids: Collection[int], depth: int) -> None:
        """Read the next entries of some agents, and what decides about them, each in one statement."""
        found: dict[int, list[Row]] = {}
        for row in self.tx.run(sql.NEXT_OF_AGENTS, (json_list(pids), depth + 1)):  # one more than is needed
            found.setdefault(row[PID], []).append(row)
        for pid, rows in found.items():
            rows.sort(key=_strict_order)
            self._ahead[pid] = rows[:depth], len(rows) > depth
        self.prefetch_owners([rows[0] for rows in found.values()])

    def head_of_agent(self, pid: int) -> tuple[Row | None, bool]:
        """Return an agent's next entry that is not excluded, and whether it has more that are ready."""
        claimed = len(self.claimed_by_agent.get(pid, ()))
        if pid not in self._blocked_heads and not (self.refused_groups or self.blocked_needs or self._skipped_ids):
            # nothing was skipped, so the entries claimed are the agent's first ones
            row, has_more = self._next_of_agent(pid, claimed)
            if row is None:
                return None, False
            if self._matches_request(row):
                return row, has_more
            self._blocked_heads = _plus(self._blocked_heads, pid)
            if row[KIND] not in self._kinds:
                self.agents_elsewhere = _plus(self.agents_elsewhere, pid)
        rows = self.ready_entries_of_agent(pid, 1)
        return (rows[0], self.has_more_ready(pid, claimed + 1)) if rows else (None, self.has_more_ready(pid, claimed))

    def _next_of_agent(self, pid: int, offset: int) -> tuple[Row | None, bool]:
        """Return the next entry of an agent without a hold, and whether it has more."""
        ahead, has_more = self._ahead.get(pid, ((), False))
        if offset < len(ahead):
            return ahead[offset], has_more or offset + 1 < len(ahead)
        depth = max(1, min(self.remaining, REFILL_MAX))  # one by one would cost a round trip for each
        rows = self.tx.run(sql.NEXT_OF_AGENT, (pid, depth + 1, offset))
        if depth > 1 and offset == len(ahead):
            self._ahead[pid] = [*ahead, *rows[:depth]], len(rows) > depth
        return (rows[0], len(rows) > 1) if rows else (None, False)

    def _matches_request(self, row: Row) -> bool:
        """Whether an entry without a hold is runnable now, before its deadline, on a slot of this worker."""
        now, kind, deadline = self.now, row[KIND], row[DEADLINE]
        return kind in self._kinds and row[RUNNABLE_AT] <= now and (deadline is None or deadline > now)

    def ready_entries_of_agent(self, pid: int, limit: int) -> list[Row]:
        """Return an agent's next entries in strict order that are not excluded."""
        done = {each.row[0] for each in self.claimed_by_agent.get(pid, ())} | self._skipped_ids
        prefix = f"{pid}|"
        refused = {each.removeprefix(prefix) for each in self.refused_groups if each.startswith(prefix)}
        sets = tuple(json_list(each) if each else _NONE for each in (refused, done, self.blocked_needs))
        return self.tx.run(sql.READY_OF_AGENT, (self.now, self.request.kinds_text, limit, pid, *sets))

    def heads_of_project(self, project_id: str, limit: int, offset: int) -> list[Row]:
        """Return the next entries of a project ("" is none) that are not excluded, after `offset` tried ones."""
        if project_id not in self._blocked_heads:  # nothing was skipped, so the tried entries are its first ones
            rows = self.tx.run(sql.NEXT_OF_PROJECT, (project_id or None, limit, offset))
            if all(self.may_claim(row) for row in rows):
                return rows
            self._blocked_heads = _plus(self._blocked_heads, project_id)
        return self.ready_entries(project_id, limit=limit)

    def show(self, sched_ids: Iterable[int]) -> None:
        """Do nothing: called with the entries that a policy sees, for a subclass that records them."""

    def may_claim(self, row: Row) -> bool:
        """Whether an entry without a hold matches the request, is not claimed yet, and its agent is not blocked."""
        return self._matches_request(row) and row[PID] not in self.blocked_pids and row[0] not in self._claimed_ids

    # --- writing ---------------------------------------------------------------------------------

    def write(
        self,
        *,
        policy: str = "strict",
        served: ServedFlows = _NO_FLOWS,
        forced_by: str | None = None,
    ) -> list[ReadyEntry]:
        """Write all claims of the pass with one event and return the claimed entries."""
        if self._due.any_loan:
            self.claim_on_loans()
        if self.lifted:
            self.restore_holds()
        if not self.claimed:
            self.tx.effects.retry_at = self._due.retry_at
            return []
        now, request, worker, claimed = self.claimed_at, self.request, self.request.worker, self.claimed
        recorded: list[ClaimedEntry] = []
        workspaces: list[str] = []
        for each in claimed:
            recorded.append(_event_entry(each, now))
            if each.workspace is not None:
                workspaces.append(each.workspace)
        event = EntriesClaimed(
            worker_id=worker.worker_id,
            incarnation=worker.incarnation,
            entries=recorded,
            policy=policy,
            because=[each.reason for each in claimed if each.reason] if claimed[0].reason else [],
            flows=list(served.moves),
            contexts=self._charge_requests() if self._due.any_context else {},
            forced_by=forced_by,
            admission_skipped=not request.check_budgets,
            host=self.env.store.host_name,
        )
        self.token = token = append(self.tx, event, now=now)
        if not self.env.clock_offset.is_noted:
            self.env.note_time(self.tx, now)
        expires_at = now + request.timeout_s
        head = (worker.worker_id, worker.incarnation, now, now, request.timeout_s, expires_at, token)
        # the columns of statements.queue.ENTRY from state on, but its workspace
        columns = (_DISPATCHED, worker.worker_id, now, None, None, None, token, expires_at, 0)
        rows = [(*head, each.workspace, each.estimate, each.row[0]) for each in claimed]
        # one statement per id, in order: neighbours share pages, and one UPDATE of many rows would find each row twice
        rows.sort(key=_sched_id)
        self.tx.run_many(sql.CLAIM, rows)
        if workspaces:
            self.tx.run_many(project_sql.WORKSPACE_FENCE, [(token, workspace) for workspace in workspaces])
        touched = []
        entries: list[ReadyEntry] = []
        unreadable: list[ReadyEntry] = []
        for each in claimed:  # a server works on the claims meanwhile
            row = each.row
            touched.append((row[PID], row[PROJECT]))
            entry = claimed_entry(row, columns, each.workspace)  # without reading the row again
            (entries if entry.unreadable is None else unreadable).append(entry)
        self.env.cache.touch_all(touched)
        if self._due.any_context:
            self.env.cache.drop_due_summary()  # a context that was charged refills later
        else:
            self.env.cache.lower_due_summary(expires_at=expires_at)
        if served is not _NO_FLOWS:
            flows.save_served(self.tx, served, event_id=token, served_at=now)
        if unreadable:
            self._end_unreadable(unreadable)
        return entries

    def _end_unreadable(self, entries: list[ReadyEntry]) -> None:
        """End claimed entries whose rows cannot be read."""
        self.ended_unreadable = [entry.sched_id for entry in entries]
        run_ends = [
            RunEnd(
                entry.sched_id,
                "failed",
                entry.token,
                encode_json("result", {"error": f"its row cannot be read: {entry.unreadable}"}, RESULT_BYTES_MAX),
                UNREADABLE,
            )
            for entry in entries
        ]
        end_runs(self.tx, self.env, run_ends, self.claimed_at)

    def claim_on_loans(self) -> None:
        """Claim entries whose budget was lent to them, in projects that were excluded because theirs is used up."""
        if not self._due.any_loan or not (self.blocked_projects or self.all_blocked):
            return
        for row in sorted(self.tx.run_for(head_sql.ENTRIES, self._claim_checks.entries_on_loan()), key=_strict_order):
            if not self.is_full and self.may_claim(row):
                self.try_claim(row)

    def _charge_requests(self) -> dict[str, int]:
        """Charge one request per claim to contexts that count requests; returns the amounts for the event."""
        used: dict[int, tuple[ContextRow, int]] = {}
        for each in self.claimed:
            for context in self._claim_checks.request_contexts(CheckedEntry.from_row(each.row)):
                used[context.context_id] = context, used.get(context.context_id, (context, 0))[1] + 1
        moved: dict[str, int] = {}
        for context, count in used.values():
            moved |= contexts.charge(self.tx, [context], {"requests": count}, self.claimed_at)
        return moved


def _strict_order(row: Row) -> tuple[int, float, int]:
    return -row[PRIORITY], row[RUNNABLE_AT], row[0]


def _is_used_up(reason: reasons.OverBudget) -> bool:
    """Whether not even the smallest request would fit."""
    return reason.used + reason.reserved >= reason.limit


def _event_entry(claim: PendingClaim, now: float) -> ClaimedEntry:
    row = claim.row
    try:
        since = max(row[RUNNABLE_AT], row[CREATED_AT])
        waited_ms = round((now - since) * 1000) if now > since else 0
    except (TypeError, ValueError, OverflowError):  # a damaged row, which `write` ends
        waited_ms = None
    if row[NEEDS] is None:
        return ClaimedEntry(row[0], row[PID], row[ATTEMPT] + 1, {}, None, waited_ms)
    needs = decode_needs(row[NEEDS])
    ask = {dim: needs.requested(dim, 0) for dim in needs.dims}
    return ClaimedEntry(row[0], row[PID], row[ATTEMPT] + 1, ask, claim.workspace, waited_ms)
