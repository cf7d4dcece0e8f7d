"""The engine's mutable records of each entity, group, context and core.

They hold data and have few methods of their own. `contexts` decides which context pays, `core_scheduler` which entity
runs where, `calls`, `leases` and `islands` do what their names say. Readers outside the engine get the frozen types of
`accounts` and `model.budgets`.

A group is one process, session or project. On each core where it has runnable entities it is one schedulable in the
core's fair queue, with a queue of its own inside: a process of a thousand threads competes as one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from rota.cores.accounts import LatencyClass, ThreadCpuAccount
from rota.cores.budget_meter import BudgetMeter
from rota.cores.heaps import DeadlineQueue
from rota.cores.runqueue import RunQueue, Schedulable
from rota.model.budgets import CRITICALITIES, Handle, SchedulingContext
from rota.model.lifecycle import ContextState, EntityState
from rota.policy.replenishment import Allowance

__all__ = [
    "BACKGROUND",
    "NORMAL",
    "Band",
    "CallRecord",
    "ContextRecord",
    "CoreRecord",
    "DeadlineMisses",
    "Entity",
    "EntityDetails",
    "GroupNode",
    "GroupRecord",
    "Rotation",
    "needs_context",
]

Band = int  # the index of a criticality in `CRITICALITIES`
BACKGROUND = CRITICALITIES.index("background")  # runs when the core has nothing else to run
NORMAL = CRITICALITIES.index("normal")  # shares by weight; the bands above run before it, by deadline


class DeadlineMisses:
    """Activations that ended after their deadline: how many, and the latest ones. Fixed size."""

    __slots__ = ("_latest", "count")

    def __init__(self, kept: int) -> None:
        self.count = 0
        self._latest: list[tuple[int, int]] = [(0, 0)] * kept

    def record(self, now: int, lateness_ns: int) -> None:
        """Record a miss, replacing the oldest kept one."""
        self._latest[self.count % len(self._latest)] = now, lateness_ns
        self.count += 1

    def latest(self) -> list[tuple[int, int]]:
        """Instant and lateness of the kept misses, oldest first."""
        kept = len(self._latest)
        if self.count <= kept:
            return self._latest[: self.count]
        return self._latest[self.count % kept :] + self._latest[: self.count % kept]


class ContextRecord(BudgetMeter):
    """A budget per period and the entities that use it."""

    __slots__ = (
        "band",
        "bound_entities",
        "context_id",
        "core_mask",
        "deadline_ns",
        "depleted_by",
        "handle",
        "has_overrun",
        "is_draining",
        "is_required",
        "is_started",
        "island",
        "misses",
        "overrun",
        "payees",
        "pending_notices",
        "priority",
        "skipped_by",
        "spec",
        "state",
        "throttled",
        "timeout_endpoint",
    )

    def __init__(self, spec: SchedulingContext, allowance: Allowance, now: int) -> None:
        super().__init__(allowance, now)
        self.spec = spec  # as admitted; what changes is kept in the other attributes
        self.context_id = spec.context_id
        self.handle = Handle(0, 0)  # the first handle, from which all others are made
        self.band: Band = CRITICALITIES.index(spec.criticality)
        self.priority = spec.priority
        self.core_mask = spec.core_mask  # 0: any core
        self.deadline_ns = spec.deadline
        self.overrun = spec.overrun
        self.timeout_endpoint = spec.timeout_endpoint
        self.state = ContextState.ADMITTED
        self.bound_entities: dict[int, Entity] = {}  # entities that have it as their own context, by key
        self.payees: dict[int, Entity] = {}  # entities it pays for now
        self.throttled: dict[int, Entity] = {}  # runnable entities that wait for its refill, first come first
        self.skipped_by: dict[int, Entity] = {}  # entities that continue without it until its refill
        self.pending_notices = 0  # timeouts since the last acknowledgement: the first was posted, the rest are merged
        self.depleted_by = 0  # the entity that ran when it was last depleted
        self.misses: DeadlineMisses | None = None  # only in the bands above normal
        self.island: Hashable | None = None  # the island whose admission assumed that it never runs out
        self.is_required = False  # entities bound to it never run without it
        self.is_started = True  # False: it belongs to an island that was not started; nothing bound to it runs
        self.is_draining = False  # it is revoked once no entity is active on it
        self.has_overrun = False


class Entity(Schedulable):
    """What runs: a thread, a process, an agent. Fields that not every slice needs are in `details`."""

    __slots__ = (
        "band",
        "core",
        "details",
        "granted_ns",
        "home",
        "on_fast_path",
        "payer",
        "preemptions",
        "runtime_ns",
        "state",
        "voluntary_blocks",
        "woken_at_ns",
    )

    def __init__(self, key: int, weight: int, slice_ns: int, core: CoreRecord, details: EntityDetails) -> None:
        super().__init__(key, weight, slice_ns)
        self.details = details
        details.donor = details.delegate = self
        self.state = EntityState.SLEEPING
        self.core = core  # the core whose queue holds it, or the last one that did
        self.home = core.fair  # the queue that its virtual time refers to
        self.band: Band = NORMAL
        self.payer: ContextRecord | None = None  # the context that pays now; None: best effort
        self.on_fast_path = False  # normal band, no group, no call, in its own core's queue: it takes the fast path
        self.woken_at_ns = 0  # when its activation began
        self.granted_ns = 0  # how long it may run in this slice, granted by the payer
        self.runtime_ns = 0
        self.preemptions = 0
        self.voluntary_blocks = 0

    def account(self, now: int) -> ThreadCpuAccount:
        """What the entity has used up to an instant, including the current slice."""
        runs = self.state is EntityState.RUNNING
        stops = self.voluntary_blocks + self.preemptions
        return ThreadCpuAccount(
            runtime_ns=self.runtime_ns + (now - self.last_start_ns if runs else 0),
            last_start_ns=self.last_start_ns if stops or runs else None,
            virtual_runtime=self.virtual_time,
            context_switches=stops + runs,
            preemptions=self.preemptions,
            voluntary_blocks=self.voluntary_blocks,
            migrations=self.details.migrations,
        )


class EntityDetails:
    """Settings, membership and calls of an entity.

    Every entity has a share: its weight, virtual time, context and position in a queue. While an entity answers a call,
    it runs on the share of its caller, the *donor*, and its own share is unused. The entity that currently runs on a
    share is the share owner's *delegate*.
    """

    __slots__ = (
        "allowed",
        "awaiting",
        "callers",
        "context",
        "core_mask",
        "deadline_at_ns",
        "delegate",
        "donor",
        "group",
        "is_background",
        "is_being_killed",
        "latency_class",
        "migrations",
        "needs_context",
        "other_ahead",
        "payer_changed",
        "serving",
        "skipped_contexts",
        "slice_began_ns",
        "urged_by",
        "urged_from_ns",
    )

    donor: Entity  # the entity on whose share it runs: itself, unless it answers a call
    delegate: Entity  # the entity that runs on its share: itself, unless it waits for a reply

    def __init__(self, latency_class: LatencyClass, core_mask: int, needs_context: bool) -> None:
        self.latency_class: LatencyClass = latency_class
        self.core_mask = core_mask  # as configured; -1: any core
        self.allowed = core_mask  # the mask above, restricted by the mask of its payer
        self.needs_context = needs_context  # it does not run without a context
        self.group: GroupRecord | None = None
        self.context: ContextRecord | None = None  # its own context
        self.skipped_contexts: list[ContextRecord] = []  # contexts that would pay for it but are depleted
        self.is_being_killed = False  # its context ran out with overrun policy `kill`, and the driver was told
        self.payer_changed = False  # another context pays after this slice
        self.deadline_at_ns = 0  # deadline of its activation, in the bands above normal
        self.slice_began_ns: int | None = None  # when the current slice began, if its share changed hands since
        self.serving: CallRecord | None = None  # the call it is answering
        self.awaiting: CallRecord | None = None  # the call whose reply it awaits
        self.callers: deque[CallRecord] | None = None  # calls that wait until it is free
        self.urged_by: Entity | None = None  # a share of a higher band that waits for the entity that runs on this one
        self.urged_from_ns = 0  # since when
        self.migrations = 0
        self.is_background = False  # whether the queue that it was last in is one of the background
        self.other_ahead = 0  # `ahead` in the normal band while it is in the background, and the other way round


def needs_context(donor: Entity) -> bool:
    """Whether a share may only be used while a context pays."""
    details, delegate = donor.details, donor.details.delegate.details
    return details.needs_context or delegate.needs_context or _awaits_start(details) or _awaits_start(delegate)


def _awaits_start(details: EntityDetails) -> bool:
    """Whether an entity is bound, itself or by its group, to an island that was not started."""
    group = details.group
    bound = (details.context, None if group is None else group.context)
    return any(context is not None and not context.is_started for context in bound)


class CallRecord:
    """One call in progress."""

    __slots__ = ("callee", "caller", "depth")

    def __init__(self, caller: Entity, callee: Entity, depth: int) -> None:
        self.caller: Entity | None = caller  # None: the caller ended before the reply
        self.callee = callee
        self.depth = depth


class GroupNode(Schedulable):
    """A group on one core: one schedulable in the core's queue, with a queue of its members inside.

    Its virtual time is that of the group: what the group uses on one core moves it on every core.
    """

    __slots__ = ("group", "inside", "offset")

    on_fast_path = False  # only entities take it

    def __init__(self, key: int, group: GroupRecord, inside: RunQueue) -> None:
        super().__init__(key, group.weight, group.slice_ns)
        self.group = group
        self.inside = inside
        self.offset = 0  # added to the group's time, it gives the node's virtual time on its core

    @property
    def unpaid(self) -> int:
        """The virtual time that the group used on other cores and that this node was not charged for yet."""
        return max(0, self.group.time + self.offset - self.virtual_time)


class GroupRecord:
    """The entities of one process, session or project."""

    __slots__ = (
        "ahead",
        "context",
        "left_as",
        "members",
        "members_time",
        "name",
        "needs_all",
        "nodes",
        "present",
        "runnable",
        "slice_ns",
        "time",
        "weight",
    )

    def __init__(self, name: str, weight: int, slice_ns: int) -> None:
        self.name = name
        self.weight = weight
        self.slice_ns = slice_ns
        self.context: ContextRecord | None = None  # pays for members that have no context of their own
        self.members: dict[int, Entity] = {}  # by key
        self.nodes: dict[int, GroupNode] = {}  # by core
        self.time = 0  # virtual time of the whole group, as a common time: its usage on all cores by its weight
        self.present = 0  # mask of the cores on which it competes now
        self.runnable = 0  # members that wait or run there
        self.needs_all = False  # whether it needed every one of them when that was last asked: see `placement`
        self.left_as: GroupNode | None = None  # the node that was the last to leave, when all members slept
        self.ahead = 0  # how far that one was ahead of the time of its queue
        self.members_time = 0  # the common time of its members when it was last read on a core


class Rotation:
    """A search that looks at a few cores of a mask each time, and begins after the last one it looked at.

    Each kind of search has its own. If two shared one and took turns, one of them could begin at the same place each
    time and never come to some cores.
    """

    __slots__ = ("_last",)

    def __init__(self, last: int) -> None:
        self._last = last

    def next(self, mask: int) -> int:
        """The next core of a mask that is not empty."""
        after = self._last + 1
        rest = mask >> after << after or mask
        self._last = last = (rest & -rest).bit_length() - 1
        return last


class CoreRecord:
    """A core, the entity that runs on it and its queues."""

    __slots__ = (
        "apart_until_ns",
        "background",
        "background_rotation",
        "balance_at_ns",
        "balance_rotation",
        "bit",
        "bring_rotation",
        "compared_at_ns",
        "core_id",
        "current",
        "fair",
        "front",
        "idle_ns",
        "idle_since_ns",
        "is_online",
        "is_open",
        "is_ordinary",
        "is_stealable",
        "lease_id",
        "measured",
        "pinned_work",
        "reschedule_pending",
        "reserved",
        "steal_rotation",
        "wait_rotation",
    )

    def __init__(self, core_id: int, fair: RunQueue, background: RunQueue) -> None:
        self.core_id = core_id
        self.bit = 1 << core_id
        self.balance_at_ns = 0  # when it compares itself with other cores, even if its entities block before that
        self.compared_at_ns = 0  # when it last did
        self.apart_until_ns = 0  # until then its time is not compared with the common time: see `placement`
        self.current: Entity | None = None  # the entity whose share is in use; its delegate runs
        self.reserved: DeadlineQueue[Entity] = DeadlineQueue()
        self.fair = fair
        self.background = background
        self.front: deque[int] = deque()  # entities that the policy service puts first
        self.is_ordinary = True  # it is open, and nothing waits in `reserved` or `front`: only its fair queue matters
        self.reschedule_pending = False  # a reschedule request is pending
        self.is_stealable = False  # it may have an entity to steal
        self.is_online = True
        self.is_open = True  # online and not leased
        self.lease_id: int | None = None
        self.measured = 0, 0  # an instant, and the common time here: see `placement`
        self.pinned_work: set[str] = set()  # work that the driver does on this core only
        self.idle_since_ns: int | None = 0  # None while an entity runs
        self.idle_ns = 0
        self.steal_rotation = Rotation(core_id)
        self.background_rotation = Rotation(core_id)
        self.balance_rotation = Rotation(core_id)
        self.bring_rotation = Rotation(core_id)
        self.wait_rotation = Rotation(core_id)

    def update_ordinary(self) -> None:
        """Whether it is open, `reserved` or `front` has changed."""
        self.is_ordinary = self.is_open and not len(self.reserved) and not self.front

    def total_idle_ns(self, now: int) -> int:
        """How long the core has been idle, up to an instant."""
        since = self.idle_since_ns
        return self.idle_ns + (0 if since is None else now - since)
