"""What a store keeps, as lines for people: for `rota db retention` and `rota doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from rota.cli.output import now, when
from rota.model import RetentionStatus

__all__ = ["retention_lines"]


def retention_lines(status: RetentionStatus) -> Iterator[str]:
    """Yield the setting, what is there, and what was removed last."""
    at = now()
    set_by = f" (set by {status.setting.by})" if status.setting.by else ""
    yield f"kept: {status.setting.sentence()}{set_by}"
    yield (
        f"there: {status.entries:,} finished entries{_since(status.oldest_entry_at, at)}, "
        f"{status.events:,} events{_since(status.oldest_event_at, at)}, "
        f"{_size(status.file_bytes)} with {_size(status.free_bytes)} free for new rows"
    )
    if not status.setting.enabled:
        return
    if status.running:
        yield "a process removes rows at this moment"
    elif status.last_at is None:
        yield "no daemon or supervisor has looked yet"
    elif status.removed_at is None:
        yield f"last look {when(status.last_at, at)}; nothing was removed yet"
    else:
        removed = f"{status.removed_entries:,} entries and {status.removed_events:,} events"
        yield f"last look {when(status.last_at, at)}; {removed} removed {when(status.removed_at, at)}"


def _since(first_at: float | None, at: float) -> str:
    return "" if first_at is None else f", the oldest {when(first_at, at)}"


def _size(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
