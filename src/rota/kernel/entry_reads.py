"""Reading entries: one, a page by filter, a search in what they hold, counts, groups.

A page by status is found by the partial index of that status, so that a million entries that succeeded cost nothing
when the few that failed are wanted (`statements/queue.py`). Entries that succeeded have no index of their own: it would
make every completion slower. They are found by walking the ids.

A search compares texts, which no index serves. It looks at `SEARCH_ROWS_MAX` entries at most, newest first, and says
whether older ones are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from rota.errors import LimitExceeded, SchedInvalidPayload, SchedInvalidStateFilter, SchedUnknownId
from rota.kernel.environment import KernelEnvironment
from rota.kernel.paging import READ_MAX, Page, page
from rota.kernel.rows import entry_from_row, json_list, payload_bytes
from rota.kernel.running_entries import RunningPage, running_entries
from rota.model.checks import Checks
from rota.model.entry_status import STATUSES
from rota.model.lifecycle import ENTRY
from rota.model.work import EXIT_KINDS, ReadyEntry
from rota.store import Row, Statement, Store, Transaction
from rota.store.statements import entry_lists as sql
from rota.store.statements import queue as queue_sql

__all__ = [
    "LIST_BYTES_MAX",
    "SEARCH_ROWS_MAX",
    "CountBy",
    "EntryFilter",
    "EntryGroup",
    "EntryReads",
    "SearchResult",
    "count_by_state",
    "count_by_status",
    "list_within",
    "search_entries",
    "search_patterns",
]

LIST_BYTES_MAX = 32 * 1024 * 1024  # of payloads and results in one page
SEARCH_ROWS_MAX = 100_000  # entries that one search looks at, newest first
SEARCH_PART = 5_000  # of which one statement looks at
SEARCH_CHARS_MAX = 200  # of the text that is searched for
_queue = Checks("Queue", SchedInvalidPayload)
_filter = Checks("Queue", SchedInvalidStateFilter)
Groups: TypeAlias = "list[EntryGroup]"
CountBy: TypeAlias = Literal["state", "status"]


_POSSIBLE: dict[str | None, tuple[str, ...]] = {  # by state and by exit kind
    "queued": ("waiting", "ready"),
    "dispatched": ("running",),
    "expired": ("expired",),
    "cancelled": ("cancelled",),
    "failed": ("failed",),
    "crashed": ("failed",),
}


class EntryFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Conditions that an entry must meet; None matches any value."""

    state: str | None = None
    pid: int | None = None
    project_id: str | None = None
    trigger: str | None = None
    exit_kind: str | None = None
    tag: str | None = None
    status: str | tuple[str, ...] | None = None  # one of these

    def __post_init__(self) -> None:
        if self.state is not None:
            _filter.one_of("state", self.state, ENTRY.states)
        if self.pid is not None:
            _queue.whole("pid", self.pid)
        if self.exit_kind is not None:
            _queue.one_of("exit_kind", self.exit_kind, EXIT_KINDS)
        for field in ("project_id", "trigger", "tag"):
            _queue.optional_text(field, getattr(self, field))
        if self.status is not None and not isinstance(self.status, str):
            _filter.sequence("status", self.status)
        for status in self.statuses or ():
            _filter.one_of("status", status, STATUSES)

    @property
    def statuses(self) -> tuple[str, ...] | None:
        """The statuses that match; None: any."""
        if self.status is None:
            return None
        return (self.status,) if isinstance(self.status, str) else tuple(self.status)

    @property
    def possible(self) -> tuple[str, ...] | None:
        """The statuses that a match can have; None: any. A state or an exit kind narrows them, too."""
        if self.statuses is not None:
            return self.statuses
        return _POSSIBLE.get(self.exit_kind or self.state)

    @property
    def row(self) -> tuple[Any, ...]:
        """The filter as statement parameters."""
        return self.row_within(self.project_id)

    def row_within(self, projects: str | None) -> tuple[Any, ...]:
        """The filter as statement parameters, with these in place of its project."""
        statuses = None if self.possible is None else msgspec.json.encode(self.possible).decode()
        return self.state, self.pid, projects, self.trigger, self.exit_kind, self.tag, statuses


class EntryGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of one agent that have not ended and wait for the same: at any moment all of them may run, or none."""

    pid: int
    state: str  # queued or dispatched
    hold: str | None = None
    kind: str | None = None
    worker_id: str | None = None  # of those that run
    count: int
    sched_id: int  # the lowest
    runnable_at: float  # the earliest
    claim_expires_at: float | None = None  # the earliest, of those that run


class SearchResult(NamedTuple):
    """The entries that hold a text, newest first."""

    entries: list[ReadyEntry]
    is_complete: bool  # False: older entries were not looked at


class EntryReads:
    """Methods that read entries."""

    def __init__(self, store: KernelEnvironment | Store) -> None:
        self._store = store

    def get(self, sched_id: int) -> ReadyEntry:
        """Return one entry."""
        _queue.whole("sched_id", sched_id)
        rows = self._store.read(lambda tx: tx.run(queue_sql.GET, (sched_id,)))
        if not rows:
            raise SchedUnknownId(sched_id)
        return entry_from_row(rows[0])

    def list(
        self,
        *,
        state: str | None = None,
        pid: int | None = None,
        limit: int = 100,
        offset: int = 0,
        after: int = 0,
        **more: Any,
    ) -> tuple[list[ReadyEntry], int]:
        """Return a page of entries by id, those after an id, and the number of all matches.

        Filters also by project_id, trigger, exit_kind, tag and status (one or several).
        """
        wanted = EntryFilter(state=state, pid=pid, **more)
        window = page(limit, offset)
        _queue.whole("after", after, 0)
        return self._store.read(lambda tx: _list(tx, _fastest(wanted), wanted.row, window, after))

    def running(
        self, *, project_id: str | None = None, pid: int | None = None, limit: int = 100, offset: int = 0
    ) -> RunningPage:
        """Return a page of the entries that run now, by id, with how far they are and what they wait for."""
        wanted = EntryFilter(status="running", project_id=project_id, pid=pid)
        window = page(limit, offset)

        def work(tx: Transaction) -> RunningPage:
            entries, total = _list(tx, _fastest(wanted), wanted.row, window)
            return RunningPage(running_entries(tx, entries), total)

        return self._store.read(work)

    def search(self, text: str, *, limit: int = 100, **more: Any) -> SearchResult:
        """Return the newest entries whose payload, result or errors hold a text; filters as `list`."""
        wanted = EntryFilter(**more)
        patterns, count = search_patterns(text), page(limit, 0).limit
        return self._store.read(lambda tx: search_entries(tx, wanted, wanted.row, patterns, count))

    def counts(self, by: CountBy = "state") -> dict[str, int]:
        """Return the number of entries by status; or by state, and by hold for those that have one ("queued:time")."""
        _queue.one_of("by", by, ("state", "status"))
        if by == "status":
            return self._store.read(lambda tx: count_by_status(tx.run(sql.COUNT_BY_STATUS)))
        return count_by_state(self._store.read(lambda tx: tx.run(sql.COUNT_BY_STATE)))

    def unfinished(self, limit: int = 1_000) -> Groups:
        """Return what is queued or running, in groups; the group with the lowest id first."""
        window = page(limit, 0)
        rows = self._store.read(lambda tx: tx.run(sql.UNFINISHED, (window.limit,)))
        return [EntryGroup(**dict(zip(EntryGroup.__struct_fields__, row, strict=True))) for row in rows]


# --- pages ---------------------------------------------------------------------------------------


def _fastest(wanted: EntryFilter) -> tuple[Statement, Statement]:
    """Return the statements that find a page of what is wanted, and its total, in the fewest steps."""
    counting = sql.FILTERED_COUNT if wanted.pid is None else sql.FILTERED_COUNT_OF_AGENT
    if wanted.tag is not None:
        return sql.FILTERED_OF_TAG, counting
    if wanted.pid is not None:
        return sql.FILTERED_OF_AGENT, counting
    if _has_index(wanted):
        return sql.FILTERED_OF_STATUS, sql.FILTERED_COUNT_OF_STATUS
    return sql.FILTERED, counting


def _has_index(wanted: EntryFilter) -> bool:
    """Whether partial indexes have all that is wanted: those that succeeded are in none."""
    return wanted.possible is not None and "succeeded" not in wanted.possible


def list_within(
    tx: Transaction, wanted: EntryFilter, projects: str, window: Page, after: int = 0
) -> tuple[list[ReadyEntry], int]:
    """Return a page of the entries of some projects (as JSON; '' is no project), and the number of matches."""
    statements = (sql.FILTERED_WITHIN, sql.FILTERED_COUNT_WITHIN)
    if _has_index(wanted):
        statements = (sql.FILTERED_OF_STATUS_WITHIN, sql.FILTERED_COUNT_OF_STATUS_WITHIN)
    return _list(tx, statements, wanted.row_within(projects), window, after)


def _list(
    tx: Transaction, statements: tuple[Statement, Statement], row: tuple[Any, ...], window: Page, after: int = 0
) -> tuple[list[ReadyEntry], int]:
    rows = _read_page(tx, statements[0], row, window, after)
    return [entry_from_row(each) for each in rows], int(tx.run(statements[1], row)[0][0])


def _read_page(tx: Transaction, statement: Statement, wanted: tuple[Any, ...], window: Page, after: int) -> list[Row]:
    """Read a page in parts, so that one that is too large is refused before it fills the memory."""
    rows: list[Row] = []
    size = 0
    while len(rows) < window.limit:
        count = min(READ_MAX, window.limit - len(rows))
        part = tx.run(statement, (*wanted, count, window.offset + len(rows), after))
        rows += part
        size += sum(map(payload_bytes, part))
        if size > LIST_BYTES_MAX:
            raise LimitExceeded("list_bytes_max", LIST_BYTES_MAX, size, field="limit")
        if len(part) < READ_MAX:
            break
    return rows


# --- search --------------------------------------------------------------------------------------


def search_patterns(text: str) -> tuple[str, str]:
    """Return a text as two patterns: as it is, and as JSON writes it. Letters of ASCII match in both cases."""
    _queue.text("text", text)
    if len(text) > SEARCH_CHARS_MAX:
        raise _queue.refuse("text", f"has {len(text):,} characters; the maximum is {SEARCH_CHARS_MAX}")
    in_json = msgspec.json.encode(text).decode()[1:-1]
    return _pattern(text), _pattern(in_json)


def _pattern(text: str) -> str:
    for special in ("\\", "%", "_"):
        text = text.replace(special, f"\\{special}")
    return f"%{text}%"


def search_entries(
    tx: Transaction,
    wanted: EntryFilter,
    row: tuple[Any, ...],
    patterns: tuple[str, str],
    limit: int,
    *,
    searched: Statement = sql.SEARCHED,
) -> SearchResult:
    """Search the newest entries that match, part by part, until enough are found."""
    ids = [each[0] for each in _newest(tx, wanted, row)]
    found: list[Row] = []
    for start in range(0, min(len(ids), SEARCH_ROWS_MAX), SEARCH_PART):
        if len(found) >= limit:
            return SearchResult([entry_from_row(each) for each in found], is_complete=False)
        part = ids[start : min(start + SEARCH_PART, SEARCH_ROWS_MAX)]
        found += tx.run(searched, (*row, *patterns, json_list(part), limit - len(found)))
        if sum(map(payload_bytes, found)) > LIST_BYTES_MAX:
            raise LimitExceeded("list_bytes_max", LIST_BYTES_MAX, sum(map(payload_bytes, found)), field="limit")
    return SearchResult([entry_from_row(each) for each in found], len(ids) <= SEARCH_ROWS_MAX and len(found) < limit)


def _newest(tx: Transaction, wanted: EntryFilter, row: tuple[Any, ...]) -> Sequence[Row]:
    """The ids to search, newest first, and one more if there are too many."""
    if wanted.pid is not None:
        return tx.run(sql.NEWEST_OF_AGENT, (wanted.pid, SEARCH_ROWS_MAX + 1))
    if _has_index(wanted):
        return tx.run(sql.NEWEST_OF_STATUS, (*row, SEARCH_ROWS_MAX + 1))
    return tx.run(sql.NEWEST, (SEARCH_ROWS_MAX + 1,))


# --- counts --------------------------------------------------------------------------------------


def count_by_state(rows: Sequence[Row]) -> dict[str, int]:
    """Return the number of entries by state, and by hold for those that have one ("queued:time")."""
    return {state if hold is None else f"{state}:{hold}": count for state, hold, count in rows}


def count_by_status(rows: Sequence[Row]) -> dict[str, int]:
    """Return the number of entries by status, without the statuses that no entry has.

    A row with an empty status has the number of all entries: those that no other row counts have succeeded.
    """
    found: dict[str, int] = dict.fromkeys(("", *STATUSES), 0)
    for status, count in rows:
        found[status] += count
    total = found.pop("")
    if total:
        found["succeeded"] = total - sum(found.values())
    return {status: count for status, count in found.items() if count}
