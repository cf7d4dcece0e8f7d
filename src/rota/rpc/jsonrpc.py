"""JSON-RPC 2.0: decoding requests and encoding responses, within named limits.

Parameters stay raw until the method is known, and are then decoded directly into that method's type. A request that
cannot be decoded gets one of the protocol's own errors. The same code serves the unix socket and HTTP.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from rota.decoding import json_decoder
from rota.errors import InvalidInput, LimitExceeded, RotaError, StoreError
from rota.model.checks import check_finite
from rota.model.struct_reader import first_problem
from rota.rpc.error_codec import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    ErrorObject,
    from_error_object,
    to_error_object,
)
from rota.rpc.methods import METHODS, Method

__all__ = [
    "BATCH_MAX",
    "BODY_BYTES_MAX",
    "NESTING_MAX",
    "Id",
    "RejectedCall",
    "RpcCall",
    "SuccessResponse",
    "body_problem",
    "decode_calls",
    "decode_result",
    "encode_call",
    "encode_error",
    "encode_result",
    "params_error",
]

BODY_BYTES_MAX = 4 * 1024 * 1024  # of one request or batch
BATCH_MAX = 1_000  # requests in one batch
NESTING_MAX = 64  # depth of nested arrays and objects

Id: TypeAlias = int | float | str | None


class _Request(msgspec.Struct, frozen=True):
    jsonrpc: str
    method: str
    params: Raw = Raw(b"{}")
    id: Id | UnsetType = UNSET


class SuccessResponse(msgspec.Struct, frozen=True):
    """The response to a successful request."""

    id: Id
    result: Any
    jsonrpc: str = "2.0"


class ErrorResponse(msgspec.Struct, frozen=True):
    """The response to a failed request."""

    id: Id
    error: ErrorObject
    jsonrpc: str = "2.0"


class RpcCall(NamedTuple):
    """A decoded request."""

    id: Id | UnsetType  # UNSET: a notification, which gets no response
    method: Method
    params: Any


class RejectedCall(NamedTuple):
    """A request that cannot be executed, and the error to return."""

    id: Id | UnsetType
    error: ErrorObject
    method: str | None = None


_request = json_decoder(_Request)
_batch = json_decoder(list[Raw])
_any = msgspec.json.Decoder(float_hook=float)  # a number that is too large for a float becomes infinite
_encoder = msgspec.json.Encoder()


# --- server -----------------------------------------------------------------------------------


def decode_calls(body: bytes) -> tuple[list[RpcCall | RejectedCall], bool]:
    """Decode the requests in a body; also return whether they are a batch."""
    if problem := body_problem(body):
        return [RejectedCall(None, to_error_object(problem))], False
    if not body.lstrip(b" \t\r\n").startswith(b"["):
        return [_decode_call(body)], False
    try:
        parts = _batch.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return [RejectedCall(None, _unreadable(error))], False
    if not parts:
        return [RejectedCall(None, ErrorObject(INVALID_REQUEST, "the batch is empty"))], False
    if len(parts) > BATCH_MAX:
        return [RejectedCall(None, to_error_object(LimitExceeded("batch_max", BATCH_MAX, len(parts))))], False
    return [_decode_call(bytes(part)) for part in parts], True


def body_problem(body: bytes) -> LimitExceeded | None:
    """Return the error for a body that is too large or nested too deeply."""
    if len(body) > BODY_BYTES_MAX:
        return LimitExceeded("body_bytes_max", BODY_BYTES_MAX, len(body))
    # most bodies have fewer brackets than the limit, and then the depth need not be computed
    if body.count(b"[") + body.count(b"{") > NESTING_MAX and (depth := _nesting(body)) > NESTING_MAX:
        return LimitExceeded("nesting_max", NESTING_MAX, depth)
    return None


_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)  # strings are matched to skip them


def _nesting(body: bytes) -> int:
    depth = deepest = 0
    for found in _BRACKETS.finditer(body):
        mark = found.group()[:1]
        if mark in b"[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > NESTING_MAX:
                break  # over the limit: the exact depth does not matter
        elif mark in b"]}":
            depth -= 1
    return deepest


def _decode_call(body: bytes) -> RpcCall | RejectedCall:
    try:
        request = _request.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return RejectedCall(_id_of(body), _unreadable(error))
    name, ident = request.method, request.id
    if request.jsonrpc != "2.0":
        return RejectedCall(_response_id(ident), ErrorObject(INVALID_REQUEST, 'jsonrpc must be "2.0"'), name)
    method = METHODS.get(name)
    if method is None:
        return RejectedCall(ident, ErrorObject(METHOD_NOT_FOUND, f"unknown method {name!r}", {"method": name}), name)
    try:
        return RpcCall(ident, method, method.params_decoder.decode(request.params))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return RejectedCall(ident, to_error_object(_raw_params_error(method, request.params, error)), name)


def _response_id(ident: Id | UnsetType) -> Id:
    """Return the id for an invalid request, which gets a response even without an id."""
    return None if ident is UNSET else ident


def _unreadable(error: Exception) -> ErrorObject:
    if isinstance(error, msgspec.ValidationError):
        return ErrorObject(INVALID_REQUEST, f"not a JSON-RPC request: {error}")
    return ErrorObject(PARSE_ERROR, f"not JSON: {error}")


def _id_of(body: bytes) -> Id:
    """Return the id of an invalid request, if it has a valid one."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    ident = found.get("id") if isinstance(found, dict) else None
    return ident if isinstance(ident, str | int | float) and not isinstance(ident, bool) else None


