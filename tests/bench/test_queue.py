"""The queue's benchmarks in small: both sides of each case do the same, and files are gone afterwards."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bench import harness, queue, queue_drain, queue_files, queue_owners, queue_processes, queue_size
from bench.harness import Case
from bench.queue_baselines import BareQueue
from rota.kernel import Kernel

SMALL = {
    queue: {"STANDING": 400},
    queue_drain: {"ENTRIES": 400, "AGENTS": 200, "PROJECTS": 10},
    queue_size: {"LARGE": 3_000, "SMALL": 1_000, "SLEEPERS": 2_000, "TURNS": 30},
    queue_owners: {"PROJECTS": 30, "FEW_PROJECTS": 10, "CLAIMS_MAX": 5},
    queue_processes: {"WRITERS": 2, "WRITES": 10, "WAKES": 3},
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "bench"
    monkeypatch.setattr(queue_files, "FOLDER", folder)
    for module, sizes in SMALL.items():
        for name, size in sizes.items():
            monkeypatch.setattr(module, name, size)
    queue_owners._filled.cache_clear()  # its files are in another test's folder
    return folder


def verified(case: Case) -> bool:
    """Whether one round of a case counts."""
    arena = case.arena()
    try:
        values, same = harness._round(case, arena, 1)
    finally:
        arena.close()
    assert all(value > 0 for value in values.values())
    return same


def named(module: object, name: str) -> Case:
    (case,) = (case for case in module.cases() if case.name == name)  # type: ignore[attr-defined]  # each has cases()
    return case  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (queue._enqueue, 50),
        (queue._claim_complete, 50),
        (queue._enqueue_threads, 64),
        (queue._claim_complete_threads, 64),
        (queue._enqueue_many, 300),
        (queue._batches, 300),
    ],
)
def test_rota_and_the_bare_loop_hand_out_the_same(make: queue.Make, count: int, small: Path) -> None:
    assert verified(queue._case("small", count, "bare", make, goal=0.0))
    assert not small.exists()


def test_what_a_killed_run_left_behind_is_removed_by_the_next_one(small: Path) -> None:
    (small / "999999999-left").mkdir(parents=True)
    folder = queue_files.Folder()
    assert [path.name for path in small.iterdir()] == [Path(folder.file("a")).parent.name]
    folder.close()
    assert not small.exists()


def test_a_side_that_leaves_entries_behind_is_not_verified() -> None:
    sides = queue.Sides(20)
    sides.stand()
    assert sides.same(sides.claim_complete(5), sides.bare.claim_complete(5))
    assert not sides.same(sides.claim_complete(5), sides.bare.claim_complete(4))
    sides.close()


def test_the_bare_queue_goes_by_priority_then_id(tmp_path: Path) -> None:
    bare = BareQueue(str(tmp_path / "bare.db"))
    entries = queue_files.draw(random.Random(1), 50)
    bare.enqueue(entries)
    first = sorted(range(50), key=lambda at: (-entries[at].priority, at))
    assert bare.claim_complete(50) == [at + 1 for at in first]
    bare.close()


@pytest.mark.parametrize("name", ["drain-4w-to-1w", "fair-drain-4w", "eevdf-drain-4w"])
def test_a_drain_runs_every_entry_once(name: str) -> None:
    assert verified(named(queue_drain, name))


@pytest.mark.parametrize("name", ["depth-1m", "finished-1m", "sleepers-100k", "sleepers-due"])
def test_a_large_queue_hands_out_in_order(name: str) -> None:
    assert verified(named(queue_size, name))


@pytest.mark.parametrize("policy", queue_owners.POLICIES)
def test_claims_among_many_owners_are_full_and_the_policys_own(policy: str) -> None:
    assert verified(named(queue_owners, f"owners-10k-{policy}"))


def test_claims_among_many_owners_leave_the_queue_as_large_as_it_was() -> None:
    owners = queue_owners.Owners(queue_owners._filled(10), "edf")
    before = owners._api.queue.counts()
    claims = [owners.claim_and_replace() for _ in range(3)]
    after = owners._api.queue.counts()
    owners.close()
    assert all(len(claim.ids) == queue_owners.BATCH for claim in claims)
    assert after["queued"] == before["queued"] == 10 * queue_owners.AGENTS_EACH * queue_owners.ENTRIES_EACH


def test_a_claim_that_strict_order_made_is_not_verified() -> None:
    good = queue_owners.Outcome(list(range(8)), claims=2, by_policy=2)
    assert queue_owners._is_valid(good)
    assert not queue_owners._is_valid(good, good._replace(by_policy=1))
    assert not queue_owners._is_valid(good, good._replace(ids=[1] * 8))


def test_rows_that_are_written_beside_the_kernel_are_as_it_would_leave_them(tmp_path: Path) -> None:
    path = queue_files.new_file(str(tmp_path / "rota.db"))
    rows = (queue_files.Rows(7), queue_files.Rows(8, state="completed"), queue_files.Rows(9, due_at=4e9, priority=100))
    queue_files.write_rows(path, *rows)
    kernel = queue_files.open_kernel(path)
    assert kernel.queue.counts() == {"queued": 7, "completed": 8, "queued:time": 9}
    assert kernel.store.check() == []
    assert len(claimed(kernel)) == 7
    kernel.store.close()


def claimed(kernel: Kernel) -> list[int]:
    return [entry.sched_id for entry in kernel.queue.claim(worker_id="worker", max_n=100)]


@pytest.mark.parametrize("name", ["writers-8p-worst-wait", "wake-up-p99"])
def test_several_processes_find_each_others_entries(name: str) -> None:
    assert verified(named(queue_processes, name))
