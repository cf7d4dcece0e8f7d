"""What a tick scheduler is told, and what it counts."""

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
    """The three orders that the tick world has of its own."""

    ROUND_ROBIN = "ROUND_ROBIN"  # by pid; with a capacity, whoever ran longest ago
    WEIGHTED_PRIORITY = "WEIGHTED_PRIORITY"  # priority + starvation boost
    INTENT_WEIGHTED = "INTENT_WEIGHTED"  # priority × weight of the intent + starvation boost


def _default_intent_weights() -> dict[Intent, float]:
    return {Intent(intent): weight for intent, weight in INTENT_WEIGHTS.items()}


@dataclass(frozen=True)
class SchedulerConfig:
    """How a tick scheduler orders. Checked when it is made.

    `policy` is one of the three above, the name of any registered policy, or a policy with its parameters
    bound. `starvation_growth` None means linear where `max_per_tick` makes agents wait, else fixed.
    """

    policy: SchedulingPolicy | str | Policy = SchedulingPolicy.ROUND_ROBIN
    max_starvation_ticks: int = 5  # boost after so many ticks without a run
    starvation_boost: float = 2.0  # what is added to the priority of a starved agent
    intent_weights: Mapping[Intent, float] = field(default_factory=_default_intent_weights)
    max_per_tick: int | None = field(default=None, kw_only=True)  # agents that can run in one tick
    starvation_growth: Growth | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", _known_policy(self.policy))
        _checks.whole("max_starvation_ticks", self.max_starvation_ticks, 1)
        _checks.number("starvation_boost", self.starvation_boost, 0)
        for intent, weight in self.intent_weights.items():
            _checks.one_of("intent_weights", intent, tuple(Intent))
            _checks.number(f"intent_weights[{intent}]", weight, 0)
        # its own copy: what was checked is what stays
        object.__setattr__(self, "intent_weights", {Intent(key): weight for key, weight in self.intent_weights.items()})
        if self.max_per_tick is not None:
            _checks.whole("max_per_tick", self.max_per_tick, 1)
        if self.starvation_growth is not None:
            _checks.one_of("starvation_growth", self.starvation_growth, GROWTHS)

    @property
    def growth(self) -> Growth:
        """How the boost grows, decided."""
        if self.starvation_growth is not None:
            return self.starvation_growth
        return "fixed" if self.max_per_tick is None else "linear"


@dataclass
class SchedulerMetrics:
    """What a tick scheduler has counted since it was made."""

    total_schedules_built: int = 0
    total_agents_scheduled: int = 0  # the lengths of the schedules, added up
    starvation_boosts: int = 0  # ready agents with a boost other than zero, added up over the ticks
    skipped_agents: int = 0  # BLOCKED and TERMINATED agents, added up over the ticks
    policy_failures: int = field(default=0, kw_only=True)  # ticks in which strict order stood in


def _known_policy(policy: SchedulingPolicy | str | Policy) -> SchedulingPolicy | str | Policy:
    """One of the tick world's own orders under either spelling, else a registered policy's name, or a policy."""
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str):
        raise _checks.refuse("policy", f"must be a name or a policy, not {policy!r}")
    if policy.upper() in SchedulingPolicy.__members__:
        return SchedulingPolicy(policy.upper())
    if policy not in registry.names():
        known = ", ".join([*SchedulingPolicy, *registry.names()])
        raise UnknownPolicy(f"no policy is called {policy!r}", hint=f"There are: {known}.", policy=policy)
    return policy
