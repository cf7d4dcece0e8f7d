"""How a call in a worker process ended, as one value. The pool itself never raises for a failed call."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from rota.host.command import SessionExit, signal_name
from rota.host.worker_messages import MessageKind

__all__ = [
    "CallOutcome",
    "CallOutcomeKind",
    "describe_exit",
    "describe_worker_exit",
    "outcome_of_result",
    "outcome_of_worker_exit",
]

CallOutcomeKind = Literal[
    "returned",  # with its value
    "raised",  # the function raised an exception
    "unpicklable",  # the value could not be pickled, or not be unpickled by the caller
    "unloadable",  # the worker could not load the function or its arguments
    "crashed",  # the worker process died
    "timed_out",  # the pool killed it after its timeout
    "killed",  # by the caller, or because the pool closed
]


class CallOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended."""

    kind: CallOutcomeKind
    value: Any = None  # returned
    error: BaseException | None = None  # raised, if it can be pickled
    error_type: str = ""  # raised, unpicklable, unloadable
    message: str = ""
    traceback: str = ""
    code: int | None = None  # crashed, timed_out, killed: how the worker ended
    signal: int | None = None
    rss_bytes_max: int = 0
    cpu_s: float = 0.0  # of the call, with the children that it has waited for

    @property
    def ok(self) -> bool:
        """Whether the function returned and its value arrived."""
        return self.kind == "returned"


def outcome_of_result(kind: MessageKind, cpu_s: float, pickled: memoryview) -> CallOutcome:
    """Return the outcome for the result message of a worker."""
    try:
        if kind is MessageKind.VALUE:
            return CallOutcome(kind="returned", value=pickle.loads(pickled), cpu_s=cpu_s)  # noqa: S301  # our own worker
        error_type, message, trace, *pickled_error = pickle.loads(pickled)  # noqa: S301
    except Exception as problem:  # a class that can be pickled and not unpickled
        return CallOutcome(kind="unpicklable", error_type=type(problem).__name__, message=str(problem), cpu_s=cpu_s)
    kinds: dict[MessageKind, CallOutcomeKind] = {
        MessageKind.RAISED: "raised",
        MessageKind.UNPICKLABLE: "unpicklable",
    }
    return CallOutcome(
        kind=kinds.get(kind, "unloadable"),
        error=_unpickle_error(pickled_error[0]) if pickled_error else None,
        error_type=error_type,
        message=message,
        traceback=trace,
        cpu_s=cpu_s,
    )


def _unpickle_error(pickled: bytes) -> BaseException | None:
    """The exception itself, if it can be unpickled."""
    try:
        error = pickle.loads(pickled) if pickled else None  # noqa: S301  # from our own worker
    except Exception:  # see above
        return None
    return error if isinstance(error, BaseException) else None


def outcome_of_worker_exit(kind: CallOutcomeKind, end: Mapping[str, Any], earlier_s: float = 0.0) -> CallOutcome:
    """Return the outcome of a call whose worker exited, from the report of the fork server.

    `earlier_s` is the CPU time of the worker's earlier calls.
    """
    return CallOutcome(
        kind=kind,
        message=describe_worker_exit(end),
        code=end.get("code"),
        signal=end.get("signal"),
        rss_bytes_max=end.get("rss_bytes_max", 0),
        cpu_s=max(0.0, end.get("user_s", 0.0) + end.get("system_s", 0.0) - earlier_s),
    )


def describe_worker_exit(end: Mapping[str, Any]) -> str:
    """Describe how a worker ended."""
    if end.get("not_started"):
        return f"the worker was not started: {end['not_started']}"
    if end.get("signal") is not None:
        return f"the worker was ended by {signal_name(end['signal'])}"
    return f"the worker ended with code {end.get('code')}"


def describe_exit(ended: SessionExit | None) -> str:
    """Describe how a session ended."""
    if ended is None or ended.lost:
        return "exit status unknown"
    return f"code {ended.code}" if ended.signal is None else signal_name(ended.signal)
