"""Sentences about entries and runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rota.model import events
from rota.model.events import Event
from rota.model.money import amount_text, amounts_text, dim_text
from rota.observe.event_names import About, Describers, EntityNames, FailedRun, Line, readable
from rota.time_text import rough_span

__all__ = ["ENTRY_SENTENCES", "ERROR_CHARS_MAX"]

ERROR_CHARS_MAX = 200  # of an error in a sentence


def _enqueued(data: events.EntriesEnqueued, event: Event, names: EntityNames) -> Iterator[Line]:
    if data.count == 1 and event.pid is not None:
        yield "quiet", f"{names.agent(event.pid)} #{data.first_id} queued", About(data.first_id, event.pid)
    else:
        yield "quiet", "1 entry queued" if data.count == 1 else f"{data.count:,} entries queued"


def _claimed(data: events.EntriesClaimed, _event: Event, names: EntityNames) -> Iterator[Line]:
    for entry in data.entries:
        attempt = f", attempt {entry.attempt}" if entry.attempt > 1 else ""
        text = f"{names.agent(entry.pid)} #{entry.sched_id} started on {data.worker_id}{attempt}"
        yield "plain", text, About(entry.sched_id, entry.pid)


def _completed(data: events.EntriesCompleted, event: Event, names: EntityNames) -> Iterator[Line]:
    for entry in data.entries:
        run, details = names.run(entry.sched_id), names.run_details(entry.sched_id, event.ts)
        if entry.exit_kind == "completed":
            yield "good", f"{run} completed{details}", About(entry.sched_id)
        else:
            failed = FailedRun() if entry.exit_kind == "cancelled" else names.failed_run(entry.sched_id)
            outcome = _outcome(entry.exit_kind, entry.outcome)
            text = f"{run} {outcome}{details}{_error(failed)}{_in_brackets(_attempt(failed))}"
            yield "bad", text, About(entry.sched_id)


def _returned(data: events.EntriesReturned, event: Event, names: EntityNames) -> Iterator[Line]:
    pause_s = max(0.0, (data.runnable_at or event.ts) - event.ts)
    for sched_id in data.sched_ids:
        run, details = names.run(sched_id), names.run_details(sched_id, event.ts)
        when = f" in {rough_span(pause_s)}" if pause_s >= 0.05 else ""  # noqa: PLR2004  # less would be written as 0.0
        if data.verb == "reclaim":
            yield "warn", f"{run} was requeued: its claim expired; runs again{when}", About(sched_id)
        elif data.verb == "retry":
            failed = names.failed_run(sched_id)
            next_one = _in_brackets(_attempt(failed), f"next{when or ' one now'}")
            text = f"{run} {_failure(names.why(sched_id, data.reason))}{details}{_error(failed)}{next_one}"
            yield "warn", text, About(sched_id)
        else:
            yield "plain", f"{run} {_RETURNS[data.verb]}{details}; continues{when or ' later'}", About(sched_id)


_RETURNS = {"preempt": "was preempted by more urgent work", "yield": "yielded its slot"}


def _attempt(failed: FailedRun) -> str:
    if not failed.attempt:
        return ""
    return f"attempt {failed.attempt} of {failed.max_attempts}" if failed.max_attempts else f"attempt {failed.attempt}"


def _error(failed: FailedRun) -> str:
    """Return the first line of the error, as the end of a sentence."""
    lines = (failed.error or "").strip().splitlines()
    return f": {lines[0][:ERROR_CHARS_MAX]}" if lines else ""


def _in_brackets(*parts: str) -> str:
    given = "; ".join(part for part in parts if part)
    return f" ({given})" if given else ""


def _outcome(exit_kind: str, outcome: str | None) -> str:
    return readable(exit_kind if outcome is None or outcome == exit_kind else f"{exit_kind} ({outcome})")


def _failure(outcome: str) -> str:
    return outcome if outcome in ("failed", "crashed") else f"failed ({readable(outcome)})"


def _released(data: events.EntriesReleased, _event: Event, names: EntityNames) -> Iterator[Line]:
    are = "is" if len(data.sched_ids) == 1 else "are"
    yield (
        "detail",
        f"{_entries(data.sched_ids, names)} {are} ready: {_HOLDS.get(data.hold, 'the hold')} is over",
        *_about(data.sched_ids),
    )


_HOLDS: Mapping[str, str] = {
    "time": "the delay",
    "backoff": "the back-off",
    "after": "the wait for other entries",
    "worker": "the reservation for a worker",
}


def _held_for_worker(data: events.EntriesHeldForWorker, _event: Event, names: EntityNames) -> Iterator[Line]:
    are = "is" if len(data.sched_ids) == 1 else "are"
    yield "detail", f"{_entries(data.sched_ids, names)} {are} reserved for the affinity worker", *_about(data.sched_ids)


def _expired(data: events.EntriesExpired, _event: Event, names: EntityNames) -> Iterator[Line]:
    start = "it did not start before its" if len(data.sched_ids) == 1 else "they did not start before their"
    yield "warn", f"{_entries(data.sched_ids, names)} expired: {start} deadline", *_about(data.sched_ids)


def _cancelled(data: events.EntriesCancelled, _event: Event, names: EntityNames) -> Iterator[Line]:
    reason = f": {readable(data.reason)}" if data.reason else ""
    yield "warn", f"{_entries(data.sched_ids, names)} cancelled{reason}", *_about(data.sched_ids)


def _changed(data: events.EntriesChanged, event: Event, names: EntityNames) -> Iterator[Line]:
    changes = ", ".join(f"{readable(name)} {_changed_to(name, value, event)}" for name, value in data.changes.items())
    yield "plain", f"{_entries(data.sched_ids, names)} changed: {changes}", *_about(data.sched_ids)


def _changed_to(name: str, value: Any, event: Event) -> str:
    if name not in ("runnable_at", "deadline") or not isinstance(value, int | float):
        return " ".join(map(readable, map(str, value))) if isinstance(value, list | tuple) else f"= {value}"
    left_s = value - event.ts
    return f"in {rough_span(left_s)}" if left_s > 0 else "now"


def _cancel_requested(data: events.CancelRequested, _event: Event, names: EntityNames) -> Iterator[Line]:
    for sched_id in data.sched_ids:
        yield "plain", f"{names.run(sched_id)} was asked to stop{f' by {data.by}' if data.by else ''}", About(sched_id)


def _claims_extended(data: events.ClaimsExtended, _event: Event, _names: EntityNames) -> Iterator[Line]:
    claims = "1 claim was" if data.count == 1 else f"{data.count:,} claims were"
    yield "quiet", f"{claims} extended by {data.by_s:+.1f} s, because the wall clock jumped"


def _entries(sched_ids: list[int], names: EntityNames) -> str:
    return names.run(sched_ids[0]) if len(sched_ids) == 1 else f"{len(sched_ids):,} entries"


def _about(sched_ids: list[int]) -> tuple[()] | tuple[About]:
    return (About(sched_ids[0]),) if len(sched_ids) == 1 else ()


def _run_started(data: events.RunStarted, _event: Event, names: EntityNames) -> Iterator[Line]:
    process = f" as process {data.os_pid}" if data.os_pid is not None else ""
    process += f" on node {data.node}" if data.node is not None else ""
    yield (
        "detail",
        f"{names.run(data.sched_id)} runs in slot {data.slot} ({data.runner}){process}",
        About(data.sched_id),
    )


def _run_settings_changed(data: events.RunSettingsChanged, _event: Event, names: EntityNames) -> Iterator[Line]:
    told = "; ".join((*data.enforced, *data.advisories)) or "none is left"
    yield "detail", f"{names.run(data.sched_id)} has other cpu settings: {told}", About(data.sched_id)


def _run_ended(data: events.RunEnded, _event: Event, names: EntityNames) -> Iterator[Line]:
    used = "".join(f", {amount:,} {dim}" for dim, amount in data.usage.items())
    yield "detail", f"{names.run(data.sched_id)} took {rough_span(data.wall_ms / 1000)}{used}", About(data.sched_id)


def _over_budget(data: events.RunOverBudget, _event: Event, names: EntityNames) -> Iterator[Line]:
    used, limit = amount_text(data.dim, data.used), amount_text(data.dim, data.limit)
    whose = {"run": "its own", "agent": "its agent's", "graph": "its graph run's"}[data.level]
    text = f"{names.run(data.sched_id)} is over {whose} budget: {used} of {limit} {dim_text(data.dim)}"
    yield "bad", text, About(data.sched_id)


def _progressed(data: events.RunProgressed, _event: Event, names: EntityNames) -> Iterator[Line]:
    yield "quiet", f"{names.run(data.sched_id)} {data.fraction:.0%} {data.text}".rstrip(), About(data.sched_id)


def _checkpointed(data: events.RunCheckpointed, _event: Event, names: EntityNames) -> Iterator[Line]:
    yield "detail", f"{names.run(data.sched_id)} saved a checkpoint of {data.size_bytes:,} bytes", About(data.sched_id)


def _awaited(data: events.LimitAwaited, _event: Event, names: EntityNames) -> Iterator[Line]:
    yield (
        "warn",
        f"{names.run(data.sched_id)} waits for {amounts_text(data.amounts)} of limit {data.name}",
        About(data.sched_id),
    )


def _acquired(data: events.LimitAcquired, _event: Event, names: EntityNames) -> Iterator[Line]:
    run = names.run(data.sched_id)
    if data.waited_ms:
        yield "quiet", f"{run} waited {data.waited_ms / 1000:.1f} s for limit {data.name}", About(data.sched_id)
    else:
        yield "detail", f"{run} got {amounts_text(data.amounts)} of limit {data.name}", About(data.sched_id)


def _settled(data: events.LimitSettled, _event: Event, names: EntityNames) -> Iterator[Line]:
    used = amounts_text(data.used) if data.used else "nothing"
    yield "detail", f"{names.run(data.sched_id)} used {used} of limit {data.name}", About(data.sched_id)


def _charged(data: events.LedgerCharged, event: Event, names: EntityNames) -> Iterator[Line]:
    subject = names.agent(event.pid) if data.sched_id is None else names.run(data.sched_id)
    about = () if data.sched_id is None else (About(data.sched_id, event.pid),)
    yield "detail", f"{subject} used {amounts_text(data.amounts)}", *about


def _lent(data: events.BudgetLent, _event: Event, names: EntityNames) -> Iterator[Line]:
    yield (
        "detail",
        f"{names.run(data.parent_id)} lent {amounts_text(data.amounts)} to entry {data.sched_id}",
        About(data.parent_id),
    )


def _given_back(data: events.BudgetReturned, _event: Event, names: EntityNames) -> Iterator[Line]:
    yield (
        "detail",
        f"entry {data.sched_id} gave {amounts_text(data.amounts)} back to {names.run(data.parent_id)}",
        About(data.parent_id),
    )


def _missed(data: events.DeadlineMissed, _event: Event, _names: EntityNames) -> Iterator[Line]:
    yield "warn", f"{data.subject} missed its deadline by {data.lateness:,}"


ENTRY_SENTENCES: Describers = {
    events.EntriesEnqueued: _enqueued,
    events.EntriesClaimed: _claimed,
    events.EntriesCompleted: _completed,
    events.EntriesReturned: _returned,
    events.EntriesReleased: _released,
    events.EntriesHeldForWorker: _held_for_worker,
    events.EntriesExpired: _expired,
    events.EntriesCancelled: _cancelled,
    events.EntriesChanged: _changed,
    events.CancelRequested: _cancel_requested,
    events.ClaimsExtended: _claims_extended,
    events.RunStarted: _run_started,
    events.RunSettingsChanged: _run_settings_changed,
    events.RunEnded: _run_ended,
    events.RunOverBudget: _over_budget,
    events.RunProgressed: _progressed,
    events.RunCheckpointed: _checkpointed,
    events.LimitAwaited: _awaited,
    events.LimitAcquired: _acquired,
    events.LimitSettled: _settled,
    events.LedgerCharged: _charged,
    events.BudgetLent: _lent,
    events.BudgetReturned: _given_back,
    events.DeadlineMissed: _missed,
}
