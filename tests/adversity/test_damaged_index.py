"""Calls that repeat until nothing is left, on files whose indexes or pages contradict the tables: every call ends.

An index is made to disagree by hiding it from the schema while its table changes; the order of a page by changing the
page itself. Each test fails without the rules of kernel/progress.py: the call uses up its steps (steps.py).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import RotaError, StoreCorrupt
from rota.kernel import EntryFilter, Kernel, KernelState, ScheduleSpec, bulk, replay
from rota.kernel.budget_loans import open_loans
from rota.kernel.progress import NoRepeats
from rota.service import Dispatcher
from rota.service.flow_pass import AHEAD_MAX
from rota.store.statements import claims as claim_sql
from tests.adversity.damage import PAGE_BYTES, calls, copy_of, populate
from tests.adversity.steps import Steps, limit_steps

NOW = 1_000_000.0
INTERIOR_INDEX, INTERIOR_TABLE, LEAF_INDEX, LEAF_TABLE = 2, 5, 10, 13  # the first byte of a page


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return limit_steps(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rota.db"


@contextlib.contextmanager
def kernel_at(path: Path) -> Iterator[Kernel]:
    kernel = Kernel(store.open(str(path), clock=ManualClock(NOW)))
    try:
        yield kernel
    finally:
        kernel.store.close()


# --- damage --------------------------------------------------------------------------------------


@contextlib.contextmanager
def raw(path: Path) -> Iterator[apsw.Connection]:
    """A connection that may change the schema and ignores constraints. The log is empty afterwards."""
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
        for pragma in ("writable_schema = ON", "ignore_check_constraints = ON", "foreign_keys = OFF"):
            connection.execute(f"PRAGMA {pragma}")
        yield connection
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def change_behind(path: Path, index: str, *changes: str) -> None:
    """Change rows while an index does not see it."""
    with raw(path) as connection:
        (row,) = connection.execute("SELECT * FROM sqlite_schema WHERE name = ?", (index,)).fetchall()
        connection.execute("DELETE FROM sqlite_schema WHERE name = ?", (index,))
    with raw(path) as connection:
        for change in changes:
            connection.execute(change)
    with raw(path) as connection:
        connection.execute("INSERT INTO sqlite_schema VALUES (?, ?, ?, ?, ?)", row)
        connection.execute(f"PRAGMA schema_version = {connection.pragma('schema_version') + 1}")


def change_page(path: Path, number: int, change: Callable[[bytearray], None]) -> None:
    """Change a page, numbered from 1."""
    data = bytearray(path.read_bytes())
    at = (number - 1) * PAGE_BYTES
    page = data[at : at + PAGE_BYTES]
    change(page)
    data[at : at + PAGE_BYTES] = page
    path.write_bytes(data)


def root_of(path: Path, name: str) -> int:
    with raw(path) as connection:
        rows: list[tuple[Any, ...]] = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)
        ).fetchall()
        return int(rows[0][0])


def rotate(page: bytearray) -> None:
    """Put the first row of a table's only page behind the last one."""
    assert page[0] == LEAF_TABLE
    (count,) = struct.unpack_from(">H", page, 3)
    cells = struct.unpack_from(f">{count}H", page, 8)
    struct.pack_into(f">{count}H", page, 8, *cells[1:], cells[0])


def repeat(page: bytearray) -> None:
    """Let the last key of an index's only page name the row of the key before it."""
    assert page[0] == LEAF_INDEX
    (count,) = struct.unpack_from(">H", page, 3)
    cells = struct.unpack_from(f">{count}H", page, 8)
    before, last = (cell + page[cell] for cell in cells[-2:])  # the size is in one byte, and so is the row's id
    page[last] = page[before]


# --- what is due ---------------------------------------------------------------------------------


def test_an_ended_entry_that_the_index_of_deadlines_still_has_is_not_swept(path: Path, steps: Steps) -> None:
    with kernel_at(path) as kernel:
        pid = kernel.agents.create("a")
        ended, late = (kernel.queue.enqueue(ScheduleSpec(pid, deadline=NOW + 1)) for _ in range(2))
    change_behind(
        path,
        "idx_sched_queue_deadline",
        f"UPDATE agent_schedule_queue SET state = 'completed', exit_kind = 'completed' WHERE sched_id = {ended}",
    )
    with kernel_at(path) as kernel:
        with steps.limited():
            assert kernel.queue.gc_expired(NOW + 2) == 1
        assert kernel.queue.get(ended).state == "completed"
        assert kernel.queue.get(late).state == "expired"
        assert any("idx_sched_queue_deadline" in problem for problem in kernel.check())


