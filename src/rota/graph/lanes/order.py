"""Orders among the invocations in a lane's queue: by priority class, or by a registered policy.

A policy that offers an incremental order is updated call by call. Any other policy ranks a snapshot each time a
worker asks: the oldest `CANDIDATES_MAX` invocations and the accounts of their components, which `PolicyOrder` keeps. In
both cases an invocation is charged its component's expected duration when it is picked, and the difference once the
real duration was measured.
"""

from __future__ import annotations

from copy import copy
from heapq import heappop, heappush
from itertools import islice
from typing import Any, Protocol

from rota.clock import Clock
from rota.graph.invocation import Invocation
from rota.graph.messages import Inputs
from rota.graph.nodes import Node
from rota.model.snapshot import Account, Candidate, Key, Slot, Snapshot
from rota.model.work import WEIGHT_UNIT
from rota.policy.contract import IncrementalOrder, Policy
from rota.policy.foreign import Offer, check_decisions, check_picked, is_built_in, protected_copy
from rota.policy.virtual_time import LevelTime, Sibling, charged, joined, level_time

__all__ = ["CANDIDATES_MAX", "LaneOrder", "PolicyOrder", "PriorityOrder", "QueuedInvocation"]

CANDIDATES_MAX = 256  # in the snapshot of a policy without an incremental order
REQUEST_NS = 1_000_000  # the request of every account, and the expected duration until one was measured
RANK_WEIGHTS = (1, 2, 4, 8)  # by rank: background, low, normal, high

_ONE_SLOT = (Slot(0),)


class QueuedInvocation:
    """An accepted invocation on its way through a lane. For a plain component it also holds the result."""

    __slots__ = (
        "ended_at_s",
        "epoch_id",
        "inputs",
        "invocation",
        "is_rejected",
        "is_waiting",
        "node",
        "number",
        "problem",
        "returned",
        "started_at_s",
        "worker_id",
    )

    # set when it was executed
    worker_id: int
    started_at_s: float
    ended_at_s: float
    returned: Any

    def __init__(
        self, node: Node, inputs: Inputs, epoch_id: int, number: int, invocation: Invocation | None = None
    ) -> None:
        self.node = node
        self.inputs = inputs
        self.epoch_id = epoch_id  # the epoch in which it became ready
        self.number = number  # the order in which invocations became ready on the lane
        self.invocation = invocation
        self.is_waiting = True
        self.is_rejected = False
        self.problem: BaseException | None = None

    @property
    def duration_s(self) -> float:
        """How long it took, once it is done."""
        done = self if self.invocation is None else self.invocation
        return done.ended_at_s - done.started_at_s


class LaneOrder(Protocol):
    """An order among the invocations that may be executed now."""

    def add(self, item: QueuedInvocation, /) -> None:
        """Add an invocation."""
        ...

    def remove(self, item: QueuedInvocation, /) -> None:
        """Remove an invocation that is executed out of order."""
        ...

    def discard(self, item: QueuedInvocation, /) -> None:
        """Remove an invocation that will not be executed."""
        ...

    def take(self, epoch_id: int, /) -> QueuedInvocation | None:
        """Remove and return the next invocation."""
        ...

    def first(self) -> QueuedInvocation | None:
        """Return the next invocation if that is known without taking it."""
        ...

    def done(self, item: QueuedInvocation, /) -> None:
        """Record that an invocation was executed; its duration is known now."""
        ...


