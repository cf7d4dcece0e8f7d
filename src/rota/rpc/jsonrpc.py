"""JSON-RPC 2.0: from bytes to requests and back, within named limits.

A request's parameters stay as they came until its method is known; then they are decoded straight into that method's
type. What cannot be read is answered with the protocol's own errors, and never more than one answer is made for one
request. The same code serves a line of the unix socket and a body over HTTP.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, Raw, UnsetType

from rota.errors import InvalidInput, LimitExceeded, RotaError
from rota.rpc.error_codec import INVALID_REQUEST, METHOD_NOT_FOUND, PARSE_ERROR, Fault, error_of, fault_of
from rota.rpc.methods import METHODS, Method

__all__ = [
    "BATCH_MAX",
    "BODY_BYTES_MAX",
    "NESTING_MAX",
    "Answer",
    "Call",
    "Id",
    "Refused",
    "answer",
    "calls_of",
    "encode",
    "encode_call",
    "refuse",
    "result_of",
    "value_error",
]

BODY_BYTES_MAX = 4 * 1024 * 1024  # one request or batch, as bytes
BATCH_MAX = 1_000  # requests in one batch
NESTING_MAX = 64  # brackets inside brackets

Id: TypeAlias = int | float | str | None


class _Envelope(msgspec.Struct, frozen=True):
    jsonrpc: str
    method: str
    params: Raw = Raw(b"{}")
    id: Id | UnsetType = UNSET


class Answer(msgspec.Struct, frozen=True):
    """What one request is answered with."""

    id: Id
    result: Any
    jsonrpc: str = "2.0"


class Failure(msgspec.Struct, frozen=True):
    """What a request that failed is answered with."""

    id: Id
    error: Fault
    jsonrpc: str = "2.0"


class Call(NamedTuple):
    """A request that can be carried out."""

    id: Id | UnsetType  # UNSET: a notification, which wants no answer
    method: Method
    params: Any


class Refused(NamedTuple):
    """A request that cannot, and what to answer."""

    id: Id | UnsetType
    error: Fault
    method: str | None = None


_envelope = msgspec.json.Decoder(_Envelope)
_batch = msgspec.json.Decoder(list[Raw])
_params = {name: msgspec.json.Decoder(method.params) for name, method in METHODS.items()}
_encoder = msgspec.json.Encoder()
encode = _encoder.encode


# --- the server's side ---------------------------------------------------------------------------


def calls_of(body: bytes) -> tuple[list[Call | Refused], bool]:
    """The requests in a body, and whether they came as a batch."""
    if problem := _too_much(body):
        return [Refused(None, problem)], False
    if not body.lstrip(b" \t\r\n").startswith(b"["):
        return [_call_of(body)], False
    try:
        parts = _batch.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return [Refused(None, _unreadable(error))], False
    if not parts:
        return [Refused(None, Fault(INVALID_REQUEST, "an empty batch asks nothing"))], False
    if len(parts) > BATCH_MAX:
        return [Refused(None, fault_of(LimitExceeded("batch_max", BATCH_MAX, len(parts))))], False
    return [_call_of(bytes(part)) for part in parts], True


def _too_much(body: bytes) -> Fault | None:
    if len(body) > BODY_BYTES_MAX:
        return fault_of(LimitExceeded("body_bytes_max", BODY_BYTES_MAX, len(body)))
    # most have fewer brackets than may be nested, and then nothing has to be counted
    if body.count(b"[") + body.count(b"{") > NESTING_MAX and (depth := _nesting(body)) > NESTING_MAX:
        return fault_of(LimitExceeded("nesting_max", NESTING_MAX, depth))
    return None


_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[{]|[\]}]', re.DOTALL)  # text is stepped over


def _nesting(body: bytes) -> int:
    depth = deepest = 0
    for found in _BRACKETS.finditer(body):
        mark = found.group()[:1]
        if mark in b"[{":
            depth += 1
            deepest = max(deepest, depth)
            if deepest > NESTING_MAX:
                break  # deep enough to be refused: how deep it goes does not matter
        elif mark in b"]}":
            depth -= 1
    return deepest


def _call_of(body: bytes) -> Call | Refused:
    try:
        envelope = _envelope.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Refused(_id_of(body), _unreadable(error))
    name, ident = envelope.method, envelope.id
    if envelope.jsonrpc != "2.0":
        return Refused(_answerable(ident), Fault(INVALID_REQUEST, 'jsonrpc must be "2.0"'), name)
    method = METHODS.get(name)
    if method is None:
        return Refused(ident, Fault(METHOD_NOT_FOUND, f"there is no method {name!r}", {"method": name}), name)
    try:
        return Call(ident, method, _params[name].decode(envelope.params))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Refused(ident, fault_of(_refusal(method, error)), name)


def _answerable(ident: Id | UnsetType) -> Id:
    """A request that is none is answered even where it names no id."""
    return None if ident is UNSET else ident


def _unreadable(error: Exception) -> Fault:
    if isinstance(error, msgspec.ValidationError):
        return Fault(INVALID_REQUEST, f"this is JSON, but not a request: {error}")
    return Fault(PARSE_ERROR, f"this is not JSON: {error}")


def _id_of(body: bytes) -> Id:
    """The id of what is no proper request, if it has a proper one."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    ident = found.get("id") if isinstance(found, dict) else None
    return ident if isinstance(ident, str | int | float) and not isinstance(ident, bool) else None


