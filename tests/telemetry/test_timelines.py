"""A stretch of the journal as a picture: tracks, slices, instants and arrows, in three formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format  # type: ignore[import-untyped]  # it has no stubs
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from rota.kernel import Kernel, ScheduleSpec
from rota.telemetry import make_timeline, read_spans, spans_to_otlp, timeline_to_chrome, timeline_to_perfetto
from rota.telemetry.span_records import SpanAttributes
from rota.telemetry.timeline import Slice, Timeline, Track
from rota.telemetry.trace_source import StoreSource
from rota.testing import InMemoryRota
from tests.telemetry.perfetto_messages import BEGIN, END, INSTANT, read_trace
from tests.telemetry.world import family, in_memory, kernel_of, pages, spans_of


@pytest.fixture
def rota() -> Iterator[InMemoryRota]:
    with in_memory() as found:
        yield found


def timeline_of(kernel: Kernel) -> Timeline:
    return make_timeline(pages(kernel), StoreSource(kernel), kernel.clock.now())


def ran(rota: InMemoryRota) -> Timeline:
    family(rota)
    assert rota.run_until_idle(slots=2).ok
    return timeline_of(kernel_of(rota))


def crowd(kernel: Kernel, clock: Any) -> None:
    """Workers with many overlapping runs, without slots; a preemption, a breach and a run that goes on."""
    pid = kernel.agents.create("agent", project_id=None)
    kernel.ledger.create(pid, {"tokens": 5})
    kernel.queue.enqueue_many([ScheduleSpec(pid)] * 9)
    entries = kernel.queue.claim(worker_id="w", max_n=4)
    clock.advance(1.0)
    kernel.queue.charge(entries[0].sched_id, {"tokens": 7}, token=entries[0].token)
    for entry in entries[:2]:
        kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
    kernel.queue.put_back(entries[2].sched_id, token=entries[2].token or 0, verb="preempt")
    clock.advance(1.0)
    kernel.ledger.update_grant(pid, "tokens", 1_000)
    kernel.queue.claim(worker_id="w", max_n=3)
    clock.advance(1.0)


def crowded(rota: InMemoryRota) -> Timeline:
    crowd(kernel_of(rota), rota.clock)
    return timeline_of(kernel_of(rota))


def lanes_of(slices: list[Slice]) -> dict[Track, list[Slice]]:
    found: dict[Track, list[Slice]] = {}
    for each in slices:
        found.setdefault(each.track, []).append(each)
    return found


def test_slots_are_tracks_and_waits_and_runs_are_slices(rota: InMemoryRota) -> None:
    timeline = ran(rota)
    workers = {track for track in timeline.tracks if track.group.startswith("worker ")}
    assert {track.name for track in workers} - {"slot-2"} == {"slot-1", "claims"}, "a function's slot too"
    assert {track for track in timeline.tracks if track.group == "waiting"} == {
        Track("waiting", "planner"),
        Track("waiting", "coder"),
    }
    counted = Counter(each.category for each in timeline.slices)
    assert counted == {"wait": 3, "process": 3, "invoke_agent": 3}
    assert next(each.name for each in timeline.slices if each.category == "process") == "process planner #1"


def test_an_arrow_leads_from_a_run_to_what_it_spawned(rota: InMemoryRota) -> None:
    timeline = ran(rota)
    (flow,) = timeline.flows
    assert flow.name == "enqueue coder"
    parent = next(each for each in timeline.slices if each.name == "invoke_agent planner #1")
    child = next(each for each in timeline.slices if each.name == "process coder #2")
    assert flow.source == parent.track
    assert parent.start_ns <= flow.source_ns <= parent.end_ns
    assert (flow.target, flow.target_ns) == (child.track, child.start_ns)


def test_claims_preemptions_and_what_budgets_stopped_are_instants(rota: InMemoryRota) -> None:
    timeline = crowded(rota)
    found = [(each.track.group, each.track.name, each.name) for each in timeline.instants]
    assert found == [
        ("worker w", "claims", "claim #1, #2, #3"),
        ("budgets and limits", "budgets", "agent 1 over tokens"),
        ("budgets and limits", "budgets", "agent 1 at 80% of tokens"),
        ("budgets and limits", "budgets", "agent 1 at 100% of tokens"),
        ("budgets and limits", "budgets", "run #1 over tokens"),
        ("budgets and limits", "returned runs", "preempt #3"),
        ("worker w", "claims", "claim #5, #6, #7"),
    ]
    assert timeline.instants[1].details["limit"] == 5


def test_slices_of_one_lane_never_overlap_and_runs_that_go_on_are_marked(rota: InMemoryRota) -> None:
    timeline = crowded(rota)
    for lane in lanes_of(timeline.slices).values():
        outer = sorted((each for each in lane if each.category != "invoke_agent"), key=lambda each: each.start_ns)
        assert all(one.end_ns <= other.start_ns for one, other in pairwise(outer))
    going_on = [each for each in timeline.slices if each.details.get("goes_on")]
    assert len(going_on) == 4
    assert len({each.track for each in going_on}) == 4


# --- formats -------------------------------------------------------------------------------------

CHROME_FIELDS = {  # of the Trace Event Format: what each phase must have besides name, pid and tid
    "X": {"ts", "dur", "cat", "args"},
    "b": {"ts", "cat", "id", "args"},
    "e": {"ts", "cat", "id", "args"},
    "i": {"ts", "s", "cat", "args"},
    "s": {"ts", "cat", "id", "args"},
    "f": {"ts", "cat", "id", "bp", "args"},
    "M": {"args"},
}


@pytest.mark.parametrize("story", [ran, crowded])
def test_a_chrome_trace_has_the_documented_fields(rota: InMemoryRota, story: Any) -> None:
    timeline = story(rota)
    trace = msgspec.json.decode(msgspec.json.encode(timeline_to_chrome(timeline)))
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    rows = trace["traceEvents"]
    for row in rows:
        assert set(row) == {"ph", "name", "pid", "tid"} | CHROME_FIELDS[row["ph"]]
        assert row.get("ts", 0) >= 0
        assert row.get("dur", 0) >= 0
    named = {(row["pid"], row["tid"]) for row in rows if row["name"] == "thread_name"}
    assert {(row["pid"], row["tid"]) for row in rows if row["ph"] != "M"} <= named, "every track has a name"
    begun, ended = ([row["id"] for row in rows if row["ph"] == phase] for phase in "be")
    assert sorted(begun) == sorted(ended)
    assert min(row["ts"] for row in rows if row["ph"] != "M") == 0
    for row in rows:
        if row["ph"] in "sf":  # an arrow begins and ends inside a slice of its track
            place = row["pid"], row["tid"]
            around = [each for each in rows if each["ph"] == "X" and (each["pid"], each["tid"]) == place]
            assert any(each["ts"] <= row["ts"] <= each["ts"] + each["dur"] for each in around)


@pytest.mark.parametrize("story", [ran, crowded])
def test_a_perfetto_trace_has_the_documented_fields_and_its_slices_nest(rota: InMemoryRota, story: Any) -> None:
    timeline = story(rota)
    packets = list(read_trace(timeline_to_perfetto(timeline)).packet)
    assert packets[0].sequence_flags == 1
    assert {packet.trusted_packet_sequence_id for packet in packets} == {1}
    tracks = {
        packet.track_descriptor.uuid: packet.track_descriptor
        for packet in packets
        if packet.HasField("track_descriptor")
    }
    assert 0 not in tracks
    assert len(tracks) == len(timeline.tracks) + len({track.group for track in timeline.tracks})
    assert all(track.parent_uuid in tracks for track in tracks.values() if track.HasField("parent_uuid"))
    events = [packet for packet in packets if packet.HasField("track_event")]
    assert [packet.timestamp for packet in events] == sorted(packet.timestamp for packet in events)
    open_slices: dict[int, list[str]] = {}
    names: list[str] = []
    for packet in events:
        event = packet.track_event
        assert event.track_uuid in tracks
        if event.type == BEGIN:
            open_slices.setdefault(event.track_uuid, []).append(event.name)
            names.append(event.name)
        elif event.type == END:
            open_slices[event.track_uuid].pop()
        else:
            assert event.type == INSTANT
    assert not any(open_slices.values()), "every slice ends"
    assert sorted(names) == sorted(each.name for each in timeline.slices)
    begun = [flow for packet in events for flow in packet.track_event.flow_ids]
    ended = [flow for packet in events for flow in packet.track_event.terminating_flow_ids]
    assert sorted(begun) == sorted(ended) == list(range(1, len(timeline.flows) + 1))
    values = {each.name: each for packet in events for each in packet.track_event.debug_annotations}
    assert values["rota.priority"].int_value == 0
    assert values["messaging.system"].string_value == "rota"


def test_numbers_of_every_kind_survive_the_perfetto_format() -> None:
    details: SpanAttributes = {"negative": -3, "large": 2**63, "share": 0.5, "yes": True, "text": "Ω"}
    one = Slice(track=Track("g", "t"), span_id="1", name="n", category="c", start_ns=1, end_ns=2, details=details)
    trace = read_trace(timeline_to_perfetto(Timeline(slices=[one], instants=[], flows=[])))
    (event,) = [packet.track_event for packet in trace.packet if packet.track_event.type == BEGIN]
    found = {each.name: each for each in event.debug_annotations}
    assert found["negative"].int_value == -3
    assert found["large"].double_value == 2.0**63
    assert found["share"].double_value == 0.5
    assert found["yes"].bool_value is True
    assert found["text"].string_value == "Ω"


def test_an_otlp_file_is_read_as_protobuf_json_and_has_the_ids_of_the_exporter(rota: InMemoryRota) -> None:
    family(rota)
    assert rota.run_until_idle().ok
    kernel = kernel_of(rota)
    spans = read_spans(pages(kernel), StoreSource(kernel))
    (request,) = spans_to_otlp(spans, {"service.name": "rota"}, "1.0")
    read = TracesData()
    json_format.ParseDict(_with_base64_ids(request), read)
    (resource,) = read.resource_spans
    assert resource.resource.attributes[0].value.string_value == "rota"
    (scope,) = resource.scope_spans
    assert (scope.scope.name, scope.scope.version) == ("rota", "1.0")
    assert [span.span_id.hex() for span in scope.spans] == [span.ref.span_id for span in spans_of(kernel)]
    failed = [span for span in scope.spans if span.status.code == 2]
    assert {span.name for span in failed} == {"process coder", "invoke_agent coder"}
    (process,) = [span for span in scope.spans if span.name == "process planner"]
    assert process.kind == 5
    assert process.links[0].span_id == process.parent_span_id


def _with_base64_ids(request: dict[str, Any]) -> dict[str, Any]:
    """OTLP writes ids as hexadecimal, plain protobuf JSON as base64: the only difference for a reader."""
    import base64  # noqa: PLC0415  # of this function only

    for scope in request["resourceSpans"][0]["scopeSpans"]:
        for span in scope["spans"]:
            for holder in (span, *span.get("links", ())):
                for name in ("traceId", "spanId", "parentSpanId"):
                    if name in holder:
                        holder[name] = base64.b64encode(bytes.fromhex(holder[name])).decode()
    return request
