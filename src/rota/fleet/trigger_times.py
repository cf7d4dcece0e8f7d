"""When a trigger that goes by the clock fires. Pure: whoever asks says what time it is.

Every instant follows from the trigger alone, so two supervisors, or one before and after a restart, agree on it: a
cron expression is read in its zone, an interval is counted from the epoch (every 5 minutes is at :00, :05, :10, in
UTC).

Summer time is as Debian's cron has it. When the clock is put forward, what would have run in the missing hour runs
once, right after it. When it is put back, a fixed time runs once, in the first of the two hours; a time with a `*` or
a step in its hour field runs in both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from rota.model.work import Trigger

__all__ = ["TIMED", "cron_problem", "firings_after", "latest_by", "next_after", "zone_problem"]

TIMED = ("cron", "interval")
EVERY_S_LEAST = 1.0
FIELDS = 5  # of a cron expression
NEAR_S = 3 * 3600  # an hour that comes twice lies within so much of its change
YEARS_LAST = 9_000  # no calendar goes on for ever
_LATEST_AT = datetime(YEARS_LAST, 1, 1, tzinfo=UTC).timestamp()


def cron_problem(expression: str) -> str | None:
    """What is wrong with a cron expression."""
    if len(expression.split()) != FIELDS:
        return f"it has {len(expression.split())} fields, not {FIELDS}"
    try:
        moment = next(CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC)), None)
    except CronSimError as problem:
        return str(problem).lower()
    return None if moment is not None else "it never comes"


def zone_problem(zone: str) -> str | None:
    """What is wrong with a time zone."""
    try:
        ZoneInfo(zone)
    except (OSError, ValueError, KeyError):
        return f"no time zone is called {zone!r}"
    return None


def next_after(trigger: Trigger, at: float) -> float | None:
    """The first instant after this one at which it fires; None if there is none."""
    return next(_after(trigger, at), None)


def firings_after(trigger: Trigger, at: float, most: int) -> list[float]:
    """The next few instants at which it fires."""
    return list(islice(_after(trigger, at), most))


def latest_by(trigger: Trigger, at: float) -> float | None:
    """The last instant up to and including this one at which it fires; None if there is none."""
    if trigger.kind == "interval":
        every_s = trigger.every_s or EVERY_S_LEAST
        return _steps_by(every_s, at) * every_s
    if not NEAR_S <= at < _LATEST_AT:
        return None
    # Backwards, the instant asked from is left out, so begin just after it: firings are on whole seconds. In an
    # hour that comes twice the walk can overlook the first one, so begin behind such an hour.
    begin_at = math.floor(at) + 1 + (NEAR_S if _changes_near(trigger, at) else 0)
    walk = CronSim(trigger.cron or "", _local(trigger, begin_at), reverse=True)
    return next((moment.timestamp() for moment in walk if moment.timestamp() <= at), None)


def _after(trigger: Trigger, at: float) -> Iterator[float]:
    """Every instant after this one at which it fires."""
    if trigger.kind == "interval":
        every_s = trigger.every_s or EVERY_S_LEAST
        yield from (step * every_s for step in count(_steps_by(every_s, at) + 1))
    elif NEAR_S <= at < _LATEST_AT:
        last_at = at  # from inside an hour that comes twice, the walk can begin with the first of the two
        # from the whole second: a calendar knows no less than a microsecond, and would round up to the next firing
        for moment in CronSim(trigger.cron or "", _local(trigger, math.floor(at))):
            if moment.timestamp() > last_at:
                last_at = moment.timestamp()
                yield last_at


def _steps_by(every_s: float, at: float) -> int:
    """How many intervals have passed, by the very instants at which they end: division may round either way."""
    steps = math.floor(at / every_s) + 1
    while steps * every_s > at:
        steps -= 1
    return steps


def _changes_near(trigger: Trigger, at: float) -> bool:
    """Whether the zone's clock is put forward or back around this instant."""
    return _local(trigger, at - NEAR_S).utcoffset() != _local(trigger, at + NEAR_S).utcoffset()


def _local(trigger: Trigger, at: float) -> datetime:
    return datetime.fromtimestamp(at, ZoneInfo(trigger.zone))
