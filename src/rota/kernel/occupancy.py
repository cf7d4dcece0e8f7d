"""The roster of a pass: agents and projects, with what each of them runs and has reserved.

Nothing of it is kept in a table. What runs is read from the live claims, all of them in one statement, when the first
agent or project is looked up; from then on each entry that the pass takes is added here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache

import msgspec

from rota.kernel import usage_windows
from rota.kernel.due_summary import Pulse
from rota.kernel.rows import Needs, needs_of, spent_of
from rota.model.work import ProjectConstraint
from rota.store import Row, Transaction
from rota.store.statements import claims as sql

__all__ = ["NO_CONSTRAINT", "AgentOnRoster", "OwnerOnRoster", "Roster"]

NO_CONSTRAINT = ProjectConstraint()
_NOTHING: Mapping[str, int] = {}
_encode = msgspec.json.Encoder().encode


class AgentOnRoster:
    """An agent within a pass."""

    __slots__ = ("cap", "lines", "paused_by", "pid", "reserved", "running")

    def __init__(self, pid: int, paused_by: str | None = None, cap: int | None = None) -> None:
        self.pid = pid
        self.paused_by = paused_by
        self.cap = cap
        self.running = 0
        self.lines: list[tuple[str, int, int]] = []  # dim, used, limit
        self.reserved: defaultdict[str, int] = defaultdict(int)

    def add(self, needs: Needs, spent: Mapping[str, int], count: int) -> None:
        """It runs so many more of these."""
        self.running += count
        for dim in needs.dims:
            self.reserved[dim] += count * needs.reserved(dim, 0, spent)


class OwnerOnRoster:
    """A project, or everybody, within a pass."""

    __slots__ = (
        "budgets",
        "cap",
        "constraint",
        "paused_by",
        "project_id",
        "reserved",
        "running",
        "running_of",
        "status",
    )

    def __init__(self, project_id: str) -> None:
        self.project_id = project_id
        self.status = "ACTIVE"
        self.paused_by: str | None = None
        self.cap: int | None = None
        self.constraint = NO_CONSTRAINT
        self.running = 0
        self.running_of: defaultdict[str | None, int] = defaultdict(int)
        self.budgets: list[tuple[str, int, int, float | None]] = []  # dim, limit, used, frees_at
        self.reserved: defaultdict[str, int] = defaultdict(int)

    def add(self, kind: str | None, needs: Needs, spent: Mapping[str, int], count: int) -> None:
        """It runs so many more of these."""
        self.running += count
        self.running_of[kind] += count
        for dim, _, _, _ in self.budgets:
            self.reserved[dim] += count * needs.reserved(dim, 1, spent)


class Roster:
    """Agents and projects as they are looked up in one transaction."""

    def __init__(self, tx: Transaction, beat: Pulse) -> None:
        self._tx = tx
        self._pulse = beat
        self._agents: dict[int, AgentOnRoster] = {}
        self._owners: dict[str, OwnerOnRoster] = {}
        self._live: list[Row] | None = None
        self._live_of_agent: dict[int, list[Row]] | None = None
        self._live_of_owner: dict[str | None, list[Row]] | None = None

    def take(self, pid: int, project_id: str | None, kind: str | None, needs: Needs) -> None:
        """One more runs from here on."""
        self.agent(pid).add(needs, _NOTHING, 1)
        if project_id is not None:
            self.owner(project_id).add(kind, needs, _NOTHING, 1)
        if self._pulse.any_global_budget:
            self.owner(usage_windows.EVERYBODY).add(kind, needs, _NOTHING, 1)

    # --- agents ----------------------------------------------------------------------------------

    def agent(self, pid: int) -> AgentOnRoster:
        """An agent."""
        return self._agents.get(pid) or self._load_agent(pid)

    def load_agents(self, pids: Iterable[int]) -> None:
        """Look up many at once."""
        wanted = set(pids) - self._agents.keys()
        if not wanted:
            return
        ids = _ids(wanted)
        for pid, paused_by, cap in self._tx.run(sql.AGENT_FACTS, ids):
            self._agents[pid] = AgentOnRoster(pid, paused_by, cap)
        if self._pulse.any_ledger:
            for pid, dim, used, limit in self._tx.run(sql.LEDGER_FACTS, ids):
                self._agents[pid].lines.append((dim, used, limit))
        for pid in wanted:
            self._count_live(self._agents[pid])

    def _load_agent(self, pid: int) -> AgentOnRoster:
        """One at a time, as when flows or projects are walked: half the price of a list of one."""
        agent: AgentOnRoster | None = None
        for paused_by, cap, dim, used, limit in self._tx.run(sql.AGENT_FACT, (pid,)):
            agent = agent or AgentOnRoster(pid, paused_by, cap)
            if dim is not None:
                agent.lines.append((dim, used, limit))
        assert agent is not None  # noqa: S101  # entries belong to agents, which are never removed
        self._count_live(agent)
        self._agents[pid] = agent
        return agent

    def _count_live(self, agent: AgentOnRoster) -> None:
        for _, _, _, needs_text, spent_text, count in self._live_by_agent().get(agent.pid, ()):
            agent.add(needs_of(needs_text), spent_of(spent_text), count)

    # --- projects, and everybody -------------------------------------------------------------------

    def owner(self, owner: str) -> OwnerOnRoster:
        """A project, or everybody (`windows.EVERYBODY`)."""
        if owner not in self._owners:
            self.load_owners((owner,))
        return self._owners[owner]

    def load_owners(self, owners: Iterable[str]) -> None:
        """Look up many at once."""
        wanted = set(owners) - self._owners.keys()
        if not wanted:
            return
        ids = _ids(wanted)
        for owner in wanted:
            self._owners[owner] = OwnerOnRoster(owner)
        for project_id, status, paused_by, cap, restraint in self._tx.run(sql.PROJECT_FACTS, ids):
            loaded = self._owners[project_id]
            loaded.status, loaded.paused_by, loaded.cap = status, paused_by, cap
            loaded.constraint = _constraint(restraint)
        for owner, dim, limit, used, frees_at in self._tx.run(sql.BUDGET_FACTS, ids):
            self._owners[owner].budgets.append((dim, limit, used, frees_at))
        live = self._live_by_owner()
        for owner in wanted:
            claims = self.live_claims() if owner == usage_windows.EVERYBODY else live.get(owner, ())
            for _, _, kind, needs_text, spent_text, count in claims:
                self._owners[owner].add(kind, needs_of(needs_text), spent_of(spent_text), count)

    # --- what runs -------------------------------------------------------------------------------

    def live_claims(self) -> list[Row]:
        """Live claims when the pass began, as `statements.claims.LIVE` counts them."""
        if self._live is None:
            self._live = self._tx.run(sql.LIVE)
        return self._live

    def _live_by_agent(self) -> dict[int, list[Row]]:
        if self._live_of_agent is None:
            self._live_of_agent = {}
            for row in self.live_claims():
                self._live_of_agent.setdefault(row[0], []).append(row)
        return self._live_of_agent

    def _live_by_owner(self) -> dict[str | None, list[Row]]:
        if self._live_of_owner is None:
            self._live_of_owner = {}
            for row in self.live_claims():
                self._live_of_owner.setdefault(row[1], []).append(row)
        return self._live_of_owner


@lru_cache(maxsize=1024)
def _constraint(text: str) -> ProjectConstraint:
    return msgspec.json.decode(text, type=ProjectConstraint)


def _ids(values: Iterable[int | str]) -> tuple[str]:
    return (_encode(list(values)).decode(),)
