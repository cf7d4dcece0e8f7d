"""Who runs this tick, and in which order.

    scheduler = TickScheduler(process_table, config)
    for tick in range(100):
        order = scheduler.build_schedule(tick)    # releases agents whose block is over, then orders
        ...                                       # run them, or as many as there is time for
        scheduler.record_execution(order, tick)   # those that really ran: waiting starts anew for them

The three orders of the tick world are computed on the columns of the process table. Any other policy
is shown a snapshot and asked for its picks. It may answer nonsense or raise: then strict order stands
in for this tick, the failure is counted and kept, and nobody's turn is lost because of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from types import ModuleType

from rota.errors import InvalidPayload, PolicyFailed, UnknownPid
from rota.model.checks import Checks
from rota.model.lifecycle import AgentProcessState
from rota.model.snapshot import Snapshot
from rota.policy import ranking, registry
from rota.policy.contract import Policy, load
from rota.tick import order as plain_order
from rota.tick.accounts import Accounts
from rota.tick.config import SchedulerConfig, SchedulerMetrics, SchedulingPolicy
from rota.tick.order import Aging, Order, ready_pids
from rota.tick.process_table import ProcessTable

fast_order: ModuleType | None
try:
    from rota.tick import fast_order
except ImportError:  # numpy is not installed: the plain form gives the same answers
    fast_order = None

__all__ = ["TickScheduler"]

FAST_AGENTS_MIN = 128  # in a smaller table the plain form is quicker than calling numpy

_checks = Checks("TickScheduler", InvalidPayload)


class TickScheduler:
    """The order of execution, tick by tick, for the agents of one process table."""

    def __init__(self, process_table: ProcessTable, config: SchedulerConfig | None = None) -> None:
        self.process_table = process_table
        self.config = config or SchedulerConfig()
        self.metrics = SchedulerMetrics()
        self.policy_failure: PolicyFailed | None = None  # the latest
        self._aging = Aging.of(self.config)
        self._policy = _policy_to_ask(self.config)
        self._accounts = Accounts(process_table.columns)

    def build_schedule(self, tick: int) -> list[int]:
        """Release agents whose block is over, then list who runs this tick, first to last."""
        _checks.whole("tick", tick)
        self.process_table.unblock_expired(tick)
        self._accounts.open_new()
        order = self._order_at(tick)
        self._count(order)
        return order.pids

    def record_execution(self, execution_order: Iterable[int], tick: int) -> None:
        """Note that these agents, of a schedule all or some, ran in this tick."""
        _checks.whole("tick", tick)
        pids = list(execution_order)
        self._accounts.open_new()
        self._forms().note_executed(self._accounts.last_executed, pids, tick)
        if self._policy is not None:  # the tick world's own orders read no account
            self._accounts.charge(pids)

    def last_executed(self, pid: int) -> int:
        """The tick an agent last ran in; if it never ran, the tick it was born in."""
        if pid not in self.process_table:
            raise UnknownPid(pid)
        self._accounts.open_new()
        return self._accounts.last_executed[pid]

    def to_hash(self) -> str:
        """SHA-256 of what was counted and of who ran when: equal runs give equal hashes."""
        return hashlib.sha256(f"{self.metrics} {self._accounts.to_hash()}".encode()).hexdigest()

    # --- the orders ------------------------------------------------------------------------------

    def _forms(self) -> ModuleType:
        """The quicker of two forms that give the same answers."""
        return fast_order if fast_order and len(self.process_table) >= FAST_AGENTS_MIN else plain_order

    def _order_at(self, tick: int) -> Order:
        if self._policy is not None:
            return self._ranked(self._policy, tick)
        if self.config.policy == SchedulingPolicy.ROUND_ROBIN:
            return self._by_turn()
        return self._by_priority(tick)

    def _by_turn(self) -> Order:
        columns, last = self.process_table.columns, self._accounts.last_executed
        order: Order = self._forms().by_last_executed(columns, last, self.config.max_per_tick)
        return order

    def _by_priority(self, tick: int) -> Order:
        columns, last = self.process_table.columns, self._accounts.last_executed
        order: Order = self._forms().by_effective_priority(columns, last, self._aging, tick, self.config.max_per_tick)
        return order

    def _ranked(self, policy: Policy, tick: int) -> Order:
        snapshot = self._accounts.snapshot(ready_pids(self.process_table.columns), tick, self.config.max_per_tick)
        try:
            pids = _checked(_picks(policy, snapshot), snapshot)
        except Exception as problem:  # a policy may cost order, never a tick
            self._note_failure(policy.name, tick, problem)
            pids = _picks(ranking.strict(), snapshot)
        return Order(pids, 0)

    def _note_failure(self, policy: str, tick: int, problem: Exception) -> None:
        words = f"{type(problem).__name__}: {problem}"
        self.policy_failure = PolicyFailed(f"{policy} failed at tick {tick}: {words}", policy=policy, tick=tick)
        self.metrics.policy_failures += 1

    def _count(self, order: Order) -> None:
        table, metrics = self.process_table, self.metrics
        metrics.total_schedules_built += 1
        metrics.total_agents_scheduled += len(order.pids)
        metrics.starvation_boosts += order.boosted
        metrics.skipped_agents += table.count(AgentProcessState.BLOCKED) + table.count(AgentProcessState.TERMINATED)


def _policy_to_ask(config: SchedulerConfig) -> Policy | None:
    """The policy behind a configuration; None for the tick world's own three orders."""
    if isinstance(config.policy, SchedulingPolicy):
        return None
    return config.policy if isinstance(config.policy, Policy) else registry.make(config.policy)


def _picks(policy: Policy, snapshot: Snapshot) -> list[int]:
    """Whom a policy picks. Its ordering, where it has one, need not look at everybody for each pick."""
    if policy.ordering is None:
        return [decision.candidate_id for decision in policy.rank(snapshot)]
    ordering = load(policy.ordering(), snapshot)
    picks = (ordering.pick() for _ in snapshot.slots)
    return [candidate.id for candidate in picks if candidate is not None]


def _checked(pids: list[int], snapshot: Snapshot) -> list[int]:
    """A policy's picks, if they are ready agents only, nobody twice, and no more than there is room for."""
    strangers = set(pids) - {candidate.id for candidate in snapshot.candidates}
    if strangers:
        raise ValueError(f"it picked agents that are not ready: {sorted(strangers)}")
    if len(set(pids)) < len(pids):
        raise ValueError("it picked an agent twice")
    if len(pids) > len(snapshot.slots):
        raise ValueError(f"it picked {len(pids)} agents where there is room for {len(snapshot.slots)}")
    return pids