def _raw_params_error(method: Method, raw: Raw, refusal: Exception) -> RotaError:
    try:
        params = _any.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return InvalidInput(f"{method.name}: params: {refusal}")
    return params_error(method, params, refusal)


def params_error(method: Method, params: Any, refusal: Exception) -> RotaError:
    """Return the error for parameters that msgspec refused: that of a struct's own check, or the first wrong field."""
    if isinstance(refusal.__cause__, RotaError):
        return refusal.__cause__
    problem = first_problem(method.params, params)
    if problem is None or not problem.path:
        return InvalidInput(f"{method.name}: params: {problem or refusal}")
    error = _value_error(method) if problem.is_choice else InvalidInput
    where = f"{method.params.__name__}.{problem.path}"
    return error(f"{method.name}: {where}: {problem.message}", field=problem.path)


def _value_error(method: Method) -> type[InvalidInput]:
    """Return the error class with which the method rejects a value that is not allowed."""
    own = [kind for kind in method.errors if issubclass(kind, InvalidInput) and kind.__init__ is InvalidInput.__init__]
    return own[-1] if own else InvalidInput


def encode_result(ident: Id, result: Any) -> bytes:
    """Encode a successful response."""
    return _encoder.encode(SuccessResponse(ident, result))


def encode_error(ident: Id, error: ErrorObject) -> bytes:
    """Encode an error response."""
    return _encoder.encode(ErrorResponse(ident, error))


# --- client -----------------------------------------------------------------------------------


class _Response(msgspec.Struct, frozen=True):
    id: Id = None
    result: Raw | UnsetType = UNSET
    error: ErrorObject | UnsetType = UNSET


class _SentRequest(msgspec.Struct, frozen=True):
    id: int
    method: str
    params: Any
    jsonrpc: str = "2.0"


_response = json_decoder(_Response)


def encode_call(ident: int, method: Method, params: Any) -> bytes:
    """Encode a request. A value that is not JSON raises the error that the method itself would raise."""
    try:
        body = _encoder.encode(_SentRequest(ident, method.name, params))
        check_finite(params, body)
    except (TypeError, ValueError, RecursionError) as problem:
        raise _value_error(method)(f"{method.name}: a value is not JSON: {problem}") from problem
    return body


def decode_result(method: Method, body: bytes) -> Any:
    """Decode a response: return what the method's function returned, or raise what it raised."""
    try:
        response = _response.decode(body)
        if isinstance(response.error, ErrorObject):
            raise from_error_object(response.error)
        if response.result is UNSET:
            raise RotaError("the daemon's response has neither a result nor an error")
        return method.codec.unpack(method.result_decoder.decode(response.result))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        hint = "Install the same version of rota on both sides; `rota db check` finds damaged rows."
        raise StoreError(f"the response to {method.name} cannot be read: {problem}", hint=hint) from problem
