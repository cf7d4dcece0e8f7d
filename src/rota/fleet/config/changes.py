"""The differences between a fleet file and a store, as messages for people and as an event for the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from rota.model.events import FleetReloaded

__all__ = ["NAMES_MAX", "FleetChange", "FleetChanges", "PendingChange"]

VALUE_CHARS_MAX = 80  # of a value in a message
NAMES_MAX = 100  # of one kind of change, in the journal
What = Literal["scheduling", "price", "project", "budget", "workspace", "limit", "agent", "grant"]
Verb = Literal["created", "changed", "removed", "paused", "resumed", "postponed"]


class FleetChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One difference between the file and the store."""

    what: What
    name: str
    verb: Verb
    fields: dict[str, list[Any]] = {}  # each with its old and its new value
    note: str | None = None

    def __str__(self) -> str:
        fields = [f"{field} {_shorten(old)} → {_shorten(new)}" for field, (old, new) in self.fields.items()]
        parts = [f"{self.what} {self.name} {self.verb}", ", ".join(fields), self.note]
        return ": ".join(part for part in parts if part)


class FleetChanges(msgspec.Struct, frozen=True):
    """All differences, in the order in which they were applied."""

    applied: tuple[FleetChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.applied)

    def __iter__(self) -> Iterator[FleetChange]:
        return iter(self.applied)

    def names(self, what: What, verb: Verb | None = None) -> list[str]:
        """Return the names of what was changed, with this verb or with any."""
        return [each.name for each in self.applied if each.what == what and verb in (None, each.verb)]

    def to_event(self) -> FleetReloaded:
        """Return the event for the journal: names by kind and verb, at most `NAMES_MAX` and a count of the rest."""
        changes: dict[str, dict[str, Any]] = {}
        for each in self.applied:
            changes.setdefault(each.what, {}).setdefault(each.verb, []).append(each.name)
        for verbs in changes.values():
            for verb, names in list(verbs.items()):
                if len(names) > NAMES_MAX:
                    verbs[verb] = [*names[:NAMES_MAX], f"and {len(names) - NAMES_MAX} more"]
        return FleetReloaded(changes=changes)


class PendingChange(NamedTuple):
    """A change that is not applied yet, and the function that applies it."""

    change: FleetChange
    apply: Callable[[], object]


def _shorten(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"
