"""Scheduling contexts: CPU time as authority, and which context pays.

A context is an admitted budget per period. Exactly one payer is charged for every nanosecond that an entity runs, the
first of these that exists:

    the context donated with the call it answers         (a caller pays for the work it requested)
    its own context
    its group's context                                  (a project pays for members without a context)
    best effort                                          (no context; not allowed if the entity *needs* one)

The donated context is the one bound to the call path of the callee, if any; else that of the first caller in the chain
that has one.

When a context is depleted while its entity could continue, its timeout endpoint gets one notice. Further depletions
are counted until the notice is acknowledged, and then sent as one notice. The overrun policy decides what happens to
the entity:

    throttle   it waits for the refill
    demote     it continues in the background, on the next payer in the list, until the refill
    notify     it continues in the normal band, on the next payer in the list, until the refill
    kill       it ends

The band of the paying context decides the queue: background runs when the core has nothing else to run, normal shares
by weight (the budget is a cap), high and critical run first by deadline (the budget is a reservation that admission has
checked).

Worked example: A (20 ms per 100 ms, throttle) calls B, which has no context. B runs on A's budget. After 20 ms A's
endpoint is notified that its context ran out while B ran, and B waits. At the refill B continues; its reply returns the
context to A. If B had called C, C would have run on A's budget too.

This module keeps the bindings, donations and throttled entities; `core_scheduler` moves entities between queues.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import msgspec

from rota.cores.events import Decision, PostTimeout
from rota.cores.handles import HandleTable, Right
from rota.cores.heaps import Timers
from rota.cores.records import BACKGROUND, NORMAL, ContextRecord, DeadlineMisses, Entity, GroupRecord, needs_context
from rota.cores.telemetry import Counters
from rota.errors import ContextExists, ContextInvalid, ContextUnknown
from rota.model.budgets import Handle, Refill, SchedulingContext
from rota.model.checks import Checks
from rota.model.lifecycle import CONTEXT, ContextState, EntityState, advance
from rota.policy.replenishment import available, debt, full

__all__ = ["CONTEXTS_MAX", "SchedulingContexts"]

CONTEXTS_MAX = 1_000_000
MISSES_KEPT = 64  # the latest misses of one context

_checks = Checks("SchedulingContext", ContextInvalid)


class SchedulingContexts:
    """Every context of one engine and the handles to them."""

    def __init__(self, counters: Counters, timers: Timers[Hashable]) -> None:
        self._counters = counters
        self._timers = timers
        self._handles: HandleTable[ContextRecord] = HandleTable("context")
        self._by_id: dict[int, ContextRecord] = {}
        self._paths: dict[int, ContextRecord] = {}  # by callee: pays for calls to it instead of the caller's context
        self._groups: dict[int, list[GroupRecord]] = {}  # by context: the groups it is bound to
        self.revoked_ns = 0  # time used by contexts that were revoked
        self.unpaid: dict[int, Entity] = {}  # runnable entities that need a context and have none

    # --- life ------------------------------------------------------------------------------------

    def admit(self, spec: SchedulingContext, now: int) -> Handle:
        """Add an admitted context with a full budget and return the first handle to it."""
        if spec.unit != "ns":
            raise _checks.refuse("unit", f"must be ns for a context on cores, not {spec.unit}")
        if spec.context_id in self._by_id:
            raise ContextExists(f"context {spec.context_id} already exists", context_id=spec.context_id)
        _checks.whole("count", len(self._by_id) + 1, 1, CONTEXTS_MAX)
        context = ContextRecord(spec, full(spec.budget, spec.period, now), now)
        if context.band > NORMAL:
            context.misses = DeadlineMisses(MISSES_KEPT)
        context.handle = self._handles.issue(context)
        self._by_id[spec.context_id] = context
        return context.handle

    def attenuate(self, handle: Handle, rights: frozenset[Right]) -> Handle:
        """Return a handle to the same context with fewer rights."""
        return self._handles.attenuate(handle, rights)

    def resolve(self, handle: Handle, right: Right = "use") -> ContextRecord:
        """Return the context behind a handle."""
        return self._handles.resolve(handle, right)

    def get(self, context_id: int) -> ContextRecord:
        """Return the context with this id, unless it is revoked."""
        context = self._by_id.get(context_id)
        if context is None:
            raise ContextUnknown(f"context {context_id} does not exist", context_id=context_id)
        return context

    def exists(self, context_id: int) -> bool:
        """Whether a context with this id exists."""
        return context_id in self._by_id

    def __iter__(self) -> Iterator[ContextRecord]:
        return iter(self._by_id.values())

    def adjust(self, handle: Handle, budget: int, period: int, now: int) -> None:
        """Change the budget and period of a context from its next refill on."""
        context = self.resolve(handle, "adjust")
        _checks.whole("budget", budget, 1, period)
        context.adjust(budget, period, now)
        if context.next_refill_at is not None:
            self._timers.set(context, context.next_refill_at)

    def revoke(self, handle: Handle) -> ContextRecord:
        """Revoke a context: every handle becomes stale and no binding pays any more."""
        context = self.resolve(handle, "revoke")
        context.state = ContextState(advance(CONTEXT, context.state, "revoke", context.context_id))
        context.is_started = True  # nothing waits for its island to start any more
        self._handles.revoke(context.handle)
        self._timers.cancel(context)
        del self._by_id[context.context_id]
        for group in self._groups.pop(context.context_id, ()):
            group.context = None
        context.skipped_by.clear()
        self.revoked_ns += context.used
        context.close()  # nothing is granted any more, also to entities that have not chosen another payer yet
        return context

    # --- binding ---------------------------------------------------------------------------------

    def bind(self, handle: Handle, entity: Entity) -> None:
        """Make a context an entity's own, replacing the previous one."""
        context = self.resolve(handle)
        self.unbind(entity)
        context.bound_entities[entity.key] = entity
        entity.details.context = context
        entity.details.needs_context = entity.details.needs_context or context.is_required
        self._activate(context)

    def bind_group(self, handle: Handle, group: GroupRecord) -> None:
        """Let a context pay for the members of a group that have none of their own."""
        context = self.resolve(handle)
        self.unbind_group(group)
        group.context = context
        self._groups.setdefault(context.context_id, []).append(group)
        for entity in group.members.values():
            entity.details.needs_context = entity.details.needs_context or context.is_required
        self._activate(context)

    def bind_path(self, handle: Handle, callee: Entity) -> None:
        """Let a context pay for every call to an entity, instead of the caller's context."""
        context = self.resolve(handle)
        self._paths[callee.key] = context
        self._activate(context)

    def entities_of(self, context: ContextRecord) -> list[Entity]:
        """The entities bound to a context, themselves or by their group."""
        groups = self._groups.get(context.context_id, ())
        members = {entity.key: entity for group in groups for entity in group.members.values()}
        return list((context.bound_entities | members).values())

    def unbind(self, entity: Entity) -> None:
        """Remove an entity's own context."""
        if entity.details.context is not None:
            del entity.details.context.bound_entities[entity.key]
            entity.details.context = None

    def unbind_group(self, group: GroupRecord) -> None:
        """Remove a group's context."""
        if group.context is not None:
            self._groups[group.context.context_id].remove(group)
            group.context = None

    def forget(self, entity: Entity) -> None:
        """Remove an entity that has ended."""
        self.release(entity)
        self._clear_skipped(entity)
        self._set_payer(entity, None)
        self.unbind(entity)
        self._paths.pop(entity.key, None)

    def _activate(self, context: ContextRecord) -> None:
        if context.state is ContextState.ADMITTED:
            context.state = ContextState(advance(CONTEXT, context.state, "bind", context.context_id))

    # --- payers ----------------------------------------------------------------------------------

    def choose_payer(self, entity: Entity) -> None:
        """Choose the payer of an entity's share from now on, and with it the band and the allowed cores."""
        self._clear_skipped(entity)
        payer, skipped = self._find_payer(entity)
        for context in skipped:
            context.skipped_by[entity.key] = entity
        entity.details.skipped_contexts.extend(skipped)
        self._set_payer(entity, payer)
        demoted = any(context.overrun == "demote" for context in skipped)
        entity.band = BACKGROUND if demoted else NORMAL if payer is None else payer.band
        self._update_allowed(entity)
        urged_by = entity.details.urged_by
        if urged_by is not None and urged_by.payer is not None:
            # only there has the one that waits reserved time; a share that waits itself is on no core
            reserved = entity.details.allowed & urged_by.payer.core_mask
            if reserved or entity.details.delegate.state is EntityState.CALLING:
                entity.band = max(entity.band, urged_by.payer.band)
                entity.details.allowed = reserved or entity.details.allowed

    def keeps_payer(self, entity: Entity) -> bool:
        """Whether the same payer applies to a share with its current delegate; if so, update the allowed cores."""
        payer, skipped = self._find_payer(entity)
        if payer is not entity.payer or skipped != entity.details.skipped_contexts or entity.details.payer_changed:
            return False
        self._update_allowed(entity)
        return payer is not None or not needs_context(entity)

    def _find_payer(self, entity: Entity) -> tuple[ContextRecord | None, list[ContextRecord]]:
        """Return the payer of a share, and the depleted contexts before it that let the entity continue."""
        skipped: list[ContextRecord] = []
        for context in self._candidate_payers(entity):
            if context.state is not ContextState.DEPLETED or context.overrun not in ("demote", "notify"):
                return context, skipped
            skipped.append(context)
        return None, skipped

    @staticmethod
    def _update_allowed(entity: Entity) -> None:
        payer = entity.payer
        mask = payer.core_mask if payer is not None and payer.core_mask else -1
        entity.details.allowed = entity.details.delegate.details.core_mask & mask

    @staticmethod
    def _clear_skipped(entity: Entity) -> None:
        for context in entity.details.skipped_contexts:
            context.skipped_by.pop(entity.key, None)
        entity.details.skipped_contexts.clear()

    @staticmethod
    def _set_payer(entity: Entity, payer: ContextRecord | None) -> None:
        before = entity.payer
        if before is payer:
            return
        if before is not None:
            del before.payees[entity.key]
            _update_sharing(before)
        entity.payer = payer
        if payer is not None:
            payer.payees[entity.key] = entity
            _update_sharing(payer)

    def _candidate_payers(self, entity: Entity) -> Iterator[ContextRecord]:
        """The contexts that could pay for a share, first choice first: the call path's, then along the call chain."""
        delegate, current = entity.details.delegate, entity
        candidates = [self._paths.get(delegate.key)] if delegate is not entity else []
        while True:
            group = current.details.group
            candidates += [current.details.context, None if group is None else group.context]
            if current is delegate or current.details.awaiting is None:
                break
            current = current.details.awaiting.callee
        for context in candidates:
            if context is not None and not context.is_started:
                return  # the island was admitted and not started: no other context pays in its place
            if context is not None and context.state is not ContextState.REVOKED:
                yield context

    # --- depletion and refill ----------------------------------------------------------------------

    def has_budget(self, context: ContextRecord, now: int) -> bool:
        """Whether a context has budget left to grant."""
        context.refill(now)
        return context.room > 0

    def deplete(
        self, context: ContextRecord, entity: Entity, now: int, out: list[Decision], *, was_running: bool
    ) -> None:
        """A context has no budget for an entity that could continue: post a notice and set a timer for the refill."""
        if context.state is ContextState.ACTIVE and not context.granted:
            context.state = ContextState(advance(CONTEXT, context.state, "deplete", context.context_id))
            self._counters.depletions += 1
            self._notify(context, entity, out)
        refill_at = context.next_refill_at
        if refill_at is not None:
            self._timers.set(context, max(refill_at, now))
        if was_running and context.island is not None:
            context.has_overrun = True
            self._timers.set(context.island, now)

    def acknowledge(self, handle: Handle, out: list[Decision]) -> None:
        """The endpoint processed the notice; depletions counted since then are posted as one notice."""
        context = self.resolve(handle)
        merged, context.pending_notices = context.pending_notices - 1, 0
        if merged > 0 and context.timeout_endpoint is not None:
            context.pending_notices = 1
            self._counters.timeouts += 1
            out.append(PostTimeout(context.timeout_endpoint, context.context_id, context.depleted_by, merged))

    def replenish(self, context: ContextRecord, now: int) -> bool:
        """Apply due refills; return whether there is budget to grant now."""
        if not self.has_budget(context, now):
            refill_at = context.next_refill_at
            if refill_at is not None:
                self._timers.set(context, refill_at)
            return False
        if context.state is ContextState.DEPLETED:
            context.state = ContextState(advance(CONTEXT, context.state, "replenish", context.context_id))
        return True

    def _notify(self, context: ContextRecord, entity: Entity, out: list[Decision]) -> None:
        """Post one notice; until it is acknowledged, count further ones."""
        if context.timeout_endpoint is None:
            return
        context.pending_notices += 1
        context.depleted_by = entity.key
        if context.pending_notices > 1:
            self._counters.timeouts_merged += 1
            return
        self._counters.timeouts += 1
        out.append(PostTimeout(context.timeout_endpoint, context.context_id, entity.key, 1))

    def release(self, entity: Entity) -> None:
        """An entity no longer waits for budget."""
        self.unpaid.pop(entity.key, None)
        if entity.payer is not None:
            entity.payer.throttled.pop(entity.key, None)

    # --- reading ---------------------------------------------------------------------------------

    def view(self, context: ContextRecord, now: int) -> SchedulingContext:
        """The current state of a context, for readers outside the engine."""
        allowance = context.allowance()
        pending = tuple(Refill(at, amount) for at, amount in allowance.refills if at > now)
        return msgspec.structs.replace(
            context.spec,
            budget=context.budget,
            period=context.period,
            remaining=available(allowance, now) - debt(allowance, now),
            refills=pending,
            state=str(context.state),
            generation=context.handle.generation,
        )


def _update_sharing(context: ContextRecord) -> None:
    """Count granted time only while several entities draw on a context; a single one needs no count."""
    is_shared = len(context.payees) > 1
    if is_shared != context.is_shared:
        context.is_shared = is_shared
        running = (one for one in context.payees.values() if one.core.current is one)
        context.granted = sum(one.granted_ns for one in running) if is_shared else 0
