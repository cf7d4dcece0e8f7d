"""The rules of triggers, as pure functions: when a timed trigger fires, and which events a pattern matches.

The instants follow from the trigger alone, so two supervisors, or one before and after a restart, compute the same
ones. A cron expression is read in its time zone; an interval is counted from the epoch (every 5 minutes is at :00,
:05, :10, in UTC, until the wall clock jumps: triggers.py).

Daylight saving time works as in Debian's cron. When the clock is put forward, a time in the missing hour fires once,
right after it. When the clock is put back, a fixed time fires once, in the first of the two equal hours; a time with
`*` or a step in its hour field fires in both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from rota.model.work import Trigger

__all__ = [
    "EVERY_S_MIN",
    "INSTANT_MAX",
    "TIMED",
    "cron_problem",
    "firings_after",
    "latest_by",
    "matches_kind",
    "next_after",
    "zone_problem",
]

TIMED = ("cron", "interval")
EVERY_S_MIN = 1.0
CRON_FIELDS = 5
NEAR_S = 3 * 3600  # the two equal hours of a change of the clock lie within this distance of it
YEAR_MAX = 9_000  # datetime ends at the year 9999
INSTANT_MAX = datetime(YEAR_MAX, 1, 1, tzinfo=UTC).timestamp()


def cron_problem(expression: str) -> str | None:
    """Return what is wrong with a cron expression, or None."""
    fields = len(expression.split())
    if fields != CRON_FIELDS:
        return f"it has {fields} fields, not {CRON_FIELDS}"
    try:
        moment = next(CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC)), None)
    except CronSimError as problem:
        return str(problem).lower()
    return None if moment is not None else "it matches no date"


def zone_problem(zone: str) -> str | None:
    """Return what is wrong with the name of a time zone, or None."""
    try:
        ZoneInfo(zone)
    except (OSError, ValueError, KeyError):
        return f"unknown time zone {zone!r}; expected a name such as 'Europe/Berlin'"
    return None


def matches_kind(pattern: str, kind: str) -> bool:
    """Whether an event kind matches the pattern of a trigger: a kind, or a prefix followed by `*`."""
    return kind.startswith(pattern[:-1]) if pattern.endswith("*") else kind == pattern


def next_after(trigger: Trigger, at: float) -> float | None:
    """Return the first instant after `at` at which the trigger fires, or None."""
    return next(_after(trigger, at), None)


def firings_after(trigger: Trigger, at: float, max_n: int) -> list[float]:
    """Return the next instants at which the trigger fires."""
    return list(islice(_after(trigger, at), max_n))


def latest_by(trigger: Trigger, at: float) -> float | None:
    """Return the last instant up to and including `at` at which the trigger fires, or None."""
    if trigger.kind == "interval":
        every_s = trigger.every_s or EVERY_S_MIN
        return _intervals_by(every_s, at) * every_s
    if not NEAR_S <= at < INSTANT_MAX:
        return None
    # The backward walk excludes its starting point, so it starts just after `at`: firings are on whole seconds. Inside
    # an hour that occurs twice the walk can skip the first one, so it starts behind such an hour.
    begin_at = math.floor(at) + 1 + (NEAR_S if _clock_changes_near(trigger, at) else 0)
    walk = CronSim(trigger.cron or "", _local(trigger, begin_at), reverse=True)
    return next((moment.timestamp() for moment in walk if moment.timestamp() <= at), None)


def _after(trigger: Trigger, at: float) -> Iterator[float]:
    """Yield every instant after `at` at which the trigger fires."""
    if trigger.kind == "interval":
        every_s = trigger.every_s or EVERY_S_MIN
        yield from (number * every_s for number in count(_intervals_by(every_s, at) + 1))
    elif NEAR_S <= at < INSTANT_MAX:
        last_at = at  # inside an hour that occurs twice, the walk can begin in the first of the two
        # from the whole second: datetime has microseconds, and rounding could skip the next firing
        for moment in CronSim(trigger.cron or "", _local(trigger, math.floor(at))):
            if moment.timestamp() > last_at:
                last_at = moment.timestamp()
                yield last_at


def _intervals_by(every_s: float, at: float) -> int:
    """The number of intervals that have ended by `at`. Compares their exact ends: division may round either way."""
    intervals = math.floor(at / every_s) + 1
    while intervals * every_s > at:
        intervals -= 1
    return intervals


def _clock_changes_near(trigger: Trigger, at: float) -> bool:
    """Whether the clock of the zone is put forward or back around this instant."""
    return _local(trigger, at - NEAR_S).utcoffset() != _local(trigger, at + NEAR_S).utcoffset()


def _local(trigger: Trigger, at: float) -> datetime:
    return datetime.fromtimestamp(at, ZoneInfo(trigger.zone))
