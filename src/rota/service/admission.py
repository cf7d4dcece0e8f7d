"""Admission for the cores engine: how much of which core an owner may reserve, and on which core.

The engine decides whether a reservation can be kept. Admission decides whether it is allowed, and finds a core:

    limits     each owner has a maximum of reserved time, of criticality and of leased cores
    placement  a context that names several cores, or none, goes to the first core where it fits, largest context first
    recording  the engine then checks again and admits or refuses; both outcomes are recorded

First fit with the largest first is not the best packing, but it is good, fast and deterministic. A set for which first
fit finds no cores is refused, with the shortage of every core that was tried.

Leases and islands can also end by themselves (the owner ended, an island failed). The driver of the engine passes its
decisions to `apply_decisions`, which updates the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Literal

import msgspec

from rota.cores import CoresEngine, CpuIsolationLease, Handle, IslandPlan, SchedulingContext, events
from rota.cores.reservations import is_reserved
from rota.errors import ContextRefused, IslandRefused, LeaseRefused, PolicyInvalid, Refused
from rota.model.budgets import CRITICALITIES, Criticality
from rota.model.checks import Checks
from rota.model.events import CpuContextChanged, EventData, IslandChanged, LeaseChanged

__all__ = ["UNLIMITED_PPM", "Admission", "OwnerLimit"]

PPM = 1_000_000
UNLIMITED_PPM = 1 << 62  # of an owner whose reservations only the engine limits

_checks = Checks("OwnerLimit", PolicyInvalid)


class OwnerLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The maximum that one owner may reserve."""

    reserved_ppm: int = PPM  # parts of one core, over all its contexts; a million is one whole core
    criticality: Criticality = "high"
    leased_cores: int = 1

    def __post_init__(self) -> None:
        _checks.whole("reserved_ppm", self.reserved_ppm, 0)
        _checks.one_of("criticality", self.criticality, CRITICALITIES)
        _checks.whole("leased_cores", self.leased_cores, 0)


class _Held:
    """What one owner holds: contexts and leases, by id."""

    def __init__(self) -> None:
        self.contexts: dict[int, SchedulingContext] = {}
        self.leases: dict[int, CpuIsolationLease] = {}


