"""What a PostgreSQL URL means, which servers are refused, and the database's clock.

Specific, because files have neither addresses nor clocks.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

from rota import store
from rota.clock import SystemClock
from rota.errors import InvalidInput, SchemaMismatch, StoreError, StoreMissing, StoreReplaced, StoreUnavailable
from rota.kernel import Kernel, ScheduleSpec
from rota.store.postgres_clock import DRIFT_S, JUMP_S, DatabaseClock
from rota.store.postgres_connection import connect, one_line, parse_url, unavailable
from rota.store.statements.file import META_SET
from tests.postgres_server import PostgresServer, free_port, own_schema, shared_dsn

KEY_DATA = b"K\x00\x00\x00"  # the message with the number of the server's process


def test_own_parameters_are_split_from_those_of_libpq() -> None:
    address = parse_url("postgresql://ann:secret@a,b:5433/work?schema=fleet_2&sslmode=require")
    assert address.schema == "fleet_2"
    assert "schema" not in address.conninfo
    assert "sslmode=require" in address.conninfo
    assert "host=a,b" in address.conninfo
    assert parse_url("postgres://host/work").schema == "rota"


def test_parameters_of_libpq_reach_it_as_they_are_written() -> None:
    url = "postgresql://ann@db/work?application_name=a+b%20c&schema=fleet&options=-c%20geqo%3Doff&sslcert=/a%2Bb"
    settings = conninfo.conninfo_to_dict(parse_url(url).conninfo)
    assert settings["application_name"] == "a+b c"
    assert settings["options"] == "-c geqo=off"
    assert settings["sslcert"] == "/a+b"


def test_options_of_the_environment_and_of_a_service_file_are_in_force(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c geqo=off")
    with contextlib.closing(connect(parse_url(shared_dsn()), "test")) as connection:
        assert connection.execute("SHOW geqo").fetchone() == ("off",)
        assert connection.execute("SHOW jit").fetchone() == ("off",)  # one of rota's
    assert conninfo.conninfo_to_dict(parse_url("postgresql://db/work").conninfo)["options"] == "-c geqo=off"
    (tmp_path / "services").write_text("[fleet]\nhost=db\noptions=-c role=owner\nconnect_timeout=20\n")
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    theirs = conninfo.conninfo_to_dict(parse_url("postgresql:///work?service=fleet&connect_timeout=9").conninfo)
    assert (theirs["options"], theirs["connect_timeout"]) == ("-c role=owner", "9")
    assert conninfo.conninfo_to_dict(parse_url("postgresql:///?service=fleet").conninfo)["connect_timeout"] == "20"


@pytest.mark.parametrize("host", ["::1", "[::1", "::1]", "fe80::1:5432", "ann:secret@[::1", "db:port"])
def test_a_host_or_port_that_cannot_be_read_is_refused_in_a_sentence(host: str) -> None:
    with pytest.raises(InvalidInput, match="the URL of the store cannot be read") as refused:
        store.open(f"postgresql://{host}/work?schema=rota")
    assert "secret" not in str(refused.value)
    assert ("[::1]" in str(refused.value)) == ("::1" in host)


@pytest.mark.parametrize("address", [
    "host=db user=ann password=secret",
    "dbname = work",
    "postgresql:/ann:secret@db/work",
    "PostgreSQL://ann:secret@db/work",
    " postgresql://ann:secret@db/work",
    "postgresql+psycopg://ann:secret@db/work",
])  # fmt: skip
def test_what_is_nearly_a_url_is_no_path(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="postgresql://user@host/database") as refused:
        store.open(address)
    assert "secret" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_no_message_shows_the_password() -> None:
    address = parse_url("postgresql://ann:secret@127.0.0.1:1/work")
    problem = unavailable(address, psycopg.OperationalError("refused"))
    assert "ann" in str(problem)
    assert "secret" not in f"{problem}{address.shown}{problem.data}"


@pytest.mark.parametrize("schema", ["", "pg_rota", "Rota", "a-b", "a b", "1a", "x" * 59])
def test_a_name_that_cannot_be_a_schema_is_refused(schema: str) -> None:
    with pytest.raises(InvalidInput, match="schema"):
        parse_url(f"postgresql://host/work?schema={schema}")


def test_the_longest_schema_is_written() -> None:
    """Each commit notifies, on a channel of the schema's name."""
    schema = "x" * 58
    url = f"{shared_dsn()}&schema={schema}"
    try:
        with contextlib.closing(store.open(url)) as opened:
            opened.write(lambda tx: tx.run(META_SET, ("word", "written")))
    finally:
        with psycopg.connect(shared_dsn(), autocommit=True) as connection:
            connection.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


