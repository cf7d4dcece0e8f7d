"""The dispatcher joins what may run (the kernel) with which runs next (a policy): it owns the scheduling transaction.

Every claim, of a worker or a supervisor, alone or with the end of earlier runs, is one transaction (`run_turn`):

    end runs → do what is due → propose entries, each checked by the kernel → write the claims → settle the agents

Runs end before maintenance takes back expired claims: a result that arrives in time to be committed is not thrown away.
The kernel itself implements strict order. For a policy that shares by virtual time a pass goes through the flows
(flow_pass.py), for one that shares by usage through the projects (share_pass.py), and any other policy ranks a bounded
window of candidates (ranked_pass.py). Each proposed entry is checked before it is claimed; a refused one is skipped. A
policy that fails can change the order, never the correctness: strict order replaces it in the same pass, and the
journal records why.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol, Unpack

from rota.errors import PolicyFailed
from rota.kernel import Completion, Kernel, RunReport
from rota.kernel.claim_pass import ClaimPass, begin_claim
from rota.kernel.completion import EndedRuns, end_runs
from rota.kernel.flows import ServedFlows
from rota.kernel.journal import append
from rota.kernel.run_reports import check_completions, check_reports
from rota.kernel.turn import ClaimOptions, TurnRequest, TurnResult, make_turn_request
from rota.model.events import PolicyFellBack
from rota.model.work import ReadyEntry
from rota.policy.contract import Policy
from rota.policy.registry import make
from rota.service.flow_pass import FlowPass
from rota.service.policy_guard import PolicyGuard
from rota.service.ranked_pass import RankedPass
from rota.service.share_pass import SharePass
from rota.store import Transaction

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

    # --- turns -----------------------------------------------------------------------------------

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
        request = make_turn_request(worker_id=worker_id, max_n=max_n, wait_s=wait_s, **options)
        return self._take_turn(request, chosen).entries

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
        """Complete runs and claim the next entries in one commit, at half the cost of two."""
        chosen = self._select(policy)
        run_ends = check_completions(completions)
        request = make_turn_request(worker_id=worker_id, max_n=max_n, wait_s=wait_s, run_ends=run_ends, **options)
        return self._take_turn(request, chosen)

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
        """For supervisors: end runs, claim the next entries and move the agents of both, in one commit.

        With `max_n=0` nothing is claimed. A turn without reports that claims nothing writes nothing.
        """
        chosen = self._select(policy)
        run_ends = check_reports(reports)
        request = make_turn_request(
            worker_id=worker_id, max_n=max_n, wait_s=wait_s, run_ends=run_ends, moves_agents=True, **options
        )
        return self._take_turn(request, chosen)

    def _take_turn(self, request: TurnRequest, policy: Policy) -> TurnResult:
        """Run a turn; while it claims nothing, wait. Ended runs are durable before the wait begins."""
        done = TurnResult([], [])
        if request.run_ends or not (request.max_n and request.wait_s):
            done = self.kernel.store.write(partial(self.run_turn, request, policy))
            if done.entries or not (request.max_n and request.wait_s):
                return done
        claiming = request._replace(run_ends=())
        entries = self.kernel.queue.park(lambda tx: self.run_turn(claiming, policy, tx).entries, claiming, policy.name)
        return TurnResult(done.answers, entries)

    def run_turn(self, request: TurnRequest, policy: Policy, tx: Transaction) -> TurnResult:
        """The scheduling transaction: end runs, claim the next entries, settle the agents."""
        kernel, now = self.kernel, self.clock.now()
        ended = end_runs(tx, kernel.env, request.run_ends, now) if request.run_ends else EndedRuns([], {}, {})
        entries: list[ReadyEntry] = []
        if request.max_n:
            claim = begin_claim(tx, kernel.env, kernel.queue.maintenance, request)
            entries = self.fill(claim, policy)
        if request.moves_agents:
            pids = {run.pid for run in ended.runs.values()} | {entry.pid for entry in entries}
            kernel.supervision.settle_agents(tx, pids, ended.final, now)
        return TurnResult(ended.answers, entries)

    def fill(self, claim: ClaimPass, policy: Policy) -> list[ReadyEntry]:
        """Propose entries by a policy, each checked by the kernel, and write the claims."""
        if claim.is_fleet_paused:
            return claim.write()
        if policy.name == "strict" or (self._guard.suspended_until and self._guard.is_suspended(policy)):
            claim.claim_in_strict_order()
            return claim.write()
        proposer = self._proposers.get(policy.name) or self._make_proposer(policy)
        try:
            served = proposer.propose(claim)
        except PolicyFailed as failure:
            return self._fall_back(policy, claim, failure)
        entries = claim.write(policy=policy.name, served=served)
        if claim.token is not None:
            proposer.on_written(claim.token)
        return entries

    def copy(self, policy: Policy) -> Dispatcher:
        """Return a dispatcher that claims by this policy as this one would, for a dry run: this one does not change.

        Call it inside a write transaction, so that no other thread changes what is copied.
        """
        copied = Dispatcher(self.kernel, self.policy)
        copied._guard, copied._policies = self._guard.copy(), self._policies.copy()
        copied._select(policy)
        live = self._proposers.get(policy.name)
        if live is not None and self._policies.get(policy.name) is policy:
            copied._proposers[policy.name] = live.copy(copied._guard)
        return copied

    # --- policies --------------------------------------------------------------------------------

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

    def _make_proposer(self, policy: Policy) -> _Proposer:
        made: _Proposer
        match policy.window:
            case "flow":
                made = FlowPass(eligibility=policy.eligibility)
            case "share":
                made = SharePass(guarantee=policy.guarantee)
            case _:
                made = RankedPass(policy, self._guard)
        self._proposers[policy.name] = made
        return made

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
