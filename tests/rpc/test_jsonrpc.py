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
    assert f"SchedGetParams.{field}" in call.error.message
    assert call.error.data["field"] == field


ENQUEUE = "kernel.sched.enqueue"


@pytest.mark.parametrize(
    ("method", "params", "message", "field"),
    [
        (ENQUEUE, [1], "params: expected a JSON object, found a list", None),
        (ENQUEUE, {}, "ScheduleSpec.pid: required field is missing; expected a whole number", "pid"),
        (ENQUEUE, {"pid": "x"}, 'ScheduleSpec.pid: expected a whole number, found "x"', "pid"),
        (ENQUEUE, {"pid": 1, "kind": 1}, "ScheduleSpec.kind: expected a string, found 1", "kind"),
        (ENQUEUE, {"pid": 1, "prioritt": 1}, "prioritt: unknown field; did you mean 'priority'?", "prioritt"),
        (ENQUEUE, {"pid": 1, "backoff": {"x": 1}}, "backoff.x: unknown field; valid fields: base_s,", "backoff.x"),
        (ENQUEUE, {"pid": 1, "on_failed": "x"}, 'on_failed: expected one of cancel, run, hold, found "x"', "on_failed"),
        (ENQUEUE, {"pid": 1, "expected": {"a": None}}, "expected.a: expected a whole number, found null", "expected.a"),
        ("kernel.sched.heartbeat_many", {"claims": [[1, 2], [1, "x"]]}, "expected a whole number", "claims[1][1]"),
        ("kernel.agent.update", {"pid": 1, "weight": None}, "weight: expected a whole number, found null", "weight"),
        ("kernel.context.resolve", {"handle": 1}, "expected a list (slot, generation), found 1", "handle"),
        ("kernel.context.resolve", {"handle": [1]}, "generation: required field is missing", "handle.generation"),
        ("kernel.ledger.budgets", {"x": 1}, "LedgerBudgetsParams.x: unknown field; valid fields: none", "x"),
        ("kernel.sched.complete_many", {"completions": [{"x": 1}]}, "field is missing", "completions[0].sched_id"),
    ],
)
def test_the_message_says_what_is_expected(method: str, params: Any, message: str, field: str | None) -> None:
    error = rejected(request(method, params)).error
    assert f": {method}: " in error.message
    assert message in error.message
    assert error.data.get("field") == field


@pytest.mark.parametrize(
    "params", [b'{"sched_id":"x","sched_id":1}', b'{"sched_id":"\xff"}', b'{"sched_id":%s}' % (b"9" * 5_000)]
)
def test_params_that_only_the_decoder_can_refuse_get_an_error_too(params: bytes) -> None:
    error = rejected(b'{"jsonrpc":"2.0","id":1,"method":"kernel.sched.get","params":%s}' % params).error
    assert (error.code, error.message[:39]) == (-32602, "InvalidInput: kernel.sched.get: params:")


def test_a_number_too_large_for_a_float_is_named() -> None:
    error = rejected(b'{"jsonrpc":"2.0","id":1,"method":"kernel.sched.gc_expired","params":{"now":1e400}}').error
    assert error.data["field"] == "now"


FIELDS = sorted({name for method in METHODS.values() for name in (*method.params.__struct_fields__, "x", "exit_kind")})
values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "x", "failed", "cancel", "PROTECT"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.data())
def test_refused_params_name_a_field_in_words_of_rota(data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(list(METHODS.values())))
    names = st.sampled_from([*method.params.__struct_fields__, "x"])
    call = one(request(method.name, data.draw(values | st.dictionaries(names, values, max_size=6))))
    if isinstance(call, RejectedCall):
        error = from_error_object(call.error)
        assert isinstance(error, errors.InvalidInput)
        assert error.data.get("field") or f"{method.name}: params: " in error.message
        assert "`" not in error.message, "a message of msgspec"


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
