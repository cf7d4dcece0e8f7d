"""Bulk changes: cancel, retry, release or change every entry that matches a filter.

Matching entries are read by id, in batches; each batch is one transaction that looks at its entries again, so an entry
that moved on meanwhile is decided by what it is then. Entries that are enqueued meanwhile may be found too; copies of
retried entries are not retried. Other writes come in between: a change of a million entries delays no claim by more
than a batch.

`refusal` decides, from an entry's row alone, whether the verb applies to it. A dry run asks it and writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from rota.errors import LimitExceeded, SchedInvalidPayload
from rota.kernel.entries import (
    BATCH_MAX,
    Entries,
    RowToChange,
    checked_changes,
    is_alive,
    problem_with_change,
    rows_to_change,
)
from rota.kernel.entry_reads import EntryFilter
from rota.kernel.journal import append
from rota.kernel.progress import NoRepeats
from rota.model.checks import Checks
from rota.model.entry_status import EntryStatus, derive_status
from rota.model.events import CancelRequested
from rota.store import Transaction
from rota.store.statements import entry_lists as list_sql
from rota.store.statements import queue as sql

__all__ = ["IDS_SHOWN_MAX", "BulkChanges", "BulkResult", "BulkVerb", "refusal"]

IDS_MAX = 10_000  # ids that one call names
IDS_SHOWN_MAX = 20  # ids that a result lists
BulkVerb: TypeAlias = Literal["cancel", "retry", "release", "change"]
VERBS: tuple[BulkVerb, ...] = ("cancel", "retry", "release", "change")
_bulk = Checks("Bulk", SchedInvalidPayload)

# The statuses that a verb is for; other entries are passed over unless the filter names a state, status or exit kind.
_FOR: Mapping[BulkVerb, tuple[EntryStatus, ...]] = {
    "cancel": ("waiting", "ready", "running"),
    "retry": ("waiting", "failed", "expired", "cancelled"),
    "release": ("waiting",),
    "change": ("waiting", "ready", "running"),
}
_RUNNING = "it is running"
_ENDED = dict.fromkeys(("succeeded", "failed", "expired", "cancelled"), "it has ended")
_ALREADY_QUEUED = "it is queued already"
_NOT_HELD = "it waits for no predecessor and no worker"

# Why a verb does not apply to an entry of a status. `refusal` knows the exceptions.
_REFUSED: Mapping[BulkVerb, Mapping[str, str]] = {
    "cancel": {"running": _RUNNING, **_ENDED},
    "retry": {"running": _RUNNING, "succeeded": "it succeeded", "waiting": _ALREADY_QUEUED, "ready": _ALREADY_QUEUED},
    "release": {"running": _RUNNING, "waiting": _NOT_HELD, "ready": _NOT_HELD, **_ENDED},
    "change": {"running": _RUNNING, **_ENDED},
}


class BulkResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a bulk change did or, as a dry run, would do."""

    verb: BulkVerb
    dry_run: bool
    count: int  # entries that it applied to
    first: list[int]  # their ids, at most `IDS_SHOWN_MAX`
    statuses: dict[str, int]  # what they were before
    refused: dict[str, int]  # matching entries that it did not apply to, by reason
    first_refused: list[int]
    copies: dict[int, int]  # of a retry: the new ids of those in `first` that were copied


def refusal(verb: BulkVerb, row: RowToChange, *, stop: bool, changes: dict[str, Any]) -> str | None:
    """Return why a verb does not apply to an entry; None if it does."""
    status = derive_status(row.state, row.hold, row.exit_kind)
    reason = _REFUSED[verb].get(status)
    match verb:
        case "cancel" if stop and status == "running":
            reason = "it was asked to stop already" if row.cancel_requested else None
        case "retry" if row.hold == "backoff":
            reason = None
        case "release" if row.hold in ("after", "worker"):
            reason = None
        case "change" if reason is None and problem_with_change(row, changes) is not None:
            reason = "its deadline would be before its time"
    return reason


