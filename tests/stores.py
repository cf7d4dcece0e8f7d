"""One suite on every store: the tests of the suites below run in memory, on a file and on PostgreSQL.

A suite takes part by importing `store_kind` and `pytest_generate_tests` into its conftest. Each test then runs once for
each kind of store. Meanwhile `store.open` opens a store of that kind, whatever the test asked for: ":memory:" is a new
store, a path is the same store for all who name it in this test. So a test is written once and names no store.

Raw SQL of a test goes through a transaction of the store, with ? for parameters, as in the kernel.

What cannot be so is marked, with the reason:

    @pytest.mark.only_on("memory", "file", reason="a file of the first kernel is an SQLite file")

A test that takes many seconds on PostgreSQL is marked `long_on_postgres`: `./dev soak` runs it there, `./dev test` not.
The same holds for the modules of `ONCE`, each with its reason: hundreds of cases whose answer is given before the store
is asked. `tests/house/test_stores.py` counts the marks and checks the lists.

`./dev soak` runs all three kinds, `./dev test` those of `GATE`, and `ROTA_TEST_STORES=postgres ./dev test` this one (or
several, with commas).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psycopg
import pytest

from rota import store
from rota.clock import Clock
from rota.errors import StoreMissing
from rota.store import JoinedStore, Row, Statement, Store, Transaction
from rota.store.postgres_engine import turn_key
from rota.store.sqlite import SqliteStore
from tests import kept_sessions
from tests.postgres_server import shared_dsn
from tests.short_folders import short_folder

__all__ = [
    "KINDS",
    "PostgresSchemas",
    "address_of",
    "database_url",
    "drop_schemas",
    "everything",
    "fingerprint",
    "hold_writers",
    "open_kind",
    "pytest_generate_tests",
    "store_kind",
]

KINDS = ("memory", "file", "postgres")
GATE = ("memory", "postgres")  # a file is the same engine as memory, and has the tests of tests/store and kernel_proof
NO_STORE = {  # modules of the suites that open no store: they run once
    "test_admission", "test_candidate_windows", "test_core_policy", "test_log_files", "test_policy_link",
    "test_profiles", "test_laws", "test_level_copy", "test_wrong_files", "test_trigger_rules", "test_log_shipping",
    "test_signals",
}  # fmt: skip
ONCE = {  # modules that ./dev test runs on the first kind only: what they test happens before the store is asked
    "test_bad_input": "input that is refused before the store is asked, or stored as it is on every kind",
    "test_invalid_arguments": "wrong values in every parameter of every method, checked in front of the store",
    "test_access": "tokens, scopes and walls, checked for each method of the API in front of the store",
    "test_limits": "limits of connections, bytes and calls of the daemon's two transports",
    "test_rest": "paths and fields of HTTP, translated to the same calls",
    "test_tls": "certificates of the daemon",
    "test_worktrees": "folders and git; the store has a row for each, which tests/kernel checks",
}
MEMORY = ":memory:"
real_open = store.open


def kinds() -> tuple[str, ...]:
    """The kinds of store this run tests."""
    chosen = os.environ.get("ROTA_TEST_STORES")
    if chosen:
        return tuple(kind for kind in KINDS if kind in chosen.split(","))
    return KINDS if os.environ.get("ROTA_SOAK") else GATE


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each kind of store that it can run on."""
    module = metafunc.module.__name__.rpartition(".")[2]
    if module in NO_STORE:
        return
    marks = list(metafunc.definition.iter_markers("only_on"))
    able = [kind for kind in kinds() if all(kind in mark.args for mark in marks)]
    if not (os.environ.get("ROTA_TEST_STORES") or os.environ.get("ROTA_SOAK")):
        is_long = metafunc.definition.get_closest_marker("long_on_postgres") is not None or module in ONCE
        able = [kind for kind in able if kind != "postgres" or not is_long]
    if not able and marks:  # this run leaves its store out; it still runs, on the first that it can
        able = [kind for kind in KINDS if all(kind in mark.args for mark in marks)][:1]
    metafunc.parametrize("store_kind", able, indirect=True)


