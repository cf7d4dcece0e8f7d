"""What agents used lately, in time buckets, so that shares show the last minutes and not the whole life of a fleet.

Usage is added to the bucket of its time. A bucket that has left the window is dropped, so the sums are at most one
bucket too large. The number of agents in one bucket is limited; what further agents use is added to `OTHERS`.

**Share.** The share of a project is its part of what all projects used in the window; the share of an agent is its part
of what its project used. The target is the same part of the weights, among those that used something, run or have
entries waiting: an idle project gets nothing, which is no fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping

import msgspec

from rota.model.policy_setting import SHARE_DIMS, ShareBy
from rota.model.work import WEIGHT_UNIT
from rota.observe.fleet_report import ProjectReport

__all__ = [
    "AGENTS_MAX",
    "BUCKET_S",
    "OTHERS",
    "AgentName",
    "AgentShare",
    "RecentShares",
    "RecentUsage",
    "Used",
    "shares_of",
]

BUCKET_S = 10.0
AGENTS_MAX = 2_000  # in one bucket
OTHERS = 0  # the pid under which further agents are summed up: no agent has it


class AgentName(msgspec.Struct, frozen=True):
    """The name of an agent, its project and its weight in it."""

    name: str
    project_id: str | None = None
    weight: int = WEIGHT_UNIT


class Used(msgspec.Struct):
    """What one agent or project used."""

    runs: int = 0  # ended runs
    failed: int = 0
    seconds: float = 0.0  # of running
    running: int = 0  # runs in progress
    charged: dict[str, int] = msgspec.field(default_factory=dict)  # by dimension

    def add(self, other: Used) -> None:
        """Add what another has."""
        self.runs += other.runs
        self.failed += other.failed
        self.seconds += other.seconds
        self.running += other.running
        for dim, amount in other.charged.items():
            self.charged[dim] = self.charged.get(dim, 0) + amount


class AgentShare(msgspec.Struct, frozen=True, kw_only=True):
    """What one agent used, compared with its share of its project by weight."""

    pid: int
    name: str
    project_id: str | None
    weight: int  # in thousandths
    running: int
    runs: int
    failed: int
    used: float  # in the unit of shares
    share: float
    target: float


class RecentShares(msgspec.Struct, frozen=True, kw_only=True):
    """Shares against targets in the last `window_s`: of projects, and of agents inside their project."""

    measure: str  # the unit: tokens, cost, cpu or seconds
    window_s: float
    projects: tuple[ProjectReport, ...] = ()
    agents: tuple[AgentShare, ...] = ()


class RecentUsage:
    """The usage of agents in the last `window_s`."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._buckets: deque[tuple[float, dict[int, Used]]] = deque()  # by start, oldest first

    def of(self, pid: int | None, at: float) -> Used:
        """Return the usage of an agent in the bucket of this time, to add to it."""
        start_at = at // BUCKET_S * BUCKET_S
        if not self._buckets or self._buckets[-1][0] < start_at:
            self._buckets.append((start_at, {}))
            self._drop(at)
        bucket = self._buckets[-1][1]  # a clock that went back adds to the newest one
        key = OTHERS if pid is None or (len(bucket) >= AGENTS_MAX and pid not in bucket) else pid
        return bucket.setdefault(key, Used())

    def _drop(self, now: float) -> None:
        while self._buckets and self._buckets[0][0] + BUCKET_S <= now - self.window_s:
            self._buckets.popleft()

    def totals(self, now: float) -> dict[int, Used]:
        """Return what each agent used in the window."""
        found: dict[int, Used] = {}
        for start_at, bucket in self._buckets:
            if start_at + BUCKET_S > now - self.window_s:
                for pid, used in bucket.items():
                    found.setdefault(pid, Used()).add(used)
        return found


def shares_of(
    used: Mapping[int, Used],
    named: Callable[[int], AgentName],
    weights: Mapping[str, int],
    *,
    share_by: ShareBy,
    window_s: float,
    waiting: Collection[str] = (),
) -> RecentShares:
    """Return the shares of what agents used. `weights` are those of projects; `waiting` are projects with entries."""
    tags = {pid: named(pid) for pid in used}
    by_project: dict[str, Used] = {project_id: Used() for project_id in waiting if project_id in weights}
    for pid, each in used.items():
        by_project.setdefault(tags[pid].project_id or "", Used()).add(each)
    dim = SHARE_DIMS[share_by]
    is_charged = any(each.charged.get(dim) for each in used.values())

    def amount(each: Used) -> float:
        return each.charged.get(dim, 0) if is_charged else each.seconds

    owners = sorted(project_id for project_id in by_project if project_id)  # what has no project has no share
    shares = _parts(amount(by_project[owner]) for owner in owners)
    targets = _parts(weights.get(owner, WEIGHT_UNIT) for owner in owners)
    projects = tuple(
        ProjectReport(
            project_id=owner,
            weight=weights.get(owner, WEIGHT_UNIT),
            runs=by_project[owner].runs,
            failed=by_project[owner].failed,
            charged=dict(by_project[owner].charged),
            seconds=by_project[owner].seconds,
            share=share,
            target=target,
        )
        for owner, share, target in zip(owners, shares, targets, strict=True)
    )
    agents: list[AgentShare] = []
    for owner in sorted(by_project):
        pids = sorted(pid for pid in used if (tags[pid].project_id or "") == owner)
        shares = _parts(amount(used[pid]) for pid in pids)
        targets = _parts(tags[pid].weight for pid in pids)
        agents += [
            AgentShare(
                pid=pid,
                name=tags[pid].name,
                project_id=owner or None,
                weight=tags[pid].weight,
                running=used[pid].running,
                runs=used[pid].runs,
                failed=used[pid].failed,
                used=amount(used[pid]),
                share=share,
                target=target,
            )
            for pid, share, target in zip(pids, shares, targets, strict=True)
        ]
    measure = share_by if is_charged else "seconds"
    return RecentShares(measure=measure, window_s=window_s, projects=projects, agents=tuple(agents))


def _parts(values: Iterable[float]) -> list[float]:
    """Return each value's part of their sum; zeros if there is nothing."""
    given = list(values)
    total = sum(given)
    return [value / total if total else 0.0 for value in given]
