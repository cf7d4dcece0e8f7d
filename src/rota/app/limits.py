"""Named limits, as a Python program declares them."""

from __future__ import annotations

from datetime import datetime

from rota.app.moments import Duration, seconds_of
from rota.errors import ContextExists, ContextUnknown
from rota.model.budgets import SchedulingContext
from rota.service.api import SchedulerApi

__all__ = ["Limit", "ensure_limit"]

MINUTE_S = 60.0
PAGE = 1_000


class Limit:
    """A limit that many agents share by its name."""

    def __init__(self, api: SchedulerApi, name: str) -> None:
        self._api = api
        self.name = name

    def pause(self, until: datetime | Duration) -> float:
        """Make all who use the limit wait, as a provider's Retry-After asks; return until when, in epoch seconds.

        `until` is a date, or a time from now.
        """
        if isinstance(until, datetime):
            wait_s = max(0.0, until.timestamp() - self._api.clock.now())
        else:
            wait_s = seconds_of("until", until)
        return self._api.contexts.throttle(self.name, wait_s)

    def remaining(self) -> dict[str, int]:
        """Return what is available now, per unit."""
        return {limit.unit: limit.remaining for limit in _named(self._api, self.name)}

    def __repr__(self) -> str:
        return f"Limit({self.name!r})"


def ensure_limit(api: SchedulerApi, name: str, *, requests: int | None, tokens: int | None) -> Limit:
    """Return the limit of a name, created or updated; write nothing if nothing changes."""
    wanted = {unit: amount for unit, amount in (("requests", requests), ("tokens", tokens)) if amount is not None}
    known: dict[str, SchedulingContext] = {limit.unit: limit for limit in _named(api, name)}
    if not wanted and not known:
        hint = f"Create it: rota.limit({name!r}, requests_per_minute=60)."
        raise ContextUnknown(f"there is no limit named {name!r}", bound_id=name, hint=hint)
    for unit, amount in wanted.items():
        found = known.get(unit)
        if found is None:
            try:
                api.contexts.create(bound_to="name", bound_id=name, budget=amount, period_s=MINUTE_S, unit=unit)
            except ContextExists:  # created by another program at the same moment
                return ensure_limit(api, name, requests=requests, tokens=tokens)
        elif (found.budget, found.period) != (amount, round(MINUTE_S * 1000)):
            api.contexts.adjust(found.context_id, budget=amount, period_s=MINUTE_S)
    return Limit(api, name)


def _named(api: SchedulerApi, name: str) -> list[SchedulingContext]:
    found: list[SchedulingContext] = []
    offset = 0
    while page := api.contexts.list(limit=PAGE, offset=offset):
        found += [each for each in page if (each.bound_to, each.bound_id) == ("name", name) and each.state != "revoked"]
        offset += len(page)
    return found
