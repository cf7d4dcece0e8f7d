"""The cores: who is runnable where, and what happens when that changes. (How a turn begins and ends is in `turns`.)

**Ownership.** A runnable entity is owned by exactly one core's queue, or it runs on that core. Moving takes it
out of one queue before it is put into another, so at no moment is it in two.

**One core at a time.** Whoever runs on a core is changed only by an event of that core. Waking somebody for
another core puts it into that core's queue and, if it should go first, asks the core to look again; a core is
asked at most once until it has looked.

**Two ways through.** Nearly every wake and block is the same: an entity of no group in the normal band, on a
busy core. These take a short way with few questions; everything else takes the long way, where each case has
its line.

**Bounds.** Waking, blocking, ticking and ending cost a bounded number of heap operations. Ending somebody who
waits only marks its heap entry; heaps are cleaned when others pass through them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain, islice

from rota.cores.contexts import Contexts
from rota.cores.events import Block, DeadlineMissed, Decision, Idle, Kill, Preempt, Reschedule, Run, Tick, Wake
from rota.cores.evidence import Evidence
from rota.cores.placement import Placement
from rota.cores.queues import Queues
from rota.cores.records import NORMAL, Context, Core, Entity
from rota.cores.runqueue import Sibling
from rota.cores.timers import Timers
from rota.cores.turns import Turns, turn_began
from rota.errors import EntityIllegalTransition, EntityUnknown, RotaError
from rota.model.lifecycle import ENTITY, EntityState

__all__ = ["RELEASES_MAX", "Cores"]

RELEASES_MAX = 64  # entities that one refill lets go on in one step

_SLEEPING, _READY = EntityState.SLEEPING, EntityState.READY
_RUNNING, _THROTTLED = EntityState.RUNNING, EntityState.THROTTLED
_NOTHING: tuple[Decision, ...] = ()


class Cores:
    """Wakes, blocks and ticks: what happens on the cores of one engine."""

    def __init__(
        self,
        queues: Queues,
        placement: Placement,
        contexts: Contexts,
        turns: Turns,
        *,
        timers: Timers[Hashable],
        evidence: Evidence,
    ) -> None:
        self._queues = queues
        self._placement = placement
        self._contexts = contexts
        self._turns = turns
        self._timers = timers
        self._evidence = evidence
        self._entities = queues.entities
        self.ended_ns = 0  # ran, by those who are gone

    # --- events ----------------------------------------------------------------------------------

    def wake(self, event: Wake, now: int) -> Sequence[Decision]:
        """Somebody has something to do."""
        try:
            entity = self._entities[event.entity]
        except KeyError:
            raise self.cannot(event.entity, "wake") from None
        if entity.state is not _SLEEPING:
            raise self.cannot(event.entity, "wake")
        entity.woken_at_ns = now
        core = entity.core
        if self._placement.idle or not entity.is_plain or not core.is_open:
            out: list[Decision] = []
            self.make_ready(entity.ties.place, now, out)
            return out
        # the short way: every core is busy, and it stays on its own
        core.fair.enter(entity, now)
        entity.state = _READY
        if not core.is_listed:
            self._placement.mark(core)
        current = core.current
        if current is None or not current.is_plain or entity.slice_ns < current.slice_ns:
            return self._ask_if_first(entity, core)
        return _NOTHING

    def block(self, event: Block, now: int) -> Sequence[Decision]:
        """Whoever runs waits for something."""
        try:
            entity = self._entities[event.entity]
        except KeyError:
            raise self.cannot(event.entity, "block") from None
        if entity.state is not _RUNNING:
            raise self.cannot(event.entity, "block")
        core = entity.core
        if not entity.is_plain or core.has_urgent:
            return self._block(entity, now)
        # the short way: it leaves the fair queue, and the next of the fair queue runs
        entity.voluntary_blocks += 1
        entity.state = _SLEEPING
        ran_ns = now - entity.last_start_ns
        entity.runtime_ns += ran_ns
        payer = entity.payer
        if payer is None:
            self._turns.best_effort_ns += ran_ns
        else:
            payer.settle(entity.granted_ns, ran_ns, entity.woken_at_ns, now)
            if payer.throttled:
                self._timers.set(payer, now)
        return self._go_on(core, core.fair.take(now, True), now)

    def _go_on(self, core: Core, taken: Sibling | None, now: int) -> Sequence[Decision]:
        """Run whoever was taken from the fair queue, if there is nothing to ask; else the long way."""
        if type(taken) is Entity and taken.is_plain:
            payer, limit_ns = taken.payer, taken.slice_ns
            # a payer that nobody shares and that has enough need not be asked: nothing is counted there
            if payer is not None and (payer.is_shared or limit_ns > payer.limit - payer.used):
                limit_ns = payer.grant(limit_ns, now)
            if limit_ns:
                taken.state = _RUNNING
                taken.granted_ns = limit_ns
                core.current = taken
                core.is_asked = False
                if core.idle_since_ns is not None:
                    self._turns.end_idle(core, now)
                self._evidence.picks += 1
                return (Run(core.core_id, taken.key, now + limit_ns),)
        core.current = None
        return self.dispatch(core, taken, now)

    def _block(self, entity: Entity, now: int) -> Sequence[Decision]:
        """The long way to sleep."""
        core = entity.ties.place.core
        missed = self.stop(entity.ties.place, now)
        entity.voluntary_blocks += 1
        entity.state = _SLEEPING
        chosen = self.dispatch(core, None, now)
        return chosen if missed is None else (missed, *chosen)

    def tick(self, event: Tick, now: int) -> Sequence[Decision]:
        """A core looks again."""
        core = self._queues.core(event.core)
        self._evidence.ticks += 1
        current = core.current
        if current is None:
            if not core.is_online:
                return _NOTHING
            return self._go_on(core, None if core.has_urgent else core.fair.take(now), now)
        if now < turn_began(current) + current.granted_ns and not core.is_asked:
            self._evidence.ticks_early += 1
            return _NOTHING
        out: list[Decision] = []
        self.end_turn(core, current, now, out)
        return out

    # --- becoming ready --------------------------------------------------------------------------

    def make_ready(self, place: Entity, now: int, out: list[Decision]) -> None:
        """Put the place of somebody who would run into a core's queue. Whether it can pay is asked at its turn."""
        core = self._placement.place(place)
        if place.is_plain and core is place.core:
            core.fair.enter(place, now)
            place.state = _READY
        else:
            self._queues.enter(place, core, now)
            place.ties.actor.state = _READY
        self._placement.mark(core)
        if core.current is None or self._queues.goes_first(place, core):
            out.extend(self.ask(core))

    def _hold(self, place: Entity, now: int, out: list[Decision], *, was_running: bool = False) -> None:
        """Nobody pays for somebody who would run: it goes on at another's expense, or waits for budget."""
        payer, actor = place.payer, place.ties.actor
        if payer is not None:
            self._contexts.run_out(payer, actor, now, out, was_running=was_running)
            self._queues.choose_payer(place)
            if place.payer is not payer:  # its overrun policy lets it go on
                self.make_ready(place, now, out)
                return
        actor.state = _THROTTLED
        waiting = self._contexts.unpaid if payer is None else payer.throttled
        waiting[place.key] = place

    def _ask_if_first(self, place: Entity, core: Core) -> Sequence[Decision]:
        """Ask a core to look again if somebody in its queue should not wait for the end of the turn."""
        return self.ask(core) if self._queues.goes_first(place, core) else _NOTHING

    def ask(self, core: Core) -> Sequence[Decision]:
        """Ask a core to look again, unless it was asked and has not looked yet."""
        if core.is_asked:
            self._evidence.reschedules_merged += 1
            return _NOTHING
        core.is_asked = True
        self._placement.idle &= ~core.bit  # spoken for: the next one who wakes finds another
        self._evidence.reschedules += 1
        return (Reschedule(core.core_id),)

    # --- stopping --------------------------------------------------------------------------------

    def stop(self, place: Entity, now: int) -> DeadlineMissed | None:
        """Whoever runs goes to sleep: pause it, and say so if its activation is past its deadline."""
        payer, ends = place.payer, place.band > NORMAL and place.ties.actor is place
        missed = self._turns.missed(place, now) if ends else None
        if payer is not None and payer.is_draining and payer.island is not None:
            self._timers.set(payer.island, now)
        self.pause(place, now)
        return missed

    def pause(self, place: Entity, now: int) -> None:
        """Take whoever runs off its core and its place out of its queue, and charge it."""
        self._turns.charge(place, now)
        self._queues.leave(place, now)
        self._queues.choose_payer_if_changed(place)

    def end_turn(self, core: Core, place: Entity, now: int, out: list[Decision]) -> None:
        """Whoever ran stays in the queue if it may and can pay, and the core chooses anew."""
        actor = place.ties.actor
        self._turns.charge(place, now)
        core.is_asked = True  # it is looking: nobody needs to ask
        at = len(out)
        payer = place.payer
        dry = payer is not None and not self._contexts.pays(payer, now)
        if dry or place.ties.payer_changed or not self._placement.cores_for(place) & core.bit:
            self._queues.leave(place, now)
            self._go_elsewhere(place, dry, now, out)
        else:
            self._queues.put_back(place, now)
            actor.state = _READY
            self._placement.mark(core)
        self._placement.even_out(core, now, out)
        chosen = self.dispatch(core, None, now)
        if core.current is not place:
            self.note_preempted(core, actor, out, at)
        out.extend(chosen)
        if self._placement.idle and actor.state is _READY and place.core is core:
            self._go_to_idle(place, now, out)

    def _go_to_idle(self, place: Entity, now: int, out: list[Decision]) -> None:
        """Move somebody to a core with nothing to do. When that core looked around, this one ran and was no prey."""
        core = self._placement.send_to_idle(place, now, out)
        if core is not None:
            out.extend(self.ask(core))

    def note_preempted(self, core: Core, actor: Entity, out: list[Decision], at: int) -> None:
        """Somebody was stopped that would have gone on; the driver hears of it before it hears who runs instead."""
        actor.preemptions += 1
        self._evidence.preemptions += 1
        out.insert(at, Preempt(core.core_id, actor.key))

    def _go_elsewhere(self, place: Entity, dry: bool, now: int, out: list[Decision]) -> None:
        """Somebody whose turn has ended may not simply wait for the next: its budget, its payer or its core is gone."""
        payer = place.payer
        if place.ties.payer_changed:
            self._queues.choose_payer_if_changed(place)
            self.make_ready(place, now, out)
        elif dry and payer is not None and payer.overrun == "kill":
            self._contexts.run_out(payer, place.ties.actor, now, out, was_running=True)
            place.ties.actor.state = _THROTTLED
            place.ties.is_doomed = True  # it runs no more: the driver ends it and says so
            out.append(Kill(place.key))
        elif dry:
            self._hold(place, now, out, was_running=True)
        else:
            self.make_ready(place, now, out)

    # --- running ---------------------------------------------------------------------------------

    def dispatch(self, core: Core, taken: Sibling | None, now: int) -> Sequence[Decision]:
        """Start somebody on a core where nobody runs: whoever was taken already, else the first that can pay."""
        out: list[Decision] = []
        core.is_asked = True  # it is looking: nobody needs to ask
        place = self._queues.entity_behind(taken, now) or self._turns.next(core, now, out)
        while place is not None:
            limit_ns = self._turns.limit_ns(place, now)
            if limit_ns:
                out.append(self._turns.begin(core, place, limit_ns, now))
                return out
            self._queues.leave(place, now)
            self._hold(place, now, out)
            place = self._turns.next(core, now, out)
        self._turns.go_idle(core, now)
        out.append(Idle(core.core_id))
        return out

    # --- changing who pays ---------------------------------------------------------------------------

    def repay(self, place: Entity, now: int, out: list[Decision]) -> None:
        """Who pays for a place may have changed: find out, now or when its turn ends, and put it where it belongs."""
        state = place.ties.actor.state
        if place.ties.place is not place:
            self._queues.choose_payer(place)  # it is empty: its owner answers a call, in another's
        elif state is _RUNNING:
            place.ties.payer_changed = True
            place.is_plain = False
            out.extend(self.ask(place.core))
        elif state is _READY:
            if not self._queues.requeue(place, now):
                self.make_ready(place, now, out)
        elif state is _THROTTLED:
            if not place.ties.is_doomed:
                self._contexts.release(place)
                self._queues.choose_payer(place)
                self.make_ready(place, now, out)
        else:
            self._queues.choose_payer(place)

    def withdraw(self, place: Entity, now: int) -> bool:
        """Take a place out of wherever it is, and charge it; whether it was to run, or did."""
        state = place.ties.actor.state
        if state is _RUNNING:
            self.pause(place, now)
        elif state is _READY:
            self._queues.remove(place)
        elif state is _THROTTLED:
            self._contexts.release(place)
        return state in (_RUNNING, _READY, _THROTTLED)

    def replenish(self, context: Context, now: int, out: list[Decision]) -> None:
        """A refill is due: let go on whoever waited for it, a bounded number at a time."""
        if not self._contexts.replenish(context, now):
            return
        waiting = list(islice(chain(context.lapsed.values(), context.throttled.values()), RELEASES_MAX))
        for place in waiting:
            context.lapsed.pop(place.key, None)
            self.repay(place, now, out)
        if context.throttled or context.lapsed:
            self._timers.set(context, now)

    # --- ending ----------------------------------------------------------------------------------

    def end(self, entity: Entity, now: int, out: list[Decision]) -> None:
        """Somebody who acts in its own place is gone, whatever it was doing."""
        core, ran = entity.core, entity.state is _RUNNING
        self.withdraw(entity, now)
        self.ended_ns += entity.runtime_ns
        entity.state = EntityState.EXITED
        self._queues.forget(entity)
        if ran:
            out.extend(self.dispatch(core, None, now))

    def cannot(self, key: int, verb: str) -> RotaError:
        """Why an entity cannot do that: there is none, or its state has no such arrow."""
        entity = self._entities.get(key)
        if entity is None:
            return EntityUnknown(f"there is no entity {key}, or no longer", entity=key)
        return EntityIllegalTransition("entity", key, entity.state, verb, legal=ENTITY.verbs(entity.state))
