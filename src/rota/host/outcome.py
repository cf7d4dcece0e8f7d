"""How a call in a warm worker ended, as one value: never an exception of the pool."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from rota.host.command import Exit, signal_name
from rota.host.worker_messages import Kind

__all__ = ["Outcome", "OutcomeKind", "epitaph", "how", "of_answer", "of_death"]

OutcomeKind = Literal[
    "returned",  # with its value
    "raised",  # the function's own exception
    "unpicklable",  # the value could not be sent, or not be made again here
    "unloadable",  # the worker could not find the function, or not make its arguments
    "crashed",  # the worker died of it
    "timed_out",  # it was killed when its time was over
    "killed",  # by who started it, or because the pool closed
]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended."""

    kind: OutcomeKind
    value: Any = None  # returned
    error: BaseException | None = None  # raised, where it can be sent
    error_type: str = ""  # raised, unpicklable, unloadable
    message: str = ""
    traceback: str = ""
    code: int | None = None  # crashed, timed_out, killed: how the worker ended
    signal: int | None = None
    rss_bytes_max: int = 0

    @property
    def ok(self) -> bool:
        """Whether the function returned and its value arrived."""
        return self.kind == "returned"


def of_answer(kind: Kind, payload: bytes) -> Outcome:
    """The outcome of an answer; what cannot be understood here is said in words."""
    try:
        if kind is Kind.VALUE:
            return Outcome(kind="returned", value=pickle.loads(payload))  # noqa: S301  # from our own worker
        error_type, message, trace, *itself = pickle.loads(payload)  # noqa: S301
    except Exception as problem:  # a class that can be pickled and not be made again
        return Outcome(kind="unpicklable", error_type=type(problem).__name__, message=str(problem))
    kinds: dict[Kind, OutcomeKind] = {Kind.RAISED: "raised", Kind.UNPICKLABLE: "unpicklable"}
    return Outcome(
        kind=kinds.get(kind, "unloadable"),
        error=_again(itself[0]) if itself else None,
        error_type=error_type,
        message=message,
        traceback=trace,
    )


def _again(pickled: bytes) -> BaseException | None:
    """An exception as itself, where its class lets it be made again."""
    try:
        error = pickle.loads(pickled) if pickled else None  # noqa: S301  # from our own worker
    except Exception:  # see above
        return None
    return error if isinstance(error, BaseException) else None


def of_death(kind: OutcomeKind, end: Mapping[str, Any]) -> Outcome:
    """The outcome of a call whose worker ended, as the nursery tells it."""
    return Outcome(
        kind=kind,
        message=epitaph(end),
        code=end.get("code"),
        signal=end.get("signal"),
        rss_bytes_max=end.get("rss_bytes_max", 0),
    )


def epitaph(end: Mapping[str, Any]) -> str:
    """How a worker ended, in words."""
    if end.get("unborn"):
        return f"the worker was not started: {end['unborn']}"
    if end.get("signal") is not None:
        return f"the worker was ended by {signal_name(end['signal'])}"
    return f"the worker ended with code {end.get('code')}"


def how(ended: Exit | None) -> str:
    """How a session ended, in words."""
    if ended is None or ended.lost:
        return "nobody knows how"
    return f"code {ended.code}" if ended.signal is None else signal_name(ended.signal)
