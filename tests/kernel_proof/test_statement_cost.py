"""Speed without a clock: how many steps SQLite's machine takes for a verb, in a small store and in a large one.

A step is the same on every machine and under any load, so this can be a test: what workers do all day must not take
more steps when a hundred times as many entries wait, sleep or have ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Completion, Kernel, ScheduleSpec
from rota.policy import registry
from rota.service.candidate_windows import WINDOW_MAX
from rota.service.dispatcher import Dispatcher
from rota.store.sqlite import SqliteStore

START_AT = 1_000.0
FEW, MANY = 50, 5_000
BATCH = 1_000
AGENTS = 10

Fill = Callable[[Kernel, list[int], int], None]


def ready(kernel: Kernel, pids: list[int], count: int) -> None:
    """Ready entries."""
    kernel.queue.enqueue_many([ScheduleSpec(pids[number % AGENTS], -1) for number in range(count)])


def asleep(kernel: Kernel, pids: list[int], count: int) -> None:
    """Entries of higher priority, held until a time."""
    specs = [
        ScheduleSpec(pids[number % AGENTS], 9, START_AT + 500 + number, START_AT + 9_000) for number in range(count)
    ]
    kernel.queue.enqueue_many(specs)


def ended(kernel: Kernel, pids: list[int], count: int) -> None:
    """Completed entries."""
    ready(kernel, pids, count)
    while runs := kernel.queue.claim(worker_id="before", max_n=BATCH):
        kernel.queue.complete_many([Completion(run.sched_id, token=run.token) for run in runs])


def behind_one(kernel: Kernel, pids: list[int], count: int) -> None:
    """Entries that wait for one queued entry."""
    first = kernel.queue.enqueue(ScheduleSpec(pids[0], runnable_at=START_AT + 500))
    kernel.queue.enqueue_many([ScheduleSpec(pids[number % AGENTS], after=(first,)) for number in range(count)])


def steps(kernel: Kernel, call: Callable[[], object]) -> int:
    """Return how many virtual-machine steps SQLite takes for a call with prepared statements."""
    assert isinstance(kernel.store, SqliteStore)
    connection = kernel.store._engine.connection
    count = 0

    def step() -> bool:
        nonlocal count
        count += 1
        return False

    connection.set_progress_handler(step, 1)
    try:
        call()
    finally:
        connection.set_progress_handler(None)
    return count


def common_calls(kernel: Kernel, pids: list[int], policy: str) -> Iterator[tuple[str, int]]:
    """Yield each common call and the number of its steps."""
    queue, api = kernel.queue, Dispatcher(kernel, policy)
    api.claim("w", 1)  # the first claim reads all agents
    yield "enqueue", steps(kernel, lambda: queue.enqueue(ScheduleSpec(pids[0])))
    yield "enqueue later", steps(kernel, lambda: queue.enqueue(ScheduleSpec(pids[1], runnable_at=START_AT + 400)))
    for dedupe_by in (("pid", "trigger"), ("pid", "trigger", "payload"), ("pid",)):
        first = ScheduleSpec(pids[2], trigger="event", payload={"by": dedupe_by})
        queue.enqueue_unique(first, dedupe_by)  # the first one of a store makes an index
        yield f"enqueue unique {dedupe_by}", steps(kernel, lambda: queue.enqueue_unique(first, dedupe_by))  # noqa: B023
    for number in range(3):
        queue.enqueue(ScheduleSpec(pids[number]))
    (run,) = queue.claim(worker_id="w")
    token = run.token or 0
    yield "claim", steps(kernel, lambda: api.claim("w", 1))
    yield "heartbeat", steps(kernel, lambda: queue.heartbeat(run.sched_id, token))
    yield "charge", steps(kernel, lambda: queue.charge(run.sched_id, {"tokens": 5}, token=token))
    yield "complete", steps(kernel, lambda: queue.complete(run.sched_id, "completed", token=token))
    yield "claim again", steps(kernel, lambda: api.claim("w", 1))
    yield "upkeep", steps(kernel, queue.upkeep)
    yield "take over", steps(kernel, lambda: queue.take_over("unknown", "2"))
    yield "take back what is stale", steps(kernel, lambda: queue.gc_dispatched(3_600))
    yield "sweep", steps(kernel, queue.gc_expired)


def measured(fill: Fill, count: int, policy: str) -> dict[str, int]:
    clock = ManualClock(START_AT)
    kernel = Kernel(store.open(":memory:", clock=clock))
    kernel.projects.create("p")
    kernel.projects.grant("p", None)  # entries behind one of another project wait for it, too
    pids = [kernel.agents.create(f"a{number}", project_id="p" if number % 2 else None) for number in range(AGENTS)]
    fill(kernel, pids, count)
    kernel.queue.upkeep()  # counts the runs that were only noted, which are those of few turns at most
    ready(kernel, pids, AGENTS)
    counted = dict(common_calls(kernel, pids, policy))
    kernel.store.close()
    return counted


@pytest.mark.parametrize("fill", [ready, asleep, ended, behind_one], ids=lambda fill: fill.__name__)
@pytest.mark.parametrize("policy", ["strict", "eevdf", "fair_share", "round_robin"])
def test_what_workers_do_takes_no_more_steps_in_a_store_a_hundred_times_as_large(policy: str, fill: Fill) -> None:
    few, many = measured(fill, FEW, policy), measured(fill, MANY, policy)
    grown = {verb: (few[verb], many[verb]) for verb in few if many[verb] > 1.25 * few[verb] + 25}
    assert grown == {}


@pytest.mark.parametrize("fill", [ready, asleep, ended, behind_one], ids=lambda fill: fill.__name__)
def test_edf_looks_at_its_window_and_no_further(fill: Fill) -> None:
    """It is shown as many as may be shown at once, so from there on nothing grows."""
    full, many = measured(fill, WINDOW_MAX, "edf"), measured(fill, MANY, "edf")
    grown = {verb: (full[verb], many[verb]) for verb in full if many[verb] > 1.25 * full[verb] + 25}
    assert grown == {}


def claim_among(projects: int, policy: str) -> int:
    """Return the steps of a claim among so many projects, after others that were completed and replaced."""
    kernel = Kernel(store.open(":memory:", clock=ManualClock(START_AT)))
    for number in range(projects):
        kernel.projects.create(f"p{number}")
    pids = [kernel.agents.create(f"a{number}", project_id=f"p{number % projects}") for number in range(5 * projects)]
    kernel.queue.enqueue_many(
        [ScheduleSpec(pid, number % 3, deadline=START_AT + 900) for number, pid in enumerate(pids)]
    )
    api = Dispatcher(kernel, policy)
    for _ in range(3):
        runs = api.claim("w", 4)
        kernel.queue.complete_many([Completion(run.sched_id, token=run.token) for run in runs])
        kernel.queue.enqueue_many([ScheduleSpec(run.pid, deadline=START_AT + 900) for run in runs])
    counted = steps(kernel, lambda: api.claim("w", 4))
    kernel.store.close()
    return counted


@pytest.mark.parametrize("policy", registry.names())
def test_a_claim_takes_no_more_steps_among_ten_times_as_many_owners(policy: str) -> None:
    few, many = claim_among(20, policy), claim_among(200, policy)
    assert many <= 1.25 * few + 25