@pytest.fixture(autouse=True)
def store_kind(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The kind of store that `store.open` opens in this test."""
    kind: str = getattr(request, "param", "memory")
    if kind == "memory":
        yield kind
    elif kind == "file":
        folders = iter(range(1_000_000))
        folder = tmp_path_factory.mktemp("stores")

        def open_file(url: str, **options: Any) -> Any:
            return real_open(str(folder / f"{next(folders)}.db") if url == MEMORY else url, **options)

        monkeypatch.setattr(store, "open", open_file)
        monkeypatch.setattr(store, "open_joined", lambda url, **options: JoinedStore(open_file(url, **options)))
        yield kind
    else:
        schemas = _schemas()
        monkeypatch.setattr(store, "open", schemas.open)
        monkeypatch.setattr(store, "open_joined", schemas.open_joined)
        monkeypatch.setattr(psycopg.Connection, "connect", kept_sessions.connect)
        with short_folder() as state:  # the sockets of daemons are in it
            monkeypatch.setenv("XDG_STATE_HOME", str(state))
            yield kind
    if os.getpid() in _of_process:  # also if the test opened a store on PostgreSQL itself
        _of_process[os.getpid()].end_test()


@contextmanager
def hold_writers(path: str) -> Iterator[None]:
    """Let nobody write to the store at a path during the block, as if another process were writing."""
    address = address_of(path)
    if address == path:
        with closing(apsw.Connection(path)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")
        return
    schema = address.rpartition("schema=")[2]
    with psycopg.connect(address.rpartition("schema=")[0].rstrip("?&")) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(%s::bigint)", (turn_key(schema),))
        yield


# --- PostgreSQL ----------------------------------------------------------------------------------


class _Used(NamedTuple):
    schema: str
    address: str  # as the test wrote it
    stores: list[Any]


def _is_over(used: _Used) -> bool:
    """Whether a schema can be given away within a test: its stores are closed, and no path means it any more."""
    is_gone = used.address == MEMORY or not Path(used.address).parent.exists()
    return is_gone and all(each._closed for each in used.stores)


class PostgresSchemas:
    """Schemas of this process on the server of the run. A schema is made once and emptied before each use."""

    def __init__(self, dsn: str, prefix: str) -> None:
        self.dsn, self._prefix = dsn, prefix
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._free: list[str] = []
        self._used: list[_Used] = []
        self._emptying: dict[str, str] = {}  # schema → the text that empties it
        self._made = 0

    def url(self, schema: str) -> str:
        """The URL of a rota in this schema."""
        return f"{self.dsn}{'&' if '?' in self.dsn else '?'}schema={schema}"

    def open(self, url: str, **options: Any) -> Any:
        """Open the store that a test names by ":memory:" or by a path."""
        if url.startswith("postgresql:"):
            return real_open(url, **options)
        if not options.get("create", True) and not any(used.address == url for used in self._used):
            raise StoreMissing(f"there is no store at {url}")  # the schema that would be its is an earlier test's
        found = self._find(url)
        made: Any = real_open(self.url(found.schema), **options)
        found.stores.append(made)
        if url != MEMORY:
            made.host_path = os.path.realpath(url)  # files beside the store are where the test looks for them
        return made

    def open_joined(self, path: str, **options: Any) -> JoinedStore:
        """As `open`, for a store that accepts posted writes."""
        return JoinedStore(self.open(path, **options))

    def address(self, path: str) -> str:
        """The URL of the schema that stands for this path in this test."""
        return self.url(self._find(path).schema)

    def _find(self, url: str) -> _Used:
        found = next((used for used in self._used if used.address == url != MEMORY), None)
        if found is None:
            self._take_back(_is_over)
            found = _Used(self._take(), url, [])
            self._used.append(found)
        return found

    def end_test(self) -> None:
        """Close what the test left open, and take its schemas back."""
        for used in self._used:
            for opened in used.stores:
                opened.close()
        self._take_back(lambda _used: True)

    def close(self) -> None:
        """Drop the schemas of this process: the server may be one that stays."""
        for number in range(1, self._made + 1):
            self._connection.execute(f'DROP SCHEMA IF EXISTS "{self._prefix}_{number}" CASCADE'.encode())
        self._connection.close()

    def _take(self) -> str:
        if not self._free:
            self._made += 1
            return f"{self._prefix}_{self._made}"
        schema = self._free.pop()
        if schema not in self._emptying and (text := self._text_to_empty(schema)):
            self._emptying[schema] = text
        if schema in self._emptying:
            self._connection.execute(self._emptying[schema].encode())
        return schema

    def _take_back(self, ended: Callable[[_Used], bool]) -> None:
        back = [used for used in self._used if ended(used)]
        self._used = [used for used in self._used if used not in back]
        self._free += [used.schema for used in back]

    def _text_to_empty(self, schema: str) -> str:
        """DELETE takes under a millisecond on tables with few rows, TRUNCATE a hundred."""
        ask = "SELECT relname, relkind::text FROM pg_class WHERE relnamespace = to_regnamespace(%s)"
        found = self._connection.execute(ask, (schema,)).fetchall()
        tables = [name for name, kind in found if kind in ("r", "p")]
        if not tables:  # it was named, and never opened
            return ""
        sequences = [name for name, kind in found if kind == "S"]
        deletes = [f'DELETE FROM "{schema}"."{name}";' for name in tables if name != "kernel_meta"]
        meta = f'"{schema}".kernel_meta'  # a new schema has these two rows
        deletes.append(f"DELETE FROM {meta} WHERE key NOT IN ('schema_version', 'finished_cursor');")
        deletes.append(f"UPDATE {meta} SET value = '0' WHERE key = 'finished_cursor';")
        restarts = [f'SELECT setval(\'"{schema}"."{name}"\', 1, false);' for name in sequences]
        # replica: no trigger checks the order of the deletes against the foreign keys
        return "BEGIN; SET LOCAL session_replication_role = replica;" + "".join([*deletes, *restarts]) + "COMMIT"


_of_process: dict[int, PostgresSchemas] = {}


def _schemas() -> PostgresSchemas:
    """The schemas of this process. A missing server fails the test that asks."""
    made = _of_process.get(os.getpid())
    if made is None:
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        made = _of_process[os.getpid()] = PostgresSchemas(shared_dsn(), f"rota_{worker}_{os.getpid()}")
    return made


def open_kind(kind: str, path: Path, *, clock: Clock | None = None) -> Any:
    """Open a store of a kind that the test chooses itself."""
    if kind == "postgres":
        return _schemas().open(str(path), clock=clock)
    return real_open(MEMORY if kind == "memory" else str(path), clock=clock)


def database_url(path: Path) -> str:
    """The URL of an empty schema that stands for this path in this test."""
    return _schemas().address(str(path))


def address_of(path: Path | str) -> str:
    """What a command names by --store to mean the store that `store.open(path)` opens in this test."""
    opened_by = getattr(store.open, "__self__", None)
    return opened_by.address(str(path)) if isinstance(opened_by, PostgresSchemas) else str(path)


def drop_schemas() -> None:
    """Drop what this process made, at the end of its tests."""
    kept_sessions.end_sessions()
    if made := _of_process.pop(os.getpid(), None):
        made.close()


# --- looking at any store ------------------------------------------------------------------------

TABLES = Statement(
    "test_tables",
    "Made for a test: the names of all tables.",
    "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name",
    postgres="SELECT c.relname FROM pg_class c WHERE c.relnamespace = current_schema()::regnamespace "
    "AND c.relkind IN ('r', 'p') ORDER BY c.relname",
)


def fingerprint(opened: Store) -> object:
    """What must be the same when nothing was written; on PostgreSQL in one statement."""
    if not isinstance(opened, SqliteStore):
        return opened.read(lambda tx: tx.run(_fingerprints([str(row[0]) for row in tx.run(TABLES)])))
    return everything(opened)


def _fingerprints(tables: list[str]) -> Statement:
    rows = "md5(coalesce(string_agg(t::text, chr(10) ORDER BY t::text), ''))"
    text = " UNION ALL ".join(f"SELECT '{name}', {rows} FROM \"{name}\" t" for name in tables)
    return Statement("test_fingerprints", "For a test.", text, postgres=text)


def everything(opened: Store) -> dict[str, list[Row]]:
    """Every row of every table: what must be the same when nothing was written."""

    def read(tx: Transaction) -> dict[str, list[Row]]:
        names = [str(row[0]) for row in tx.run(TABLES)]
        asks = {name: Statement(f"test_{name}", "For a test.", f'SELECT * FROM "{name}"') for name in names}
        return {name: sorted(tx.run(ask), key=repr) for name, ask in asks.items()}

    return opened.read(read)
