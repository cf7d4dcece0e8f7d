"""Passes of policies that rank: show them a bounded window of candidates, then offer what they picked.

Not everybody can be shown. What a policy must see is its `heads`: each owner's first entries, or each group's, or
those with the nearest deadlines. Owners are taken least recently served first, so that nobody is overlooked for
ever. A pass may take several rounds: when the policy has used up all that was shown of somebody who has more, it
is shown the next ones before it goes on. If all that it was shown is refused and somebody was left out, the rest of
the claim goes in strict order: what is blocked never hides what may run.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeAlias

from rota.errors import PolicyFailed
from rota.kernel.claims import ClaimPass
from rota.kernel.flows import Served
from rota.kernel.rows import DEADLINE, KIND, PID, PRIORITY, PROJECT, RUNNABLE_AT
from rota.model.snapshot import Account, Candidate, Decisions, Key, Slot, Snapshot
from rota.model.work import Intent
from rota.policy.contract import Policy
from rota.service.flow_pass import expected_cost
from rota.service.policy_guard import Leash
from rota.service.ready_owners import Group, Owner, Roster
from rota.service.shares import Shares
from rota.store import Row

__all__ = ["HEADS_MAX", "ROUNDS_MAX", "WINDOW_MAX", "Window"]

WINDOW_MAX = 1_000  # candidates that are shown at once
SPARE = 4  # where all are shown in one order: so many times as many as can be taken
HEADS_MAX = 16  # of one owner or group
ROUNDS_MAX = 64  # in one pass


class Window:
    """Passes of one policy that ranks."""

    def __init__(self, policy: Policy, leash: Leash) -> None:
        self._policy = policy
        self._leash = leash
        self._roster = Roster()
        self._begun = False

    def twin(self, leash: Leash) -> Window:
        """The same memory once more, on another leash."""
        made = Window(self._policy, leash)
        made._roster, made._begun = self._roster.twin(), self._begun
        return made

    def propose(self, claim: ClaimPass) -> Served:
        """Take what the policy picks; the answer is who was served."""
        claim.tx.notes.undone.append(self._forget)
        if not self._begun:
            claim.keep_order("agent")  # the roster asks by agent
            if self._policy.heads == "group":
                claim.keep_order("project")
            if self._policy.heads == "deadline":
                claim.keep_order("deadline")
            self._begun = True
        self._roster.sync(claim.tx)
        stock = self._stock(claim)
        shares = Shares(claim)
        for _ in range(ROUNDS_MAX):
            shown = stock.show(claim) if claim.room > 0 else {}
            if not shown:
                break
            snapshot = self._snapshot(claim, shown.values(), shares)
            decisions = self._leash.run(self._policy, snapshot)
            picks = _checked(self._policy.name, decisions, shown, len(snapshot.slots))
            if not picks:
                break
            self._offer(claim, stock, shown, picks)
        else:
            stock.is_whole = False
        if claim.room > 0 and not stock.is_whole:  # so many were refused that some who may run were never shown
            claim.strict()
        return self._served(claim)

    def _forget(self) -> None:
        """What was read or made did not become durable."""
        self._roster.forget()
        self._begun = False

    def wrote(self, stamp: int) -> None:
        """The moves of a pass were written with this stamp."""
        self._roster.wrote(stamp)

    def _stock(self, claim: ClaimPass) -> Stock:
        """What this policy must see of: each agent's first entries, each project's, or simply the first."""
        match self._policy.heads:
            case "group":
                keys: list[Key] = list({owner.project_id for owner in self._roster.owners.values()})
                return Stock(keys, claim.room, _of_group)
            case "deadline":
                return Stock([None], SPARE * claim.room, _by_deadline)
            case "strict":
                return Stock([None], SPARE * claim.room, _in_strict_order)
            case _:
                blocked = claim.blocked_agents()
                waiting = (owner for owner in self._roster.owners.values() if owner.pid not in blocked)
                longest = heapq.nsmallest(WINDOW_MAX + 1, waiting, key=_last_served)
                stock = Stock([owner.pid for owner in longest[:WINDOW_MAX]], claim.room, self._of_owner)
                stock.is_whole = len(longest) <= WINDOW_MAX
                return stock

    def _of_owner(self, claim: ClaimPass, pid: Key, most: int, _: int) -> list[Row]:
        assert isinstance(pid, int)  # noqa: S101  # agents are numbered
        rows = claim.ready_of(pid, most)
        if not rows and not claim.has_more(pid):
            self._roster.drop(pid)
        return rows

    # --- showing ---------------------------------------------------------------------------------

    def _snapshot(self, claim: ClaimPass, rows: Iterable[Row], shares: Shares) -> Snapshot:
        candidates = tuple(self._candidate(row) for row in rows)
        owners: dict[Key, Account] = {}
        for candidate in candidates:
            owner = self._roster.owners.get(candidate.owner) if isinstance(candidate.owner, int) else None
            if owner is not None:
                served = owner.pid in claim.taken_of  # in this pass
                owners[candidate.owner] = Account(
                    weight=owner.weight,
                    virtual_time=owner.virtual_time,
                    last_run_at=claim.terms.now if served else owner.last_run_at or owner.created_at,
                )
        return Snapshot(
            now=claim.terms.now,
            slots=tuple(Slot(number, claim.terms.kinds) for number in range(claim.room)),
            candidates=candidates,
            owners=owners,
            groups=self._groups(claim, shares),
        )

    def _groups(self, claim: ClaimPass, shares: Shares) -> dict[Key, Account]:
        """Every project's account, also of those without candidates: their usage counts."""
        shares.count(claim)
        known = self._roster.groups
        groups = [known.get(name) or Group(name) for name in {*shares.names, *known}]
        return {
            group.project_id: shares.account(group.project_id, group.weight, group.virtual_time) for group in groups
        }

    def _candidate(self, row: Row) -> Candidate:
        owner = self._roster.owners.get(row[PID])
        return Candidate(
            id=row[0],
            owner=row[PID],
            group=row[PROJECT] or "",
            priority=row[PRIORITY],
            ready_at=row[RUNNABLE_AT],
            deadline=row[DEADLINE],
            intent=Intent(owner.intent) if owner is not None else Intent.NEUTRAL,
            cost=expected_cost(row),
            kind=row[KIND],
        )

    # --- offering --------------------------------------------------------------------------------

    def _offer(self, claim: ClaimPass, stock: Stock, shown: dict[int, Row], picks: list[tuple[int, str]]) -> None:
        """Offer picks in order, until the claim is full or somebody's heads are used up.

        What the policy would pick after that might be something it was not shown, so it is asked again.
        """
        claim.prefetch([shown[sched_id] for sched_id, _ in picks])
        for sched_id, because in picks:
            row = shown[sched_id]
            claim.offer(row, estimate=expected_cost(row), because=because)
            if stock.used_up(row) or claim.room <= 0:
                return

    def _served(self, claim: ClaimPass) -> Served:
        """Flows stay where they are in virtual time, charged as for any policy; that they were served is noted."""
        agents = {(each.pid, each.project_id) for each in claim.taken}
        for pid, _ in agents:
            owner = self._roster.owners.get(pid)
            if owner is not None:
                self._roster.owners[pid] = owner._replace(last_run_at=claim.terms.now)
        return Served(agents=agents)


