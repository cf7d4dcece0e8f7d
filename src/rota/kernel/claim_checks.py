"""Claim checks: whether an entry may run, given what already runs and what the same pass has claimed.

The rules are in policy/eligibility; this file fetches the facts that they need, from rows as the transaction sees them
and from the occupancy. Each entry that a pass claims counts immediately for the entries after it, so a claim of a
hundred entries cannot exceed a cap of ten.

Most entries need none of it: they have no needs, and neither their agent nor their project has a limit. A pass claims
those without a look at this file (see `ClaimPass.try_claim`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from rota.kernel import contexts, graph_budgets, usage_windows
from rota.kernel.budget_loans import OpenLoan, reserved_for_loans
from rota.kernel.contexts import ContextRow
from rota.kernel.environment import DueSummary, KernelCache
from rota.kernel.occupancy import NO_CONSTRAINT, Occupancy, OwnerOccupancy
from rota.kernel.rows import (
    ATTEMPT,
    DEADLINE,
    KIND,
    NEEDS,
    PID,
    PROJECT,
    RUNNABLE_AT,
    UNREADABLE_CONSTRAINT,
    Needs,
    decode_needs,
    decode_spent,
    state_and_hold,
)
from rota.kernel.workspaces import OF_ENTRY, workspace_holders
from rota.model.graph_budgets import GraphAccount
from rota.model.lifecycle import EntryState
from rota.model.reasons import BlockingBase
from rota.policy import replenishment
from rota.policy.eligibility import (
    AgentFacts,
    BudgetFacts,
    ContextFacts,
    EntryFacts,
    Facts,
    KeyFacts,
    ProjectFacts,
    WorkspaceFacts,
    blocking,
)
from rota.store import Row, Transaction
from rota.store.statements import limit_asks as ask_sql
from rota.store.statements import projects as project_sql
from rota.store.statements import queue as queue_sql

__all__ = ["CheckedEntry", "ClaimChecks"]

_NOTHING: Mapping[str, int] = {}


class CheckedEntry(NamedTuple):
    """The columns of an entry that the checks need."""

    sched_id: int
    pid: int
    project_id: str | None
    kind: str | None
    needs_text: str | None
    facts: EntryFacts

    @property
    def needs(self) -> Needs:
        """What the entry requires besides its agent."""
        return decode_needs(self.needs_text)

    @classmethod
    def from_row(cls, row: Row) -> CheckedEntry:
        """Build it from a row of `statements.queue.ENTRY` or of `READY_COLUMNS`."""
        state, hold = state_and_hold(row)
        facts = EntryFacts(
            state=state, hold=hold, runnable_at=row[RUNNABLE_AT], deadline=row[DEADLINE], attempt=row[ATTEMPT]
        )
        return cls(row[0], row[PID], row[PROJECT], row[KIND], row[NEEDS], facts)


class ClaimChecks:
    """Checks entries inside one transaction, counting what this pass has claimed."""

    def __init__(
        self,
        tx: Transaction,
        cache: KernelCache,
        now: float,
        due: DueSummary,
        *,
        clock_now: float | None = None,
        check_budgets: bool = True,
    ) -> None:
        """Times and deadlines of entries are compared with `now`, which may be a caller's; the rest with the clock."""
        self._tx = tx
        self._now = now
        self._clock_now = now if clock_now is None else clock_now
        self._due = due
        self._check_budgets = check_budgets
        self._occupancy = Occupancy(tx, cache, due)
        self._contexts: dict[tuple[int, str | None], list[ContextRow]] = {}  # by pid and needs
        self._contexts_of_claims: dict[tuple[int, str | None], frozenset[int]] = {}  # ids, by pid and needs
        self._reserved: defaultdict[int, int] = defaultdict(int)  # by context, for live claims
        self._claimed_of_graphs: Counter[tuple[str, str, str]] = Counter()  # by line, reserved in this pass
        self._claimed_keys: Counter[tuple[str | None, str]] = Counter()  # by project and key, in this pass
        self._holders: dict[str, dict[str, list[tuple[int, str, float]]]] = {}  # by project and workspace

    # --- checking --------------------------------------------------------------------------------

    def first_blocking_reason(self, entry: CheckedEntry) -> BlockingBase | None:
        """Return the first reason that blocks an entry, or None."""
        if self._is_surely_free(entry):
            return None
        found = blocking(self.facts(entry))
        return found[0] if found else None

    def _is_surely_free(self, entry: CheckedEntry) -> bool:
        """Apply the eligibility rules in short form, for the usual case of an entry without needs.

        False means "not known". A claim where agents and projects have limits takes a sixth less time with it
        (eevdf-drain-4w); generated stores check that it never returns True where a reason exists.
        """
        if entry.needs_text is not None or entry.kind is not None or self._due.any_context:
            return False
        facts, now = entry.facts, self._now
        waits = facts.state != "queued" or facts.hold is not None or facts.runnable_at > now
        if waits or (facts.deadline is not None and facts.deadline <= now):
            return False
        agent = self._occupancy.agent(entry.pid)
        held_back = agent.paused_by is not None or (agent.cap is not None and agent.running >= agent.cap)
        if held_back or self._due.fleet_paused_by is not None:
            return False
        if self._check_budgets and any(used + agent.reserved[dim] > limit for dim, used, limit in agent.ledger_lines):
            return False
        owners = [entry.project_id] if entry.project_id is not None else []
        if self._due.any_global_budget:
            owners.append(usage_windows.ALL_PROJECTS)
        return all(self._has_room(self._occupancy.owner(owner)) for owner in owners)

    def _has_room(self, owner: OwnerOccupancy) -> bool:
        """Whether a project, or all projects, surely has room for one more run without needs."""
        if owner.status != "ACTIVE" or owner.paused_by is not None or owner.constraint != NO_CONSTRAINT:
            return False
        if owner.cap is not None and owner.running >= owner.cap:
            return False
        if not self._check_budgets:
            return True
        return all(used + owner.reserved[dim] < limit for dim, limit, used, _ in owner.budgets)

    def blocking_reasons(self, entry: CheckedEntry) -> list[BlockingBase]:
        """Return every reason that blocks an entry."""
        return blocking(self.facts(entry))

    def facts(self, entry: CheckedEntry) -> Facts:
        """Gather everything that the eligibility rules look at."""
        needs = entry.needs
        agent = self._occupancy.agent(entry.pid)
        facts = entry.facts
        if facts.hold == "after":
            facts = msgspec.structs.replace(facts, waiting_for=self._unfinished_predecessors(entry.sched_id))
        return Facts(
            now=self._now,
            entry=facts,
            agent=AgentFacts(pid=agent.pid, paused_by=agent.paused_by, running=agent.running, max_concurrent=agent.cap),
            project=None if entry.project_id is None else self._project_facts(entry.project_id, entry.kind),
            fleet_paused_by=self._due.fleet_paused_by,
            budgets=self._budget_facts(entry, needs) if self._check_budgets else (),
            contexts=self._context_facts(entry, needs) if self._check_budgets and self._due.any_context else (),
            no_workspace=None if needs.mode is None else self._workspace_facts(entry, needs),
            key=None if needs.concurrency_key is None else self._key_facts(entry, needs.concurrency_key, needs),
        )

    # --- claiming --------------------------------------------------------------------------------

    def add_claim(self, entry: CheckedEntry) -> str | None:
        """Count an entry as running; returns the workspace assigned to it."""
        needs = entry.needs
        self._occupancy.add_claim(entry.pid, entry.project_id, entry.kind, needs, self._loan_to(entry, needs))
        for context in self._contexts_for(entry, needs):
            amount = needs.reserved(context.unit, 1)
            self._reserved[context.context_id] += self._drawn_from(context, entry, needs, amount)
        if needs.concurrency_key is not None:
            self._claimed_keys[entry.project_id, needs.concurrency_key] += 1
        if needs.account is not None:
            self._count_in_graph(needs)
        if needs.mode is None or entry.project_id is None:
            return None
        workspace = self._free_workspace(entry, entry.project_id, needs)
        if workspace is not None:
            held = self._workspace_holders(entry.project_id)
            held.setdefault(workspace, []).append((entry.sched_id, needs.mode, self._clock_now))
        return workspace

    def entries_on_loan(self) -> list[int]:
        """Return the entries that may run on a loan though a budget is used up, by id."""
        return [loan.sched_id for loan in self._occupancy.loans() if loan.state == EntryState.QUEUED]

    def request_contexts(self, entry: CheckedEntry) -> list[ContextRow]:
        """Return the contexts that count requests: starting a run is itself a use of them."""
        if not self._due.any_context:
            return []
        return [context for context in self._contexts_for(entry, entry.needs) if context.unit == "requests"]

    def prefetch(self, rows: Iterable[Row]) -> None:
        """Load the agents and projects of many entries, each in one query."""
        self._occupancy.load_agents(row[PID] for row in rows)
        self._occupancy.load_owners(row[PROJECT] for row in rows if row[PROJECT] is not None)

    # --- concurrency keys and projects -----------------------------------------------------------

    def _key_facts(self, entry: CheckedEntry, key: str, needs: Needs) -> KeyFacts:
        running = self._claimed_keys[entry.project_id, key]
        for _, project_id, _, needs_text, _, count in self._occupancy.live_claims():
            if project_id == entry.project_id and decode_needs(needs_text).concurrency_key == key:
                running += count
        return KeyFacts(key=key, running=running, cap=needs.concurrency_limit or 1)

    def _project_facts(self, project_id: str, kind: str | None) -> ProjectFacts:
        owner = self._occupancy.owner(project_id)
        cap = owner.cap
        if owner.constraint.exclusive:
            cap = 1 if cap is None else min(cap, 1)
        return ProjectFacts(
            project_id=project_id,
            status=owner.status,
            paused_by=owner.paused_by,
            scheduling_paused=owner.constraint.pause_scheduling,
            running=owner.running,
            max_concurrent=cap,
            running_of_kind=owner.running_by_kind[kind] if kind is not None else 0,
            max_of_kind=owner.constraint.max_by_kind.get(kind) if kind is not None else None,
            problem="its constraint" if owner.constraint is UNREADABLE_CONSTRAINT else None,
        )

    # --- budgets ---------------------------------------------------------------------------------

    def _loan_to(self, entry: CheckedEntry, needs: Needs) -> OpenLoan | None:
        """Return the open loan that an entry runs on, if another entry spawned it with one."""
        return None if needs.path is None else self._occupancy.loan_to(entry.sched_id)

    def _budget_facts(self, entry: CheckedEntry, needs: Needs) -> tuple[BudgetFacts, ...]:
        agent = self._occupancy.agent(entry.pid)
        loan = self._loan_to(entry, needs)
        lent = loan.rest if loan is not None and loan.is_reserved_on(agent.pid) else _NOTHING
        found = [
            BudgetFacts(
                level="agent",
                owner=str(agent.pid),
                dim=dim,
                used=used,
                reserved=agent.reserved[dim],
                ask=needs.requested(dim, 0) - lent.get(dim, 0),
                limit=limit,
            )
            for dim, used, limit in agent.ledger_lines
        ]
        if entry.project_id is not None:
            found += self._owner_budgets(self._occupancy.owner(entry.project_id), needs, loan)
        if self._due.any_global_budget:
            found += self._owner_budgets(self._occupancy.owner(usage_windows.ALL_PROJECTS), needs, loan)
        if needs.account is not None:
            found += self._graph_budgets(needs.account, needs)
        return tuple(sorted(found, key=_remaining)) if len(found) > 1 else tuple(found)

    def _owner_budgets(self, owner: OwnerOccupancy, needs: Needs, loan: OpenLoan | None) -> list[BudgetFacts]:
        lent = loan.rest if loan is not None and loan.is_reserved_in(owner.project_id) else _NOTHING
        return [
            BudgetFacts(
                level="global" if owner.project_id == usage_windows.ALL_PROJECTS else "project",
                owner=owner.project_id,
                dim=dim,
                used=used,
                reserved=owner.reserved[dim],
                ask=max(1, needs.requested(dim, 1)) - lent.get(dim, 0),
                limit=limit,
                frees_at=frees_at,
            )
            for dim, limit, used, frees_at in owner.budgets
        ]

    def _graph_budgets(self, account: GraphAccount, needs: Needs) -> list[BudgetFacts]:
        lines = graph_budgets.lines_of(self._tx, account.held_by)
        if not lines:
            return []
        return [
            BudgetFacts(
                level="graph",
                owner=line.run_id,
                node=line.node,
                dim=line.dim,
                used=line.used,
                reserved=line.reserved + self._claimed_of_graphs[line.run_id, line.node, line.dim],
                ask=max(1, needs.requested(line.dim, 1)),
                limit=line.limit,
            )
            for line in graph_budgets.with_reserved(lines, self._occupancy.live_claims())
        ]

    def _count_in_graph(self, needs: Needs) -> None:
        """Count what an entry that this pass claims reserves in the budgets of its graph run."""
        account = needs.account
        if account is not None and account.node:
            for line in graph_budgets.lines_of(self._tx, account.places):
                self._claimed_of_graphs[line.run_id, line.node, line.dim] += needs.reserved(line.dim, 1)

    # --- contexts --------------------------------------------------------------------------------

    def _contexts_for(self, entry: CheckedEntry, needs: Needs) -> list[ContextRow]:
        if not self._due.any_context:
            return []
        key = entry.pid, entry.needs_text
        if key not in self._contexts:
            found = contexts.contexts_for(self._tx, needs, entry.pid, entry.project_id)
            self._contexts[key] = found
            for context in found:
                if context.context_id not in self._reserved:
                    self._reserved[context.context_id] = self._reserved_by_live(context)
        return self._contexts[key]

    def _reserved_by_live(self, context: ContextRow) -> int:
        """Return what live runs may still use of a context, and what they wait for at it."""
        return self._reserved_by_claims(context) + self._change_by_asks(context, for_ask=False)

    def reserved_for_ask(self, context: ContextRow) -> int:
        """Return what a run that asks has to leave to others of a limit: what runs reserve that do not wait.

        If those that wait kept their reservations, two of them could wait for each other.
        """
        return self._reserved_by_claims(context) + self._change_by_asks(context, for_ask=True)

    def _change_by_asks(self, context: ContextRow, *, for_ask: bool) -> int:
        """Return by how much the asks of live runs change what they reserve of a limit.

        What a run holds of the limit is charged there already, so it is reserved no more. One that waits wants what it
        asks for, or what it reserves, whichever is more.
        """
        if context.name is None:
            return 0
        runs: dict[int, tuple[Row, int, int, bool]] = {}  # by entry: held, waiting for, whether it waits at all
        for row in self._tx.run(ask_sql.LIVE):
            sched_id, name, asked_text, rest_text, granted_at = row[:5]
            _, held, wanted, waits = runs.get(sched_id, (row, 0, 0, False))
            is_here = name == context.name and context.project_id in (None, row[6])
            if granted_at is None:
                wanted += decode_spent(asked_text).get(context.unit, 0) if is_here else 0
            else:
                held += decode_spent(rest_text).get(context.unit, 0) if is_here else 0
            runs[sched_id] = row, held, wanted, waits or granted_at is None
        change = 0
        for row, held, wanted, waits in runs.values():
            own = 0
            if context.unit != "requests" and context.context_id in self._context_ids_of_claim(*row[5:8]):
                own = decode_needs(row[7]).reserved(context.unit, 1, decode_spent(row[8]))
            left = max(0, own - held)
            change += ((0 if waits else left) if for_ask else max(left, wanted)) - own
        return change

    def _reserved_by_claims(self, context: ContextRow) -> int:
        """Return what live claims may still use of a context; a request was used when its run began."""
        if context.unit == "requests":
            return 0
        by_claims: int = sum(
            count * decode_needs(needs_text).reserved(context.unit, 1, decode_spent(spent_text))
            for pid, project_id, _, needs_text, spent_text, count in self._occupancy.live_claims()
            if context.context_id in self._context_ids_of_claim(pid, project_id, needs_text)
        )
        by_loans = reserved_for_loans(
            self._occupancy.loans(),
            is_lenders=lambda loan: self._is_lent_of(context, loan),
            is_childs=lambda loan: (
                context.context_id in self._context_ids_of_claim(loan.pid, loan.project_id, loan.needs_text)
            ),
        )
        return by_claims + by_loans.get(context.unit, 0)

    def _is_lent_of(self, context: ContextRow, loan: OpenLoan) -> bool:
        """Whether a lender of a loan draws on a context."""
        return any(
            context.context_id in self._context_ids_of_claim(lender.pid, lender.project_id, lender.needs_text)
            for lender in loan.lenders
        )

    def _drawn_from(self, context: ContextRow, entry: CheckedEntry, needs: Needs, amount: int) -> int:
        """Return what an entry takes of a context, besides a loan that is reserved there: a request, or an amount."""
        if context.unit == "requests":
            return 1
        loan = self._loan_to(entry, needs)
        lent = loan.rest.get(context.unit, 0) if loan is not None and self._is_lent_of(context, loan) else 0
        return amount - lent

    def _context_ids_of_claim(self, pid: int, project_id: str | None, needs_text: str | None) -> frozenset[int]:
        """Return the contexts that a live claim draws on, by the same rule as for an entry to claim."""
        key = pid, needs_text
        if key not in self._contexts_of_claims:
            found = contexts.contexts_for(self._tx, decode_needs(needs_text), pid, project_id)
            self._contexts_of_claims[key] = frozenset(context.context_id for context in found)
        return self._contexts_of_claims[key]

    def _context_facts(self, entry: CheckedEntry, needs: Needs) -> tuple[ContextFacts, ...]:
        at_ms = contexts.to_ms(self._clock_now)
        found = []
        for context in self._contexts_for(entry, needs):
            allowance = replenishment.refilled(context.allowance, at_ms)
            requested = self._drawn_from(context, entry, needs, max(1, needs.requested(context.unit, 1)))
            reserved = self._reserved[context.context_id]
            covered_ms = replenishment.covered_at(allowance, min(requested + reserved, allowance.budget))
            found.append(
                ContextFacts(
                    context_id=context.context_id,
                    name=context.name,
                    available=replenishment.available(allowance, at_ms),
                    reserved=reserved,
                    ask=requested,
                    budget=allowance.budget,
                    covered_at=None if covered_ms is None else covered_ms / 1000,
                    throttled_until=context.throttled_until,
                    problem=context.problem,
                )
            )
        return tuple(found)

    # --- workspaces ------------------------------------------------------------------------------

    def _workspace_holders(self, project_id: str) -> dict[str, list[tuple[int, str, float]]]:
        if project_id not in self._holders:
            self._holders[project_id] = workspace_holders(self._tx, project_id)
        return self._holders[project_id]

    def _workspaces(self, project_id: str, needs: Needs) -> list[str]:
        rows = [row for row in self._tx.run(project_sql.WORKSPACES_OF, (project_id,)) if row[3] != "entry"]
        rows.sort(key=_fence)  # the one that was not used for the longest first: another may be missed by a retry
        names = [row[0] for row in rows]
        return names if needs.workspace is None else [name for name in names if name == needs.workspace]

    def _free_workspace(self, entry: CheckedEntry, project_id: str, needs: Needs) -> str | None:
        """Return a workspace that is free for the run: empty, or held only by shared runs if the run shares it.

        The one that its last attempt held comes first: there may be unfinished work in it.
        """
        if needs.workspace is not None and OF_ENTRY in needs.workspace:
            return needs.workspace.replace(OF_ENTRY, str(entry.sched_id))
        held, names = self._workspace_holders(project_id), self._workspaces(project_id, needs)
        if len(names) > 1:
            had = self._tx.run(project_sql.WORKSPACE_HAD, (entry.sched_id,))
            names.sort(key=lambda name: (name,) not in had)
        for name in names:
            modes = {mode for _, mode, _ in held.get(name, [])}
            if not modes or (needs.mode == "shared" and modes == {"shared"}):
                return name
        return None

    def _workspace_facts(self, entry: CheckedEntry, needs: Needs) -> WorkspaceFacts | None:
        if entry.project_id is None:
            return WorkspaceFacts(workspace=needs.workspace)
        if self._free_workspace(entry, entry.project_id, needs) is not None:
            return None
        held = self._workspace_holders(entry.project_id)
        claims = [claim for name in self._workspaces(entry.project_id, needs) for claim in held.get(name, [])]
        return WorkspaceFacts(
            workspace=needs.workspace,
            held_by=tuple(sorted(sched_id for sched_id, _, _ in claims)),
            since_at=min((since for _, _, since in claims), default=None),
        )

    # --- predecessors ----------------------------------------------------------------------------

    def _unfinished_predecessors(self, sched_id: int) -> tuple[int, ...]:
        rows = self._tx.run(queue_sql.PREDECESSORS, (sched_id,))
        return tuple(other for other, state, exit_kind in rows if (state, exit_kind) != ("completed", "completed"))


def _fence(row: Row) -> int:
    """Return the fence of a row of `WORKSPACES_OF`: the token of the last claim that held the workspace."""
    return row[4] if type(row[4]) is int else 0  # a damaged row must not end a claim


def _remaining(budget: BudgetFacts) -> int:
    """Return what a budget leaves after the request; the strictest budget is reported first."""
    return budget.limit - budget.used - budget.reserved - budget.ask
