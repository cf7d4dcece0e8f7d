"""Admission: who may be promised how much of which core, and where it goes.

The engine says whether a promise can be kept. This says whether it should be made, and looks for a place:

    may it?     each owner has a limit on what it may be promised in all, and on how critical
    where?      a context that names several cores, or none, goes on the first where it fits, largest part first
    then        the engine checks again and takes it in, or refuses; both are recorded

First fit with the largest first is not the best packing there is, but it is a good one, quick, and the same
every time. A set that fits on no choice of first-fit places is refused, with the shortfall of every core that was
tried.

What ends by itself (a lease whose owner is gone, an island that failed closed) is heard from the engine's decisions:
whoever drives the engine passes them on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Literal

import msgspec

from rota.cores import CpuIsolationLease, Handle, IslandPlan, Machine, SchedulingContext
from rota.cores import events as said
from rota.cores.reservations import is_reserved
from rota.errors import ContextRefused, IslandRefused, LeaseRefused, PolicyInvalid, Refused
from rota.model.budgets import CRITICALITIES, Criticality
from rota.model.checks import Checks
from rota.model.events import CpuContextMoved, Fact, IslandMoved, LeaseMoved

__all__ = ["Admission", "OwnerLimit"]

PPM = 1_000_000

_checks = Checks("OwnerLimit", PolicyInvalid)


class OwnerLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one owner may be promised at most."""

    reserved_ppm: int = PPM  # of one core, over all its contexts; a million is one whole core
    criticality: Criticality = "high"
    leased_cores: int = 1

    def __post_init__(self) -> None:
        _checks.whole("reserved_ppm", self.reserved_ppm, 0)
        _checks.one_of("criticality", self.criticality, CRITICALITIES)
        _checks.whole("leased_cores", self.leased_cores, 0)


class _Held:
    """What one owner was promised: by context the context, by lease the lease."""

    def __init__(self) -> None:
        self.contexts: dict[int, SchedulingContext] = {}
        self.leases: dict[int, CpuIsolationLease] = {}


