"""Placement: which core an entity is put on, and when it moves.

Masks are integers with bit *i* for core *i*, so "an idle core that it may use" is one `and`, for any number of cores.

**Waking.** An entity goes to an idle core that it may use, preferably its last one; else to its last one; else to the
least loaded of a few.

**Stealing.** A core without work of the normal band looks into at most `STEAL_TRIES_MAX` fair queues of other cores,
starting after the one it looked into last, and at no more than `STEAL_LOOKS_MAX` entities of each. It takes the most
overdue one that may run here. Only if there is none it runs the background: its own, or stolen in the same way.

**Sending.** A core that found nothing does not look again by itself. So an entity whose slice ended and that may run
on an idle core is sent there: when that core looked, this entity may have been running and could not be stolen.

**Balancing.** Within a core, shares follow weights by virtual time. Over all cores they do if no core's time runs ahead
of another's for long, because an entity's virtual time is then the same wherever it waits. Every queue has a *base*:
its time plus its base is a *common time*, which can be compared between cores. When a slice ends, the core compares its
common time with a few others. If it owes one of them more than `IMBALANCE_MAX_NS` of service (the gap, weighed by both
loads), it takes the most overdue entity there that is behind and may come. Three equal hogs on two cores:

    A, B on core 0, C on core 1     core 1 runs ahead: its time passes twice as fast
    4.5 ms ahead                    core 1 takes B. Now B and C share core 1, and core 0 runs ahead, and so on

A core whose few entities all block before their slices end would never compare itself, and threads that wake each other
could keep it for themselves. It does so every `BALANCE_EVERY_NS` instead, and after it has taken an entity whenever one
blocks.

An entity that blocks keeps its lag to the *common time* of all cores (`common_time`), and has it again where it wakes.
This needs cores that can be compared. Two are *apart* if one falls behind and those that wait there may not come to the
other one: then both count lag by their own time for `APART_NS`. So does a core that was not compared for that long.

A moved entity keeps its common time, with a lag of at most `LAG_SLICES_MAX` slices on its new core: of the longest
slice that any entity has, because so long it may have waited for its turn. By its own slice, a sensitive entity among
ones of the class batch would lose with every move what they owe it.

*A group has one virtual time* over all cores: what it uses on one core is charged to it on the others before they run
it. So a process of twenty threads competes as one also over several cores. When a group is picked on a core, the member
that is furthest behind comes there. If that member runs elsewhere, the group waits here, unless the group itself is
behind or all others here are ahead.

*What cannot be used is not owed.* A heavy entity alone on its core, or a core crowded by pinned ones, falls behind for
good: nothing can be moved. Beyond `FORGIVEN_FROM_NS`, or the longest slice, that is forgotten, so that no entity is
robbed for it later. It is not forgotten if those that wait there may go to a third core, which owes it to them: cores 0
and 1 may be for some entities and cores 2 and 3 for others. Where a group runs, it is first charged for what it used on
other cores since its slice began: until then its core looks further behind than it is. And if it has a member on the
core that is ahead, nothing is forgotten: that member can use what the group is owed. What was forgotten on all its
cores is also forgotten when it comes to another one. An entity whose weight is worth a core keeps it alone.

*A group that needs all its members keeps them apart.* A group of ten members that is owed nine and a half cores of
sixteen gets them only if all its members run nearly all the time: what one of them misses, no other can use later. A
member that is brought to another member's core leaves its own to others for a while. So while a group is owed more than
a core for all its runnable members but one, no member is brought and none waits for another. And if it is owed as many
cores as it has members on, a core that has only this group takes in no other entity. Without this such groups got 3 to
6 % less. This begins when a group is owed more by one part in `SPEED_TOLERANCE`, and ends when it is owed less: what it
is owed is measured, and a group at the edge that went back and forth lost more than under either rule.

What a group or an entity is owed is its weight times the speed of the common time, which is measured on cores where
several compete. A quarter of what was measured before counts too: groups that keep their cores crowd the others onto
few, where the time passes slowly; when these are let in again it catches up, and the speed of one window would swing
between both. If a group keeps its cores by mistake there may be no such core. But then another group, which has more
members than cores, is alone on one and its time passes more slowly: the speed is at most that.

**The global bound.** A competitor (an entity without a group, or a group) that stays runnable gets its weighted max-min
share of the cores, to within 2 % and six slices of the longest class, and for a group one more for each core that it
can use at once. The reason: an entity is within one slice of its core's time (the bound of eevdf, which holds between
migrations); common times differ by `IMBALANCE_MAX_NS` for each pair of loads, plus the slices in progress until the
next comparison; what is forgiven adds at most `FORGIVEN_FROM_NS` when the population changes. A simulation beside a
fluid model checks it. It holds where every core may be used, and not for masks of a few cores that overlap: a free
entity that runs alone on one of these stays there, although another core may be idle. Inside a group the members share
by weight in the same way, as far as the group has a member to spare: of ten members that share nine and a half cores,
the light one may get more than its part and the others a few percent less.

**Bounds on work.** A slice that ends compares `BALANCE_CORES_MAX` cores and moves at most one entity; a group that is
picked brings at most one member. So migrations are at most two for every pick, and balanced cores have none. A core
that goes offline or is leased is emptied `MOVES_MAX` entities at a time; a timer continues.

The reserved queue is never stolen from or balanced: admission placed its entities. An entity may use the cores that are
not leased, or leased to its own group. If its mask leaves no core at all (its only one went offline), it is put on any
open core, and that is counted.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain, islice

from rota.cores.events import Decision, Migrate, Steal
from rota.cores.heaps import Timers
from rota.cores.queues import Queues
from rota.cores.records import NORMAL, CoreRecord, Entity, GroupNode, GroupRecord, Rotation
from rota.cores.runqueue import RunQueue, Schedulable
from rota.cores.telemetry import Counters
from rota.model.lifecycle import EntityState
from rota.policy.virtual_time import SCALE, charged, lag

__all__ = [
    "BALANCE_LOOKS_MAX",
    "PLACE_LOOKS_MAX",
    "STEAL_LOOKS_MAX",
    "STEAL_TRIES_MAX",
    "Placement",
]

STEAL_TRIES_MAX = 4  # queues that an idle core looks into
STEAL_LOOKS_MAX = 8  # entities that it looks at in each
BALANCE_EVERY_NS = 20_000_000  # how often a core compares itself if no slice ends on it, because all block before
FEW_WAITING = 2  # entities that wait on such a core: with more, it is not ahead for long
BALANCE_CORES_MAX = 8  # cores that a core compares itself with when a slice ends
BALANCE_LOOKS_MAX = 4  # entities that it looks at on the one that is furthest behind
IMBALANCE_MAX_NS = 3_000_000  # service that one core may owe to another before an entity moves
FORGIVEN_FROM_NS = 12_000_000  # service that it may owe if no entity can move: what is beyond is not owed
APART_NS = 100_000_000  # how long a core counts as apart: its time is not compared with the common time
SPEED_TOLERANCE = 32  # the speed of the common time is right to one part in so many
MOVES_MAX = 64  # entities that one step moves off a core that is offline or leased
PLACE_LOOKS_MAX = 4  # cores whose loads are compared for an entity that needs another one
_ON_A_CORE = (EntityState.READY, EntityState.RUNNING)


class Placement:
    """The masks of online, open, idle and leased cores, and the moves between cores."""

    def __init__(self, queues: Queues, timers: Timers[Hashable], counters: Counters) -> None:
        self._queues = queues
        self._timers = timers
        self._counters = counters
        self.online = (1 << len(queues.cores)) - 1
        self.open = self.online  # online and not leased
        self.idle = self.online
        self.stealable = 0  # cores that may have an entity to steal; a core that finds none clears the bit
        self.leased: dict[str, int] = {}  # by owner
        self.displaced: dict[int, Entity] = {}  # entities that were put on a core outside their mask
        self._unseen = 0  # of them, that were not looked at since cores became available
        self._rotation = Rotation(-1)  # over the cores for an entity that needs one
        self._common = queues.common

    def mark_stealable(self, core: CoreRecord) -> None:
        """An entity waits on a core and may be stolen."""
        core.is_stealable = True
        self.stealable |= core.bit

    def set_open(self, mask: int) -> None:
        """Set the cores that are online and not leased."""
        self.open = mask
        for core in self._queues.cores:
            core.is_open = bool(core.bit & mask)
            core.update_ordinary()

    def cores_for(self, entity: Entity) -> int:
        """The cores that an entity may run on now."""
        return self._allowed_cores(entity) or self.open

    def _allowed_cores(self, entity: Entity) -> int:
        """The cores of its mask that it may run on now; 0 if it has to be put outside its mask."""
        free = self.open
        if self.leased and entity.details.group is not None:
            free |= self.leased.get(entity.details.group.name, 0) & self.online
        return entity.details.allowed & free

    def initial_core(self, mask: int) -> CoreRecord:
        """The first core of a new entity: consecutive entities are spread over the cores they may use."""
        return self._after(mask & self.online or self.online)

    def choose_core(self, entity: Entity) -> CoreRecord:
        """The core whose queue gets an entity that becomes runnable."""
        cores = self.cores_for(entity)
        if not cores & entity.details.allowed:
            self._counters.affinity_broken += 1
            self.displaced[entity.key] = entity
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
        self._migrate(entity, target, now, out)
        return target

    def pull_member(self, owner: str, core: CoreRecord, now: int, out: list[Decision]) -> bool:
        """Move a waiting member of a group to a core leased to the group; return whether there was one."""
        group = self._queues.groups.get(owner)
        for entity in group.members.values() if group is not None else ():
            donor = entity.details.donor  # of another group, if it answers a call: then it may not come
            is_waiting = entity.state is EntityState.READY and donor.core.is_open and donor.band <= NORMAL
            if is_waiting and self._may_come(donor, core):
                self._migrate(donor, core, now, out)
                return True
        return False

    def balance_between_slices(self, core: CoreRecord, now: int, out: list[Decision]) -> None:
        """No slice has ended on a core for a while: its entities block before. If they are few, it may be ahead."""
        core.balance_at_ns = now + BALANCE_EVERY_NS
        if len(core.fair) <= FEW_WAITING:
            self.balance(core, now, out)
        elif now - core.compared_at_ns >= APART_NS:
            core.fair.common = None  # it was not compared for so long that its time may be anywhere

    def balance(self, core: CoreRecord, now: int, out: list[Decision]) -> None:
        """Move an entity here that is behind on another core, if this core is ahead of that one."""
        core.balance_at_ns = now + BALANCE_EVERY_NS
        if not core.is_open or not core.fair.weight:
            return
        only = core.fair.only() if len(core.fair) else core.fair.current
        time = core.fair.common_time(now)
        self._measure(core, only, time, now)
        if core.fair.common is not None:  # else what is owed here is not measured by the common time
            if only is not None and self._is_worth_a_core(only):
                return
            self._common.follow(time, now)
        others = self._next_few(core.balance_rotation, self.stealable & self.open & ~core.bit)
        for other in self._behind(core.fair, [(one.fair, one) for one in others], now):
            if self._pull(core, other, now, out):
                core.balance_at_ns = now + 1  # it may still be ahead: it compares itself again when the next one blocks
                break
            if not self._movable(other.fair, core.bit, BALANCE_LOOKS_MAX):
                self._forgive(core, other, now)

    def _measure(self, core: CoreRecord, only: Schedulable | None, time: int, now: int) -> None:
        """Measure the speed of the common time on a core, and say whether lag is counted from it there."""
        common = self._common
        if only is None:
            common.measure(time, now)
        elif isinstance(only, GroupNode) and only.group.runnable > only.group.present.bit_count():
            core.measured = common.measure_at_most(core.measured, time, now)
        core.compared_at_ns = now
        core.fair.common = common if len(self._queues.cores) > 1 and now >= core.apart_until_ns else None

    def bring_member(self, core: CoreRecord, node: GroupNode, now: int, out: list[Decision]) -> None:
        """A group runs here next: bring the member that is furthest behind on a few other cores, if it is far enough.

        Without this a member that is alone on its core would get all that its group gets there. A group that needs all
        its members leaves them where they are: one that came here would leave a core to others.
        """
        mask = node.group.present & self.open & ~core.bit
        if not mask or not core.is_open or self._needs_every_member(node.group):
            return
        node.group.members_time = node.inside.common_time(now)
        mine = node.inside.most_overdue(1)[0]
        here, weight = mine.virtual_time + node.inside.base, mine.weight
        most, found = IMBALANCE_MAX_NS * SCALE, None
        for other in self._next_few(core.bring_rotation, mask):
            queue = node.group.nodes[other.core_id].inside
            for one in queue.most_overdue(1):
                owed = (here - one.virtual_time - queue.base) * weight * one.weight // (weight + one.weight)
                if owed > most and isinstance(one, Entity) and self._may_come(one, core):
                    most, found = owed, one
        if found is not None:
            self._migrate(found, core, now, out)

    def should_wait(self, core: CoreRecord, node: GroupNode, now: int) -> bool:
        """Whether the next member of a group here should wait for one that is behind it and runs on another core.

        Only a group that is not behind and has a member to spare can wait: others cannot use their share otherwise.
        """
        mask, here = node.group.present & self.open & ~core.bit, core.fair.time(now)
        if not mask or not core.is_open or self._needs_every_member(node.group):
            return False
        if lag(node.virtual_time, node.weight, here) > IMBALANCE_MAX_NS:
            return False
        mine = node.inside.most_overdue(1)[0]
        at = mine.virtual_time + node.inside.base
        for other in self._next_few(core.wait_rotation, mask):
            queue = node.group.nodes[other.core_id].inside
            one = queue.current
            if one is not None:
                stands = charged(one.virtual_time, now - one.last_start_ns, one.weight) + queue.base
                owed = (at - stands) * mine.weight * one.weight // (mine.weight + one.weight)
                if owed > IMBALANCE_MAX_NS * SCALE:
                    return True
        return False

    def _is_worth_a_core(self, only: Schedulable) -> bool:
        """Whether the only one on a core is owed all of it: an entity, or a group that is owed all its cores."""
        owed = only.weight * self._common.speed  # so much of one core, in units of SCALE
        if not isinstance(only, GroupNode):
            return owed >= SCALE
        held = only.group.present.bit_count() * SCALE
        return held <= owed + owed // SPEED_TOLERANCE and self._needs_every_member(only.group)

    def _needs_every_member(self, group: GroupRecord) -> bool:
        """Whether a group gets its share only if all its runnable members run, each on a core of its own.

        It must be owed clearly more to begin with, and less to stop: an error of the measured speed does not decide.
        """
        owed = group.weight * self._common.speed
        enough = owed if group.needs_all else owed - owed // SPEED_TOLERANCE
        group.needs_all = (group.runnable - 1) * SCALE < enough
        return group.needs_all

    def _next_few(self, rotation: Rotation, mask: int) -> list[CoreRecord]:
        """A few cores of a mask, after the ones that were looked at last time."""
        found: list[CoreRecord] = []
        while mask and len(found) < BALANCE_CORES_MAX:
            one = self._queues.cores[rotation.next(mask)]
            mask &= ~one.bit
            found.append(one)
        return found

    @staticmethod
    def _behind(mine: RunQueue, others: list[tuple[RunQueue, CoreRecord]], now: int) -> list[CoreRecord]:
        """The cores to whose queues this one owes more than the limit, the one that it owes most to first."""
        here, found = mine.common_time(now), []
        for queue, core in others:
            if queue.weight:
                owed = (here - queue.common_time(now)) * mine.weight * queue.weight // (mine.weight + queue.weight)
                if owed > IMBALANCE_MAX_NS * SCALE:
                    found.append((-owed, core.core_id, core))
        return [core for _, _, core in sorted(found)]

    def _pull(self, core: CoreRecord, other: CoreRecord, now: int, out: list[Decision]) -> bool:
        """Move an entity here that waits on another core and is behind; return whether there was one."""
        here = core.fair.common_time(now)
        for entity in self._movable(other.fair, core.bit, BALANCE_LOOKS_MAX):
            group = entity.details.group
            if group is None:
                is_behind = entity.virtual_time + other.fair.base < here
            else:  # a group that has a member waiting here needs no other
                node = group.nodes.get(core.core_id)
                is_behind = group.time < here and (node is None or not len(node.inside))
            if is_behind:
                self._migrate(entity, core, now, out)
                return True
        return False

    def _forgive(self, core: CoreRecord, other: CoreRecord, now: int) -> None:
        """What is owed to a core and that no entity there can use elsewhere is not owed beyond the limit."""
        mine, theirs, running = core.fair, other.fair, other.fair.current
        if isinstance(running, GroupNode):
            # else the core looks as far behind as the group has run elsewhere meanwhile
            self._queues.charge_unpaid(theirs, running, now)
            if running.group.present & core.bit:
                return  # its members here can use what the group is owed there
        gap = mine.common_time(now) - theirs.common_time(now)
        forgiven_from_ns = max(FORGIVEN_FROM_NS, self._queues.longest_slice_ns)
        kept = forgiven_from_ns * SCALE * (mine.weight + theirs.weight) // (mine.weight * theirs.weight)
        if gap <= kept:
            return
        if self._has_waiting(other):  # they may not come here
            for one in (core, other):
                one.fair.common, one.apart_until_ns = None, now + APART_NS
            is_owed_by_others = bool(self._movable(theirs, self.open & ~other.bit, BALANCE_LOOKS_MAX))
        else:
            is_owed_by_others = other.current is not None and not self._may_come(other.current, core)
        if not is_owed_by_others:
            theirs.base += gap - kept

    def _migrate(self, entity: Entity, core: CoreRecord, now: int, out: list[Decision]) -> None:
        source = entity.core
        if entity.band > NORMAL:
            self._queues.remove(entity, now)
            self._queues.enter(entity, core, now)
        else:
            self._queues.move(entity, core, now)
        entity.details.migrations += 1
        self._counters.migrations += 1
        self.mark_stealable(core)
        out.append(Migrate(entity.key, source.core_id, core.core_id))

    def _may_come(self, entity: Entity, core: CoreRecord) -> bool:
        return bool(core.bit & self.cores_for(entity) & entity.details.allowed)

    def steal(self, core: CoreRecord, now: int, out: list[Decision], *, background: bool) -> bool:
        """Move a waiting entity of the normal band or the background here; return whether there was one."""
        victims, tries = self.stealable & ~core.bit, 0
        rotation = core.background_rotation if background else core.steal_rotation
        while victims and tries < STEAL_TRIES_MAX:
            victim = self._queues.cores[rotation.next(victims)]
            victims &= ~victim.bit
            if not self._has_waiting(victim):
                victim.is_stealable = False
                self.stealable &= ~victim.bit
                continue  # setting the bit pays for clearing it
            tries += 1
            self._counters.steals_tried += 1
            entity = self._most_overdue(victim.background if background else victim.fair, core)
            if entity is not None:
                self._queues.move(entity, core, now)
                entity.details.migrations += 1
                self._counters.steals += 1
                out.append(Steal(entity.key, victim.core_id, core.core_id))
                return True
        return False

    def return_displaced(self, now: int, out: list[Decision]) -> None:
        """Cores became available: move entities that wait outside their mask back."""
        self._unseen = len(self.displaced)
        self.go_on_returning(now, out)

    def go_on_returning(self, now: int, out: list[Decision]) -> None:
        """Look at a bounded number of displaced entities in one step; a timer continues with those behind them."""
        count = min(self._unseen, MOVES_MAX)
        self._unseen -= count
        for entity in list(islice(self.displaced.values(), count)):
            del self.displaced[entity.key]
            delegate = entity.details.delegate
            if delegate.state not in _ON_A_CORE or delegate.details.donor is not entity:
                continue  # its share is not in use, or does not wait for a core: one is chosen when it does
            if delegate.state is EntityState.RUNNING or not self._allowed_cores(entity):
                self.displaced[entity.key] = entity  # behind the others; one that runs may have to wait here again
            elif not entity.core.bit & self.cores_for(entity):
                self.expel(entity, now, out)
        if self._unseen and self.displaced:
            self._timers.set(self, now)

    def evacuate(self, core: CoreRecord, now: int, out: list[Decision]) -> None:
        """Move the entities that wait on a core and may not stay to others, a bounded number in one step.

        A timer continues. Until then a core that is offline does not pick, and a leased one moves what it would pick.
        """
        left = MOVES_MAX
        for entity in islice(core.reserved.items(), MOVES_MAX):
            if not core.bit & self.cores_for(entity):
                self.expel(entity, now, out)
                left -= 1
        for queue in (core.fair, core.background):
            running = queue.current  # it is in no heap, and members of its group may wait behind it
            for one in chain((running,) if isinstance(running, GroupNode) else (), queue.drain(left)):
                if left <= 0:
                    break
                left -= 1
                for member in one.inside.drain(left) if isinstance(one, GroupNode) else iter((one,)):
                    left -= isinstance(one, GroupNode)
                    if isinstance(member, Entity) and not core.bit & self.cores_for(member):
                        self.expel(member, now, out)
        if left <= 0:
            self._timers.set(core, now)

    def is_being_cleared(self, core: CoreRecord) -> bool:
        """Whether a timer still moves entities off a core."""
        return self._timers.is_set(core)

    def expel(self, entity: Entity, now: int, out: list[Decision]) -> None:
        """Move a waiting entity to a core on which it may be."""
        target = self._least_loaded(self.cores_for(entity))
        if not target.bit & entity.details.allowed:
            self.displaced[entity.key] = entity
        self._migrate(entity, target, now, out)

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
        return self._queues.cores[self._rotation.next(mask)]

    @staticmethod
    def _has_waiting(core: CoreRecord) -> bool:
        running = core.fair.current  # of a group, other members may wait behind it
        members_wait = isinstance(running, GroupNode) and len(running.inside) > 0
        return len(core.fair) > 0 or len(core.background) > 0 or members_wait

    def _most_overdue(self, queue: RunQueue, thief: CoreRecord) -> Entity | None:
        return next(iter(self._movable(queue, thief.bit, STEAL_LOOKS_MAX)), None)

    def _movable(self, queue: RunQueue, mask: int, looks_max: int) -> list[Entity]:
        """Entities near the front of a queue that may run on one of some other cores, most overdue first."""
        found: list[Entity] = []
        fronts = queue.most_overdue(looks_max)
        if isinstance(queue.current, GroupNode):
            fronts.append(queue.current)
        for schedulable in fronts:
            inside = schedulable.inside.most_overdue(looks_max) if isinstance(schedulable, GroupNode) else [schedulable]
            for entity in inside:
                if isinstance(entity, Entity) and mask & self.cores_for(entity) & entity.details.allowed:
                    found.append(entity)
                    break
        return found
