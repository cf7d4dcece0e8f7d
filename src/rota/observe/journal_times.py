"""Finding events by time: ids grow with time, so a few reads are enough."""

from __future__ import annotations

from typing import Any

__all__ = ["last_event_before"]


def last_event_before(journal: Any, at: float, cursor: int) -> int:
    """Return the id of the last event before an instant, at most `cursor`; 0 if there is none."""
    low, high = 0, cursor
    while low < high:
        middle = (low + high) // 2
        found = journal.tail(middle, 1)
        if found and found[0].ts < at:
            low = max(found[0].event_id, middle + 1)
        else:
            high = middle
    return low
