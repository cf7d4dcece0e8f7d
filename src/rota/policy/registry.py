"""Policies by name. Other packages add theirs under the entry point group `rota.policies`.

An entry point names a function that takes the policy's parameters as keywords and returns a `Policy`, like the ones in
this package. Parameters are bound once, here; the policy then takes a snapshot only.

A package is imported when one of its policies is first used. That may raise anything or take for ever, so it happens on
a thread of its own: whatever goes wrong is a `PolicyInvalid` with a short sentence, and a policy that could not be made
within `MAKE_TIMEOUT_S` is not tried again in this process.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from rota.errors import PolicyInvalid, UnknownPolicy
from rota.policy import deadline, flow_tree, ranking
from rota.policy.contract import Policy, as_policy
from rota.policy.fair_share import fair_share
from rota.policy.foreign import describe_error, printable

__all__ = [
    "DEFAULT_NAME",
    "DEFAULT_PARAMS",
    "GROUP",
    "MAKE_TIMEOUT_S",
    "PolicyDescription",
    "default_policy",
    "descriptions",
    "is_built_in_name",
    "make",
    "names",
    "parameters",
]

# The policy of supervisors on a store without one of its own: projects share by weight; inside a project the higher
# priority goes first, and equals share by agent weight.
DEFAULT_NAME = "eevdf"
DEFAULT_PARAMS: Mapping[str, Any] = {"priority_first": True}
GROUP = "rota.policies"
MAKE_TIMEOUT_S = 10.0  # to import another package and make its policy, in real time
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
    metadata = import_module("importlib.metadata")  # it takes longer to load than everything else here
    added = {point.name: _Lazy(point) for point in metadata.entry_points(group=GROUP) if point.name not in _BUILT_IN}
    return {**_BUILT_IN, **added}


class _Made:
    """What the thread that makes a policy has come to: a policy, or what was wrong."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.policy: Policy | None = None
        self.problem = ""


class _Lazy:
    """A factory of another package, loaded on first use."""

    def __init__(self, point: Any) -> None:
        self._point = point
        self._stalled = False

    def __call__(self, **parameters: Any) -> Policy:
        made = _Made()
        if not self._stalled:
            threading.Thread(target=self._make, args=(parameters, made), name="rota-policy", daemon=True).start()
            self._stalled = not made.done.wait(MAKE_TIMEOUT_S)
        if made.policy is not None:
            return made.policy
        problem = f"was not made within {MAKE_TIMEOUT_S:.0f} s" if self._stalled else made.problem
        raise PolicyInvalid(
            f"the policy {printable(self._point.name, 80)} of another package {problem}",
            policy=self._point.name,
            hint=f"Correct the entry point {printable(str(self._point.value), 80)}, or remove its package.",
        )

    def _make(self, parameters: dict[str, Any], made: _Made) -> None:
        try:
            returned = self._point.load()(**parameters)
            if not issubclass(type(returned), Policy):
                raise PolicyInvalid("it did not return a Policy")  # noqa: TRY301  # reported like all that may be raised
            policy = as_policy(returned)
            made.policy = replace(policy, name=self._point.name)  # it is known by the name that users write
        except BaseException as problem:  # the import and the factory are code of another package
            made.problem = f"cannot be made: {describe_error(problem)}"
        made.done.set()


def names() -> tuple[str, ...]:
    """Return the names of all registered policies."""
    return tuple(_factories())


class PolicyDescription(Struct, frozen=True):
    """A policy in words, for people who choose one."""

    name: str
    sentence: str  # its order, or why it cannot be made
    bound: str | None  # on waiting; None: it can starve
    can_be_made: bool = True


def descriptions() -> list[PolicyDescription]:
    """Return all registered policies in words; one of another package may not be usable."""
    found = []
    for name in names():
        try:
            made = make(name)
        except PolicyInvalid as problem:
            found.append(PolicyDescription(name, problem.message, "it cannot be used", can_be_made=False))
        else:
            found.append(PolicyDescription(name, made.sentence, made.bound.sentence if made.bound else None))
    return found


def is_built_in_name(name: str) -> bool:
    """Whether a policy of this name is part of rota."""
    return name in _BUILT_IN


def parameters(name: str) -> Mapping[str, Any]:
    """Return a policy's parameters with their defaults."""
    return {key: value.default for key, value in inspect.signature(_find(name)).parameters.items()}


def default_policy() -> Policy:
    """Return the policy of supervisors on a store without one of its own."""
    return make(DEFAULT_NAME, **DEFAULT_PARAMS)


def make(name: str, **params: Any) -> Policy:
    """Return the policy of this name with its parameters bound."""
    factory = _find(name)
    try:
        return factory(**params)
    except TypeError as problem:
        if params:
            known = ", ".join(parameters(name)) or "none"
            raise PolicyInvalid(f"{name} takes no such parameters: {problem}", hint=f"It takes: {known}.") from problem
        raise


def _find(name: str) -> Factory:
    factory = _BUILT_IN.get(name) or _factories().get(name)
    if factory is None:
        raise UnknownPolicy(f"no policy is called {name!r}", hint=f"Choose one of: {', '.join(names())}.", policy=name)
    return factory
