"""Files of the first kernel, schema 1 to 5: how their tables become rota's, and the copy that is left of such a file.

The first kernel's tables have rota's columns and a few more, with other constraints: a ledger line needs two times that
rota does not write, an agent's `exit_detail` may be NULL, its indexes have other names. So its tables are not altered.
Their rows are set aside, the tables are created as rota's schema 3 has them, and the rows go back in; from there the
usual steps apply. All of it is one transaction. Tables that rota does not know (capabilities, mailboxes, a registry,
files) are not touched, nor are views.

What such a program may have written and rota cannot use becomes the nearest value that it can:

    exit_detail NULL                          {}
    NaN or an infinity in JSON                null; Python's `json` writes them, JSON does not have them
    half of a surrogate pair in JSON          the replacement character
    runnable_at or deadline after the last instant that rota accepts    that instant; no deadline

A JSON column that not even Python can read stays as it is: `rota db check` reports it, and it harms its own row only.

The journal of the first kernel does not contain the changes of its queue and its ledgers. So a checkpoint of both
follows its last event, as if the events before had been pruned, and replay starts there.
"""

from __future__ import annotations

import filecmp
import itertools
import math
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from rota.errors import SchemaMismatch
from rota.lazy import late
from rota.store.migrations import STEPS
from rota.store.protocol import Statement, Transaction

if TYPE_CHECKING:
    import json
else:
    json = late("json")

__all__ = ["EVENTS_KEY", "Migration", "adopt", "check_columns", "finish", "keep_copy"]

EVENTS_KEY = "first_kernel_events"  # the setting that holds the id of the last event before rota's own
INSTANT_MAX = 1e12  # as `SECONDS_MAX` of model/checks

_COLUMNS = {
    "kernel_meta": "key, value",
    "agent_processes": "pid, parent_pid, name, template, state, state_reason, created_at, updated_at, started_at, "
    "ended_at, exit_kind, exit_detail, metadata, last_event_id",
    "agent_events": "event_id, pid, ts, kind, payload, causation_id, correlation_id",
    "agent_ledgers": "pid, dim, used, granted, hard_limit, warn_at",
    "agent_schedule_queue": "sched_id, pid, priority, runnable_at, deadline, trigger, payload, state, worker_id, "
    "created_at, dispatched_at, completed_at, exit_kind",
}
_ALWAYS = ("kernel_meta", "agent_processes", "agent_events")  # in every version
_SELECTED = {  # where a column's value is not taken as it is
    "exit_detail": "coalesce(exit_detail, '{}')",
    "runnable_at": f"min(runnable_at, {INSTANT_MAX})",
    "deadline": f"CASE WHEN deadline <= {INSTANT_MAX} THEN deadline END",
}
_JSON = (
    ("agent_processes", "pid", "exit_detail"),
    ("agent_processes", "pid", "metadata"),
    ("agent_events", "event_id", "payload"),
    ("agent_schedule_queue", "sched_id", "payload"),
)
_encode = msgspec.json.Encoder().encode


class Migration(NamedTuple):
    """What became of a file of the first kernel."""

    from_version: int
    copy: str | None  # the path of the copy of the file as it was; None: the store is in memory
    changed_values: int  # JSON columns with values that JSON does not have


def _sql(text: str) -> Statement:
    return Statement("adopt", "Take over a file of the first kernel.", text)


# --- the tables ----------------------------------------------------------------------------------


def check_columns(columns_of: Callable[[str], Collection[str]]) -> None:
    """Raise SchemaMismatch if a table lacks a column of the first kernel's: the file belongs to another program."""
    for table, columns in _COLUMNS.items():
        found = columns_of(table)
        missing = [column for column in columns.split(", ") if column not in found]
        if missing and (found or table in _ALWAYS):
            text = f"the file's table {table} has no column {', '.join(missing)}: it belongs to another program"
            raise SchemaMismatch(text, table=table, columns=missing)


