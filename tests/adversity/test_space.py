"""Space: what is replaced or removed does not keep its room for ever."""

from __future__ import annotations

import hashlib
from pathlib import Path

import apsw
import msgspec
import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Completion, Kernel, ScheduleSpec
from rota.kernel.finished_entries import collect
from rota.kernel.replay import KernelState
from rota.model.event_codec import decode, run_checkpointed
from rota.model.events import RunCheckpointed
from rota.store import Transaction
from rota.store.statements import file as file_sql
from tests.store.files import script


def opened(path: str) -> Kernel:
    return Kernel(store.open(path, clock=ManualClock(1_000.0)))


def size_of(kernel: Kernel) -> int:
    """The size of the file once its log has been copied into it."""
    ((page_bytes, pages, _free),) = kernel.store.read(lambda tx: tx.run(file_sql.SPACE))
    return int(page_bytes * pages)


def run_many(kernel: Kernel, count: int) -> None:
    """Finish entries with a payload of 400 bytes each."""
    pid = kernel.agents.create("agent")
    kernel.queue.enqueue_many([ScheduleSpec(pid, payload={"text": "x" * 400}) for _ in range(count)])
    while entries := kernel.queue.claim(worker_id="w", max_n=500):
        kernel.queue.complete_many([Completion(entry.sched_id, token=entry.token) for entry in entries])


def both(tx: Transaction) -> tuple[KernelState, KernelState]:
    return KernelState.from_tables(tx), KernelState.from_journal(tx)


# --- checkpoints of runs ---------------------------------------------------------------------------


def test_a_checkpoint_that_a_run_replaces_leaves_only_its_size_and_digest(tmp_path: Path) -> None:
    kernel = opened(str(tmp_path / "rota.db"))
    kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("agent")))
    (entry,) = kernel.queue.claim(worker_id="w")
    state = {"step": 0, "text": "x" * 100_000}
    for step in range(40):
        state["step"] = step
        kernel.supervision.checkpoint(entry.sched_id, entry.token or 0, state)
    assert kernel.queue.get(entry.sched_id).result == state
    assert size_of(kernel) < 1_000_000, "40 of them were 4 MB"
    last = kernel.journal.tail(kernel.journal.cursor() - 1)[0]
    body = msgspec.json.encode(state)
    assert decode(last.kind, last.payload) == RunCheckpointed(
        sched_id=entry.sched_id,
        token=entry.token or 0,
        size_bytes=len(body),
        digest=hashlib.blake2b(body, digest_size=16).hexdigest(),
    )
    tables, journal = kernel.store.read(both)
    assert journal == tables
    kernel.store.close()


def test_an_event_that_has_the_checkpoint_itself_is_read_as_its_size_and_digest() -> None:
    old = {"sched_id": 3, "token": 7, "state": {"step": 1}}
    assert decode(RunCheckpointed.kind, old) == run_checkpointed(3, 7, b'{"step":1}')


# --- pruning ---------------------------------------------------------------------------------------


def test_a_prune_shortens_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    kernel = opened(str(path))
    empty = size_of(kernel)
    run_many(kernel, 3_000)
    before = size_of(kernel)
    kernel.clock.advance(100)  # type: ignore[attr-defined]
    pruned = kernel.retention.prune(events_older_than_s=0, entries_older_than_s=0)
    assert pruned.freed_bytes == before - size_of(kernel)
    assert pruned.free_bytes == 0
    assert size_of(kernel) < empty + 50_000 < before
    tables, journal = kernel.store.read(both)
    assert journal == tables
    assert kernel.store.check() == []
    kernel.store.close()
    assert path.stat().st_size < empty + 50_000


def test_a_prune_in_memory_returns_space_too() -> None:
    kernel = opened(":memory:")
    run_many(kernel, 500)
    kernel.clock.advance(100)  # type: ignore[attr-defined]
    assert kernel.retention.prune(events_older_than_s=0, entries_older_than_s=0).freed_bytes > 0
    kernel.store.close()


@pytest.fixture
def old_file(tmp_path: Path) -> str:
    """A file of an earlier version, which cannot return pages in steps."""
    path = str(tmp_path / "old.db")
    connection = apsw.Connection(path)
    connection.execute("PRAGMA page_size = 2048")
    connection.execute(script(103))
    connection.close()
    return path


def test_a_file_of_an_earlier_version_reuses_free_pages_until_it_is_vacuumed(old_file: str) -> None:
    kernel = opened(old_file)
    run_many(kernel, 1_000)
    while collect(kernel.env):  # retention's own list, which takes some pages too
        pass
    before = size_of(kernel)
    kernel.clock.advance(100)  # type: ignore[attr-defined]
    pruned = kernel.retention.prune(events_older_than_s=0, entries_older_than_s=0)
    assert (pruned.freed_bytes, size_of(kernel)) == (0, before)
    assert pruned.free_bytes > before // 2
    beside = opened(old_file)
    kernel.store.vacuum()
    assert size_of(kernel) == size_of(beside) <= before - pruned.free_bytes + 10_000
    run_many(beside, 1_000)  # another process, or connection, goes on
    beside.clock.advance(200)  # type: ignore[attr-defined]
    again = kernel.retention.prune(events_older_than_s=0, entries_older_than_s=0)
    assert again.freed_bytes > before // 2
    assert kernel.store.check() == []
    tables, journal = beside.store.read(both)
    assert journal == tables
    for each in (kernel, beside):
        each.store.close()


def test_opening_a_file_writes_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    opened(path).store.close()
    before = Path(path).read_bytes()
    kernel = opened(path)
    log = Path(f"{path}-wal")
    assert not log.exists() or log.stat().st_size == 0
    kernel.store.close()
    assert Path(path).read_bytes() == before
