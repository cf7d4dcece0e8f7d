"""The orders of the tick world, in plain Python.

*By last run*: the agent that ran longest ago goes first; of equals, the lower pid.

*By effective priority*: the agent's priority (times the weight of its intent, if intents count) plus its starvation
boost, highest first; of equals, the lower pid:

    pid   priority   waited   boost (2.0 after 5 ticks)   effective   position
    1     1.0        6        2.0                         3.0         2
    2     3.0        1        0.0                         3.0         3, the tie goes to pid 1
    3     4.5        0        0.0                         4.5         1

`rota.policy.ranking` ranks a snapshot in the same way. This module reads the columns of the process table directly,
which saves a snapshot per tick; `ordering_numpy` does the same with numpy. All three perform the same floating-point
operations in the same order (base, then + boost), so their results are equal to the last bit. A property test checks
that.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple

from rota.errors import UnknownPid
from rota.policy.ranking import UNKNOWN_INTENT_WEIGHT, Growth, boost
from rota.tick.config import SchedulerConfig, SchedulingPolicy
from rota.tick.process_table import INTENTS, KERNEL_PID, READY, Columns

__all__ = ["Aging", "TickSchedule", "by_effective_priority", "by_last_executed", "ready_pids", "record_executed"]


class TickSchedule(NamedTuple):
    """The agents to run, first to last, and the number of ready agents with a boost."""

    pids: list[int]
    boosted: int


@dataclass(frozen=True)
class Aging:
    """How an effective priority is computed."""

    intent_weights: tuple[float, ...] | None  # a weight per index of INTENTS; None: intents do not count
    max_wait: int
    step: float
    growth: Growth

    @classmethod
    def of(cls, config: SchedulerConfig) -> Aging:
        """Return the values of a configuration."""
        weights = None
        if config.policy == SchedulingPolicy.INTENT_WEIGHTED:
            weights = tuple(float(config.intent_weights.get(intent, UNKNOWN_INTENT_WEIGHT)) for intent in INTENTS)
        return cls(weights, config.max_starvation_ticks, float(config.starvation_boost), config.growth)


def ready_pids(columns: Columns) -> list[int]:
    """The ready agents, by pid."""
    return [pid for pid, state in enumerate(columns.state) if state == READY]


def by_last_executed(columns: Columns, last_executed: array[int], capacity: int | None) -> TickSchedule:
    """All ready agents by pid; with a capacity, the agents that ran longest ago, longest first."""
    ready = ready_pids(columns)
    if capacity is not None:  # nsmallest is stable: of equals the lower pid goes first
        ready = nsmallest(capacity, ready, key=last_executed.__getitem__)
    return TickSchedule(ready, 0)


def by_effective_priority(
    columns: Columns, last_executed: array[int], aging: Aging, tick: int, capacity: int | None
) -> TickSchedule:
    """The `capacity` agents with the highest effective priority (None: all), highest first."""
    boosted = 0
    scored = []
    for pid in ready_pids(columns):
        base = columns.priority[pid]
        if aging.intent_weights is not None:
            base = base * aging.intent_weights[columns.intent[pid]]
        bonus = boost(tick - last_executed[pid], aging.max_wait, aging.step, aging.growth)
        boosted += bonus != 0.0
        scored.append((-(base + bonus), pid))
    scored.sort()
    return TickSchedule([pid for _, pid in scored[:capacity]], boosted)


def record_executed(last_executed: array[int], pids: Sequence[int], tick: int) -> None:
    """Record that these agents ran in this tick; raise before any change if one does not exist."""
    if not pids:
        return
    for pid in (min(pids), max(pids)):  # if these two exist, so do all between them
        if not KERNEL_PID < pid < len(last_executed):
            raise UnknownPid(pid)
    for pid in pids:
        last_executed[pid] = tick
