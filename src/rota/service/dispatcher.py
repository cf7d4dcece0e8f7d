"""The dispatcher joins what may run (the kernel) with which runs next (a policy).

The kernel itself implements strict order. For a policy that shares by virtual time a pass goes through the flows
(flow_pass.py), for one that shares by usage through the projects (share_pass.py), and any other policy ranks a bounded
window of candidates (ranked_pass.py). Every pass runs inside the transaction that claims; each proposed entry is
checked again before it is claimed, and a refused entry is counted and skipped. A policy that fails can change the
order, never the correctness: strict order replaces it in the same pass, and the journal records why.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol, Unpack

from rota.errors import PolicyFailed
from rota.kernel import Completion, Kernel, RunReport
from rota.kernel.claim_pass import ClaimPass
from rota.kernel.claim_request import ClaimOptions
from rota.kernel.claims import FindEntries, TurnResult
from rota.kernel.due_summary import DueSummary
from rota.kernel.flows import ServedFlows
from rota.kernel.journal import append
from rota.model.events import PolicyFellBack
from rota.model.work import ReadyEntry
from rota.policy.contract import Policy
from rota.policy.registry import make
from rota.service.flow_pass import FlowPass
from rota.service.policy_guard import PolicyGuard
from rota.service.ranked_pass import RankedPass
from rota.service.share_pass import SharePass

__all__ = ["Dispatcher"]


class _Proposer(Protocol):
    """A way to choose which entries to claim."""

    def propose(self, claim: ClaimPass) -> ServedFlows:
        """Claim entries, and return the flows that were served."""
        ...

    def on_written(self, stamp: int) -> None:
        """Called when the flow changes of a pass were written with this stamp."""
        ...

    def copy(self, guard: PolicyGuard) -> _Proposer:
        """Return an independent copy that proposes the same."""
        ...


class Dispatcher:
    """The scheduler API on a kernel in this process."""

    def __init__(self, kernel: Kernel, policy: Policy | str = "strict") -> None:
        self.kernel = kernel
        self.clock = kernel.clock
        self.agents = kernel.agents
        self.queue = kernel.queue
        self.ledger = kernel.ledger
        self.contexts = kernel.contexts
        self.projects = kernel.projects
        self.journal = kernel.journal
        self.supervision = kernel.supervision
        self.policy = make(policy) if isinstance(policy, str) else policy
        self._guard = PolicyGuard(kernel.clock)
        self._policies: dict[str, Policy] = {self.policy.name: self.policy}
        self._proposers: dict[str, _Proposer] = {}

    # --- claiming --------------------------------------------------------------------------------

    def claim(
        self,
        worker_id: str,
        max_n: int = 1,
        *,
        policy: Policy | str | None = None,
        wait_s: float = 0.0,
        **options: Unpack[ClaimOptions],
    ) -> list[ReadyEntry]:
        """Claim the next entries by a policy; while there are none, wait up to `wait_s`."""
        chosen = self._select(policy)
        return self.kernel.queue.claim(
            worker_id=worker_id,
            max_n=max_n,
            wait_s=wait_s,
            find=partial(self._pass, chosen),
            find_key=chosen.name,
            **options,
        )

    def complete_and_claim(
        self,
        completions: Sequence[Completion],
        worker_id: str,
        max_n: int = 1,
        *,
        policy: Policy | str | None = None,
        wait_s: float = 0.0,
        **options: Unpack[ClaimOptions],
    ) -> TurnResult:
        """Complete runs and claim the next entries in one commit."""
        chosen = self._select(policy)
        return self.kernel.queue.complete_and_claim(
            completions,
            worker_id=worker_id,
            max_n=max_n,
            wait_s=wait_s,
            find=partial(self._pass, chosen),
            find_key=chosen.name,
            **options,
        )

    def turn(
        self,
        reports: Sequence[RunReport],
        worker_id: str,
        max_n: int = 1,
        *,
        policy: Policy | str | None = None,
        wait_s: float = 0.0,
        **options: Unpack[ClaimOptions],
    ) -> TurnResult:
        """For supervisors: complete runs, claim the next entries and move the agents of both, in one commit."""
        chosen = self._select(policy)
        return self.kernel.supervision.turn(
            reports,
            worker_id=worker_id,
            max_n=max_n,
            wait_s=wait_s,
            find=partial(self._pass, chosen),
            find_key=chosen.name,
            **options,
        )

    def dry_run(self, policy: Policy | str | None = None) -> FindEntries:
        """Return the pass that a claim by this policy would make now, on copies: this dispatcher does not change.

        Call it inside a write transaction, so that no other thread changes what is copied.
        """
        copied = Dispatcher(self.kernel, self.policy)
        copied._guard, copied._policies = self._guard.copy(), self._policies.copy()
        chosen = copied._select(policy)
        live = self._proposers.get(chosen.name)
        if live is not None and self._policies.get(chosen.name) is chosen:
            copied._proposers[chosen.name] = live.copy(copied._guard)
        return partial(copied._pass, chosen)

    def resolve_policy(self, policy: Policy | str | None) -> Policy:
        """The policy that a claim with this argument uses."""
        if policy is None:
            return self.policy
        if isinstance(policy, str):
            return self._policies.get(policy) or make(policy)
        return policy

    def _select(self, policy: Policy | str | None) -> Policy:
        chosen = self.resolve_policy(policy)
        if self._policies.get(chosen.name) is not chosen:
            self._policies[chosen.name] = chosen
            self._proposers.pop(chosen.name, None)
        return chosen

    def _pass(self, policy: Policy, claim: ClaimPass, due: DueSummary) -> list[ReadyEntry]:
        if due.fleet_paused_by is not None:
            return []
        if policy.name == "strict" or self._guard.is_suspended(policy):
            claim.claim_in_strict_order()
            return claim.write()
        try:
            proposer = self._proposer(policy)
            served = proposer.propose(claim)
        except PolicyFailed as failure:
            return self._fall_back(policy, claim, failure)
        entries = claim.write(policy=policy.name, served=served)
        if entries and entries[0].token is not None:
            proposer.on_written(entries[0].token)
        return entries

    def _proposer(self, policy: Policy) -> _Proposer:
        if policy.name not in self._proposers:
            self._proposers[policy.name] = self._make_proposer(policy)
        return self._proposers[policy.name]

    def _make_proposer(self, policy: Policy) -> _Proposer:
        match policy.window:
            case "flow":
                return FlowPass(eligibility=policy.eligibility)
            case "share":
                return SharePass(guarantee=policy.guarantee)
            case _:
                return RankedPass(policy, self._guard)

    def _fall_back(self, policy: Policy, claim: ClaimPass, failure: PolicyFailed) -> list[ReadyEntry]:
        """Replace a policy that failed by strict order; what it has claimed in this pass is kept."""
        self._guard.suspend(policy)
        event = PolicyFellBack(policy=policy.name, failure=failure.data["failure"], detail=failure.message)
        append(claim.tx, event, now=claim.now)
        claim.claim_in_strict_order()
        return claim.write(policy="strict")

    def close(self) -> None:
        """Close the store."""
        self.kernel.store.close()
