"""Denied calls, counted: a caller that is denied a thousand times fills neither the journal nor the disk.

The first denial of a caller for a reason is recorded immediately. Further ones are counted, and recorded as one event
with their number when `denials_s` has passed. Beyond `denials_max` callers and reasons, the rest share one count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from rota.rpc.authorization import Principal
from rota.rpc.daemon.transport import DaemonLimits

__all__ = ["Denials"]

Record = Callable[[Principal, str | None, str, int], None]
_OTHERS = Principal(name="others", scope="read", peer="several")


class _Denial(NamedTuple):
    caller: Principal
    method: str | None
    reason: str


class Denials:
    """Counts denied calls, and records them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: DaemonLimits, record: Record) -> None:
        self._loop = loop
        self._limits = limits
        self._record = record
        self._counts: dict[tuple[str, str | None, str], int] = {}  # not recorded so far
        self._last: dict[tuple[str, str | None, str], _Denial] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, principal: Principal, method: str | None, reason: str) -> None:
        """Count a denied call."""
        denial = _Denial(principal, method, reason)
        key = _key(denial)
        if key not in self._counts and len(self._counts) >= self._limits.denials_max:
            denial = _Denial(_OTHERS, None, "several reasons")
            key = _key(denial)
        self._last[key] = denial
        if key in self._counts:
            self._counts[key] += 1
            return
        self._counts[key] = 0
        self._record(*denial, 1)
        if self._timer is None:
            self._timer = self._loop.call_later(self._limits.denials_s, self._next)

    def _next(self) -> None:
        """Record what was counted; a caller that was not denied again is forgotten."""
        self._timer = None
        again = [key for key, count in self._counts.items() if count]
        self._flush(self._record)
        self._counts = dict.fromkeys(again, 0)
        self._last = {}
        if again:
            self._timer = self._loop.call_later(self._limits.denials_s, self._next)

    def _flush(self, record: Record) -> None:
        for key, count in self._counts.items():
            if count:
                self._counts[key] = 0
                record(*self._last[key], count)

    def close(self, record: Record) -> None:
        """Record what was counted, in this way, and count no more."""
        if self._timer is not None:
            self._timer.cancel()
        self._flush(record)


def _key(denial: _Denial) -> tuple[str, str | None, str]:
    caller = denial.caller
    name = f"{caller.name} {caller.peer}" if caller.name == "unknown" else caller.name  # an address is all there is
    return name, denial.method, denial.reason
