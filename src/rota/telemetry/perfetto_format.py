"""A timeline as Perfetto's own binary format: a protobuf `Trace` of track descriptors and track events.

Six message types with few fields are needed, so the bytes are written here, without a protobuf library. The numbers are
those of `perfetto_trace.proto`, which may gain fields but never renumbers one:

    Trace            packet 1
    TracePacket      timestamp 8, trusted_packet_sequence_id 10, track_event 11, sequence_flags 13, track_descriptor 60
    TrackDescriptor  uuid 1, name 2, parent_uuid 5, child_ordering 11, sibling_order_rank 12
    TrackEvent       debug_annotations 4, type 9, track_uuid 11, categories 22, name 23, flow_ids 47,
                     terminating_flow_ids 48
    DebugAnnotation  bool_value 2, int_value 4, double_value 5, string_value 6, name 10

Slices of one track must be nested, so overlapping ones have lanes, each a track of the same name: the viewer shows them
as one. Times are nanoseconds since the epoch; the viewer counts from the first one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import groupby

from rota.telemetry.span_records import SpanAttributes
from rota.telemetry.timeline import FlowArrow, Instant, Slice, Timeline, Track

__all__ = ["timeline_to_perfetto"]

_SEQUENCE = 1  # one writer has written everything
_STATE_CLEARED = 1  # SEQ_INCREMENTAL_STATE_CLEARED: nothing refers to earlier packets
_BEGIN, _END, _INSTANT = 1, 2, 3  # TrackEvent.Type
_EXPLICIT = 3  # TrackDescriptor.ChildTracksOrdering: by sibling_order_rank
_INT64_MAX = 2**63 - 1
_SEVEN_BITS = 0x7F


def timeline_to_perfetto(timeline: Timeline) -> bytes:
    """Return the bytes to write."""
    packets = [*_descriptors(timeline), *(packet for _, packet in sorted(_events(timeline), key=lambda each: each[0]))]
    first = _uint(13, _STATE_CLEARED)
    return b"".join(
        _message(1, packet + _uint(10, _SEQUENCE) + (first if not number else b""))
        for number, packet in enumerate(packets)
    )


def _uuid(*names: object) -> int:
    """Return the id of a track: 64 bits, never 0, which is the track of what has none."""
    text = "\x00".join(map(str, names)).encode("utf-8", "replace")
    return int.from_bytes(blake2b(text, digest_size=8).digest()) or 1


def _descriptors(timeline: Timeline) -> Iterator[bytes]:
    tracks = timeline.tracks
    for group in dict.fromkeys(track.group for track in tracks):
        yield _message(60, _uint(1, _uuid(group)) + _text(2, group) + _uint(11, _EXPLICIT))
    for rank, track in enumerate(tracks):
        body = _uint(1, _uuid(*track)) + _text(2, track.name) + _uint(5, _uuid(track.group)) + _uint(12, rank)
        yield _message(60, body)


def _events(timeline: Timeline) -> Iterator[tuple[int, bytes]]:
    """Yield the events with their times; those of one track are in the order in which they nest."""
    starts, ends = _flow_ids(timeline.flows)
    of_track = sorted(
        timeline.slices, key=lambda each: (each.track, each.start_ns, -each.end_ns, each.category != "process")
    )
    for track, slices in groupby(of_track, key=lambda each: each.track):
        yield from _nested(track, slices, ends)
    for instant in timeline.instants:
        yield instant.at_ns, _event(instant.at_ns, _INSTANT, instant.track, instant)
    for (track, at_ns), flows in starts.items():
        body = b"".join(_fixed(47, flow_id) for flow_id, _ in flows)
        names = ", ".join(name for _, name in flows[:3])
        enqueued = Instant(track=track, name=names, category="spawn", at_ns=at_ns)
        yield at_ns, _event(at_ns, _INSTANT, track, enqueued, body)


def _nested(
    track: Track, slices: Iterable[Slice], ends: dict[tuple[Track, int], list[int]]
) -> Iterator[tuple[int, bytes]]:
    """Yield begins and ends so that every end closes the slice that began last."""
    open_until: list[int] = []
    for each in slices:
        while open_until and open_until[-1] <= each.start_ns:
            yield open_until[-1], _event(open_until.pop(), _END, track)
        until_ns = min([each.end_ns, *open_until])
        arrows = b""
        if each.category == "process":
            arrows = b"".join(_fixed(48, flow_id) for flow_id in ends.get((track, each.start_ns), ()))
        yield each.start_ns, _event(each.start_ns, _BEGIN, track, each, arrows)
        open_until.append(until_ns)
    while open_until:
        yield open_until[-1], _event(open_until.pop(), _END, track)


def _flow_ids(
    flows: Iterable[FlowArrow],
) -> tuple[dict[tuple[Track, int], list[tuple[int, str]]], dict[tuple[Track, int], list[int]]]:
    """Return the ids of the arrows that begin, with their names, and that end, by track and time."""
    starts: dict[tuple[Track, int], list[tuple[int, str]]] = {}
    ends: dict[tuple[Track, int], list[int]] = {}
    for number, flow in enumerate(flows, 1):
        starts.setdefault((flow.source, flow.source_ns), []).append((number, flow.name))
        ends.setdefault((flow.target, flow.target_ns), []).append(number)
    return starts, ends


def _event(at_ns: int, kind: int, track: Track, what: Slice | Instant | None = None, more: bytes = b"") -> bytes:
    body = _uint(9, kind) + _uint(11, _uuid(*track)) + more
    if what is not None:
        body += _text(22, what.category) + _text(23, what.name) + _annotations(what.details)
    return _uint(8, at_ns) + _message(11, body)


def _annotations(details: SpanAttributes) -> bytes:
    return b"".join(_message(4, _text(10, name) + _value(value)) for name, value in details.items())


def _value(value: str | float | bool) -> bytes:
    if isinstance(value, bool):
        return _uint(2, int(value))
    if isinstance(value, int) and abs(value) <= _INT64_MAX:
        return _uint(4, value & (2**64 - 1))
    if isinstance(value, int | float):
        return _key(5, 1) + struct.pack("<d", value)
    return _text(6, value)


# --- the wire format of protobuf -----------------------------------------------------------------


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > _SEVEN_BITS:
        found.append(value & _SEVEN_BITS | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _key(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _uint(field: int, value: int) -> bytes:
    return _key(field, 0) + _varint(value)


def _fixed(field: int, value: int) -> bytes:
    return _key(field, 1) + struct.pack("<Q", value)


def _message(field: int, body: bytes) -> bytes:
    return _key(field, 2) + _varint(len(body)) + body


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode("utf-8", "replace"))