@pytest.mark.parametrize("rest", ["pooler=transaction", "no_such_option=1"])
def test_a_parameter_that_nobody_knows_is_refused(rest: str) -> None:
    with pytest.raises(InvalidInput):
        parse_url(f"postgresql://host/work?{rest}")


def test_a_server_that_is_not_there_is_said_with_a_command_to_paste() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached") as refused:
        store.open("postgresql://rota@127.0.0.1:1/Ann's%20data?schema=rota&options=-c%20geqo%3Doff")
    assert refused.value.data["address"] == "127.0.0.1/Ann's data?schema=rota"
    (command,) = re.findall("psql .*", str(refused.value))
    assert conninfo.conninfo_to_dict(shlex.split(command)[1]) == {
        "user": "rota", "host": "127.0.0.1", "port": "1", "dbname": "Ann's data", "options": "-c geqo=off",
    }  # fmt: skip


@pytest.mark.parametrize(("host", "shown"), [
    ("db", "db"),
    ("[::1]", "::1"),
    ("127.0.0.1:1,127.0.0.1:2", "127.0.0.1,127.0.0.1"),
    ("", "local"),
    ("%2Frun%2Fpostgresql", "local"),
])  # fmt: skip
def test_an_address_is_shown_by_its_hosts_and_a_socket_as_local(host: str, shown: str) -> None:
    assert parse_url(f"postgresql://{host}/work").shown == f"{shown}/work?schema=rota"


@pytest.mark.parametrize(("hosts", "why"), [
    ("127.0.0.1:1", "Connection refused"),
    ("127.0.0.1:1,127.0.0.1:2,localhost:3,127.0.0.2:4", "Connection refused"),
])  # fmt: skip
def test_what_several_hosts_have_in_common_is_said_once(hosts: str, why: str) -> None:
    address = f"postgresql://rota@{hosts}/postgres?schema=rota"
    with pytest.raises(StoreUnavailable) as refused:
        store.open(address)
    assert refused.value.message == f"PostgreSQL at {parse_url(address).shown} cannot be reached: {why}"
    assert "127.0.0.1" in refused.value.data["detail"]


@pytest.mark.parametrize("where", ['on socket "/tmp/.s.PGSQL.5432"', 'at "10.0.0.7", port 5432'])
def test_what_a_server_says_that_refuses_is_all_that_is_said(where: str) -> None:
    said = f"connection failed: connection to server {where} failed: FATAL:  it is starting up\nDETAIL:  Not yet."
    assert one_line(psycopg.OperationalError(said)) == "it is starting up"


def test_a_name_that_no_host_can_have_is_said_as_an_address_that_cannot_be_reached() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        store.open(f"postgresql://rota@{'x' * 70}/postgres?schema=rota")


def test_what_differs_between_hosts_is_said_of_each(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        store.open(f"postgresql://rota@/postgres?host=127.0.0.1,{tmp_path}&port=1,2&schema=rota")
    said = refused.value.message
    assert "Connection refused (127.0.0.1:1); socket " in said
    assert "No such file or directory" in said
    assert said.count("127.0.0.1:1") == 1


def test_the_hint_of_libpq_is_left_out_because_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"No such file or directory\. Check that it runs") as refused:
        store.open(f"postgresql:///postgres?host={tmp_path}&schema=rota")
    assert "Is the server running" not in str(refused.value)


