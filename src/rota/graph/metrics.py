"""The metrics of a run. Their names are stable.

Every lane reports all twenty scheduler metrics. Those of workers and queues are the highest value seen in the run, and
zero on lanes that have neither (event_loop, fixed_rate). Those of ticks are zero on lanes without a pace of their own:
fixed_rate ticks once per epoch, isolated_thread with a period, manual_step with the host. The others are totals, or
their name says what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from rota.graph.spec import PRIORITY_RANKS

__all__ = ["METRIC_SCHEMA_VERSION", "SCHEDULER_METRICS", "LaneMeter", "Metric"]

METRIC_SCHEMA_VERSION = "1"
PREFIX = "runtime.scheduler."

_SCHEDULER = (
    "tick_count",
    "completed_count",
    "tick_overrun_count",
    "skipped_tick_count",
    "max_lateness_ms",
    "queue_depth",
    "queue_capacity",
    "worker_count",
    "last_callback_duration_ms",
    "blocked_duration_ms",
    "tick_jitter_ms",
    "active_count",
    "in_flight_count",
    "rejected_count",
    "priority_high_count",
    "priority_normal_count",
    "priority_low_count",
    "priority_background_count",
    "low_priority_rejected_count",
    "starvation_guard_count",
)
SCHEDULER_METRICS: tuple[str, ...] = tuple(PREFIX + name for name in _SCHEDULER)


class Metric(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One value, with the component, lane or channel it belongs to."""

    name: str
    value: float
    component_id: str = ""
    lane: str = ""
    channel_id: str = ""
    tags: Mapping[str, str] = {}


class LaneMeter:
    """The counters of one lane. The thread that runs the lane's work writes them; the run reads them at its end."""

    __slots__ = (
        "active_count",
        "blocked_s",
        "in_flight_count",
        "last_callback_s",
        "low_priority_rejected_count",
        "max_jitter_s",
        "max_lateness_s",
        "queue_capacity",
        "queue_depth",
        "rejected_count",
        "skipped_tick_count",
        "starvation_guard_count",
        "tick_count",
        "tick_overrun_count",
        "worker_count",
    )

    def __init__(self) -> None:
        self.tick_count = self.tick_overrun_count = self.skipped_tick_count = 0
        self.queue_depth = self.queue_capacity = self.worker_count = self.active_count = self.in_flight_count = 0
        self.rejected_count = self.low_priority_rejected_count = self.starvation_guard_count = 0
        self.last_callback_s = self.blocked_s = self.max_jitter_s = self.max_lateness_s = 0.0

    def metrics(self, lane: str, completed_by_rank: Sequence[int]) -> Iterator[Metric]:
        """Yield all twenty metrics, in the order of `SCHEDULER_METRICS`."""
        values = self._values(completed_by_rank)
        for name in _SCHEDULER:
            yield Metric(name=PREFIX + name, value=values[name], lane=lane)

    def _values(self, completed_by_rank: Sequence[int]) -> dict[str, float]:
        by_class = {f"priority_{word}_count": completed_by_rank[rank] for word, rank in PRIORITY_RANKS.items()}
        counts = {name: getattr(self, name) for name in _SCHEDULER if name in self.__slots__}
        return {
            **counts,
            **by_class,
            "completed_count": sum(completed_by_rank),
            "last_callback_duration_ms": self.last_callback_s * 1000,
            "blocked_duration_ms": self.blocked_s * 1000,
            "tick_jitter_ms": self.max_jitter_s * 1000,
            "max_lateness_ms": self.max_lateness_s * 1000,
        }
