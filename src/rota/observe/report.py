"""How a fleet has done, in numbers: what a board answers when it is over."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

__all__ = ["ProjectReport", "Report", "Waits", "jain"]


class ProjectReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one project had, against what its weight promised it."""

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
        """By how much its share differs from its target: 0.02 is two points of a hundred too much."""
        return self.share - self.target


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """How long entries were ready before they ran. The percentiles are of the last ones, the maximum is of all."""

    count: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0

    @classmethod
    def of(cls, waits_s: Sequence[float], count: int, max_s: float) -> Waits:
        """Of waits in growing order."""
        return cls(count=count, p50_s=_percentile(waits_s, 0.5), p99_s=_percentile(waits_s, 0.99), max_s=max_s)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How a fleet has done."""

    measure: str  # what shares are counted in: tokens, or seconds
    projects: list[ProjectReport]
    jain: float  # 1.0: all served alike, for their weights
    waits: Waits
    retries: int
    reclaimed: int  # claims that nobody held on to
    failures: dict[str, int]  # runs, by outcome
    enqueued: int
    finished: dict[str, int]  # entries, by how they ended
    queued: int
    running: int
    lost: int  # entries that are nowhere: must be 0

    @property
    def share_error(self) -> float:
        """The largest difference between a share and its target."""
        return max((abs(project.error) for project in self.projects), default=0.0)


def jain(served: Sequence[float]) -> float:
    """Jain's fairness index of what each got for its weight; 1.0 where there is nothing to compare."""
    squares = sum(x * x for x in served)
    return sum(served) ** 2 / (len(served) * squares) if squares else 1.0


def _percentile(growing: Sequence[float], share: float) -> float:
    """The smallest value that this share of them does not exceed."""
    return growing[max(0, math.ceil(share * len(growing)) - 1)] if growing else 0.0
