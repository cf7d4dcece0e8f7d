"""Placement: which core an entity is put on, and when it moves.

Masks are integers with bit *i* for core *i*, so "an idle core that it may use" is one `and`, for any number of cores.

**Waking.** An entity goes to an idle core that it may use, preferably its last one; else to its last one; else to the
least loaded of a few.

**Stealing.** An idle core looks into at most `STEAL_TRIES_MAX` queues of other cores, starting after the one it looked
into last, and at no more than `STEAL_LOOKS_MAX` entities of each. It takes the most overdue one that may run here.

**Sending.** A core that found nothing does not look again by itself. So an entity whose slice ended and that may run
on an idle core is sent there: when that core looked, this entity may have been running and could not be stolen.

**Balancing.** Busy cores never steal, so with more entities than cores an uneven start would last. When a slice ends,
the core looks at one other queue. If moving an entity brings the two loads (sums of weights) closer together, it moves.

A moved entity keeps its lag. The reserved queue is never stolen from or balanced: admission placed its entities. An
entity may use the cores that are not leased, or leased to its own group. If its mask leaves no core at all (its only
one went offline), it is put on any open core, and that is counted.
"""

from __future__ import annotations

from rota.cores.events import Decision, Migrate, Steal
from rota.cores.queues import Queues
from rota.cores.records import NORMAL, CoreRecord, Entity, GroupNode
from rota.cores.runqueue import RunQueue
from rota.cores.telemetry import Counters
from rota.model.lifecycle import EntityState

__all__ = ["BALANCE_LOOKS_MAX", "PLACE_LOOKS_MAX", "STEAL_LOOKS_MAX", "STEAL_TRIES_MAX", "Placement"]

STEAL_TRIES_MAX = 4  # queues that an idle core looks into
STEAL_LOOKS_MAX = 8  # entities that it looks at in each
BALANCE_LOOKS_MAX = 4  # entities that a core looks at in another queue when a slice ends
PLACE_LOOKS_MAX = 4  # cores whose loads are compared for an entity that needs another one


