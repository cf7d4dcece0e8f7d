"""The disk of a PostgreSQL server fills up: what was acknowledged is there when it has space again, and nothing twice.

Specific, because the server ends itself when its log cannot be written, and its operator has to start it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from rota import store
from rota.errors import StoreUnavailable
from rota.kernel import Kernel, KernelState, ScheduleSpec
from rota.service.outages import call_through_outage
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
DISK = "96m"
LONG = {"text": [hash(("word", number)) for number in range(10_000)]}  # more than the pages of a new table hold


class SmallDisk:
    """A server whose data folder is a disk of its own."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.ballast = server.data / "ballast"

    def fill(self) -> None:
        with self.ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(65_536)):
                pass

    def free(self) -> None:
        self.ballast.unlink()


@pytest.fixture
def disk(socket_folder: Path) -> Iterator[SmallDisk]:
    server = PostgresServer(socket_folder / "pg", settings={"wal_writer_delay": "10000"})
    server.data.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=700", "tmpfs", str(server.data)], check=True)
    try:
        server.create()
        with server:
            yield SmallDisk(server)
    finally:
        subprocess.run(["umount", str(server.data)], check=True)


def test_a_full_disk_of_the_server_loses_nothing_that_was_acknowledged(disk: SmallDisk) -> None:
    opened = store.open(f"{disk.server.dsn()}&schema=rota")
    kernel = Kernel(opened)
    pid = kernel.agents.create("coder")
    ids = [kernel.queue.enqueue(ScheduleSpec(pid, key="before"))]
    disk.fill()
    with pytest.raises(StoreUnavailable, match=r"nothing was written: .*No space left.* has disk space") as refused:
        kernel.queue.enqueue(ScheduleSpec(pid, payload=LONG))
    assert not refused.value.data.get("may_be_executed")
    with psycopg.connect(disk.server.dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_switch_wal()")  # the next commit needs a new file of the log
    with pytest.raises(StoreUnavailable, match=r"the call may have been executed\. When the server is back") as lost:
        kernel.queue.enqueue(ScheduleSpec(pid, key="lost"))
    assert lost.value.data["may_be_executed"]
    assert "psql" not in str(lost.value)
    assert "PANIC" in Path(disk.server.folder, "log").read_text()

    disk.free()
    disk.server.restart(signal.SIGKILL)
    after = call_through_outage(
        kernel.clock, lambda: kernel.queue.enqueue(ScheduleSpec(pid, key="after")), lambda: False
    )
    keys = {entry.key: entry.sched_id for entry in kernel.queue.list()[0]}
    assert {"before": ids[0], "after": after}.items() <= keys.items()
    assert len(keys) - ("lost" in keys) == 2
    assert [entry.sched_id for entry in kernel.queue.claim(worker_id="worker", max_n=3)] == sorted(keys.values())
    tables, journal = opened.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
    assert tables.at(kernel.clock.now()) == journal.at(kernel.clock.now())
    opened.close()


def test_a_schema_that_has_no_room_is_not_called_out_of_reach(disk: SmallDisk) -> None:
    disk.fill()
    with pytest.raises(StoreUnavailable, match=r"has no disk space: .*Free space on the server's disk"):
        store.open(f"{disk.server.dsn()}&schema=rota")
