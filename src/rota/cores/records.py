"""The living records: what the engine keeps of each entity, group, context and core.

They are plain places with few methods of their own; what happens to them is in `contexts` (who pays), `cores`
(who runs where), `calls` (who lends to whom), `leases` and `islands`. What everybody else may see are the
frozen nouns of `accounts` and `model.budgets`.

A group is one process, session or project. On each core where it has runnable entities it stands in the core's fair
queue as one sibling, with a queue of its own inside: a process of a thousand threads competes as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from rota.cores.accounts import LatencyClass
from rota.cores.deadlines import DeadlineQueue
from rota.cores.meter import Meter
from rota.cores.runqueue import RunQueue, Sibling
from rota.model.budgets import CRITICALITIES, Handle, SchedulingContext
from rota.model.lifecycle import ContextState, EntityState
from rota.policy.replenishment import Allowance

__all__ = [
    "BACKGROUND",
    "NORMAL",
    "Band",
    "CallRecord",
    "Context",
    "Core",
    "Entity",
    "Group",
    "GroupNode",
    "Misses",
    "Ties",
]

Band = int  # the place of a criticality in `CRITICALITIES`
BACKGROUND = CRITICALITIES.index("background")  # runs when nobody else wants the core
NORMAL = CRITICALITIES.index("normal")  # shares by weight; the bands above go first, by deadline


class Misses:
    """Activations that ended after their deadline: how many, how late, and the latest of them. Its size is fixed."""

    __slots__ = ("_latest", "count", "lateness_max_ns")

    def __init__(self, kept: int) -> None:
        self.count = 0
        self.lateness_max_ns = 0
        self._latest: list[tuple[int, int]] = [(0, 0)] * kept

    def note(self, now: int, lateness_ns: int) -> None:
        """One more, in place of the oldest."""
        self._latest[self.count % len(self._latest)] = now, lateness_ns
        self.count += 1
        self.lateness_max_ns = max(self.lateness_max_ns, lateness_ns)

    def latest(self) -> list[tuple[int, int]]:
        """When and by how much, oldest first."""
        kept = len(self._latest)
        if self.count <= kept:
            return self._latest[: self.count]
        return self._latest[self.count % kept :] + self._latest[: self.count % kept]


class Context(Meter):
    """A budget per period, with whoever draws on it."""

    __slots__ = (
        "band",
        "bearers",
        "context_id",
        "core_mask",
        "deadline_ns",
        "depleted_by",
        "handle",
        "has_overrun",
        "is_draining",
        "is_hard",
        "island",
        "lapsed",
        "misses",
        "notices",
        "overrun",
        "payees",
        "priority",
        "spec",
        "state",
        "throttled",
        "timeout_endpoint",
    )

    def __init__(self, spec: SchedulingContext, allowance: Allowance, now: int) -> None:
        super().__init__(allowance, now)
        self.spec = spec  # as it was admitted; what changes is kept beside it
        self.context_id = spec.context_id
        self.handle = Handle(0, 0)  # the first one, from which all others are made
        self.band: Band = CRITICALITIES.index(spec.criticality)
        self.priority = spec.priority
        self.core_mask = spec.core_mask  # 0 is any
        self.deadline_ns = spec.deadline
        self.overrun = spec.overrun
        self.timeout_endpoint = spec.timeout_endpoint
        self.state = ContextState.ADMITTED
        self.bearers: dict[int, Entity] = {}  # bound to it as their own, by key
        self.payees: dict[int, Entity] = {}  # for whom it pays now
        self.throttled: dict[int, Entity] = {}  # would run and wait for its refill, first come first
        self.lapsed: dict[int, Entity] = {}  # go on without it until its refill
        self.notices = 0  # timeouts since the last acknowledgement: one was posted, the others wait for it
        self.depleted_by = 0  # the entity under which it ran out last
        self.misses: Misses | None = None  # kept in the bands above normal
        self.island: Hashable | None = None  # whose assumptions break when it runs out
        self.is_hard = False  # whoever is bound to it never runs without it
        self.is_draining = False  # it is taken back once nobody is active on it
        self.has_overrun = False


class Entity(Sibling):
    """What runs: a thread, a process, an agent. What is not needed at every turn is in `ties`."""

    __slots__ = (
        "band",
        "core",
        "granted_ns",
        "home",
        "is_plain",
        "payer",
        "preemptions",
        "runtime_ns",
        "state",
        "ties",
        "voluntary_blocks",
        "woken_at_ns",
    )

    def __init__(self, key: int, weight: int, slice_ns: int, core: Core, ties: Ties) -> None:
        super().__init__(key, weight, slice_ns)
        self.ties = ties
        ties.place = ties.actor = self
        self.state = EntityState.SLEEPING
        self.core = core  # whose queue owns it, or the last that did
        self.home = core.fair  # the queue in which its virtual time means something
        self.band: Band = NORMAL
        self.payer: Context | None = None  # the one authority that pays now; None is best effort
        self.is_plain = False  # normal band, no group, no call, at home in its core's queue: it takes the short way
        self.woken_at_ns = 0  # when its activation began
        self.granted_ns = 0  # how long it may run at once, of the payer's budget
        self.runtime_ns = 0
        self.preemptions = 0
        self.voluntary_blocks = 0


class Ties:
    """What an entity was told, whom it belongs to and whom it talks with.

    Every entity has a *place*: its weight, virtual time, context and standing in a queue. While it answers a call it
    acts in its caller's place, and its own stays empty.
    """

    __slots__ = (
        "actor",
        "allowed",
        "awaiting",
        "callers",
        "context",
        "core_mask",
        "deadline_at_ns",
        "group",
        "is_doomed",
        "lapsed",
        "latency_class",
        "migrations",
        "needs_context",
        "payer_changed",
        "place",
        "serving",
        "turn_at_ns",
    )

    place: Entity  # in whose place it acts: its own, unless it answers a call
    actor: Entity  # who acts in its place: itself, unless it waits for a reply

    def __init__(self, latency_class: LatencyClass, core_mask: int, needs_context: bool) -> None:
        self.latency_class: LatencyClass = latency_class
        self.core_mask = core_mask  # what it was told; -1 is any
        self.allowed = core_mask  # that, and the mask of whatever pays
        self.needs_context = needs_context  # without a context it does not run at all
        self.group: Group | None = None
        self.context: Context | None = None  # its own
        self.lapsed: list[Context] = []  # would pay for it, and have run out
        self.is_doomed = False  # its overrun policy is to end it, and the driver has been told
        self.payer_changed = False  # somebody else pays from when it stops
        self.deadline_at_ns = 0  # of its activation, in the bands above normal
        self.turn_at_ns: int | None = None  # when the turn began in which its place changed hands
        self.serving: CallRecord | None = None  # the call it answers
        self.awaiting: CallRecord | None = None  # the call it waits for
        self.callers: deque[CallRecord] | None = None  # those who wait until it is free
        self.migrations = 0


def needs_context(place: Entity) -> bool:
    """Whether nobody may act in a place unless a context pays."""
    return place.ties.needs_context or place.ties.actor.ties.needs_context


class CallRecord:
    """One call under way: who asked and who answers."""

    __slots__ = ("callee", "caller", "depth")

    def __init__(self, caller: Entity, callee: Entity, depth: int) -> None:
        self.caller: Entity | None = caller  # None: it ended before the reply
        self.callee = callee
        self.depth = depth


class GroupNode(Sibling):
    """A group as one core sees it: one sibling in the core's queue, with a queue inside."""

    __slots__ = ("group", "inside")

    def __init__(self, key: int, group: Group, inside: RunQueue) -> None:
        super().__init__(key, group.weight, group.slice_ns)
        self.group = group
        self.inside = inside


