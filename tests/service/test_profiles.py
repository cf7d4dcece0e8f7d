"""Profiles: what a hint grants, per epoch."""

from __future__ import annotations

from typing import Any

import pytest

from rota.errors import PolicyInvalid
from rota.service.profiles import DEFAULTS, HINTS, Profile, ProfileTable


def test_there_are_five_hints_with_different_profiles() -> None:
    assert HINTS == ("latency_sensitive", "batch", "driver", "poller", "agent")
    assert set(DEFAULTS) == set(HINTS)
    assert len(set(DEFAULTS.values())) == 5
    profiles = ProfileTable()
    assert profiles.find("latency_sensitive").latency_class == "sensitive"
    assert profiles.find("batch").weight < profiles.find("agent").weight < profiles.find("driver").weight
    assert profiles.find("poller").budget_ns is not None


def test_a_subjects_own_profile_replaces_that_of_the_hint() -> None:
    profiles = ProfileTable(by_subject={"billing": Profile(weight=7000)})
    assert profiles.find("batch", "billing").weight == 7000
    assert profiles.find("batch", "another") == DEFAULTS["batch"]


def test_a_reload_begins_the_next_epoch_and_leaves_the_old_table_unchanged() -> None:
    old = ProfileTable()
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
        ({"batch": {"weight": "heavy"}}, r"changes\['batch'\].*is not a profile: weight: expected a whole number"),
        ({"batch": {"weight": 0}}, "weight"),
        ({"batch": {"colour": "blue"}}, "colour"),
        ({"batch": {"budget_ns": 5, "period_ns": 4}}, "budget_ns"),
        ({"batch": {"criticality": "extreme"}}, "criticality"),
        ({"subject:": {"weight": 1}}, "must not be empty"),
    ],
)
def test_a_bad_change_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyInvalid, match=words):
        ProfileTable().reload(changes)


def test_a_table_must_have_every_hint() -> None:
    with pytest.raises(PolicyInvalid, match="has no profile for batch"):
        ProfileTable(by_hint={hint: profile for hint, profile in DEFAULTS.items() if hint != "batch"})
    with pytest.raises(PolicyInvalid, match="must be one of"):
        ProfileTable().find("urgent")  # type: ignore[arg-type]  # the point of the test