_FIELD = re.compile(r"`\$\.?([^`]*)`")
_NAMED = re.compile(r"field `([^`]+)`")


def _refusal(method: Method, error: Exception) -> RotaError:
    """Why parameters were refused: in the noun's own words if it is a value, in the wire's if it is the shape."""
    if isinstance(error.__cause__, RotaError):
        return error.__cause__
    text = str(error)
    named, at = _NAMED.search(text), _FIELD.search(text)
    field = ".".join(part for part in (at[1] if at else "", named[1] if named else "") if part)
    noun = method.params.__name__
    kind = value_error(method) if text.startswith("Invalid enum value") else InvalidInput
    where = f"{method.name}: {noun}.{field}" if field else f"{method.name}: {noun}"
    return kind(f"{where}: {text}", field=field or None)


def value_error(method: Method) -> type[InvalidInput]:
    """What the method's own verb raises for a word that is none of those allowed."""
    own = [kind for kind in method.errors if issubclass(kind, InvalidInput)]
    return own[-1] if own else InvalidInput


def answer(ident: Id, result: Any) -> bytes:
    """The bytes of an answer."""
    return _encoder.encode(Answer(ident, result))


def refuse(ident: Id, fault: Fault) -> bytes:
    """The bytes of a refusal."""
    return _encoder.encode(Failure(ident, fault))


# --- the client's side ---------------------------------------------------------------------------


class _Reply(msgspec.Struct, frozen=True):
    id: Id = None
    result: Raw | UnsetType = UNSET
    error: Fault | UnsetType = UNSET


class _Request(msgspec.Struct, frozen=True):
    id: int
    method: str
    params: Any
    jsonrpc: str = "2.0"


_reply = msgspec.json.Decoder(_Reply)
_results = {name: msgspec.json.Decoder(method.shape.result) for name, method in METHODS.items()}


def encode_call(ident: int, method: Method, params: Any) -> bytes:
    """The bytes of a request; a value that JSON cannot say is refused as the method's own verb would refuse it."""
    try:
        return _encoder.encode(_Request(ident, method.name, params))
    except (TypeError, ValueError, RecursionError) as problem:
        raise value_error(method)(f"{method.name}: a value is not JSON: {problem}") from problem


def result_of(method: Method, body: bytes) -> Any:
    """What a method's verb would have returned, or raise what it would have raised."""
    reply = _reply.decode(body)
    if isinstance(reply.error, Fault):
        raise error_of(reply.error)
    if reply.result is UNSET:
        raise RotaError("the daemon's answer is neither a result nor an error")
    return method.shape.unpack(_results[method.name].decode(reply.result))
