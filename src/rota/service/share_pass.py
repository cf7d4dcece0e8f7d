"""Passes of the policy that shares by usage: walk the projects, each by its first entry.

Whose turn it is follows from what the projects used against their weights and, among equals, from the ids of their
first entries (see policy/fair_share/contest). So a pass reads the first entry of each project in one statement, and
from then on one project at a time: the one that was just served, or refused, is given its next entry. What is handed
out is what `rank` picks when it is shown every entry that may run.

A pass costs a step for each project that has ready entries, and one for each entry it hands out. Nothing is
remembered between passes: shares move with every run that ends, in whatever process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from rota.kernel.claims import ClaimPass
from rota.kernel.flows import Served
from rota.kernel.rows import KIND, PID, PROJECT
from rota.model.snapshot import Account, Candidate, Key
from rota.policy.fair_share.contest import Contest, Entrant
from rota.service.flow_pass import expected_cost
from rota.service.policy_guard import Leash
from rota.service.shares import Shares
from rota.store import Row

__all__ = ["AHEAD", "ShareWalk"]

AHEAD = 2  # entries of a project that are read at a time, once its first is gone


class ShareWalk:
    """Passes over projects."""

    def __init__(self, *, guarantee: bool) -> None:
        self._guarantee = guarantee
        self._begun = False

    def propose(self, claim: ClaimPass) -> Served:
        """Take what is due, one by one; the answer is who was served."""
        if not self._begun:
            claim.tx.notes.undone.append(self._begin_again)
            claim.keep_order("project")
            self._begun = True
        claim.leave_out_blocked()
        lines = _Lines(claim)
        contest = Contest(lines.heads(), lines.accounts(), min_guarantee=self._guarantee)
        fits = frozenset(claim.terms.kinds)
        while claim.room > 0 and (entrant := contest.next(fits)) is not None:
            _serve(claim, lines, contest, entrant)
        return Served(agents={(each.pid, each.project_id) for each in claim.taken})

    def twin(self, _: Leash) -> ShareWalk:
        """The same once more: there is no memory but that the index was made."""
        made = ShareWalk(guarantee=self._guarantee)
        made._begun = self._begun
        return made

    def wrote(self, stamp: int) -> None:
        """Nothing is remembered."""

    def _begin_again(self) -> None:
        """The index did not become durable."""
        self._begun = False


def _serve(claim: ClaimPass, lines: _Lines, contest: Contest, entrant: Entrant) -> None:
    """Offer the entry whose turn it is, and let its project have the next one ready."""
    row = lines.first(entrant.group)
    if claim.offer(row, estimate=expected_cost(row), because=contest.because(entrant).words) is None:
        contest.pick(entrant)
        lines.served.add(entrant.group)
    else:
        contest.pass_over(entrant)
    entrant.line += lines.next(entrant.group)
    if not entrant.line and entrant.group not in lines.served:
        contest.withdraw(entrant)


class _Lines:
    """The entries of each project that have been read and not yet offered, the first one last."""

    def __init__(self, claim: ClaimPass) -> None:
        self.served: set[Key] = set()
        self._claim = claim
        self._weights: dict[str, int] = {}
        self._rows: dict[Key, list[Row]] = {}
        self._offered: Counter[Key] = Counter()
        for name, weight, row in claim.first_of_each_project():
            self._weights[name] = weight
            self._rows[name] = [row] if claim.is_for(row) else claim.heads_in(name, 1, 0)
        claim.prefetch_projects(self._weights)

    def heads(self) -> dict[Key, list[Candidate]]:
        """The first entry of each project that has one."""
        return {name: _candidates(rows) for name, rows in self._rows.items()}

    def accounts(self) -> dict[Key, Account]:
        """Every project's account, also of those without candidates: their usage counts."""
        shares = Shares(self._claim)
        accounts: dict[Key, Account] = {name: shares.account(name) for name in shares.names}
        accounts.update((name, shares.account(name, weight)) for name, weight in self._weights.items())
        return accounts

    def first(self, group: Key) -> Row:
        """Take a project's first entry off its line."""
        self._offered[group] += 1
        return self._rows[group].pop()

    def next(self, group: Key) -> list[Candidate]:
        """The entry that is first now, if the project has one that may be offered."""
        assert isinstance(group, str)  # noqa: S101  # projects are named
        if group in self._claim.projects:
            return []
        rows = self._rows[group]
        if not rows:
            rows += reversed(self._claim.heads_in(group, AHEAD, self._offered[group]))
        return _candidates(rows[-1:])


def _candidates(rows: Iterable[Row]) -> list[Candidate]:
    return [Candidate(row[0], row[PID], row[PROJECT], cost=expected_cost(row), kind=row[KIND]) for row in rows]
