"""The slots for runs on Ray: as many as the cluster has room for, and of the kinds that fit there now."""

from __future__ import annotations

from typing import Any

from rota.fleet.on_ray.ray_runs import RayRuns
from rota.fleet.slot_loop import SlotLoop, run_key
from rota.model.work import ReadyEntry
from rota.model.workers import ONLY_KINDS
from rota.service.api import SchedulerApi

__all__ = ["RayLoop"]


class RayLoop(SlotLoop):
    """Claims entries of runs on Ray and starts them. They end on the collector's thread."""

    runs_on_ray: RayRuns  # set right after it is made: each needs the other

    def __init__(self, api: SchedulerApi, worker_id: str, incarnation: str, slots: int, **options: Any) -> None:
        super().__init__(api, worker_id, incarnation, slots, **options)
        self._fitting: tuple[str, ...] = ()  # kinds of the claim that is made now

    def look_again(self) -> None:
        """Claim again if other kinds of entries fit than those that the loop waits for."""
        with self._changed:
            kinds, count = self.runs_on_ray.claimable(len(self._free))
            if kinds == self._fitting and (self._is_parked or not count):
                return
            was_parked = self._wake()
        self._interrupt_claim(was_parked)

    def _wanted(self) -> int:
        self._fitting, count = self.runs_on_ray.claimable(len(self._free))
        return count

    @property
    def _kinds_now(self) -> tuple[str, ...]:
        return (ONLY_KINDS, *self._fitting)

    def _start(self, entry: ReadyEntry) -> None:
        """Start a run on this thread: that takes less time than waking another."""
        key = run_key(entry)
        with self._changed:
            self._active.add(key)
            slot = self._slot_of[key] = self._free.pop()
        self._run(entry, key, slot)
