"""The tick world's own orders, in their plain form.

*By last run*: whoever ran longest ago goes first, and of those the lower pid.

*By effective priority*: the agent's priority (times the weight of its intent, where intents count),
plus what having waited is worth, highest first, and of equals the lower pid:

    pid   priority   waited   boost (2.0 after 5 ticks)   effective   place
    1     1.0        6        2.0                         3.0         2
    2     3.0        1        0.0                         3.0         3, the tie goes to pid 1
    3     4.5        0        0.0                         4.5         1

`rota.policy.ranking` ranks a snapshot in the same way. Here the columns of the process table are read
directly, which saves building a snapshot each tick; `fast_order` does the same again with numpy. All
three perform the same floating-point operations in the same order (base, then + boost), so their
answers are equal to the last bit, and a property test holds them to it.
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
from rota.tick.descriptor import KERNEL_PID
from rota.tick.process_table import INTENTS, READY, Columns

__all__ = ["Aging", "Order", "by_effective_priority", "by_last_executed", "note_executed", "ready_pids"]


class Order(NamedTuple):
    """Who runs, first to last, and how many of the ready agents had a boost."""

    pids: list[int]
    boosted: int


@dataclass(frozen=True)
class Aging:
    """How an effective priority is made."""

    intent_weights: tuple[float, ...] | None  # a weight per position in INTENTS; None: intents do not count
    max_wait: int
    step: float
    growth: Growth

    @classmethod
    def of(cls, config: SchedulerConfig) -> Aging:
        """What a configuration says about it."""
        weights = None
        if config.policy == SchedulingPolicy.INTENT_WEIGHTED:
            weights = tuple(float(config.intent_weights.get(intent, UNKNOWN_INTENT_WEIGHT)) for intent in INTENTS)
        return cls(weights, config.max_starvation_ticks, float(config.starvation_boost), config.growth)


def ready_pids(columns: Columns) -> list[int]:
    """The ready agents, by pid."""
    return [pid for pid, state in enumerate(columns.state) if state == READY]


def by_last_executed(columns: Columns, last_executed: array[int], room: int | None) -> Order:
    """Without a capacity by pid; with one the `room` agents that ran longest ago, longest first."""
    ready = ready_pids(columns)
    if room is not None:  # nsmallest keeps the order it is given among equals: the lower pid first
        ready = nsmallest(room, ready, key=last_executed.__getitem__)
    return Order(ready, 0)


def by_effective_priority(
    columns: Columns, last_executed: array[int], aging: Aging, tick: int, room: int | None
) -> Order:
    """The `room` best by effective priority (None: all), best first."""
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
    return Order([pid for _, pid in scored[:room]], boosted)


def note_executed(last_executed: array[int], pids: Sequence[int], tick: int) -> None:
    """Each of these ran in this tick; if one of them does not exist, nothing is noted."""
    if not pids:
        return
    for pid in (min(pids), max(pids)):  # if these two exist, so do all between them
        if not KERNEL_PID < pid < len(last_executed):
            raise UnknownPid(pid)
    for pid in pids:
        last_executed[pid] = tick
