"""A pass for policies in a process of their own, which are asked outside the write transaction.

To ask another process inside the transaction of a claim would make every writer wait for it. So a claim has two parts,
in two transactions, with the question in between:

    1. the claim reads its window, leaves the snapshot as a question, and is parked by the store like any claim that
       finds nothing
    2. a thread asks the policy while no transaction is open
    3. the same thread writes the answer: in that transaction the parked claims run again, oldest first, and take what
       was picked

An answer is valid in the transaction that delivers it, and only there: a later claim would get an order that was
decided for an older state. What was picked is read again and checked like every proposal; an entry that is gone, or
that may not run after all, is skipped. If nothing of an answer can be claimed, the next question leaves those entries
out, so that blocked entries do not hide others.

If the policy fails, the failure is delivered instead: the policy is suspended, the journal records it, and the parked
claims take entries in strict order in the same transaction.

One question for each kind of claim (slots, budgets) is asked at a time; further claims wait for their turn. A claim may
return fewer entries than it asked for although more are ready: it takes what one answer gives it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from rota.errors import PolicyFailed, RotaError
from rota.kernel.claim_pass import ClaimPass
from rota.kernel.flows import ServedFlows
from rota.kernel.ready_heads import read_ready
from rota.kernel.turn import ClaimKind
from rota.model.snapshot import Candidate, Decision, Decisions, Snapshot
from rota.policy.contract import Policy
from rota.service.policy_guard import PolicyGuard
from rota.service.policy_process import PolicyProcess
from rota.service.ranked_pass import ROUNDS_MAX, RankedPass
from rota.store import Store, Transaction
from rota.store.forks import in_child

__all__ = ["IsolatedPass", "OnFailure", "asks_process"]

OnFailure: TypeAlias = Callable[[Transaction, Policy, PolicyFailed], None]


def asks_process(policy: Policy) -> bool:
    """Whether claims by this policy ask another process."""
    return type(policy.rank) is PolicyProcess and policy.window not in ("flow", "share")


class _Question(NamedTuple):
    """What a policy is asked, and what was found out before."""

    kind: ClaimKind
    snapshot: Snapshot
    tried: frozenset[int] = frozenset()  # entries of earlier answers that could not be claimed
    blocked: tuple[frozenset[int], frozenset[str], frozenset[str], frozenset[str]] | None = None
    round: int = 0


class _Plan:
    """An answer while it is delivered: the decisions that no claim has taken yet."""

    def __init__(self, question: _Question, decisions: Decisions) -> None:
        self.question = question
        self.holds_back = not decisions
        self.left: deque[Decision] = deque(decisions)
        self.candidates: dict[int, Candidate] = {each.id: each for each in question.snapshot.candidates}
        self.tried = set(question.tried)
        self.has_served = False  # a claim took some of it: then the next question leaves nothing out


class IsolatedPass(RankedPass):
    """Claims the entries that a policy in another process picks."""

    def __init__(self, policy: Policy, guard: PolicyGuard, store: Store, on_failure: OnFailure) -> None:
        super().__init__(policy, guard)
        assert isinstance(policy.rank, PolicyProcess)  # noqa: S101  # see asks_process
        self._process = policy.rank
        self._store = store
        self._on_failure = on_failure
        self._closed = False
        self._forget_questions()
        in_child(self._forget_questions)

    def _forget_questions(self) -> None:
        """Begin without a thread and without questions; a forked child has neither."""
        self._plan: _Plan | None = None  # only while it is delivered, under the write lock
        self._asked: set[ClaimKind] = set()  # under the write lock, or by the thread that asks
        self._questions: deque[_Question] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def copy(self, guard: PolicyGuard) -> RankedPass:
        """Return an independent pass for a dry run, which gets its answers from the guard."""
        return RankedPass.copy(self, guard)

    def is_asking(self, kind: ClaimKind) -> bool:
        """Whether an answer for this kind of claim is awaited."""
        return kind in self._asked

    def propose(self, claim: ClaimPass) -> ServedFlows:
        """Claim from the answer that is being delivered; without one, ask."""
        kind = claim.request.claim_kind
        plan = self._plan if self._plan is not None and self._plan.question.kind == kind else None
        if plan is not None:
            self._claim_from(claim, plan)
        if not claim.claimed and claim.remaining > 0 and kind not in self._asked:
            self._ask(claim, kind, plan)
        return ServedFlows(agents={(each.pid, each.project_id) for each in claim.claimed})

    def close(self) -> None:
        """End the thread and the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._process.close()

    # --- in a transaction ------------------------------------------------------------------------

    def _claim_from(self, claim: ClaimPass, plan: _Plan) -> None:
        rows = read_ready(claim.tx, [decision.candidate_id for decision in plan.left]) if plan.left else {}
        claim.prefetch_owners(list(rows.values()))
        while plan.left and claim.remaining > 0:
            decision = plan.left.popleft()
            row = rows.get(decision.candidate_id)
            if row is not None and claim.may_claim(row):
                cost = plan.candidates[decision.candidate_id].cost
                blocked = claim.try_claim(row, estimate=cost, reason=decision.reason.words)
                plan.has_served = plan.has_served or blocked is None
            plan.tried.add(decision.candidate_id)

    def _ask(self, claim: ClaimPass, kind: ClaimKind, plan: _Plan | None) -> None:
        """Leave a question, if there is something to show that no earlier answer has named."""
        claim.tx.effects.on_rollback.append(self._forget)
        tried, number = frozenset[int](), 0
        if plan is not None and not plan.has_served:
            tried, number = frozenset(plan.tried), plan.question.round + 1
            if plan.question.blocked is not None:
                claim.exclude(*plan.question.blocked)
        shown = self._open(claim)
        shown.leave_out(tried)
        gives_up = number >= ROUNDS_MAX
        if gives_up or (plan is not None and plan.holds_back) or not shown.refill(claim):
            if gives_up or not self._window.is_complete:
                claim.claim_in_strict_order()
            return
        question = _Question(kind, self._snapshot(claim, shown), tried, claim.excluded(), number)
        self._asked.add(kind)
        with self._changed:
            self._questions.append(question)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="rota-policy", daemon=True)
                self._thread.start()
            self._changed.notify()

    # --- the thread that asks --------------------------------------------------------------------

    def _serve(self) -> None:
        while (question := self._next_question()) is not None:
            answer: Decisions | PolicyFailed
            try:
                answer = self._process.ask(question.snapshot)
            except PolicyFailed as failure:
                answer = failure
            try:
                self._store.write(lambda tx, q=question, a=answer: self._deliver(tx, q, a))  # type: ignore[misc]
            except RotaError:  # the store is closed, or cannot be written: the claims ask again
                self._asked.discard(question.kind)

    def _next_question(self) -> _Question | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._questions)
            return None if self._closed else self._questions.popleft()

    def _deliver(self, tx: Transaction, question: _Question, answer: Decisions | PolicyFailed) -> None:
        """Make an answer available to the parked claims, which run in this transaction after it."""
        self._asked.discard(question.kind)
        if isinstance(answer, PolicyFailed):
            if not self._closed:
                self._on_failure(tx, self._policy, answer)
        else:
            self._plan = _Plan(question, answer)
            tx.effects.on_commit.append(self._drop_plan)
            tx.effects.on_rollback.append(self._drop_plan)
        tx.effects.wake_parked = True

    def _drop_plan(self) -> None:
        self._plan = None
