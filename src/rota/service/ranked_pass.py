"""A pass for policies that rank: the policy sees a bounded window of candidates, and its picks are claimed.

A policy cannot see every entry. Its `window` says what it must see: the first entries of each agent, those of each
project, or those with the nearest deadlines. Agents are chosen least recently served first, so that none is left out
forever. A pass may take several rounds: when all shown entries of an agent or project are used and it has more, the
policy sees the next ones before it continues. If all shown entries are refused and some were not shown, strict order
makes the rest of the claim: blocked entries never hide entries that may run.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias

from rota.errors import PolicyFailed
from rota.kernel.claim_pass import ClaimPass
from rota.kernel.flows import ServedFlows
from rota.kernel.rows import DEADLINE, KIND, PID, PRIORITY, PROJECT, RUNNABLE_AT
from rota.model.snapshot import Account, Candidate, Decisions, Key, Slot, Snapshot
from rota.model.work import Intent
from rota.policy.contract import Policy
from rota.service.flow_pass import expected_cost
from rota.service.policy_guard import PolicyGuard
from rota.service.ready_owners import ProjectFlow, ReadyAgent, ReadyOwners
from rota.service.share_pass import Shares
from rota.store import Row

__all__ = ["HEADS_MAX", "ROUNDS_MAX", "WINDOW_MAX", "RankedPass"]

WINDOW_MAX = 1_000  # candidates in one snapshot
SPARE = 4  # a window in one fixed order has this many candidates for each entry to claim
HEADS_MAX = 16  # candidates of one agent or project
ROUNDS_MAX = 64  # rounds of one pass


class RankedPass:
    """Claims the entries that one policy picks from a window."""

    def __init__(self, policy: Policy, guard: PolicyGuard) -> None:
        self._policy = policy
        self._guard = guard
        self._ready = ReadyOwners()
        self._has_indexes = False

    def copy(self, guard: PolicyGuard) -> RankedPass:
        """Return an independent copy with another guard."""
        copied = RankedPass(self._policy, guard)
        copied._ready, copied._has_indexes = self._ready.copy(), self._has_indexes
        return copied

    def propose(self, claim: ClaimPass) -> ServedFlows:
        """Claim what the policy picks, and return the agents that were served."""
        claim.tx.effects.on_rollback.append(self._forget)
        if not self._has_indexes:
            claim.ensure_index("agent")  # entries are looked up by agent
            if self._policy.window == "group":
                claim.ensure_index("project")
            if self._policy.window == "deadline":
                claim.ensure_index("deadline")
            self._has_indexes = True
        self._ready.sync(claim.tx)
        pool = self._pool(claim)
        shares = Shares(claim)
        for _ in range(ROUNDS_MAX):
            shown = pool.refill(claim) if claim.remaining > 0 else {}
            if not shown:
                break
            snapshot = self._snapshot(claim, shown.values(), shares)
            decisions = self._guard.run(self._policy, snapshot)
            picks = _checked(self._policy.name, decisions, shown, len(snapshot.slots))
            if not picks:
                break
            self._claim_picks(claim, pool, shown, picks)
        else:
            pool.is_complete = False
        if claim.remaining > 0 and not pool.is_complete:  # entries that may run may not have been shown
            claim.claim_in_strict_order()
        return self._served(claim)

    def _forget(self) -> None:
        """What was read or created was rolled back."""
        self._ready.forget()
        self._has_indexes = False

    def on_written(self, stamp: int) -> None:
        """The flow changes of a pass were written with this stamp."""
        self._ready.on_written(stamp)

    def _pool(self, claim: ClaimPass) -> CandidatePool:
        """The candidates that this policy must see: of each agent, of each project, or in one fixed order."""
        match self._policy.window:
            case "group":
                keys: list[Key] = list({agent.project_id for agent in self._ready.agents.values()})
                return CandidatePool(keys, claim.remaining, _of_project)
            case "deadline":
                return CandidatePool([None], SPARE * claim.remaining, _by_deadline)
            case "strict":
                return CandidatePool([None], SPARE * claim.remaining, _in_strict_order)
            case _:
                blocked = claim.blocked_agents()
                waiting = (agent for agent in self._ready.agents.values() if agent.pid not in blocked)
                longest = heapq.nsmallest(WINDOW_MAX + 1, waiting, key=_last_served)
                pool = CandidatePool([agent.pid for agent in longest[:WINDOW_MAX]], claim.remaining, self._of_agent)
                pool.is_complete = len(longest) <= WINDOW_MAX
                return pool

    def _of_agent(self, claim: ClaimPass, pid: Key, limit: int, _: int) -> list[Row]:
        assert isinstance(pid, int)  # noqa: S101  # agents are numbered
        rows = claim.ready_entries_of_agent(pid, limit)
        if not rows and not claim.has_more_ready(pid):
            self._ready.drop(pid)
        return rows

    # --- the snapshot ----------------------------------------------------------------------------

    def _snapshot(self, claim: ClaimPass, rows: Iterable[Row], shares: Shares) -> Snapshot:
        candidates = tuple(self._candidate(row) for row in rows)
        owners: dict[Key, Account] = {}
        for candidate in candidates:
            agent = self._ready.agents.get(candidate.owner) if isinstance(candidate.owner, int) else None
            if agent is not None:
                served = agent.pid in claim.claimed_by_agent  # in this pass
                owners[candidate.owner] = Account(
                    weight=agent.weight,
                    virtual_time=agent.virtual_time,
                    last_run_at=claim.now if served else agent.last_run_at or agent.created_at,
                )
        return Snapshot(
            now=claim.now,
            slots=tuple(Slot(number, claim.request.kinds) for number in range(claim.remaining)),
            candidates=candidates,
            owners=owners,
            groups=self._project_accounts(claim, shares),
        )

    def _project_accounts(self, claim: ClaimPass, shares: Shares) -> dict[Key, Account]:
        """The account of every project, also without candidates: its usage counts in the total."""
        shares.count(claim)
        known = self._ready.projects
        flows = [known.get(name) or ProjectFlow(name) for name in {*shares.names, *known}]
        return {flow.project_id: shares.account(flow.project_id, flow.weight, flow.virtual_time) for flow in flows}

    def _candidate(self, row: Row) -> Candidate:
        agent = self._ready.agents.get(row[PID])
        return Candidate(
            id=row[0],
            owner=row[PID],
            group=row[PROJECT] or "",
            priority=row[PRIORITY],
            ready_at=row[RUNNABLE_AT],
            deadline=row[DEADLINE],
            intent=Intent(agent.intent) if agent is not None else Intent.NEUTRAL,
            cost=expected_cost(row),
            kind=row[KIND],
        )

    # --- claiming --------------------------------------------------------------------------------

    def _claim_picks(
        self, claim: ClaimPass, pool: CandidatePool, shown: dict[int, Row], picks: list[tuple[int, str]]
    ) -> None:
        """Claim the picks in order, until the claim is full or all shown entries of an agent or project are used.

        After that the policy might pick an entry that it has not seen, so it ranks again in the next round.
        """
        claim.prefetch_owners([shown[sched_id] for sched_id, _ in picks])
        for sched_id, reason in picks:
            row = shown[sched_id]
            claim.try_claim(row, estimate=expected_cost(row), reason=reason)
            if pool.use(row) or claim.remaining <= 0:
                return

    def _served(self, claim: ClaimPass) -> ServedFlows:
        """The agents that were served. Their virtual times do not change here; their last run time does."""
        agents = {(each.pid, each.project_id) for each in claim.claimed}
        for pid, _ in agents:
            agent = self._ready.agents.get(pid)
            if agent is not None:
                self._ready.agents[pid] = agent._replace(last_run_at=claim.now)
        return ServedFlows(agents=agents)


class CandidatePool:
    """The candidates of a window: the first entries of each key (an agent, a project, or None for all)."""

    def __init__(self, keys: list[Key], remaining: int, fetch: Fetch) -> None:
        # enough that few keys run out in one round, and few enough that little is read without use
        wanted = remaining // max(1, len(keys)) + SPARE // 2
        self._per_key = max(1, min(HEADS_MAX if None not in keys else WINDOW_MAX, wanted))
        self._fetch = fetch
        self._heads: dict[Key, dict[int, Row]] = {}
        self._key_of: dict[int, Key] = {}  # by entry
        self._used: Counter[Key] = Counter()
        self._empty: list[Key] = keys  # keys whose entries have to be read
        self.is_complete = True  # no agent was left out

    def refill(self, claim: ClaimPass) -> dict[int, Row]:
        """Read the next entries of the empty keys. Return the candidates of the next round, by id."""
        for key in self._empty:
            rows = self._fetch(claim, key, self._per_key, self._used[key])
            self._heads[key] = {row[0]: row for row in rows}
            self._key_of.update((row[0], key) for row in rows)
        self._empty = []
        return {sched_id: row for heads in self._heads.values() for sched_id, row in heads.items()}

    def use(self, row: Row) -> bool:
        """Remove a candidate. Return whether its key has no more candidates."""
        key = self._key_of[row[0]]
        del self._heads[key][row[0]]
        self._used[key] += 1
        if not self._heads[key]:
            self._empty.append(key)
        return not self._heads[key]


# (claim, key, limit, number of used entries): the next entries of a key
Fetch: TypeAlias = Callable[[ClaimPass, Key, int, int], list[Row]]


def _of_project(claim: ClaimPass, project_id: Key, limit: int, used: int) -> list[Row]:
    if project_id in claim.blocked_projects:
        return []
    assert isinstance(project_id, str)  # noqa: S101  # projects are named
    return claim.heads_of_project(project_id, limit, used)


def _by_deadline(claim: ClaimPass, _key: Key, limit: int, _used: int) -> list[Row]:
    """Entries with a deadline first; entries without one only when none is left."""
    return claim.nearest_deadlines(limit) or claim.ready_entries(limit=limit)


def _in_strict_order(claim: ClaimPass, _key: Key, limit: int, _used: int) -> list[Row]:
    return claim.ready_entries(limit=limit)


def _last_served(agent: ReadyAgent) -> tuple[float, int]:
    return agent.last_run_at, agent.pid


def _checked(name: str, decisions: Decisions, shown: dict[int, Row], slots: int) -> list[tuple[int, str]]:
    """Return the picks if they are valid: only shown candidates, none twice, not more than the slots."""
    picks: list[tuple[int, str]] = []
    seen: set[int] = set()
    for decision in decisions:
        if decision.candidate_id not in shown or decision.candidate_id in seen or len(picks) >= slots:
            raise PolicyFailed(
                f"{name} picked {decision.candidate_id}: not shown to it, picked twice, or more than {slots} slots",
                policy=name,
                failure="nonsense",
            )
        seen.add(decision.candidate_id)
        picks.append((decision.candidate_id, decision.reason.words))
    return picks