@pytest.mark.parametrize(
    "reclaim",
    [lambda kernel: kernel.queue.take_over("w", "next"), lambda kernel: kernel.queue.gc_dispatched(0.0, NOW + 1)],
)
def test_an_ended_run_that_the_index_of_claims_still_has_is_not_taken_back(
    path: Path, steps: Steps, reclaim: Callable[[Kernel], int]
) -> None:
    with kernel_at(path) as kernel:
        pid = kernel.agents.create("a")
        ended, live = (kernel.queue.enqueue(ScheduleSpec(pid)) for _ in range(2))
        assert len(kernel.queue.claim(worker_id="w", max_n=2)) == 2
    change_behind(
        path, "idx_sched_queue_live", f"UPDATE agent_schedule_queue SET state = 'completed' WHERE sched_id = {ended}"
    )
    with kernel_at(path) as kernel:
        with steps.limited():
            assert reclaim(kernel) == 1
        assert kernel.queue.get(ended).state == "completed"
        assert kernel.queue.get(live).state == "queued"


# --- claims --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("index", "claim"),
    [
        ("pickable", lambda kernel: kernel.queue.claim(worker_id="w")),
        ("pickable", lambda kernel: Dispatcher(kernel, "strict").claim("w")),
        ("pickable_by_agent", lambda kernel: Dispatcher(kernel, "eevdf").claim("w")),
    ],
)
def test_an_unreadable_entry_that_stays_in_the_index_of_ready_entries_is_reported(
    path: Path, steps: Steps, index: str, claim: Callable[[Kernel], object]
) -> None:
    """Claimed and ended, as an entry that cannot be read is, it would be found again and again."""
    with kernel_at(path) as kernel:
        pid = kernel.agents.create("a")
        bad = kernel.queue.enqueue(ScheduleSpec(pid))
        kernel.store.write(lambda tx: tx.run(claim_sql.INDEX_BY_AGENT))
    change = f"UPDATE agent_schedule_queue SET state = 'completed', payload = '[' WHERE sched_id = {bad}"
    change_behind(path, f"idx_sched_queue_{index}", change)
    with kernel_at(path) as kernel, steps.limited(), pytest.raises(StoreCorrupt, match="again and again") as caught:
        claim(kernel)
    assert "rota db check" in caught.value.hint


@pytest.mark.parametrize("policy", ["strict", "eevdf", "fair_share", "edf", "round_robin"])
def test_an_entry_that_an_index_has_twice_is_claimed_once(path: Path, steps: Steps, policy: str) -> None:
    with kernel_at(path) as kernel:
        kernel.projects.create("lab")
        pid = kernel.agents.create("a", project_id="lab")
        ids = [kernel.queue.enqueue(ScheduleSpec(pid)) for _ in range(AHEAD_MAX + 4)]
        indexes = (claim_sql.INDEX_BY_AGENT, claim_sql.INDEX_BY_PROJECT)
        kernel.store.write(lambda tx: [tx.run(index) for index in indexes])
    with raw(path):
        pass
    for name in ("", "_by_agent", "_by_project"):
        change_page(path, root_of(path, f"idx_sched_queue_pickable{name}"), repeat)
    with kernel_at(path) as kernel, steps.limited():
        claimed = [entry.sched_id for entry in Dispatcher(kernel, policy).claim("w", 100)]
    assert sorted(claimed) == ids[:-1]  # none of these indexes has the last one


@pytest.mark.parametrize("policy", ["strict", "eevdf", "fair_share", "edf", "round_robin"])
def test_an_entry_of_an_agent_that_does_not_exist_stops_no_claim(path: Path, policy: str) -> None:
    with kernel_at(path) as kernel:
        one, two = kernel.agents.create("one", max_concurrent=5), kernel.agents.create("two")
        bad = kernel.queue.enqueue(ScheduleSpec(one, priority=1, expected={"tokens": 5}))
        good = kernel.queue.enqueue(ScheduleSpec(two))
    with raw(path) as connection:
        connection.execute(f"UPDATE agent_schedule_queue SET pid = -116 WHERE sched_id = {bad}")
    with kernel_at(path) as kernel:
        claimed = {entry.sched_id: entry for entry in Dispatcher(kernel, policy).claim("w", 5)}
        assert good in claimed
        if bad in claimed:  # its worker ends it
            kernel.queue.complete(bad, "failed", token=claimed[bad].token)
        assert any("refers to a missing row" in problem for problem in kernel.check())


# --- pages ---------------------------------------------------------------------------------------


