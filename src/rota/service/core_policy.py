"""Applies any policy to a core: it ranks a snapshot of the waiting entities, and the engine runs them in that order.

The engine's own rules (eevdf, wfq, round robin) decide at every pick. Any other policy is too slow for that, and not
trusted enough. It gets a snapshot of a bounded number of entities that wait on a core, at a slow boundary. The engine
puts its picks in front of the core's queue: the next slices go to them, in this order, if they still wait there.
Afterwards, and for all other entities, the engine's own rule applies.

    candidate   the entity; its group is the account it belongs to
    slots       the next slices of the core
    priority    the band of the paying context, then that context's own priority
    deadline    of the paying context
    usage       the runtime, in ns

This cannot break the engine: the reserved bands still run first, budgets, masks and leases still apply, and picked
entities that do not wait are ignored. A policy that raises, stalls or returns invalid picks counts as a failure of the
policy service.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from rota.cores import CoresEngine, SchedEntity
from rota.cores.events import Arrange, Decision
from rota.cores.policy_updates import FRONT_MAX
from rota.errors import PolicyFailed
from rota.model.budgets import CRITICALITIES
from rota.model.snapshot import Account, Candidate, Key, Slot, Snapshot
from rota.policy.contract import Policy
from rota.policy.foreign import Offer, protected_copy
from rota.service.policy_guard import PolicyGuard

__all__ = ["BAND_STEP", "CorePolicy", "OnFailure"]

BAND_STEP = 1_000_000  # more than any priority within a band

Failure = Literal["raised", "stalled", "nonsense"]
OnFailure = Callable[[Failure, str, int], Sequence[Decision]]


class CorePolicy:
    """Lets one policy choose which entities run first on the cores of one engine."""

    def __init__(self, engine: CoresEngine, policy: Policy, guard: PolicyGuard, on_failure: OnFailure) -> None:
        self._engine = engine
        self._policy = policy
        self._guard = guard
        self._on_failure = on_failure

    def arrange(self, core: int, now: int) -> Sequence[Decision]:
        """Ask the policy which waiting entities of a core run first, and send the update to the engine."""
        if self._engine.policy_updates.is_lost:
            return ()
        snapshot = self.snapshot(core, now)
        if not snapshot.candidates:
            return ()
        try:
            decisions = self._guard.run(self._policy, protected_copy(snapshot), Offer.of(snapshot))
            picks = tuple(decision.candidate_id for decision in decisions)
        except PolicyFailed as problem:
            failure: Failure = problem.data.get("failure", "raised")
            return self._on_failure(failure, problem.message, now)
        return self._engine.step(Arrange(core, picks, self._engine.policy_updates.epoch), now)

    def snapshot(self, core: int, now: int) -> Snapshot:
        """The waiting entities of a core, at most as many as an update may name, as a policy sees them."""
        shown = [self._engine.entity(number, now) for number in self._engine.waiting(core, FRONT_MAX)]
        return Snapshot(
            now=now,
            slots=tuple(map(Slot, range(len(shown)))),
            candidates=tuple(map(self._candidate, shown)),
            owners={one.entity: self._account(one, now) for one in shown},
            groups=self._groups(shown, now),
        )

    def _candidate(self, one: SchedEntity) -> Candidate:
        priority = BAND_STEP * CRITICALITIES.index("normal")
        if one.paying is not None:
            context = self._engine.context(one.paying)
            priority = BAND_STEP * CRITICALITIES.index(context.criticality) + context.priority
        return Candidate(
            id=one.entity,
            owner=one.entity,
            group=one.group,
            priority=priority,
            ready_at=one.woken_at_ns,
            deadline=one.deadline_at_ns,
            cost=one.slice_ns,
        )

    def _account(self, one: SchedEntity, now: int) -> Account:
        account = self._engine.account(one.entity, now)
        return Account(
            weight=one.weight,
            virtual_time=one.eligible,
            request=one.slice_ns,
            usage=account.runtime_ns,
            last_run_at=account.last_start_ns or 0,
        )

    def _groups(self, shown: Sequence[SchedEntity], now: int) -> dict[Key, Account]:
        """The accounts of the groups of some entities: the runtime of their members together."""
        names = {one.group for one in shown if one.group is not None}
        return {name: self._group(name, now) for name in sorted(names)}

    def _group(self, name: str, now: int) -> Account:
        weight, members = self._engine.group(name)
        return Account(weight=weight, usage=sum(self._engine.account(one, now).runtime_ns for one in members))
