"""Triggers: when a component is ready, and with which messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.graph.channels import MessageChannel, make_channel, make_inbox
from rota.graph.messages import Inputs, Origin
from rota.graph.plan import Edge
from rota.graph.reports import Reports
from rota.graph.spec import (
    ComponentSpec,
    EdgePolicy,
    EdgeSpec,
    Endpoint,
    EventSource,
    ExecutionSpec,
    TriggerPolicy,
)
from rota.graph.timed_triggers import event_ports, make_trigger
from rota.graph.triggers import ComponentTrigger


class World:
    """A component's channels and its trigger."""

    def __init__(self, *ports: str, sources: tuple[EventSource, ...] = (EventSource(),), **policy: Any) -> None:
        self.reports = Reports("run")
        self.channels: dict[str, MessageChannel] = {port: self._channel(port) for port in ports}
        self.sources = sources
        self.policy = policy
        self.iteration_id = 1

    def _channel(self, text: str) -> MessageChannel:
        port, _, kind = text.partition(":")
        mode: dict[str, Any] = {"mode": "queue", "capacity": 10} if kind != "state" else {}
        domain: Any = kind if kind in ("system", "device") else "steady"
        spec = EdgeSpec(
            id=port,
            kind="state" if kind == "state" else "immediate",
            source="a.out",
            target=f"b.{port}",
            policy=EdgePolicy(timestamp_domain=domain, **mode),
        )
        return make_channel(Edge(spec=spec, source=Endpoint("a", "out"), target=Endpoint("b", port)), self.reports)

    @property
    def trigger(self) -> ComponentTrigger:
        if not hasattr(self, "_trigger"):
            spec = ComponentSpec(
                id="b",
                type="t",
                execution=ExecutionSpec(lane="main"),
                event_sources=self.sources,
                trigger_policy=TriggerPolicy(**self.policy),
            )
            channels = list(self.channels.values())
            for port in event_ports(spec):
                self.channels[port] = make_inbox("b", port, self.reports)
                channels.append(self.channels[port])
            self._trigger = make_trigger(spec, channels)
        return self._trigger

    def put(self, port: str, *payloads: Any, at_s: float = 0.0, stamp: float | None = None) -> World:
        self.trigger  # noqa: B018  # makes the inboxes
        found = next(channel for name, channel in self.channels.items() if name.partition(":")[0] == port)
        for payload in payloads:
            found.put(payload, Origin(1, at_s), stamp)
        return self

    def ready(self, now_s: float = 0.0, iteration_id: int | None = None) -> list[tuple[Any, ...]]:
        self.iteration_id += iteration_id is None
        return [
            _payloads(inputs)
            for inputs in self.trigger.collect(now_s, self.iteration_id if iteration_id is None else iteration_id)
        ]


def _payloads(inputs: Inputs) -> tuple[Any, ...]:
    return tuple(
        [message.payload for message in given] if isinstance(given, tuple) else (given.payload if given else None)
        for given in inputs
    )


class TestManual:
    def test_it_is_ready_once_per_iteration_with_whatever_waits(self) -> None:
        world = World("in").put("in", 1, 2)
        assert world.ready(iteration_id=1) == [(1,)]
        assert world.ready(iteration_id=1) == []
        assert world.ready(iteration_id=2) == [(2,)]
        assert world.ready(iteration_id=3) == [(None,)]

    def test_without_inputs_it_is_ready_all_the_same(self) -> None:
        assert World().ready() == [()]

    def test_with_a_message_source_it_is_driven_by_messages(self) -> None:
        world = World("in", sources=(EventSource(type="message", inputs=("in",)),))
        assert world.ready() == []
        assert world.put("in", 1, 2).ready() == [(1,), (2,)]


