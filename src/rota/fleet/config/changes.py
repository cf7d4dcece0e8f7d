"""What a fleet file changes in a store: a typed difference, for people and for the journal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from rota.model.events import FleetReloaded

__all__ = ["NAMES_MAX", "Change", "Changes"]

SHOWN_CHARS_MAX = 80  # of a value
NAMES_MAX = 100  # of one kind of change, in the journal
What = Literal["scheduling", "project", "budget", "workspace", "limit", "agent", "grant"]
Verb = Literal["created", "changed", "removed", "paused", "resumed", "postponed"]


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One difference between the file and the store."""

    what: What
    name: str
    verb: Verb
    fields: dict[str, list[Any]] = {}  # what it was, what it is now
    note: str | None = None

    def __str__(self) -> str:
        parts = [f"{field} {_shown(old)} → {_shown(new)}" for field, (old, new) in self.fields.items()]
        told = [", ".join(parts)] if parts else []
        return ": ".join([f"{self.what} {self.name} {self.verb}", *told, *([self.note] if self.note else [])])


class Changes(msgspec.Struct, frozen=True):
    """All differences, in the order in which they were made."""

    made: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.made)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.made)

    def of(self, what: What, verb: Verb | None = None) -> list[str]:
        """The names of what was changed so."""
        return [each.name for each in self.made if each.what == what and verb in (None, each.verb)]

    def fact(self) -> FleetReloaded:
        """The differences as the journal keeps them: names by kind and verb, and how many where there are many."""
        told: dict[str, dict[str, Any]] = {}
        for each in self.made:
            told.setdefault(each.what, {}).setdefault(each.verb, []).append(each.name)
        for verbs in told.values():
            for verb, names in list(verbs.items()):
                if len(names) > NAMES_MAX:
                    verbs[verb] = [*names[:NAMES_MAX], f"and {len(names) - NAMES_MAX} more"]
        return FleetReloaded(changes=told)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "…"
