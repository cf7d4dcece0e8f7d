"""The tick scheduler: which agents run in a tick, and in which order.

    scheduler = TickScheduler(process_table, config)
    for tick in range(100):
        order = scheduler.build_schedule(tick)    # releases agents whose block is over, then orders
        ...                                       # run them, or as many as there is time for
        scheduler.record_execution(order, tick)   # those that ran: their waiting time starts again

The three orders of the tick world are computed on the columns of the process table. Any other policy ranks a snapshot.
If it raises or returns invalid picks, strict order replaces it for this tick, and the failure is counted and kept.

**Accounts.** The scheduler keeps for each agent when it last ran, how often, and its virtual time (usage divided by
weight, see `rota.policy.virtual_time`; an agent's weight is its priority in thousandths). Policies only read them.
Before a policy ranks, the accounts are updated: an agent that was absent (blocked, or not yet spawned) joins at the
virtual time of the agents that were present, so absence saves nothing up; an agent whose priority changed keeps its
lag.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from types import ModuleType

from rota.errors import InvalidPayload, PolicyFailed, UnknownPid
from rota.model.checks import Checks
from rota.model.lifecycle import AgentProcessState
from rota.model.reasons import PickReason
from rota.model.snapshot import Account, Candidate, Decision, Slot, Snapshot
from rota.model.work import WEIGHT_UNIT
from rota.policy import ranking, registry
from rota.policy.contract import Policy, as_policy, load
from rota.policy.foreign import Offer, check_decisions, check_picked, describe_error, is_built_in, protected_copy
from rota.policy.virtual_time import LevelTime, Sibling, charged, joined, level_time, reweighed
from rota.tick import ordering
from rota.tick.config import SchedulerConfig, SchedulerMetrics, SchedulingPolicy
from rota.tick.ordering import Aging, TickSchedule, ready_pids
from rota.tick.process_table import INTENTS, Columns, ProcessTable

ordering_numpy: ModuleType | None
try:
    from rota.tick import ordering_numpy
except ImportError:  # without numpy the plain form computes the same orders
    ordering_numpy = None

__all__ = ["AgentAccounts", "TickScheduler"]

NUMPY_AGENTS_MIN = 128  # below this the plain form is faster than calling numpy
ACTIVATION_COST = 1  # usage is counted in activations

_checks = Checks("TickScheduler", InvalidPayload)


class AgentAccounts:
    """The accounts of the agents of a process table, in columns with a row per pid."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.last_executed: array[int] = array("q")  # birth tick for an agent that never ran
        self.activations: array[int] = array("q")  # counted, like virtual time, only for policies that read it
        self.virtual_time: list[int] = []
        self._weights: dict[int, int] = {}  # of the agents that were ready when a policy last ranked
        self._clock = 0  # their virtual time then
        self.add_new()

    def add_new(self) -> None:
        """Add an account for every agent spawned since the last call."""
        known, spawned = len(self.last_executed), len(self._columns)
        if known < spawned:
            self.last_executed.extend(self._columns.birth_tick[known:])
            self.activations.extend([0] * (spawned - known))
            self.virtual_time.extend([0] * (spawned - known))

    def charge(self, pids: Sequence[int]) -> None:
        """Charge each agent for one activation, at the weight it was picked with."""
        for pid in pids:
            weight = self._weights.get(pid) or self._weight(pid)
            self.activations[pid] += ACTIVATION_COST
            self.virtual_time[pid] = charged(self.virtual_time[pid], ACTIVATION_COST, weight)

    def snapshot(self, ready: Sequence[int], tick: int, capacity: int | None) -> Snapshot:
        """Return the snapshot for a policy: the ready agents, each its own owner, and one slot per unit of capacity."""
        self._update(ready)
        return Snapshot(
            now=tick,
            slots=tuple(Slot(number) for number in range(len(ready) if capacity is None else capacity)),
            candidates=tuple(self._candidate(pid) for pid in ready),
            owners={pid: self._account(pid) for pid in ready},
        )

    def to_hash(self) -> str:
        """SHA-256 of every account: equal runs give equal hashes."""
        columns = (self.last_executed.tolist(), self.activations.tolist(), self.virtual_time)
        return hashlib.sha256(repr(columns).encode()).hexdigest()

    def _update(self, ready: Sequence[int]) -> None:
        before, now = self._weights, {pid: self._weight(pid) for pid in ready}
        time = self._level_time([pid for pid in ready if pid in before])
        for pid, weight in now.items():
            if pid not in before:
                self.virtual_time[pid] = joined(self.virtual_time[pid], time)
            elif before[pid] != weight:
                self.virtual_time[pid] = reweighed(self.virtual_time[pid], before[pid], weight, time)
        self._weights, self._clock = now, time.whole

    def _level_time(self, stayed: Sequence[int]) -> LevelTime:
        """The virtual time of the agents that were present last time too; without any, the last known time."""
        if not stayed:
            return LevelTime.at(self._clock)
        return level_time(Sibling(pid, self._weights[pid], self.virtual_time[pid], ACTIVATION_COST) for pid in stayed)

    def _candidate(self, pid: int) -> Candidate:
        intent = INTENTS[self._columns.intent[pid]]
        return Candidate(id=pid, owner=pid, priority=self._columns.priority[pid], intent=intent, cost=ACTIVATION_COST)

    def _account(self, pid: int) -> Account:
        return Account(
            weight=self._weight(pid),
            virtual_time=self.virtual_time[pid],
            request=ACTIVATION_COST,
            usage=self.activations[pid],
            last_run_at=self.last_executed[pid],
        )

    def _weight(self, pid: int) -> int:
        return round(self._columns.priority[pid] * WEIGHT_UNIT)


