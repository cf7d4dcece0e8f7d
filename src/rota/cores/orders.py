"""What the policy service says, and what the engine does without it.

The service is asked at slow boundaries only, and its answers are orders: weights, the rule of the fair queues,
who is to go first on a core. Each carries the epoch of the settings it was made under. After a reload older
orders mean nothing any more: they are dropped and counted. No order can break anything: whoever it names is
looked up, whatever it asks is checked, and budgets, masks and leases hold as before.

When the service is lost, the engine goes on by round robin, which needs no weights and trusts nobody, and
leases that say so are revoked. When it is back, in a new epoch, the rule is again the one that was wanted; what
everybody has had meanwhile was kept, so nobody gains by the outage.
"""

from __future__ import annotations

from collections.abc import Sequence

from rota.cores.accounts import slice_of
from rota.cores.events import Arrange, Decision, Reweigh, ServiceBack, ServiceLost, UseRule
from rota.cores.evidence import Evidence
from rota.cores.leases import Leases
from rota.cores.queues import Queues
from rota.cores.runqueue import RULES, Rule
from rota.errors import ContextInvalid
from rota.model.checks import Checks
from rota.model.work import WEIGHT_MAX

__all__ = ["FRONT_MAX", "Orders"]

FRONT_MAX = 64  # entities that an order may put first on one core

_checks = Checks("Order", ContextInvalid)


class Orders:
    """The policy service as the engine sees it."""

    def __init__(self, queues: Queues, leases: Leases, evidence: Evidence) -> None:
        self._queues = queues
        self._leases = leases
        self._evidence = evidence
        self._wanted: Rule = queues.rule
        self.epoch = 0
        self.is_lost = False

    def is_current(self, epoch: int) -> bool:
        """Whether an order of this epoch still counts; if not, it is counted as dropped."""
        if epoch == self.epoch and not self.is_lost:
            return True
        self._evidence.stale_orders += 1
        return False

    def begin_epoch(self, epoch: int) -> None:
        """Settings were read anew: orders of older epochs mean nothing any more."""
        self.epoch = _checks.whole("epoch", epoch, self.epoch + 1)

    def service_lost(self, _event: ServiceLost, now: int) -> Sequence[Decision]:
        """Go on by round robin."""
        out: list[Decision] = []
        if not self.is_lost:
            self.is_lost = True
            self._evidence.fallbacks += 1
            self._queues.change_rule("round_robin")
            for core in self._queues.cores:
                core.front.clear()
            self._leases.service_lost(now, out)
        return out

    def service_back(self, event: ServiceBack, _now: int) -> Sequence[Decision]:
        """Go on as the service wants, in its new epoch."""
        self.begin_epoch(event.epoch)
        self.is_lost = False
        self._queues.change_rule(self._wanted)
        return ()

    def reweigh(self, event: Reweigh, now: int) -> Sequence[Decision]:
        """Give an entity another weight and latency class; what it is owed stays as it is."""
        entity = self._queues.entity(event.entity)
        weight = _checks.whole("weight", event.weight, 1, WEIGHT_MAX)
        slice_ns = slice_of(event.latency_class, None)
        if self.is_current(event.epoch):
            self._queues.reweigh(entity, weight, slice_ns, now)
            entity.ties.latency_class = event.latency_class
        return ()

    def use_rule(self, event: UseRule, _now: int) -> Sequence[Decision]:
        """Order the fair queues by another rule."""
        _checks.one_of("rule", event.rule, RULES)
        if self.is_current(event.epoch):
            self._wanted = event.rule
            self._queues.change_rule(event.rule)
        return ()

    def arrange(self, event: Arrange, _now: int) -> Sequence[Decision]:
        """Of those who wait on a core, let some go first. Whoever does not wait there is passed over."""
        core = self._queues.core(event.core)
        _checks.whole("entities", len(event.entities), 0, FRONT_MAX)
        if self.is_current(event.epoch):
            core.front.clear()
            core.front.extend(event.entities)
            core.has_urgent = len(core.front) > 0 or len(core.reserved) > 0
        return ()
