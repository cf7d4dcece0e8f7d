"""Run a policy that may fail: it has little time, and its failures are told apart.

Built-in policies are trusted and run directly. Any other policy runs on its own thread while the pass waits for at most
`POLICY_TIMEOUT_S`; after `PASS_TIMEOUT_S` a pass begins no further round. Other writers wait too, so both are short. A
policy that raised, stalled or returned invalid decisions is suspended, and strict order replaces it until
the suspension ends.

Whatever belongs to the policy stays on its thread: there its answer is checked and copied, its exceptions become text,
and its objects are released, since a `__str__` or `__del__` may hang too (see policy/foreign). A call that never
returns keeps its thread; until it returns the policy is not called again, so that there is one such thread at most.

A thread does not protect from everything. Code that ends the process, takes all memory or never gives up the
interpreter lock needs a process of its own (policy_process.py). Claims by such a policy do not come here. The guard of
a dry run has the answers that the policy gave before: where one is missing it raises `AnswerNeeded` with the snapshot,
and the caller asks, outside the transaction, and makes the dry run again.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import TypeAlias

from rota.clock import Clock, SystemClock
from rota.errors import PolicyFailed
from rota.model.snapshot import Decisions, Snapshot
from rota.policy.contract import Policy
from rota.policy.foreign import Offer, check_decisions, is_built_in, raised
from rota.service.policy_process import PolicyProcess

__all__ = [
    "PASS_TIMEOUT_S",
    "POLICY_TIMEOUT_S",
    "SUSPENSION_S",
    "Answer",
    "AnswerNeeded",
    "PassTime",
    "PolicyGuard",
]

Answer: TypeAlias = Decisions | PolicyFailed

POLICY_TIMEOUT_S = 0.25  # how long a pass waits for one answer of a policy, in real time
PASS_TIMEOUT_S = 1.0  # of all answers together, after which a pass begins no further round
SUSPENSION_S = 60.0  # how long a policy that failed is not used


class AnswerNeeded(Exception):
    """A dry run needs an answer of a policy in another process."""

    def __init__(self, policy: Policy, snapshot: Snapshot) -> None:
        super().__init__(policy.name)
        self.process = policy.rank
        self.snapshot = snapshot

    def ask(self) -> Answer:
        """Ask the policy."""
        try:
            return self.process(self.snapshot)
        except PolicyFailed as failure:
            return failure


class PassTime:
    """The time that is left for the policy in one pass."""

    def __init__(self) -> None:
        self.left_s = PASS_TIMEOUT_S


class _Call:
    """A call of a policy on its thread: what it returned, or how it failed."""

    def __init__(self, policy: Policy, snapshot: Snapshot, offer: Offer) -> None:
        self.policy = policy
        self.snapshot = snapshot
        self.offer = offer
        self.done = threading.Event()
        self.decisions: Decisions = ()
        self.failure: PolicyFailed | None = None

    def run(self) -> None:
        process, recursion_limit = os.getpid(), sys.getrecursionlimit()
        try:
            answer: object = self.policy.rank(self.snapshot)
        except BaseException as error:  # a policy may raise anything
            self.failure = raised(self.policy, error)
        else:
            self._check(answer)
            del answer  # here, not on the thread that waits: it may have a __del__
        if os.getpid() != process:
            os._exit(0)  # the policy has forked: this is the child, which must not go on as if it were rota
        sys.setrecursionlimit(recursion_limit)
        self.done.set()

    def _check(self, answer: object) -> None:
        try:
            self.decisions = check_decisions(self.policy, answer, self.offer)
        except PolicyFailed as failure:  # a new one: the traceback of this one holds the answer
            self.failure = PolicyFailed(failure.message, **failure.data)


class PolicyGuard:
    """Runs policies and suspends those that fail."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._machine_clock = SystemClock()  # a policy is given real time, whatever clock the kernel uses
        self._calls: dict[str, _Call] = {}  # by policy name: the last call on a thread
        self._answers: list[Answer] | None = None  # of a dry run, the next one last
        self.suspended_until: dict[str, float] = {}  # by policy name, monotonic

    @property
    def has_answers(self) -> bool:
        """Whether this is the guard of a dry run, which asks no process."""
        return self._answers is not None

    def copy(self, answers: Sequence[Answer]) -> PolicyGuard:
        """Return the guard of a dry run with the same suspensions. Calls that have not returned are known to both."""
        copied = PolicyGuard(self._clock)
        copied._answers = [*reversed(answers)]
        copied.suspended_until = self.suspended_until.copy()
        copied._calls = self._calls
        return copied

    def is_suspended(self, policy: Policy) -> bool:
        """Whether a policy is suspended."""
        until = self.suspended_until.get(policy.name)
        return until is not None and self._clock.monotonic() < until

    def suspend(self, policy: Policy, for_s: float = SUSPENSION_S) -> None:
        """Suspend a policy."""
        self.suspended_until[policy.name] = self._clock.monotonic() + for_s

    def run(self, policy: Policy, snapshot: Snapshot, offer: Offer, time: PassTime | None = None) -> Decisions:
        """Return the decisions of a policy, or raise `PolicyFailed` with the kind of failure.

        The snapshot is the policy's: one of another package may change it, so it must be a copy (see policy/foreign).
        """
        if is_built_in(policy):
            return policy.rank(snapshot)
        if type(policy.rank) is PolicyProcess:
            return policy.rank(snapshot) if self._answers is None else self._replay(policy, snapshot)
        earlier = self._calls.get(policy.name)
        if earlier is not None and not earlier.done.is_set():
            raise _stalled(policy, "has not returned from an earlier call")
        call = self._calls[policy.name] = _Call(policy, snapshot, offer)
        began_at = self._machine_clock.monotonic()
        try:
            threading.Thread(target=call.run, name="rota-policy", daemon=True).start()
        except RuntimeError as problem:  # the process has too many threads
            del self._calls[policy.name]
            raise _stalled(policy, "was not called: no thread can be started") from problem
        if not call.done.wait(POLICY_TIMEOUT_S):
            raise _stalled(policy, f"did not return within {POLICY_TIMEOUT_S} s")
        if time is not None:
            time.left_s -= self._machine_clock.monotonic() - began_at
        if call.failure is not None:
            raise call.failure
        return call.decisions

    def _replay(self, policy: Policy, snapshot: Snapshot) -> Decisions:
        """Return the next answer of a dry run, without entries that are gone meanwhile."""
        if not self._answers:
            raise AnswerNeeded(policy, snapshot)
        answer = self._answers.pop()
        if isinstance(answer, PolicyFailed):
            raise answer
        shown = {candidate.id for candidate in snapshot.candidates}
        return tuple(decision for decision in answer if decision.candidate_id in shown)


def _stalled(policy: Policy, words: str) -> PolicyFailed:
    return PolicyFailed(f"{policy.name} {words}", policy=policy.name, failure="stalled")