def adopt(tx: Transaction) -> int:
    """Rebuild the first kernel's tables as schema 3 has them; returns how many JSON values were changed.

    Foreign keys must be off: a table is dropped while rows of others refer to its rows.
    """
    found = [table for table in _COLUMNS if tx.run(_sql("SELECT 1 FROM pragma_table_info(?, 'main')"), (table,))]
    counts = tx.run(_sql("SELECT 1 FROM sqlite_schema WHERE name = 'sqlite_sequence'"))
    counters = tx.run(_sql("SELECT name, seq FROM sqlite_sequence")) if counts else []
    for table in found:
        tx.run(_sql(f"CREATE TEMP TABLE old_{table} AS SELECT {_COLUMNS[table]} FROM main.{table}"))  # noqa: S608
        tx.run(_sql(f"DROP TABLE main.{table}"))
    for version in (1, 2, 3):
        tx.run(_sql(STEPS[version]))
    for table in found:
        columns = _COLUMNS[table]
        values = ", ".join(_SELECTED.get(column, column) for column in columns.split(", "))
        tx.run(_sql(f"INSERT INTO main.{table} ({columns}) SELECT {values} FROM temp.old_{table}"))  # noqa: S608  # names of this file
        tx.run(_sql(f"DROP TABLE temp.old_{table}"))
    kept = [row for row in counters if row[0] in found]
    tx.run_many(_sql("DELETE FROM sqlite_sequence WHERE name = ?"), [(name,) for name, _ in kept])
    tx.run_many(_sql("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)"), kept)
    return sum(_repair_json(tx, *each) for each in _JSON)


def _repair_json(tx: Transaction, table: str, key: str, column: str) -> int:
    """Replace what JSON does not have; returns the number of changed rows."""
    suspicious = f"NOT json_valid({column}) OR instr({column}, '\\ud') OR instr({column}, '\\uD')"
    rows = tx.run(_sql(f"SELECT {key}, {column} FROM {table} WHERE {suspicious}"))  # noqa: S608  # names of this file
    repaired = [(text, row_key) for row_key, stored in rows if (text := _repaired(stored)) not in (None, stored)]
    tx.run_many(_sql(f"UPDATE {table} SET {column} = ? WHERE {key} = ?"), repaired)  # noqa: S608
    return len(repaired)


def _repaired(text: Any) -> str | None:
    """Return a JSON text with only what JSON has; None if Python cannot read it either."""
    try:
        return _encode(_clean(json.loads(text))).decode()
    except (ValueError, TypeError, RecursionError):
        return None


def _clean(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_clean(name): _clean(each) for name, each in value.items()}
        case list():
            return [_clean(each) for each in value]
    return value


def finish(tx: Transaction, from_version: int, to_version: int, now: float) -> None:
    """After the other steps: record the migration, give live claims a token, and write the checkpoint of replay."""
    body = f'{{"from_version":{from_version},"to_version":{to_version}}}'
    insert = "INSERT INTO agent_events (ts, kind, payload) VALUES (?, 'kernel.store.migrated', ?) RETURNING event_id"
    event_id = int(tx.run(_sql(insert), (now, body))[0][0])
    tx.run(_sql("UPDATE agent_schedule_queue SET attempt = 1 WHERE dispatched_at IS NOT NULL"))
    claims = "UPDATE agent_schedule_queue SET token = ?, incarnation = '' WHERE state = 'dispatched'"
    tx.run(_sql(claims), (event_id,))
    tx.run(
        _sql(
            "INSERT INTO journal_checkpoints (through_id, part, made_at, body) SELECT ?, 0, ?, json_object("
            "'entries', json((SELECT json_group_array(json_array(sched_id, 1, state)) FROM agent_schedule_queue)), "
            "'ledgers', json((SELECT json_group_array(json_array(pid, dim, used, granted)) FROM agent_ledgers)))"
        ),
        (event_id, now),
    )
    setting = _sql("INSERT OR REPLACE INTO kernel_meta (key, value) VALUES (?, ?)")
    tx.run(setting, ("journal_checkpoint", f'{{"through_id":{event_id},"parts":1}}'))
    tx.run(setting, (EVENTS_KEY, str(event_id - 1)))


# --- the copy of the file ------------------------------------------------------------------------


def keep_copy(path: str, version: int, copy: Callable[[Path], None]) -> str:
    """Leave a copy of the file as it is beside it, which only its owner can read; returns the copy's path.

    `copy` writes the file's content to an empty file. The copy appears complete or not at all. One that an interrupted
    migration has left is used; a different file of that name is kept, and the copy gets a number.
    """
    part = Path(f"{path}.schema-{version}.part")
    _remove(part)
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        copy(part)
        _flush(part)
        name = next(
            name for name in _names(path, version) if not name.exists() or filecmp.cmp(part, name, shallow=False)
        )
        part.replace(name)
        _flush(name.parent)
    finally:
        _remove(part)
    return str(name)


def _names(path: str, version: int) -> Iterator[Path]:
    yield Path(f"{path}.schema-{version}.bak")
    for number in itertools.count(2):
        yield Path(f"{path}.schema-{version}.{number}.bak")


def _remove(part: Path) -> None:
    """Remove an unfinished copy; SQLite would roll a journal that is left of it back into the next one."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        Path(f"{part}{suffix}").unlink(missing_ok=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
