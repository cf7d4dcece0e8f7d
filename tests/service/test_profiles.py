"""Profiles: what a hint is worth, per epoch."""

from __future__ import annotations

from typing import Any

import pytest

from rota.errors import PolicyInvalid
from rota.service.profiles import DEFAULTS, HINTS, Profile, ProfileBook


def test_there_are_five_hints_and_each_is_worth_something_of_its_own() -> None:
    assert HINTS == ("latency_sensitive", "batch", "driver", "poller", "agent")
    assert set(DEFAULTS) == set(HINTS)
    assert len(set(DEFAULTS.values())) == 5
    book = ProfileBook()
    assert book.find("latency_sensitive").latency_class == "sensitive"
    assert book.find("batch").weight < book.find("agent").weight < book.find("driver").weight
    assert book.find("poller").budget_ns is not None


def test_somebody_with_a_profile_of_its_own_gets_that_whatever_it_hints() -> None:
    book = ProfileBook(by_subject={"billing": Profile(weight=7000)})
    assert book.find("batch", "billing").weight == 7000
    assert book.find("batch", "somebody else") == DEFAULTS["batch"]


def test_a_reload_makes_the_next_epoch_and_leaves_the_old_book_as_it_was() -> None:
    old = ProfileBook()
    new = old.reload({"batch": {"weight": 250, "latency_class": "batch"}, "subject:ops": {"weight": 9000}})
    assert (old.epoch, new.epoch) == (1, 2)
    assert old.find("batch") == DEFAULTS["batch"]
    assert new.find("batch").weight == 250
    assert new.find("agent", "ops").weight == 9000
    assert new.reload({"subject:ops": None}).find("agent", "ops") == DEFAULTS["agent"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"urgent": {}}, "must be one of latency_sensitive"),
        ({"batch": {"weight": "heavy"}}, r"changes\['batch'\].*is no profile"),
        ({"batch": {"weight": 0}}, "weight"),
        ({"batch": {"colour": "blue"}}, "colour"),
        ({"batch": {"budget_ns": 5, "period_ns": 4}}, "budget_ns"),
        ({"batch": {"criticality": "extreme"}}, "criticality"),
        ({"subject:": {"weight": 1}}, "must not be empty"),
    ],
)
def test_a_bad_change_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyInvalid, match=words):
        ProfileBook().reload(changes)


def test_a_book_must_know_every_hint() -> None:
    with pytest.raises(PolicyInvalid, match="says nothing about batch"):
        ProfileBook(by_hint={hint: profile for hint, profile in DEFAULTS.items() if hint != "batch"})
    with pytest.raises(PolicyInvalid, match="must be one of"):
        ProfileBook().find("urgent")  # type: ignore[arg-type]  # the point of the test
