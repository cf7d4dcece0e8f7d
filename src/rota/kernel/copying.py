"""Copy everything from one store into another, empty one: a file to PostgreSQL, or back.

The source is read in one view, so the copy is of one moment, also while others write there. The target gets everything
in one transaction, which is checked before it is committed: as many rows in each table as were read, and

    checkpoint + tail = tables

in the target, equal to the source. If any of this fails, the target stays empty.

Both stores have the same tables and columns, except for one that a database fills by itself. A row is copied as it is,
with its id. What belongs to the store and not to its contents is left out: the register of its workers, which stay with
the source, and some settings: the schema's version, the offset of the clocks, how a file was opened, where its daemons
listen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter

import msgspec

from rota.errors import InvalidInput, StoreCorrupt, StoreError, StoreUnavailable
from rota.kernel.daemon_addresses import KEY_PREFIX
from rota.kernel.progress import NoRepeats
from rota.kernel.replay import KernelState
from rota.model.lifecycle import EntryState
from rota.store import NORMAL_DURABILITY_KEY, Row, Statement, Store, Transaction
from rota.store.engine import TransactionLost
from rota.store.postgres_schema import SEQUENCES

__all__ = ["COPIED_AT_A_TIME", "CopiedStore", "copy_store"]

COPIED_AT_A_TIME = 1_000  # rows
_META = "kernel_meta"
_WORKERS = "workers"
_OF_THE_STORE = frozenset({"schema_version", "clock_offset", "daemon_probe", "timeline", NORMAL_DURABILITY_KEY})
_IN_NEW_STORES = frozenset({*_OF_THE_STORE, "finished_cursor"})  # settings that a store has before its first use

_COLUMNS = Statement(
    "copy_columns",
    "Every column of every table, and its place in the primary key (0: not part of it).",
    "SELECT s.name, c.name, c.pk FROM sqlite_schema s, pragma_table_info(s.name) c "
    "WHERE s.type = 'table' AND s.name NOT LIKE 'sqlite_%' ORDER BY s.name, c.cid",
    postgres="""SELECT t.relname::text, a.attname::text, coalesce(array_position(i.indkey::int2[], a.attnum) + 1, 0)
        FROM pg_class t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_index i ON i.indrelid = t.oid AND i.indisprimary
        WHERE t.relnamespace = current_schema()::regnamespace AND t.relkind IN ('r', 'p') AND NOT t.relispartition
            AND t.relname != 'agent_entries' -- its triggers fill it
        ORDER BY t.relname, a.attnum""",
)
_NO_TIME_LIMITS = Statement(
    "copy_no_time_limits",
    "Let this transaction last: a server ends one that does nothing for some seconds, as each does while the copy is "
    "written to the other store and checked.",
    "SELECT 1",
    postgres="SELECT set_config(name, '0', true) "
    "FROM unnest(ARRAY['idle_in_transaction_session_timeout', 'statement_timeout']) AS name",
)
_REFERENCES = Statement(
    "copy_references",
    "Which table refers to which.",
    "SELECT s.name, f.\"table\" FROM sqlite_schema s, pragma_foreign_key_list(s.name) f WHERE s.type = 'table'",
    postgres="""SELECT t.relname::text, r.relname::text FROM pg_constraint c JOIN pg_class t ON t.oid = c.conrelid
        JOIN pg_class r ON r.oid = c.confrelid
        WHERE c.contype = 'f' AND c.connamespace = current_schema()::regnamespace""",
)
_COUNTER = {
    table: Statement(
        "copy_counter",
        "The highest id that was given.",
        f"SELECT seq FROM sqlite_sequence WHERE name = '{table}'",  # noqa: S608  # a constant
        postgres="SELECT coalesce(pg_sequence_last_value(pg_get_serial_sequence("
        f"current_schema() || '.{table}', '{column}')::regclass), 0)",
    )
    for table, column in SEQUENCES.items()
}
_SET_COUNTER = {
    table: Statement(
        "copy_set_counter",
        "Give higher ids from now on.",
        f"INSERT INTO sqlite_sequence (name, seq) VALUES ('{table}', ?)",  # noqa: S608  # a constant
        postgres=f"SELECT setval(pg_get_serial_sequence(current_schema() || '.{table}', '{column}')::regclass, "
        "CAST(? AS bigint))",
    )
    for table, column in SEQUENCES.items()
}
_FORGET_COUNTER = Statement(
    "copy_forget_counter",
    "SQLite's own note of a table's highest id.",
    "DELETE FROM sqlite_sequence WHERE name = ?",
    postgres="SELECT 1 WHERE CAST(? AS text) IS NULL",
)


class CopiedStore(msgspec.Struct, frozen=True, kw_only=True):
    """What was copied and checked."""

    rows: dict[str, int]  # by table, those that have any
    through_event_id: int  # the last event that is in the copy
    entries: int
    live_claims: int  # entries that ran at the source at that moment


class _Table(msgspec.Struct, frozen=True):
    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


def copy_store(
    source: Store, target: Store, *, progress: Callable[[str, int], None] = lambda _table, _rows: None
) -> CopiedStore:
    """Copy a store into an empty one, or raise; `progress` gets each table and how many of its rows are copied."""
    now = source.clock.now()

    def copied(old: Transaction) -> CopiedStore:
        old.run(_NO_TIME_LIMITS)
        tables = _tables(old)
        return target.write(lambda new: _copy(old, tables, new, now, progress))

    return source.read(copied)


@contextlib.contextmanager
def _reading_source() -> Iterator[None]:
    """A source that is lost is no fault of the target, whose transaction would be tried again and its disk blamed."""
    try:
        yield
    except TransactionLost as problem:
        text = f"the source could not be read to its end: {problem}"
        raise StoreUnavailable(text, hint="See that it can be reached, then copy again.") from problem


def _copy(
    old: Transaction, tables: dict[str, _Table], new: Transaction, now: float, progress: Callable[[str, int], None]
) -> CopiedStore:
    new.run(_NO_TIME_LIMITS)
    targets = _tables(new)
    _refuse_other_tables(tables, targets)
    _refuse_data(new, targets)
    copied: dict[str, int] = {}
    for name in _in_order_of_references(new, targets):
        copied[name] = 0
        for rows in () if name == _WORKERS else _pages(old, tables[name]):
            new.run_many(_insert(tables[name]), rows)
            copied[name] += len(rows)
            progress(name, copied[name])
    for name in SEQUENCES:
        _copy_counter(old, new, name)
    return _checked(old, new, now, copied)


def _tables(tx: Transaction) -> dict[str, _Table]:
    found: dict[str, list[Row]] = {}
    for row in tx.run(_COLUMNS):
        found.setdefault(row[0], []).append(row)
    tables = {}
    for name, rows in found.items():
        key = sorted((place, column) for _, column, place in rows if place)
        tables[name] = _Table(name, tuple(row[1] for row in rows), tuple(column for _, column in key))
    return tables


def _refuse_other_tables(tables: dict[str, _Table], targets: dict[str, _Table]) -> None:
    """Both must have the same columns; other programs' tables of a file are not rota's to copy."""
    for name, target in targets.items():
        missing = sorted(set(target.columns) ^ set(tables[name].columns if name in tables else ()))
        if missing or not target.key:
            text = f"table {name} is not the same in both stores: {', '.join(missing) or 'it has no key'}"
            raise StoreError(text, hint="Open both with this version of rota first: `rota db migrate`.")


def _refuse_data(new: Transaction, targets: dict[str, _Table]) -> None:
    for table in targets.values():
        text = f'SELECT {_names(table.key)} FROM "{table.name}" LIMIT {len(_IN_NEW_STORES) + 1}'  # noqa: S608  # names of the schema
        rows = new.run(Statement("copy_any_row", "Whether a table has rows.", text))
        if any(table.name != _META or row[0] not in _IN_NEW_STORES for row in rows):
            text = f"the target has data already: table {table.name} has rows"
            raise InvalidInput(text, field="target", hint="Name a new file, or a new schema: `…?schema=rota2`.")


def _in_order_of_references(new: Transaction, targets: dict[str, _Table]) -> Iterator[str]:
    order: TopologicalSorter[str] = TopologicalSorter({name: set() for name in targets})
    for table, referred in new.run(_REFERENCES):
        if table != referred and table in targets:  # rows that refer to their own table follow their key
            order.add(table, referred)
    return (name for name in order.static_order() if name in targets)


def _pages(old: Transaction, table: _Table) -> Iterator[list[Row]]:
    """Read a table in the order of its key, a page at a time."""
    key, width = _names(table.key), len(table.key)
    text = f'SELECT {key}, {_names(table.columns)} FROM "{table.name}"'  # noqa: S608  # names of the schema
    end = f"ORDER BY {key} LIMIT {COPIED_AT_A_TIME}"
    after = f"{text} WHERE ({key}) > ({', '.join('?' * width)}) {end}"
    first = Statement("copy_page", "Rows to copy.", f"{text} {end}")
    following = Statement("copy_next_page", "More rows to copy.", after)
    with _reading_source():
        rows = old.run(first)
    seen = NoRepeats(f"rows of {table.name}")
    while rows:
        seen.check([row[:width] for row in rows])
        found = [row[width:] for row in rows]
        if table.name == _META:
            place = table.columns.index("key")
            found = [row for row in found if not _is_of_the_store(row[place])]
        yield found
        with _reading_source():
            rows = old.run(following, rows[-1][:width])


def _is_of_the_store(key: str) -> bool:
    return key in _OF_THE_STORE or key.startswith(KEY_PREFIX)


def _insert(table: _Table) -> Statement:
    text = f'INSERT INTO "{table.name}" ({_names(table.columns)}) VALUES ({", ".join("?" * len(table.columns))})'  # noqa: S608  # names of the schema
    if table.name == _META:  # a new store has some settings already
        text += " ON CONFLICT (key) DO UPDATE SET value = excluded.value"
    return Statement("copy_insert", "A copied row.", text, postgres=text)


def _copy_counter(old: Transaction, new: Transaction, table: str) -> None:
    with _reading_source():
        given = old.run(_COUNTER[table])
    if given and given[0][0]:
        new.run(_FORGET_COUNTER, (table,))
        new.run(_SET_COUNTER[table], (given[0][0],))


def _checked(old: Transaction, new: Transaction, now: float, copied: dict[str, int]) -> CopiedStore:
    for name, count in copied.items():
        text = f'SELECT count(*) FROM "{name}"'  # noqa: S608  # a name of the schema
        ((found,),) = new.run(Statement("copy_count", "The rows of a table.", text))
        expected = count + (_kept_settings(new) if name == _META else 0)
        if found != expected:
            raise StoreError(f"table {name} of the copy has {found:,} rows instead of {expected:,}")
    tables, journal = KernelState.from_tables(new), KernelState.from_journal(new)
    with _reading_source():
        source = KernelState.from_tables(old)
    if tables != source:
        raise StoreError("the copy is not equal to the source", hint="Check the source: `rota db check`.")
    if tables.at(now) != journal.at(now):
        raise StoreCorrupt("the source's journal does not give its tables", hint="Check the source: `rota db check`.")
    running = sum(state == EntryState.DISPATCHED for state in tables.entries.values())
    rows = {name: copied[name] for name in sorted(copied) if copied[name]}
    return CopiedStore(rows=rows, through_event_id=tables.through_id, entries=len(tables.entries), live_claims=running)


def _kept_settings(new: Transaction) -> int:
    """How many settings the target has of its own."""
    names = ", ".join(f"'{name}'" for name in sorted(_OF_THE_STORE))
    text = f"SELECT count(*) FROM {_META} WHERE key IN ({names})"  # noqa: S608  # constants
    ((count,),) = new.run(Statement("copy_own_settings", "Settings that were not copied.", text))
    return int(count)


def _names(columns: tuple[str, ...]) -> str:
    return ", ".join(f'"{column}"' for column in columns)