def test_dependents_of_a_predecessor_that_cannot_be_removed_are_reported(path: Path, steps: Steps) -> None:
    with kernel_at(path) as kernel:
        kernel.agents.create("a")
    with raw(path) as connection:
        connection.execute("INSERT INTO entry_fallout (sched_id) VALUES (5), (6), (7)")
    root = root_of(path, "entry_fallout")
    change_page(path, root, rotate)
    change_page(path, root, rotate)  # 7, 5, 6: the search for 7 goes to the right of 5
    with kernel_at(path) as kernel, steps.limited(), pytest.raises(StoreCorrupt, match="7 is found again"):
        kernel.queue.upkeep()


def rotated(path: Path, table: str) -> None:
    """Make a file in which the first row of a table comes last, so that a reader begins again after the last one."""
    with kernel_at(path) as kernel:
        pid = kernel.agents.create("a")
        for _ in range(4):
            kernel.queue.enqueue(ScheduleSpec(pid))
    with raw(path):
        pass
    change_page(path, root_of(path, table), rotate)


@pytest.mark.parametrize(
    ("table", "read"),
    [
        ("agent_events", lambda kernel: kernel.store.read(KernelState.from_journal)),
        ("agent_events", lambda kernel: list(kernel.journal.follow(0, wait_s=0.0))),
        ("agent_schedule_queue", lambda kernel: kernel.store.read(KernelState.from_tables)),
        ("agent_schedule_queue", lambda kernel: kernel.queue.cancel_where(EntryFilter())),
        ("agent_schedule_queue", lambda kernel: kernel.queue.retry_where(EntryFilter(state="queued"))),
    ],
)
def test_rows_that_do_not_ascend_are_reported(
    path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch, table: str, read: Callable[[Kernel], object]
) -> None:
    monkeypatch.setattr(replay, "READ_MAX", 2)
    monkeypatch.setattr(bulk, "BATCH_MAX", 2)
    rotated(path, table)
    with kernel_at(path) as kernel:
        with steps.limited(), pytest.raises(StoreCorrupt, match="again and again"):
            read(kernel)
        assert kernel.check()


def test_a_loan_whose_lenders_form_a_circle_ends_at_the_youngest(path: Path, steps: Steps) -> None:
    with kernel_at(path) as kernel:
        pid = kernel.agents.create("a")
        kernel.ledger.create(pid, {"tokens": 100})
        kernel.queue.enqueue(ScheduleSpec(pid, ceiling={"tokens": 50}))
        (parent,) = kernel.queue.claim(worker_id="w")
        wanted = ScheduleSpec(pid, parent_id=parent.sched_id)
        child = kernel.supervision.spawn(wanted, parent.token or 0, {"tokens": 20})
        kernel.queue.claim(worker_id="w")
    with raw(path) as connection:
        connection.execute("UPDATE entry_loans SET parent_id = sched_id, since_id = since_id + 1000")
    with kernel_at(path) as kernel, steps.limited():
        assert [loan.sched_id for loan in kernel.store.read(open_loans)] == [child]
        other = kernel.queue.enqueue(ScheduleSpec(pid, ceiling={"tokens": 1}))
        assert [entry.sched_id for entry in kernel.queue.claim(worker_id="w", max_n=5)] == [other]


@pytest.mark.parametrize("flags", [(INTERIOR_INDEX, INTERIOR_TABLE), (0,)])
def test_a_page_that_points_at_itself_ends_every_call(path: Path, steps: Steps, flags: tuple[int, ...]) -> None:
    """SQLite counts the levels of a tree and the length of a chain, so it needs no limit of ours."""
    populate(path)
    with raw(path):
        pass
    data = path.read_bytes()
    for number in range(2, len(data) // PAGE_BYTES + 1):
        if data[(number - 1) * PAGE_BYTES] not in flags:
            continue
        copy = copy_of(path, path.parent / "copy")
        change_page(copy, number, lambda page, own=number: struct.pack_into(">I", page, 8 if page[0] else 0, own))  # type: ignore[misc]
        try:
            kernel = Kernel(store.open(str(copy)))
        except RotaError:
            continue
        for _, call in (("check", kernel.check), *calls(kernel, path.parent)):
            with steps.limited(), contextlib.suppress(RotaError):
                call()
        kernel.store.close()


# --- the rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("lead_in", "circle"), [(0, 1), (0, 2), (3, 5), (100, 1), (37, 64)])
def test_a_circle_is_found_wherever_it_begins_and_however_long_it_is(lead_in: int, circle: int) -> None:
    def go_round() -> None:
        for step in range(4 * (lead_in + circle) + 4):
            seen.check([step if step < lead_in else lead_in + (step - lead_in) % circle])

    seen = NoRepeats("rows")
    with pytest.raises(StoreCorrupt):
        go_round()


def test_rows_that_come_once_pass_and_only_one_step_of_them_is_kept() -> None:
    seen = NoRepeats("rows")
    for step in range(1_000):
        seen.check(range(10 * step, 10 * step + 10))
    assert len(seen._kept) == 10
