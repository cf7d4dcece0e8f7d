"""Whether every row can be used: what `rota db check` finds beyond the structure of the file.

The store checks pages, indexes, constraints and the types of values. Here every row is read as the kernel reads it: it
becomes an object of the model, whose fields must have their types, and every column that holds JSON is decoded. So no
call finds damage that the check has missed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from rota.decoding import convert, decode_json
from rota.errors import StoreCorrupt
from rota.kernel.journal import NOTE_PREFIX, PROJECT_NOTE_PREFIX, event_from_row
from rota.kernel.paging import READ_MAX
from rota.kernel.progress import NoRepeats
from rota.kernel.replay import KernelState
from rota.kernel.rows import DECODE_ERRORS, agent_from_row, entry_from_row, project_from_row
from rota.kernel.settings import read_number
from rota.model.budgets import LedgerLine
from rota.model.event_codec import decode
from rota.model.events import EVENT_TYPES, RESERVED_PREFIX, Event
from rota.model.lifecycle import ContextState, ProjectStatus
from rota.model.work import Workspace
from rota.policy.replenishment import Allowance
from rota.store import Row, Statement, Transaction
from rota.store.first_kernel import EVENTS_KEY as FIRST_KERNEL_EVENTS_KEY
from rota.store.statements import agents as agent_sql
from rota.store.statements import journal as journal_sql
from rota.store.statements import projects as project_sql
from rota.store.statements import queue as queue_sql

__all__ = ["PROBLEMS_MAX", "find_problems"]

PROBLEMS_MAX = 1_000  # reported in all

_DICT, _AMOUNTS = dict[str, Any], dict[str, int]
_MODELS: dict[str, tuple[str, str, Callable[[Row], Any]]] = {  # table: key, columns, and what makes an object of them
    "agent_processes": ("pid", agent_sql.AGENT, agent_from_row),
    "agent_schedule_queue": ("sched_id", queue_sql.ENTRY, entry_from_row),
    "projects": ("project_id", project_sql.PROJECT, project_from_row),
    "agent_ledgers": ("pid, dim", "pid, dim, used, granted, hard_limit, warn_at", lambda row: LedgerLine(*row)),
    "workspaces": (
        "workspace_id",
        "workspace_id, project_id, path, source",
        lambda row: Workspace(workspace_id=row[0], project_id=row[1], path=row[2], source=row[3]),
    ),
}
_JSON: dict[str, tuple[str, dict[str, Any]]] = {  # table: key, and the type of each other column that holds JSON
    "agent_schedule_queue": ("sched_id", {"spent": _AMOUNTS}),
    "contexts": ("context_id", {"standing": Allowance}),
    "entry_loans": ("sched_id", {"amounts": _AMOUNTS, "returned": _AMOUNTS}),
    "graph_runs": (
        "run_id",
        {"checkpoint": Any, "document": _DICT, "inputs": _DICT, "budget": _AMOUNTS, "result": Any},
    ),
    "usage_daily": ("day, pid, model", {"wait_sizes": list[int]}),
    "budgets": ("owner, dim", {"alerts": list[float], "alerted": dict[str, float]}),
}
_WORDS: dict[str, tuple[str, str, frozenset[str]]] = {  # table: key, a column, and the words that it may hold
    "projects": ("project_id", "status", frozenset(ProjectStatus)),
    "contexts": ("context_id", "state", frozenset(ContextState)),
}


def find_problems(tx: Transaction) -> Iterator[str]:
    """Yield a sentence for each row that a call could not use."""
    for part in (_models, _json_columns, _words, _notes, _events, _checkpoint):
        try:
            yield from part(tx)
        except StoreCorrupt as problem:
            yield problem.message


def _models(tx: Transaction) -> Iterator[str]:
    for table, (key, model_columns, read) in _MODELS.items():
        for row_key, row in _rows(tx, table, key, model_columns):
            problem = _unusable(read, row)
            if problem is not None:
                yield f"{table} row {row_key} cannot be read: {problem}"


def _json_columns(tx: Transaction) -> Iterator[str]:
    for table, (key, columns) in _JSON.items():
        for row_key, texts in _rows(tx, table, key, ", ".join(columns)):
            for (column, kind), text in zip(columns.items(), texts, strict=True):
                yield from _undecodable(f"{table} row {row_key}: {column}", text, kind)


def _words(tx: Transaction) -> Iterator[str]:
    for table, (key, column, words) in _WORDS.items():
        for row_key, (word,) in _rows(tx, table, key, column):
            if word not in words:
                yield f"{table} row {row_key}: {column} is {word!r}, not one of {', '.join(sorted(words))}"


def _notes(tx: Transaction) -> Iterator[str]:
    for name, (text,) in _rows(tx, "kernel_meta", "key", "value"):
        if str(name).startswith((NOTE_PREFIX, PROJECT_NOTE_PREFIX)):  # a damaged name is bytes
            yield from _undecodable(f"kernel_meta row {name!r}: value", text, _DICT)


def _checkpoint(tx: Transaction) -> Iterator[str]:
    KernelState.from_checkpoint(tx)
    yield from ()


def _unusable(read: Callable[[Row], Any], row: Row) -> str | None:
    """Return why the kernel cannot use a row; None if it can."""
    try:
        found = read(row)
        unreadable: str | None = getattr(found, "unreadable", None)
        if unreadable is None:
            convert(msgspec.to_builtins(found), type(found))  # the types of its fields
    except DECODE_ERRORS as problem:
        return str(problem)
    return unreadable


def _events(tx: Transaction) -> Iterator[str]:
    last, seen, of_first_kernel = 0, NoRepeats("events"), int(read_number(tx, FIRST_KERNEL_EVENTS_KEY, 0))
    while rows := tx.run(journal_sql.EVENT_TAIL, (last, READ_MAX)):
        seen.check([row[0] for row in rows])
        last = rows[-1][0]
        for row in rows:
            event = event_from_row(row)
            if event.kind != row[3]:
                yield f"agent_events row {row[0]}: {event.payload.get('problem')}"
            elif event.kind in EVENT_TYPES or (
                event.kind.startswith(RESERVED_PREFIX) and event.event_id > of_first_kernel
            ):
                yield from _undecodable_event(event)


def _undecodable_event(event: Event) -> Iterator[str]:
    try:
        decode(event.kind, event.payload)
    except StoreCorrupt as problem:
        yield f"agent_events row {event.event_id}: {problem.message}"


def _rows(tx: Transaction, table: str, key: str, columns: str) -> Iterator[tuple[Any, Row]]:
    """Yield the key and the columns of a table's rows in the order of the key, a part at a time."""
    width = key.count(",") + 1
    text = f"SELECT {key}, {columns} FROM {table}"  # noqa: S608  # the names are constants of this file
    first = Statement("check_rows", "Rows to check.", f"{text} ORDER BY {key} LIMIT {READ_MAX}")
    more = f"{text} WHERE ({key}) > ({', '.join('?' * width)}) ORDER BY {key} LIMIT {READ_MAX}"
    following = Statement("check_rows", "More rows to check.", more)
    rows, seen = tx.run(first), NoRepeats(f"rows of {table}")
    while rows:
        seen.check([row[:width] for row in rows])
        yield from ((row[0] if width == 1 else ", ".join(map(str, row[:width])), row[width:]) for row in rows)
        rows = tx.run(following, rows[-1][:width])


def _undecodable(where: str, text: Any, kind: Any) -> Iterator[str]:
    if text is None:
        return
    try:
        decode_json(text, kind)
    except DECODE_ERRORS as problem:
        yield f"{where} cannot be read: {problem}"
