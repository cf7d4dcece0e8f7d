"""Explaining writes nothing, notifies no listener and leaves no lock."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import SchedInvalidPayload, SchedUnknownId, StoreError, StoreUnavailable, UnknownPolicy
from rota.kernel import Completion, Kernel, ScheduleSpec, claim_pass
from rota.kernel.dry_run import DryRun
from rota.policy import registry
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import explain
from rota.store import Statement, Transaction
from rota.store.engine import TransactionLost
from tests.stores import everything

START_AT = 1_000.0
INDEXES = Statement(
    "indexes",
    "All indexes.",
    "SELECT name FROM sqlite_schema WHERE type = 'index'",
    postgres="SELECT indexname FROM pg_indexes WHERE schemaname = current_schema()",
)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    clock = ManualClock(START_AT)
    made = Kernel(store.open(str(tmp_path / "rota.db"), clock=clock), rng=random.Random(7))
    yield made
    made.store.close()


def create_due_entries(kernel: Kernel) -> list[int]:
    """Create entries that are due, whose claim has expired and whose deadline has passed, without maintenance."""
    pid = kernel.agents.create("a")
    late = kernel.queue.enqueue(ScheduleSpec(pid, deadline=START_AT + 5))
    held = kernel.queue.enqueue(ScheduleSpec(pid, runnable_at=START_AT + 5))
    lost = kernel.queue.enqueue(ScheduleSpec(pid, 9))
    kernel.queue.claim(worker_id="gone", claim_timeout_s=5.0)
    plain = kernel.queue.enqueue(ScheduleSpec(pid))
    assert isinstance(kernel.clock, ManualClock)
    kernel.clock.advance(10.0)
    return [late, held, lost, plain]


@pytest.mark.parametrize("policy", registry.names())
def test_the_file_the_journal_and_the_random_generator_do_not_change(kernel: Kernel, policy: str) -> None:
    ids = create_due_entries(kernel)
    beside = None if kernel.store.path is None else apsw.Connection(kernel.store.path)

    def seen() -> list[object]:
        version = None if beside is None else beside.execute("PRAGMA data_version").fetchall()
        return [version, everything(kernel.store), kernel.journal.cursor(), kernel.env.rng.getstate()]

    before = seen()
    explanation = [explain(Dispatcher(kernel, policy), sched_id) for sched_id in ids]
    assert [each.state for each in explanation] == ["expired", "queued", "queued", "queued"]
    assert seen() == before
    if beside is not None:
        beside.close()


@pytest.mark.parametrize("policy", ["eevdf", "fair_share", "edf"])
def test_an_index_that_takes_long_to_create_is_created_once(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(claim_pass, "READY_WITHOUT_INDEX_MAX", 2)
    ids = [kernel.queue.enqueue(ScheduleSpec(kernel.agents.create(f"a{n}"), deadline=START_AT + 5)) for n in range(3)]

    def indexes() -> list[str]:
        rows = kernel.store.read(lambda tx: tx.run(INDEXES))
        return sorted(row[0] for row in rows if "pickable_by" in row[0])

    for by in ("agent", "project", "deadline"):  # a schema that another test used has them already
        drop = Statement("drop", "For a test.", f"DROP INDEX IF EXISTS idx_sched_queue_pickable_by_{by}")
        kernel.store.write(lambda tx, drop=drop: tx.run(drop))  # type: ignore[misc]
    assert indexes() == []
    assert explain(Dispatcher(kernel, policy), ids[0]).starts
    created = indexes()
    assert len(created) == 1
    cursor = kernel.journal.cursor()
    assert [explain(Dispatcher(kernel, policy), sched_id).state for sched_id in ids] == ["queued"] * 3
    assert (indexes(), kernel.journal.cursor()) == (created, cursor)
    assert len(Dispatcher(kernel, policy).claim("w", 3)) == 3


def test_no_listener_and_no_waiting_claim_is_woken(kernel: Kernel) -> None:
    ids = create_due_entries(kernel)
    kernel.projects.pause_fleet("operator")
    notified: list[int] = []
    end = kernel.store.on_change(lambda: notified.append(1))
    parked = threading.Thread(target=lambda: kernel.queue.claim(worker_id="w", wait_s=600))
    parked.start()
    try:
        while not kernel.store.parked:  # type: ignore[attr-defined]  # internal to the writer
            parked.join(0.001)
        notified.clear()
        assert not explain(Dispatcher(kernel), ids[1]).starts
        assert notified == []
    finally:
        kernel.projects.resume_fleet("operator")
        parked.join()
        end()


def test_two_dispatchers_on_a_file_explain_by_their_own_policy(kernel: Kernel) -> None:
    pids = [kernel.agents.create(name) for name in ("a", "b")]
    first, second = (kernel.queue.enqueue(ScheduleSpec(pid)) for pid in pids)
    mine, theirs = Dispatcher(kernel, "strict"), Dispatcher(kernel, "eevdf")
    assert explain(mine, first).starts
    assert explain(theirs, second).ordering[0].sentence() == f"1 goes first by eevdf: {first}"


# --- bad input -----------------------------------------------------------------------------------


def test_an_unknown_entry_is_refused(kernel: Kernel) -> None:
    with pytest.raises(SchedUnknownId):
        explain(Dispatcher(kernel), 7)


@pytest.mark.parametrize(
    "options", [{"max_n": 0}, {"worker_id": ""}, {"kinds": [1]}, {"now": float("nan")}, {"now": "soon"}], ids=str
)
def test_invalid_claim_options_are_refused(kernel: Kernel, options: dict[str, object]) -> None:
    pid = kernel.agents.create("a")
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    with pytest.raises(SchedInvalidPayload):
        explain(Dispatcher(kernel), sched_id, **options)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(SchedInvalidPayload):
        explain(Dispatcher(kernel), "one")  # type: ignore[arg-type]


def test_an_unknown_policy_is_refused(kernel: Kernel) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(kernel.agents.create("a")))
    with pytest.raises(UnknownPolicy):
        explain(Dispatcher(kernel), sched_id, policy="best")
    assert kernel.queue.claim(worker_id="w")  # no lock is left


def test_a_dry_run_inside_a_write_is_refused(kernel: Kernel) -> None:
    def work(_: Transaction) -> None:
        kernel.dry_run(lambda dry_run: dry_run.now)

    with pytest.raises(StoreError, match="inside a write"):
        kernel.store.write(work)


def test_a_read_only_store_cannot_do_a_dry_run(kernel: Kernel, tmp_path: Path) -> None:
    read_only = Kernel(store.open(str(tmp_path / "rota.db"), read_only=True, clock=kernel.clock))
    with pytest.raises(StoreUnavailable, match="read-only"):
        explain(Dispatcher(read_only), 1)
    read_only.store.close()


def test_a_disk_error_is_raised_and_leaves_no_lock(kernel: Kernel) -> None:
    def fails(_: DryRun) -> None:
        raise TransactionLost("disk I/O error")

    with pytest.raises(StoreUnavailable, match="disk I/O error"):
        kernel.dry_run(fails)
    assert kernel.agents.create("a") == 1


# --- concurrency ---------------------------------------------------------------------------------


def test_concurrent_explanations_are_consistent_and_no_work_is_lost(kernel: Kernel) -> None:
    """Two threads claim and complete, two explain; in the end every entry has run once."""
    pids = [kernel.agents.create(f"a{at}") for at in range(5)]
    ids = kernel.queue.enqueue_many([ScheduleSpec(pids[at % 5]) for at in range(100)])
    api = Dispatcher(kernel, "eevdf")
    ran: list[int] = []
    problems: list[BaseException] = []

    def works(name: str) -> None:
        while runs := api.claim(name, 2):
            ran.extend(run.sched_id for run in runs)
            kernel.queue.complete_many([Completion(run.sched_id, token=run.token) for run in runs])

    def asks(order: list[int]) -> None:
        for sched_id in order:
            explanation = explain(api, sched_id)
            assert explanation.starts or explanation.blocking or explanation.ordering
            assert explanation.state != "completed" or explanation.story[-1].words == "ended: completed"

    def guarded(task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as problem:
            problems.append(problem)

    tasks = [lambda: works("w1"), lambda: works("w2"), lambda: asks(ids), lambda: asks(ids[::-1])]
    threads = [threading.Thread(target=guarded, args=(task,)) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sorted(ran) == ids
    assert kernel.queue.counts() == {"completed": 100}
