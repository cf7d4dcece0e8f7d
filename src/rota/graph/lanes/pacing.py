"""The cadence of a lane: when the next tick is due, and what a late tick does to it.

The nominal time of the next tick is one period after the current one was scheduled. A tick that finishes later than
that is late, and the overrun policy chooses the next tick:

    period 10, scheduled at 0, finished at 23:  nominal 10, lateness 13, one whole period was missed
    drop_tick       next = 33   one period after it finished
    skip_next       next = 20   the nominal tick is skipped, the one after it is kept; one more counts as skipped
    catch_up_once   next = 23   immediately

Independently of that, a tick that took longer than its budget counts as an overrun, late or not, with or without a wall
clock. All times are whole nanoseconds, so tests with a manual clock see exact numbers.
"""

from __future__ import annotations

from typing import NamedTuple

from rota.graph.metrics import LaneMeter
from rota.graph.plan import Lane
from rota.graph.tracing import TraceRecorder

__all__ = ["Pacer", "TickTiming"]

NS = 1_000_000_000


class TickTiming(NamedTuple):
    """The measurements of a finished tick."""

    duration_ns: int
    overrun_ns: int  # beyond the budget; 0 or less: within it
    lateness_ns: int  # after the next nominal tick; 0: on time, or no wall clock
    skipped: int


class Pacer:
    """The cadence of one lane. Without a wall clock every tick is due immediately."""

    def __init__(self, lane: Lane, meter: LaneMeter, recorder: TraceRecorder | None, *, wall_clock: bool) -> None:
        self.lane_id = lane.id
        self.meter = meter
        self._period_ns = lane.period_ns
        self._budget_ns = lane.tick_budget_ns
        self._policy = lane.spec.overrun_policy
        self._recorder = recorder
        self.has_wall_clock = wall_clock and lane.period_ns > 0
        self._scheduled_ns: int | None = None  # of the current tick, or of the next one between ticks
        self._began_at_s = 0.0

    def due_in_s(self, now_s: float) -> float:
        """Return the seconds until the next tick; 0 if it is due."""
        if not self.has_wall_clock or self._scheduled_ns is None:
            return 0.0
        return max(0, self._scheduled_ns - round(now_s * NS)) / NS

    def begin(self, now_s: float, epoch_id: int) -> None:
        """Begin a tick."""
        self._began_at_s = now_s
        if self._scheduled_ns is None:
            self._scheduled_ns = round(now_s * NS)
        self.meter.tick_count += 1
        if self._recorder is not None:
            self._recorder.begin("fixed_rate_tick", now_s, epoch_id, lane=self.lane_id)

    def end(self, now_s: float, epoch_id: int) -> TickTiming:
        """End the tick: count it, and schedule the next one."""
        finished_ns = round(now_s * NS)
        duration_ns = finished_ns - round(self._began_at_s * NS)
        lateness_ns, skipped = self._schedule_next(finished_ns) if self.has_wall_clock else (0, 0)
        tick = TickTiming(duration_ns, duration_ns - self._budget_ns if self._budget_ns else 0, lateness_ns, skipped)
        self._count(tick)
        self._trace(tick, now_s, epoch_id)
        return tick

    def _schedule_next(self, finished_ns: int) -> tuple[int, int]:
        nominal_ns = (self._scheduled_ns or 0) + self._period_ns
        lateness_ns = max(0, finished_ns - nominal_ns)
        skipped = lateness_ns // self._period_ns
        if lateness_ns == 0:
            self._scheduled_ns = nominal_ns
        elif self._policy == "skip_next":
            self._scheduled_ns = nominal_ns + self._period_ns
            skipped += 1
        elif self._policy == "catch_up_once":
            self._scheduled_ns = finished_ns
        else:
            self._scheduled_ns = finished_ns + self._period_ns
        return lateness_ns, skipped

    def _count(self, tick: TickTiming) -> None:
        meter = self.meter
        meter.skipped_tick_count += tick.skipped
        meter.max_lateness_s = max(meter.max_lateness_s, tick.lateness_ns / NS)
        if tick.overrun_ns > 0:
            meter.tick_overrun_count += 1
            meter.max_jitter_s = max(meter.max_jitter_s, tick.overrun_ns / NS)
            meter.max_lateness_s = max(meter.max_lateness_s, tick.overrun_ns / NS)

    def _trace(self, tick: TickTiming, now_s: float, epoch_id: int) -> None:
        recorder = self._recorder
        if recorder is None:
            return
        recorder.end("fixed_rate_tick", self._began_at_s, now_s, epoch_id, lane=self.lane_id)
        if tick.overrun_ns > 0:
            overrun = {"overrun_ms": f"{tick.overrun_ns / 1e6:.3f}"}
            recorder.instant("fixed_rate_overrun", now_s, epoch_id, lane=self.lane_id, attributes=overrun)
        if tick.skipped:
            skipped = {"skipped": str(tick.skipped), "policy": self._policy}
            recorder.instant("fixed_rate_skipped_tick", now_s, epoch_id, lane=self.lane_id, attributes=skipped)