def test_a_schema_of_another_program_is_refused_and_left_alone() -> None:
    with psycopg.connect(shared_dsn(), autocommit=True) as connection:
        connection.execute("CREATE SCHEMA of_another")
        connection.execute("CREATE TABLE of_another.things (id int)")
        try:
            with pytest.raises(SchemaMismatch, match="another program"):
                store.open(f"{shared_dsn()}&schema=of_another")
            found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'of_another'").fetchall()
            assert found == [("things",)]
        finally:
            connection.execute("DROP SCHEMA of_another CASCADE")


@contextlib.contextmanager
def role(name: str) -> Iterator[str]:
    """A role without any right, which is dropped at the end with all that it has."""
    made = f"{name}_{os.getpid()}"
    with psycopg.connect(shared_dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {made} LOGIN".encode())
        try:
            yield made
        finally:
            connection.execute(f"DROP OWNED BY {made} CASCADE; DROP ROLE {made}".encode())


def run_sql(text: str) -> None:
    with psycopg.connect(shared_dsn(), autocommit=True) as connection:
        connection.execute(text.encode())


def test_an_empty_schema_of_its_own_is_all_that_a_role_needs() -> None:
    with role("owner") as owner:
        run_sql(f"CREATE SCHEMA {owner} AUTHORIZATION {owner}")
        url = f"{shared_dsn().replace('//rota@', f'//{owner}@')}&schema={owner}"
        with contextlib.closing(store.open(url)) as opened:
            assert opened.check() == []


@pytest.mark.parametrize(("version", "words"), [("9999", "a newer rota"), ("x", "another program"), ("115", "older")])
def test_a_schema_of_another_version_is_called_what_it_is(version: str, words: str) -> None:
    with own_schema("rota_version") as url:
        store.open(url).close()
        schema = url.rpartition("=")[2]
        run_sql(f"UPDATE {schema}.kernel_meta SET value = '{version}' WHERE key = 'schema_version'")
        with pytest.raises(SchemaMismatch, match=words):
            store.open(url, read_only=True)


def test_a_database_of_another_encoding_is_refused() -> None:
    name = f"latin_{os.getpid()}"
    run_sql(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StoreUnavailable, match="has the encoding LATIN1, and rota needs UTF8") as refused:
            store.open(f"{shared_dsn().replace('/postgres?', f'/{name}?')}&schema=rota")
        assert "CREATE DATABASE rota ENCODING 'UTF8'" in str(refused.value)
    finally:
        run_sql(f"DROP DATABASE {name} WITH (FORCE)")


def test_a_role_that_may_not_create_a_schema_is_told_what_gives_it_the_right() -> None:
    with role("poor") as poor, pytest.raises(StoreError) as refused:
        store.open(f"{shared_dsn().replace('//rota@', f'//{poor}@')}&schema=of_{poor}")
    assert str(refused.value) == (
        f'the role "{poor}" may not open the schema "of_{poor}": permission denied for database postgres. '
        f'Have an administrator run: CREATE SCHEMA "of_{poor}" AUTHORIZATION "{poor}".'
    )


def test_a_role_whose_connections_are_used_up_is_told_which_limit_to_raise() -> None:
    with role("poor") as poor:
        run_sql(f"ALTER ROLE {poor} CONNECTION LIMIT 0")
        with pytest.raises(StoreUnavailable, match="too many connections for role") as refused:
            store.open(shared_dsn().replace("//rota@", f"//{poor}@"))
    assert "CONNECTION LIMIT of the role" in str(refused.value)


@pytest.mark.parametrize(("old", "new", "hint"), [
    ("/postgres?", "/no_such?", 'database "no_such" does not exist. Create it, or correct its name'),
    ("//rota@", "//no_such@", 'role "no_such" does not exist. Create it, or correct its name'),
])  # fmt: skip
def test_a_name_that_the_server_does_not_know_is_to_be_corrected(old: str, new: str, hint: str) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        store.open(shared_dsn().replace(old, new))
    assert hint in str(refused.value)


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ('connection failed: FATAL: password authentication failed for user "a"', "into ~/.pgpass"),
        ("connection failed: fe_sendauth: no password supplied", "into ~/.pgpass"),
        ("connection is bad: received invalid response to SSL negotiation: H", "Another program listens there"),
    ],
)
def test_what_libpq_says_is_said_with_what_helps(said: str, hint: str) -> None:
    problem = str(unavailable(parse_url("postgresql://a@host/work"), psycopg.OperationalError(said)))
    assert hint in problem
    assert ": connection" not in problem


