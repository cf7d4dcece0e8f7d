"""A pass for policies that rank: the policy sees a bounded window of candidates, and its picks are claimed.

A policy cannot see every entry. Its `window` says what it must see: the first entries of each agent, those of each
project, or those with the nearest deadlines (see candidate_windows.py). A pass may take several rounds: when all shown
entries of an agent or project are used and it has more, the policy sees the next ones before it continues. If all shown
entries are refused and some were not shown, strict order makes the rest of the claim: blocked entries never hide
entries that may run.

What a policy sees may have been kept in memory since an earlier pass. So a picked entry is read again before it is
claimed; one that is no longer ready is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from types import MappingProxyType

import msgspec

from rota.kernel.claim_pass import ClaimPass
from rota.kernel.flows import NO_PROJECT, ServedFlows
from rota.kernel.project_shares import ProjectShares
from rota.kernel.ready_heads import read_ready
from rota.model.snapshot import Account, Candidate, Decisions, Key, Slot, Snapshot
from rota.policy.contract import Policy
from rota.policy.foreign import Offer, copied_values, is_built_in
from rota.service.candidate_windows import Window, window_for
from rota.service.policy_guard import PassTime, PolicyGuard
from rota.service.policy_process import PolicyProcess
from rota.store import Row

__all__ = ["ROUNDS_MAX", "RankedPass", "ShownCandidates"]

ROUNDS_MAX = 64  # rounds of one pass


class RankedPass:
    """Claims the entries that one policy picks from a window."""

    def __init__(self, policy: Policy, guard: PolicyGuard) -> None:
        self._policy = policy
        # a policy of another package may change what it sees, so it gets copies; what another process sees are copies
        self._copies = not is_built_in(policy) and type(policy.rank) is not PolicyProcess
        self._guard = guard
        self._forget()

    def _forget(self) -> None:
        """What was read or created was rolled back."""
        self._has_index = False
        self._window = window_for(self._policy)
        self._shares = ProjectShares()

    def copy(self, guard: PolicyGuard) -> RankedPass:
        """Return an independent copy with another guard."""
        copied = RankedPass(self._policy, guard)
        copied._window, copied._has_index = self._window.copy(), self._has_index
        return copied

    def on_written(self, stamp: int) -> None:
        """Do nothing: the next pass reads again what this one has changed."""

    def propose(self, claim: ClaimPass) -> ServedFlows:
        """Claim what the policy picks, and return the agents that were served."""
        claim.tx.effects.on_rollback.append(self._forget)
        shown = self._open(claim)
        is_complete, time = self._window.is_complete, PassTime()
        for _ in range(ROUNDS_MAX):
            if claim.remaining <= 0 or not shown.refill(claim):
                break
            if time.left_s <= 0:
                is_complete = False
                break
            snapshot = self._snapshot(claim, shown)
            decisions = self._guard.run(self._policy, snapshot, Offer.of(snapshot, shown.candidates), time)
            if not decisions:
                break
            self._claim_picks(claim, shown, decisions)
        else:
            is_complete = False
        if claim.remaining > 0 and not is_complete:  # entries that may run may not have been shown
            claim.claim_in_strict_order()
        return ServedFlows(agents={(each.pid, each.project_id) for each in claim.claimed})

    def _open(self, claim: ClaimPass) -> ShownCandidates:
        """Read the window."""
        if not self._has_index:
            self._window.ensure_index(claim)
            self._has_index = True
        shown = ShownCandidates(self._window, claim, copies=self._copies)
        if "group" in self._policy.accounts:
            self._shares.sync(claim.tx, claim.env.cache, claim.now)
            shown.groups = copied_values(self._shares.accounts) if self._copies else self._shares.accounts
        return shown

    # --- the snapshot ----------------------------------------------------------------------------

    def _snapshot(self, claim: ClaimPass, shown: ShownCandidates) -> Snapshot:
        owners = self._owner_accounts(claim, shown)
        groups = self._group_accounts(claim, shown) if "group" in self._policy.accounts else {}
        return Snapshot(
            now=claim.now,
            slots=tuple(Slot(number, claim.request.kinds) for number in range(claim.remaining)),
            candidates=shown.for_policy(),
            owners=MappingProxyType(owners) if self._copies else owners,
            groups=MappingProxyType(groups) if self._copies else groups,
        )

    def _owner_accounts(self, claim: ClaimPass, shown: ShownCandidates) -> dict[Key, Account]:
        """The accounts of the agents; those that were served in this pass have just run."""
        served = self._window.owners.keys() & claim.claimed_by_agent.keys()
        return shown.owners | {
            pid: msgspec.structs.replace(self._window.owners[pid], last_run_at=claim.now) for pid in served
        }

    def _group_accounts(self, claim: ClaimPass, shown: ShownCandidates) -> dict[Key, Account]:
        """The account of every project, also without candidates: its usage counts in the total."""
        accounts = shown.groups.copy()
        for each in claim.claimed:
            before = accounts.get(each.project_id or NO_PROJECT) or Account()
            accounts[each.project_id or NO_PROJECT] = msgspec.structs.replace(
                before, live=before.live + 1, reserved=before.reserved + each.estimate
            )
        return accounts

    # --- claiming --------------------------------------------------------------------------------

    def _claim_picks(self, claim: ClaimPass, shown: ShownCandidates, decisions: Decisions) -> None:
        """Claim the picks in order, until the claim is full, or the shown entries of an agent or project are used.

        If it has more, the policy might pick one of them, so it ranks again in the next round.
        """
        rows = self._read(claim, [decision.candidate_id for decision in decisions])
        claim.prefetch_owners(list(rows.values()))
        for decision in decisions:
            sched_id = decision.candidate_id
            candidate = shown.candidates[sched_id]
            if sched_id in rows and claim.may_claim(rows[sched_id]):
                claim.try_claim(rows[sched_id], estimate=candidate.cost, reason=decision.reason.words)
            if claim.remaining <= 0 or (shown.use(candidate) and shown.read_more(claim)):
                return

    def _read(self, claim: ClaimPass, sched_ids: list[int]) -> dict[int, Row]:
        """Read entries that are still ready; those that were read in this pass are."""
        read = self._window.rows
        unread = [sched_id for sched_id in sched_ids if sched_id not in read]
        if unread:
            read |= read_ready(claim.tx, unread)
        return {sched_id: read[sched_id] for sched_id in sched_ids if sched_id in read}


class ShownCandidates:
    """The candidates that a policy sees in the next round."""

    def __init__(self, window: Window, claim: ClaimPass, *, copies: bool) -> None:
        heads = window.open(claim)
        self.candidates = {candidate.id: candidate for own in heads.values() for candidate in own}
        self.owners = copied_values(window.owners) if copies else window.owners
        self.groups: dict[Key, Account] = {}
        self._copies = copied_values(self.candidates) if copies else None  # made once for all rounds of a pass
        self._window = window
        self._left = {key: len(own) for key, own in heads.items()}  # candidates of each key
        self._used_up: list[Key] = []
        claim.show(self.candidates)

    def refill(self, claim: ClaimPass) -> bool:
        """Read the next entries of the keys that are used up. Return whether there are candidates."""
        self.read_more(claim)
        return bool(self.candidates)

    def read_more(self, claim: ClaimPass) -> bool:
        """Read the next entries of the keys that are used up. Return whether there are any."""
        has_more = False
        for key in self._used_up:
            following = self._window.read_next(claim, key)
            self._left[key] = len(following)
            self._add(following)
            has_more = has_more or bool(following)
        self._used_up = []
        return has_more

    def _add(self, following: list[Candidate]) -> None:
        self.candidates.update((candidate.id, candidate) for candidate in following)
        if self._copies is not None:
            if len(self.owners) < len(self._window.owners):
                self.owners = copied_values(self._window.owners)
            self._copies.update((candidate.id, copy(candidate)) for candidate in following)

    def for_policy(self) -> tuple[Candidate, ...]:
        """Return the candidates as the policy sees them."""
        return tuple((self.candidates if self._copies is None else self._copies).values())

    def leave_out(self, sched_ids: Iterable[int]) -> None:
        """Remove candidates that are shown."""
        for sched_id in sched_ids:
            candidate = self.candidates.get(sched_id)
            if candidate is not None:
                self.use(candidate)

    def use(self, candidate: Candidate) -> bool:
        """Remove a candidate. Return whether its key has no more candidates."""
        key = self._window.key_of(candidate)
        del self.candidates[candidate.id]
        if self._copies is not None:
            del self._copies[candidate.id]
        self._left[key] -= 1
        if not self._left[key]:
            self._used_up.append(key)
        return not self._left[key]