class TestOnEvent:
    def test_a_timer_fires_immediately_and_then_once_a_period(self) -> None:
        world = World(type="on_event", sources=(EventSource(type="timer", period_ms=100),))
        assert [len(world.ready(now_s=at)) for at in (0.0, 0.05, 0.1, 0.15, 0.2)] == [1, 0, 1, 0, 1]

    def test_missed_ticks_of_a_timer_are_merged_and_its_phase_is_kept(self) -> None:
        world = World(type="on_event", sources=(EventSource(type="timer", period_ms=100),))
        world.ready(now_s=0.0)
        assert len(world.ready(now_s=0.35)) == 1
        assert world.ready(now_s=0.39) == []
        assert len(world.ready(now_s=0.4)) == 1

    def test_each_request_is_an_event(self) -> None:
        world = World(type="on_event", sources=(EventSource(type="request"),))
        assert world.put("request", "a", "b").ready() == [("a",), ("b",)]

    def test_several_sources_all_trigger(self) -> None:
        sources = (EventSource(type="manual"), EventSource(type="message", inputs=("in",)))
        world = World("in", type="on_event", sources=sources).put("in", 1)
        assert world.ready() == [(None,), (1,)]

    def test_with_ports_it_is_driven_by_these(self) -> None:
        world = World("in", type="on_event", inputs=("in",))
        assert world.ready() == []
        assert world.put("in", 1).ready() == [(1,)]


class TestAnyInput:
    def test_one_invocation_for_each_pending_message(self) -> None:
        world = World("a", "b", type="any_input").put("a", 1, 2).put("b", 3)
        assert world.ready() == [(1, None), (2, None), (None, 3)]

    def test_an_unlisted_input_triggers_nothing_and_is_passed_to_invocations(self) -> None:
        world = World("a", "side", type="any_input", inputs=("a",)).put("side", "s")
        assert world.ready() == []
        assert world.put("a", 1, 2).ready() == [(1, "s"), (2, None)]

    def test_a_kept_value_triggers_once_and_is_passed_again(self) -> None:
        world = World("a", "limit:state", type="any_input", inputs=("a", "limit")).put("limit", 5)
        assert world.ready() == [(None, 5)]
        assert world.put("a", 1).ready() == [(1, 5)]
        assert world.ready() == []


class TestAllInputs:
    def test_one_message_from_each(self) -> None:
        world = World("a", "b", type="all_inputs").put("a", 1, 2)
        assert world.ready() == []
        assert world.put("b", 3).ready() == [(1, 3)]
        assert world.put("b", 4).ready() == [(2, 4)]

    def test_a_kept_value_counts_as_present_and_one_input_must_be_new(self) -> None:
        world = World("sample", "limit:state", type="all_inputs").put("limit", 5)
        assert world.put("sample", 7).ready() == [(7, 5)]
        assert world.put("sample", 8).ready() == [(8, 5)]
        assert world.put("limit", 6).ready() == []
        assert world.put("sample", 9).ready() == [(9, 6)]


class TestTimeSync:
    def test_messages_with_close_timestamps_are_joined(self) -> None:
        world = World("a", "b", type="time_sync", sync_slop_ms=5)
        world.put("a", "a100", stamp=100).put("b", "b104", stamp=104)
        assert world.ready() == [("a100", "b104")]

    def test_the_oldest_sample_is_dropped_until_the_spread_fits(self) -> None:
        world = World("a", "b", type="time_sync", sync_slop_ms=5)
        for stamp in (80, 90, 100):
            world.put("a", f"a{stamp}", stamp=stamp)
        world.put("b", "b98", stamp=98)
        assert world.ready() == [("a100", "b98")]
        assert world.channels["a"].drops == 2

    def test_without_timestamps_it_is_plain_all_inputs(self) -> None:
        world = World("a", "b", type="time_sync", sync_slop_ms=5).put("a", 1, stamp=10).put("b", 2)
        assert world.ready() == [(1, 2)]

    def test_a_sample_waits_for_its_partner(self) -> None:
        world = World("a", "b", type="time_sync", sync_slop_ms=5).put("a", 1, stamp=100)
        assert world.ready() == []
        assert world.put("b", 2, stamp=101).ready() == [(1, 2)]