def test_a_role_without_rights_in_a_schema_is_told_so() -> None:
    with role("poor") as poor, own_schema("rota_rights") as url:
        store.open(url).close()
        schema = url.rpartition("=")[2]
        theirs = url.replace("//rota@", f"//{poor}@")
        said = f"permission denied for schema {schema}"
        with pytest.raises(StoreError, match=said) as refused:
            store.open(theirs)
        assert f'GRANT "rota" TO "{poor}"' in str(refused.value)
        with pytest.raises(StoreError, match=said) as refused:
            store.server_health(theirs)
        assert "Connect as the role that owns the schema" in str(refused.value)
        run_sql(f"GRANT USAGE ON SCHEMA {schema} TO {poor}; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {poor}")
        with contextlib.closing(store.open(theirs)) as opened, pytest.raises(StoreError) as refused:
            opened.write(lambda tx: tx.run(META_SET, ("word", "mine")))
        assert str(refused.value).startswith("the role lacks a right: permission denied for")
        assert "\n" not in str(refused.value)


def test_the_owner_of_the_tables_is_named_where_a_backup_was_restored_by_another_role() -> None:
    with role("poor") as poor, own_schema("rota_restored") as url:
        store.open(url).close()
        run_sql(f"ALTER SCHEMA {url.rpartition('=')[2]} OWNER TO {poor}")
        with pytest.raises(StoreError, match="permission denied for table kernel_meta") as refused:
            store.open(url.replace("//rota@", f"//{poor}@"))
        assert f'GRANT "rota" TO "{poor}"' in str(refused.value)


def test_a_role_that_may_no_longer_use_the_schema_is_not_told_to_restore_a_backup_first() -> None:
    with role("poor") as poor:
        run_sql(f"CREATE SCHEMA {poor} AUTHORIZATION {poor}")
        url = f"{shared_dsn().replace('//rota@', f'//{poor}@')}&schema={poor}"
        with contextlib.closing(store.open(url)) as opened:
            run_sql(f"REVOKE USAGE ON SCHEMA {poor} FROM {poor}")
            with pytest.raises(StoreReplaced, match=r"or hidden from this role: .*If USAGE on the schema was revoked"):
                opened.write(lambda tx: tx.run(META_SET, ("word", "mine")))


def test_a_role_that_may_only_read_gets_the_usage_up_to_the_last_event() -> None:
    with role("reader") as reader, own_schema("rota_reader") as url:
        with contextlib.closing(store.open(url)) as opened:
            kernel = Kernel(opened)
            kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("coder")))
            (entry,) = kernel.queue.claim(worker_id="box")
            kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
        schema = url.rpartition("=")[2]
        run_sql(
            f"GRANT USAGE ON SCHEMA {schema} TO {reader}; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {reader}"
        )
        with contextlib.closing(store.open(url.replace("//rota@", f"//{reader}@"))) as opened:
            assert Kernel(opened).usage.report().total.runs == 1


@pytest.mark.parametrize("parameters", ["text, json, json", "agent text, payload json, options jsonb"])
def test_a_function_of_another_program_is_refused_and_left_alone(parameters: str) -> None:
    with own_schema("rota_function") as url:
        schema = url.rpartition("=")[2]
        body = f"FUNCTION {schema}.enqueue({parameters}) RETURNS int LANGUAGE sql AS 'SELECT 7'"
        run_sql(f"CREATE SCHEMA {schema}; CREATE {body}")
        with pytest.raises(SchemaMismatch, match=f"the schema {schema} has a function enqueue of another program"):
            store.open(url)
        with psycopg.connect(shared_dsn()) as connection:
            call = f"SELECT {schema}.enqueue('a', '{{}}', '{{}}')"
            assert connection.execute(call.encode()).fetchone() == (7,)
        run_sql(f"DROP FUNCTION {schema}.enqueue")
        store.open(url).close()


