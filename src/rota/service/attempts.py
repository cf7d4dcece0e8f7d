"""The attempts of an entry, folded from the events that name it.

A claim begins an attempt, and everything about the run belongs to it until the next claim. The journal may be pruned,
and workers that report no run leave less in it, so the entry's row adds what it has: the errors of the attempts that
were tried again, and how the last one ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from rota.errors import StoreCorrupt
from rota.model import events
from rota.model.entry_report import AttemptReport
from rota.model.event_codec import decode
from rota.model.events import Event, EventData, RunFailure
from rota.model.run_failures import failure_in
from rota.model.work import ReadyEntry

__all__ = ["attempts_of", "total_usage"]

_NOT_COUNTED = ("preempt", "yield")  # how a run can end without counting an attempt


def attempts_of(found: Iterable[Event], entry: ReadyEntry) -> tuple[AttemptReport, ...]:
    """Return the attempts of an entry, oldest first, from the events that name it and from its row."""
    attempts: list[dict[str, Any]] = []
    for event in found:
        try:
            _add(attempts, decode(event.kind, event.payload), event, entry.sched_id)
        except StoreCorrupt:
            continue  # the history shows that it cannot be read
    _add_errors(attempts, entry)
    _add_row(attempts, entry)
    return tuple(AttemptReport(**attempt) for attempt in attempts)


def total_usage(attempts: Iterable[AttemptReport]) -> dict[str, int]:
    """Return what all attempts used together."""
    total: dict[str, int] = {}
    for attempt in attempts:
        _sum_up(total, attempt.usage)
    return total


def _add(attempts: list[dict[str, Any]], data: EventData, event: Event, sched_id: int) -> None:
    """Add what one event says."""
    match data:
        case events.EntriesClaimed(entries=entries):
            claim = {"worker_id": data.worker_id, "host": data.host, "claimed_at": event.ts}
            attempts += [
                {**claim, "attempt": each.attempt, "workspace": each.workspace}
                for each in entries
                if each.sched_id == sched_id
            ]
        case events.RunStarted(sched_id=run) if run == sched_id:
            names = ("slot", "runner", "os_pid", "node", "advisories", "enforced")
            known = {name: getattr(data, name) for name in names}
            _current(attempts, data.attempt).update(known, started_at=event.ts)
        case events.RunSettingsChanged(sched_id=run) if run == sched_id:
            _current(attempts, data.attempt).update(advisories=data.advisories, enforced=data.enforced)
        case events.LedgerCharged(sched_id=run) if run == sched_id and attempts:
            _sum_up(attempts[-1].setdefault("usage", {}), data.amounts)
        case events.RunEnded(sched_id=run) if run == sched_id:
            _end_run(_current(attempts, data.attempt), data, event.ts)
        case events.EntriesCompleted(entries=ended) if attempts:
            for done in ended:
                if done.sched_id == sched_id:
                    attempts[-1].update(
                        ended=done.exit_kind, exit_kind=done.exit_kind, outcome=done.outcome, ended_at=event.ts
                    )
        case events.EntriesReturned(sched_ids=ids) if sched_id in ids and attempts:
            attempts[-1].update(ended=data.verb, ended_at=event.ts)
            if data.verb == "reclaim":
                attempts[-1].update(exit_kind="crashed", error="its claim expired: the worker was not heard of in time")


def _current(attempts: list[dict[str, Any]], number: int) -> dict[str, Any]:
    """Return the attempt of a run; its claim may be pruned."""
    if not attempts:
        attempts.append({"attempt": number})
    return attempts[-1]


def _end_run(attempt: dict[str, Any], data: events.RunEnded, at: float) -> None:
    attempt.update(wall_ms=data.wall_ms, cpu_ms=data.cpu_ms, stopped_by=data.stopped_by, ended_at=at)
    if data.node is not None:
        attempt.update(node=data.node)
    if data.outcome not in _NOT_COUNTED:
        attempt.update(exit_kind=data.exit_kind, outcome=data.outcome)
    if data.failure is not None:
        _describe(attempt, data.failure)


def _describe(attempt: dict[str, Any], failure: RunFailure) -> None:
    known = {name: value for name, value in msgspec.structs.asdict(failure).items() if value is not None}
    advisories = (*attempt.get("advisories", ()), *known.pop("advisories"))
    attempt.update(known, advisories=tuple(dict.fromkeys(advisories)))


def _add_errors(attempts: list[dict[str, Any]], entry: ReadyEntry) -> None:
    """Add the errors that the row keeps of the attempts that were tried again."""
    for error in entry.errors:
        counted = (each for each in attempts if each.get("ended") not in _NOT_COUNTED)
        known = [each for each in counted if each["attempt"] == error.attempt]
        if known:
            known[-1].setdefault("error", error.error)
        else:
            attempts.append({"attempt": error.attempt, "error": error.error, "ended": "retry", "ended_at": error.at})
    attempts.sort(key=lambda each: (each["attempt"], each.get("claimed_at") or 0.0))


def _add_row(attempts: list[dict[str, Any]], entry: ReadyEntry) -> None:
    """Add what the row says about the last attempt."""
    if entry.dispatched_at is None:
        return
    if not attempts or attempts[-1]["attempt"] < entry.attempt:
        attempts.append({"attempt": entry.attempt, "worker_id": entry.worker_id, "claimed_at": entry.dispatched_at})
    last = attempts[-1]
    if entry.state == "completed":
        row: Mapping[str, Any] = {
            "ended": entry.exit_kind,
            "exit_kind": entry.exit_kind,
            "outcome": entry.outcome,
            "ended_at": entry.completed_at,
        }
        last.update(row)
        if entry.exit_kind != "completed":
            _describe(last, failure_in(entry.result))
        elif isinstance(entry.result, dict):
            _describe(last, RunFailure(advisories=failure_in(entry.result).advisories))


def _sum_up(total: dict[str, int], amounts: Mapping[str, int]) -> None:
    for dim, amount in amounts.items():
        total[dim] = total.get(dim, 0) + amount
