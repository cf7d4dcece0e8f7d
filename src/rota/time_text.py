"""Instants and durations as people read them: local times, "3 min ago", "2.5 h"."""

from __future__ import annotations

from rota import clock

__all__ = ["fine_span", "local_time", "moment", "rough_span", "span", "when"]

MINUTE_S = 60
_TENTHS_S = 10  # below this, a duration of seconds has a decimal
_MINUTES_S = 180  # from here on, a rough one is in minutes
_HOURS_S = 5_400  # and from here on in hours
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def when(at: float | None, now_at: float) -> str:
    """Format an instant relative to now."""
    if at is None:
        return "–"
    if not at:
        return "now"
    return f"in {span(at - now_at)}" if at > now_at else f"{span(now_at - at)} ago"


def local_time(at: float, now_at: float) -> str:
    """Format an instant in this machine's zone: the time of day, with the date if it is not today's."""
    today = clock.local_time(now_at)[: len("2026-11-17 ")]
    return clock.local_time(at).removeprefix(today)


def moment(at: float | None, now_at: float) -> str:
    """Format an instant as a local time and relative to now."""
    return f"{local_time(at, now_at)} ({when(at, now_at)})" if at else when(at, now_at)


def span(seconds: float) -> str:
    """Format a duration in the largest unit that fits."""
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def fine_span(seconds: float) -> str:
    """Format a duration that may be short: milliseconds below a second, a decimal below a minute."""
    if seconds < 1:
        return f"{seconds * 1_000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < MINUTE_S else span(seconds)


def rough_span(seconds: float) -> str:
    """Format a duration as people say it in a sentence: "4.2 s", "95 s", "12 min", "3.5 h"."""
    if seconds >= _HOURS_S:
        return f"{seconds / 3_600:.1f} h"
    if seconds >= _MINUTES_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds:.1f} s" if seconds < _TENTHS_S else f"{seconds:.0f} s"
