"""Which candidates a policy sees: the first entries of each agent, those of each project, or the first ones of all.

A window has *keys*: agents, projects, or one key (None) for entries in one fixed order. `open` returns the first
candidates of each key, `read_next` those that follow once these are used. Agents and projects are kept between passes
with their first entries (see kernel/ready_heads), so that a pass reads only what has changed.

Of more than `WINDOW_MAX` agents those that were served least recently are shown, so that none is left out forever, and
those of the first entries in strict order, so that no policy takes a lower priority because it was not shown a higher.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from rota.kernel.claim_pass import ClaimPass
from rota.kernel.flows import expected_cost
from rota.kernel.ready_heads import AgentHeads, ProjectHeads, agents_with_ready_entries, for_kinds
from rota.kernel.ready_owners import ReadyAgent, ReadyOwners, read_agents
from rota.kernel.rows import DEADLINE, KIND, PID, PRIORITY, PROJECT, RUNNABLE_AT
from rota.model.snapshot import Account, Candidate, Key
from rota.model.work import Intent
from rota.policy.contract import Policy
from rota.store import Row

__all__ = ["HEADS_MAX", "WINDOW_MAX", "ServiceOrder", "Window", "window_for"]

WINDOW_MAX = 1_000  # agents in one snapshot, or candidates in one fixed order
SPARE = 4  # a window in one fixed order has this many candidates for each entry to claim
HEADS_MAX = 16  # candidates of one agent or project

Heads: TypeAlias = Mapping[Key, Sequence[Candidate]]  # by key


class Window(ABC):
    """The candidates that a policy sees in one pass."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.is_complete = True  # no agent was left out
        self.owners: dict[Key, Account] = {}  # the agents of the candidates, if the policy reads their accounts
        self.rows: dict[int, Row] = {}  # entries that were read with all their columns in this pass

    @abstractmethod
    def ensure_index(self, claim: ClaimPass) -> None:
        """Create the index that finds the entries of a key, if it does not exist."""

    @abstractmethod
    def open(self, claim: ClaimPass) -> Heads:
        """Return the first candidates of each key, at the start of a pass."""

    @abstractmethod
    def read_next(self, claim: ClaimPass, key: Key) -> list[Candidate]:
        """Return the next candidates of a key whose first ones are used."""

    @abstractmethod
    def key_of(self, candidate: Candidate) -> Key:
        """Return the key of a candidate."""

    def copy(self) -> Window:
        """Return an independent copy; what it does not know it reads again."""
        return window_for(self.policy)

    def _from_rows(self, claim: ClaimPass, rows: Sequence[Row]) -> list[Candidate]:
        """Return candidates, and add the accounts of their agents."""
        agents: dict[int, ReadyAgent] = {}
        if rows and "owner" in self.policy.accounts:
            agents = read_agents(claim.tx, {row[PID] for row in rows})
            self.owners.update((pid, _account(agent)) for pid, agent in agents.items())
        return [_candidate(row, agents.get(row[PID]), claim.share_dim) for row in rows]


def window_for(policy: Policy) -> Window:
    """Return the window that a policy needs."""
    match policy.window:
        case "deadline" | "strict":
            return FixedWindow(policy)
        case "group":
            return ProjectWindow(policy)
        case _:
            return AgentWindow(policy)


_INTENTS = {each.value: each for each in Intent}


def _candidate(row: Row, agent: ReadyAgent | None, share_dim: str) -> Candidate:
    return Candidate(
        id=row[0],
        owner=row[PID],
        group=row[PROJECT] or "",
        priority=row[PRIORITY],
        ready_at=row[RUNNABLE_AT],
        deadline=row[DEADLINE],
        intent=Intent.NEUTRAL if agent is None else _INTENTS.get(agent.intent, Intent.NEUTRAL),  # unreadable: neutral
        cost=expected_cost(row, share_dim),
        kind=row[KIND],
    )


def _account(agent: ReadyAgent) -> Account:
    last_run_at = agent.last_run_at or agent.created_at
    return Account(weight=agent.weight, virtual_time=agent.virtual_time, last_run_at=last_run_at)


