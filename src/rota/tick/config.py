"""The configuration of a tick scheduler, and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rota.errors import PolicyInvalid, UnknownPolicy
from rota.model.checks import Checks
from rota.model.work import Intent
from rota.policy import registry
from rota.policy.contract import Policy
from rota.policy.ranking import GROWTHS, INTENT_WEIGHTS, Growth

__all__ = ["SchedulerConfig", "SchedulerMetrics", "SchedulingPolicy"]

_checks = Checks("SchedulerConfig", PolicyInvalid)


class SchedulingPolicy(StrEnum):
    """The three orders of the tick world itself."""

    ROUND_ROBIN = "ROUND_ROBIN"  # by pid; with `max_per_tick`, the agents that ran longest ago
    WEIGHTED_PRIORITY = "WEIGHTED_PRIORITY"  # priority + starvation boost
    INTENT_WEIGHTED = "INTENT_WEIGHTED"  # priority × weight of the intent + starvation boost


def _default_intent_weights() -> dict[Intent, float]:
    return {Intent(intent): weight for intent, weight in INTENT_WEIGHTS.items()}


@dataclass(frozen=True)
class SchedulerConfig:
    """How a tick scheduler orders agents. Checked when it is made.

    `policy` is one of the three orders above, the name of a registered policy, or a policy with its parameters bound.
    The default of `starvation_growth` is linear if `max_per_tick` is set, else fixed.
    """

    policy: SchedulingPolicy | str | Policy = SchedulingPolicy.ROUND_ROBIN
    max_starvation_ticks: int = 5  # boost after this many ticks without a run
    starvation_boost: float = 2.0  # added to the priority of a starved agent
    intent_weights: Mapping[Intent, float] = field(default_factory=_default_intent_weights)
    max_per_tick: int | None = field(default=None, kw_only=True)  # maximum of agents per tick
    starvation_growth: Growth | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", _known_policy(self.policy))
        _checks.whole("max_starvation_ticks", self.max_starvation_ticks, 1)
        _checks.number("starvation_boost", self.starvation_boost, 0)
        for intent, weight in self.intent_weights.items():
            _checks.one_of("intent_weights", intent, tuple(Intent))
            _checks.number(f"intent_weights[{intent}]", weight, 0)
        # a copy, so that the checked values cannot change
        object.__setattr__(self, "intent_weights", {Intent(key): weight for key, weight in self.intent_weights.items()})
        if self.max_per_tick is not None:
            _checks.whole("max_per_tick", self.max_per_tick, 1)
        if self.starvation_growth is not None:
            _checks.one_of("starvation_growth", self.starvation_growth, GROWTHS)

    @property
    def growth(self) -> Growth:
        """How the boost grows, with the default resolved."""
        if self.starvation_growth is not None:
            return self.starvation_growth
        return "fixed" if self.max_per_tick is None else "linear"


@dataclass
class SchedulerMetrics:
    """What a tick scheduler has counted since it was made."""

    total_schedules_built: int = 0
    total_agents_scheduled: int = 0  # sum of the lengths of all schedules
    starvation_boosts: int = 0  # sum over all ticks of the ready agents with a boost
    skipped_agents: int = 0  # sum over all ticks of the BLOCKED and TERMINATED agents
    policy_failures: int = field(default=0, kw_only=True)  # ticks in which strict order replaced a failed policy


def _known_policy(policy: SchedulingPolicy | str | Policy) -> SchedulingPolicy | str | Policy:
    """Return one of the tick world's own orders (in either spelling), a registered policy's name, or a policy."""
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise _checks.refuse("policy", f"must be a name or a policy, not {policy!r}")
    if policy.upper() in SchedulingPolicy.__members__:
        return SchedulingPolicy(policy.upper())
    if policy not in registry.names():
        known = ", ".join([*SchedulingPolicy, *registry.names()])
        raise UnknownPolicy(f"there is no policy {policy!r}", hint=f"Known policies: {known}.", policy=policy)
    return policy
