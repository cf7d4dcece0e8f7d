"""Lock-out: an address that fails to authenticate again and again is not heard for a while.

By address alone, not by port, which changes with every connection. While an address is locked out nothing of it is
looked at and nothing of it is written down, so that guessing is slow and cannot fill the journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from rota.errors import LockedOut
from rota.rpc.daemon.limits import Limits

__all__ = ["Lockout"]


class Lockout:
    """Who has failed lately."""

    def __init__(self, limits: Limits, monotonic: Callable[[], float]) -> None:
        self._limits = limits
        self._monotonic = monotonic
        self._failures: dict[str, deque[float]] = {}
        self._until: dict[str, float] = {}

    def check(self, address: str) -> None:
        """Refuse an address that is locked out."""
        until = self._until.get(address)
        if until is None:
            return
        left_s = until - self._monotonic()
        if left_s > 0:
            raise LockedOut(
                f"{address} is locked out for another {left_s:.0f} s", address=address, retry_after_s=left_s
            )
        del self._until[address]

    def failed(self, address: str) -> None:
        """Note a failure."""
        now = self._monotonic()
        if address not in self._failures and len(self._failures) >= self._limits.addresses_max:
            self._failures.pop(next(iter(self._failures)))  # the one that was met first
        times = self._failures.setdefault(address, deque(maxlen=self._limits.failures_max))
        times.append(now)
        if len(times) == self._limits.failures_max and now - times[0] <= self._limits.failures_s:
            del self._failures[address]
            if len(self._until) >= self._limits.addresses_max:
                self._until.pop(next(iter(self._until)))
            self._until[address] = now + self._limits.lockout_s
