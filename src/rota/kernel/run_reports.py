"""What callers report about the end of a run, checked once before any transaction begins.

A worker reports a `Completion`. A supervisor reports a `RunReport`, which also says what the run used, and may return
the run to the queue instead of ending it. Both become a `RunEnd`, the one shape by which the kernel ends runs; a claim
that expired becomes one, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from rota.errors import RotaError, SchedInvalidPayload
from rota.kernel.rows import encode_json
from rota.model.checks import RESULT_BYTES_MAX, Checks
from rota.model.work import EXIT_KINDS

__all__ = [
    "COMPLETE_MAX",
    "Completion",
    "CompletionAnswer",
    "RunEnd",
    "RunReport",
    "check_completions",
    "check_reports",
]

COMPLETE_MAX = 1_000  # runs in one call
_BACK = ("yield", "preempt")
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
    wall_ms: int = 0
    stopped_by: Literal["message", "TERM", "KILL"] | None = None
    back: Literal["yield", "preempt"] | None = None  # the run returns to the queue instead of ending
    back_at: float | None = None  # when it may run again; None: now


class RunEnd(NamedTuple):
    """How one run ended, checked and with its result encoded."""

    sched_id: int
    exit_kind: str
    token: int | None = None
    result: str | None = None
    outcome: str | None = None
    verb: Literal["complete", "reclaim"] = "complete"
    report: RunReport | None = None  # if a supervisor reported it


def check_completions(completions: Sequence[Completion]) -> list[RunEnd]:
    """Check reported completions and encode their results."""
    _queue.sequence("completions", completions)
    if len(completions) > COMPLETE_MAX:
        raise _queue.refuse("completions", f"may be at most {COMPLETE_MAX:,}, not {len(completions):,}")
    return [_check_completion(each) for each in completions]


def _check_completion(each: Completion) -> RunEnd:
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
    """Check a supervisor's reports and encode their results."""
    _report.sequence("reports", reports)
    checked = [_check_report(each) for each in reports]
    if len(reports) > COMPLETE_MAX:
        raise _report.refuse("reports", f"may be at most {COMPLETE_MAX:,}, not {len(reports):,}")
    return checked


def _check_report(report: RunReport) -> RunEnd:
    if type(report) is not RunReport:
        raise _report.refuse("reports", f"must be RunReports, not {type(report).__name__}")
    _report.whole("sched_id", report.sched_id)
    _report.whole("token", report.token)
    _report.one_of("exit_kind", report.exit_kind, EXIT_KINDS)
    if report.outcome is not None:
        _report.text("outcome", report.outcome)
    _report.amounts("usage", report.usage)
    _report.whole("wall_ms", report.wall_ms, 0)
    if report.back is not None:
        _report.one_of("back", report.back, _BACK)
    if report.back_at is not None:
        _report.instant("back_at", report.back_at)
    result = None if report.result is None else encode_json("result", report.result, RESULT_BYTES_MAX)
    return RunEnd(report.sched_id, report.exit_kind, report.token, result, report.outcome, report=report)
