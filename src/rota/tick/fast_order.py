"""The orders of `order`, on whole columns with numpy. The extra `rota[fast]` brings it.

numpy looks at the columns where they lie. No view of them outlives a call: while one exists, its column
cannot grow, and so no agent could be spawned.

With a capacity, only the best are sorted: a partition finds the worst key that still gets in, everybody
ahead of it is in, and those who have exactly that key fill what is left of the room, lower pid first.

Sorting positions by a key is slow in numpy, and sorting whole numbers is fast. So each score is first
packed with its position into one whole number, rounding the score to make room for the position:

    score 4.5 at 2, 3.0 at 0, 3.0 at 1   →   (~4.5, 2) < (~3.0, 0) < (~3.0, 1)   →   2, 0, 1

That order is right but for scores that rounding made equal. A stable sort by the true scores puts those
right, and is quick because nearly everything is in place. Equal scores keep the order of their positions
through both sorts, and positions ascend with pids: of equals, the lower pid goes first.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rota.errors import UnknownPid
from rota.tick.descriptor import KERNEL_PID
from rota.tick.order import Aging, Order
from rota.tick.process_table import READY, Columns

__all__ = ["by_effective_priority", "by_last_executed", "note_executed"]

Floats: TypeAlias = NDArray[np.floating[Any]]
Integers: TypeAlias = NDArray[np.int64]


def by_last_executed(columns: Columns, last_executed: array[int], room: int | None) -> Order:
    """Without a capacity by pid; with one the `room` agents that ran longest ago, longest first."""
    ready = _ready_pids(columns)
    if room is not None:
        last = _view(last_executed, np.int64)[ready]
        chosen = _lowest(last, room)
        ready = ready[chosen[np.argsort(last[chosen], kind="stable")]]
    return Order(ready.tolist(), 0)


def by_effective_priority(
    columns: Columns, last_executed: array[int], aging: Aging, tick: int, room: int | None
) -> Order:
    """The `room` best by effective priority (None: all), best first."""
    ready = _ready_pids(columns)
    scores = _view(columns.priority, np.float64)[ready]
    if aging.intent_weights is not None:
        scores *= np.array(aging.intent_weights)[_view(columns.intent, np.uint8)[ready]]
    bonus = _boost(tick - _view(last_executed, np.int64)[ready], aging)
    scores += bonus
    if room is not None and room < len(ready):
        chosen = _lowest(-scores, room)
        ready, scores = ready[chosen], scores[chosen]
    return Order(ready[_best_first(scores)].tolist(), int(np.count_nonzero(bonus)))


def note_executed(last_executed: array[int], pids: Sequence[int], tick: int) -> None:
    """Each of these ran in this tick; if one of them does not exist, nothing is noted."""
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
    """What having waited is worth: `rota.policy.ranking.boost` for everybody at once."""
    if aging.growth == "linear":
        return aging.step * (waited // aging.max_wait)
    return np.where(waited >= aging.max_wait, aging.step, 0.0)


def _lowest(keys: NDArray[Any], room: int) -> Integers:
    """Where the `room` lowest keys stand, in ascending order of position; of equals the earlier ones."""
    if room >= len(keys):
        return np.arange(len(keys))
    limit = np.partition(keys, room - 1)[room - 1]  # the worst key that still gets in
    inside = np.flatnonzero(keys < limit)
    at_limit = np.flatnonzero(keys == limit)[: room - len(inside)]
    return np.sort(np.concatenate((inside, at_limit)))


def _best_first(scores: Floats) -> Integers:
    """Where the scores stand, highest first; of equals the earlier one."""
    position_bits = len(scores).bit_length()
    # as whole numbers, the bits of floats from 0 up are in the order of the floats; ~ turns it round
    packed = ~scores.view(np.int64) >> position_bits << position_bits
    packed |= np.arange(len(scores))
    packed.sort()
    roughly = packed & ((1 << position_bits) - 1)
    return roughly[np.argsort(-scores[roughly], kind="stable")]
