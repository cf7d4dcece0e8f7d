"""The queues of all cores: which queue an entity is in, and what it keeps when it changes queues.

A core has three queues: the reserved queue (bands high and critical), the fair queue (normal) and the background queue.
In the fair queue the entities of a group are behind one schedulable, the group's node on that core:

    core 0   fair ── entity 7
                 └── node of "web" on core 0 ── entity 3
                                             └── entity 4

Virtual times of two queues cannot be compared, but lag can, and so can common times (`placement`). So an entity that
enters another queue gets a new virtual time:

    woken there   it has the lag with which it left
    moved there   (while it waited) it has the same common time, within a limit on its lag

The virtual time of a group is kept once, as a common time. Its node on a core follows it by an offset: before a node
runs it is charged for what the group used on other cores.

This module adds entities to queues and removes them. `placement` and `core_scheduler` decide which core, and when.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rota.cores.accounts import SchedEntity
from rota.cores.common_time import CommonTime
from rota.cores.contexts import SchedulingContexts
from rota.cores.records import BACKGROUND, NORMAL, CoreRecord, Entity, GroupNode, GroupRecord, needs_context
from rota.cores.runqueue import NOT_QUEUED, IndexTable, Rule, RunQueue, Schedulable
from rota.cores.telemetry import Counters
from rota.errors import EntityUnknown
from rota.policy.virtual_time import SCALE, charged, is_eligible, lag, span

__all__ = ["LAG_SLICES_MAX", "NODES_CHARGED_MAX", "Queues"]

LAG_SLICES_MAX = 4  # the most that an entity is ahead or behind when it comes to another core, in longest slices
NODES_CHARGED_MAX = 8  # groups that a pick charges for what they used on other cores


class Queues:
    """Every core of one engine with its queues, every entity and every group."""

    def __init__(self, core_count: int, rule: Rule, contexts: SchedulingContexts, counters: Counters) -> None:
        self._contexts = contexts
        self._counters = counters
        self._index_table = IndexTable()  # of entities and group nodes, for the queues
        self._last_key = 0
        self.longest_slice_ns = 0  # that any entity ever had: so long another one may have to wait for its turn
        self.common = CommonTime()  # of all cores: an empty queue starts there
        self.rule: Rule = rule
        self.entities: dict[int, Entity] = {}
        self.groups: dict[str, GroupRecord] = {}
        self.cores = [CoreRecord(core_id, self._new_queue(), self._new_queue()) for core_id in range(core_count)]

    # --- lookup ----------------------------------------------------------------------------------

    def core(self, core_id: int) -> CoreRecord:
        """Return the core with this number."""
        if not 0 <= core_id < len(self.cores):
            raise EntityUnknown(f"core {core_id} does not exist; cores are 0 to {len(self.cores) - 1}", core=core_id)
        return self.cores[core_id]

    def entity(self, key: int) -> Entity:
        """Return the entity with this number."""
        entity = self.entities.get(key)
        if entity is None:
            raise EntityUnknown(f"entity {key} does not exist or has ended", entity=key)
        return entity

    def group(self, name: str) -> GroupRecord:
        """Return the group with this name."""
        group = self.groups.get(name)
        if group is None:
            raise EntityUnknown(f"group {name!r} does not exist", group=name)
        return group

    def new_key(self) -> int:
        """Return a new number for an entity or a group node."""
        self._last_key += 1
        return self._last_key

    def add(self, entity: Entity, group: GroupRecord | None) -> None:
        """Add a sleeping entity."""
        self.entities[entity.key] = entity
        self.longest_slice_ns = max(self.longest_slice_ns, entity.slice_ns)
        self._index_table.add(entity)
        if group is not None:
            group.members[entity.key] = entity
            entity.details.group = group
        self.choose_payer(entity)

    def forget(self, entity: Entity) -> None:
        """Remove an entity that is in no queue. The last entity of a group also removes the group's nodes."""
        self._contexts.forget(entity)
        del self.entities[entity.key]
        self._index_table.remove(entity)
        group = entity.details.group
        if group is None:
            return
        del group.members[entity.key]
        if not group.members:
            for node in group.nodes.values():
                self._index_table.remove(node)
            group.nodes.clear()

    def forget_group(self, group: GroupRecord) -> None:
        """Remove a group without members."""
        self._contexts.unbind_group(group)
        del self.groups[group.name]

    def choose_payer(self, entity: Entity) -> None:
        """Choose the payer of an entity that is in no queue, and with it its band, its cores and its path."""
        self._contexts.choose_payer(entity)
        entity.details.payer_changed = False
        self._update_fast_path(entity)

    def keeps_payer(self, entity: Entity) -> bool:
        """Whether the same payer applies to a share with its current delegate."""
        return self._contexts.keeps_payer(entity)

    def choose_payer_if_changed(self, entity: Entity) -> None:
        """Choose the payer again if it changed while the entity ran."""
        if entity.details.payer_changed:
            self.choose_payer(entity)

    def _update_fast_path(self, entity: Entity) -> None:
        """Decide whether an entity takes the fast path of the core scheduler."""
        details = entity.details
        at_home = entity.home is entity.core.fair and bool(details.allowed & entity.core.bit)
        alone = (
            details.group is None
            and details.donor is entity
            and details.delegate is entity
            and details.slice_began_ns is None
            and not details.callers
        )
        paid = entity.payer is not None or not needs_context(entity)
        entity.on_fast_path = at_home and alone and paid and entity.band == NORMAL

    # --- waiting and running ---------------------------------------------------------------------

    def enter(self, entity: Entity, core: CoreRecord, now: int, *, left: RunQueue | None = None) -> None:
        """An entity became runnable on a core; or it goes on there, and `left` is the queue that it left in this step.

        One that goes on has not slept: in the same queue it keeps its place, in another one its common time.
        """
        source = entity.core
        if entity.band > NORMAL:
            entity.core = core
            self._enter_reserved(entity)
            return
        if left is not None and (left is source.background) != (entity.band == BACKGROUND):
            left = None  # the times of the two cannot be compared
        common_time = 0 if left is None else entity.virtual_time + left.base
        queue = self._prepare(entity, core, now)
        if queue is left:
            queue.enter_at(entity, entity.virtual_time)
        elif left is not None:
            queue.enter_moved(entity, common_time, LAG_SLICES_MAX * self.longest_slice_ns, now)
        else:
            if not queue.weight:
                self.start_at_common_time(queue, entity, now)
            queue.enter(entity, now)
        self._enter_node(entity, now, came_from=None if left is None else source)
        self._update_fast_path(entity)

    def start_at_common_time(self, queue: RunQueue, entity: Entity, now: int) -> None:
        """An empty queue gets its first entity: the time for which it was empty is not owed to it."""
        group = entity.details.group
        queue.rebase(self.common.at(now) if queue is entity.core.fair or group is None else group.members_time)

    def start_now(self, entity: Entity, now: int) -> None:
        """Start an entity that waits in its core's fair queue, out of order."""
        entity.home.start(entity, now)
        node = self._node_of(entity)
        if node is not None:
            entity.core.fair.start(node, now)

    def move(self, entity: Entity, core: CoreRecord, now: int) -> None:
        """Move a waiting entity to another core; its common time stays the same."""
        self.enter(entity, core, now, left=self.remove(entity, now))

    def may_stay(self, entity: Entity, left: RunQueue | None) -> bool:
        """Whether an entity that left a queue in this step, and has another payer now, belongs there all the same."""
        if left is None or entity.band > NORMAL or not entity.details.allowed & entity.core.bit:
            return False
        return self._queue(entity) is left

    def first(self, queue: RunQueue, taken: Schedulable | None, now: int) -> Schedulable | None:
        """Return what runs next in a queue, given what was taken out of it.

        A group that used time on other cores meanwhile is charged for it, and then another schedulable may be first.
        """
        looks = 0
        while isinstance(taken, GroupNode) and taken.unpaid and looks < NODES_CHARGED_MAX:
            self.charge_unpaid(queue, taken, now)
            queue.return_taken()
            taken = queue.take(now)
            looks += 1
        return taken

    def charge_unpaid(self, queue: RunQueue, node: GroupNode, now: int) -> None:
        """Charge a node for what its group used on other cores, up to the limit on lag."""
        by, others = node.unpaid, queue.weight - node.weight
        if others:
            furthest = self._node_limit_ns(node) * SCALE * queue.weight // (others * node.weight)
            by = min(by, max(0, queue.time(now).whole + furthest - node.virtual_time))
        queue.advance(node, by)
        node.offset = node.virtual_time - node.group.time

    def _forgive_group(self, node: GroupNode, present: int) -> None:
        """A group comes to another core: what all its cores were forgiven (`placement`) is not owed to it there."""
        group, cores = node.group, self.cores
        forgiven = min(
            one.offset + cores[core_id].fair.base for core_id, one in group.nodes.items() if present >> core_id & 1
        )
        if forgiven * group.weight > self._node_limit_ns(node) * SCALE:  # else within the limit on its lag
            group.time += forgiven
            for one in group.nodes.values():
                one.offset -= forgiven  # they stay where they are

    def _node_limit_ns(self, node: GroupNode) -> int:
        """The most that a group may be ahead or behind on one core: it may use every core at once for a slice."""
        return LAG_SLICES_MAX * self.longest_slice_ns + len(self.cores) * node.slice_ns

    def effective_slice_ns(self, entity: Entity) -> int:
        """The slice length of an entity: its own, and at most that of its group."""
        node = self._node_of(entity)
        return entity.slice_ns if node is None else min(entity.slice_ns, node.slice_ns)

    def leave(self, entity: Entity, now: int) -> RunQueue | None:
        """The running entity is no longer runnable. Return the queue that it left; None if it was a reserved one."""
        if entity.band > NORMAL:
            return None  # the reserved queue holds only waiting entities
        entity.home.leave(now)
        node = self._node_of(entity)
        if node is not None:
            node.group.runnable -= 1
            self._stop_node(node, entity.core, now)
        return entity.home

    def _stop_node(self, node: GroupNode, core: CoreRecord, now: int) -> None:
        """A member of a group stops: charge the group, on this core and for the others."""
        fair = core.fair
        self.charge_unpaid(fair, node, now)
        before = node.virtual_time
        if len(node.inside):
            fair.put_back(now)
        else:
            fair.leave(now)
            self._left(node, core)
        node.group.time += node.virtual_time - before

    def _left(self, node: GroupNode, core: CoreRecord) -> None:
        """No member of a group is runnable on a core any more. If none is anywhere, the group keeps its lag."""
        group = node.group
        group.present &= ~core.bit
        if not group.present:
            group.left_as, group.ahead = node, node.ahead

    def put_back(self, entity: Entity, now: int) -> None:
        """The running entity gives up its core and waits there for another slice."""
        if entity.band > NORMAL:
            self._enter_reserved(entity)
            return
        entity.home.put_back(now)
        node = self._node_of(entity)
        if node is not None:
            self._stop_node(node, entity.core, now)
        elif not entity.on_fast_path:
            self._update_fast_path(entity)

    def remove(self, entity: Entity, now: int) -> RunQueue | None:
        """A waiting entity is no longer runnable. Return the queue that it left; None if it was a reserved one."""
        if entity.band > NORMAL:
            entity.core.reserved.remove(entity.key)
            return None
        entity.home.remove(entity, now)
        node = self._node_of(entity)
        if node is not None:
            node.group.runnable -= 1
            if not len(node.inside) and node.entry != NOT_QUEUED:
                entity.core.fair.remove(node, now)
                self._left(node, entity.core)
        return entity.home

    def charge_outside(self, entity: Entity, ran_ns: int) -> None:
        """An entity ran in a reserved band: when it enters its queue again, it and its group have paid for that."""
        entity.home.charge_outside(entity, ran_ns)
        group = entity.details.group
        if group is None:
            return
        if group.present:
            group.time += span(ran_ns, group.weight)
        elif group.left_as is not None:  # all its members sleep, or run like this one
            entity.core.fair.charge_outside(group.left_as, ran_ns)
            group.ahead = group.left_as.ahead

    def should_preempt(self, entity: Entity, core: CoreRecord, now: int) -> bool:
        """Whether a waiting entity should get the core before the current slice ends."""
        current = core.current
        if current is None:
            return True
        if entity.band != current.band:
            return entity.band > current.band
        if entity.band > NORMAL:
            return entity.details.deadline_at_ns < current.details.deadline_at_ns
        mine, other = self._compared(entity, current)
        # the virtual deadline decides: a heavier entity and one with shorter slices are due sooner
        if mine.virtual_time + mine.span >= other.virtual_time + other.span:
            return False
        queue = core.fair if mine is not entity or entity.details.group is None else entity.home
        return is_eligible(mine.virtual_time, queue.time(now))

    def waiting(self, core: CoreRecord) -> Iterator[Entity]:
        """Every runnable entity of a core that does not run."""
        yield from core.reserved.items()
        for queue in (core.fair, core.background):
            for schedulable in queue.queued():
                if isinstance(schedulable, Entity):
                    yield schedulable
        nodes = [*core.fair.queued(), core.fair.current]
        for node in nodes:
            if isinstance(node, GroupNode):
                yield from (one for one in node.inside.queued() if isinstance(one, Entity))

    def waiting_keys(self, core: CoreRecord, limit: int) -> list[int]:
        """The keys of at most `limit` entities that wait in the fair queue of a core, sorted."""
        fair = (donor.details.delegate.key for donor in self.waiting(core) if donor.band == NORMAL)
        return sorted(islice(fair, limit))

    def view(self, entity: Entity, now: int) -> SchedEntity:
        """The scheduling state of an entity at an instant."""
        details, donor = entity.details, entity.details.donor
        payer = donor.payer
        return SchedEntity(
            entity=entity.key,
            state=str(entity.state),
            weight=entity.weight,
            latency_class=details.latency_class,
            slice_ns=entity.slice_ns,
            eligible=entity.virtual_time,
            virtual_deadline=entity.virtual_time + entity.span,
            lag_ns=self.lag_ns(entity, now),
            core=donor.core.core_id,
            core_mask=details.core_mask,
            group=None if details.group is None else details.group.name,
            paying=None if payer is None else payer.context_id,
            woken_at_ns=donor.woken_at_ns,
            deadline_at_ns=None if payer is None else donor.woken_at_ns + payer.deadline_ns,
        )

    def lag_ns(self, entity: Entity, now: int) -> int:
        """The lag of an entity in its queue; 0 while it is in none."""
        runs = entity.home.current is entity
        if entity.entry == NOT_QUEUED and not runs:
            return 0
        ran_ns = now - entity.last_start_ns if runs else 0
        return lag(charged(entity.virtual_time, ran_ns, entity.weight), entity.weight, entity.home.time(now))

    # --- changing --------------------------------------------------------------------------------

    def reweigh(self, entity: Entity, weight: int, slice_ns: int, now: int) -> None:
        """Change the weight and slice of an entity; its lag stays the same."""
        self.longest_slice_ns = max(self.longest_slice_ns, slice_ns)
        if entity.entry != NOT_QUEUED or entity.home.current is entity:
            entity.home.reweigh(entity, weight, slice_ns, now)
            return
        entity.ahead = entity.ahead * entity.weight // weight
        entity.details.other_ahead = entity.details.other_ahead * entity.weight // weight
        entity.set_share(weight, slice_ns)

    def reweigh_group(self, group: GroupRecord, weight: int, now: int) -> None:
        """Change the weight of a group on every core; its lag stays the same."""
        group.ahead = group.ahead * group.weight // weight
        group.weight = weight
        running = [(self.cores[core_id].fair, node) for core_id, node in group.nodes.items()]
        for fair, node in running:
            if fair.current is node:
                before = node.virtual_time
                fair.charge_current(now)
                group.time += node.virtual_time - before
        for fair, node in running:
            if node.entry != NOT_QUEUED or fair.current is node:
                if fair.current is node:
                    self.charge_unpaid(fair, node, now)
                fair.reweigh(node, weight, node.slice_ns, now)
                node.offset = node.virtual_time - group.time
            else:
                node.set_share(weight, node.slice_ns)

    def change_rule(self, rule: Rule) -> None:
        """Order every queue by another rule."""
        self.rule = rule
        for core in self.cores:
            core.fair.change_rule(rule)
            core.background.change_rule(rule)
        for group in self.groups.values():
            for node in group.nodes.values():
                node.inside.change_rule(rule)

    # --- inside ----------------------------------------------------------------------------------

    def _prepare(self, entity: Entity, core: CoreRecord, now: int) -> RunQueue:
        """Return the queue that an entity enters; in another one than before its debt begins to age now."""
        entity.core = core
        queue = self._queue(entity)
        if entity.home is not queue:
            self._keep_lag_of_band(entity)
            entity.home = queue
            entity.virtual_time = queue.time(now).whole + entity.ahead
        return queue

    @staticmethod
    def _keep_lag_of_band(entity: Entity) -> None:
        """Lag in the background is not lag in the normal band: an entity that changes between them keeps each."""
        details, is_background = entity.details, entity.band == BACKGROUND
        if details.is_background != is_background:
            details.is_background = is_background
            entity.ahead, details.other_ahead = details.other_ahead, entity.ahead

    def _queue(self, entity: Entity) -> RunQueue:
        """The fair or background queue for an entity on its core."""
        core, group = entity.core, entity.details.group
        if entity.band == BACKGROUND:
            return core.background
        if group is None:
            return core.fair
        node = group.nodes.get(core.core_id)
        if node is None:
            node = group.nodes[core.core_id] = GroupNode(self.new_key(), group, self._new_queue())
            self._index_table.add(node)
        return node.inside

    def _new_queue(self) -> RunQueue:
        return RunQueue(self._index_table, self.rule, self._counters)

    def _node_of(self, entity: Entity) -> GroupNode | None:
        """The group node behind which an entity is queued, or None."""
        if entity.details.group is None or entity.band != NORMAL:
            return None
        return entity.details.group.nodes[entity.core.core_id]

    def _enter_node(self, entity: Entity, now: int, *, came_from: CoreRecord | None) -> None:
        """The first runnable member of a group on a core makes the group's node runnable.

        If the member came from a core in this step, its group has not slept either, also if it is the only one.
        """
        node, core, fair = self._node_of(entity), entity.core, entity.core.fair
        if node is None:
            return
        group = node.group
        group.runnable += 1
        present = group.present if came_from is None else group.present | came_from.bit
        if present and not present & core.bit:
            self._forgive_group(node, present)
        if node.entry != NOT_QUEUED or fair.current is node:
            return
        if came_from is core:
            fair.enter_at(node, node.virtual_time)
            group.present |= core.bit
            return
        if present:
            fair.enter_moved(node, group.time, self._node_limit_ns(node), now)
        else:  # it has slept: as an entity it has the lag with which it left
            if not fair.weight:
                fair.rebase(self.common.at(now))
            if node is not group.left_as:
                node.virtual_time = fair.time(now).whole + group.ahead
            node.ahead = group.ahead
            fair.enter(node, now)
            group.time = node.virtual_time + fair.base
        group.present |= core.bit
        node.offset = node.virtual_time - group.time

    def _enter_reserved(self, entity: Entity) -> None:
        source, core = _source_of_band(entity), entity.core
        payer = source.payer
        if payer is not None:  # else the context of the share that waits was revoked: the last deadline holds
            entity.details.deadline_at_ns = self._deadline_at(source)
        priority = 0 if payer is None else payer.priority
        core.reserved.enter((-entity.band, entity.details.deadline_at_ns, -priority, entity.key), entity)
        core.is_ordinary = False

    @staticmethod
    def _deadline_at(entity: Entity) -> int:
        """The deadline of an activation, counted from when both the entity was awake and the budget available."""
        payer = entity.payer
        assert payer is not None  # noqa: S101  # the bands above normal come with a context
        return max(payer.since, entity.woken_at_ns) + payer.deadline_ns

    def _compared(self, entity: Entity, current: Entity) -> tuple[Schedulable, Schedulable]:
        """The two schedulables whose deadlines decide between two entities: the entities, or their groups."""
        if entity.details.group is current.details.group:
            return entity, current
        return self._node_of(entity) or entity, self._node_of(current) or current


def _source_of_band(entity: Entity) -> Entity:
    """The share whose context gives an entity its band: its own, or one that waits for it."""
    payer, urged_by = entity.payer, entity.details.urged_by
    if urged_by is None or (payer is not None and payer.band >= entity.band):
        return entity
    return urged_by
