"""The named limits of a fleet file: a provider's requests and tokens per period, as contexts bound to a name.

Other numbers come into force at a context's next refill, so what was said is remembered in the fleet's note, and not
read back.
"""

from __future__ import annotations

from collections.abc import Iterator

from rota.fleet.config.changes import Change
from rota.fleet.config.steps import Note, Step, later
from rota.fleet.config.tables import Fleet
from rota.kernel.contexts import in_ms
from rota.kernel.core import LIST_MAX
from rota.model.budgets import SchedulingContext
from rota.model.lifecycle import ContextState
from rota.service.api import Registers

__all__ = ["NamedLimits"]


class NamedLimits:
    """The named limits of one fleet in one store."""

    def __init__(self, desk: Registers, fleet: Fleet) -> None:
        self._desk, self._fleet = desk, fleet
        self._note = Note.of(desk, fleet)
        self._wanted = {
            name: {unit: [each.budget, in_ms(each.period_s)] for unit, each in sorted(table.rations.items())}
            for name, table in fleet.limits.items()
        }

    def steps(self) -> Iterator[Step]:
        """What differs."""
        known = {(each.bound_id, str(each.unit)): each.context_id for each in self._standing()}
        for name, units in self._wanted.items():
            for unit, numbers in units.items():
                context_id = known.pop((name, unit), None)
                told = self._note.limits.get(name, {}).get(unit)
                if context_id is None or told != numbers:
                    yield self._set(name, unit, numbers, told, context_id)
        for (name, unit), context_id in known.items():
            if unit in self._note.limits.get(name, {}):  # this fleet's own
                change = Change(what="limit", name=f"{name} {unit}", verb="removed")
                yield Step(change, later(self._desk.contexts.revoke, context_id))

    def _set(self, name: str, unit: str, numbers: list[int], told: list[int] | None, context_id: int | None) -> Step:
        budget, period_s = numbers[0], numbers[1] / 1000
        label = f"{name} {unit}"
        if context_id is None:
            change = Change(what="limit", name=label, verb="created")
            return Step(change, later(self._create, name, unit, numbers))
        change = Change(what="limit", name=label, verb="changed", fields={"budget, period_ms": [told, numbers]})
        return Step(change, later(self._adjust, context_id, name, unit, budget, period_s))

    def _create(self, name: str, unit: str, numbers: list[int]) -> None:
        self._desk.contexts.create(
            bound_to="name", bound_id=name, budget=numbers[0], period_s=numbers[1] / 1000, unit=unit
        )
        self._remember(name, unit, numbers)

    def _adjust(self, context_id: int, name: str, unit: str, budget: int, period_s: float) -> None:
        self._desk.contexts.adjust(context_id, budget=budget, period_s=period_s)
        self._remember(name, unit, [budget, in_ms(period_s)])

    def _remember(self, name: str, unit: str, numbers: list[int]) -> None:
        note = Note.of(self._desk, self._fleet)
        note.limits.setdefault(name, {})[unit] = numbers
        note.keep(self._desk, self._fleet)

    def tidy(self) -> None:
        """Once all is done: forget what the file no longer names."""
        Note(self._wanted, sorted(self._fleet.scheduling.budget)).keep(self._desk, self._fleet)

    def _standing(self) -> Iterator[SchedulingContext]:
        offset = 0
        while page := self._desk.contexts.list(limit=LIST_MAX, offset=offset):
            yield from (each for each in page if each.bound_to == "name" and each.state != ContextState.REVOKED)
            offset += len(page)
