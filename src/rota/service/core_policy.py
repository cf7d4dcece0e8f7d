"""Any policy on a core: those who wait, as a snapshot; the order it answers, as an order to the engine.

The engine's own rules (eevdf, wfq, round robin) decide at every pick. Any other policy is too slow for that, and too
little trusted. It is shown a bounded window of those who wait on a core, at a slow boundary, and what it answers is
put in front of the core's queue: the next turns go to these, in this order, as far as they still wait there.
Afterwards, and for everybody who was not shown, the engine goes by its own rule.

    candidate   the entity; its group is the account it belongs to
    slots       the next turns of the core that asks
    priority    the band of the context that pays, then that context's own priority
    deadline    of the context that pays
    usage       what it has run, in ns

Nothing can be broken by this: the reserved bands go first as before, budgets, masks and leases hold, and whoever is
named and does not wait there is passed over. A policy that raises, stalls or answers nonsense is a policy service
that failed, and treated as such.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from rota.cores import Machine, SchedEntity
from rota.cores.events import Arrange, Decision
from rota.cores.orders import FRONT_MAX
from rota.errors import PolicyFailed
from rota.model.budgets import CRITICALITIES
from rota.model.snapshot import Account, Candidate, Decisions, Key, Slot, Snapshot
from rota.policy.contract import Policy
from rota.service.policy_guard import Leash

__all__ = ["BAND_STEP", "CoreWindow", "Failed"]

BAND_STEP = 1_000_000  # a band is worth more than any priority inside one

Failure = Literal["raised", "stalled", "nonsense"]
Failed = Callable[[Failure, str, int], Sequence[Decision]]


class CoreWindow:
    """One policy that arranges who goes first on the cores of one engine."""

    def __init__(self, machine: Machine, policy: Policy, leash: Leash, failed: Failed) -> None:
        self._machine = machine
        self._policy = policy
        self._leash = leash
        self._failed = failed

    def arrange(self, core: int, now: int) -> Sequence[Decision]:
        """Ask the policy who of those who wait on a core goes first, and tell the engine."""
        if self._machine.orders.is_lost:
            return ()
        snapshot = self.snapshot(core, now)
        if not snapshot.candidates:
            return ()
        try:
            picks = self._checked(self._leash.run(self._policy, snapshot), snapshot)
        except PolicyFailed as problem:
            failure: Failure = problem.data.get("failure", "raised")
            return self._failed(failure, problem.message, now)
        return self._machine.step(Arrange(core, picks, self._machine.orders.epoch), now)

    def snapshot(self, core: int, now: int) -> Snapshot:
        """Those who wait on a core, no more than an order may name, as a policy sees them."""
        shown = [self._machine.entity(number, now) for number in self._machine.waiting(core, FRONT_MAX)]
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
            context = self._machine.context(one.paying)
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
        account = self._machine.account(one.entity, now)
        return Account(
            weight=one.weight,
            virtual_time=one.eligible,
            request=one.slice_ns,
            usage=account.runtime_ns,
            last_run_at=account.last_start_ns or 0,
        )

    def _groups(self, shown: Sequence[SchedEntity], now: int) -> dict[Key, Account]:
        """Where the groups of those who are shown stand: what their members have run together."""
        names = {one.group for one in shown if one.group is not None}
        return {name: self._group(name, now) for name in sorted(names)}

    def _group(self, name: str, now: int) -> Account:
        weight, members = self._machine.group(name)
        return Account(weight=weight, usage=sum(self._machine.account(one, now).runtime_ns for one in members))

    def _checked(self, decisions: Decisions, snapshot: Snapshot) -> tuple[int, ...]:
        """The picks of a policy that kept the rules: nobody who was not shown, nobody twice."""
        shown = {candidate.id for candidate in snapshot.candidates}
        picks = tuple(decision.candidate_id for decision in decisions)
        if len(set(picks)) < len(picks) or not shown.issuperset(picks):
            raise PolicyFailed(
                f"{self._policy.name} picked somebody twice, or whom it was not shown",
                policy=self._policy.name,
                failure="nonsense",
            )
        return picks
