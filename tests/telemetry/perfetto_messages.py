"""The messages of Perfetto's trace format, from the numbers and types of its published `perfetto_trace.proto`.

Only the fields that rota may write are declared: an undeclared one stays an unknown field, which the tests refuse.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]  # it has no stubs
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)

Field = descriptor_pb2.FieldDescriptorProto
_MESSAGES: dict[str, list[tuple[str, int, int, str | None, bool]]] = {
    "Trace": [("packet", 1, Field.TYPE_MESSAGE, "TracePacket", True)],
    "TracePacket": [
        ("timestamp", 8, Field.TYPE_UINT64, None, False),
        ("trusted_packet_sequence_id", 10, Field.TYPE_UINT32, None, False),
        ("track_event", 11, Field.TYPE_MESSAGE, "TrackEvent", False),
        ("sequence_flags", 13, Field.TYPE_UINT32, None, False),
        ("track_descriptor", 60, Field.TYPE_MESSAGE, "TrackDescriptor", False),
    ],
    "TrackDescriptor": [
        ("uuid", 1, Field.TYPE_UINT64, None, False),
        ("name", 2, Field.TYPE_STRING, None, False),
        ("parent_uuid", 5, Field.TYPE_UINT64, None, False),
        ("child_ordering", 11, Field.TYPE_INT32, None, False),
        ("sibling_order_rank", 12, Field.TYPE_INT32, None, False),
    ],
    "TrackEvent": [
        ("debug_annotations", 4, Field.TYPE_MESSAGE, "DebugAnnotation", True),
        ("type", 9, Field.TYPE_INT32, None, False),
        ("track_uuid", 11, Field.TYPE_UINT64, None, False),
        ("categories", 22, Field.TYPE_STRING, None, True),
        ("name", 23, Field.TYPE_STRING, None, False),
        ("flow_ids", 47, Field.TYPE_FIXED64, None, True),
        ("terminating_flow_ids", 48, Field.TYPE_FIXED64, None, True),
    ],
    "DebugAnnotation": [
        ("bool_value", 2, Field.TYPE_BOOL, None, False),
        ("int_value", 4, Field.TYPE_INT64, None, False),
        ("double_value", 5, Field.TYPE_DOUBLE, None, False),
        ("string_value", 6, Field.TYPE_STRING, None, False),
        ("name", 10, Field.TYPE_STRING, None, False),
    ],
}
BEGIN, END, INSTANT = 1, 2, 3


@cache
def _trace_type() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="rota_test_perfetto.proto", package="rota_test", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, of, repeated in fields:
            label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
            message.field.add(
                name=field, number=number, type=kind, label=label, type_name=None if of is None else f".rota_test.{of}"
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("rota_test.Trace"))


def read_trace(body: bytes) -> Any:
    """Decode a trace; it must hold nothing but declared fields."""
    trace = _trace_type().FromString(body)
    again = _trace_type()()
    again.CopyFrom(trace)
    again.DiscardUnknownFields()
    assert again.ByteSize() == len(body), "the trace holds fields that are not documented here"
    return trace
