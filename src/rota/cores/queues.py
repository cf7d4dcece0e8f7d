"""Which queue an entity stands in, and what it brings along when that changes.

A core has three queues, one for each kind of band: the reserved line (high and critical), the fair queue
(normal) and the background. In the fair queue the entities of a group stand behind one sibling, the group's
node on that core:

    core 0   fair ── entity 7
                 └── node of "web" on core 0 ── entity 3
                                             └── entity 4

Virtual times of two queues cannot be compared; what is owed can. So an entity that enters another queue is
placed anew:

    woken there   it owes there what it would owe here if it came back: debt comes along, credit does not
    moved there   (while it waited) it is owed there exactly what it was owed here

Here entities enter and leave queues. Which core, and when, is decided in `placement` and `cores`.
"""

from __future__ import annotations

from collections.abc import Iterator

from rota.cores.contexts import Contexts
from rota.cores.evidence import Evidence
from rota.cores.records import BACKGROUND, NORMAL, Core, Entity, Group, GroupNode, needs_context
from rota.cores.runqueue import NOT_QUEUED, Rule, RunQueue, Seats, Sibling
from rota.errors import EntityUnknown
from rota.policy.virtual_time import charged, lag, reweighed

__all__ = ["Queues"]


class Queues:
    """Every core of one engine with its queues, every entity and every group."""

    def __init__(self, core_count: int, rule: Rule, contexts: Contexts, evidence: Evidence) -> None:
        self._contexts = contexts
        self._evidence = evidence
        self._seats = Seats()  # of entities and nodes of groups, for the queues
        self._last_key = 0
        self.rule: Rule = rule
        self.entities: dict[int, Entity] = {}
        self.groups: dict[str, Group] = {}
        self.cores = [Core(core_id, self._new_queue(), self._new_queue()) for core_id in range(core_count)]

    # --- who there is ----------------------------------------------------------------------------

    def core(self, core_id: int) -> Core:
        """The core of this number."""
        if not 0 <= core_id < len(self.cores):
            raise EntityUnknown(f"there is no core {core_id}; they are 0 to {len(self.cores) - 1}", core=core_id)
        return self.cores[core_id]

    def entity(self, key: int) -> Entity:
        """The entity of this number."""
        entity = self.entities.get(key)
        if entity is None:
            raise EntityUnknown(f"there is no entity {key}, or no longer", entity=key)
        return entity

    def group(self, name: str) -> Group:
        """The group of this name."""
        group = self.groups.get(name)
        if group is None:
            raise EntityUnknown(f"there is no group {name!r}", group=name)
        return group

    def new_key(self) -> int:
        """A number that no entity and no node of a group has had."""
        self._last_key += 1
        return self._last_key

    def add(self, entity: Entity, group: Group | None) -> None:
        """Take in an entity, asleep."""
        self.entities[entity.key] = entity
        self._seats.take(entity)
        if group is not None:
            group.members[entity.key] = entity
            entity.ties.group = group
        self.choose_payer(entity)

    def forget(self, entity: Entity) -> None:
        """An entity that is in no queue any more is gone; so is its group's place on the cores with the last of it."""
        self._contexts.forget(entity)
        del self.entities[entity.key]
        self._seats.leave(entity)
        group = entity.ties.group
        if group is None:
            return
        del group.members[entity.key]
        if not group.members:
            for node in group.nodes.values():
                self._seats.leave(node)
            group.nodes.clear()

    def forget_group(self, group: Group) -> None:
        """A group without members is gone."""
        self._contexts.unbind_group(group)
        del self.groups[group.name]

    def choose_payer(self, entity: Entity) -> None:
        """Find who pays for an entity that is in no queue, and with it its band, its cores and its way."""
        self._contexts.choose_payer(entity)
        entity.ties.payer_changed = False
        self._note_way(entity)

    def keeps_payer(self, entity: Entity) -> bool:
        """Whether the same authority pays for a place with whoever acts in it now."""
        return self._contexts.keeps_payer(entity)

    def choose_payer_if_changed(self, entity: Entity) -> None:
        """Find anew who pays, if that changed while it ran."""
        if entity.ties.payer_changed:
            self.choose_payer(entity)

    def _note_way(self, entity: Entity) -> None:
        """Whether an entity takes the short way through a core from now on."""
        ties = entity.ties
        at_home = entity.home is entity.core.fair and bool(ties.allowed & entity.core.bit)
        alone = ties.group is None and ties.place is entity and ties.actor is entity and ties.turn_at_ns is None
        paid = entity.payer is not None or not needs_context(entity)
        entity.is_plain = at_home and alone and paid and entity.band == NORMAL

    # --- waiting and running ---------------------------------------------------------------------

    def enter(self, entity: Entity, core: Core, now: int) -> None:
        """Somebody became runnable on a core."""
        if entity.band > NORMAL:
            entity.core = core
            self._enter_reserved(entity)
            return
        self._settle_in(entity, core, now).enter(entity, now)
        self._enter_node(entity, now)
        self._note_way(entity)

    def start_waiting(self, entity: Entity, now: int) -> None:
        """Somebody who waits in its core's fair queue runs at once, out of turn."""
        entity.home.start(entity, now)
        node = self._node_of(entity)
        if node is not None:
            entity.core.fair.start(node, now)

    def move(self, entity: Entity, core: Core, now: int) -> None:
        """Somebody who waits on one core waits on another from now on, and is owed as much there."""
        source_time = entity.home.time(now)
        self.remove(entity)
        entity.core = core
        entity.home = queue = self._queue(entity)
        queue.enter_moved(entity, source_time, now)
        self._enter_node(entity, now)
        self._note_way(entity)

    def requeue(self, entity: Entity, now: int) -> bool:
        """Find anew who pays for somebody who waits; whether it keeps its place. If not, it is in no queue."""
        home, virtual_time, was_fair = entity.home, entity.virtual_time, entity.band <= NORMAL
        self.remove(entity)
        self.choose_payer(entity)
        stays = was_fair and entity.band <= NORMAL and entity.ties.allowed & entity.core.bit
        if not stays or self._queue(entity) is not home:
            return False
        home.enter_at(entity, virtual_time)
        self._enter_node(entity, now)
        return True

    def take(self, queue: RunQueue, now: int) -> Entity | None:
        """Take the next one out of a core's fair queue or background, to run."""
        return self.entity_behind(queue.take(now), now)

    @staticmethod
    def entity_behind(sibling: Sibling | None, now: int) -> Entity | None:
        """Who runs when a sibling was chosen: itself, or the next of its group."""
        if isinstance(sibling, GroupNode):
            sibling = sibling.inside.take(now)
        return sibling if isinstance(sibling, Entity) else None

    def turn_ns(self, entity: Entity) -> int:
        """How long an entity may run at once: its own slice, and no more than its group's."""
        node = self._node_of(entity)
        return entity.slice_ns if node is None else min(entity.slice_ns, node.slice_ns)

    def leave(self, entity: Entity, now: int) -> None:
        """Whoever runs is no longer runnable."""
        if entity.band > NORMAL:
            return  # the reserved line holds only those who wait
        entity.home.leave(now)
        node = self._node_of(entity)
        if node is None:
            return
        if len(node.inside):
            entity.core.fair.put_back(now)
        else:
            entity.core.fair.leave(now)

    def put_back(self, entity: Entity, now: int) -> None:
        """Whoever runs gives its core up and waits there for another turn."""
        if entity.band > NORMAL:
            self._enter_reserved(entity)
            return
        entity.home.put_back(now)
        if self._node_of(entity) is not None:
            entity.core.fair.put_back(now)
        elif not entity.is_plain:
            self._note_way(entity)

    def remove(self, entity: Entity) -> None:
        """Somebody who waits is no longer runnable."""
        if entity.band > NORMAL:
            entity.core.reserved.remove(entity.key)
            return
        entity.home.remove(entity)
        node = self._node_of(entity)
        if node is not None and not len(node.inside) and node.entry != NOT_QUEUED:
            entity.core.fair.remove(node)

    def goes_first(self, entity: Entity, core: Core) -> bool:
        """Whether somebody who waits should have the core before the turn under way has ended."""
        current = core.current
        if current is None:
            return True
        if entity.band != current.band:
            return entity.band > current.band
        if entity.band > NORMAL:
            return entity.ties.deadline_at_ns < current.ties.deadline_at_ns
        mine, other = self._rivals(entity, current)
        # a shorter turn is what one asks for to be served sooner; equal ones take turns
        shorter = entity.slice_ns < current.slice_ns
        return shorter and mine.virtual_time + mine.span < other.virtual_time + other.span

    def waiting(self, core: Core) -> Iterator[Entity]:
        """Everybody who is runnable on a core and does not run."""
        yield from core.reserved.items()
        for queue in (core.fair, core.background):
            for sibling in queue.queued():
                if isinstance(sibling, Entity):
                    yield sibling
        for group in self.groups.values():
            if core.core_id in group.nodes:
                yield from (one for one in group.nodes[core.core_id].inside.queued() if isinstance(one, Entity))

    def lag_ns(self, entity: Entity, now: int) -> int:
        """What an entity is owed in its queue; 0 while it is in none."""
        runs = entity.home.current is entity
        if entity.entry == NOT_QUEUED and not runs:
            return 0
        ran_ns = now - entity.last_start_ns if runs else 0
        return lag(charged(entity.virtual_time, ran_ns, entity.weight), entity.weight, entity.home.time(now))

    # --- changing --------------------------------------------------------------------------------

    def reweigh(self, entity: Entity, weight: int, slice_ns: int, now: int) -> None:
        """Give an entity another weight and slice; what it is owed, or owes, stays as it is."""
        if entity.entry != NOT_QUEUED or entity.home.current is entity:
            entity.home.reweigh(entity, weight, slice_ns, now)
            return
        entity.home.forgive_falls(entity)
        time = entity.home.time(now)
        entity.virtual_time = reweighed(entity.virtual_time, entity.weight, weight, time)
        entity.shape(weight, slice_ns)

    def reweigh_group(self, group: Group, weight: int, now: int) -> None:
        """Give a group another weight on every core."""
        group.weight = weight
        for core_id, node in group.nodes.items():
            fair = self.cores[core_id].fair
            if node.entry != NOT_QUEUED or fair.current is node:
                fair.reweigh(node, weight, node.slice_ns, now)
            else:
                node.shape(weight, node.slice_ns)

    def change_rule(self, rule: Rule) -> None:
        """Order every queue by another rule from now on."""
        self.rule = rule
        for core in self.cores:
            core.fair.change_rule(rule)
            core.background.change_rule(rule)
        for group in self.groups.values():
            for node in group.nodes.values():
                node.inside.change_rule(rule)

    # --- inside ----------------------------------------------------------------------------------

    def _settle_in(self, entity: Entity, core: Core, now: int) -> RunQueue:
        """The queue that somebody enters, its virtual time made to mean something there: debt comes along."""
        entity.core = core
        queue = self._queue(entity)
        if entity.home is not queue:
            entity.home.forgive_falls(entity)
            entity.virtual_time = _with_debt(entity, entity.home, queue, now)
            entity.fallen = queue.fallen
            entity.home = queue
        return queue

    def _queue(self, entity: Entity) -> RunQueue:
        """The fair queue or background where somebody belongs on its core."""
        core, group = entity.core, entity.ties.group
        if entity.band == BACKGROUND:
            return core.background
        if group is None:
            return core.fair
        node = group.nodes.get(core.core_id)
        if node is None:
            node = group.nodes[core.core_id] = GroupNode(self.new_key(), group, self._new_queue())
            self._seats.take(node)
        return node.inside

    def _new_queue(self) -> RunQueue:
        return RunQueue(self._seats, self.rule, self._evidence)

    def _node_of(self, entity: Entity) -> GroupNode | None:
        """The node behind which an entity stands, if it does."""
        if entity.ties.group is None or entity.band != NORMAL:
            return None
        return entity.ties.group.nodes[entity.core.core_id]

    def _enter_node(self, entity: Entity, now: int) -> None:
        """The first of a group to become runnable on a core brings its node along."""
        node, fair = self._node_of(entity), entity.core.fair
        if node is not None and node.entry == NOT_QUEUED and fair.current is not node:
            fair.enter(node, now)

    def _enter_reserved(self, entity: Entity) -> None:
        payer, core = entity.payer, entity.core
        assert payer is not None  # noqa: S101  # the bands above normal come with a context
        entity.ties.deadline_at_ns = self._deadline_at(entity)
        core.reserved.enter((-entity.band, entity.ties.deadline_at_ns, -payer.priority, entity.key), entity)
        core.has_urgent = True

    @staticmethod
    def _deadline_at(entity: Entity) -> int:
        """When what an entity is about to use is due, counted from when both it and the budget were there."""
        payer = entity.payer
        assert payer is not None  # noqa: S101  # the bands above normal come with a context
        return max(payer.since, entity.woken_at_ns) + payer.deadline_ns

    def _rivals(self, entity: Entity, current: Entity) -> tuple[Sibling, Sibling]:
        """The two siblings whose deadlines decide between two entities: themselves, or their groups."""
        if entity.ties.group is current.ties.group:
            return entity, current
        return self._node_of(entity) or entity, self._node_of(current) or current


def _with_debt(entity: Entity, home: RunQueue, queue: RunQueue, now: int) -> int:
    """Where somebody who owed in one queue stands in another, so that once it has joined it owes as much there.

    How far it stands ahead of the others is not what it owes: with it among them the level is nearer, by their part of
    all weight. Beside a light sibling that is far behind, the distance alone would be many times the debt.
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
