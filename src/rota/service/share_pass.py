"""A pass for policies that share by usage: it goes through the projects, each represented by its first entry.

The next project follows from what the projects used relative to their weights and, among equals, from the ids of their
first entries (see policy/fair_share/share_ranking). The claimed entries are those that `rank` picks when it sees every
entry that may run.

The ranking of the projects is kept between passes. At the start of a pass the projects that were touched since are read
again (their first entries and their accounts, each in one statement) and put in their new places; so a pass costs one
step for each project that changed and for each entry that it claims, however many projects there are. After a claim the
next entry of the project is read only when the project is first in line again: until then it counts as early as any of
its entries could.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rota.kernel.claim_pass import ClaimPass
from rota.kernel.flows import ServedFlows, expected_cost
from rota.kernel.project_shares import ProjectShares
from rota.kernel.ready_heads import ProjectHeads, for_kinds, read_ready
from rota.kernel.rows import KIND, PID, PROJECT
from rota.model.snapshot import Account, Candidate, Key
from rota.policy.fair_share.share_ranking import GroupStanding, ShareRanking
from rota.service.policy_guard import PolicyGuard
from rota.store import Row

__all__ = ["READ_AHEAD_MAX", "SharePass"]

READ_AHEAD_MAX = 16  # entries of a project that are read at a time


class SharePass:
    """Claims entries project by project, by usage relative to weight."""

    def __init__(self, *, guarantee: bool) -> None:
        self._guarantee = guarantee
        self._forget()

    def _forget(self) -> None:
        """What was read or created was rolled back."""
        self._has_index = False
        self._standings: dict[tuple[str, ...], _Standings] = {}  # by the kinds of slots of a request

    def propose(self, claim: ClaimPass) -> ServedFlows:
        """Claim entries one by one, and return the agents that were served."""
        claim.tx.effects.on_rollback.append(self._forget)
        if not self._has_index:
            claim.ensure_index("project")
            self._has_index = True
        claim.exclude_blocked_agents()
        standings = for_kinds(self._standings, claim.request.kinds, lambda: _Standings(self._guarantee))
        standings.sync(claim)
        entries, ranking = _Entries(claim, standings), standings.ranking
        kinds = frozenset(claim.request.kinds)
        if claim.remaining > 1 and len(ranking.groups) <= 2 * claim.remaining:  # most of them will be served
            entries.read_all_first()
        while claim.remaining > 0 and (group := ranking.next(kinds)) is not None:
            if entries.has_first_of(group):
                entries.try_first(group)
            else:
                entries.read(group)
        return ServedFlows(agents={(each.pid, each.project_id) for each in claim.claimed})

    def copy(self, _: PolicyGuard) -> SharePass:
        """Return an independent copy, which reads everything itself."""
        copied = SharePass(guarantee=self._guarantee)
        copied._has_index = self._has_index
        return copied

    def on_written(self, stamp: int) -> None:
        """Do nothing: the next pass reads again what this one has changed."""


class _Standings:
    """The ranking of all projects, kept between passes."""

    def __init__(self, guarantee: bool) -> None:
        self._guarantee = guarantee
        self._heads = ProjectHeads()
        self._shares = ProjectShares()
        self.ranking = ShareRanking({}, {}, min_guarantee=guarantee)
        self.moved: set[str] = set()  # projects that a pass has moved in the ranking

    def sync(self, claim: ClaimPass) -> None:
        """Put projects that have changed, or that the last pass has moved, where they belong."""
        heads = self._heads.sync(claim, depth=1)
        shares = self._shares.sync(claim.tx, claim.env.cache, claim.now)
        rows, accounts = self._heads.rows, self._shares.accounts
        if heads is None or shares is None:
            dim = claim.share_dim
            candidates: dict[Key, list[Candidate]] = {name: _candidates(own, dim) for name, own in rows.items()}
            self.ranking = ShareRanking(candidates, accounts, min_guarantee=self._guarantee)
        else:
            for name in {*heads, *shares, *self.moved}:
                first = _candidates(rows.get(name, ()), claim.share_dim)
                self.ranking.set_group(name, first, accounts.get(name, _NEW_ACCOUNT))
        self.moved = set()
        claim.show(row[0] for own in rows.values() for row in own)


class _Entries:
    """The entries that one pass has read."""

    def __init__(self, claim: ClaimPass, standings: _Standings) -> None:
        self._claim = claim
        self._ranking = standings.ranking
        self._moved = standings.moved
        self._rows: dict[int, Row] = {}  # by id
        self._tried: Counter[Key] = Counter()
        self._served: set[Key] = set()

    def has_first_of(self, group: GroupStanding) -> bool:
        """Whether the first entry of a project was read in this pass."""
        return bool(group.candidates) and group.candidates[-1].id in self._rows

    def read_all_first(self) -> None:
        """Read the first entry of every project, and what decides about it, each in one statement."""
        firsts = [group.candidates[-1].id for group in self._ranking.groups.values() if group.candidates]
        self._rows = read_ready(self._claim.tx, firsts) if firsts else {}
        self._claim.prefetch_owners(list(self._rows.values()))

    def read(self, group: GroupStanding) -> None:
        """Read the next entries of a project. It keeps its place if the first of them is the one that was expected."""
        claim, name = self._claim, group.group
        assert isinstance(name, str)  # noqa: S101  # projects are named
        self._moved.add(name)
        count = min(READ_AHEAD_MAX, 1 + claim.remaining // len(self._ranking.groups))
        rows = [] if name in claim.blocked_projects else claim.heads_of_project(name, count, self._tried[name])
        self._rows.update((row[0], row) for row in rows)
        self._ranking.set_candidates(group, _candidates(reversed(rows), claim.share_dim), has_unread=len(rows) == count)
        if not rows and name not in self._served:
            self._ranking.withdraw(group)

    def try_first(self, group: GroupStanding) -> None:
        """Try to claim the first entry of a project."""
        candidate = group.candidates[-1]
        self._tried[group.group] += 1
        reason = self._ranking.reason(group).words
        if group.group not in self._moved:  # its other entries were not read
            group.has_unread = True
            self._moved.add(str(group.group))
        if self._claim.try_claim(self._rows[candidate.id], estimate=candidate.cost, reason=reason) is None:
            self._ranking.pick(group)
            self._served.add(group.group)
        else:
            self.read(group)  # without those that would be refused for the same reason


def _candidates(rows: Iterable[Row], dim: str) -> list[Candidate]:
    return [Candidate(row[0], row[PID], row[PROJECT], cost=expected_cost(row, dim), kind=row[KIND]) for row in rows]


_NEW_ACCOUNT = Account()
