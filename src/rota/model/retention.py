"""What a store keeps: the setting of automatic retention, and how far it has come."""

from __future__ import annotations

import msgspec

__all__ = ["RetentionSetting", "RetentionStatus"]

DAY_S = 86_400.0


class RetentionSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What a store keeps. What exceeds the age or the number goes, the oldest first."""

    enabled: bool = True
    entries_s: float = 7 * DAY_S  # finished entries, since they ended
    entries_max: int = 100_000  # finished entries
    events_s: float = 7 * DAY_S
    events_max: int = 1_000_000
    by: str = ""  # who set it; empty: the default

    def sentence(self) -> str:
        """Return it as a sentence."""
        if not self.enabled:
            return "everything is kept: automatic retention is off"
        entries = f"finished entries for {_days(self.entries_s)}, at most {self.entries_max:,}"
        return f"{entries}; events for {_days(self.events_s)}, at most {self.events_max:,}"


class RetentionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a store keeps, what it has, and what was removed last."""

    setting: RetentionSetting
    entries: int = 0  # finished ones; of those that ended since the last look, the first thousand or so
    oldest_entry_at: float | None = None  # when the first of them ended
    events: int = 0
    oldest_event_at: float | None = None
    file_bytes: int = 0
    free_bytes: int = 0  # in the file, for new rows
    last_at: float | None = None  # when it last looked
    removed_at: float | None = None  # when it last removed something
    removed_entries: int = 0  # then
    removed_events: int = 0
    running: bool = False  # a process removes rows at this moment


def _days(seconds: float) -> str:
    for unit, size_s in (("day", DAY_S), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= size_s and seconds % size_s == 0:
            count = seconds / size_s
            return f"{count:,.0f} {unit}{'' if count == 1 else 's'}"
    return f"{seconds:g} seconds"
