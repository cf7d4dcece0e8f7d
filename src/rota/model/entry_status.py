"""The status of an entry, as people see it: one word for its state, its hold and how it ended."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rota.model.work import ReadyEntry

__all__ = ["EntryStatus", "status_of"]

EntryStatus: TypeAlias = Literal["waiting", "ready", "running", "succeeded", "failed", "expired", "cancelled"]


def status_of(entry: ReadyEntry) -> EntryStatus:
    """Return the status of an entry. `waiting` has a hold: a time, a predecessor, a back-off or a worker."""
    match entry.state, entry.exit_kind:
        case "queued", _:
            return "ready" if entry.hold is None else "waiting"
        case "dispatched", _:
            return "running"
        case "completed", "completed":
            return "succeeded"
        case "expired", _:
            return "expired"
        case "completed", "failed" | "crashed":
            return "failed"
    return "cancelled"
