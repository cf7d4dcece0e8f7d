"""Policies by name. Other packages add theirs under the entry point group `rota.policies`.

An entry point names a function that takes the policy's parameters as keywords and returns a `Policy`, like the ones in
this package. Parameters are bound once, here; the policy then takes a snapshot only.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeAlias

from rota.errors import PolicyInvalid, UnknownPolicy
from rota.policy import deadline, flow_tree, ranking
from rota.policy.contract import Policy
from rota.policy.fair_share import fair_share

__all__ = ["GROUP", "make", "names", "parameters"]

GROUP = "rota.policies"
Factory: TypeAlias = Callable[..., Policy]

_BUILT_IN: Mapping[str, Factory] = {
    "strict": ranking.strict,
    "round_robin": ranking.round_robin,
    "weighted_priority": ranking.weighted_priority,
    "intent_weighted": ranking.intent_weighted,
    "fair_share": fair_share,
    "wfq": flow_tree.wfq,
    "eevdf": flow_tree.eevdf,
    "edf": deadline.edf,
}


@cache
def _factories() -> Mapping[str, Factory]:
    """Built-in policies first: a package can add policies but not replace these."""
    added = {point.name: _Lazy(point) for point in entry_points(group=GROUP) if point.name not in _BUILT_IN}
    return {**_BUILT_IN, **added}


class _Lazy:
    """A factory of another package, loaded on first use."""

    def __init__(self, point: Any) -> None:
        self._point = point

    def __call__(self, **parameters: Any) -> Policy:
        policy = self._point.load()(**parameters)
        if not isinstance(policy, Policy):
            raise PolicyInvalid(f"{self._point.value} did not return a Policy", policy=self._point.name)
        return policy


def names() -> tuple[str, ...]:
    """Return the names of all registered policies."""
    return tuple(_factories())


def parameters(name: str) -> Mapping[str, Any]:
    """Return a policy's parameters with their defaults."""
    return {key: value.default for key, value in inspect.signature(_find(name)).parameters.items()}


def make(name: str, **params: Any) -> Policy:
    """Return the policy of this name with its parameters bound."""
    factory = _find(name)
    try:
        return factory(**params)
    except TypeError as problem:
        if params and not isinstance(factory, _Lazy):
            known = ", ".join(parameters(name)) or "none"
            raise PolicyInvalid(f"{name} takes no such parameters: {problem}", hint=f"It takes: {known}.") from problem
        raise


def _find(name: str) -> Factory:
    factory = _factories().get(name)
    if factory is None:
        raise UnknownPolicy(f"no policy is called {name!r}", hint=f"Choose one of: {', '.join(names())}.", policy=name)
    return factory
