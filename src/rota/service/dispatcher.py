"""The dispatcher: what may run (the kernel) joined with which goes next (a policy).

Strict order is the kernel's own. A policy that shares by virtual time walks the flows, one that shares by usage walks
the projects; any other ranks a bounded window of candidates. Either way a pass proposes inside the transaction that
claims, everything is checked again as it is offered, and what is refused is counted and passed over. A policy that
fails costs order, never correctness: strict order takes its place in the same pass, and the journal says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol, TypedDict, Unpack

from rota.errors import PolicyFailed
from rota.kernel import Completion, Kernel, RunReport
from rota.kernel.claim_request import Pass, Turnover
from rota.kernel.claims import ClaimPass
from rota.kernel.due_summary import Pulse
from rota.kernel.flows import Served
from rota.kernel.journal import append
from rota.model.events import PolicyFellBack
from rota.model.work import ReadyEntry
from rota.policy.contract import Policy
from rota.policy.registry import make
from rota.service.flow_pass import FlowWalk
from rota.service.policy_guard import Leash
from rota.service.ranked_pass import Window
from rota.service.share_pass import ShareWalk

__all__ = ["Dispatcher"]


class Terms(TypedDict, total=False):
    """What else a claim may say."""

    now: float | None
    admission_check: bool
    claim_timeout_s: float
    incarnation: str
    kinds: Sequence[str]


class _Proposer(Protocol):
    """One way to find what to claim."""

    def propose(self, claim: ClaimPass) -> Served:
        """Offer entries to the claim; the answer is who was served."""
        ...

    def wrote(self, stamp: int) -> None:
        """The moves were written with this stamp."""
        ...

    def twin(self, leash: Leash) -> _Proposer:
        """One that would propose the same, with a memory of its own."""
        ...


class Dispatcher:
    """A desk over an embedded kernel."""

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
        self._leash = Leash(kernel.clock)
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
        **asked: Unpack[Terms],
    ) -> list[ReadyEntry]:
        """Take the next entries by a policy; while there are none, wait up to `wait_s`."""
        chosen = self._chosen(policy)
        return self.kernel.queue.claim(
            worker_id=worker_id,
            max_n=max_n,
            wait_s=wait_s,
            find=partial(self._pass, chosen),
            same=chosen.name,
            **asked,
        )

    def complete_and_claim(
        self,
        completions: Sequence[Completion],
        worker_id: str,
        max_n: int = 1,
        *,
        policy: Policy | str | None = None,
        wait_s: float = 0.0,
        **asked: Unpack[Terms],
    ) -> Turnover:
        """End runs and take the next entries in one commit."""
        chosen = self._chosen(policy)
        return self.kernel.queue.complete_and_claim(
            completions,
            worker_id=worker_id,
            max_n=max_n,
            wait_s=wait_s,
            find=partial(self._pass, chosen),
            same=chosen.name,
            **asked,
        )

    def turn(
        self,
        reports: Sequence[RunReport],
        worker_id: str,
        max_n: int = 1,
        *,
        policy: Policy | str | None = None,
        wait_s: float = 0.0,
        **asked: Unpack[Terms],
    ) -> Turnover:
        """A supervisor's turn: end runs, take the next entries and move the agents of both, in one commit."""
        chosen = self._chosen(policy)
        return self.kernel.supervision.turn(
            reports,
            worker_id=worker_id,
            max_n=max_n,
            wait_s=wait_s,
            find=partial(self._pass, chosen),
            same=chosen.name,
            **asked,
        )

    def rehearsal(self, policy: Policy | str | None = None) -> Pass:
        """The pass that a claim by this policy would make now, over copies: it leaves this dispatcher as it is.

        To be called while nobody else writes, so that nobody changes what is copied.
        """
        twin = Dispatcher(self.kernel, self.policy)
        twin._leash, twin._policies = self._leash.twin(), self._policies.copy()
        chosen = twin._chosen(policy)
        live = self._proposers.get(chosen.name)
        if live is not None and self._policies.get(chosen.name) is chosen:
            twin._proposers[chosen.name] = live.twin(twin._leash)
        return partial(twin._pass, chosen)

    def named(self, policy: Policy | str | None) -> Policy:
        """The policy that a claim would go by."""
        if policy is None:
            return self.policy
        if isinstance(policy, str):
            return self._policies.get(policy) or make(policy)
        return policy

    def _chosen(self, policy: Policy | str | None) -> Policy:
        chosen = self.named(policy)
        if self._policies.get(chosen.name) is not chosen:
            self._policies[chosen.name] = chosen
            self._proposers.pop(chosen.name, None)
        return chosen

    def _pass(self, policy: Policy, claim: ClaimPass, beat: Pulse) -> list[ReadyEntry]:
        if beat.fleet_paused_by is not None:
            return []
        if policy.name == "strict" or self._leash.is_benched(policy):
            claim.strict()
            return claim.seal()
        try:
            proposer = self._proposer(policy)
            served = proposer.propose(claim)
        except PolicyFailed as failure:
            return self._fall_back(policy, claim, failure)
        entries = claim.seal(policy=policy.name, served=served)
        if entries and entries[0].token is not None:
            proposer.wrote(entries[0].token)
        return entries

    def _proposer(self, policy: Policy) -> _Proposer:
        if policy.name not in self._proposers:
            self._proposers[policy.name] = self._make_proposer(policy)
        return self._proposers[policy.name]

    def _make_proposer(self, policy: Policy) -> _Proposer:
        match policy.heads:
            case "flow":
                return FlowWalk(eligibility=policy.eligibility)
            case "share":
                return ShareWalk(guarantee=policy.guarantee)
            case _:
                return Window(policy, self._leash)

    def _fall_back(self, policy: Policy, claim: ClaimPass, failure: PolicyFailed) -> list[ReadyEntry]:
        """Strict order takes the place of a policy that failed; what it had taken before is kept."""
        self._leash.bench(policy)
        fact = PolicyFellBack(policy=policy.name, failure=failure.data["failure"], detail=failure.message)
        append(claim.tx, fact, now=claim.terms.now)
        claim.strict()
        return claim.seal(policy="strict")

    # --- the rest of the desk --------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the store."""
        self.kernel.store.close()