class Placement:
    """The masks of online, open, idle and leased cores, and the moves between cores."""

    def __init__(self, queues: Queues, counters: Counters) -> None:
        self._queues = queues
        self._counters = counters
        self.online = (1 << len(queues.cores)) - 1
        self.open = self.online  # online and not leased
        self.idle = self.online
        self.stealable = 0  # cores that may have an entity to steal; a core that finds none clears the bit
        self.leased: dict[str, int] = {}  # by owner
        self._cursor = -1  # the last core that was considered for an entity

    def mark_stealable(self, core: CoreRecord) -> None:
        """An entity waits on a core and may be stolen."""
        core.is_stealable = True
        self.stealable |= core.bit

    def set_open(self, mask: int) -> None:
        """Set the cores that are online and not leased."""
        self.open = mask
        for core in self._queues.cores:
            core.is_open = bool(core.bit & mask)

    def cores_for(self, entity: Entity) -> int:
        """The cores that an entity may run on now."""
        free = self.open
        if self.leased and entity.details.group is not None:
            free |= self.leased.get(entity.details.group.name, 0)
        return (entity.details.allowed & free) or self.open

    def initial_core(self, mask: int) -> CoreRecord:
        """The first core of a new entity: consecutive entities are spread over the cores they may use."""
        return self._after(mask & self.online or self.online)

    def choose_core(self, entity: Entity) -> CoreRecord:
        """The core whose queue gets an entity that becomes runnable."""
        cores = self.cores_for(entity)
        if not cores & entity.details.allowed:
            self._counters.affinity_broken += 1
        own = entity.core
        idle = self.idle & cores
        if idle:
            return own if own.bit & idle else self._lowest(idle)
        return own if own.bit & cores else self._least_loaded(cores)

    def send_to_idle(self, entity: Entity, now: int, out: list[Decision]) -> CoreRecord | None:
        """Move a waiting entity to an idle core that it may use, if there is one."""
        idle = self.idle & self.cores_for(entity) & entity.details.allowed
        if not idle or entity.band > NORMAL:
            return None
        target = self._lowest(idle)
        self._send(entity, target, now, out)
        return target

    def pull_member(self, owner: str, core: CoreRecord, now: int, out: list[Decision]) -> bool:
        """Move a waiting member of a group to a core leased to the group; return whether there was one."""
        group = self._queues.groups.get(owner)
        for entity in group.members.values() if group is not None else ():
            donor, may = entity.details.donor, core.bit & entity.details.donor.details.allowed
            if entity.state is EntityState.READY and donor.core.is_open and donor.band <= NORMAL and may:
                self._send(donor, core, now, out)
                return True
        return False

    def _send(self, entity: Entity, target: CoreRecord, now: int, out: list[Decision]) -> None:
        source = entity.core
        self._queues.move(entity, target, now)
        entity.details.migrations += 1
        self._counters.migrations += 1
        self.mark_stealable(target)
        out.append(Migrate(entity.key, source.core_id, target.core_id))

    def balance(self, core: CoreRecord, now: int, out: list[Decision]) -> None:
        """Move an entity here from one other queue if that brings the two loads closer together."""
        other = self._next_victim(core, self.stealable & ~core.bit)
        if other is None:
            return
        excess = other.fair.weight - core.fair.weight
        if excess <= 0:
            return
        for entity in self._movable(other.fair, core, BALANCE_LOOKS_MAX):
            if entity.details.group is None and entity.weight < excess:
                self._queues.move(entity, core, now)
                entity.details.migrations += 1
                self._counters.migrations += 1
                out.append(Migrate(entity.key, other.core_id, core.core_id))
                return

    def steal(self, core: CoreRecord, now: int, out: list[Decision]) -> bool:
        """Move a waiting entity here from another queue; return whether there was one."""
        victims, tries = self.stealable & ~core.bit, 0
        while tries < STEAL_TRIES_MAX and (victim := self._next_victim(core, victims)) is not None:
            victims &= ~victim.bit
            if not self._has_waiting(victim):
                victim.is_stealable = False
                self.stealable &= ~victim.bit
                continue  # setting the bit pays for clearing it
            tries += 1
            self._counters.steals_tried += 1
            entity = self._most_overdue(victim, core)
            if entity is not None:
                self._queues.move(entity, core, now)
                entity.details.migrations += 1
                self._counters.steals += 1
                out.append(Steal(entity.key, victim.core_id, core.core_id))
                return True
        return False

    def return_displaced(self, now: int, out: list[Decision]) -> None:
        """Cores became available: move entities that wait outside their mask back."""
        for core in self._queues.cores:
            self.evacuate(core, now, out)

    def evacuate(self, core: CoreRecord, now: int, out: list[Decision]) -> None:
        """Move every entity that waits on a core and may not stay to another core."""
        for entity in list(self._queues.waiting(core)):
            if core.bit & self.cores_for(entity):
                continue
            target = self._least_loaded(self.cores_for(entity))
            if entity.band > NORMAL:
                self._queues.remove(entity)
                self._queues.enter(entity, target, now)
            else:
                self._queues.move(entity, target, now)
            entity.details.migrations += 1
            self._counters.migrations += 1
            self.mark_stealable(target)
            out.append(Migrate(entity.key, core.core_id, target.core_id))

    # --- searching -------------------------------------------------------------------------------

    def _lowest(self, mask: int) -> CoreRecord:
        return self._queues.cores[(mask & -mask).bit_length() - 1]

    def _least_loaded(self, mask: int) -> CoreRecord:
        """The least loaded of a few cores, starting after the last one considered."""
        best: CoreRecord | None = None
        for _ in range(PLACE_LOOKS_MAX):
            core = self._after(mask)
            if best is None or core.fair.weight < best.fair.weight:
                best = core
        assert best is not None  # noqa: S101  # at least one look was taken
        return best

    def _after(self, mask: int) -> CoreRecord:
        """The next core of a mask, after the last one considered."""
        later = mask >> self._cursor + 1 << self._cursor + 1
        core = self._lowest(later or mask)
        self._cursor = core.core_id
        return core

    def _next_victim(self, core: CoreRecord, victims: int) -> CoreRecord | None:
        """The next core to look into, after the last one looked into."""
        if not victims:
            return None
        later = victims >> core.cursor + 1 << core.cursor + 1
        victim = self._lowest(later or victims)
        core.cursor = victim.core_id
        return victim

    @staticmethod
    def _has_waiting(core: CoreRecord) -> bool:
        return len(core.fair) > 0 or len(core.background) > 0 or _members_wait(core.fair.current)

    def _most_overdue(self, victim: CoreRecord, thief: CoreRecord) -> Entity | None:
        for queue in (victim.fair, victim.background):
            for entity in self._movable(queue, thief, STEAL_LOOKS_MAX):
                return entity
        return None

    def _movable(self, queue: RunQueue, thief: CoreRecord, looks_max: int) -> list[Entity]:
        """Entities near the front of a queue that may run on another core, most overdue first."""
        found: list[Entity] = []
        fronts = queue.most_overdue(looks_max)
        if isinstance(queue.current, GroupNode):
            fronts.append(queue.current)
        for schedulable in fronts:
            inside = schedulable.inside.most_overdue(looks_max) if isinstance(schedulable, GroupNode) else [schedulable]
            for entity in inside:
                if isinstance(entity, Entity) and thief.bit & self.cores_for(entity) & entity.details.allowed:
                    found.append(entity)
                    break
        return found


def _members_wait(running: object) -> bool:
    """Whether the running entity belongs to a group of which other members wait on the same core."""
    return isinstance(running, GroupNode) and len(running.inside) > 0
