"""Times as Python programs have them: seconds and timedeltas, epoch seconds and datetimes.

A datetime without a time zone is a local time, as in Python itself. A duration may also be text with a unit, as in a
fleet file: "90s", "5m", "2h".
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TypeAlias

from rota.errors import InvalidInput
from rota.fleet.config.units import Seconds

__all__ = ["Duration", "Moment", "seconds_of", "timestamp_of"]

Duration: TypeAlias = float | timedelta | str  # a number is in seconds
Moment: TypeAlias = float | datetime  # a number is in epoch seconds


def seconds_of(field: str, value: Duration) -> float:
    """Return a duration in seconds."""
    given = value.total_seconds() if isinstance(value, timedelta) else value
    try:
        return float(Seconds.read(given))
    except ValueError:
        text = f"{field} must be a duration of 0 or more, not {value!r}"
        hint = 'Give seconds, a timedelta, or text with a unit such as "5m".'
        raise InvalidInput(text, field=field, hint=hint) from None


def timestamp_of(field: str, value: Moment | timedelta, now: float) -> float:
    """Return a moment in epoch seconds; a timedelta counts from now."""
    if isinstance(value, timedelta):
        return now + seconds_of(field, value)
    if isinstance(value, datetime):
        return value.timestamp()
    if type(value) in (int, float):
        return float(value)
    text = f"{field} must be a datetime or epoch seconds, not {value!r}"
    hint = "For example datetime.now() + timedelta(hours=1)."
    raise InvalidInput(text, field=field, hint=hint)
