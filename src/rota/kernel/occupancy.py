"""Occupancy: what each agent and project runs and has reserved, during one claim pass.

No table stores these counts. They are computed from the live claims, which one statement reads when the first agent or
project with a cap, a ledger or a budget is looked up, and from the open loans of live runs (see budget_loans.py); each
entry that the pass claims is then added. What runs of an owner without any of these does not matter, and is not
counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from rota.kernel import usage_windows
from rota.kernel.budget_loans import OpenLoan, open_loans, reserved_in_budgets, reserved_on_ledger
from rota.kernel.environment import UNLIMITED, CachedProject, DueSummary, KernelCache
from rota.kernel.rows import NO_NEEDS, Needs, decode_needs, decode_spent
from rota.model.work import ProjectConstraint
from rota.store import Row, Transaction
from rota.store.statements import claims as sql

__all__ = ["NO_CONSTRAINT", "AgentOccupancy", "Occupancy", "OwnerOccupancy"]

NO_CONSTRAINT = ProjectConstraint()
_NOTHING: Mapping[str, int] = {}


class AgentOccupancy:
    """The limits and live runs of one agent."""

    __slots__ = ("cap", "ledger_lines", "paused_by", "pid", "reserved", "running")

    def __init__(self, pid: int, paused_by: str | None = None, cap: int | None = None) -> None:
        self.pid = pid
        self.paused_by = paused_by
        self.cap = cap
        self.running = 0
        self.ledger_lines: list[tuple[str, int, int]] = []  # dim, used, limit
        self.reserved: defaultdict[str, int] = defaultdict(int)

    def add(self, needs: Needs, spent: Mapping[str, int], count: int) -> None:
        """Count runs with these needs."""
        self.running += count
        for dim in needs.dims if needs is not NO_NEEDS else ():
            self.reserved[dim] += count * needs.reserved(dim, 0, spent)


class OwnerOccupancy:
    """The limits and live runs of one project, or of all projects together (`ALL_PROJECTS`)."""

    __slots__ = (
        "budgets",
        "cap",
        "constraint",
        "paused_by",
        "project_id",
        "reserved",
        "running",
        "running_by_kind",
        "status",
    )

    def __init__(self, project_id: str, row: CachedProject | None) -> None:
        self.project_id = project_id
        row = row or UNLIMITED  # all projects together have no row
        self.status, self.paused_by, self.cap, self.constraint = row.status, row.paused_by, row.cap, row.constraint
        self.running = 0
        self.running_by_kind: defaultdict[str | None, int] = defaultdict(int)
        self.budgets: list[tuple[str, int, int, float | None]] = []  # dim, limit, used, frees_at
        self.reserved: defaultdict[str, int] = defaultdict(int)

    def add(self, kind: str | None, needs: Needs, spent: Mapping[str, int], count: int) -> None:
        """Count runs with these needs."""
        self.running += count
        self.running_by_kind[kind] += count
        for dim, _, _, _ in self.budgets:
            self.reserved[dim] += count * needs.reserved(dim, 1, spent)


class Occupancy:
    """The occupancy of agents and projects, loaded on demand inside one transaction."""

    def __init__(self, tx: Transaction, cache: KernelCache, due: DueSummary) -> None:
        self._tx = tx
        self._cache = cache
        self._due = due
        self._agents: dict[int, AgentOccupancy] = {}
        self._owners: dict[str, OwnerOccupancy] = {}
        self._live: list[Row] | None = None
        self._loans: list[OpenLoan] | None = None
        self._live_of_agent: dict[int, list[Row]] | None = None
        self._live_of_owner: dict[str | None, list[Row]] | None = None

    def add_claim(
        self, pid: int, project_id: str | None, kind: str | None, needs: Needs, loan: OpenLoan | None = None
    ) -> None:
        """Count one more run of an agent and of its project; a loan to it is reserved already where its parent runs."""
        agent = self.agent(pid)
        agent.add(needs, _NOTHING, 1)
        owners = [] if project_id is None else [self.owner(project_id)]
        if self._due.any_global_budget:
            owners.append(self.owner(usage_windows.ALL_PROJECTS))
        for owner in owners:
            owner.add(kind, needs, _NOTHING, 1)
        if loan is not None:
            for dim, rest in loan.rest.items():
                if loan.is_reserved_on(pid):
                    agent.reserved[dim] -= rest
                for owner in owners:
                    if loan.is_reserved_in(owner.project_id):
                        owner.reserved[dim] -= rest

    # --- agents ----------------------------------------------------------------------------------

    def agent(self, pid: int) -> AgentOccupancy:
        """Return an agent's occupancy."""
        if pid not in self._agents:
            self.load_agents((pid,))
        return self._agents[pid]

    def load_agents(self, pids: Iterable[int]) -> None:
        """Load many agents together."""
        wanted = set(pids) - self._agents.keys()
        if not wanted:
            return
        rows = self._cache.agents(self._tx, wanted)
        for pid in wanted:
            row = rows.get(pid)
            if row is None:  # a damaged entry names no agent: the worker that claims it ends it
                self._agents[pid] = AgentOccupancy(pid, None, None)
            else:
                self._agents[pid] = AgentOccupancy(pid, row.paused_by, row.cap)
        if self._due.any_ledger:
            for pid, dim, used, limit in self._tx.run_for(sql.LEDGER_FACTS, wanted):
                self._agents[pid].ledger_lines.append((dim, used, limit))
        for pid in wanted:
            agent = self._agents[pid]
            if agent.cap is not None or agent.ledger_lines:
                for _, _, _, needs_text, spent_text, count in self._live_by_agent().get(pid, ()):
                    agent.add(decode_needs(needs_text), decode_spent(spent_text), count)
                for dim, amount in reserved_on_ledger(self.loans(), pid).items():
                    agent.reserved[dim] += amount

    # --- projects and all projects -----------------------------------------------------------------

    def owner(self, owner: str) -> OwnerOccupancy:
        """Return the occupancy of a project, or of `ALL_PROJECTS`."""
        if owner not in self._owners:
            self.load_owners((owner,))
        return self._owners[owner]

    def load_owners(self, owners: Iterable[str]) -> None:
        """Load many projects together."""
        wanted = set(owners) - self._owners.keys()
        if not wanted:
            return
        rows = self._cache.projects(self._tx, wanted)
        for owner in wanted:
            self._owners[owner] = OwnerOccupancy(owner, rows.get(owner))
        if self._due.any_project_budget or self._due.any_global_budget:
            for owner, dim, limit, used, frees_at in self._tx.run_for(sql.BUDGET_FACTS, wanted):
                self._owners[owner].budgets.append((dim, limit, used, frees_at))
        for owner in wanted:
            loaded = self._owners[owner]
            if loaded.cap is not None or loaded.budgets or loaded.constraint != NO_CONSTRAINT:
                for _, _, kind, needs_text, spent_text, count in self._live_of(owner):
                    loaded.add(kind, decode_needs(needs_text), decode_spent(spent_text), count)
                for dim, amount in reserved_in_budgets(self.loans(), owner).items():
                    loaded.reserved[dim] += amount

    # --- live claims and open loans --------------------------------------------------------------

    def live_claims(self) -> list[Row]:
        """Return the live claims at the start of the pass, as `statements.claims.LIVE` groups them."""
        if self._live is None:
            self._live = self._tx.run(sql.LIVE)
        return self._live

    def loans(self) -> list[OpenLoan]:
        """Return the open loans at the start of the pass."""
        if self._loans is None:
            self._loans = open_loans(self._tx) if self._due.any_loan else []
        return self._loans

    def loan_to(self, sched_id: int) -> OpenLoan | None:
        """Return the open loan to an entry, if there is one."""
        return next((loan for loan in self.loans() if loan.sched_id == sched_id), None)

    def _live_by_agent(self) -> dict[int, list[Row]]:
        if self._live_of_agent is None:
            self._live_of_agent = {}
            for row in self.live_claims():
                self._live_of_agent.setdefault(row[0], []).append(row)
        return self._live_of_agent

    def _live_of(self, owner: str) -> list[Row]:
        if owner == usage_windows.ALL_PROJECTS:
            return self.live_claims()
        if self._live_of_owner is None:
            self._live_of_owner = {}
            for row in self.live_claims():
                self._live_of_owner.setdefault(row[1], []).append(row)
        return self._live_of_owner.get(owner, [])
