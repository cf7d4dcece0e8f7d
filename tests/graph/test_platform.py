"""A lane field gets an advisory exactly if it is set and not applied."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import pytest

from rota.graph.capabilities import IMPLEMENTED, Platform, capability, ignored_fields, probe
from rota.graph.spec import AGENT_TYPE, LANE_TYPES, LaneSpec, LaneType
from tests.graph.drafts import BARE, FULL, checked, draft


def ignored(kind: LaneType, platform: Platform = FULL, **fields: Any) -> list[str]:
    """Return the fields of one lane that have an advisory."""
    agent = {"id": "a", "type": AGENT_TYPE, "execution": {"agent": "researcher"}}
    components = [agent if kind == "fleet" else "a"]
    document = draft(components, lanes={"main": {"type": kind, **fields}}, version=2)
    diagnostics = checked(document, platform=platform).diagnostics
    assert {(each.code, each.severity) for each in diagnostics} <= {("advisory_lane_field_ignored", "advisory")}
    return [each.graph_path.removeprefix("lanes.main.") for each in diagnostics]


@pytest.mark.parametrize("kind", LANE_TYPES)
@pytest.mark.parametrize("platform", [BARE, FULL], ids=["bare", "full"])
def test_a_lane_left_at_its_defaults_has_no_advisory(kind: LaneType, platform: Platform) -> None:
    assert ignored(kind, platform) == []


@pytest.mark.parametrize("kind", LANE_TYPES)
@pytest.mark.parametrize("field", ["priority", "isolation_intent"])
def test_a_field_that_no_platform_applies_is_always_advisory(kind: LaneType, field: str) -> None:
    setting: dict[str, Any] = {field: "high"}
    assert ignored(kind, **setting) == [field]


OS_SETTINGS: list[tuple[dict[str, Any], list[str]]] = [
    ({"cpu_affinity": [0, 1]}, ["cpu_affinity"]),
    ({"nice_priority": 5}, ["nice_priority"]),
    ({"nice_priority": -5}, ["nice_priority"]),
    ({"rt_policy": "fifo", "rt_priority": 10}, ["rt_policy", "rt_priority"]),
    ({"rt_policy": "rr", "rt_priority": 1}, ["rt_policy", "rt_priority"]),
]


@pytest.mark.parametrize(("setting", "fields"), OS_SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["thread_pool", "isolated_thread", "process_pool"])
def test_a_setting_is_applied_to_workers_if_the_platform_allows_it(
    kind: LaneType, setting: dict[str, Any], fields: list[str]
) -> None:
    assert ignored(kind, FULL, **setting) == []
    assert ignored(kind, BARE, **setting) == fields
    lane = msgspec.convert({"type": kind, **setting}, LaneSpec)
    assert capability("main", lane, FULL).applied_fields == tuple(fields)
    assert capability("main", lane, BARE).ignored_fields == tuple(fields)


@pytest.mark.parametrize(("setting", "fields"), OS_SETTINGS, ids=str)
@pytest.mark.parametrize("kind", ["event_loop", "fixed_rate", "manual_step", "queue"])
def test_a_setting_is_advisory_on_lanes_without_workers(
    kind: LaneType, setting: dict[str, Any], fields: list[str]
) -> None:
    assert ignored(kind, FULL, **setting) == fields


@pytest.mark.parametrize(
    ("kind", "platform", "applied"),
    [
        ("thread_pool", FULL, True),
        ("isolated_thread", FULL, True),
        ("thread_pool", BARE, False),
        ("process_pool", FULL, True),
        ("event_loop", FULL, False),
        ("manual_step", FULL, False),
    ],
)
def test_a_thread_name_needs_persistent_workers(kind: LaneType, platform: Platform, applied: bool) -> None:
    assert ignored(kind, platform, thread_name="worker") == ([] if applied else ["thread_name"])


SETTINGS = (
    "priority",
    "thread_name",
    "cpu_affinity",
    "nice_priority",
    "rt_policy",
    "rt_priority",
    "isolation_intent",
)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", ["event_loop", "fixed_rate"])
def test_a_plain_lane_lists_every_advisory_field_set_or_not(kind: LaneType, version: int) -> None:
    assert capability("main", LaneSpec(type=kind), FULL, version).advisory_fields == SETTINGS
    also_set = LaneSpec(type=kind, max_threads=3, nice_priority=1)
    assert capability("main", also_set, FULL, version).advisory_fields == (SETTINGS[0], "max_threads", *SETTINGS[1:])
    assert capability("main", also_set, FULL, version).ignored_fields == ("max_threads", "nice_priority")


@pytest.mark.parametrize("kind", ["thread_pool", "process_pool", "isolated_thread"])
def test_a_lane_with_workers_lists_what_it_would_not_apply_here(kind: LaneType) -> None:
    assert capability("main", LaneSpec(type=kind), BARE).advisory_fields == SETTINGS
    assert capability("main", LaneSpec(type=kind), FULL).advisory_fields == ("priority", "isolation_intent")
    no_realtime = msgspec.structs.replace(FULL, realtime=False, cpus=())
    assert capability("main", LaneSpec(type=kind), no_realtime).advisory_fields == (
        "priority",
        "cpu_affinity",
        "rt_policy",
        "rt_priority",
        "isolation_intent",
    )


@pytest.mark.parametrize(("setting", "fields"), OS_SETTINGS, ids=str)
def test_in_schema_version_1_the_settings_of_a_thread_pool_are_advisory(
    setting: dict[str, Any], fields: list[str]
) -> None:
    document = draft(["a"], lanes={"main": {"type": "thread_pool", "thread_name": "w", **setting}}, version=1)
    result = checked(document, platform=FULL)
    assert [each.graph_path.removeprefix("lanes.main.") for each in result.diagnostics] == fields
    assert {each.code for each in result.diagnostics} == {"advisory_lane_field_ignored"}
    assert result.plan is not None
    capability_of_lane = result.plan.lanes["main"].capability
    assert capability_of_lane.applied_fields == ("thread_name",)
    assert capability_of_lane.advisory_fields == tuple(field for field in SETTINGS if field != "thread_name")


@pytest.mark.parametrize("kind", LANE_TYPES)
def test_the_wall_clock_is_for_fixed_rate(kind: LaneType) -> None:
    rate: dict[str, Any] = {"hz": 5} if kind == "fixed_rate" else {}
    expected = [] if kind == "fixed_rate" else ["wall_clock_enabled"]
    assert ignored(kind, wall_clock_enabled=True, **rate) == expected


@pytest.mark.parametrize("version", [1, 2])
def test_a_wall_clock_without_a_rate_is_refused(version: int) -> None:
    lanes = {"main": {"type": "fixed_rate", "wall_clock_enabled": True}}
    (refused,) = checked(draft(["a"], lanes=lanes, version=version)).errors
    assert (refused.code, refused.graph_path) == ("graph_validation_error", "lanes.main.wall_clock_enabled")
    assert "neither period_ms nor hz is set" in refused.message
    for rate in ({"hz": 10}, {"period_ms": 10}):
        lanes = {"main": {"type": "fixed_rate", "wall_clock_enabled": True, **rate}}
        assert checked(draft(["a"], lanes=lanes, version=version)).errors == ()


def test_a_missing_permission_affects_only_its_own_setting() -> None:
    no_raise = msgspec.structs.replace(FULL, nice_below_zero=False)
    assert ignored("thread_pool", no_raise, nice_priority=5) == []
    assert ignored("thread_pool", no_raise, nice_priority=-5) == ["nice_priority"]
    assert ignored("thread_pool", msgspec.structs.replace(FULL, cpus=(0,)), cpu_affinity=[0, 1]) == ["cpu_affinity"]
    assert ignored("thread_pool", msgspec.structs.replace(FULL, cpus=(0,)), cpu_affinity=[0]) == []


@pytest.mark.parametrize(
    ("setting", "fields"),
    [
        ({"rt_policy": "fifo"}, ["rt_policy"]),
        ({"rt_priority": 10}, ["rt_priority"]),
        ({"rt_policy": "deadline", "rt_priority": 10}, ["rt_policy", "rt_priority"]),
        ({"rt_policy": "fifo", "rt_priority": 100}, ["rt_policy", "rt_priority"]),
        ({"nice_priority": 20}, ["nice_priority"]),
        ({"cpu_affinity": [-1]}, ["cpu_affinity"]),
    ],
)
def test_an_invalid_setting_is_accepted_and_advisory(setting: dict[str, Any], fields: list[str]) -> None:
    assert ignored("thread_pool", FULL, **setting) == fields


@pytest.mark.parametrize(
    ("fields", "kinds"),
    [
        ({"hz": 50}, {"fixed_rate", "isolated_thread"}),
        ({"period_ms": 5}, {"fixed_rate", "isolated_thread"}),
        ({"tick_budget_ms": 5}, {"fixed_rate", "isolated_thread"}),
        ({"max_threads": 2}, {"thread_pool", "process_pool"}),
        ({"queue_capacity": 2}, {"thread_pool", "process_pool", "isolated_thread", "manual_step"}),
        ({"overflow": "drop_oldest"}, {"thread_pool", "process_pool", "isolated_thread", "manual_step"}),
        ({"policy": "eevdf"}, {"thread_pool", "process_pool", "isolated_thread", "manual_step"}),
        ({"starvation_epochs": 3}, {"isolated_thread", "manual_step"}),
        ({"max_callback_ms": 3}, set(LANE_TYPES)),
    ],
)
def test_a_field_is_advisory_on_lane_types_that_do_not_apply_it(fields: dict[str, Any], kinds: set[str]) -> None:
    assert {kind for kind in LANE_TYPES if ignored(kind, **fields) == []} == kinds


def test_an_overrun_policy_needs_a_tick_that_can_be_late() -> None:
    assert ignored("fixed_rate", overrun_policy="skip_next") == ["overrun_policy"]
    assert ignored("fixed_rate", overrun_policy="skip_next", wall_clock_enabled=True, hz=9) == []
    assert ignored("isolated_thread", overrun_policy="skip_next") == []


def test_an_overflow_deadline_needs_overflow_block() -> None:
    assert ignored("thread_pool", overflow_deadline_ms=5, overflow="block") == []
    assert ignored("thread_pool", overflow_deadline_ms=5) == ["overflow_deadline_ms"]


def test_an_advisory_gives_the_reason() -> None:
    reasons = ignored_fields(LaneSpec(type="thread_pool", nice_priority=-1, cpu_affinity=(9,)), FULL)
    assert reasons == {"cpu_affinity": "this process is not allowed to use CPU 9"}
    no_raise = msgspec.structs.replace(FULL, nice_below_zero=False)
    assert ignored_fields(LaneSpec(type="thread_pool", nice_priority=-1), no_raise) == {
        "nice_priority": "this process is not allowed to lower its niceness"
    }


def test_every_lane_type_lists_each_feature_once() -> None:
    assert set(IMPLEMENTED) == set(LANE_TYPES)
    for words in IMPLEMENTED.values():
        assert len(words) == len(set(words))


def test_only_processes_claim_hard_preemption() -> None:
    claims = {kind: capability("x", LaneSpec(type=kind), FULL).unsupported_claims for kind in LANE_TYPES}
    assert [kind for kind, unsupported in claims.items() if "hard_preemption" not in unsupported] == ["process_pool"]
    assert all("hard_real_time" in unsupported for unsupported in claims.values())


def test_probing_does_not_change_the_calling_thread(monkeypatch: pytest.MonkeyPatch) -> None:

    before = os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)
    platform = probe.__wrapped__()
    assert before == (os.sched_getaffinity(0), os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0))
    assert platform.name == "linux"
    assert set(platform.cpus) == os.sched_getaffinity(0)
    monkeypatch.setattr("sys.platform", "plan9")
    assert probe.__wrapped__() == Platform(name="plan9")
