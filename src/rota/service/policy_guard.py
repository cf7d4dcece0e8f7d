"""Running a policy that may fail: it gets little time, and what it does wrong is told apart.

Our own policies are trusted and run at once. Anybody else's runs on a thread of its own while the pass waits, at
most `PATIENCE_S`: whoever writes next waits too, so it cannot be long. A policy that raised, stalled or answered
nonsense is put on the bench, and strict order takes its place there until it may try again.
"""

from __future__ import annotations

import threading

from rota.clock import Clock
from rota.errors import PolicyFailed
from rota.model.snapshot import Decision, Decisions, Snapshot
from rota.policy.contract import Policy

__all__ = ["BENCH_S", "PATIENCE_S", "Leash"]

PATIENCE_S = 0.25  # how long a pass waits for a policy, in real time
BENCH_S = 60.0  # how long one that failed sits out


class _Answer:
    """What a policy said, once it has."""

    def __init__(self) -> None:
        self.came = threading.Event()
        self.decisions: object = None
        self.error: BaseException | None = None


class Leash:
    """The bench, and how a policy is run."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}  # by name, monotonic

    def twin(self) -> Leash:
        """The same bench once more."""
        made = Leash(self._clock)
        made._until = self._until.copy()
        return made

    def is_benched(self, policy: Policy) -> bool:
        """Whether a policy sits out."""
        until = self._until.get(policy.name)
        return until is not None and self._clock.monotonic() < until

    def bench(self, policy: Policy) -> None:
        """Let a policy sit out for a while."""
        self._until[policy.name] = self._clock.monotonic() + BENCH_S

    def run(self, policy: Policy, snapshot: Snapshot) -> Decisions:
        """A policy's decisions, or `PolicyFailed` with what went wrong."""
        if _is_ours(policy):
            return policy.rank(snapshot)
        answer = _Answer()
        threading.Thread(target=_ask, args=(policy, snapshot, answer), name="rota-policy", daemon=True).start()
        if not answer.came.wait(PATIENCE_S):
            raise PolicyFailed(f"{policy.name} did not answer in {PATIENCE_S} s", policy=policy.name, failure="stalled")
        if answer.error is not None:
            text = f"{policy.name} raised {type(answer.error).__name__}: {answer.error}"
            raise PolicyFailed(text, policy=policy.name, failure="raised") from answer.error
        return _decisions(policy.name, answer.decisions)


def _ask(policy: Policy, snapshot: Snapshot, answer: _Answer) -> None:
    try:
        answer.decisions = policy.rank(snapshot)
    except BaseException as error:  # whatever it is, it is the policy's
        answer.error = error
    answer.came.set()


def _decisions(name: str, answer: object) -> Decisions:
    if isinstance(answer, (tuple, list)) and all(isinstance(each, Decision) for each in answer):
        return tuple(answer)
    raise PolicyFailed(f"{name} answered {answer!r:.80}, not decisions", policy=name, failure="nonsense")


def _is_ours(policy: Policy) -> bool:
    return policy.rank.__module__.startswith("rota.policy.") if hasattr(policy.rank, "__module__") else False
