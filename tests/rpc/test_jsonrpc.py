"""Decoding requests within limits, and errors in both directions."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from rota import errors
from rota.errors import CODES, RotaError, SchedIllegalTransition
from rota.rpc.error_codec import from_error_object, to_error_object
from rota.rpc.jsonrpc import (
    BATCH_MAX,
    BODY_BYTES_MAX,
    NESTING_MAX,
    RejectedCall,
    RpcCall,
    decode_calls,
    decode_result,
    encode_call,
    encode_error,
    encode_result,
)
from rota.rpc.methods import METHODS


def one(body: Any) -> RpcCall | RejectedCall:
    (call,), is_batch = decode_calls(body if isinstance(body, bytes) else msgspec.json.encode(body))
    assert not is_batch
    return call


def request(method: str = "kernel.sched.get", params: Any = UNSET, **more: Any) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, **more}
    return body if params is UNSET else body | {"params": params}


def rejected(body: Any) -> RejectedCall:
    call = one(body)
    assert isinstance(call, RejectedCall)
    return call


@pytest.mark.parametrize(
    ("body", "code", "ident"),
    [
        (b"{", -32700, None),
        (b"\xff\xfe", -32700, None),
        (b"null", -32600, None),
        (b"[]", -32600, None),
        (b"5", -32600, None),
        (request(jsonrpc="1.0"), -32600, 1),
        ({"jsonrpc": "2.0", "id": 7}, -32600, 7),
        ({"id": {"a": 1}, "method": "x", "jsonrpc": "2.0"}, -32600, None),
        (request("kernel.sched.nothing"), -32601, 1),
        (request(params=[1]), -32602, 1),
        (request(params={}), -32602, 1),
        (request(params={"sched_id": "1"}), -32602, 1),
        (request(params={"sched_id": True}), -32602, 1),
        (request(params={"sched_id": 1, "more": 1}), -32602, 1),
        (request("kernel.sched.enqueue", {"pid": 1, "deadline": -1}), -32133, 1),
        (request("kernel.sched.enqueue", {"pid": 1, "trigger": ""}), -32133, 1),
        (request("kernel.sched.enqueue", {"pid": 1, "on_failed": "bogus"}), -32133, 1),
    ],
)
def test_an_invalid_request_has_its_own_error(body: Any, code: int, ident: Any) -> None:
    call = rejected(body)
    assert (call.error.code, call.id) == (code, ident)


@pytest.mark.parametrize("params", [{}, {"sched_id": "1"}, {"sched_id": 1, "more": 1}])
def test_a_bad_structure_names_class_and_field(params: dict[str, Any]) -> None:
    call = rejected(request(params=params))
    field = "more" if "more" in params else "sched_id"
    assert f"EntryIdParams.{field}" in call.error.message
    assert call.error.data["field"] == field


def test_a_bad_value_names_class_and_field() -> None:
    call = rejected(request("kernel.sched.enqueue", {"pid": 1, "priority": 2**63}))
    assert call.error.message.startswith("SchedInvalidPayload: ScheduleSpec.priority must lie")
    inner = rejected(request("kernel.sched.enqueue_many", {"specs": [{"pid": 1}, {"pid": "x"}]}))
    assert inner.error.data["field"] == "specs[1].pid"


def test_a_notification_gets_no_response() -> None:
    body = request(params={"sched_id": 1})
    del body["id"]
    assert one(body).id is UNSET
    assert one(body | {"id": None}).id is None


def test_a_batch_is_decoded_up_to_the_limit() -> None:
    good = request(params={"sched_id": 1})
    calls, is_batch = decode_calls(msgspec.json.encode([good, 5, good]))
    assert is_batch
    assert [type(call) for call in calls] == [RpcCall, RejectedCall, RpcCall]
    assert len(decode_calls(msgspec.json.encode([good] * BATCH_MAX))[0]) == BATCH_MAX
    over = rejected([good] * (BATCH_MAX + 1))
    assert over.error.data["limit"] == "batch_max"


def nested(depth: int) -> bytes:
    """A request whose JSON is nested this deep; two levels are the request's own."""
    payload = b"[" * (depth - 3) + b"]" * (depth - 3)
    start = b'{"jsonrpc":"2.0","id":1,"method":"kernel.sched.enqueue","params":{"pid":1,"payload":{"a":'
    return start + payload + b"}}}"