class TestBatch:
    def test_by_size(self) -> None:
        world = World("a", type="batch", batch_size=2).put("a", 1, 2, 3)
        assert world.ready() == [([1, 2],)]
        assert world.put("a", 4).ready() == [([3, 4],)]

    def test_by_the_age_of_the_first_message(self) -> None:
        world = World("a", type="batch", batch_window_ms=100).put("a", 1, at_s=0.0).put("a", 2, at_s=0.09)
        assert world.ready(now_s=0.05) == []
        assert world.ready(now_s=0.1) == [([1, 2],)]

    def test_size_counts_over_all_listed_inputs(self) -> None:
        world = World("a", "b", type="batch", batch_size=3).put("a", 1, 2).put("b", 3)
        assert world.ready() == [([1, 2], [3])]


class TestWatermark:
    def test_messages_are_released_in_order_of_timestamps(self) -> None:
        world = World("a", type="watermark", watermark_lateness_ms=10)
        for stamp in (100, 95, 112):
            world.put("a", stamp, stamp=stamp)
        assert world.ready() == [(95,), (100,)]

    def test_late_messages_are_dropped_and_counted(self) -> None:
        world = World("a", type="watermark", watermark_lateness_ms=10)
        world.put("a", 112, stamp=112).put("a", 88, stamp=88)
        assert world.ready() == []
        assert world.channels["a"].drops == 1

    def test_each_timestamp_domain_has_its_own_watermark(self) -> None:
        world = World("a:system", "b:device", type="watermark", watermark_lateness_ms=0)
        world.put("a", "s5", stamp=5).put("b", "d900", stamp=900)
        assert world.ready() == [("s5", None), (None, "d900")]

    def test_without_a_timestamp_a_message_does_not_wait(self) -> None:
        assert World("a", type="watermark", watermark_lateness_ms=10).put("a", 1).ready() == [(1,)]

    def test_it_holds_a_bounded_number_of_messages(self) -> None:
        world = World("a", type="watermark", watermark_lateness_ms=1_000_000)
        for stamp in range(200):
            world.put("a", stamp, stamp=stamp)
            assert world.ready() == []
        assert world.channels["a"].overwrites > 100


class TestConditionAndLimits:
    @pytest.mark.parametrize(
        ("condition", "expected"),
        [("all_inputs_ready", [(1, 3)]), ("any_input_ready", [(1, None), (2, None), (None, 3)])],
    )
    def test_conditions_are_the_triggers_of_that_meaning(self, condition: str, expected: list[Any]) -> None:
        world = World("a", "b", type="condition", condition=condition).put("a", 1, 2).put("b", 3)
        assert world.ready() == expected

    def test_event_timestamp_present_drops_a_head_without_one(self) -> None:
        world = World("a", type="condition", condition="event_timestamp_present")
        world.put("a", 1, 2).put("a", 3, stamp=5.0).put("a", 4)
        assert world.ready() == [(3,)]
        assert world.channels["a"].drops == 3

    def test_debounce_keeps_the_newest_of_each_input(self) -> None:
        world = World("a", "b", type="debounce").put("a", 1, 2, 3).put("b", 4, 5)
        assert world.ready() == [(3, None), (None, 5)]

    def test_coalesce_does_the_same_for_any_trigger(self) -> None:
        world = World("a", "b", type="all_inputs", coalesce=True).put("a", 1, 2, 3).put("b", 4, 5)
        assert world.ready() == [(3, 5)]

    def test_rate_limit_allows_one_and_the_others_wait(self) -> None:
        world = World("a", type="rate_limit", min_interval_ms=100).put("a", 1, 2, 3)
        assert [world.ready(now_s=at) for at in (0.0, 0.05, 0.1, 0.15, 0.25)] == [[(1,)], [], [(2,)], [], [(3,)]]

    def test_max_latency_drops_messages_that_waited_too_long(self) -> None:
        world = World("a", "b", type="all_inputs", max_latency_ms=100).put("a", 1, at_s=0.0).put("a", 2, at_s=0.08)
        assert world.put("b", 9, at_s=0.15).ready(now_s=0.15) == [(2, 9)]
        assert world.channels["a"].stale_drops == 1


