"""What callers report about the end of a run, checked once before any transaction begins.

A worker reports a `Completion`. A supervisor reports a `RunReport`, which also says what the run used, and may return
the run to the queue instead of ending it. Both become a `RunEnd`, the one shape by which the kernel ends runs; a claim
that expired becomes one, too.

Each report stands for itself: one that cannot be stored must not keep the other runs of a turn from ending. `storable`
replaces it. A result that is not JSON or too large makes a completed run a failed one, and of any other result as much
is kept as fits; usage that is no amount is left out; a time to return that is no time makes the run a failed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from rota.errors import InvalidInput, RotaError, SchedInvalidPayload
from rota.kernel.rows import encode_json
from rota.model.checks import DIMS_MAX, INTEGER_MAX, RESULT_BYTES_MAX, Checks, check_finite
from rota.model.work import EXIT_KINDS

__all__ = [
    "AWAITS_MAX",
    "COMPLETE_MAX",
    "INVALID_REPORT",
    "Completion",
    "CompletionAnswer",
    "RunEnd",
    "RunReport",
    "check_completion",
    "check_completions",
    "check_reports",
    "storable",
]

COMPLETE_MAX = 1_000  # runs in one call
AWAITS_MAX = 100_000  # entries that one run waits for
NOT_JSON, TOO_LARGE = "result_not_json", "result_too_large"  # outcomes of a completed run without a storable result
INVALID_REPORT = "invalid_report"  # the outcome of a run whose report has another fault
ERROR_CHARS_MAX = 4_000  # of the error in a replaced result
KEYS_MAX = 256  # of a result that is cut
_BACK = ("yield", "preempt")
_STOPPED_BY = ("message", "TERM", "KILL", None)
_encode = msgspec.json.Encoder().encode
_queue = Checks("Queue", SchedInvalidPayload)
_report = Checks("RunReport", SchedInvalidPayload)

CompletionAnswer: TypeAlias = tuple[str, str] | RotaError  # state before and after, or why nothing changed


class Completion(msgspec.Struct, frozen=True):
    """How one run of a batch ended, as a worker reports it."""

    sched_id: int
    exit_kind: str = "completed"
    token: int | None = None
    result: Any = None
    outcome: str | None = None


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended, or that it returns to the queue, with what a supervisor measured."""

    sched_id: int
    token: int
    exit_kind: str = "completed"
    outcome: str | None = None
    result: Any = None
    usage: dict[str, int] = {}  # not charged yet
    model: str | None = None  # that the usage is of
    wall_ms: int = 0
    cpu_ms: int = 0
    node: str | None = None  # of a cluster, on which it ran
    slot: str | None = None  # of its worker, unless `kernel.run.started` has it
    stopped_by: Literal["message", "TERM", "KILL"] | None = None
    back: Literal["yield", "preempt"] | None = None  # the run returns to the queue instead of ending
    back_at: float | None = None  # the date from which it may run again
    back_after_s: float | None = None  # the time after which it may run again; without either: now
    awaits: tuple[int, ...] = ()  # entries of which the first to end makes it ready, before that time or without one


class RunEnd(msgspec.Struct, frozen=True):
    """How one run ended, checked and with its result encoded."""

    sched_id: int
    exit_kind: str
    token: int | None = None
    result: str | None = None
    outcome: str | None = None
    verb: Literal["complete", "reclaim"] = "complete"
    report: RunReport | None = None  # if a supervisor reported it
    refused: InvalidInput | None = None  # it names no run, and this is its answer


def check_completions(completions: Sequence[Completion]) -> list[RunEnd]:
    """Check reported completions and encode their results."""
    _queue.sequence("completions", completions)
    if len(completions) > COMPLETE_MAX:
        raise _queue.refuse("completions", f"may be at most {COMPLETE_MAX:,}, not {len(completions):,}")
    return list(map(check_completion, completions))


def check_completion(each: Completion) -> RunEnd:
    """Check one reported completion and encode its result."""
    if type(each) is not Completion:
        raise _queue.refuse("completions", f"must be Completions, not {type(each).__name__}")
    _queue.whole("sched_id", each.sched_id)
    _queue.one_of("exit_kind", each.exit_kind, EXIT_KINDS)
    if each.token is not None:
        _queue.whole("token", each.token)
    if each.outcome is not None:
        _queue.text("outcome", each.outcome)
    result = None if each.result is None else encode_json("result", each.result, RESULT_BYTES_MAX)
    return RunEnd(each.sched_id, each.exit_kind, each.token, result, each.outcome)


def check_reports(reports: Sequence[RunReport]) -> list[RunEnd]:
    """Check a supervisor's reports and encode their results; replaces those that cannot be stored."""
    _report.sequence("reports", reports)
    if len(reports) > COMPLETE_MAX:
        raise _report.refuse("reports", f"may be at most {COMPLETE_MAX:,}, not {len(reports):,}")
    return [_check_or_replace(each) for each in reports]


def _check_or_replace(report: RunReport) -> RunEnd:
    try:
        return _check_report(report)
    except InvalidInput:
        pass
    try:
        return _check_report(storable(report))
    except InvalidInput as problem:
        return RunEnd(0, "failed", refused=problem)


