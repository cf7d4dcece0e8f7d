"""`copy_store`: from each kind of store to another one and back, at one moment, checked, or not at all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.clock import ManualClock
from rota.errors import InvalidInput, StoreCorrupt
from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.copying import COPIED_AT_A_TIME, copy_store
from rota.kernel.daemon_addresses import daemon_address_of, write_daemon_address
from rota.model.reasons import NoWorker
from rota.model.workers import SlotPool
from rota.service import Dispatcher
from rota.service.explanation import explain
from rota.store import Row, Statement, Store, postgres_connection
from tests.kernel.populated_world import AFTER, PID, PopulatedWorld
from tests.kernel.world import World
from tests.stores import everything, open_kind

OF_THE_STORE = ("schema_version", "clock_offset", "timeline")
OTHER = {"memory": "postgres", "file": "postgres", "postgres": "file"}


@pytest.fixture
def populated() -> Iterator[PopulatedWorld]:
    made = PopulatedWorld()
    yield made
    made.close()


@pytest.fixture
def target(store_kind: str, tmp_path: Path) -> Iterator[Store]:
    """A new store of another kind."""
    with contextlib.closing(open_kind(OTHER[store_kind], tmp_path / "target.db", clock=ManualClock(5_000.0))) as made:
        yield made


def contents(opened: Store) -> dict[str, list[Row]]:
    """What a copy must have; the order of rows and of columns is the store's own affair."""
    found = {name: rows for name, rows in everything(opened).items() if rows and not name.startswith("sqlite_")}
    listed = found.pop("agent_entries", None)  # only a database has it
    assert listed is None or len(listed) == len(found["agent_schedule_queue"])
    found["kernel_meta"] = [row for row in found["kernel_meta"] if row[0] not in OF_THE_STORE]
    return {name: sorted(tuple(sorted(map(repr, row))) for row in rows) for name, rows in found.items()}


def test_a_copy_has_every_row_and_goes_on_where_the_source_was(
    populated: PopulatedWorld, target: Store, tmp_path: Path, store_kind: str
) -> None:
    copied = copy_store(populated.store, target)
    assert contents(target) == contents(populated.store)
    assert copied.rows["agent_schedule_queue"] == copied.entries == AFTER
    assert copied.live_claims == 1
    assert copied.through_event_id == populated.journal.cursor()
    with contextlib.closing(open_kind(store_kind, tmp_path / "back.db", clock=populated.clock)) as back:
        assert copy_store(target, back) == copied
        assert contents(back) == contents(populated.store)
    ids = [Kernel(each).queue.enqueue(ScheduleSpec(PID)) for each in (populated.store, target)]
    assert ids == [AFTER + 1] * 2
    assert Kernel(target).queue.complete(2, "completed", token=populated.token) is not None  # the claim lives there too


def test_the_addresses_of_the_daemons_of_the_source_are_not_copied(world: World, target: Store) -> None:
    """They serve the source: logs of the copy's own runs are not there."""
    world.store.write(lambda tx: write_daemon_address(tx, "box", "https://box:7682"))
    copy_store(world.store, target)
    assert target.read(lambda tx: daemon_address_of(tx, "box")) is None


def test_the_workers_of_the_source_are_not_copied(world: World, pid: int, target: Store) -> None:
    """They claim nothing in the copy, where entries would wait for them, and where they would be reported as lost."""
    workers = Kernel(world.store).workers
    workers.register("box", "1", kind="supervisor", host="there", os_pid=7, pools=[SlotPool(worker_id="box", slots=2)])
    sched_id = world.queue.enqueue(ScheduleSpec(pid))
    copied = copy_store(world.store, target)
    assert "workers" not in copied.rows
    with_copy = Kernel(target)
    assert with_copy.workers.list(lost=True) == []
    assert isinstance(explain(Dispatcher(with_copy), sched_id).workers, NoWorker)
    assert [each.worker_id for each in workers.list()] == ["box"]


def test_a_table_of_several_pages_is_copied_whole(world: World, pid: int, target: Store) -> None:
    world.queue.enqueue_many([ScheduleSpec(pid)] * (COPIED_AT_A_TIME + 1))
    seen: list[tuple[str, int]] = []
    copy_store(world.store, target, progress=lambda table, rows: seen.append((table, rows)))
    assert [rows for table, rows in seen if table == "agent_schedule_queue"] == [COPIED_AT_A_TIME, COPIED_AT_A_TIME + 1]
    assert len(contents(target)["agent_schedule_queue"]) == COPIED_AT_A_TIME + 1


@pytest.mark.only_on("file", "postgres", reason="a store in memory has no view beside its writer")
def test_what_is_written_to_the_source_meanwhile_is_not_in_the_copy(world: World, pid: int, target: Store) -> None:
    world.put(pid)

    def write_meanwhile(_table: str, _rows: int) -> None:
        world.put(pid)

    copied = copy_store(world.store, target, progress=write_meanwhile)
    assert copied.entries == len(contents(target)["agent_schedule_queue"]) == 1
    assert len(contents(world.store)["agent_schedule_queue"]) > 1


def test_a_copy_may_leave_a_server_waiting_for_longer_than_other_transactions_may(
    store_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of millions of rows does, while the other store is read, written or checked."""
    monkeypatch.setattr(postgres_connection, "IDLE_S_MAX", 0.2)

    def wait_at_projects(table: str, _rows: int) -> None:
        threading.Event().wait(0.4 if table == "projects" else 0.0)

    with (
        contextlib.closing(open_kind(store_kind, tmp_path / "source.db")) as source,
        contextlib.closing(open_kind(OTHER[store_kind], tmp_path / "copy.db")) as target,
    ):
        Kernel(source).projects.create("docs")
        copy_store(source, target, progress=wait_at_projects)
        assert contents(target) == contents(source)


def test_a_target_with_data_is_refused_and_stays(world: World, pid: int, target: Store) -> None:
    world.put(pid)
    Kernel(target).agents.create("mine")
    before = contents(target)
    with pytest.raises(InvalidInput, match="has data already"):
        copy_store(world.store, target)
    assert contents(target) == before


def test_a_source_whose_journal_is_damaged_is_not_copied(world: World, pid: int, target: Store) -> None:
    world.put(pid)
    lost = Statement("lose", "For a test.", "DELETE FROM agent_events WHERE kind = 'kernel.sched.enqueued'")
    world.store.write(lambda tx: tx.run(lost))
    with pytest.raises(StoreCorrupt, match="journal"):
        copy_store(world.store, target)
    assert contents(target).keys() <= {"kernel_meta"}


def test_ids_that_were_given_and_removed_are_not_given_again(world: World, target: Store) -> None:
    """The place of a finished entry, which a reader may have seen, is never another one's."""
    add = Statement("add", "For a test.", "INSERT INTO finished_entries (sched_id, ended_at) VALUES (?, 1)")
    places = Statement("places", "For a test.", "SELECT place FROM finished_entries ORDER BY place")
    remove = Statement("remove", "For a test.", "DELETE FROM finished_entries")
    world.store.write(lambda tx: tx.run_many(add, [(7,), (8,), (9,)]))
    ((_,), (_,), (highest,)) = world.store.read(lambda tx: tx.run(places))
    world.store.write(lambda tx: tx.run(remove))
    copy_store(world.store, target)
    target.write(lambda tx: tx.run(add, (10,)))
    assert target.read(lambda tx: tx.run(places)) == [(highest + 1,)]
