"""How a fleet performed: shares, waiting times, retries and losses, in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

__all__ = ["FleetReport", "ProjectReport", "WaitTimes", "jain"]


class ProjectReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one project used, compared with its share by weight."""

    project_id: str
    weight: int  # in thousandths
    runs: int
    failed: int
    charged: dict[str, int]
    seconds: float
    share: float
    target: float

    @property
    def error(self) -> float:
        """The difference between its share and its target: 0.02 is two percentage points too much."""
        return self.share - self.target


class WaitTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How long entries were ready before they ran. The percentiles cover the last ones, the maximum covers all."""

    count: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0

    @classmethod
    def of(cls, waits_s: Sequence[float], count: int, max_s: float) -> WaitTimes:
        """Compute the percentiles of sorted waiting times."""
        return cls(count=count, p50_s=_percentile(waits_s, 0.5), p99_s=_percentile(waits_s, 0.99), max_s=max_s)


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a fleet performed."""

    measure: str  # the unit of shares: tokens or seconds
    projects: list[ProjectReport]
    jain: float  # 1.0: all projects served in proportion to their weights
    waits: WaitTimes
    retries: int
    reclaimed: int  # claims that expired
    failures: dict[str, int]  # runs, by outcome
    enqueued: int
    finished: dict[str, int]  # entries, by how they ended
    queued: int
    running: int
    lost: int  # entries missing from the tables: must be 0

    @property
    def share_error(self) -> float:
        """The largest difference between a share and its target."""
        return max((abs(project.error) for project in self.projects), default=0.0)


def jain(served: Sequence[float]) -> float:
    """Jain's fairness index of usage per weight; 1.0 if there is nothing to compare."""
    squares = sum(x * x for x in served)
    return sum(served) ** 2 / (len(served) * squares) if squares else 1.0


def _percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that this share of the values does not exceed."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