def test_json_may_be_nested_up_to_the_limit() -> None:
    assert isinstance(one(nested(NESTING_MAX)), RpcCall)
    over = rejected(nested(NESTING_MAX + 1))
    assert over.error.data["limit"] == "nesting_max"
    assert rejected(b"[" * 1_000_000).error.data["limit"] == "nesting_max"
    text = request("kernel.sched.enqueue", {"pid": 1, "payload": {"a": '["{' * 1_000}})
    assert isinstance(one(text), RpcCall), "brackets inside a string do not count"
    wide = request("kernel.sched.enqueue", {"pid": 1, "payload": {"a": [[]] * 1_000}})
    assert isinstance(one(wide), RpcCall), "side by side is not nested"


def test_a_body_may_be_as_large_as_the_limit() -> None:
    body = msgspec.json.encode(request("kernel.event.append", {"pid": None, "kind": "x", "payload": {}}))
    assert isinstance(one(body.ljust(BODY_BYTES_MAX)), RpcCall)
    assert rejected(body.ljust(BODY_BYTES_MAX + 1)).error.data["limit"] == "body_bytes_max"


@pytest.mark.parametrize("kind", [code.raised_by for code in CODES.values() if code.raised_by], ids=str)
def test_an_error_is_restored_with_its_class_and_facts(kind: type[RotaError]) -> None:
    error = errors.rebuilt(kind, "it went wrong", "do this", {"sched_id": 5})
    back = from_error_object(
        msgspec.json.decode(msgspec.json.encode(to_error_object(error)), type=type(to_error_object(error)))
    )
    assert type(back) is kind
    assert (back.message, back.hint, back.data, str(back)) == (error.message, error.hint, error.data, str(error))


def test_an_illegal_transition_is_restored_with_all_attributes() -> None:
    error = SchedIllegalTransition("entry", 5, "completed", "cancel", legal=("x",))
    back = from_error_object(to_error_object(error))
    assert isinstance(back, SchedIllegalTransition)
    assert (back.prev_state, back.op, back.subject) == ("completed", "cancel", 5)
    assert str(back) == str(error) == str(pickle.loads(pickle.dumps(error)))


def test_an_internal_error_reveals_only_its_class() -> None:
    fault = to_error_object(ZeroDivisionError("secret"))
    assert fault.code == -32603
    assert "secret" not in fault.message
    assert type(from_error_object(fault)) is RotaError


def test_a_value_that_is_not_json_is_rejected_before_it_is_sent() -> None:
    with pytest.raises(errors.SchedInvalidPayload):
        encode_call(1, METHODS["kernel.sched.enqueue"], {"payload": {"a": object()}})


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "x"]), inner, max_size=5),
    max_leaves=12,
))  # fmt: skip
def test_any_body_becomes_calls_or_rejections(body: Any) -> None:
    calls, _ = decode_calls(body if isinstance(body, bytes) else msgspec.json.encode(body))
    assert calls
    for call in calls:
        if isinstance(call, RejectedCall) and call.id is not UNSET:
            made = msgspec.json.decode(encode_error(call.id, call.error))
            assert made["error"]["code"] in CODES


def test_a_result_is_what_the_function_returned() -> None:
    method = METHODS["kernel.sched.counts"]
    body = encode_result(3, method.codec.pack(None, {"queued": 2}))
    assert msgspec.json.decode(body)["id"] == 3
    assert decode_result(method, body) == {"queued": 2}
