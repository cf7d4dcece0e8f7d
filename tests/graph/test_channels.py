"""Channels: what happens to a message until its reader takes it."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import ComponentInvalid
from rota.graph.channels import ChannelFull, MessageChannel, make_channel, make_inbox
from rota.graph.messages import Message, Origin, origin_of
from rota.graph.plan import Edge
from rota.graph.reports import Reports
from rota.graph.spec import EdgePolicy, EdgeSpec, Endpoint


def channel(kind: str = "immediate", reports: Reports | None = None, **policy: Any) -> MessageChannel:
    spec = EdgeSpec(id="e", kind=kind, source="a.out", target="b.in", policy=EdgePolicy(**policy))  # type: ignore[arg-type]
    edge = Edge(spec=spec, source=Endpoint("a", "out"), target=Endpoint("b", "in"))
    return make_channel(edge, reports or Reports("run"))


def put(where: MessageChannel, *payloads: Any, at_s: float = 0.0, timestamp_ms: float | None = None) -> MessageChannel:
    for payload in payloads:
        where.put(payload, Origin(1, at_s), timestamp_ms)
    return where


def take_up_to(where: MessageChannel, now_s: float = 0.0) -> list[Any]:
    taken = []
    while (message := where.take(now_s)) is not None:
        taken.append(message.payload)
    return taken


class TestModes:
    def test_latest_keeps_the_newest_and_counts_the_others_as_overwritten(self) -> None:
        latest = put(channel(), 1, 2, 3)
        assert take_up_to(latest) == [3]
        assert (latest.overwrites, latest.drops) == (2, 0)

    def test_queue_keeps_the_order(self) -> None:
        assert take_up_to(put(channel(mode="queue", capacity=3), 1, 2, 3)) == [1, 2, 3]

    def test_ring_buffer_overwrites_the_oldest(self) -> None:
        ring = put(channel(mode="ring_buffer", capacity=2), 1, 2, 3)
        assert take_up_to(ring) == [2, 3]
        assert (ring.overwrites, ring.drops) == (1, 0)

    def test_latched_is_taken_once_and_stays_readable(self) -> None:
        latched = put(channel(mode="latched"), 7)
        assert take_up_to(latched) == [7]
        assert latched.take(0) is None
        kept = latched.read(0)
        assert kept is not None
        assert kept.payload == 7

    def test_barrier_releases_when_capacity_is_reached(self) -> None:
        barrier = put(channel(mode="barrier", capacity=3), 1, 2)
        assert take_up_to(barrier) == []
        assert take_up_to(put(barrier, 3)) == [1, 2, 3]
        assert take_up_to(put(barrier, 4)) == []

    def test_previous_tick_is_visible_after_the_epoch(self) -> None:
        previous = put(channel(mode="previous_tick"), 1, 2)
        assert take_up_to(previous) == []
        previous.begin_epoch()
        assert take_up_to(previous) == [2]

    def test_a_state_edge_keeps_its_value_whatever_its_mode(self) -> None:
        state = put(channel("state", mode="queue", capacity=2), 5)
        assert take_up_to(state) == [5]
        kept = state.read(0)
        assert kept is not None
        assert kept.payload == 5


class TestOverflow:
    def test_drop_oldest_makes_room_and_counts_a_drop(self) -> None:
        queue = put(channel(mode="queue", capacity=2, overflow="drop_oldest"), 1, 2, 3)
        assert take_up_to(queue) == [2, 3]
        assert queue.drops == 1

    def test_drop_newest_keeps_the_old_ones(self) -> None:
        queue = put(channel(mode="queue", capacity=2, overflow="drop_newest"), 1, 2, 3)
        assert take_up_to(queue) == [1, 2]
        assert (queue.drops, queue.committed) == (1, 2)

    @pytest.mark.parametrize(("overflow", "event"), [("reject", "channel_reject"), ("block", "backpressure")])
    def test_reject_and_block_refuse_the_newest_and_report_it(self, overflow: str, event: str) -> None:
        reports = Reports("run")
        queue = put(channel(mode="queue", capacity=1, overflow=overflow, reports=reports), 1, 2)
        assert take_up_to(queue) == [1]
        assert queue.rejects == 1
        assert [each.kind for each in reports.health_events] == [event]

    def test_fail_fast_raises_and_keeps_what_was_there(self) -> None:
        queue = put(channel(mode="queue", capacity=1, overflow="fail_fast"), 1)
        assert queue.room() == 0
        with pytest.raises(ChannelFull, match="1 messages are already waiting"):
            put(queue, 2)
        assert take_up_to(queue) == [1]

    @pytest.mark.parametrize("overflow", ["drop_oldest", "drop_newest", "reject", "block"])
    def test_without_allow_drop_a_loss_is_an_error(self, overflow: str) -> None:
        queue = put(channel(mode="queue", capacity=1, overflow=overflow, allow_drop=False), 1)
        with pytest.raises(ChannelFull, match="allows no loss"):
            put(queue, 2)
        assert take_up_to(queue) == [1]

    def test_an_overwrite_is_not_a_loss(self) -> None:
        queue = put(channel(mode="queue", capacity=1, overflow="overwrite", allow_drop=False), 1, 2)
        assert queue.room() is None
        assert take_up_to(queue) == [2]

    def test_in_flight_is_checked_before_capacity_and_what_is_refused_is_not_committed(self) -> None:
        queue = put(channel("async", mode="queue", capacity=1, overflow="fail_fast", max_inflight=5), 1)
        assert queue.committed == 1
        narrow = put(channel("async", mode="queue", capacity=9, max_inflight=2), 1, 2, 3)
        assert (narrow.rejects, narrow.committed, len(narrow)) == (1, 2, 2)
        take_up_to(narrow)
        assert put(narrow, 4).committed == 3

    @pytest.mark.parametrize("mode", ["queue", "ring_buffer"])
    def test_drop_oldest_makes_room_in_flight(self, mode: str) -> None:
        reports = Reports("run")
        narrow = channel("async", mode=mode, capacity=9, max_inflight=2, overflow="drop_oldest", reports=reports)
        assert take_up_to(put(narrow, 1, 2, 3, 4)) == [3, 4]
        assert (narrow.drops, narrow.rejects, narrow.committed) == (2, 0, 4)
        assert [event.kind for event in reports.health_events] == ["channel_drop"] * 2
        assert "max_inflight" in reports.health_events[0].message

    def test_drop_newest_in_flight_is_a_drop(self) -> None:
        narrow = put(channel("async", mode="queue", capacity=9, max_inflight=2, overflow="drop_newest"), 1, 2, 3)
        assert (take_up_to(narrow), narrow.drops, narrow.rejects) == ([1, 2], 1, 0)

    def test_without_allow_drop_nothing_in_flight_is_dropped(self) -> None:
        policy: dict[str, Any] = {
            "mode": "queue",
            "capacity": 9,
            "max_inflight": 1,
            "overflow": "drop_oldest",
            "allow_drop": False,
        }
        narrow = put(channel("async", **policy), 1)
        assert narrow.room() == 0
        with pytest.raises(ChannelFull, match="allows no loss"):
            put(narrow, 2)
        assert take_up_to(narrow) == [1]

    def test_health_events_can_be_switched_off_and_counts_cannot(self) -> None:
        reports = Reports("run")
        queue = put(channel(mode="queue", overflow="reject", emit_health_events=False, reports=reports), 1, 2)
        assert (queue.rejects, queue.health_events, len(reports.health_events)) == (1, 0, 0)

    def test_an_inbox_is_bounded(self) -> None:
        reports = Reports("run")
        inbox = make_inbox("a", "request", reports)
        for number in range(inbox.capacity + 1):
            inbox.put(number, Origin(0, 0.0))
        assert (len(inbox), inbox.rejects) == (inbox.capacity, 1)


class TestAge:
    def test_a_message_past_its_lifespan_is_dropped(self) -> None:
        queue = put(channel(mode="queue", capacity=5, lifespan_ms=100), 1, at_s=0.0)
        put(queue, 2, at_s=0.05)
        assert take_up_to(queue, now_s=0.12) == [2]
        assert queue.stale_drops == 1

    def test_a_message_exactly_at_its_lifespan_is_kept(self) -> None:
        assert take_up_to(put(channel(lifespan_ms=100), 1), now_s=0.1) == [1]

    def test_a_kept_value_past_its_lifespan_is_dropped(self) -> None:
        latched = put(channel(mode="latched", lifespan_ms=100), 1)
        assert take_up_to(latched, now_s=0.05) == [1]
        assert latched.read(0.2) is None
        assert latched.peek(0.2) is None

    def test_a_message_past_its_deadline_is_delivered_and_marked(self) -> None:
        late = put(channel(deadline_ms=10), 1)
        message = late.take(0.02)
        assert message is not None
        assert message.deadline_missed
        assert late.deadline_misses == 1


class TestCopies:
    def test_copy_gives_the_reader_its_own_payload(self) -> None:
        original = {"list": [1]}
        copied = put(channel(copy_policy="copy"), original)
        original["list"].append(2)
        assert take_up_to(copied) == [{"list": [1]}]
        assert copied.payload_copies == 1

    @pytest.mark.parametrize("policy", ["shared_view", "loaned_view", "move_only"])
    def test_the_other_policies_pass_a_reference(self, policy: str) -> None:
        original = [1]
        message = put(channel(copy_policy=policy), original).take(0)
        assert message is not None
        assert message.payload is original

    def test_immutable_payloads_are_not_copied(self) -> None:
        assert put(channel(mode="queue", capacity=9), 1, "text", 2.5, None, b"x").payload_copies == 0

    def test_a_payload_that_cannot_be_copied_is_a_typed_error(self) -> None:
        with pytest.raises(ComponentInvalid, match="shared_view"):
            put(channel(), threading.Lock())


class TestClosing:
    def test_a_closed_channel_keeps_nothing_and_counts_what_it_lost(self) -> None:
        queue = put(channel(mode="queue", capacity=2, overflow="fail_fast"), 1, 2)
        queue.close()
        put(queue, 3)
        assert (take_up_to(queue), queue.drops) == ([], 3)

    def test_contents_can_be_restored_in_another_channel(self) -> None:
        first = put(channel("state", mode="previous_tick"), 1)
        first.begin_epoch()
        take_up_to(first)
        put(first, 2)
        second = channel("state", mode="previous_tick")
        second.restore(first.contents())
        assert second.offered_here == 0
        kept = second.read(0)
        assert kept is not None
        assert kept.payload == 1
        second.begin_epoch()
        message = second.take(0)
        assert message is not None
        assert (message.payload, message.id) == (2, "e#2")


class TestOrigin:
    def test_a_root_has_its_own_id_as_correlation_and_no_cause(self) -> None:
        message = put(channel(), 1).take(0)
        assert message is not None
        assert (message.id, message.correlation_id, message.causation_id) == ("e#1", "e#1", "")

    def test_correlation_is_kept_from_the_root_and_causation_names_the_last_step(self) -> None:
        root = Message("x", "first", 4, Origin(1, 0.0))
        second = Message("y", "second", 9, origin_of((root,), 1, 0.0))
        third = origin_of((None, second), 2, 0.0)
        assert (third.correlation, third.causation_id, third.epoch_id) == ("first#4", "second#9", 2)

    def test_of_a_batch_the_last_message_is_the_cause(self) -> None:
        batch = tuple(Message(number, "e", number, Origin(1, 0.0)) for number in (1, 2, 3))
        assert origin_of((batch,), 1, 0.0).causation_id == "e#3"


@given(
    capacity=st.integers(1, 5),
    overflow=st.sampled_from(["overwrite", "drop_oldest", "drop_newest", "reject", "block"]),
    steps=st.lists(st.sampled_from(["put", "take"]), max_size=40),
)
def test_a_queue_never_exceeds_its_capacity_and_every_message_is_accounted_for(
    capacity: int, overflow: str, steps: list[str]
) -> None:
    queue = channel(mode="queue", capacity=capacity, overflow=overflow)
    model: deque[int] = deque()
    taken = 0
    for number, step in enumerate(steps):
        if step == "take":
            message = queue.take(0)
            assert (message.payload if message else None) == (model.popleft() if model else None)
            taken += message is not None
        else:
            put(queue, number)
            if len(model) == capacity and overflow in ("overwrite", "drop_oldest"):
                model.popleft()
            if len(model) < capacity:
                model.append(number)
        assert len(queue) <= capacity
    lost = queue.drops + queue.overwrites + queue.rejects
    assert queue.offered_here == taken + len(queue) + lost
