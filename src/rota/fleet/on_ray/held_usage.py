"""What runs on a cluster have used: CPU and GPU seconds that they held, whether or not they kept them busy.

Ray gives a run its CPUs and GPUs for as long as it lasts; no other program can use them. So a run uses `cpu_s` = its
CPUs × its seconds, and `gpu_s` likewise. Budgets and shares count whole seconds, at least one for each run. What
rounding adds or leaves over is carried to the next run of the agent: rounded up one by one, runs of 1.1 s would count
as runs of 2 s.
"""

from __future__ import annotations

import threading

from rota.model.ray import RayShape

__all__ = ["HeldUsage"]

AGENTS_MAX = 10_000  # whose remainders are kept
OWED_MS_MIN = -1_000  # how much too much short runs may have counted before that is forgotten


class HeldUsage:
    """Turns resources and milliseconds into whole seconds."""

    def __init__(self) -> None:
        self._left_ms: dict[tuple[int, str], int] = {}  # by agent and dimension
        self._lock = threading.Lock()

    def of(self, pid: int, shape: RayShape, wall_ms: int) -> dict[str, int]:
        """Return what one run of an agent has used."""
        needs = shape.needs
        amounts = {"wall_s": 1.0, "cpu_s": needs.get("CPU", 0.0), "gpu_s": needs.get("GPU", 0.0)}
        with self._lock:
            if len(self._left_ms) > AGENTS_MAX:
                self._left_ms.clear()
            return {
                dim: seconds for dim, amount in amounts.items() if (seconds := self._whole(pid, dim, amount * wall_ms))
            }

    def _whole(self, pid: int, dim: str, used_ms: float) -> int:
        if not used_ms:
            return 0
        total_ms = self._left_ms.get((pid, dim), 0) + round(used_ms)
        seconds = max(1, total_ms // 1000)
        self._left_ms[pid, dim] = max(total_ms - 1000 * seconds, OWED_MS_MIN)
        return seconds