class TickScheduler:
    """Computes the execution order per tick for the agents of one process table."""

    def __init__(self, process_table: ProcessTable, config: SchedulerConfig | None = None) -> None:
        self.process_table = process_table
        self.config = config or SchedulerConfig()
        self.metrics = SchedulerMetrics()
        self.policy_failure: PolicyFailed | None = None  # the latest failure
        self._aging = Aging.of(self.config)
        self._policy = _external_policy(self.config)
        self._accounts = AgentAccounts(process_table.columns)

    def build_schedule(self, tick: int) -> list[int]:
        """Release agents whose block is over, then return the agents to run this tick, first to last."""
        _checks.whole("tick", tick)
        self.process_table.unblock_expired(tick)
        self._accounts.add_new()
        order = self._order_at(tick)
        self._count(order)
        return order.pids

    def record_execution(self, execution_order: Iterable[int], tick: int) -> None:
        """Record that these agents, all or some of a schedule, ran in this tick."""
        _checks.whole("tick", tick)
        pids = list(execution_order)
        self._accounts.add_new()
        self._ordering().record_executed(self._accounts.last_executed, pids, tick)
        if self._policy is not None:  # the tick world's own orders read no account
            self._accounts.charge(pids)

    def last_executed(self, pid: int) -> int:
        """The tick in which an agent last ran; if it never ran, its birth tick."""
        if pid not in self.process_table:
            raise UnknownPid(pid)
        self._accounts.add_new()
        return self._accounts.last_executed[pid]

    def to_hash(self) -> str:
        """SHA-256 of the metrics and accounts: equal runs give equal hashes."""
        return hashlib.sha256(f"{self.metrics} {self._accounts.to_hash()}".encode()).hexdigest()

    # --- the orders ------------------------------------------------------------------------------

    def _ordering(self) -> ModuleType:
        """The faster of two modules that compute the same orders."""
        return ordering_numpy if ordering_numpy and len(self.process_table) >= NUMPY_AGENTS_MIN else ordering

    def _order_at(self, tick: int) -> TickSchedule:
        if self._policy is not None:
            return self._ranked(self._policy, tick)
        if self.config.policy == SchedulingPolicy.ROUND_ROBIN:
            return self._by_last_executed()
        return self._by_priority(tick)

    def _by_last_executed(self) -> TickSchedule:
        columns, last = self.process_table.columns, self._accounts.last_executed
        order: TickSchedule = self._ordering().by_last_executed(columns, last, self.config.max_per_tick)
        return order

    def _by_priority(self, tick: int) -> TickSchedule:
        columns, last = self.process_table.columns, self._accounts.last_executed
        order: TickSchedule = self._ordering().by_effective_priority(
            columns, last, self._aging, tick, self.config.max_per_tick
        )
        return order

    def _ranked(self, policy: Policy, tick: int) -> TickSchedule:
        snapshot = self._accounts.snapshot(ready_pids(self.process_table.columns), tick, self.config.max_per_tick)
        try:
            pids = _picks(policy, snapshot)
        except KeyboardInterrupt:  # of the user, as far as can be told: the policy runs on the caller's thread
            raise
        except BaseException as problem:  # a failed policy must not fail the tick
            self._record_failure(policy.name, tick, problem)
            pids = _picks(ranking.strict(), snapshot)
        return TickSchedule(pids, 0)

    def _record_failure(self, policy: str, tick: int, problem: BaseException) -> None:
        words = describe_error(problem)
        self.policy_failure = PolicyFailed(f"{policy} failed at tick {tick}: {words}", policy=policy, tick=tick)
        self.metrics.policy_failures += 1

    def _count(self, order: TickSchedule) -> None:
        table, metrics = self.process_table, self.metrics
        metrics.total_schedules_built += 1
        metrics.total_agents_scheduled += len(order.pids)
        metrics.starvation_boosts += order.boosted
        metrics.skipped_agents += table.count(AgentProcessState.BLOCKED) + table.count(AgentProcessState.TERMINATED)


def _external_policy(config: SchedulerConfig) -> Policy | None:
    """The policy of a configuration; None for the tick world's own orders."""
    if isinstance(config.policy, SchedulingPolicy):
        return None
    return as_policy(config.policy) if isinstance(config.policy, Policy) else registry.make(config.policy)


def _picks(policy: Policy, snapshot: Snapshot) -> list[int]:
    """Return the picks of a policy, through its incremental ordering if it has one, or raise `PolicyFailed`."""
    trusted = is_built_in(policy)
    shown = snapshot if trusted else protected_copy(snapshot)
    if policy.incremental is not None:
        ordering = load(policy.incremental(), shown)
        picked = [check_picked(policy, ordering.pick()) for _ in snapshot.slots]
        reason = PickReason(policy.name, "next in its order")
        decisions = tuple(Decision(pid, at, reason) for at, pid in enumerate(picked) if pid is not None)
    else:
        decisions = policy.rank(shown)
    checked = decisions if trusted else check_decisions(policy, decisions, Offer.of(snapshot))
    return [decision.candidate_id for decision in checked]