def test_a_read_only_store_creates_nothing() -> None:
    with pytest.raises(StoreMissing, match="no rota in the schema never_made"):
        store.open(f"{shared_dsn()}&schema=never_made", read_only=True)
    with psycopg.connect(shared_dsn(), autocommit=True) as connection:
        assert connection.execute("SELECT to_regnamespace('never_made')").fetchone() == (None,)


# --- poolers -------------------------------------------------------------------------------------


@contextlib.contextmanager
def pooler(server: Path, port: int) -> Iterator[int]:
    """A proxy that names a server process of its own, as PgBouncer does."""
    listener = socket.create_server(("127.0.0.1", 0))
    ends: list[socket.socket] = [listener]

    def pump(source: socket.socket, target: socket.socket, *, from_server: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                at = data.find(KEY_DATA) if from_server else -1
                if at >= 0:  # the length, then the number
                    data = data[: at + 5] + b"\x00\x00\x00\x07" + data[at + 9 :]
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                upstream = socket.socket(socket.AF_UNIX)
                upstream.connect(str(server / f".s.PGSQL.{port}"))
                ends.extend((client, upstream))
                threading.Thread(target=pump, args=(client, upstream), kwargs={"from_server": False}).start()
                threading.Thread(target=pump, args=(upstream, client), kwargs={"from_server": True}).start()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        thread.join()


def test_a_pooler_is_refused_unless_the_url_says_that_it_keeps_sessions(socket_folder: Path) -> None:
    with PostgresServer(socket_folder, port=free_port()) as server, pooler(server.folder, server.port) as port:
        url = f"postgresql://rota@127.0.0.1:{port}/postgres?sslmode=disable&gssencmode=disable"
        with pytest.raises(StoreUnavailable, match="pooler") as refused:
            connect(parse_url(url), "test")
        assert "pooler=session" in str(refused.value)
        connect(parse_url(f"{url}&pooler=session"), "test").close()


# --- the clock -----------------------------------------------------------------------------------


class Server:
    """The answers of a server, whose clock a test sets."""

    def __init__(self, clock: DatabaseClock, stored: str | None = None) -> None:
        self.clock, self.stored, self.ahead_s = clock, stored, 1_000_000.0
        self.answer()

    def answer(self, took_s: float = 0.0) -> bool:
        now = SystemClock.monotonic()
        return self.clock.set_by(now - took_s, now + self.ahead_s, self.stored)

    def ahead(self) -> float:
        """How far the clock's wall time is ahead of its advancing time: what the kernel compares."""
        return round(self.clock.now() - self.clock.monotonic(), 3)


def test_the_clock_shows_the_servers_time() -> None:
    server = Server(DatabaseClock())
    assert server.clock.now() == pytest.approx(SystemClock.monotonic() + 1_000_000, abs=0.5)
    assert server.ahead() == 0.0


def test_drift_is_followed_by_both_readings() -> None:
    server = Server(DatabaseClock())
    server.ahead_s += JUMP_S / 2
    assert server.answer()
    assert server.clock.now() == pytest.approx(SystemClock.monotonic() + server.ahead_s, abs=0.2)
    assert server.ahead() == 0.0


def test_a_jump_is_followed_by_the_wall_clock_alone() -> None:
    server = Server(DatabaseClock())
    server.ahead_s -= 3_600
    assert server.answer()
    assert server.ahead() == pytest.approx(-3_600, abs=0.5)


def test_a_late_answer_is_asked_for_again() -> None:
    server = Server(DatabaseClock())
    server.ahead_s -= 3.0  # or the answer was on its way for three seconds
    assert not server.answer(took_s=3.0)
    assert server.ahead() == 0.0
    server.ahead_s += 3.0 + DRIFT_S / 4
    assert server.answer(took_s=3.0)
    assert server.ahead() == 0.0


def test_a_process_that_comes_after_a_jump_agrees_with_the_others() -> None:
    first = Server(DatabaseClock())
    first.ahead_s += 7_200
    first.answer()
    later = Server(DatabaseClock(), stored=f"postgresql {first.ahead()!r}")
    assert later.ahead() == pytest.approx(first.ahead(), abs=0.01)
    assert later.clock.boot_id() == first.clock.boot_id()