class TestOutsideEvents:
    def test_requests_and_finished_tasks_have_their_own_triggers(self) -> None:
        assert World(type="request").put("request", 1).ready() == [(1,)]
        assert World(type="task_ready").put("task_ready", 2).ready() == [(2,)]

    @pytest.mark.parametrize("kind", ["request", "task_ready"])
    def test_they_also_watch_the_inputs_that_the_trigger_lists(self, kind: str) -> None:
        world = World("job", "side", type=kind, inputs=("job",)).put("job", 1, 2).put("side", "s")
        assert world.ready() == [(1, "s", None), (2, None, None)]
        assert world.put(kind, 3).ready() == [(None, None, 3)]

    @pytest.mark.parametrize("kind", ["request", "task_ready", "future_ready"])
    @pytest.mark.parametrize("trigger", ["on_event", "manual"])
    def test_a_source_of_outside_events_watches_the_inputs_it_lists(self, kind: Any, trigger: str) -> None:
        world = World("job", type=trigger, sources=(EventSource(type=kind, input="job"),)).put("job", 1)
        assert world.ready() == [(1, None)]

    def test_inputs_listed_by_the_source_alone_count_for_its_trigger_too(self) -> None:
        world = World("job", type="task_ready", sources=(EventSource(type="task_ready", inputs=("job",)),))
        assert world.put("job", 1).ready() == [(1, None)]

    def test_futures_trigger_through_a_source(self) -> None:
        world = World(type="on_event", sources=(EventSource(type="future_ready"),))
        assert world.put("future_ready", 3).ready() == [(3,)]


@given(messages=st.lists(st.integers(0, 2), max_size=30))
def test_any_input_returns_every_message_exactly_once(messages: list[int]) -> None:
    world = World("a", "b", "c", type="any_input")
    for number, port in enumerate(messages):
        world.put("abc"[port], number)
    seen = [payload for inputs in world.ready() for payload in inputs if payload is not None]
    expected = [number for port in range(3) for number, at in enumerate(messages) if at == port]
    kept = [number for number in expected if number in seen]
    assert seen == kept
    assert len(seen) == sum(min(10, messages.count(port)) for port in range(3))


@given(stamps=st.lists(st.integers(0, 60), max_size=25), lateness=st.integers(0, 20))
def test_a_watermark_never_goes_backwards(stamps: list[int], lateness: int) -> None:
    world = World("a", type="watermark", watermark_lateness_ms=lateness)
    released: list[int] = []
    for stamp in stamps:
        world.put("a", stamp, stamp=stamp)
        released += [payload for (payload,) in world.ready()]
    assert released == sorted(released)


def test_max_latency_also_drops_messages_held_by_a_watermark() -> None:
    world = World("a", type="watermark", watermark_lateness_ms=100, max_latency_ms=50)
    world.put("a", "old", at_s=0.0, stamp=10).put("a", "new", at_s=0.09, stamp=20)
    assert world.ready(now_s=0.04) == []
    assert world.put("a", "newest", at_s=0.1, stamp=500).ready(now_s=0.1) == [("new",)]
    assert world.channels["a"].stale_drops == 1


def test_a_kept_value_is_not_dropped_to_align_the_others() -> None:
    world = World("a", "limit:state", type="time_sync", sync_slop_ms=5)
    world.put("limit", "l", stamp=10).put("a", "a", stamp=12)
    assert world.ready() == [("a", "l")]
    assert world.put("a", "late", stamp=100).ready() == []
    assert world.put("limit", "fresh", stamp=99).ready() == [("late", "fresh")]
