"""Where an entity runs: which core it is put on, and when it is moved.

Masks are whole numbers, bit *i* for core *i*, so "an idle core that it may use" is one `and`, however many
cores there are.

**Waking.** An idle core that it may use, its last one if possible; else its last one; else the least loaded of
a few.

**Stealing.** A core with nothing to do looks into at most `STEAL_TRIES_MAX` queues of others, beginning after
the one it looked into last, and at no more than `STEAL_LOOKS_MAX` entities of each. It takes the most overdue
that may run here.

**Sending.** A core that found nothing does not look again by itself. So whoever has had its turn, waits for the next
and may run on such a core is sent there: when that core looked, it may have been running, and was no prey.

**Evening out.** Busy cores never steal, so with more work than cores an uneven start would stay. When a turn
ends, the core looks at one other queue. If somebody there would leave the two loads (sums of weights) closer
together, it is moved.

What is moved keeps its lag. The reserved line is never stolen from and never evened out: admission placed it.
Only cores that are leased to an entity's own group, or to nobody, are for it. If its mask leaves no core at all
(its only one went away) it is put on any open one, which is counted: work that can run nowhere helps nobody.
"""

from __future__ import annotations

from rota.cores.events import Decision, Migrate, Steal
from rota.cores.evidence import Evidence
from rota.cores.queues import Queues
from rota.cores.records import NORMAL, Core, Entity, GroupNode
from rota.cores.runqueue import RunQueue
from rota.model.lifecycle import EntityState

__all__ = ["BALANCE_LOOKS_MAX", "PLACE_LOOKS_MAX", "STEAL_LOOKS_MAX", "STEAL_TRIES_MAX", "Placement"]

STEAL_TRIES_MAX = 4  # queues that a core with nothing to do looks into
STEAL_LOOKS_MAX = 8  # entities that it looks at in each
BALANCE_LOOKS_MAX = 4  # entities that a core looks at in another queue when a turn ends
PLACE_LOOKS_MAX = 4  # cores whose loads are compared for somebody who needs another one


