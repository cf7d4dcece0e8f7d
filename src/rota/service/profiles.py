"""Profiles: what a hint grants.

Code that starts work on a core can pass a hint about the kind of work. There are five hints:

    latency_sensitive   interactive work: short slices that come soon
    batch               long slices, when there is capacity
    driver              serves a device: short slices and a larger share
    poller              polls continuously: its CPU time is capped, and it suits a leased core
    agent               ordinary work

A hint grants nothing by itself, and neither does a priority, a deadline or a budget in a graph or a queue entry. The
profile table maps hints to a weight, a latency class or a context, and every mapping is recorded.

The table has an epoch. A reload begins the next one; decisions of older epochs no longer apply. A session, an account
or a service (a *subject*) can have a profile of its own, which replaces the one of the hint.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from rota.cores.accounts import LATENCY_CLASSES, LatencyClass
from rota.decoding import convert
from rota.errors import PolicyInvalid
from rota.model.budgets import CRITICALITIES, OVERRUN_POLICIES, Criticality, OverrunPolicy
from rota.model.checks import Checks
from rota.model.struct_reader import first_problem
from rota.model.work import WEIGHT_MAX, WEIGHT_UNIT

__all__ = ["DEFAULTS", "HINTS", "Hint", "Profile", "ProfileLimit", "ProfileTable"]

Hint = Literal["latency_sensitive", "batch", "driver", "poller", "agent"]
HINTS: tuple[Hint, ...] = ("latency_sensitive", "batch", "driver", "poller", "agent")
SUBJECTS_MAX = 100_000  # subjects with a profile of their own

_profile_checks = Checks("Profile", PolicyInvalid)
_table_checks = Checks("ProfileTable", PolicyInvalid)
_limit_checks = Checks("ProfileLimit", PolicyInvalid)
MS = 1_000_000
PPM = 1_000_000


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an entity gets: a weight, a slice length, and optionally a budget per period."""

    weight: int = WEIGHT_UNIT  # thousandths
    latency_class: LatencyClass = "normal"
    budget_ns: int | None = None  # None: no context of its own
    period_ns: int = 100 * MS
    criticality: Criticality = "normal"
    overrun: OverrunPolicy = "throttle"

    def __post_init__(self) -> None:
        _profile_checks.whole("weight", self.weight, 1, WEIGHT_MAX)
        _profile_checks.one_of("latency_class", self.latency_class, LATENCY_CLASSES)
        _profile_checks.one_of("criticality", self.criticality, CRITICALITIES)
        _profile_checks.whole("period_ns", self.period_ns, 1)
        if self.budget_ns is not None:
            _profile_checks.whole("budget_ns", self.budget_ns, 1, self.period_ns)

    def granted(self) -> dict[str, Any]:
        """The profile as plain data for an event."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if getattr(self, name) is not None}


class ProfileLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most and the least that a profile may grant; the operator sets it.

    A response can be well formed and still harm: weight 1 for a rival, a budget of a nanosecond, a kill at its end, a
    reservation of a whole core. Each field of a response is moved into these limits before it applies.
    """

    weight_min: int = WEIGHT_UNIT // 10  # thousandths
    weight_max: int = 10 * WEIGHT_UNIT
    criticality_min: Criticality = "normal"  # background would let an entity starve
    criticality_max: Criticality = "normal"  # above it, a profile reserves time
    budget_ppm_min: int = 10_000  # of the period: a hundredth
    budget_ppm_max: int = 900_000
    period_min_ns: int = MS  # each refill is work for the engine
    period_max_ns: int = 1_000 * MS  # the longest that an entity may wait for a refill
    overruns: tuple[OverrunPolicy, ...] = ("throttle", "demote", "notify")  # others become the first one

    def __post_init__(self) -> None:
        _limit_checks.whole("weight_min", self.weight_min, 1, WEIGHT_MAX)
        _limit_checks.whole("weight_max", self.weight_max, self.weight_min, WEIGHT_MAX)
        _limit_checks.one_of("criticality_min", self.criticality_min, CRITICALITIES)
        highest = CRITICALITIES[CRITICALITIES.index(self.criticality_min) :]
        _limit_checks.one_of("criticality_max", self.criticality_max, highest)
        _limit_checks.whole("budget_ppm_min", self.budget_ppm_min, 0, PPM)
        _limit_checks.whole("budget_ppm_max", self.budget_ppm_max, max(1, self.budget_ppm_min), PPM)
        _limit_checks.whole("period_min_ns", self.period_min_ns, 1)
        _limit_checks.whole("period_max_ns", self.period_max_ns, max(MS, self.period_min_ns))
        if not self.overruns:
            raise _limit_checks.refuse("overruns", "must name at least one overrun policy")
        for overrun in self.overruns:
            _limit_checks.one_of("overruns", overrun, OVERRUN_POLICIES)

    def clamp(self, profile: Profile) -> Profile:
        """Return the profile with every field moved into the limits."""
        lowest, highest = CRITICALITIES.index(self.criticality_min), CRITICALITIES.index(self.criticality_max)
        period_ns = min(max(profile.period_ns, self.period_min_ns), self.period_max_ns)
        budget_ns = profile.budget_ns
        if budget_ns is not None:
            low, high = (period_ns * ppm // PPM for ppm in (self.budget_ppm_min, self.budget_ppm_max))
            scaled = budget_ns * period_ns // profile.period_ns  # the same share of the period
            budget_ns = max(1, min(max(scaled, low), high))
        return Profile(
            weight=min(max(profile.weight, self.weight_min), self.weight_max),
            latency_class=profile.latency_class,
            budget_ns=budget_ns,
            period_ns=period_ns,
            criticality=CRITICALITIES[min(max(CRITICALITIES.index(profile.criticality), lowest), highest)],
            overrun=profile.overrun if profile.overrun in self.overruns else self.overruns[0],
        )


DEFAULTS: Mapping[Hint, Profile] = {
    "latency_sensitive": Profile(weight=2 * WEIGHT_UNIT, latency_class="sensitive"),
    "batch": Profile(weight=WEIGHT_UNIT // 2, latency_class="batch"),
    "driver": Profile(weight=4 * WEIGHT_UNIT, latency_class="sensitive"),
    "poller": Profile(budget_ns=50 * MS, overrun="throttle"),
    "agent": Profile(),
}


class ProfileTable(msgspec.Struct, frozen=True, kw_only=True):
    """Every profile in force, under one epoch."""

    epoch: int = 1
    by_hint: Mapping[Hint, Profile] = msgspec.field(default_factory=lambda: dict(DEFAULTS))
    by_subject: Mapping[str, Profile] = msgspec.field(default_factory=dict)  # session, account or service

    def __post_init__(self) -> None:
        _table_checks.whole("epoch", self.epoch, 1)
        for hint in self.by_hint:
            _table_checks.one_of("by_hint", hint, HINTS)
        _table_checks.whole("by_subject", len(self.by_subject), 0, SUBJECTS_MAX)
        missing = [hint for hint in HINTS if hint not in self.by_hint]
        if missing:
            raise _table_checks.refuse("by_hint", f"has no profile for {', '.join(missing)}")

    def find(self, hint: Hint, subject: str | None = None) -> Profile:
        """Return the profile of a subject, or else that of a hint."""
        if subject is not None and subject in self.by_subject:
            return self.by_subject[subject]
        return self.by_hint[_table_checks.one_of("hint", hint, HINTS)]  # type: ignore[index]  # checked just here

    def reload(self, changes: Mapping[str, Any]) -> ProfileTable:
        """Return the table of the next epoch with some profiles changed. An invalid change raises and changes nothing.

        Keys are hints, or `subject:` and a name; values are the fields of a profile, or None to remove a subject's own.
        """
        by_hint, by_subject = dict(self.by_hint), dict(self.by_subject)
        for key, fields in changes.items():
            subject = key.removeprefix("subject:")
            if subject == key:
                hint = _table_checks.one_of("changes", key, HINTS)
                by_hint[hint] = _read(key, fields)  # type: ignore[index]  # checked just above
            elif fields is None:
                by_subject.pop(subject, None)
            else:
                by_subject[_table_checks.text("changes", subject)] = _read(key, fields)
        return ProfileTable(epoch=self.epoch + 1, by_hint=by_hint, by_subject=by_subject)


def _read(key: str, fields: Any) -> Profile:
    try:
        return convert(fields, Profile)
    except msgspec.ValidationError as refusal:
        problem = first_problem(Profile, fields) or refusal
        raise _table_checks.refuse(f"changes[{key!r}]", f"is not a profile: {problem}") from refusal
