"""A pass for policies that share by usage: it goes through the projects, each represented by its first entry.

The next project follows from what the projects used relative to their weights and, among equals, from the ids of their
first entries (see policy/fair_share/share_ranking). So a pass reads the first entry of each project in one statement,
and after that one project at a time: the project whose entry was just claimed or refused gets its next entry. The
claimed entries are those that `rank` picks when it sees every entry that may run.

A pass costs one step for each project with ready entries and one for each entry it claims. It keeps nothing between
passes: usage changes with every run that ends, in any process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rota.kernel.claim_pass import ClaimPass
from rota.kernel.flows import NO_PROJECT, ServedFlows
from rota.kernel.rows import KIND, PID, PROJECT
from rota.model.snapshot import Account, Candidate, Key
from rota.model.work import WEIGHT_UNIT
from rota.policy.fair_share.share_ranking import GroupStanding, ShareRanking
from rota.service.flow_pass import expected_cost
from rota.service.policy_guard import PolicyGuard
from rota.store import Row
from rota.store.statements import budgets as budget_sql
from rota.store.statements import claims as claim_sql

__all__ = ["READ_AHEAD", "SharePass", "Shares"]

READ_AHEAD = 2  # entries of a project that are read at a time after its first


class SharePass:
    """Claims entries project by project, by usage relative to weight."""

    def __init__(self, *, guarantee: bool) -> None:
        self._guarantee = guarantee
        self._has_index = False

    def propose(self, claim: ClaimPass) -> ServedFlows:
        """Claim entries one by one, and return the agents that were served."""
        if not self._has_index:
            claim.tx.effects.on_rollback.append(self._on_rollback)
            claim.ensure_index("project")
            self._has_index = True
        claim.exclude_blocked_agents()
        heads = _ProjectHeads(claim)
        ranking = ShareRanking(heads.candidates(), heads.accounts(), min_guarantee=self._guarantee)
        kinds = frozenset(claim.request.kinds)
        while claim.remaining > 0 and (group := ranking.next(kinds)) is not None:
            _serve(claim, heads, ranking, group)
        return ServedFlows(agents={(each.pid, each.project_id) for each in claim.claimed})

    def copy(self, _: PolicyGuard) -> SharePass:
        """Return an independent copy."""
        copied = SharePass(guarantee=self._guarantee)
        copied._has_index = self._has_index
        return copied

    def on_written(self, stamp: int) -> None:
        """Do nothing: a pass keeps nothing."""

    def _on_rollback(self) -> None:
        """The creation of the index was rolled back."""
        self._has_index = False


def _serve(claim: ClaimPass, heads: _ProjectHeads, ranking: ShareRanking, group: GroupStanding) -> None:
    """Try to claim the first entry of a project, and read its next one."""
    row = heads.take_first(group.group)
    if claim.try_claim(row, estimate=expected_cost(row), reason=ranking.reason(group).words) is None:
        ranking.pick(group)
        heads.served.add(group.group)
    else:
        ranking.skip(group)
    group.candidates += heads.next(group.group)
    if not group.candidates and group.group not in heads.served:
        ranking.withdraw(group)


class _ProjectHeads:
    """The entries of each project that were read and not tried yet, in reverse order."""

    def __init__(self, claim: ClaimPass) -> None:
        self.served: set[Key] = set()
        self._claim = claim
        self._weights: dict[str, int] = {}
        self._rows: dict[Key, list[Row]] = {}
        self._tried: Counter[Key] = Counter()
        for name, weight, row in claim.project_heads():
            self._weights[name] = weight
            self._rows[name] = [row] if claim.may_claim(row) else claim.heads_of_project(name, 1, 0)
        claim.prefetch_projects(self._weights)

    def candidates(self) -> dict[Key, list[Candidate]]:
        """The first entry of each project that has ready entries."""
        return {name: _candidates(rows) for name, rows in self._rows.items()}

    def accounts(self) -> dict[Key, Account]:
        """The account of every project, also without candidates: its usage counts in the total."""
        shares = Shares(self._claim)
        accounts: dict[Key, Account] = {name: shares.account(name) for name in shares.names}
        accounts.update((name, shares.account(name, weight)) for name, weight in self._weights.items())
        return accounts

    def take_first(self, group: Key) -> Row:
        """Remove and return the first entry of a project."""
        self._tried[group] += 1
        return self._rows[group].pop()

    def next(self, group: Key) -> list[Candidate]:
        """The new first entry of a project, if it has one that may be claimed."""
        assert isinstance(group, str)  # noqa: S101  # projects are named
        if group in self._claim.blocked_projects:
            return []
        rows = self._rows[group]
        if not rows:
            rows += reversed(self._claim.heads_of_project(group, READ_AHEAD, self._tried[group]))
        return _candidates(rows[-1:])


def _candidates(rows: Iterable[Row]) -> list[Candidate]:
    return [Candidate(row[0], row[PID], row[PROJECT], cost=expected_cost(row), kind=row[KIND]) for row in rows]


class Shares:
    """The usage of projects and the expected usage of their live runs, read once per pass."""

    def __init__(self, claim: ClaimPass) -> None:
        self._used: dict[str, tuple[int, int]] = {
            owner: (used, ended) for owner, used, ended in claim.tx.run(budget_sql.WINDOWS_SHARED)
        }
        self._live: Counter[str] = Counter()
        self._reserved: Counter[str] = Counter()
        for project_id, count, estimate in claim.tx.run(claim_sql.LIVE_SHARES):
            self._live[project_id or NO_PROJECT] += count
            self._reserved[project_id or NO_PROJECT] += estimate
        self._counted = 0  # of the claims of this pass

    @property
    def names(self) -> set[str]:
        """Every project with usage or live runs."""
        return {*self._used, *self._live}

    def count(self, claim: ClaimPass) -> None:
        """Count the claims of this pass since the last call."""
        for each in claim.claimed[self._counted :]:
            self._live[each.project_id or NO_PROJECT] += 1
            self._reserved[each.project_id or NO_PROJECT] += each.estimate
        self._counted = len(claim.claimed)

    def account(self, name: str, weight: int = WEIGHT_UNIT, virtual_time: int = 0) -> Account:
        """The account of a project."""
        used, ended = self._used.get(name, (0, 0))
        return Account(
            weight=weight,
            virtual_time=virtual_time,
            usage=used,
            reserved=self._reserved[name],
            live=self._live[name],
            ended=ended,
        )
