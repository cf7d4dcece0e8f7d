"""Passes of policies that rank: show them a bounded window of candidates, then offer what they picked.

Not everybody can be shown. What a policy must see is its `heads`: each owner's first entries, or each group's, or
those with the nearest deadlines. Owners are taken least recently served first, so that nobody is overlooked for
ever. A pass may take several rounds: when the policy has used up all that was shown of somebody who has more, it
is shown the next ones before it goes on.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from rota.errors import PolicyFailed
from rota.kernel import windows
from rota.kernel.claims import ClaimPass
from rota.model.events import FlowMove
from rota.model.snapshot import Account, Candidate, Decisions, Key, Slot, Snapshot
from rota.model.work import Intent
from rota.policy.contract import Policy
from rota.service.flow_walk import expected_cost
from rota.service.leash import Leash
from rota.service.roster import Group, Owner, Roster
from rota.store import Row
from rota.store.statements import budgets as budget_sql
from rota.store.statements import claims as claim_sql

__all__ = ["HEADS_MAX", "ROUNDS_MAX", "WINDOW_MAX", "Window"]

WINDOW_MAX = 1_000  # candidates that are shown at once
HEADS_MAX = 16  # of one owner or group
ROUNDS_MAX = 64  # in one pass


class Window:
    """Passes of one policy that ranks."""

    def __init__(self, policy: Policy, leash: Leash) -> None:
        self._policy = policy
        self._leash = leash
        self._roster = Roster()

    def propose(self, claim: ClaimPass) -> list[FlowMove]:
        """Take what the policy picks; the answer is who was served."""
        claim.tx.notes.undone.append(self._roster.forget)
        self._roster.sync(claim.tx)
        blocked = claim.blocked_agents()
        for _ in range(ROUNDS_MAX):
            if claim.room <= 0:
                break
            shown = self._show(claim, blocked)
            if not shown:
                break
            picks = self._rank(claim, shown)
            if not self._offer(claim, shown, picks):
                break
        return self._served(claim)

    def wrote(self, stamp: int) -> None:
        """The moves of a pass were written with this stamp."""
        self._roster.wrote(stamp)

    # --- showing ---------------------------------------------------------------------------------

    def _show(self, claim: ClaimPass, blocked: set[int]) -> dict[int, Row]:
        """The candidates of one round, by id."""
        if self._policy.heads == "group":
            rows = self._heads_of_groups(claim)
        elif self._policy.heads == "deadline":
            rows = claim.nearest_deadlines(WINDOW_MAX) or claim.ready(most=WINDOW_MAX)
        elif self._policy.heads == "strict":
            rows = claim.ready(most=WINDOW_MAX)
        else:
            rows = self._heads_of_owners(claim, blocked)
        return {row[0]: row for row in rows}

    def _heads_of_owners(self, claim: ClaimPass, blocked: set[int]) -> list[Row]:
        waiting = (owner for owner in self._roster.owners.values() if owner.pid not in blocked)
        longest = heapq.nsmallest(WINDOW_MAX, waiting, key=_last_served)
        each = max(1, min(HEADS_MAX, WINDOW_MAX // max(1, len(longest)), claim.room))
        rows: list[Row] = []
        for owner in longest:
            found = claim.ready_of(owner.pid, each)
            rows += found
            if not found and not claim.has_more(owner.pid):
                self._roster.drop(owner.pid)
        return rows

    def _heads_of_groups(self, claim: ClaimPass) -> list[Row]:
        groups = {owner.project_id for owner in self._roster.owners.values()} - claim.projects
        each = max(1, min(HEADS_MAX, WINDOW_MAX // max(1, len(groups)), claim.room))
        rows: list[Row] = []
        for group in groups:
            rows += claim.ready(group, most=each)
        return rows

    # --- ranking ---------------------------------------------------------------------------------

    def _rank(self, claim: ClaimPass, shown: dict[int, Row]) -> list[tuple[int, str]]:
        """What the policy picks, in order, each with its reason; `PolicyFailed` if that is nonsense."""
        snapshot = self._snapshot(claim, shown.values())
        decisions = self._leash.run(self._policy, snapshot)
        return _checked(self._policy.name, decisions, shown, len(snapshot.slots))

    def _snapshot(self, claim: ClaimPass, rows: Iterable[Row]) -> Snapshot:
        candidates = tuple(self._candidate(row) for row in rows)
        owners: dict[Key, Account] = {}
        for candidate in candidates:
            owner = self._roster.owners.get(candidate.owner) if isinstance(candidate.owner, int) else None
            if owner is not None:
                owners[candidate.owner] = Account(
                    weight=owner.weight,
                    virtual_time=owner.virtual_time,
                    last_run_at=owner.last_run_at or owner.created_at,
                )
        return Snapshot(
            now=claim.terms.now,
            slots=tuple(Slot(number, claim.terms.kinds) for number in range(claim.room)),
            candidates=candidates,
            owners=owners,
            groups=self._groups(claim),
        )

    def _candidate(self, row: Row) -> Candidate:
        owner = self._roster.owners.get(row[1])
        return Candidate(
            id=row[0],
            owner=row[1],
            group=row[13] or "",
            priority=row[2],
            ready_at=row[3],
            deadline=row[4],
            intent=Intent(owner.intent) if owner is not None else Intent.NEUTRAL,
            cost=expected_cost(row),
            kind=row[24],
        )

    def _groups(self, claim: ClaimPass) -> dict[Key, Account]:
        """Where every project stands, also those without candidates: their usage counts."""
        used: dict[str, dict[str, int]] = {}
        for project_id, dim, amount in claim.tx.run(budget_sql.WINDOWS_SHARED, (windows.SHARE_WINDOW_S,)):
            used.setdefault(project_id, {})[dim] = amount
        live: Counter[str] = Counter()
        reserved: Counter[str] = Counter()
        for project_id, count, estimate in claim.tx.run(claim_sql.LIVE_SHARES):
            live[project_id or ""] += count
            reserved[project_id or ""] += estimate
        for each in claim.taken:
            live[each.project_id or ""] += 1
            reserved[each.project_id or ""] += each.estimate
        accounts: dict[Key, Account] = {}
        for name in {*used, *live, *self._roster.groups}:
            group = self._roster.groups.get(name) or Group(name)
            accounts[name] = Account(
                weight=group.weight,
                virtual_time=group.virtual_time,
                usage=used.get(name, {}).get(windows.SHARE, 0),
                reserved=reserved[name],
                live=live[name],
                ended=used.get(name, {}).get(windows.RUNS, 0),
            )
        return accounts

    # --- offering --------------------------------------------------------------------------------

    def _offer(self, claim: ClaimPass, shown: dict[int, Row], picks: list[tuple[int, str]]) -> bool:
        """Offer picks in order; whether another round may find more.

        A round ends early where the policy has used up all that was shown of a project or an agent: what it
        would pick next might be something that it was not shown.
        """
        left = Counter(self._whose(row) for row in shown.values())
        refused = False
        for sched_id, because in picks:
            row = shown[sched_id]
            refused |= claim.offer(row, estimate=expected_cost(row), because=because) is not None
            left[self._whose(row)] -= 1
            if claim.room <= 0:
                return False
            if not left[self._whose(row)]:
                return True
        return refused

    def _whose(self, row: Row) -> Key:
        match self._policy.heads:
            case "group":
                return str(row[13] or "")
            case "owner":
                return int(row[1])
            case _:
                return None

    def _served(self, claim: ClaimPass) -> list[FlowMove]:
        """Flows stay where they are in virtual time, charged as for any policy; that they were served is noted."""
        moves: list[FlowMove] = []
        for pid in {each.pid for each in claim.taken}:
            owner = self._roster.owners.get(pid)
            if owner is not None:
                self._roster.owners[pid] = owner._replace(last_run_at=claim.terms.now)
                moves.append(FlowMove("agent", str(pid), owner.virtual_time, 0, owner.project_id))
        return moves


def _last_served(owner: Owner) -> tuple[float, int]:
    return owner.last_run_at, owner.pid


def _checked(name: str, decisions: Decisions, shown: dict[int, Row], slots: int) -> list[tuple[int, str]]:
    """The picks of a policy that kept the rules: nobody who was not shown, nobody twice, not more than fits."""
    picks: list[tuple[int, str]] = []
    seen: set[int] = set()
    for decision in decisions:
        if decision.candidate_id not in shown or decision.candidate_id in seen or len(picks) >= slots:
            raise PolicyFailed(
                f"{name} picked {decision.candidate_id}, which it may not", policy=name, failure="nonsense"
            )
        seen.add(decision.candidate_id)
        picks.append((decision.candidate_id, decision.reason.words))
    return picks
