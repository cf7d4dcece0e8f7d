"""The queues of all cores: which queue an entity is in, and what it keeps when it changes queues.

A core has three queues: the reserved queue (bands high and critical), the fair queue (normal) and the background queue.
In the fair queue the entities of a group are behind one schedulable, the group's node on that core:

    core 0   fair ── entity 7
                 └── node of "web" on core 0 ── entity 3
                                             └── entity 4

Virtual times of two queues cannot be compared, but lag can. So an entity that enters another queue gets a new virtual
time:

    woken there   it has the debt that it would have here; credit is lost
    moved there   (while it waited) it has exactly the lag that it had here

This module adds entities to queues and removes them. `placement` and `core_scheduler` decide which core, and when.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rota.cores.accounts import SchedEntity
from rota.cores.contexts import SchedulingContexts
from rota.cores.records import BACKGROUND, NORMAL, CoreRecord, Entity, GroupNode, GroupRecord, needs_context
from rota.cores.runqueue import NOT_QUEUED, IndexTable, Rule, RunQueue, Schedulable
from rota.cores.telemetry import Counters
from rota.errors import EntityUnknown
from rota.policy.virtual_time import charged, lag, reweighed

__all__ = ["Queues"]


class Queues:
    """Every core of one engine with its queues, every entity and every group."""

    def __init__(self, core_count: int, rule: Rule, contexts: SchedulingContexts, counters: Counters) -> None:
        self._contexts = contexts
        self._counters = counters
        self._index_table = IndexTable()  # of entities and group nodes, for the queues
        self._last_key = 0
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
        )
        paid = entity.payer is not None or not needs_context(entity)
        entity.on_fast_path = at_home and alone and paid and entity.band == NORMAL

    # --- waiting and running ---------------------------------------------------------------------

    def enter(self, entity: Entity, core: CoreRecord, now: int) -> None:
        """An entity became runnable on a core."""
        if entity.band > NORMAL:
            entity.core = core
            self._enter_reserved(entity)
            return
        self._prepare(entity, core, now).enter(entity, now)
        self._enter_node(entity, now)
        self._update_fast_path(entity)

    def start_now(self, entity: Entity, now: int) -> None:
        """Start an entity that waits in its core's fair queue, out of order."""
        entity.home.start(entity, now)
        node = self._node_of(entity)
        if node is not None:
            entity.core.fair.start(node, now)

    def move(self, entity: Entity, core: CoreRecord, now: int) -> None:
        """Move a waiting entity to another core; its lag stays the same."""
        source_time = entity.home.time(now)
        self.remove(entity)
        entity.core = core
        entity.home = queue = self._queue(entity)
        queue.enter_moved(entity, source_time, now)
        self._enter_node(entity, now)
        self._update_fast_path(entity)

    def requeue(self, entity: Entity, now: int) -> bool:
        """Choose the payer of a waiting entity again; return whether it stays in its queue. If not, it is in none."""
        home, virtual_time, was_fair = entity.home, entity.virtual_time, entity.band <= NORMAL
        self.remove(entity)
        self.choose_payer(entity)
        stays = was_fair and entity.band <= NORMAL and entity.details.allowed & entity.core.bit
        if not stays or self._queue(entity) is not home:
            return False
        home.enter_at(entity, virtual_time)
        self._enter_node(entity, now)
        return True

    def take(self, queue: RunQueue, now: int) -> Entity | None:
        """Take the next entity out of a core's fair or background queue, to run it."""
        return self.entity_of(queue.take(now), now)

    @staticmethod
    def entity_of(schedulable: Schedulable | None, now: int) -> Entity | None:
        """Return the entity to run for a schedulable that was taken: itself, or the next member of its group."""
        if isinstance(schedulable, GroupNode):
            schedulable = schedulable.inside.take(now)
        return schedulable if isinstance(schedulable, Entity) else None

    def effective_slice_ns(self, entity: Entity) -> int:
        """The slice length of an entity: its own, and at most that of its group."""
        node = self._node_of(entity)
        return entity.slice_ns if node is None else min(entity.slice_ns, node.slice_ns)

    def leave(self, entity: Entity, now: int) -> None:
        """The running entity is no longer runnable."""
        if entity.band > NORMAL:
            return  # the reserved queue holds only waiting entities
        entity.home.leave(now)
        node = self._node_of(entity)
        if node is None:
            return
        if len(node.inside):
            entity.core.fair.put_back(now)
        else:
            entity.core.fair.leave(now)

    def put_back(self, entity: Entity, now: int) -> None:
        """The running entity gives up its core and waits there for another slice."""
        if entity.band > NORMAL:
            self._enter_reserved(entity)
            return
        entity.home.put_back(now)
        if self._node_of(entity) is not None:
            entity.core.fair.put_back(now)
        elif not entity.on_fast_path:
            self._update_fast_path(entity)

    def remove(self, entity: Entity) -> None:
        """A waiting entity is no longer runnable."""
        if entity.band > NORMAL:
            entity.core.reserved.remove(entity.key)
            return
        entity.home.remove(entity)
        node = self._node_of(entity)
        if node is not None and not len(node.inside) and node.entry != NOT_QUEUED:
            entity.core.fair.remove(node)

    def should_preempt(self, entity: Entity, core: CoreRecord) -> bool:
        """Whether a waiting entity should get the core before the current slice ends."""
        current = core.current
        if current is None:
            return True
        if entity.band != current.band:
            return entity.band > current.band
        if entity.band > NORMAL:
            return entity.details.deadline_at_ns < current.details.deadline_at_ns
        mine, other = self._compared(entity, current)
        # an entity asks for a shorter slice to be served sooner; equal ones wait their slice
        shorter = entity.slice_ns < current.slice_ns
        return shorter and mine.virtual_time + mine.span < other.virtual_time + other.span

    def waiting(self, core: CoreRecord) -> Iterator[Entity]:
        """Every runnable entity of a core that does not run."""
        yield from core.reserved.items()
        for queue in (core.fair, core.background):
            for schedulable in queue.queued():
                if isinstance(schedulable, Entity):
                    yield schedulable
        for group in self.groups.values():
            if core.core_id in group.nodes:
                yield from (one for one in group.nodes[core.core_id].inside.queued() if isinstance(one, Entity))

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
        if entity.entry != NOT_QUEUED or entity.home.current is entity:
            entity.home.reweigh(entity, weight, slice_ns, now)
            return
        entity.home.apply_time_drop(entity)
        time = entity.home.time(now)
        entity.virtual_time = reweighed(entity.virtual_time, entity.weight, weight, time)
        entity.set_share(weight, slice_ns)

    def reweigh_group(self, group: GroupRecord, weight: int, now: int) -> None:
        """Change the weight of a group on every core."""
        group.weight = weight
        for core_id, node in group.nodes.items():
            fair = self.cores[core_id].fair
            if node.entry != NOT_QUEUED or fair.current is node:
                fair.reweigh(node, weight, node.slice_ns, now)
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
        """Return the queue that an entity enters, with its virtual time converted for that queue: debt is kept."""
        entity.core = core
        queue = self._queue(entity)
        if entity.home is not queue:
            entity.home.apply_time_drop(entity)
            entity.virtual_time = _with_debt(entity, entity.home, queue, now)
            entity.time_drop = queue.time_drop
            entity.home = queue
        return queue

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

    def _enter_node(self, entity: Entity, now: int) -> None:
        """The first runnable member of a group on a core makes the group's node runnable."""
        node, fair = self._node_of(entity), entity.core.fair
        if node is not None and node.entry == NOT_QUEUED and fair.current is not node:
            fair.enter(node, now)

    def _enter_reserved(self, entity: Entity) -> None:
        payer, core = entity.payer, entity.core
        assert payer is not None  # noqa: S101  # the bands above normal come with a context
        entity.details.deadline_at_ns = self._deadline_at(entity)
        core.reserved.enter((-entity.band, entity.details.deadline_at_ns, -payer.priority, entity.key), entity)
        core.has_urgent = True

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


def _with_debt(entity: Entity, home: RunQueue, queue: RunQueue, now: int) -> int:
    """Return the virtual time in another queue that gives an entity the same debt there.

    The distance to the queue's time is not the debt: once the entity has joined, the queue's time is closer to it, by
    the other entities' part of the total weight. Beside one light entity that is far behind, the distance alone would
    be many times the debt.
    """
    time, own = queue.time(now).whole, entity.weight
    ahead = entity.virtual_time - home.time(now).whole
    if ahead <= 0:
        return time
    if home.weight:
        ahead = -(-ahead * home.weight // (home.weight + own))
    if queue.weight:
        ahead = -(-ahead * (queue.weight + own) // queue.weight)
    return time + ahead
