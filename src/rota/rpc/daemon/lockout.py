"""Slows down the guessing of access tokens without locking out the owner of one.

A failure is a wrong secret for a token id, never a request without a token: any web page can make a browser send those
to the daemon of its machine. After `failures_max` failures within `failures_s`, further wrong secrets for that id are
rejected as locked out for `lockout_s`. A valid token is always accepted, also for an id that others guess at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rota.errors import LockedOut
from rota.rpc.daemon.transport import DaemonLimits

__all__ = ["Lockout"]


class Lockout:
    """The token ids with wrong secrets."""

    def __init__(self, limits: DaemonLimits, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._failures: dict[str, deque[float]] = {}
        self._locked_until: dict[str, float] = {}

    def failed(self, token_id: str) -> None:
        """Count a wrong secret for a token id; raise `LockedOut` if there were too many."""
        now = self._monotonic()
        left_s = self._locked_until.get(token_id, now) - now
        if left_s > 0:
            text = f"token {token_id[:32]} is locked out for another {left_s:.0f} s after wrong secrets"
            raise LockedOut(text, token_id=token_id[:32], retry_after_s=left_s)
        self._locked_until.pop(token_id, None)
        if token_id not in self._failures and len(self._failures) >= self._limits.failures_kept_max:
            self._failures.pop(next(iter(self._failures)))  # the oldest
        times = self._failures.setdefault(token_id, deque(maxlen=self._limits.failures_max))
        times.append(now)
        if len(times) == self._limits.failures_max and now - times[0] <= self._limits.failures_s:
            del self._failures[token_id]
            if len(self._locked_until) >= self._limits.failures_kept_max:
                self._locked_until.pop(next(iter(self._locked_until)))
            self._locked_until[token_id] = now + self._limits.lockout_s
