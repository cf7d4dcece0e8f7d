"""Policies are found by name, and what is wrong with a name or a parameter is said."""

from __future__ import annotations

import pytest

from rota.errors import PolicyInvalid, UnknownPolicy
from rota.model.snapshot import Snapshot
from rota.policy import registry
from rota.policy.contract import Policy


def test_an_unknown_name_lists_the_names_there_are() -> None:
    with pytest.raises(UnknownPolicy, match="Choose one of: strict, "):
        registry.make("fifo")


@pytest.mark.parametrize(
    "params",
    [
        {"max_wait": 0},
        {"max_wait": float("nan")},
        {"max_wait": -1},
        {"max_wait": True},
        {"starvation_boost": float("inf")},
        {"growth": "quadratic"},
        {"wait_max": 3},
    ],
)
def test_a_bad_parameter_is_refused(params: dict[str, object]) -> None:
    with pytest.raises(PolicyInvalid):
        registry.make("weighted_priority", **params)


def test_a_bad_intent_weight_is_refused() -> None:
    with pytest.raises(PolicyInvalid, match="intent_weights"):
        registry.make("intent_weighted", intent_weights={"DOMINATE": float("nan")})


def test_parameters_and_their_defaults_can_be_read() -> None:
    assert registry.parameters("weighted_priority") == {"max_wait": 5, "starvation_boost": 2.0, "growth": "linear"}


class _Point:
    """What another package's entry point looks like."""

    def __init__(self, name: str, factory: object) -> None:
        self.name, self.value, self._factory = name, "elsewhere:factory", factory

    def load(self) -> object:
        return self._factory


def _lazy(**params: object) -> Policy:
    return Policy(name="lazy", rank=lambda _snapshot: (), sentence=f"Never runs anything. {params}")


def test_another_package_adds_a_policy_and_cannot_replace_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [_Point("lazy", _lazy), _Point("strict", _lazy), _Point("wrong", lambda: "not a policy")]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points if group == registry.GROUP else [])
    registry._factories.cache_clear()
    try:
        assert registry.make("lazy", speed=1).rank(Snapshot()) == ()
        assert registry.make("strict").sentence.startswith("Higher priority first")
        with pytest.raises(PolicyInvalid, match="did not return a Policy"):
            registry.make("wrong")
    finally:
        registry._factories.cache_clear()
