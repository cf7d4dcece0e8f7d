"""The clock of a store on PostgreSQL: the time of the database, which is the same for all hosts.

A process cannot ask the server whenever it needs the time. So it keeps the difference between the server's wall clock
and its own advancing clock, and every turn corrects it, because the first answer of a turn has the server's time:

    own advancing clock      500        501        502
    server's wall clock   12:00:00   12:00:01   15:00:02     the server's clock was set
    difference            11:51:40   11:51:40   14:51:40

A change of less than `JUMP_S` is drift of one of the two clocks: both readings of this clock follow it, and nothing
else happens. A larger one is a jump of the server's clock: `now` follows it and `monotonic` does not, which is how the
kernel notices it (kernel/clock_jumps.py).

**Several hosts.** The store remembers how far `now` is ahead of `monotonic`, and the first process that notices a jump
moves what has to move. For the others to agree with it, their `monotonic` must mean the same: that of a new process
begins where the stored difference says, and the boot's id is the same for all. So a jump is one for all hosts, a reboot
of a host is none, and hosts whose own clocks are wrong do not matter.

An answer may be late, by the network or by a pause of this process. The time is only corrected by answers that took
less than half of what they would correct it by; otherwise the engine asks again.
"""

from __future__ import annotations

import math

from rota.clock import SystemClock

__all__ = ["JUMP_S", "DatabaseClock"]

JUMP_S = 1.0  # a smaller change is drift
DRIFT_S = 0.02  # a smaller difference is not corrected: the way of the answer takes as long
ASK_MAX = 5  # answers that are late one after the other; then the last one counts
_BOOT = "postgresql"


class DatabaseClock(SystemClock):
    """The database's time, as last heard, carried on by this machine's advancing clock."""

    def __init__(self) -> None:
        self._wall_s = 0.0  # the database's wall clock, minus the machine's advancing clock
        self._advancing_s = 0.0  # `monotonic` minus the machine's advancing clock
        self._is_set = False
        self._is_aligned = False
        self._late = 0

    def now(self) -> float:
        """Return the database's wall clock in epoch seconds."""
        return SystemClock.monotonic() + self._wall_s

    def monotonic(self) -> float:
        """Return seconds that only advance. Where a process begins to count, the database's wall clock says."""
        return SystemClock.monotonic() + self._advancing_s

    def boot_id(self) -> str:
        """Return one id for all hosts: their readings compare with one another."""
        return _BOOT

    def set_by(self, asked_at: float, time_s: float, stored: str | None, *, in_turn: bool = True) -> bool:
        """Correct the clock by the server's answer; return False if the answer was too late to be believed.

        `stored` is the setting in which the kernel remembers how far `now` is ahead of `monotonic`. Only what is read
        in a turn is certain: otherwise another process may be about to change it.
        """
        heard_at = SystemClock.monotonic()
        wall_s = time_s - heard_at
        if not self._is_set or (in_turn and not self._is_aligned):
            self._is_set, self._is_aligned = True, in_turn
            self._wall_s, self._advancing_s = wall_s, wall_s - _ahead_s(stored)
            return True
        change_s = wall_s - self._wall_s
        if abs(change_s) <= DRIFT_S:
            self._late = 0
            return True
        self._late += 1
        if heard_at - asked_at > abs(change_s) / 2 and self._late < ASK_MAX:
            return False
        self._late = 0
        self._wall_s = wall_s
        if abs(change_s) < JUMP_S:
            self._advancing_s += change_s
        return True


def _ahead_s(stored: str | None) -> float:
    """Read the kernel's setting: the boot and a number."""
    boot_id, _, text = (stored or "").partition(" ")
    try:
        ahead_s = float(text) if boot_id == _BOOT else 0.0
    except ValueError:
        return 0.0
    return ahead_s if math.isfinite(ahead_s) else 0.0