class PriorityOrder:
    """By priority class, then in the order in which invocations became ready."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, QueuedInvocation]] = []  # numbers are unique, so items are never compared

    def add(self, item: QueuedInvocation, /) -> None:
        """Add an invocation."""
        heappush(self._heap, (-item.node.rank, item.number, item))

    def remove(self, item: QueuedInvocation, /) -> None:
        """Do nothing: it stays in the heap and is skipped there, because it no longer waits."""

    def discard(self, item: QueuedInvocation, /) -> None:
        """Do nothing, like `remove`."""

    def first(self) -> QueuedInvocation | None:
        """Return the next invocation."""
        heap = self._heap
        while heap and not heap[0][2].is_waiting:
            heappop(heap)
        return heap[0][2] if heap else None

    def take(self, _epoch_id: int, /) -> QueuedInvocation | None:
        """Remove and return the next invocation."""
        heap = self._heap
        while heap:
            item = heappop(heap)[2]
            if item.is_waiting:
                return item
        return None

    def done(self, item: QueuedInvocation, /) -> None:
        """Do nothing: durations do not change this order."""


class PolicyOrder:
    """The order that a policy gives."""

    def __init__(self, policy: Policy, lane_id: str, clock: Clock) -> None:
        self.name = policy.name
        self._policy = policy
        self._is_built_in = is_built_in(policy)
        self._lane_id = lane_id
        self._clock = clock
        self._incremental: IncrementalOrder | None = None
        self._is_begun = False  # its incremental order is made with the first invocation: that may fail, too
        self._waiting: dict[int, QueuedInvocation] = {}  # by number, oldest first
        self._candidates: dict[int, Candidate] = {}  # of the waiting and running invocations
        self._charged: dict[int, int] = {}  # what was charged when it was picked
        self._accounts: dict[str, _ComponentAccount] = {}  # by component

    def items(self) -> list[QueuedInvocation]:
        """Return the waiting invocations."""
        return list(self._waiting.values())

    def first(self) -> QueuedInvocation | None:
        """Return None: a policy charges what it picks, so it cannot be asked without taking."""
        return None

    def add(self, item: QueuedInvocation, /) -> None:
        """Add an invocation."""
        candidate = self._candidate(item)
        if not self._is_begun and self._policy.incremental is not None:
            self._incremental = self._policy.incremental()
        self._is_begun = True
        account = self._account(item)
        if self._incremental is not None:
            self._incremental.add(candidate if self._is_built_in else copy(candidate))
        account.join(self._level_time())
        self._waiting[item.number] = item
        self._candidates[item.number] = candidate

    def remove(self, item: QueuedInvocation, /) -> None:
        """Remove an invocation that is executed out of order; nothing is charged yet."""
        del self._waiting[item.number]
        self._accounts[item.node.id].start()
        if self._incremental is not None:
            self._incremental.remove(item.number)

    def discard(self, item: QueuedInvocation, /) -> None:
        """Remove an invocation that will not be executed."""
        del self._waiting[item.number]
        del self._candidates[item.number]
        self._accounts[item.node.id].waiting -= 1
        if self._incremental is not None:
            self._incremental.remove(item.number)

    def take(self, epoch_id: int, /) -> QueuedInvocation | None:
        """Remove and return the invocation that the policy picks."""
        if not self._waiting:
            return None
        number = self._picked() if self._incremental is not None else self._ranked(epoch_id)
        item = self._waiting.pop(number, None)
        if item is None:
            raise ValueError("it picked an invocation that is not waiting")
        cost = self._candidates[number].cost
        self._charged[number] = cost
        account = self._accounts[item.node.id]
        account.start()
        account.charge(cost)
        return item

    def done(self, item: QueuedInvocation, /) -> None:
        """Charge the difference between the expected and the measured duration."""
        del self._candidates[item.number]
        measured = max(1, round(item.duration_s * 1e9))
        correction = measured - self._charged.pop(item.number, 0)
        account = self._accounts[item.node.id]
        account.end(measured)
        account.charge(correction)
        if self._incremental is not None:
            self._incremental.charge(item.node.id, self._lane_id, correction)

    def _picked(self) -> int:
        picked = check_picked(self._policy, self._incremental.pick() if self._incremental is not None else None)
        if picked is None:
            raise ValueError("it picked nothing although invocations are ready")
        return picked

    def _ranked(self, epoch_id: int) -> int:
        snapshot = self._snapshot(epoch_id)
        if self._is_built_in:
            return self._policy.rank(snapshot)[0].candidate_id
        decisions = check_decisions(self._policy, self._policy.rank(protected_copy(snapshot)), Offer.of(snapshot))
        if not decisions:
            raise ValueError("it picked nothing although invocations are ready")
        return decisions[0].candidate_id

    def _snapshot(self, epoch_id: int) -> Snapshot:
        shown = list(islice(self._waiting.values(), CANDIDATES_MAX))
        owners: dict[Key, Account] = {
            item.node.id: self._accounts[item.node.id].shown(item.node.last_epoch_id) for item in shown
        }
        return Snapshot(
            now=epoch_id,
            slots=_ONE_SLOT,
            candidates=tuple(self._candidates[item.number] for item in shown),
            owners=owners,
        )

    def _candidate(self, item: QueuedInvocation) -> Candidate:
        node, budget_s = item.node, item.node.component.budget_s
        expected_ns = round(node.busy_s / node.completed * 1e9) if node.completed else REQUEST_NS
        return Candidate(
            id=item.number,
            owner=node.id,
            group=self._lane_id,
            priority=node.rank,
            ready_at=item.epoch_id,
            deadline=(self._clock.monotonic() + budget_s) * 1000 if budget_s else None,
            cost=max(1, expected_ns),
        )

    def _account(self, item: QueuedInvocation) -> _ComponentAccount:
        account = self._accounts.get(item.node.id)
        if account is None:
            account = self._accounts[item.node.id] = _ComponentAccount(RANK_WEIGHTS[item.node.rank] * WEIGHT_UNIT)
            if self._incremental is not None:
                self._incremental.set_account("owner", item.node.id, account.shown(item.node.last_epoch_id))
        return account

    def _level_time(self) -> LevelTime:
        """Return the virtual time of the components that have work on this lane."""
        busy = [(owner, account) for owner, account in self._accounts.items() if account.is_busy]
        if not busy:
            return LevelTime.at(max((account.virtual_time for account in self._accounts.values()), default=0))
        return level_time(Sibling(owner, account.weight, account.virtual_time, REQUEST_NS) for owner, account in busy)


class _ComponentAccount:
    """The account of a component on its lane."""

    __slots__ = ("ended", "live", "usage", "virtual_time", "waiting", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.virtual_time = self.usage = self.waiting = self.live = self.ended = 0

    @property
    def is_busy(self) -> bool:
        """Whether it has invocations waiting or running."""
        return self.waiting > 0 or self.live > 0

    def join(self, time: LevelTime) -> None:
        """Add a waiting invocation. After a pause the account starts at the others' virtual time, without credit."""
        if not self.is_busy:
            self.virtual_time = joined(self.virtual_time, time)
        self.waiting += 1

    def start(self) -> None:
        """Record that a waiting invocation is executed."""
        self.waiting -= 1
        self.live += 1

    def end(self, measured_ns: int) -> None:
        """Record that an invocation was executed."""
        self.live -= 1
        self.ended += 1
        self.usage += measured_ns

    def charge(self, cost_ns: int) -> None:
        """Charge more usage."""
        self.virtual_time = charged(self.virtual_time, cost_ns, self.weight)

    def shown(self, last_epoch_id: int) -> Account:
        """Return the account as a policy sees it."""
        return Account(
            weight=self.weight,
            virtual_time=self.virtual_time,
            request=REQUEST_NS,
            usage=self.usage,
            live=self.live,
            ended=self.ended,
            last_run_at=last_epoch_id,
        )