class Admission:
    """Decides about contexts, leases and islands for one engine, and records every decision."""

    def __init__(
        self,
        engine: CoresEngine,
        record: Callable[[EventData], None],
        *,
        limits: dict[str, OwnerLimit] | None = None,
        default: OwnerLimit | None = None,
    ) -> None:
        self._engine = engine
        self._record = record
        self._limits = limits or {}
        self._default = default or OwnerLimit()
        self._held: dict[str, _Held] = {}  # by owner
        self._islands: dict[int, tuple[str, IslandPlan]] = {}  # by id, running islands: their owner and plan

    # --- contexts --------------------------------------------------------------------------------

    def admit(self, owner: str, context: SchedulingContext) -> Handle:
        """Find a core for a context and admit it; return the first handle to it."""
        try:
            (placed,) = self._place(owner, (context,))
            handle = self._engine.admit(placed)
        except ContextRefused as refusal:
            self._record_context(owner, context, "refuse", refusal.message)
            raise
        self._add_contexts(owner, (placed,))
        return handle

    def adjust(self, owner: str, handle: Handle, context_id: int, *, budget: int, period: int) -> None:
        """Change the budget and period of a context from its next refill on, if the owner's limit allows it."""
        wanted = msgspec.structs.replace(self._engine.context(context_id), budget=budget, period=period, refills=())
        try:
            self._check_limit(owner, (wanted,))
            self._engine.adjust(handle, budget=budget, period=period)
        except ContextRefused as refusal:
            self._record_context(owner, wanted, "refuse", refusal.message)
            raise
        self._held_by(owner).contexts[context_id] = wanted
        self._record_context(owner, wanted, "adjust", None)

    def revoke(self, owner: str, handle: Handle, context_id: int, now: int) -> Sequence[events.Decision]:
        """Revoke a context; its reservation no longer counts for the owner."""
        decisions = self._engine.step(events.Revoke(handle), now)
        self._forget(owner, context_id)
        return decisions

    # --- leases ----------------------------------------------------------------------------------

    def lease(self, lease: CpuIsolationLease) -> tuple[Handle, Sequence[events.Decision]]:
        """Grant a lease, if the owner's limit and the engine's checks allow it."""
        try:
            self._check_cores(lease.owner, (lease,))
            granted = self._engine.grant_lease(lease)
        except LeaseRefused as refusal:
            self._record_lease(lease, "refuse", "refused", refusal.message)
            raise
        self._held_by(lease.owner).leases[lease.lease_id] = lease
        self._record_lease(lease, "grant", "active", None)
        return granted

    # --- islands ---------------------------------------------------------------------------------

    def admit_island(self, owner: str, plan: IslandPlan) -> tuple[dict[int, Handle], Sequence[events.Decision]]:
        """Find a core for every context of an island, and admit all of it or nothing."""
        island_id = plan.island.island_id
        try:
            placed = self._place(owner, plan.contexts)
            self._check_cores(owner, plan.leases)
            admitted = self._engine.admit_island(msgspec.structs.replace(plan, contexts=placed))
        except Refused as refusal:
            raise self._island_refused(plan, refusal) from None
        evidence = self._engine.island(island_id).evidence
        self._record(IslandChanged(island_id=island_id, verb="admit", state="admitted", evidence=evidence))
        self._islands[island_id] = owner, plan
        self._add_contexts(owner, placed)
        for lease in plan.leases:
            self._held_by(owner).leases[lease.lease_id] = lease
            self._record_lease(lease, "grant", "active", None)
        return admitted

    def _island_refused(self, plan: IslandPlan, refusal: Refused) -> IslandRefused:
        evidence = refusal.data.get("evidence", {})
        self._record(IslandChanged(island_id=plan.island.island_id, verb="refuse", state="refused", evidence=evidence))
        if isinstance(refusal, IslandRefused):
            return refusal
        other = [one.sentence() for one in self._engine.resource_shortages(plan)]
        return IslandRefused(
            f"island {plan.island.name} does not fit: {'; '.join([*other, refusal.message])}",
            hint="Nothing was admitted. Request less, or free the resources named above.",
            island_id=plan.island.island_id,
            missing=[*other, *(refusal.data.get("missing") or [refusal.message])],
            evidence={},
        )

    # --- decisions of the engine ----------------------------------------------------------------

    def apply_decisions(self, decisions: Iterable[events.Decision]) -> None:
        """Record leases that ended and islands that changed state, and free what they held."""
        for decision in decisions:
            if isinstance(decision, events.LeaseEnded):
                self._lease_ended(decision.lease)
            elif isinstance(decision, events.IslandStateChanged):
                self._island_moved(decision)

    def _lease_ended(self, lease_id: int) -> None:
        for held in self._held.values():
            lease = held.leases.pop(lease_id, None)
            if lease is not None:
                self._record_lease(lease, "release", "revoked", None)

    def _island_moved(self, moved: events.IslandStateChanged) -> None:
        verb = "overrun" if moved.state == "overrun" else "stop"
        evidence = self._engine.island(moved.island).evidence
        self._record(IslandChanged(island_id=moved.island, verb=verb, state=moved.state, evidence=evidence))
        if moved.state == "stopped" and moved.island in self._islands:
            owner, plan = self._islands.pop(moved.island)
            for context in plan.contexts:
                self._forget(owner, context.context_id)

    # --- internals -------------------------------------------------------------------------------

    def _limit(self, owner: str) -> OwnerLimit:
        return self._limits.get(owner, self._default)

    def _held_by(self, owner: str) -> _Held:
        return self._held.setdefault(owner, _Held())

    def _place(self, owner: str, contexts: Sequence[SchedulingContext]) -> tuple[SchedulingContext, ...]:
        """Return the contexts, each with its core; contexts that are only limits stay unchanged."""
        self._check_limit(owner, contexts)
        placed: dict[int, SchedulingContext] = {}
        for context in sorted(filter(is_reserved, contexts), key=_largest_first):
            placed[context.context_id] = self._first_fit(context, list(placed.values()))
        return tuple(placed.get(context.context_id, context) for context in contexts)

    def _check_limit(self, owner: str, contexts: Sequence[SchedulingContext]) -> None:
        """Raise if the contexts exceed the owner's limit."""
        limit = self._limit(owner)
        for context in contexts:
            if CRITICALITIES.index(context.criticality) > CRITICALITIES.index(limit.criticality):
                raise ContextRefused(
                    f"{owner} may not be {context.criticality}; the maximum is {limit.criticality}",
                    context_id=context.context_id,
                    missing=[],
                )
        asked = sum((_utilisation(one) for one in contexts if is_reserved(one)), Fraction(0))
        new = {one.context_id for one in contexts}
        others = (
            one for number, one in self._held_by(owner).contexts.items() if number not in new and is_reserved(one)
        )
        held = sum(map(_utilisation, others), Fraction(0))
        if (held + asked) * PPM > limit.reserved_ppm:
            needed = f"{_ppm(asked):,} ppm asked, {_ppm(held):,} held, {limit.reserved_ppm:,} allowed"
            raise ContextRefused(f"{owner} would reserve too much: {needed}", missing=[needed])

    def _check_cores(self, owner: str, leases: Sequence[CpuIsolationLease]) -> None:
        """Raise if the leases exceed the owner's limit."""
        limit, held = (
            self._limit(owner).leased_cores,
            sum(len(one.cores) for one in self._held_by(owner).leases.values()),
        )
        asked = sum(len(one.cores) for one in leases)
        if held + asked > limit:
            raise LeaseRefused(
                f"{owner} may lease {limit} cores, holds {held} and requests {asked}",
                proofs=[],
                lease_id=leases[0].lease_id,
            )

    def _first_fit(self, context: SchedulingContext, placed: list[SchedulingContext]) -> SchedulingContext:
        """Return the context on the first core of its mask where it fits beside the contexts placed before it."""
        missing: list[str] = []
        for core in range(self._engine.core_count):
            if context.core_mask and not context.core_mask >> core & 1:
                continue
            here = msgspec.structs.replace(context, core_mask=1 << core)
            shortages = self._engine.shortages([*placed, here])
            if not shortages:
                return here
            missing += [one.sentence() for one in shortages]
        raise ContextRefused(
            f"context {context.bound_id or context.context_id} fits on no allowed core: {'; '.join(missing[:4])}",
            context_id=context.context_id,
            missing=missing,
        )

    def _add_contexts(self, owner: str, contexts: Sequence[SchedulingContext]) -> None:
        for context in contexts:
            self._held_by(owner).contexts[context.context_id] = context
            self._record_context(owner, context, "admit", None)

    def _forget(self, owner: str, context_id: int) -> None:
        context = self._held_by(owner).contexts.pop(context_id, None)
        if context is not None:
            self._record_context(owner, context, "revoke", None)

    def _record_context(
        self,
        owner: str,
        context: SchedulingContext,
        verb: Literal["admit", "refuse", "adjust", "revoke"],
        reason: str | None,
    ) -> None:
        self._record(
            CpuContextChanged(
                context_id=context.context_id,
                owner=owner,
                verb=verb,
                budget_ns=context.budget,
                period_ns=context.period,
                reason=reason,
            )
        )

    def _record_lease(self, lease: CpuIsolationLease, verb: str, state: str, reason: str | None) -> None:
        self._record(LeaseChanged(lease_id=lease.lease_id, owner=lease.owner, verb=verb, state=state, reason=reason))


def _utilisation(context: SchedulingContext) -> Fraction:
    return Fraction(context.budget, context.period)


def _largest_first(context: SchedulingContext) -> tuple[Fraction, int]:
    return -_utilisation(context), context.context_id


def _ppm(part: Fraction) -> int:
    return -(-part.numerator * PPM // part.denominator)