class Stock:
    """The entries that are shown: of each key (an agent, a project, or everybody) the first few."""

    def __init__(self, keys: list[Key], room: int, fetch: Fetch) -> None:
        # enough that few run out in one round, few enough that not much is read for nothing
        self._each = max(1, min(HEADS_MAX if None not in keys else WINDOW_MAX, room // max(1, len(keys)) + SPARE // 2))
        self._fetch = fetch
        self._heads: dict[Key, dict[int, Row]] = {}
        self._whose: dict[int, Key] = {}  # by entry
        self._offered: Counter[Key] = Counter()
        self._low: list[Key] = keys  # whose heads have to be read
        self.is_whole = True  # nobody is left out

    def show(self, claim: ClaimPass) -> dict[int, Row]:
        """Everything that is shown in the next round, by id."""
        for key in self._low:
            rows = self._fetch(claim, key, self._each, self._offered[key])
            self._heads[key] = {row[0]: row for row in rows}
            self._whose.update((row[0], key) for row in rows)
        self._low = []
        return {sched_id: row for heads in self._heads.values() for sched_id, row in heads.items()}

    def used_up(self, row: Row) -> bool:
        """Note that an entry was offered; whether its key's heads are used up by that."""
        key = self._whose[row[0]]
        del self._heads[key][row[0]]
        self._offered[key] += 1
        if not self._heads[key]:
            self._low.append(key)
        return not self._heads[key]


Fetch: TypeAlias = Callable[[ClaimPass, Key, int, int], list[Row]]  # the next entries of a key, behind so many


def _of_group(claim: ClaimPass, project_id: Key, most: int, offered: int) -> list[Row]:
    if project_id in claim.projects:
        return []
    assert isinstance(project_id, str)  # noqa: S101  # projects are named
    return claim.heads_in(project_id, most, offered)


def _by_deadline(claim: ClaimPass, _key: Key, most: int, _offered: int) -> list[Row]:
    """What has a deadline comes first; only when there is none left, what has not."""
    return claim.nearest_deadlines(most) or claim.ready(most=most)


def _in_strict_order(claim: ClaimPass, _key: Key, most: int, _offered: int) -> list[Row]:
    return claim.ready(most=most)


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
