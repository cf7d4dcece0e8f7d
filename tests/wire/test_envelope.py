"""From bytes to requests, within limits, and errors there and back."""

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
from rota.rpc.error_codec import error_of, fault_of
from rota.rpc.jsonrpc import (
    BATCH_MAX,
    BODY_BYTES_MAX,
    NESTING_MAX,
    Call,
    Refused,
    answer,
    calls_of,
    encode_call,
    refuse,
    result_of,
)
from rota.rpc.methods import METHODS


def one(body: Any) -> Call | Refused:
    (call,), is_batch = calls_of(body if isinstance(body, bytes) else msgspec.json.encode(body))
    assert not is_batch
    return call


def request(method: str = "kernel.sched.get", params: Any = UNSET, **more: Any) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, **more}
    return body if params is UNSET else body | {"params": params}


def refused(body: Any) -> Refused:
    call = one(body)
    assert isinstance(call, Refused)
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
def test_what_is_no_good_request_has_its_own_error(body: Any, code: int, ident: Any) -> None:
    call = refused(body)
    assert (call.error.code, call.id) == (code, ident)


@pytest.mark.parametrize("params", [{}, {"sched_id": "1"}, {"sched_id": 1, "more": 1}])
def test_a_wrong_shape_names_class_and_field(params: dict[str, Any]) -> None:
    call = refused(request(params=params))
    field = "more" if "more" in params else "sched_id"
    assert f"EntryId.{field}" in call.error.message
    assert call.error.data["field"] == field


def test_a_bad_value_names_class_and_field() -> None:
    call = refused(request("kernel.sched.enqueue", {"pid": 1, "priority": 2**63}))
    assert call.error.message.startswith("SchedInvalidPayload: ScheduleSpec.priority must lie")
    inner = refused(request("kernel.sched.enqueue_many", {"specs": [{"pid": 1}, {"pid": "x"}]}))
    assert inner.error.data["field"] == "specs[1].pid"


def test_a_notification_wants_no_answer() -> None:
    body = request(params={"sched_id": 1})
    del body["id"]
    assert one(body).id is UNSET
    assert one(body | {"id": None}).id is None


def test_a_batch_is_as_many_requests_as_it_says_up_to_the_limit() -> None:
    good = request(params={"sched_id": 1})
    calls, is_batch = calls_of(msgspec.json.encode([good, 5, good]))
    assert is_batch
    assert [type(call) for call in calls] == [Call, Refused, Call]
    assert len(calls_of(msgspec.json.encode([good] * BATCH_MAX))[0]) == BATCH_MAX
    over = refused([good] * (BATCH_MAX + 1))
    assert over.error.data["limit"] == "batch_max"


def nested(depth: int) -> bytes:
    """A request whose deepest bracket is the so-manieth: two are the request's own."""
    payload = b"[" * (depth - 3) + b"]" * (depth - 3)
    start = b'{"jsonrpc":"2.0","id":1,"method":"kernel.sched.enqueue","params":{"pid":1,"payload":{"a":'
    return start + payload + b"}}}"


def test_brackets_may_be_nested_up_to_the_limit() -> None:
    assert isinstance(one(nested(NESTING_MAX)), Call)
    over = refused(nested(NESTING_MAX + 1))
    assert over.error.data["limit"] == "nesting_max"
    assert refused(b"[" * 1_000_000).error.data["limit"] == "nesting_max"
    text = request("kernel.sched.enqueue", {"pid": 1, "payload": {"a": '["{' * 1_000}})
    assert isinstance(one(text), Call), "brackets inside text are text"
    wide = request("kernel.sched.enqueue", {"pid": 1, "payload": {"a": [[]] * 1_000}})
    assert isinstance(one(wide), Call), "side by side is not nested"


def test_a_body_may_be_as_large_as_the_limit() -> None:
    body = msgspec.json.encode(request("kernel.event.append", {"pid": None, "kind": "x", "payload": {}}))
    assert isinstance(one(body.ljust(BODY_BYTES_MAX)), Call)
    assert refused(body.ljust(BODY_BYTES_MAX + 1)).error.data["limit"] == "body_bytes_max"


@pytest.mark.parametrize("kind", [code.raised_by for code in CODES.values() if code.raised_by], ids=str)
def test_an_error_comes_back_in_its_own_class_with_its_facts(kind: type[RotaError]) -> None:
    error = errors.rebuilt(kind, "it went wrong", "do this", {"sched_id": 5})
    back = error_of(msgspec.json.decode(msgspec.json.encode(fault_of(error)), type=type(fault_of(error))))
    assert type(back) is kind
    assert (back.message, back.hint, back.data, str(back)) == (error.message, error.hint, error.data, str(error))


def test_an_illegal_transition_comes_back_with_all_it_knew() -> None:
    error = SchedIllegalTransition("entry", 5, "completed", "cancel", legal=("x",))
    back = error_of(fault_of(error))
    assert isinstance(back, SchedIllegalTransition)
    assert (back.prev_state, back.op, back.subject) == ("completed", "cancel", 5)
    assert str(back) == str(error) == str(pickle.loads(pickle.dumps(error)))


def test_a_defect_tells_its_kind_and_nothing_else() -> None:
    fault = fault_of(ZeroDivisionError("secret"))
    assert fault.code == -32603
    assert "secret" not in fault.message
    assert type(error_of(fault)) is RotaError


def test_a_value_that_json_cannot_say_is_refused_before_it_is_sent() -> None:
    with pytest.raises(errors.SchedInvalidPayload):
        encode_call(1, METHODS["kernel.sched.enqueue"], {"payload": {"a": object()}})


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["jsonrpc", "id", "method", "params", "x"]), inner, max_size=5),
    max_leaves=12,
))  # fmt: skip
def test_anything_at_all_becomes_calls_or_refusals(body: Any) -> None:
    calls, _ = calls_of(body if isinstance(body, bytes) else msgspec.json.encode(body))
    assert calls
    for call in calls:
        if isinstance(call, Refused) and call.id is not UNSET:
            made = msgspec.json.decode(refuse(call.id, call.error))
            assert made["error"]["code"] in CODES


def test_an_answer_is_what_the_verb_returned() -> None:
    method = METHODS["kernel.sched.counts"]
    body = answer(3, method.shape.pack(None, {"queued": 2}))
    assert msgspec.json.decode(body)["id"] == 3
    assert result_of(method, body) == {"queued": 2}
