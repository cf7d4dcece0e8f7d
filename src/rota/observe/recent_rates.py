"""Rates over time: how many entries were enqueued, started and ended in each part of the last minutes, and their waits.

Bounded: `BUCKETS` parts of equal length, each with at most `WAITS_MAX` waiting times for its percentiles.
"""

from __future__ import annotations

from collections import deque

import msgspec

from rota.observe.run_chart import WINDOW_S

__all__ = ["BUCKETS", "BUCKET_S", "RatePoint", "RecentRates"]

BUCKETS = 60
BUCKET_S = WINDOW_S / BUCKETS
WAITS_MAX = 500  # of one part


class RatePoint(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in one part of the time."""

    at: float  # its start
    enqueued: int = 0
    started: int = 0
    ended: int = 0
    failed: int = 0  # runs, also those that are tried again
    wait_p50_s: float | None = None  # None: nothing started
    wait_p95_s: float | None = None
    wait_p99_s: float | None = None


class _Bucket:
    __slots__ = ("at", "ended", "enqueued", "failed", "started", "waits")

    def __init__(self, at: float) -> None:
        self.at = at
        self.enqueued = self.started = self.ended = self.failed = 0
        self.waits: list[float] = []


class RecentRates:
    """Counts what happens, by time."""

    def __init__(self) -> None:
        self._buckets: deque[_Bucket] = deque(maxlen=BUCKETS)

    def add(self, at: float, *, enqueued: int = 0, ended: int = 0, failed: int = 0) -> None:
        """Count what happened at this time."""
        bucket = self._of(at)
        bucket.enqueued += enqueued
        bucket.ended += ended
        bucket.failed += failed

    def add_start(self, at: float, wait_s: float | None) -> None:
        """Count the start of a run, with how long its entry was ready, if it is known."""
        bucket = self._of(at)
        bucket.started += 1
        if wait_s is not None and len(bucket.waits) < WAITS_MAX:
            bucket.waits.append(wait_s)

    def _of(self, at: float) -> _Bucket:
        start_at = at // BUCKET_S * BUCKET_S
        if not self._buckets or start_at > self._buckets[-1].at:  # a clock that jumped back counts in the last one
            self._buckets.append(_Bucket(start_at))
        return self._buckets[-1]

    def points(self, now: float) -> list[RatePoint]:
        """Return the parts of the last minutes, oldest first, also those in which nothing happened."""
        first_at = now // BUCKET_S * BUCKET_S - (BUCKETS - 1) * BUCKET_S
        known = {bucket.at: bucket for bucket in self._buckets}
        starts = (first_at + number * BUCKET_S for number in range(BUCKETS))
        return [_point(known.get(at) or _Bucket(at)) for at in starts]


def _point(bucket: _Bucket) -> RatePoint:
    waits = sorted(bucket.waits)

    def percentile(share: float) -> float | None:
        return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else None

    return RatePoint(
        at=bucket.at,
        enqueued=bucket.enqueued,
        started=bucket.started,
        ended=bucket.ended,
        failed=bucket.failed,
        wait_p50_s=percentile(0.5),
        wait_p95_s=percentile(0.95),
        wait_p99_s=percentile(0.99),
    )