class Group:
    """The entities of one process, session or project, together."""

    __slots__ = ("context", "members", "name", "nodes", "slice_ns", "weight")

    def __init__(self, name: str, weight: int, slice_ns: int) -> None:
        self.name = name
        self.weight = weight
        self.slice_ns = slice_ns
        self.context: Context | None = None  # pays for those who have none of their own
        self.members: dict[int, Entity] = {}  # by key
        self.nodes: dict[int, GroupNode] = {}  # by core


class Core:
    """A core: who runs on it, and whoever is runnable and owned by it."""

    __slots__ = (
        "background",
        "bit",
        "core_id",
        "current",
        "cursor",
        "fair",
        "front",
        "has_urgent",
        "idle_ns",
        "idle_since_ns",
        "is_asked",
        "is_listed",
        "is_online",
        "is_open",
        "lease_id",
        "pinned_work",
        "reserved",
    )

    def __init__(self, core_id: int, fair: RunQueue, background: RunQueue) -> None:
        self.core_id = core_id
        self.bit = 1 << core_id
        self.current: Entity | None = None  # whose place has the turn; who acts in it is what runs
        self.reserved: DeadlineQueue[Entity] = DeadlineQueue()
        self.fair = fair
        self.background = background
        self.front: deque[int] = deque()  # entities that an order of the policy service puts first
        self.has_urgent = False  # whether anything but the fair queue may have somebody to run
        self.is_asked = False  # a request to look again is under way
        self.is_listed = False  # among those where there may be somebody to steal
        self.is_online = True
        self.is_open = True  # online, and leased to nobody
        self.lease_id: int | None = None
        self.pinned_work: set[str] = set()  # what the driver does on this core and nowhere else
        self.idle_since_ns: int | None = 0  # None while somebody runs
        self.idle_ns = 0
        self.cursor = core_id  # where it looked last for something to steal
