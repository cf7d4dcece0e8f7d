"""The status of an entry, as people see it: one word for its state, its hold and how it ended.

The store keeps five states. `waiting` is a queued entry with a hold: a time, a predecessor, a back-off or a worker. The
same words are in tables, in JSON and in filters; `store/statements/entry_lists.py` has the same rule as SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

__all__ = ["STATUSES", "EntryStatus", "derive_status"]

EntryStatus: TypeAlias = Literal["waiting", "ready", "running", "succeeded", "failed", "expired", "cancelled"]
STATUSES: tuple[EntryStatus, ...] = ("waiting", "ready", "running", "succeeded", "failed", "expired", "cancelled")

_BY_EXIT_KIND: Mapping[str | None, EntryStatus] = {
    None: "succeeded",
    "completed": "succeeded",
    "cancelled": "cancelled",
}


def derive_status(state: str, hold: str | None, exit_kind: str | None) -> EntryStatus:
    """Return the status of an entry from what is stored of it."""
    if state == "queued":
        return "ready" if hold is None else "waiting"
    if state == "dispatched":
        return "running"
    if state == "completed":
        return _BY_EXIT_KIND.get(exit_kind, "failed")
    return "expired" if state == "expired" else "cancelled"