class Placement:
    """Which cores there are, which are free, and for whom."""

    def __init__(self, queues: Queues, evidence: Evidence) -> None:
        self._queues = queues
        self._evidence = evidence
        self.online = (1 << len(queues.cores)) - 1
        self.open = self.online  # online and leased to nobody
        self.idle = self.online
        self.queued = 0  # where there may be somebody to steal; a thief that finds nobody clears the bit
        self.leased: dict[str, int] = {}  # by owner
        self._cursor = -1  # the last core that was looked at for somebody without one

    def mark(self, core: Core) -> None:
        """Somebody waits on a core, whom others may steal."""
        core.is_listed = True
        self.queued |= core.bit

    def set_open(self, mask: int) -> None:
        """These cores are online and leased to nobody."""
        self.open = mask
        for core in self._queues.cores:
            core.is_open = bool(core.bit & mask)

    def cores_for(self, entity: Entity) -> int:
        """The cores that an entity may run on now."""
        free = self.open
        if self.leased and entity.ties.group is not None:
            free |= self.leased.get(entity.ties.group.name, 0)
        return (entity.ties.allowed & free) or self.open

    def first(self, mask: int) -> Core:
        """A core to begin on: entities that were made one after the other are spread over the cores they may use."""
        return self._after(mask & self.online or self.online)

    def place(self, entity: Entity) -> Core:
        """The core whose queue is to own somebody who becomes runnable."""
        cores = self.cores_for(entity)
        if not cores & entity.ties.allowed:
            self._evidence.affinity_broken += 1
        own = entity.core
        idle = self.idle & cores
        if idle:
            return own if own.bit & idle else self._lowest(idle)
        return own if own.bit & cores else self._least_loaded(cores)

    def send_to_idle(self, entity: Entity, now: int, out: list[Decision]) -> Core | None:
        """Move somebody who waits to a core with nothing to do on which it may run, if there is one."""
        idle = self.idle & self.cores_for(entity) & entity.ties.allowed
        if not idle or entity.band > NORMAL:
            return None
        target = self._lowest(idle)
        self._send(entity, target, now, out)
        return target

    def bring(self, owner: str, core: Core, now: int, out: list[Decision]) -> bool:
        """Move one of a group that waits elsewhere to a core that is the group's alone; whether there was one."""
        group = self._queues.groups.get(owner)
        for entity in group.members.values() if group is not None else ():
            place, may = entity.ties.place, core.bit & entity.ties.place.ties.allowed
            if entity.state is EntityState.READY and place.core.is_open and place.band <= NORMAL and may:
                self._send(place, core, now, out)
                return True
        return False

    def _send(self, entity: Entity, target: Core, now: int, out: list[Decision]) -> None:
        source = entity.core
        self._queues.move(entity, target, now)
        entity.ties.migrations += 1
        self._evidence.migrations += 1
        self.mark(target)
        out.append(Migrate(entity.key, source.core_id, target.core_id))

    def even_out(self, core: Core, now: int, out: list[Decision]) -> None:
        """Move somebody here from one other queue, if that leaves the two loads closer together."""
        other = self._next_victim(core, self.queued & ~core.bit)
        if other is None:
            return
        excess = other.fair.weight - core.fair.weight
        if excess <= 0:
            return
        for entity in self._movable(other.fair, core, BALANCE_LOOKS_MAX):
            if entity.ties.group is None and entity.weight < excess:
                self._queues.move(entity, core, now)
                entity.ties.migrations += 1
                self._evidence.migrations += 1
                out.append(Migrate(entity.key, other.core_id, core.core_id))
                return

    def steal(self, core: Core, now: int, out: list[Decision]) -> bool:
        """Move somebody here from a queue where it waits; whether there was one."""
        victims, tries = self.queued & ~core.bit, 0
        while tries < STEAL_TRIES_MAX and (victim := self._next_victim(core, victims)) is not None:
            victims &= ~victim.bit
            if not self._has_waiting(victim):
                victim.is_listed = False
                self.queued &= ~victim.bit
                continue  # paid for by whoever set the bit
            tries += 1
            self._evidence.steals_tried += 1
            entity = self._most_overdue(victim, core)
            if entity is not None:
                self._queues.move(entity, core, now)
                entity.ties.migrations += 1
                self._evidence.steals += 1
                out.append(Steal(entity.key, victim.core_id, core.core_id))
                return True
        return False

    def bring_home(self, now: int, out: list[Decision]) -> None:
        """Cores became free: move whoever waits elsewhere only for want of them."""
        for core in self._queues.cores:
            self.evacuate(core, now, out)

    def evacuate(self, core: Core, now: int, out: list[Decision]) -> None:
        """Move everybody who waits on a core and may not stay to another one."""
        for entity in list(self._queues.waiting(core)):
            if core.bit & self.cores_for(entity):
                continue
            target = self._least_loaded(self.cores_for(entity))
            if entity.band > NORMAL:
                self._queues.remove(entity)
                self._queues.enter(entity, target, now)
            else:
                self._queues.move(entity, target, now)
            entity.ties.migrations += 1
            self._evidence.migrations += 1
            self.mark(target)
            out.append(Migrate(entity.key, core.core_id, target.core_id))

    # --- looking ---------------------------------------------------------------------------------

    def _lowest(self, mask: int) -> Core:
        return self._queues.cores[(mask & -mask).bit_length() - 1]

    def _least_loaded(self, mask: int) -> Core:
        """The least loaded of a few cores, beginning after the last one that was looked at."""
        best: Core | None = None
        for _ in range(PLACE_LOOKS_MAX):
            core = self._after(mask)
            if best is None or core.fair.weight < best.fair.weight:
                best = core
        assert best is not None  # noqa: S101  # at least one look was taken
        return best

    def _after(self, mask: int) -> Core:
        """The next core of a mask, after the last one that was looked at."""
        later = mask >> self._cursor + 1 << self._cursor + 1
        core = self._lowest(later or mask)
        self._cursor = core.core_id
        return core

    def _next_victim(self, core: Core, victims: int) -> Core | None:
        """The next core to look into, after the one that was looked into last."""
        if not victims:
            return None
        later = victims >> core.cursor + 1 << core.cursor + 1
        victim = self._lowest(later or victims)
        core.cursor = victim.core_id
        return victim

    @staticmethod
    def _has_waiting(core: Core) -> bool:
        return len(core.fair) > 0 or len(core.background) > 0 or _members_wait(core.fair.current)

    def _most_overdue(self, victim: Core, thief: Core) -> Entity | None:
        for queue in (victim.fair, victim.background):
            for entity in self._movable(queue, thief, STEAL_LOOKS_MAX):
                return entity
        return None

    def _movable(self, queue: RunQueue, thief: Core, looks_max: int) -> list[Entity]:
        """Those near the front of a queue that may run on another core, most overdue first."""
        found: list[Entity] = []
        fronts = queue.most_overdue(looks_max)
        if isinstance(queue.current, GroupNode):
            fronts.append(queue.current)
        for sibling in fronts:
            inside = sibling.inside.most_overdue(looks_max) if isinstance(sibling, GroupNode) else [sibling]
            for entity in inside:
                if isinstance(entity, Entity) and thief.bit & self.cores_for(entity) & entity.ties.allowed:
                    found.append(entity)
                    break
        return found


def _members_wait(running: object) -> bool:
    """Whether whoever runs belongs to a group of which others wait on the same core."""
    return isinstance(running, GroupNode) and len(running.inside) > 0
