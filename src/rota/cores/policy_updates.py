"""Updates from the policy service, and the fallback without it.

The engine asks the service only at slow boundaries. The service answers with updates: weights, the rule of the fair
queues, the entities to run first on a core. Each update carries the epoch of the settings it is based on. After a
reload, updates of older epochs are dropped and counted. No update can break the engine: every name is looked up, every
value is checked, and budgets, masks and leases still apply.

When the service is lost, the engine continues by its own rule with the weights it knows, and revokes leases that ask
for it. What the service arranged is forgotten. Every rule that the service may choose shares by weight and counts
usage, so an outage owes no entity more than the rule itself does, and none waits afterwards for a debt to be paid.
Round robin ignores weights: an engine may be made with it, but no update may change to it. When the service is back,
in a new epoch, its rule applies again.
"""

from __future__ import annotations

from collections.abc import Sequence

from rota.cores.accounts import slice_of
from rota.cores.events import Arrange, Decision, Reweigh, ServiceBack, ServiceLost, UseRule
from rota.cores.leases import Leases
from rota.cores.queues import Queues
from rota.cores.runqueue import Rule
from rota.cores.telemetry import Counters
from rota.errors import ContextInvalid
from rota.model.checks import Checks
from rota.model.work import WEIGHT_MAX

__all__ = ["FRONT_MAX", "PolicyUpdates"]

FRONT_MAX = 64  # entities that an update may put first on one core
WEIGHTED_RULES: tuple[Rule, ...] = ("eevdf", "wfq")  # the rules that an update may choose

_checks = Checks("PolicyUpdate", ContextInvalid)


class PolicyUpdates:
    """Applies the updates of the policy service to one engine."""

    def __init__(self, queues: Queues, leases: Leases, counters: Counters) -> None:
        self._queues = queues
        self._leases = leases
        self._counters = counters
        self._own_rule: Rule = queues.rule
        self._service_rule: Rule = queues.rule
        self.epoch = 0
        self.is_lost = False

    def is_current(self, epoch: int) -> bool:
        """Whether an update of this epoch applies; if not, count it as dropped."""
        if epoch == self.epoch and not self.is_lost:
            return True
        self._counters.stale_orders += 1
        return False

    def begin_epoch(self, epoch: int) -> None:
        """Start a new epoch after a reload: updates of older epochs no longer apply."""
        self.epoch = _checks.whole("epoch", epoch, self.epoch + 1)

    def service_lost(self, _event: ServiceLost, now: int) -> Sequence[Decision]:
        """Continue without the service, by the engine's own rule and with the weights it knows."""
        out: list[Decision] = []
        if not self.is_lost:
            self.is_lost = True
            self._counters.fallbacks += 1
            self._use(self._own_rule)
            for core in self._queues.cores:
                core.front.clear()
            self._leases.service_lost(now, out)
        return out

    def service_back(self, event: ServiceBack, _now: int) -> Sequence[Decision]:
        """Return to the rule of the service, in its new epoch."""
        self.begin_epoch(event.epoch)
        self.is_lost = False
        self._use(self._service_rule)
        return ()

    def _use(self, rule: Rule) -> None:
        if rule != self._queues.rule:
            self._queues.change_rule(rule)

    def reweigh(self, event: Reweigh, now: int) -> Sequence[Decision]:
        """Change the weight and latency class of an entity; its lag stays the same."""
        entity = self._queues.entity(event.entity)
        weight = _checks.whole("weight", event.weight, 1, WEIGHT_MAX)
        slice_ns = slice_of(event.latency_class, None)
        if self.is_current(event.epoch):
            self._queues.reweigh(entity, weight, slice_ns, now)
            entity.details.latency_class = event.latency_class
        return ()

    def use_rule(self, event: UseRule, _now: int) -> Sequence[Decision]:
        """Order the fair queues by another rule."""
        _checks.one_of("rule", event.rule, WEIGHTED_RULES)
        if self.is_current(event.epoch):
            self._service_rule = event.rule
            self._use(event.rule)
        return ()

    def arrange(self, event: Arrange, _now: int) -> Sequence[Decision]:
        """Put waiting entities of a core first. Entities that do not wait there are ignored."""
        core = self._queues.core(event.core)
        _checks.whole("entities", len(event.entities), 0, FRONT_MAX)
        if self.is_current(event.epoch):
            core.front.clear()
            core.front.extend(event.entities)
            core.update_ordinary()
        return ()
