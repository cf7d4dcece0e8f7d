"""A registered policy as the order of a lane's queue.

A policy with an ordering is kept up to date, call by call. One without is shown a snapshot each time a worker asks: the
oldest `CANDIDATES_MAX` invocations and the accounts of their components, which are kept here. In both, an invocation is
charged what its component is expected to take when it is picked, and the difference once it was measured.
"""

from __future__ import annotations

from itertools import islice

from rota.clock import Clock
from rota.graph.lanes.order import Item
from rota.model.snapshot import Account, Candidate, Key, Slot, Snapshot
from rota.model.work import WEIGHT_UNIT
from rota.policy.contract import Ordering, Policy
from rota.policy.virtual_time import LevelTime, Sibling, charged, joined, level_time

__all__ = ["CANDIDATES_MAX", "PolicyOrder"]

CANDIDATES_MAX = 256  # shown to a policy that looks at a snapshot
REQUEST_NS = 1_000_000  # what a turn asks for, and what it is expected to take until one was measured
RANK_WEIGHTS = (1, 2, 4, 8)  # by rank: background, low, normal, high

_ONE_SLOT = (Slot(0),)


class PolicyOrder:
    """The order that a policy gives."""

    def __init__(self, policy: Policy, lane_id: str, clock: Clock) -> None:
        self.name = policy.name
        self._policy = policy
        self._lane_id = lane_id
        self._clock = clock
        self._ordering: Ordering | None = policy.ordering() if policy.ordering else None
        self._waiting: dict[int, Item] = {}  # by number, oldest first
        self._candidates: dict[int, Candidate] = {}  # of those that wait or are under way
        self._charged: dict[int, int] = {}  # what was charged at pick
        self._accounts: dict[str, _Account] = {}  # by component

    def items(self) -> list[Item]:
        """Whoever waits."""
        return list(self._waiting.values())

    def first(self) -> Item | None:
        """A policy charges whom it picks, so it cannot be asked without taking."""
        return None

    def add(self, item: Item, /) -> None:
        """One more."""
        candidate = self._candidate(item)
        account = self._account(item)
        if self._ordering is not None:
            self._ordering.add(candidate)
        account.join(self._level_time())
        self._waiting[item.number] = item
        self._candidates[item.number] = candidate

    def remove(self, item: Item, /) -> None:
        """One less: it was taken past this order, so nothing is charged yet."""
        del self._waiting[item.number]
        self._accounts[item.node.id].start()
        if self._ordering is not None:
            self._ordering.remove(item.number)

    def discard(self, item: Item, /) -> None:
        """One less: nobody will execute it."""
        del self._waiting[item.number]
        del self._candidates[item.number]
        self._accounts[item.node.id].waiting -= 1
        if self._ordering is not None:
            self._ordering.remove(item.number)

    def take(self, epoch_id: int, /) -> Item | None:
        """The one the policy picks."""
        if not self._waiting:
            return None
        number = self._picked() if self._ordering is not None else self._ranked(epoch_id)
        item = self._waiting.pop(number, None)
        if item is None:
            raise ValueError(f"it picked {number}, which does not wait here")
        cost = self._candidates[number].cost
        self._charged[number] = cost
        account = self._accounts[item.node.id]
        account.start()
        account.charge(cost)
        return item

    def done(self, item: Item, /) -> None:
        """Charge the difference between what was expected and what was measured."""
        del self._candidates[item.number]
        measured = max(1, round(item.duration_s * 1e9))
        correction = measured - self._charged.pop(item.number, 0)
        account = self._accounts[item.node.id]
        account.end(measured)
        account.charge(correction)
        if self._ordering is not None:
            self._ordering.charge(item.node.id, self._lane_id, correction)

    def _picked(self) -> int:
        candidate = self._ordering.pick() if self._ordering is not None else None
        if candidate is None:
            raise ValueError("it picked nobody although somebody is ready")
        return candidate.id

    def _ranked(self, epoch_id: int) -> int:
        decisions = self._policy.rank(self._snapshot(epoch_id))
        if len(decisions) != 1:
            raise ValueError(f"it made {len(decisions)} decisions for one slot")
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

    def _candidate(self, item: Item) -> Candidate:
        node, budget_s = item.node, item.node.unit.budget_s
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

    def _account(self, item: Item) -> _Account:
        account = self._accounts.get(item.node.id)
        if account is None:
            account = self._accounts[item.node.id] = _Account(RANK_WEIGHTS[item.node.rank] * WEIGHT_UNIT)
            if self._ordering is not None:
                self._ordering.account("owner", item.node.id, account.shown(item.node.last_epoch_id))
        return account

    def _level_time(self) -> LevelTime:
        """The virtual time of the components that have work here."""
        busy = [(owner, account) for owner, account in self._accounts.items() if account.is_busy]
        if not busy:
            return LevelTime.at(max((account.virtual_time for account in self._accounts.values()), default=0))
        return level_time(Sibling(owner, account.weight, account.virtual_time, REQUEST_NS) for owner, account in busy)


class _Account:
    """Where a component stands on its lane."""

    __slots__ = ("ended", "live", "usage", "virtual_time", "waiting", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.virtual_time = self.usage = self.waiting = self.live = self.ended = 0

    @property
    def is_busy(self) -> bool:
        """Whether it has work waiting or under way."""
        return self.waiting > 0 or self.live > 0

    def join(self, time: LevelTime) -> None:
        """One more waits; after a pause it starts at the time of the others, so that pausing saves nothing up."""
        if not self.is_busy:
            self.virtual_time = joined(self.virtual_time, time)
        self.waiting += 1

    def start(self) -> None:
        """One of those that wait is executed."""
        self.waiting -= 1
        self.live += 1

    def end(self, measured_ns: int) -> None:
        """One was executed."""
        self.live -= 1
        self.ended += 1
        self.usage += measured_ns

    def charge(self, cost_ns: int) -> None:
        """It used so much more."""
        self.virtual_time = charged(self.virtual_time, cost_ns, self.weight)

    def shown(self, last_epoch_id: int) -> Account:
        """As a policy sees it."""
        return Account(
            weight=self.weight,
            virtual_time=self.virtual_time,
            request=REQUEST_NS,
            usage=self.usage,
            live=self.live,
            ended=self.ended,
            last_run_at=last_epoch_id,
        )
