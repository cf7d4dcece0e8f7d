"""Worker ids that are held over all hosts, and processes of several versions of rota on one schema.

Specific, because a file belongs to one host (fleet/worker_lock.py), and is migrated by the process that opens it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from rota import Rota, store
from rota.errors import SchemaMismatch, StoreUnavailable, WorkerExists
from rota.fleet import FleetRun, load_fleet
from rota.kernel import Kernel, ScheduleSpec
from rota.service.dispatcher import Dispatcher
from rota.store import migrations, postgres_engine, postgres_opening, postgres_schema
from rota.store.postgres import PostgresStore
from rota.store.postgres_engine import turn_key
from tests.postgres_server import own_schema, shared_dsn
from tests.store.world import PATIENCE_S, Caller


@pytest.fixture
def url() -> Iterator[str]:
    with own_schema("names") as made:
        yield made


@contextlib.contextmanager
def opened(url: str) -> Iterator[PostgresStore]:
    made = store.open(url)
    assert isinstance(made, PostgresStore)
    with contextlib.closing(made):
        yield made


def end_session(pid: int) -> None:
    with psycopg.connect(shared_dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))


# --- worker ids ----------------------------------------------------------------------------------


def test_an_id_is_refused_while_another_process_holds_it(url: str) -> None:
    with opened(url) as one, opened(url) as other:
        with one.hold_worker_id("box"):
            with (
                pytest.raises(WorkerExists, match="box is in use by a process at") as refused,
                other.hold_worker_id("box"),
            ):
                pass
            assert refused.value.worker_id == "box"
            with pytest.raises(WorkerExists, match="in this process"), one.hold_worker_id("box"):
                pass
            with other.hold_worker_id("another box"):
                pass
        with other.hold_worker_id("box"):
            pass


def test_an_id_is_per_schema(url: str) -> None:
    with (
        own_schema("other_names") as second,
        opened(url) as one,
        opened(second) as other,
        one.hold_worker_id("box"),
        other.hold_worker_id("box"),
    ):
        other.write(lambda tx: tx.foreign_version)


def test_an_id_is_taken_after_the_session_ended_while_it_was_not_in_use(url: str) -> None:
    """As after a restart of the server, in a program that has the store open for long."""
    with opened(url) as one, opened(url) as other:
        end_session(one._engine.backend_pid)
        with one.hold_worker_id("box"), pytest.raises(WorkerExists), other.hold_worker_id("box"):
            pass


def test_an_id_is_taken_again_after_the_session_was_lost(url: str) -> None:
    with opened(url) as one, opened(url) as other, one.hold_worker_id("box"):
        end_session(one._engine.backend_pid)
        one.write(lambda tx: tx.foreign_version)
        with pytest.raises(WorkerExists), other.hold_worker_id("box"):
            pass


def test_an_id_is_taken_again_before_the_server_notices_that_the_session_was_lost(url: str) -> None:
    """As after a cut network: the server holds the lock for a session that nobody uses."""
    with opened(url) as one, opened(url) as other, one.hold_worker_id("box"):
        lost = one._engine._pipeline
        assert lost is not None
        one._engine._lost_pid, one._engine._pipeline = lost.backend_pid, None
        one.write(lambda tx: tx.foreign_version)
        assert one._engine.backend_pid != lost.backend_pid
        end_session(lost.backend_pid)
        with pytest.raises(WorkerExists), other.hold_worker_id("box"):
            pass
        lost.close()


def test_an_id_that_another_process_took_meanwhile_is_reported(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with opened(url) as one, opened(url) as other, one.hold_worker_id("box"):
        end_session(one._engine.backend_pid)
        with other.hold_worker_id("box"):
            one.write(lambda tx: tx.foreign_version)
        assert "worker id box is now in use by a process at" in caplog.text


def test_a_supervisor_and_a_fleet_are_refused_before_they_change_anything(url: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text(f'store = "{url}"\nworker_id = "box"\n[agents.coder]\ncommand = ["true"]\n')
    with opened(url) as one, one.hold_worker_id("box"):
        with Rota(url) as rota, pytest.raises(WorkerExists):
            rota.run(until_idle=True, worker_id="box")
        with opened(url) as other, pytest.raises(WorkerExists):
            FleetRun(Dispatcher(Kernel(other)), load_fleet(file))
        assert Kernel(one).agents.find("coder") == []


# --- several versions ----------------------------------------------------------------------------


def test_an_older_process_cannot_write_after_a_newer_one_has_migrated(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both run at the same time, as in an upgrade of one host after the other."""
    newer = migrations.LATEST + 1
    with opened(url) as old_store:
        old = Kernel(old_store)
        pid = old.agents.create("coder")
        sched_id = old.queue.enqueue(ScheduleSpec(pid))
        with monkeypatch.context() as upgraded:
            step = "CREATE TABLE of_the_new_version (id bigint PRIMARY KEY)"
            upgraded.setitem(migrations.POSTGRES_STEPS, newer, step)
            for module in (postgres_engine, postgres_opening, postgres_schema):
                upgraded.setattr(module, "LATEST", newer)
            with opened(url) as new_store:
                (entry,) = Kernel(new_store).queue.claim(worker_id="new")
        assert entry.sched_id == sched_id
        for call in (
            lambda: old.queue.enqueue(ScheduleSpec(pid)),
            lambda: old.queue.complete(sched_id, "completed", token=entry.token),
            lambda: old.queue.claim(worker_id="old"),
        ):
            with pytest.raises(SchemaMismatch, match=f"schema_version is {newer} now"):
                call()
        assert old.queue.get(sched_id).state == "dispatched"  # reading goes on
        with pytest.raises(SchemaMismatch, match="newer rota"):
            store.open(url)


# --- a server that stops while a store is opened ---------------------------------------------------


def test_a_server_that_stops_while_a_store_is_opened_is_unavailable(url: str) -> None:
    """It waits for the turn, to create the schema."""
    with psycopg.connect(shared_dsn(), autocommit=True) as holder:
        key = turn_key(url.rpartition("=")[2])
        holder.execute("SELECT pg_advisory_lock(%s)", (key,))
        opening = Caller(lambda: store.open(url))
        text = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid::bigint = %s"
        while not (waiting := holder.execute(text, (key & 0xFFFFFFFF,)).fetchall()):
            assert not opening.is_done
        holder.execute("SELECT pg_terminate_backend(%s, %s)", (waiting[0][0], int(PATIENCE_S * 1_000)))
        assert isinstance(opening.error(), StoreUnavailable)
