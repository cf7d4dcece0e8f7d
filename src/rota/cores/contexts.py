"""Scheduling contexts: CPU time as authority, and who pays.

A context is a budget per period that was admitted. Exactly one authority pays for every nanosecond that an entity
runs, the first of these that there is:

    what was lent to it with the call it answers         (a caller pays for the work it asked for)
    its own context
    its group's context                                  (a project pays for those who have none of their own)
    best effort                                          (nobody's budget; unless the entity *needs* a context)

What is lent is the context of the call path, if one was bound to the callee, else whatever the first caller of the
chain has, else what the second has, and so on.

When a context runs out under an entity that would go on, its timeout endpoint is told, once until the notice is
acknowledged (what happens meanwhile is counted, and told as one notice then), and its overrun policy says what
becomes of the entity:

    throttle   it waits for the refill
    demote     it goes on in the background, on the next authority in the list, until the refill
    notify     it goes on in the normal band, on the next authority in the list, until the refill
    kill       it ends

The band of the paying context decides where the entity stands: background runs when nobody else wants the core,
normal shares by weight (the budget is a cap), high and critical go first by deadline (the budget is a
reservation, and admission has made sure that there is room).

Worked example: A (20 ms per 100 ms, throttle) calls B, which has no context. B runs on A's budget. After 20 ms A's
endpoint is told that its context ran out under B, and B waits. At the refill B goes on; its reply gives the context
back to A. Had B itself called C, C would have run on A's budget too.

Who is bound, lent to or throttled is kept here; moving entities between queues is the business of `cores`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import msgspec

from rota.cores.events import Decision, PostTimeout
from rota.cores.evidence import Evidence
from rota.cores.handles import HandleTable, Right
from rota.cores.records import BACKGROUND, NORMAL, Context, Entity, Group, Misses, needs_context
from rota.cores.timers import Timers
from rota.errors import ContextExists, ContextInvalid, ContextUnknown
from rota.model.budgets import Handle, Refill, SchedulingContext
from rota.model.checks import Checks
from rota.model.lifecycle import CONTEXT, ContextState, advance
from rota.policy.replenishment import available, debt, full

__all__ = ["CONTEXTS_MAX", "Contexts"]

CONTEXTS_MAX = 1_000_000
MISSES_KEPT = 64  # the latest, of one context

_checks = Checks("SchedulingContext", ContextInvalid)


class Contexts:
    """Every context of one engine, and the handles to them."""

    def __init__(self, evidence: Evidence, timers: Timers[Hashable]) -> None:
        self._evidence = evidence
        self._timers = timers
        self._handles: HandleTable[Context] = HandleTable("context")
        self._by_id: dict[int, Context] = {}
        self._paths: dict[int, Context] = {}  # by callee: pays for calls to it instead of the caller's
        self._groups: dict[int, list[Group]] = {}  # by context: the groups it pays for
        self.revoked_ns = 0  # used of contexts that were taken back
        self.unpaid: dict[int, Entity] = {}  # would run, need a context and have none

    # --- life ------------------------------------------------------------------------------------

    def admit(self, spec: SchedulingContext, now: int) -> Handle:
        """Take in a context that was admitted, full, and give the first handle to it."""
        if spec.unit != "ns":
            raise _checks.refuse("unit", f"must be ns on a core, not {spec.unit}")
        if spec.context_id in self._by_id:
            raise ContextExists(f"there is a context {spec.context_id} already", context_id=spec.context_id)
        _checks.whole("count", len(self._by_id) + 1, 1, CONTEXTS_MAX)
        context = Context(spec, full(spec.budget, spec.period, now), now)
        if context.band > NORMAL:
            context.misses = Misses(MISSES_KEPT)
        context.handle = self._handles.give(context)
        self._by_id[spec.context_id] = context
        return context.handle

    def attenuate(self, handle: Handle, rights: frozenset[Right]) -> Handle:
        """A handle to the same context that allows less."""
        return self._handles.attenuate(handle, rights)

    def resolve(self, handle: Handle, right: Right = "use") -> Context:
        """The context behind a handle."""
        return self._handles.resolve(handle, right)

    def get(self, context_id: int) -> Context:
        """The context of this id, revoked ones excepted."""
        context = self._by_id.get(context_id)
        if context is None:
            raise ContextUnknown(f"there is no context {context_id}", context_id=context_id)
        return context

    def knows(self, context_id: int) -> bool:
        """Whether there is a context of this id."""
        return context_id in self._by_id

    def __iter__(self) -> Iterator[Context]:
        return iter(self._by_id.values())

    def adjust(self, handle: Handle, budget: int, period: int, now: int) -> None:
        """Give a context another budget and period, from its next refill on."""
        context = self.resolve(handle, "adjust")
        _checks.whole("budget", budget, 1, period)
        context.adjust(budget, period, now)
        if context.next_refill_at is not None:
            self._timers.set(context, context.next_refill_at)

    def revoke(self, handle: Handle) -> Context:
        """Take a context back: every handle to it is stale, nobody is bound to it any more."""
        context = self.resolve(handle, "revoke")
        context.state = ContextState(advance(CONTEXT, context.state, "revoke", context.context_id))
        self._handles.revoke(context.handle)
        self._timers.cancel(context)
        del self._by_id[context.context_id]
        self._paths = {callee: paying for callee, paying in self._paths.items() if paying is not context}
        for group in self._groups.pop(context.context_id, ()):
            group.context = None
        for entity in context.bearers.values():
            entity.ties.context = None
        context.lapsed.clear()
        self.revoked_ns += context.used
        return context

    # --- binding ---------------------------------------------------------------------------------

    def bind(self, handle: Handle, entity: Entity) -> Context:
        """Make a context an entity's own, in place of the one it had."""
        context = self.resolve(handle)
        self.unbind(entity)
        context.bearers[entity.key] = entity
        entity.ties.context = context
        entity.ties.needs_context = entity.ties.needs_context or context.is_hard
        self._activate(context)
        return context

    def bind_group(self, handle: Handle, group: Group) -> Context:
        """Let a context pay for everybody in a group who has none of their own."""
        context = self.resolve(handle)
        self.unbind_group(group)
        group.context = context
        self._groups.setdefault(context.context_id, []).append(group)
        self._activate(context)
        return context

    def bind_path(self, handle: Handle, callee: Entity) -> Context:
        """Let a context pay for every call to an entity, instead of the caller's."""
        context = self.resolve(handle)
        self._paths[callee.key] = context
        self._activate(context)
        return context

    def unbind(self, entity: Entity) -> None:
        """An entity has no context of its own any more."""
        if entity.ties.context is not None:
            del entity.ties.context.bearers[entity.key]
            entity.ties.context = None

    def unbind_group(self, group: Group) -> None:
        """A group has no context any more."""
        if group.context is not None:
            self._groups[group.context.context_id].remove(group)
            group.context = None

    def forget(self, entity: Entity) -> None:
        """An entity is gone."""
        self.release(entity)
        self._forget_lapses(entity)
        self._pay(entity, None)
        self.unbind(entity)
        self._paths.pop(entity.key, None)

    def _activate(self, context: Context) -> None:
        if context.state is ContextState.ADMITTED:
            context.state = ContextState(advance(CONTEXT, context.state, "bind", context.context_id))

    # --- who pays --------------------------------------------------------------------------------

    def choose_payer(self, entity: Entity) -> None:
        """Find the one authority that pays for an entity's place from now on, and with it its band and its cores."""
        self._forget_lapses(entity)
        payer, lapsed = self._find_payer(entity)
        for context in lapsed:
            context.lapsed[entity.key] = entity
        entity.ties.lapsed.extend(lapsed)
        self._pay(entity, payer)
        demoted = any(context.overrun == "demote" for context in lapsed)
        entity.band = BACKGROUND if demoted else NORMAL if payer is None else payer.band
        self._note_cores(entity)

    def keeps_payer(self, entity: Entity) -> bool:
        """Whether the same authority pays for a place with whoever acts in it now; if so, its cores are noted."""
        payer, lapsed = self._find_payer(entity)
        if payer is not entity.payer or lapsed != entity.ties.lapsed or entity.ties.payer_changed:
            return False
        self._note_cores(entity)
        return payer is not None or not needs_context(entity)

    def _find_payer(self, entity: Entity) -> tuple[Context | None, list[Context]]:
        """Who pays for a place, and which authorities ran out before it and let it go on."""
        lapsed: list[Context] = []
        for context in self._authorities(entity):
            if context.state is not ContextState.DEPLETED or context.overrun not in ("demote", "notify"):
                return context, lapsed
            lapsed.append(context)
        return None, lapsed

    @staticmethod
    def _note_cores(entity: Entity) -> None:
        payer = entity.payer
        mask = payer.core_mask if payer is not None and payer.core_mask else -1
        entity.ties.allowed = entity.ties.actor.ties.core_mask & mask

    @staticmethod
    def _forget_lapses(entity: Entity) -> None:
        for context in entity.ties.lapsed:
            context.lapsed.pop(entity.key, None)
        entity.ties.lapsed.clear()

    @staticmethod
    def _pay(entity: Entity, payer: Context | None) -> None:
        before = entity.payer
        if before is payer:
            return
        if before is not None:
            del before.payees[entity.key]
            _note_sharing(before)
        entity.payer = payer
        if payer is not None:
            payer.payees[entity.key] = entity
            _note_sharing(payer)

    def _authorities(self, entity: Entity) -> Iterator[Context]:
        """Who could pay for an entity's place, first come first: that of the call path, then along the calls."""
        actor, acting = entity.ties.actor, entity
        candidates = [self._paths.get(actor.key)] if actor is not entity else []
        while True:
            group = acting.ties.group
            candidates += [acting.ties.context, None if group is None else group.context]
            if acting is actor or acting.ties.awaiting is None:
                break
            acting = acting.ties.awaiting.callee
        for context in candidates:
            if context is not None and context.state is not ContextState.REVOKED:
                yield context

    # --- running out and coming back ---------------------------------------------------------------

    def pays(self, context: Context, now: int) -> bool:
        """Whether a context has anything left to grant."""
        context.refill(now)
        return context.room > 0

    def run_out(self, context: Context, entity: Entity, now: int, out: list[Decision], *, was_running: bool) -> None:
        """A context has nothing left for an entity that would go on: say so, and wait for the refill."""
        if context.state is ContextState.ACTIVE and not context.granted:
            context.state = ContextState(advance(CONTEXT, context.state, "deplete", context.context_id))
            self._evidence.depletions += 1
            self._notify(context, entity, out)
        refill_at = context.next_refill_at
        if refill_at is not None:
            self._timers.set(context, max(refill_at, now))
        if was_running and context.island is not None:
            context.has_overrun = True
            self._timers.set(context.island, now)

    def acknowledge(self, handle: Handle, out: list[Decision]) -> None:
        """The notice about a context was taken; if it ran out again meanwhile, that is told now, as one notice."""
        context = self.resolve(handle)
        merged, context.notices = context.notices - 1, 0
        if merged > 0 and context.timeout_endpoint is not None:
            context.notices = 1
            self._evidence.timeouts += 1
            out.append(PostTimeout(context.timeout_endpoint, context.context_id, context.depleted_by, merged))

    def replenish(self, context: Context, now: int) -> bool:
        """Make available what is due; whether there is anything to grant now."""
        if not self.pays(context, now):
            refill_at = context.next_refill_at
            if refill_at is not None:
                self._timers.set(context, refill_at)
            return False
        if context.state is ContextState.DEPLETED:
            context.state = ContextState(advance(CONTEXT, context.state, "replenish", context.context_id))
        return True

    def _notify(self, context: Context, entity: Entity, out: list[Decision]) -> None:
        """Post one notice; while it is not acknowledged, further ones are only counted."""
        if context.timeout_endpoint is None:
            return
        context.notices += 1
        context.depleted_by = entity.key
        if context.notices > 1:
            self._evidence.timeouts_merged += 1
            return
        self._evidence.timeouts += 1
        out.append(PostTimeout(context.timeout_endpoint, context.context_id, entity.key, 1))

    def release(self, entity: Entity) -> None:
        """Somebody waits for budget no longer."""
        self.unpaid.pop(entity.key, None)
        if entity.payer is not None:
            entity.payer.throttled.pop(entity.key, None)

    # --- looking ---------------------------------------------------------------------------------

    def picture(self, context: Context, now: int) -> SchedulingContext:
        """A context as everybody may see it."""
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


def _note_sharing(context: Context) -> None:
    """What is granted is counted while several draw on a context, and not while one does."""
    is_shared = len(context.payees) > 1
    if is_shared != context.is_shared:
        context.is_shared = is_shared
        running = (one for one in context.payees.values() if one.core.current is one)
        context.granted = sum(one.granted_ns for one in running) if is_shared else 0
