"""The result of each method on the wire: always an object.

A `ResultCodec` converts what a function returns to the result on the wire and back, so that a client's function returns
exactly what the local one would. It is made from the method's declaration and the function's return type:
- `result="sched_id"`: the returned value is the object's only field
- `result=("entries", "total")`: the returned tuple's items are the object's fields
- neither: a structure or dict is the object itself, a named tuple has its fields, None is an empty object

A few return types have a form of their own, because an error may take the place of a value, or because the object says
more than the value: `_OWN_FORM`, at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import GenericAlias
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from rota.errors import RotaError
from rota.kernel.run_reports import CompletionAnswer
from rota.kernel.runs import HeartbeatReply
from rota.kernel.turn import TurnResult
from rota.model.events import Event
from rota.model.work import ReadyEntry
from rota.rpc.error_codec import ErrorObject, from_error_object, to_error_object

__all__ = ["EventsResult", "ResultCodec", "result_codec"]


class ResultCodec(NamedTuple):
    """The conversion between a function's return value and the result on the wire."""

    result: Any  # its type on the wire
    pack: Callable[[Any, Any], Any]  # from the parameters and the return value to the result
    unpack: Callable[[Any], Any]


def result_codec(name: str, declared: str | tuple[str, ...], returns: Any) -> ResultCodec:
    """Return the codec of a method; `name` becomes the name of the result's structure."""
    if returns in _OWN_FORM:
        return _OWN_FORM[returns]
    if returns is type(None):
        empty = _struct(name, {})
        return ResultCodec(empty, lambda _params, _value: empty(), lambda _result: None)
    if isinstance(declared, tuple):
        items = _struct(name, dict(zip(declared, get_args(returns), strict=True)))
        return ResultCodec(items, lambda _params, value: items(*value), msgspec.structs.astuple)
    if declared:
        return _one_field(name, declared, returns)
    if _is_named_tuple(returns):
        fields = _fields_of(returns)
        return ResultCodec(fields, lambda _params, value: fields(*value), _restore(returns))
    return ResultCodec(returns, lambda _params, value: value, lambda result: result)


def _one_field(name: str, field: str, returns: Any) -> ResultCodec:
    """The returned value is the result's only field; named tuples in a dict become objects."""
    if get_origin(returns) is dict and _is_named_tuple(kind := get_args(returns)[1]):
        line, restore = _fields_of(kind), _restore(kind)
        lines = _struct(name, {field: GenericAlias(dict, (str, line))})
        return ResultCodec(
            lines,
            lambda _params, value: lines({key: line(*each) for key, each in value.items()}),
            lambda result: {key: restore(each) for key, each in getattr(result, field).items()},
        )
    one = _struct(name, {field: returns})
    return ResultCodec(one, lambda _params, value: one(value), lambda result: getattr(result, field))


def _struct(name: str, fields: dict[str, Any], **options: Any) -> Any:
    return msgspec.defstruct(name, list(fields.items()), frozen=True, module=__name__, **options)


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


@cache
def _fields_of(kind: Any) -> Any:
    """Return a structure with the fields of a named tuple; those with a default may be missing on the wire."""
    fields = [(name, of, *_default(kind, name)) for name, of in get_type_hints(kind).items()]
    return msgspec.defstruct(kind.__name__, fields, frozen=True, module=__name__)


def _default(kind: Any, field: str) -> tuple[Any, ...]:
    return (kind._field_defaults[field],) if field in kind._field_defaults else ()


def _restore(kind: Any) -> Callable[[Any], Any]:
    return lambda result: kind(*msgspec.structs.astuple(result))


# --- return types with a form of their own -------------------------------------------------------


class StatesResult(msgspec.Struct, frozen=True):
    """An entry's new state, and the one before."""

    sched_id: int
    state: str
    prev_state: str


class CompletionOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The states of one completed run, or the error that left it unchanged."""

    state: str | None = None
    prev_state: str | None = None
    error: ErrorObject | None = None


class CompleteManyResult(msgspec.Struct, frozen=True):
    """The outcome of each run, in order."""

    answers: list[CompletionOutcome]


class CompleteAndClaimResult(msgspec.Struct, frozen=True):
    """The outcome of each run, and the claimed entries."""

    answers: list[CompletionOutcome]
    entries: list[ReadyEntry]


def _pack_outcome(states: CompletionAnswer) -> CompletionOutcome:
    if isinstance(states, RotaError):
        return CompletionOutcome(error=to_error_object(states))
    return CompletionOutcome(states[1], states[0])


def _unpack_outcome(packed: CompletionOutcome) -> CompletionAnswer:
    return (packed.prev_state or "", packed.state or "") if packed.error is None else from_error_object(packed.error)


class ClaimStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a claim expires, or why it is lost."""

    claim_expires_at: float | None = None
    cancel_requested: bool = False
    error: ErrorObject | None = None


class HeartbeatManyResult(msgspec.Struct, frozen=True):
    """The status of each claim, in order."""

    answers: list[ClaimStatus]


def _pack_claim(reply: HeartbeatReply | RotaError) -> ClaimStatus:
    return ClaimStatus(error=to_error_object(reply)) if isinstance(reply, RotaError) else ClaimStatus(*reply)


def _unpack_claim(packed: ClaimStatus) -> HeartbeatReply | RotaError:
    if packed.error is not None:
        return from_error_object(packed.error)
    return HeartbeatReply(packed.claim_expires_at or 0.0, packed.cancel_requested)


class EventsResult(msgspec.Struct, frozen=True):
    """Events, oldest first, and the cursor to continue from."""

    events: list[Event]
    next_cursor: int


_OWN_FORM: dict[Any, ResultCodec] = {
    tuple[str, str]: ResultCodec(  # an entry's states before and after
        StatesResult,
        lambda params, states: StatesResult(params.sched_id, states[1], states[0]),
        lambda result: (result.prev_state, result.state),
    ),
    list[CompletionAnswer]: ResultCodec(
        CompleteManyResult,
        lambda _params, answers: CompleteManyResult([_pack_outcome(each) for each in answers]),
        lambda result: [_unpack_outcome(each) for each in result.answers],
    ),
    TurnResult: ResultCodec(
        CompleteAndClaimResult,
        lambda _params, turn: CompleteAndClaimResult([_pack_outcome(each) for each in turn.answers], turn.entries),
        lambda result: TurnResult([_unpack_outcome(each) for each in result.answers], result.entries),
    ),
    list[HeartbeatReply | RotaError]: ResultCodec(
        HeartbeatManyResult,
        lambda _params, answers: HeartbeatManyResult([_pack_claim(each) for each in answers]),
        lambda result: [_unpack_claim(each) for each in result.answers],
    ),
    list[Event]: ResultCodec(
        EventsResult,
        lambda params, events: EventsResult(events, events[-1].event_id if events else params.since),
        lambda result: result.events,
    ),
}
