"""Many claimers on one queue retrieve every entry exactly once: threads of one process, and processes on one file."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Kernel, ScheduleSpec
from rota.service.dispatcher import Dispatcher
from tests.kernel_proof.workers import PATIENCE_S, drain, fork_server, start

CLAIMERS = 8
MANY = 20_000
SOME = 2_000
BATCH = 5_000
# how many each claimer asks for at a time: alone and in company, so that all sizes meet
SIZES = (1, 5, 10, 20, 50, 100, 100, 200)


def filled(path: str, count: int, *, shared: bool) -> tuple[Kernel, list[int]]:
    """A store with so many ready entries of eight agents; with `shared`, of projects and of none."""
    kernel = Kernel(store.open(path, clock=ManualClock(1_000.0), durability="normal"))
    projects: list[str | None] = [None]
    if shared:
        projects += [kernel.projects.create(f"p{weight}", weight=weight).project_id for weight in (1_000, 2_000, 5_000)]
    pids = [kernel.agents.create(f"a{n}", project_id=projects[n % len(projects)]) for n in range(8)]
    ids: list[int] = []
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        ids += kernel.queue.enqueue_many([ScheduleSpec(pids[n * 7 % 8], n % 5) for n in numbers])
    return kernel, ids


def drained_by_threads(claim: Callable[[str, int], list[int]]) -> list[list[int]]:
    """What each of eight threads retrieved."""

    def one(number: int) -> list[int]:
        ids: list[int] = []
        while got := claim(f"w{number}", SIZES[number]):
            ids += got
        return ids

    with ThreadPoolExecutor(CLAIMERS) as pool:
        return list(pool.map(one, range(CLAIMERS), timeout=PATIENCE_S))


def drained_by_processes(path: str, policy: str) -> list[list[int]]:
    """What each of eight processes retrieved."""
    context = fork_server()
    started = [
        start(context, drain, path=path, worker_id=f"w{number}", policy=policy, most=SIZES[number])
        for number in range(CLAIMERS)
    ]
    answers: list[list[int]] = []
    for process, listen in started:
        assert listen.poll(PATIENCE_S), f"{process} hangs"
        answers.append(listen.recv())
        process.join(PATIENCE_S)
        assert process.exitcode == 0
        listen.close()
    return answers


def check_each_was_retrieved_once(retrieved: list[list[int]], ids: list[int], kernel: Kernel) -> None:
    together = [sched_id for each in retrieved for sched_id in each]
    assert len(together) == len(set(together)) == len(ids)
    assert sorted(together) == ids
    assert kernel.queue.counts() == {"dispatched": len(ids)}
    assert kernel.store.check() == []


def test_eight_threads_retrieve_twenty_thousand_entries_once_each(tmp_path: Path) -> None:
    kernel, ids = filled(str(tmp_path / "rota.db"), MANY, shared=False)

    def claim(worker_id: str, most: int) -> list[int]:
        return [entry.sched_id for entry in kernel.queue.claim(worker_id=worker_id, max_n=most)]

    check_each_was_retrieved_once(drained_by_threads(claim), ids, kernel)
    kernel.store.close()


def test_eight_processes_retrieve_twenty_thousand_entries_once_each(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    kernel, ids = filled(path, MANY, shared=False)
    check_each_was_retrieved_once(drained_by_processes(path, "strict"), ids, kernel)
    kernel.store.close()


@pytest.mark.parametrize("policy", ["eevdf", "fair_share"])
def test_eight_threads_under_a_policy_that_shares_retrieve_every_entry_once(policy: str) -> None:
    kernel, ids = filled(":memory:", SOME, shared=True)
    api = Dispatcher(kernel, policy)
    retrieved = drained_by_threads(lambda worker, most: [entry.sched_id for entry in api.claim(worker, most)])
    check_each_was_retrieved_once(retrieved, ids, kernel)
    kernel.store.close()


@pytest.mark.parametrize("policy", ["eevdf", "fair_share"])
def test_eight_processes_under_a_policy_that_shares_retrieve_every_entry_once(tmp_path: Path, policy: str) -> None:
    path = str(tmp_path / "rota.db")
    kernel, ids = filled(path, SOME, shared=True)
    check_each_was_retrieved_once(drained_by_processes(path, policy), ids, kernel)
    kernel.store.close()
