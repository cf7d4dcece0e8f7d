"""Profiles: what a hint is worth.

Whoever starts work on a core may say what kind of work it is. There are five hints:

    latency_sensitive   answers somebody who waits: short turns that come soon
    batch               long turns, whenever there is room
    driver              serves a device: short turns and a larger share
    poller              looks again and again: a cap on what it may burn, and fit for a leased core
    agent               plain work, as most of it is

A hint grants nothing by itself, and neither does a priority, a deadline or a budget that a graph or a queue
entry carries: they are wishes until this book maps them to a weight, a latency class or a context, and every
such mapping is recorded.

The book has an epoch. Reading it anew makes the next one; whatever was decided under an older epoch means
nothing any more. A session, an account or a service may have a profile of its own, which then counts instead of
the one for the hint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from rota.cores.accounts import LATENCY_CLASSES, LatencyClass
from rota.errors import ContextInvalid, PolicyInvalid
from rota.model.budgets import CRITICALITIES, Criticality, OverrunPolicy
from rota.model.checks import Checks
from rota.model.work import WEIGHT_MAX, WEIGHT_UNIT

__all__ = ["DEFAULTS", "HINTS", "Hint", "Profile", "ProfileBook"]

Hint = Literal["latency_sensitive", "batch", "driver", "poller", "agent"]
HINTS: tuple[Hint, ...] = ("latency_sensitive", "batch", "driver", "poller", "agent")
SUBJECTS_MAX = 100_000  # with a profile of their own

_profile = Checks("Profile", PolicyInvalid)
_book = Checks("ProfileBook", PolicyInvalid)
MS = 1_000_000


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody is given: a share, the length of its turns, and perhaps a budget per period."""

    weight: int = WEIGHT_UNIT  # thousandths
    latency_class: LatencyClass = "normal"
    budget_ns: int | None = None  # None: no context of its own
    period_ns: int = 100 * MS
    criticality: Criticality = "normal"
    overrun: OverrunPolicy = "throttle"

    def __post_init__(self) -> None:
        _profile.whole("weight", self.weight, 1, WEIGHT_MAX)
        _profile.one_of("latency_class", self.latency_class, LATENCY_CLASSES)
        _profile.one_of("criticality", self.criticality, CRITICALITIES)
        _profile.whole("period_ns", self.period_ns, 1)
        if self.budget_ns is not None:
            _profile.whole("budget_ns", self.budget_ns, 1, self.period_ns)

    def granted(self) -> dict[str, Any]:
        """The same as facts for the record."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not None}


DEFAULTS: Mapping[Hint, Profile] = {
    "latency_sensitive": Profile(weight=2 * WEIGHT_UNIT, latency_class="sensitive"),
    "batch": Profile(weight=WEIGHT_UNIT // 2, latency_class="batch"),
    "driver": Profile(weight=4 * WEIGHT_UNIT, latency_class="sensitive"),
    "poller": Profile(budget_ns=50 * MS, overrun="throttle"),
    "agent": Profile(),
}


class ProfileBook(msgspec.Struct, frozen=True, kw_only=True):
    """Every profile in force, under one epoch number."""

    epoch: int = 1
    by_hint: Mapping[Hint, Profile] = msgspec.field(default_factory=lambda: dict(DEFAULTS))
    by_subject: Mapping[str, Profile] = msgspec.field(default_factory=dict)  # session, account or service

    def __post_init__(self) -> None:
        _book.whole("epoch", self.epoch, 1)
        for hint in self.by_hint:
            _book.one_of("by_hint", hint, HINTS)
        _book.whole("by_subject", len(self.by_subject), 0, SUBJECTS_MAX)
        missing = [hint for hint in HINTS if hint not in self.by_hint]
        if missing:
            raise _book.refuse("by_hint", f"says nothing about {', '.join(missing)}")

    def find(self, hint: Hint, subject: str | None = None) -> Profile:
        """What a hint of somebody is worth."""
        if subject is not None and subject in self.by_subject:
            return self.by_subject[subject]
        return self.by_hint[_book.one_of("hint", hint, HINTS)]  # type: ignore[index]  # checked just here

    def reload(self, changes: Mapping[str, Any]) -> ProfileBook:
        """The next epoch's book: this one with some profiles changed. A bad change changes nothing.

        Keys are hints, or `subject:` and a name; values are the fields of a profile, or None to drop a subject's own.
        """
        by_hint, by_subject = dict(self.by_hint), dict(self.by_subject)
        for key, fields in changes.items():
            subject = key.removeprefix("subject:")
            if subject == key:
                hint = _book.one_of("changes", key, HINTS)
                by_hint[hint] = _read(key, fields)  # type: ignore[index]  # checked just above
            elif fields is None:
                by_subject.pop(subject, None)
            else:
                by_subject[_book.text("changes", subject)] = _read(key, fields)
        return ProfileBook(epoch=self.epoch + 1, by_hint=by_hint, by_subject=by_subject)


def _read(key: str, fields: Any) -> Profile:
    try:
        return msgspec.convert(fields, Profile)
    except msgspec.ValidationError as problem:
        raise _book.refuse(f"changes[{key!r}]", f"is no profile: {problem}") from problem
    except ContextInvalid as problem:
        raise _book.refuse(f"changes[{key!r}]", f"is no profile: {problem.message}") from problem
