"""The clock of a simulation: its advancing reading is virtual time, and its wall clock jumps at random.

The engine counts nanoseconds of an advancing clock and knows no other. What runs beside it (the guard of a policy)
reads a `Clock`. The wall clock must change nothing in a simulation, so here it jumps: now and then it is put forward
or back, by milliseconds up to years. The jumps follow from the seed of the scenario.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

__all__ = ["SimulationClock"]

START = 1_700_000_000.0
JUMPS_S = (0.001, 1.0, 3_600.0, 86_400.0, 3e8)
READINGS_PER_JUMP = 8  # on average


class SimulationClock:
    """A `Clock` over virtual time."""

    def __init__(self, now_ns: Callable[[], int], seed: int) -> None:
        self._now_ns = now_ns
        self._rng = random.Random(f"{seed}/clock")  # noqa: S311  # a simulation, not a secret
        self._offset_s = START

    def now(self) -> float:
        """Return epoch seconds; now and then the wall clock has jumped since the last reading."""
        if self._rng.randrange(READINGS_PER_JUMP) == 0:
            self._offset_s = START + self._rng.choice(JUMPS_S) * self._rng.uniform(-1.0, 1.0)
        return self._offset_s + self.monotonic()

    def monotonic(self) -> float:
        """Return virtual time in seconds."""
        return self._now_ns() / 1e9

    def boot_id(self) -> str:
        """Return an id of this clock."""
        return f"simulation-{id(self):x}"

    def wait(self, condition: threading.Condition, timeout_s: float | None = None) -> bool:
        """Return immediately: in virtual time nothing waits."""
        del condition, timeout_s
        return False
