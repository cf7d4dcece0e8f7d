"""Whether every row can be used: what `rota db check` finds beyond the structure of the file.

The store checks pages, indexes, constraints and the types of values. Here every column that holds JSON is decoded as
its readers decode it, and so is every event, so that no call finds damage that the check has missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rota.errors import StoreCorrupt
from rota.kernel.journal import NOTE_PREFIX, PROJECT_NOTE_PREFIX, event_from_row
from rota.kernel.paging import READ_MAX
from rota.kernel.progress import NoRepeats
from rota.kernel.replay import KernelState
from rota.kernel.rows import DECODE_ERRORS, EntryOptions, Needs
from rota.model.event_codec import decode
from rota.model.events import RESERVED_PREFIX, Event
from rota.model.lifecycle import ContextState, ProjectStatus
from rota.model.work import Intent, ProjectConstraint
from rota.policy.replenishment import Allowance
from rota.store import Statement, Transaction
from rota.store.statements import journal as journal_sql

__all__ = ["PROBLEMS_MAX", "find_problems"]

PROBLEMS_MAX = 1_000  # reported in all

_DICT, _AMOUNTS = dict[str, Any], dict[str, int]
_JSON: dict[str, tuple[str, dict[str, Any]]] = {  # table: key, and the type of each column that holds JSON
    "agent_schedule_queue": (
        "sched_id",
        {"payload": _DICT, "needs": Needs, "options": EntryOptions, "result": Any, "spent": _AMOUNTS},
    ),
    "agent_processes": ("pid", {"metadata": _DICT, "exit_detail": _DICT}),
    "projects": ("project_id", {"restraint": ProjectConstraint, "metadata": _DICT}),
    "contexts": ("context_id", {"standing": Allowance}),
    "entry_loans": ("sched_id", {"amounts": _AMOUNTS, "returned": _AMOUNTS}),
    "graph_runs": ("run_id", {"checkpoint": Any}),
}
_WORDS: dict[str, tuple[str, str, frozenset[str]]] = {  # table: key, a column, and the words that it may hold
    "agent_processes": ("pid", "intent", frozenset(Intent)),
    "projects": ("project_id", "status", frozenset(ProjectStatus)),
    "contexts": ("context_id", "state", frozenset(ContextState)),
}


def find_problems(tx: Transaction) -> Iterator[str]:
    """Yield a sentence for each row that a call could not use."""
    for part in (_json_columns, _words, _notes, _events, _checkpoint):
        try:
            yield from part(tx)
        except StoreCorrupt as problem:
            yield problem.message


def _json_columns(tx: Transaction) -> Iterator[str]:
    for table, (key, columns) in _JSON.items():
        for row_key, *texts in _rows(tx, table, key, *columns):
            for (column, kind), text in zip(columns.items(), texts, strict=True):
                yield from _undecodable(f"{table} row {row_key}: {column}", text, kind)


def _words(tx: Transaction) -> Iterator[str]:
    for table, (key, column, words) in _WORDS.items():
        for row_key, word in _rows(tx, table, key, column):
            if word not in words:
                yield f"{table} row {row_key}: {column} is {word!r}, not one of {', '.join(sorted(words))}"


def _notes(tx: Transaction) -> Iterator[str]:
    for name, text in _rows(tx, "kernel_meta", "key", "value"):
        if str(name).startswith((NOTE_PREFIX, PROJECT_NOTE_PREFIX)):  # a damaged name is bytes
            yield from _undecodable(f"kernel_meta row {name!r}: value", text, _DICT)


def _checkpoint(tx: Transaction) -> Iterator[str]:
    KernelState.from_checkpoint(tx)
    yield from ()


def _events(tx: Transaction) -> Iterator[str]:
    last, seen = 0, NoRepeats("events")
    while rows := tx.run(journal_sql.EVENT_TAIL, (last, READ_MAX)):
        seen.check([row[0] for row in rows])
        last = rows[-1][0]
        for row in rows:
            event = event_from_row(row)
            if event.kind != row[3]:
                yield f"agent_events row {row[0]}: {event.payload.get('problem')}"
            elif event.kind.startswith(RESERVED_PREFIX):
                yield from _undecodable_event(event)


def _undecodable_event(event: Event) -> Iterator[str]:
    try:
        decode(event.kind, event.payload)
    except StoreCorrupt as problem:
        yield f"agent_events row {event.event_id}: {problem.message}"


def _rows(tx: Transaction, table: str, key: str, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield columns of a table's rows in the order of its key, a part at a time."""
    text = f"SELECT {key}, {', '.join(columns)} FROM {table}"  # noqa: S608  # the names are constants of this file
    first = Statement("check_rows", "Rows to check.", f"{text} ORDER BY {key} LIMIT {READ_MAX}")
    more = f"{text} WHERE {key} > ? ORDER BY {key} LIMIT {READ_MAX}"
    following = Statement("check_rows", "More rows to check.", more)
    rows, seen = tx.run(first), NoRepeats(f"rows of {table}")
    while rows:
        seen.check([row[0] for row in rows])
        yield from rows
        rows = tx.run(following, (rows[-1][0],))


def _undecodable(where: str, text: Any, kind: Any) -> Iterator[str]:
    if text is None:
        return
    try:
        msgspec.json.decode(text, type=kind)
    except DECODE_ERRORS as problem:
        yield f"{where} cannot be read: {problem}"
