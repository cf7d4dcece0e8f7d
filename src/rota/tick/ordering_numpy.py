"""The orders of `ordering`, computed on whole columns with numpy (the extra `rota[fast]`).

numpy reads the columns without copying. No view of a column outlives a call: while one exists, the column cannot grow,
and no agent could be spawned.

With a capacity, only the best agents are sorted: a partition finds the worst key that still gets in, all better keys
are in, and agents with exactly that key fill the rest, lower pid first.

Sorting positions by a key is slow in numpy, and sorting integers is fast. So each score is packed with its position
into one integer, rounding the score to fit the position:

    score 4.5 at 2, 3.0 at 0, 3.0 at 1   →   (~4.5, 2) < (~3.0, 0) < (~3.0, 1)   →   2, 0, 1

That order is right except for scores that rounding made equal. A stable sort by the exact scores corrects those, and is
fast because nearly everything is in place. Equal scores keep the order of their positions through both sorts, and
positions ascend with pids: of equals, the lower pid goes first.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rota.errors import UnknownPid
from rota.tick.ordering import Aging, TickSchedule
from rota.tick.process_table import KERNEL_PID, READY, Columns

__all__ = ["by_effective_priority", "by_last_executed", "record_executed"]

Floats: TypeAlias = NDArray[np.floating[Any]]
Integers: TypeAlias = NDArray[np.int64]


def by_last_executed(columns: Columns, last_executed: array[int], capacity: int | None) -> TickSchedule:
    """All ready agents by pid; with a capacity, the agents that ran longest ago, longest first."""
    ready = _ready_pids(columns)
    if capacity is not None:
        last = _view(last_executed, np.int64)[ready]
        chosen = _lowest(last, capacity)
        ready = ready[chosen[np.argsort(last[chosen], kind="stable")]]
    return TickSchedule(ready.tolist(), 0)


def by_effective_priority(
    columns: Columns, last_executed: array[int], aging: Aging, tick: int, capacity: int | None
) -> TickSchedule:
    """The `capacity` agents with the highest effective priority (None: all), highest first."""
    ready = _ready_pids(columns)
    scores = _view(columns.priority, np.float64)[ready]
    if aging.intent_weights is not None:
        scores *= np.array(aging.intent_weights)[_view(columns.intent, np.uint8)[ready]]
    bonus = _boost(tick - _view(last_executed, np.int64)[ready], aging)
    scores += bonus
    if capacity is not None and capacity < len(ready):
        chosen = _lowest(-scores, capacity)
        ready, scores = ready[chosen], scores[chosen]
    return TickSchedule(ready[_best_first(scores)].tolist(), int(np.count_nonzero(bonus)))


def record_executed(last_executed: array[int], pids: Sequence[int], tick: int) -> None:
    """Record that these agents ran in this tick; raise before any change if one does not exist."""
    if not pids:
        return
    rows = np.array(pids)
    for pid in (rows.min(), rows.max()):  # if these two exist, so do all between them
        if not KERNEL_PID < pid < len(last_executed):
            raise UnknownPid(int(pid))
    _view(last_executed, np.int64)[rows] = tick


def _view(column: Any, kind: Any) -> NDArray[Any]:
    return np.frombuffer(column, dtype=kind)


def _ready_pids(columns: Columns) -> Integers:
    return np.flatnonzero(_view(columns.state, np.uint8) == READY)


def _boost(waited: Integers, aging: Aging) -> Floats:
    """The starvation boost of many agents: `rota.policy.ranking.boost` on a column."""
    if aging.growth == "linear":
        return aging.step * (waited // aging.max_wait)
    return np.where(waited >= aging.max_wait, aging.step, 0.0)


def _lowest(keys: NDArray[Any], capacity: int) -> Integers:
    """The positions of the `capacity` lowest keys, ascending; of equals the earlier ones."""
    if capacity >= len(keys):
        return np.arange(len(keys))
    limit = np.partition(keys, capacity - 1)[capacity - 1]  # the worst key that still gets in
    inside = np.flatnonzero(keys < limit)
    at_limit = np.flatnonzero(keys == limit)[: capacity - len(inside)]
    return np.sort(np.concatenate((inside, at_limit)))


def _best_first(scores: Floats) -> Integers:
    """The positions of the scores, highest first; of equals the earlier one."""
    position_bits = len(scores).bit_length()
    # read as integers, the bits of floats from 0 up sort like the floats; ~ reverses that
    packed = ~scores.view(np.int64) >> position_bits << position_bits
    packed |= np.arange(len(scores))
    packed.sort()
    roughly = packed & ((1 << position_bits) - 1)
    return roughly[np.argsort(-scores[roughly], kind="stable")]
