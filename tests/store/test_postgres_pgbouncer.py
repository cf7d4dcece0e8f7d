"""A real PgBouncer in front of the server: refused, except in session mode if the URL says so.

Without PgBouncer on this machine, test_postgres_connection.py checks the refusal with a small proxy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota import store
from rota.errors import StoreUnavailable
from rota.kernel import Kernel, ScheduleSpec
from tests.postgres_server import PostgresServer, free_port
from tests.short_folders import short_folder
from tests.store.world import PATIENCE_S, Caller

PGBOUNCER = os.environ.get("ROTA_TEST_PGBOUNCER") or shutil.which("pgbouncer") or shutil.which("/usr/sbin/pgbouncer")
pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not installed: apt-get install pgbouncer")


@contextlib.contextmanager
def pgbouncer(server: PostgresServer, mode: str, extra: str = "") -> Iterator[str]:
    """Run PgBouncer in front of a server; yields the URL of a store behind it."""
    port = free_port()
    (server.folder / "users.txt").write_text('"rota" ""\n')
    (server.folder / "pgbouncer.ini").write_text(
        f"[databases]\npostgres = host={server.folder} port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {server.folder}/users.txt\n"
        f"pool_mode = {mode}\n{extra}\n"
    )
    with Path(server.folder, "pgbouncer.log").open("wb") as log:
        assert PGBOUNCER is not None
        process = subprocess.Popen(
            [*server._before(), PGBOUNCER, str(server.folder / "pgbouncer.ini")], stdout=log, stderr=log
        )
    try:
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < give_up_at, (server.folder / "pgbouncer.log").read_text()
            assert process.poll() is None, (server.folder / "pgbouncer.log").read_text()
        yield f"postgresql://rota@127.0.0.1:{port}/postgres?sslmode=disable&gssencmode=disable&schema=behind"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with short_folder() as folder, PostgresServer(folder) as server:
        yield server


@pytest.mark.parametrize("extra", ["", "ignore_startup_parameters = options"])
def test_a_pooler_in_transaction_mode_is_refused(server: PostgresServer, extra: str) -> None:
    with pgbouncer(server, "transaction", extra) as url:
        with pytest.raises(StoreUnavailable, match="pooler stands in front") as refused:
            store.open(url)
        assert "pooler=session" in str(refused.value)


def test_a_pooler_in_session_mode_works_if_the_url_says_so(server: PostgresServer) -> None:
    with pgbouncer(server, "session") as url, contextlib.closing(store.open(f"{url}&pooler=session")) as opened:
        kernel = Kernel(opened)
        pid = kernel.agents.create("coder")
        waiting = Caller(lambda: kernel.queue.claim(worker_id="worker", wait_s=PATIENCE_S))
        with contextlib.closing(store.open(f"{server.dsn()}&schema=behind")) as direct:  # the same schema
            sched_id = Kernel(direct).queue.enqueue(ScheduleSpec(pid))
        assert [entry.sched_id for entry in waiting.outcome()] == [sched_id]
        limit = opened._engine.pipeline.rows("SHOW idle_in_transaction_session_timeout")  # type: ignore[attr-defined]
        assert limit == [("10s",)]