class BulkChanges(Entries):
    """Changes of all entries that match a filter."""

    def bulk(
        self,
        wanted: EntryFilter,
        verb: BulkVerb = "cancel",
        *,
        stop: bool = False,
        priority: int | None = None,
        runnable_at: float | None = None,
        deadline: float | UnsetType | None = UNSET,
        tags: Sequence[str] | None = None,
        created_before: float | None = None,
        sched_ids: Sequence[int] | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> BulkResult:
        """Cancel, retry, release or change every entry that matches a filter.

        With `stop`, running entries are asked to stop. The changes are those of `change`. With `sched_ids`, only of
        these entries; of the filter, only the project is looked at then.
        """
        _check_filter(wanted)
        _bulk.one_of("verb", verb, VERBS)
        _bulk.optional_text("by", by)
        if created_before is not None:
            _bulk.instant("created_before", created_before)
        changes = checked_changes(priority=priority, runnable_at=runnable_at, deadline=deadline, tags=tags)
        if bool(changes) != (verb == "change"):
            problem = "needs a priority, time, deadline or tags" if verb == "change" else f"{verb} takes no changes"
            raise _bulk.refuse("verb", problem)
        tally = _Tally(verb, dry_run=_bulk.flag("dry_run", dry_run))
        _bulk.flag("stop", stop)
        decide = _Decision(verb, stop, changes, created_before, None if sched_ids is None else wanted.project_id)
        batches = self._batches(wanted, verb) if sched_ids is None else _parts(sched_ids)
        quiet = sched_ids is None and not _is_explicit(wanted)
        for ids in batches:

            def work(tx: Transaction, ids: list[int] = ids) -> list[_Outcome]:
                outcomes = decide.outcomes(tx, ids)
                chosen = [each.row for each in outcomes if each.row is not None and each.refused is None]
                copies = {} if dry_run or not chosen else self._apply(tx, verb, chosen, changes, by)
                return [each._replace(copy=copies.get(each.sched_id)) for each in outcomes]

            tally.add(self._env.read(work) if dry_run else self._env.write(work), quiet=quiet)
        return tally.result()

    def cancel_where(self, wanted: EntryFilter, *, reason: str | None = None) -> int:
        """Cancel every queued entry that matches, in bounded batches; returns the number."""
        return self.bulk(wanted, "cancel", by=reason).count

    def retry_where(self, wanted: EntryFilter) -> dict[int, int]:
        """Retry every entry that matches, as `retry` does; returns a map from old ids to new ones.

        A finished entry never reopens, so its copy has a new id.
        """
        retried: dict[int, int] = {}
        for ids in self._batches(wanted, "retry"):

            def work(tx: Transaction, ids: list[int] = ids) -> dict[int, int]:
                now = self._env.read_clock(tx)
                found = ((row.sched_id, self._retry(tx, row, now)) for row in rows_to_change(tx, ids))
                return {sched_id: new for sched_id, new in found if new is not None}

            retried |= self._env.write(work)
        return retried

    def _apply(
        self, tx: Transaction, verb: BulkVerb, rows: list[RowToChange], changes: dict[str, Any], by: str | None
    ) -> dict[int, int]:
        """Apply a verb to entries that it applies to; returns the copies of retried ones."""
        now = self._env.read_clock(tx)
        if verb == "change":
            self._change(tx, rows, changes, now)
        elif verb == "release":
            for row in rows:
                self._release(tx, row, now)
        elif verb == "retry":
            retried = ((row.sched_id, self._retry(tx, row, now)) for row in rows)
            return {sched_id: new for sched_id, new in retried if new is not None}
        else:
            running = [row.sched_id for row in rows if row.state == "dispatched"]
            if queued := [row.sched_id for row in rows if row.state == "queued"]:
                self._cancel(tx, queued, now, by)
            if running:
                tx.run_many(sql.REQUEST_CANCEL, [(sched_id,) for sched_id in running])
                append(tx, CancelRequested(sched_ids=running, by=by), now=now)
        return {}

    def _batches(self, wanted: EntryFilter, verb: BulkVerb) -> Iterator[list[int]]:
        """Return the ids of matching entries that a verb is for, in batches."""
        _check_filter(wanted)
        meant = wanted if _is_explicit(wanted) else msgspec.structs.replace(wanted, status=_FOR[verb])
        return self._matching(meant)

    def _matching(self, wanted: EntryFilter) -> Iterator[list[int]]:
        """Yield matching ids in batches; entries enqueued meanwhile may be among them."""
        last_id, seen = 0, NoRepeats("entries")
        while True:
            statement = list_sql.MATCHING_IDS if wanted.pid is None else list_sql.MATCHING_IDS_OF_AGENT
            parameters = (*wanted.row, last_id, BATCH_MAX)
            ids = [row[0] for row in self._env.read(lambda tx: tx.run(statement, parameters))]  # noqa: B023  # runs before the loop continues
            if not ids:
                return
            seen.check(ids)
            yield ids
            last_id = ids[-1]


class _Outcome(NamedTuple):
    sched_id: int
    row: RowToChange | None  # None: there is none that matches
    refused: str | None = None
    copy: int | None = None


class _Decision(NamedTuple):
    """What is to be done with which entries."""

    verb: BulkVerb
    stop: bool
    changes: dict[str, Any]
    created_before: float | None
    project_id: str | None  # None: of any

    def outcomes(self, tx: Transaction, sched_ids: list[int]) -> list[_Outcome]:
        """Decide about some entries. One of another project is answered like one that does not exist."""
        rows = {row.sched_id: row for row in rows_to_change(tx, sched_ids) if self.project_id in (None, row.project_id)}
        found = ((sched_id, rows.get(sched_id)) for sched_id in sched_ids)
        return [
            _Outcome(sched_id, row, "it does not exist" if row is None else self._refusal(tx, row))
            for sched_id, row in found
            if row is None or self.created_before is None or row.created_at < self.created_before
        ]

    def _refusal(self, tx: Transaction, row: RowToChange) -> str | None:
        reason = refusal(self.verb, row, stop=self.stop, changes=self.changes)
        if reason is None and self.verb == "retry" and not is_alive(tx, row.pid):
            return "its agent has ended"
        return reason


class _Tally:
    """Counts what a bulk change did."""

    def __init__(self, verb: BulkVerb, *, dry_run: bool) -> None:
        self._verb, self._dry_run, self._count = verb, dry_run, 0
        self._first: list[int] = []
        self._first_refused: list[int] = []
        self._statuses: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._copies: dict[int, int] = {}

    def add(self, outcomes: list[_Outcome], *, quiet: bool) -> None:
        """Add the outcomes of a batch; if `quiet`, not those of entries that the verb is not for."""
        for each in outcomes:
            sched_id, row = each.sched_id, each.row
            if each.refused is None and row is not None:
                self._count += 1
                self._statuses[derive_status(row.state, row.hold, row.exit_kind)] += 1
                if len(self._first) < IDS_SHOWN_MAX:
                    self._first.append(sched_id)
                    if each.copy is not None and each.copy != sched_id:
                        self._copies[sched_id] = each.copy
            elif each.refused is not None and not (quiet and each.refused in (_ALREADY_QUEUED, _NOT_HELD)):
                self._refused[each.refused] += 1
                if len(self._first_refused) < IDS_SHOWN_MAX:
                    self._first_refused.append(sched_id)

    def result(self) -> BulkResult:
        """Return what was counted."""
        return BulkResult(
            verb=self._verb,
            dry_run=self._dry_run,
            count=self._count,
            first=self._first,
            statuses=dict(self._statuses),
            refused=dict(self._refused),
            first_refused=self._first_refused,
            copies=self._copies,
        )


def _check_filter(wanted: EntryFilter) -> None:
    if not isinstance(wanted, EntryFilter):
        raise _bulk.refuse("wanted", f"must be an EntryFilter, not {type(wanted).__name__}")


def _parts(sched_ids: Sequence[int]) -> Iterator[list[int]]:
    """Yield ids in batches, each once and in order."""
    if not isinstance(sched_ids, list | tuple):
        raise _bulk.refuse("sched_ids", f"must be a list, not {type(sched_ids).__name__}")
    if len(sched_ids) > IDS_MAX:
        raise LimitExceeded("bulk_ids_max", IDS_MAX, len(sched_ids), field="sched_ids")
    ids = sorted({_bulk.whole("sched_id", sched_id) for sched_id in sched_ids})
    for start in range(0, len(ids), BATCH_MAX):
        yield ids[start : start + BATCH_MAX]


def _is_explicit(wanted: EntryFilter) -> bool:
    """Whether a filter says which entries are meant by what became of them."""
    return (wanted.state, wanted.exit_kind, wanted.status) != (None, None, None)