def _check_report(report: RunReport) -> RunEnd:
    if type(report) is not RunReport:
        raise _report.refuse("reports", f"must be RunReports, not {type(report).__name__}")
    _report.whole("sched_id", report.sched_id)
    _report.whole("token", report.token)
    _report.one_of("exit_kind", report.exit_kind, EXIT_KINDS)
    if report.outcome is not None:
        _report.text("outcome", report.outcome)
    _report.amounts("usage", report.usage)
    _report.optional_name("model", report.model)
    _report.optional_name("node", report.node)
    _report.optional_name("slot", report.slot)
    _report.whole("wall_ms", report.wall_ms, 0)
    _report.whole("cpu_ms", report.cpu_ms, 0)
    if report.back is not None:
        _report.one_of("back", report.back, _BACK)
    if report.back_at is not None:
        _report.instant("back_at", report.back_at)
    if report.back_after_s is not None:
        _check_back_after(report)
    if report.awaits != ():
        _check_awaits(report)
    result = None if report.result is None else encode_json("result", report.result, RESULT_BYTES_MAX)
    return RunEnd(report.sched_id, report.exit_kind, report.token, result, report.outcome, report=report)


def _check_back_after(report: RunReport) -> None:
    if report.back_at is not None:
        raise _report.refuse("back_after_s", "must not be given together with back_at")
    _report.duration("back_after_s", report.back_after_s)


def _check_awaits(report: RunReport) -> None:
    if report.back != "yield":
        raise _report.refuse("awaits", "must be given with back = yield")
    if type(report.awaits) is not tuple or len(report.awaits) > AWAITS_MAX:
        raise _report.refuse("awaits", f"must be a tuple of at most {AWAITS_MAX:,} entries")
    for sched_id in report.awaits:
        _report.whole("awaits", sched_id)


# --- reports that cannot be stored ---------------------------------------------------------------


def storable(report: RunReport) -> RunReport:
    """Return the report as it is, or in a form that can be stored; raises only if it does not name a run."""
    if type(report) is not RunReport:
        raise _report.refuse("reports", f"must be RunReports, not {type(report).__name__}")
    _report.whole("sched_id", report.sched_id)
    _report.whole("token", report.token)
    fields: dict[str, Any] = {
        "usage": {dim: amount for dim, amount in _items(report.usage) if _is_valid("amounts", {dim: amount})},
        "model": report.model if report.model is None or _is_valid("name", report.model) else None,
        "node": report.node if report.node is None or _is_valid("name", report.node) else None,
        "slot": report.slot if report.slot is None or _is_valid("name", report.slot) else None,
        "wall_ms": _duration_ms(report.wall_ms),
        "cpu_ms": _duration_ms(report.cpu_ms),
        "outcome": report.outcome if report.outcome is None or _is_valid("text", report.outcome) else INVALID_REPORT,
        "stopped_by": report.stopped_by if report.stopped_by in _STOPPED_BY else None,
    }
    if len(fields["usage"]) > DIMS_MAX:
        fields["usage"] = dict(list(fields["usage"].items())[:DIMS_MAX])
    fault = _fault(report)
    if fault is not None:
        fields |= {"back": None, "back_at": None, "back_after_s": None, "awaits": ()}
        fields |= {"exit_kind": "failed", "outcome": INVALID_REPORT}
        fields["result"] = {"error": fault.message[:ERROR_CHARS_MAX]}
    else:
        fields |= _storable_result(report)
    return msgspec.structs.replace(report, **fields)


def _duration_ms(value: Any) -> int:
    return value if type(value) is int and 0 <= value <= INTEGER_MAX else 0


def _fault(report: RunReport) -> InvalidInput | None:
    """Return what is wrong with how the run ended, or None."""
    try:
        _report.one_of("exit_kind", report.exit_kind, EXIT_KINDS)
        if report.back is not None:
            _report.one_of("back", report.back, _BACK)
        if report.back_at is not None:
            _report.instant("back_at", report.back_at)
        if report.back_after_s is not None:
            _check_back_after(report)
        if report.awaits != ():
            _check_awaits(report)
    except InvalidInput as problem:
        return problem
    return None


def _storable_result(report: RunReport) -> dict[str, Any]:
    """Return the fields of a report that change so that its result can be stored."""
    try:
        encode_json("result", report.result, RESULT_BYTES_MAX)
    except SchedInvalidPayload as problem:
        error = problem.message.encode("utf-8", "replace").decode()[:ERROR_CHARS_MAX]
    else:
        return {}
    if report.back is not None:
        return {"result": None}
    if report.exit_kind == "completed":
        outcome = TOO_LARGE if _bytes_of(report.result) else NOT_JSON
        return {"exit_kind": "failed", "outcome": outcome, "result": {"error": error}}
    return {"result": _parts_that_fit(report.result, error)}


def _parts_that_fit(result: Any, error: str) -> dict[str, Any]:
    """Return the keys of a result that can be stored together, smallest first; `omitted` has the size of the others."""
    kept: dict[str, Any] = {"error": error}
    omitted: dict[str, int] = {}
    left = RESULT_BYTES_MAX - 8 * ERROR_CHARS_MAX  # JSON needs up to 6 bytes for one character of the error
    items = [(key, value, _bytes_of(key)) for key, value in _items(result) if _is_valid("text", key)]
    for key, value, key_bytes in sorted(items[:KEYS_MAX], key=lambda item: _bytes_of(item[1])):
        size = _bytes_of(value)
        if 0 < size <= left - key_bytes:
            kept[key] = value
            left -= size + key_bytes + 2
        elif key_bytes + 16 <= left:
            omitted[key] = size
            left -= key_bytes + 16
    return {**kept, "omitted": omitted} if omitted else kept


def _bytes_of(value: Any) -> int:
    """Return the size of a value as JSON, or 0 if it is not JSON."""
    try:
        body = _encode(value)
        check_finite(value, body)
        return len(body)
    except (TypeError, ValueError, RecursionError):
        return 0


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items()) if type(value) is dict else []


def _is_valid(check: Literal["amounts", "text", "name"], value: Any) -> bool:
    try:
        getattr(_report, check)("value", value)
    except InvalidInput:
        return False
    return True