def _heads_wanted(claim: ClaimPass, keys: int) -> int:
    """Enough that few keys are used up in one round, and few enough that little is read without use."""
    return min(HEADS_MAX, claim.remaining // max(1, keys) + SPARE // 2)


# --- entries in one fixed order ------------------------------------------------------------------


class FixedWindow(Window):
    """The first entries of all, by deadline or in strict order. Nothing is kept."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._by_deadline = policy.window == "deadline"
        self._count = 0

    def ensure_index(self, claim: ClaimPass) -> None:
        """Create the index by deadline; strict order has its own."""
        if self._by_deadline:
            claim.ensure_index("deadline")

    def open(self, claim: ClaimPass) -> Heads:
        """Return the first candidates."""
        self.owners, self.rows = {}, {}
        self._count = min(WINDOW_MAX, SPARE * claim.remaining + SPARE // 2)
        return {None: self.read_next(claim, None)}

    def read_next(self, claim: ClaimPass, _: Key) -> list[Candidate]:
        """Return the next candidates."""
        rows = claim.nearest_deadlines(self._count) if self._by_deadline else []
        if not rows:  # entries without a deadline are shown only when none with one is left
            rows = claim.ready_entries(limit=self._count)
        self.rows.update((row[0], row) for row in rows)
        return self._from_rows(claim, rows)

    def key_of(self, _: Candidate) -> Key:
        """All candidates have one key."""
        return None


# --- the first entries of each project -----------------------------------------------------------


class ProjectWindow(Window):
    """The first entries of each project."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._heads: dict[tuple[str, ...], ProjectHeads] = {}  # by kinds of slots
        self._depth = 0

    def ensure_index(self, claim: ClaimPass) -> None:
        """Create the index by project."""
        claim.ensure_index("project")

    def open(self, claim: ClaimPass) -> Heads:
        """Return the first candidates of each project."""
        self.owners, self.rows = {}, {}
        claim.exclude_blocked_agents()
        heads = for_kinds(self._heads, claim.request.kinds, ProjectHeads)
        heads.sync(claim, max(1, heads.depth))
        self._depth = _heads_wanted(claim, len(heads.rows))
        heads.sync(claim, self._depth)
        rows = [row for own in heads.rows.values() for row in own[: self._depth]]
        shown: dict[Key, list[Candidate]] = {}
        for candidate in self._from_rows(claim, rows):
            shown.setdefault(candidate.group, []).append(candidate)
        return shown

    def read_next(self, claim: ClaimPass, key: Key) -> list[Candidate]:
        """Return the next candidates of a project."""
        assert isinstance(key, str)  # noqa: S101  # projects are named
        rows = [] if key in claim.blocked_projects else claim.ready_entries(key, limit=self._depth)
        self.rows.update((row[0], row) for row in rows)
        return self._from_rows(claim, rows)

    def key_of(self, candidate: Candidate) -> Key:
        """The project."""
        return candidate.group


# --- the first entries of each agent -------------------------------------------------------------


class AgentWindow(Window):
    """The first entries of each agent, or of the agents that were served least recently."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self._ready = ReadyOwners()
        self._order = ServiceOrder()  # of the agents that are not blocked
        self._blocked: set[int] = set()
        self._accounts: dict[int, Account] = {}  # of agents that are or were in the window
        self._heads: dict[tuple[str, ...], _AgentCandidates] = {}  # by kinds of slots
        self._depth = 0

    def copy(self) -> AgentWindow:
        """Return an independent copy that knows the same agents."""
        copied = AgentWindow(self.policy)
        copied._ready, copied._order, copied._blocked = self._ready.copy(), self._order.copy(), self._blocked.copy()
        return copied

    def ensure_index(self, claim: ClaimPass) -> None:
        """Create the index by agent."""
        claim.ensure_index("agent")

    def open(self, claim: ClaimPass) -> Heads:
        """Return the first candidates of each agent of the window."""
        self.rows = {}
        self._sync_agents(claim)
        heads = for_kinds(self._heads, claim.request.kinds, _AgentCandidates)
        while True:
            pids = self._order.first(WINDOW_MAX)
            if len(self._order) > WINDOW_MAX:
                pids += self._first_in_strict_order(claim, set(pids))
            self._depth = _heads_wanted(claim, len(pids))
            idle = heads.sync(claim, pids, self._depth, self._ready.agents)
            if not idle:
                break
            for pid in idle:
                self._ready.drop(pid)
                self._order.remove(pid)
        self.is_complete = len(self._order) <= WINDOW_MAX
        self._accounts.update((pid, _account(self._ready.agents[pid])) for pid in pids if pid not in self._accounts)
        self.owners = {pid: self._accounts[pid] for pid in pids}
        return heads.first(pids, self._depth)

    def _first_in_strict_order(self, claim: ClaimPass, shown: set[int]) -> list[int]:
        """Return the agents of the first entries in strict order that are not shown yet."""
        rows = claim.ready_entries(limit=min(WINDOW_MAX, SPARE * claim.remaining + SPARE // 2))
        owners = dict.fromkeys(row[PID] for row in rows)
        return [pid for pid in owners if pid not in shown and pid in self._ready.agents and pid not in self._blocked]

    def _sync_agents(self, claim: ClaimPass) -> None:
        """Learn which agents have become ready, were served, were blocked or are no longer blocked."""
        changes = [change.now for change in self._ready.sync_agents(claim.tx, claim.env.cache)]
        blocked, before = claim.blocked_agents(), self._blocked
        self._blocked = blocked
        for pid in blocked - before:
            self._order.remove(pid)
        changes += [self._ready.agents[pid] for pid in before - blocked if pid in self._ready.agents]
        self._order.put([(agent.last_run_at, agent.pid) for agent in changes if agent.pid not in blocked])
        for agent in changes:
            self._accounts.pop(agent.pid, None)

    def read_next(self, claim: ClaimPass, key: Key) -> list[Candidate]:
        """Return the next candidates of an agent."""
        assert isinstance(key, int)  # noqa: S101  # agents are numbered
        rows = claim.ready_entries_of_agent(key, self._depth)
        self.rows.update((row[0], row) for row in rows)
        agent = self._ready.agents.get(key)
        return [_candidate(row, agent, claim.share_dim) for row in rows]

    def key_of(self, candidate: Candidate) -> Key:
        """The agent."""
        return candidate.owner


class _AgentCandidates:
    """The first entries of agents as candidates, made when they are read."""

    def __init__(self) -> None:
        self._heads = AgentHeads()
        self._candidates: dict[int, list[Candidate]] = {}

    def sync(self, claim: ClaimPass, pids: list[int], depth: int, agents: Mapping[int, ReadyAgent]) -> set[int]:
        """Read what is not known of these agents. Return those that have no ready entries at all."""
        rows = self._heads.rows
        read = self._heads.sync(claim, pids, depth)
        for pid in read:
            self._candidates[pid] = [_candidate(row, agents[pid], claim.share_dim) for row in rows[pid]]
        if len(self._candidates) > 2 * len(rows):
            self._candidates = {pid: self._candidates[pid] for pid in pids}
        empty = {pid for pid in read if not rows[pid]}
        return empty - agents_with_ready_entries(claim.tx, empty) if empty else empty

    def first(self, pids: list[int], depth: int) -> Heads:
        """Return the first candidates of these agents."""
        if depth < self._heads.depth:
            return {pid: self._candidates[pid][:depth] for pid in pids}
        return {pid: self._candidates[pid] for pid in pids}


class ServiceOrder:
    """Agents by the time they were last served, the least recent first: a sorted list.

    To insert or remove one agent moves the tail of the list, which takes microseconds even with 100,000 agents.
    """

    def __init__(self) -> None:
        self._order: list[tuple[float, int]] = []  # (last served at, pid)
        self._served_at: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._order)

    def copy(self) -> ServiceOrder:
        """Return an independent copy."""
        copied = ServiceOrder()
        copied._order, copied._served_at = self._order.copy(), self._served_at.copy()
        return copied

    def put(self, agents: Sequence[tuple[float, int]]) -> None:
        """Add agents, or move those that are there: (last served at, pid)."""
        if len(agents) > WINDOW_MAX:
            self._served_at.update((pid, at) for at, pid in agents)
            self._order = sorted((at, pid) for pid, at in self._served_at.items())
            return
        for at, pid in agents:
            self.remove(pid)
            self._served_at[pid] = at
            insort(self._order, (at, pid))

    def remove(self, pid: int) -> None:
        """Remove an agent, if it is there."""
        at = self._served_at.pop(pid, None)
        if at is not None:
            del self._order[bisect_left(self._order, (at, pid))]

    def first(self, count: int) -> list[int]:
        """Return the agents that were served least recently."""
        return [pid for _, pid in self._order[:count]]
