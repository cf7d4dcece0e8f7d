"""Run a policy that may fail: it has little time, and its failures are told apart.

Built-in policies are trusted and run directly. Any other policy runs on its own thread while the pass waits for at most
`POLICY_TIMEOUT_S`: other writers wait too, so this must be short. A policy that raised, stalled or returned invalid
decisions is suspended, and strict order replaces it until the suspension ends.
"""

from __future__ import annotations

import threading

from rota.clock import Clock
from rota.errors import PolicyFailed
from rota.model.snapshot import Decision, Decisions, Snapshot
from rota.policy.contract import Policy

__all__ = ["POLICY_TIMEOUT_S", "SUSPENSION_S", "PolicyGuard"]

POLICY_TIMEOUT_S = 0.25  # how long a pass waits for a policy, in real time
SUSPENSION_S = 60.0  # how long a policy that failed is not used


class _Result:
    """What a policy returned or raised, once it is done."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.decisions: object = None
        self.error: BaseException | None = None


class PolicyGuard:
    """Runs policies and suspends those that fail."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.suspended_until: dict[str, float] = {}  # by policy name, monotonic

    def copy(self) -> PolicyGuard:
        """Return an independent guard with the same suspensions."""
        copied = PolicyGuard(self._clock)
        copied.suspended_until = self.suspended_until.copy()
        return copied

    def is_suspended(self, policy: Policy) -> bool:
        """Whether a policy is suspended."""
        until = self.suspended_until.get(policy.name)
        return until is not None and self._clock.monotonic() < until

    def suspend(self, policy: Policy) -> None:
        """Suspend a policy for `SUSPENSION_S`."""
        self.suspended_until[policy.name] = self._clock.monotonic() + SUSPENSION_S

    def run(self, policy: Policy, snapshot: Snapshot) -> Decisions:
        """Return the decisions of a policy, or raise `PolicyFailed` with the kind of failure."""
        if _is_built_in(policy):
            return policy.rank(snapshot)
        result = _Result()
        threading.Thread(target=_rank, args=(policy, snapshot, result), name="rota-policy", daemon=True).start()
        if not result.done.wait(POLICY_TIMEOUT_S):
            text = f"{policy.name} did not return within {POLICY_TIMEOUT_S} s"
            raise PolicyFailed(text, policy=policy.name, failure="stalled")
        if result.error is not None:
            text = f"{policy.name} raised {type(result.error).__name__}: {result.error}"
            raise PolicyFailed(text, policy=policy.name, failure="raised") from result.error
        return _decisions(policy.name, result.decisions)


def _rank(policy: Policy, snapshot: Snapshot, result: _Result) -> None:
    try:
        result.decisions = policy.rank(snapshot)
    except BaseException as error:  # a policy may raise anything
        result.error = error
    result.done.set()


def _decisions(name: str, returned: object) -> Decisions:
    if isinstance(returned, (tuple, list)) and all(isinstance(each, Decision) for each in returned):
        return tuple(returned)
    raise PolicyFailed(f"{name} returned {returned!r:.80}, not decisions", policy=name, failure="nonsense")


def _is_built_in(policy: Policy) -> bool:
    return policy.rank.__module__.startswith("rota.policy.") if hasattr(policy.rank, "__module__") else False
