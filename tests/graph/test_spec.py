"""The structs of a graph file: their defaults and computed properties."""

from __future__ import annotations

import msgspec
import pytest

from rota.graph.spec import (
    LANE_TYPES,
    LANE_TYPES_V1,
    VERSION_2_FIELDS,
    ComponentSpec,
    EdgePolicy,
    EdgeSpec,
    Endpoint,
    EventSource,
    ExecutionSpec,
    LaneSpec,
    TriggerPolicy,
)


def test_an_endpoint_is_split_at_its_last_dot() -> None:
    assert Endpoint.parse("cell.source.out") == Endpoint("cell.source", "out")
    assert Endpoint.parse("source.out") == Endpoint("source", "out")


def test_an_endpoint_without_a_dot_names_no_component() -> None:
    assert Endpoint.parse("source") == Endpoint("", "source")


def test_the_defaults_of_a_lane_are_those_of_version_1() -> None:
    lane = msgspec.convert({"type": "thread_pool"}, LaneSpec)
    assert (lane.hz, lane.max_threads, lane.queue_capacity, lane.overflow) == (0, 0, 0, "reject")
    assert (lane.wall_clock_enabled, lane.period_ms, lane.tick_budget_ms) == (False, 0, 0)
    assert (lane.overrun_policy, lane.cpu_affinity, lane.nice_priority) == ("drop_tick", (), 0)
    assert (lane.rt_policy, lane.rt_priority, lane.isolation_intent) == ("none", 0, "none")
    assert (lane.priority, lane.thread_name, lane.max_callback_ms) == ("", "", 0)


def test_an_edge_keeps_the_latest_message_and_copies_it_by_default() -> None:
    edge = msgspec.convert({"id": "e", "kind": "immediate", "from": "a.out", "to": "b.in"}, EdgeSpec)
    assert edge.policy.completed(durable=False) == EdgePolicy(
        mode="latest",
        capacity=1,
        overflow="overwrite",
        max_inflight=0,
        preserve_order=True,
        allow_drop=True,
        emit_health_events=True,
        timestamp_domain="steady",
        copy_policy="copy",
        owner="runtime",
        readers="single",
    )


def test_a_component_has_a_manual_trigger_by_default() -> None:
    component = msgspec.convert({"id": "a", "type": "t", "execution": {"lane": "main"}}, ComponentSpec)
    assert [source.type for source in component.event_sources] == ["manual"]
    assert component.trigger_policy.type == "manual"
    assert component.execution == ExecutionSpec(lane="main", priority="normal", on_error="fail_fast")


@pytest.mark.parametrize(("priority", "rank"), [("high", 3), ("normal", 2), ("low", 1), ("background", 0)])
def test_a_higher_priority_class_has_a_higher_rank(priority: str, rank: int) -> None:
    assert msgspec.convert({"lane": "main", "priority": priority}, ExecutionSpec).rank == rank


def test_a_period_takes_precedence_over_a_rate() -> None:
    assert LaneSpec(type="fixed_rate", hz=50, period_ms=10).period_ns == 10_000_000
    assert LaneSpec(type="fixed_rate", hz=50).period_ns == 20_000_000
    assert LaneSpec(type="fixed_rate").period_ns == 0


def test_input_is_shorthand_for_one_more_of_inputs() -> None:
    assert EventSource(type="message", input="in").ports == ("in",)
    assert TriggerPolicy(type="any_input", inputs=("a", "b"), input="c").ports == ("a", "b", "c")
    assert TriggerPolicy(type="any_input", inputs=("a",)).ports == ("a",)


def test_only_isolated_thread_and_manual_step_are_independent() -> None:
    independent = [kind for kind in LANE_TYPES if LaneSpec(type=kind).independent]
    assert independent == ["isolated_thread", "manual_step"]
    assert not any(LaneSpec(type=kind).independent for kind in LANE_TYPES_V1)


def test_the_fields_that_version_2_adds_exist() -> None:
    assert set(VERSION_2_FIELDS["lanes"]) <= set(LaneSpec.__struct_fields__)
    assert set(VERSION_2_FIELDS["execution"]) <= set(ExecutionSpec.__struct_fields__)