class Admission:
    """Decides about contexts, leases and islands for one engine, and records every decision."""

    def __init__(
        self,
        machine: Machine,
        record: Callable[[Fact], None],
        *,
        limits: dict[str, OwnerLimit] | None = None,
        default: OwnerLimit | None = None,
    ) -> None:
        self._machine = machine
        self._record = record
        self._limits = limits or {}
        self._default = default or OwnerLimit()
        self._held: dict[str, _Held] = {}  # by owner
        self._islands: dict[int, tuple[str, IslandPlan]] = {}  # by number, those that run: whose they are

    # --- contexts --------------------------------------------------------------------------------

    def admit(self, owner: str, context: SchedulingContext) -> Handle:
        """Find a place for a context and take it in; the answer is the first handle to it."""
        try:
            (placed,) = self._place(owner, (context,))
            handle = self._machine.admit(placed)
        except ContextRefused as refusal:
            self._moved(owner, context, "refuse", refusal.message)
            raise
        self._note(owner, (placed,))
        return handle

    def adjust(self, owner: str, handle: Handle, context_id: int, *, budget: int, period: int) -> None:
        """Give a context another budget and period from its next refill on, if its owner may have that."""
        wanted = msgspec.structs.replace(self._machine.context(context_id), budget=budget, period=period, refills=())
        try:
            self._allow(owner, (wanted,))
            self._machine.adjust(handle, budget=budget, period=period)
        except ContextRefused as refusal:
            self._moved(owner, wanted, "refuse", refusal.message)
            raise
        self._of(owner).contexts[context_id] = wanted
        self._moved(owner, wanted, "adjust", None)

    def revoke(self, owner: str, handle: Handle, context_id: int, now: int) -> Sequence[said.Decision]:
        """Take a context back; what was promised to its owner is free again."""
        decisions = self._machine.step(said.Revoke(handle), now)
        self._forget(owner, context_id)
        return decisions

    # --- leases ----------------------------------------------------------------------------------

    def lease(self, lease: CpuIsolationLease) -> tuple[Handle, Sequence[said.Decision]]:
        """Grant a lease, if its owner may have that many cores and the engine can show what it must."""
        try:
            self._allow_cores(lease.owner, (lease,))
            granted = self._machine.grant_lease(lease)
        except LeaseRefused as refusal:
            self._lease_moved(lease, "refuse", "refused", refusal.message)
            raise
        self._of(lease.owner).leases[lease.lease_id] = lease
        self._lease_moved(lease, "grant", "active", None)
        return granted

    # --- islands ---------------------------------------------------------------------------------

    def admit_island(self, owner: str, plan: IslandPlan) -> tuple[dict[int, Handle], Sequence[said.Decision]]:
        """Find a place for every context of an island, and take in all of it or nothing."""
        island_id = plan.island.island_id
        try:
            placed = self._place(owner, plan.contexts)
            self._allow_cores(owner, plan.leases)
            admitted = self._machine.admit_island(msgspec.structs.replace(plan, contexts=placed))
        except Refused as refusal:
            raise self._island_refused(plan, refusal) from refusal
        evidence = self._machine.island(island_id).evidence
        self._record(IslandMoved(island_id=island_id, verb="admit", state="admitted", evidence=evidence))
        self._islands[island_id] = owner, plan
        self._note(owner, placed)
        for lease in plan.leases:
            self._of(owner).leases[lease.lease_id] = lease
            self._lease_moved(lease, "grant", "active", None)
        return admitted

    def _island_refused(self, plan: IslandPlan, refusal: Refused) -> IslandRefused:
        evidence = refusal.data.get("evidence", {})
        self._record(IslandMoved(island_id=plan.island.island_id, verb="refuse", state="refused", evidence=evidence))
        if isinstance(refusal, IslandRefused):
            return refusal
        return IslandRefused(
            f"island {plan.island.name} does not fit: {refusal.message}",
            island_id=plan.island.island_id,
            missing=refusal.data.get("missing", []),
            evidence={},
        )

    # --- what the engine decided -----------------------------------------------------------------

    def heard(self, decisions: Iterable[said.Decision]) -> None:
        """Leases that ended and islands that moved: record it, and count as free what they held."""
        for decision in decisions:
            if isinstance(decision, said.LeaseEnded):
                self._lease_ended(decision.lease)
            elif isinstance(decision, said.IslandMoved):
                self._island_moved(decision)

    def _lease_ended(self, lease_id: int) -> None:
        for held in self._held.values():
            lease = held.leases.pop(lease_id, None)
            if lease is not None:
                self._lease_moved(lease, "release", "revoked", None)

    def _island_moved(self, moved: said.IslandMoved) -> None:
        verb = "overrun" if moved.state == "overrun" else "stop"
        evidence = self._machine.island(moved.island).evidence
        self._record(IslandMoved(island_id=moved.island, verb=verb, state=moved.state, evidence=evidence))
        if moved.state == "stopped" and moved.island in self._islands:
            owner, plan = self._islands.pop(moved.island)
            for context in plan.contexts:
                self._forget(owner, context.context_id)

    # --- inside ----------------------------------------------------------------------------------

    def _limit(self, owner: str) -> OwnerLimit:
        return self._limits.get(owner, self._default)

    def _of(self, owner: str) -> _Held:
        return self._held.setdefault(owner, _Held())

    def _place(self, owner: str, contexts: Sequence[SchedulingContext]) -> tuple[SchedulingContext, ...]:
        """The same contexts, each with the core it goes on; those that are only limits stay as they are."""
        self._allow(owner, contexts)
        placed: dict[int, SchedulingContext] = {}
        for context in sorted(filter(is_reserved, contexts), key=_largest_first):
            placed[context.context_id] = self._first_fit(context, list(placed.values()))
        return tuple(placed.get(context.context_id, context) for context in contexts)

    def _allow(self, owner: str, contexts: Sequence[SchedulingContext]) -> None:
        """Refuse what an owner may not be promised, whether there is room or not."""
        limit = self._limit(owner)
        for context in contexts:
            if CRITICALITIES.index(context.criticality) > CRITICALITIES.index(limit.criticality):
                raise ContextRefused(
                    f"{owner} may not be {context.criticality}; at most {limit.criticality}",
                    context_id=context.context_id,
                    missing=[],
                )
        asked = sum((_part(one) for one in contexts if is_reserved(one)), Fraction(0))
        new = {one.context_id for one in contexts}
        others = (one for number, one in self._of(owner).contexts.items() if number not in new and is_reserved(one))
        held = sum(map(_part, others), Fraction(0))
        if (held + asked) * PPM > limit.reserved_ppm:
            needed = f"{_ppm(asked):,} ppm asked, {_ppm(held):,} held, {limit.reserved_ppm:,} allowed"
            raise ContextRefused(f"{owner} would be promised too much: {needed}", missing=[needed])

    def _allow_cores(self, owner: str, leases: Sequence[CpuIsolationLease]) -> None:
        """Refuse more cores than an owner may lease."""
        limit, held = self._limit(owner).leased_cores, sum(len(one.cores) for one in self._of(owner).leases.values())
        asked = sum(len(one.cores) for one in leases)
        if held + asked > limit:
            raise LeaseRefused(
                f"{owner} may lease {limit} cores, holds {held} and asks for {asked}",
                proofs=[],
                lease_id=leases[0].lease_id,
            )

    def _first_fit(self, context: SchedulingContext, placed: list[SchedulingContext]) -> SchedulingContext:
        """The context on the first core it names where it fits beside what was placed before it."""
        missing: list[str] = []
        for core in range(self._machine.core_count):
            if context.core_mask and not context.core_mask >> core & 1:
                continue
            here = msgspec.structs.replace(context, core_mask=1 << core)
            shortages = self._machine.shortages([*placed, here])
            if not shortages:
                return here
            missing += [one.sentence() for one in shortages]
        raise ContextRefused(
            f"context {context.context_id} fits on no core it names: {'; '.join(missing[:4])}",
            context_id=context.context_id,
            missing=missing,
        )

    def _note(self, owner: str, contexts: Sequence[SchedulingContext]) -> None:
        for context in contexts:
            self._of(owner).contexts[context.context_id] = context
            self._moved(owner, context, "admit", None)

    def _forget(self, owner: str, context_id: int) -> None:
        context = self._of(owner).contexts.pop(context_id, None)
        if context is not None:
            self._moved(owner, context, "revoke", None)

    def _moved(
        self,
        owner: str,
        context: SchedulingContext,
        verb: Literal["admit", "refuse", "adjust", "revoke"],
        reason: str | None,
    ) -> None:
        self._record(
            CpuContextMoved(
                context_id=context.context_id,
                owner=owner,
                verb=verb,
                budget_ns=context.budget,
                period_ns=context.period,
                reason=reason,
            )
        )

    def _lease_moved(self, lease: CpuIsolationLease, verb: str, state: str, reason: str | None) -> None:
        self._record(LeaseMoved(lease_id=lease.lease_id, owner=lease.owner, verb=verb, state=state, reason=reason))


def _part(context: SchedulingContext) -> Fraction:
    return Fraction(context.budget, context.period)


def _largest_first(context: SchedulingContext) -> tuple[Fraction, int]:
    return -_part(context), context.context_id


def _ppm(part: Fraction) -> int:
    return -(-part.numerator * PPM // part.denominator)
