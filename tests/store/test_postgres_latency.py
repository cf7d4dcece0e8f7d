"""PostgreSQL behind a long network: every trip is late, so races between processes are wide open.

Specific, because only a server is reached through a network. No time is asserted: what is counted are trips.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from rota import store
from rota.kernel import Completion, Kernel, KernelState, ScheduleSpec
from rota.store.postgres import PostgresStore
from tests.postgres_server import DSN_VARIABLE
from tests.short_folders import short_folder
from tests.store.delaying_proxy import DelayingProxy
from tests.store.world import PATIENCE_S, Caller
from tests.stores import database_url, store_kind

__all__ = ["store_kind"]  # it takes the schemas of a test back

DELAY_S = 0.003  # in each direction: a server in the same region
HOSTS, CAP, ENTRIES = 4, 3, 24
Far: TypeAlias = tuple[DelayingProxy, Callable[[], PostgresStore]]


@pytest.fixture
def far(tmp_path: Path) -> Iterator[Far]:
    """The proxy, and what opens one and the same store through it, each time as another process would."""
    near = urlsplit(database_url(tmp_path / "store"))
    names = parse_qs(near.query)
    if "host" not in names:
        pytest.skip(f"{DSN_VARIABLE} names a server without a socket on this machine")
    with short_folder() as folder, ExitStack() as stack:
        proxy = DelayingProxy(folder, Path(names["host"][0]), DELAY_S)
        stack.enter_context(proxy.running())
        url = f"{near.scheme}://{near.netloc}/postgres?host={quote(str(folder), safe='')}&schema={names['schema'][0]}"

        def open_far() -> PostgresStore:
            made = store.open(url)
            assert isinstance(made, PostgresStore)
            stack.callback(made.close)
            return made

        yield proxy, open_far


def test_as_many_trips_are_on_the_wire_as_the_engine_counts(far: Far) -> None:
    proxy, open_far = far
    opened = open_far()
    kernel = Kernel(opened)
    pid = kernel.agents.create("coder")
    kernel.queue.enqueue_many([ScheduleSpec(pid)] * 100)
    for _ in range(2):  # the first turn prepares statements
        before = proxy.trips, opened._engine.pipeline.trips
        claimed = kernel.queue.claim(worker_id="w", max_n=50)
        kernel.queue.complete_many([Completion(each.sched_id, "completed", each.token) for each in claimed])
        trips = proxy.trips - before[0], opened._engine.pipeline.trips - before[1]
    assert len(claimed) == 50
    assert trips[0] == trips[1] <= 6  # two turns


def test_a_cap_is_exact_and_nothing_runs_twice(far: Far) -> None:
    _, open_far = far
    kernel = Kernel(open_far())
    pid = kernel.agents.create("coder", max_concurrent=CAP)
    ids = kernel.queue.enqueue_many([ScheduleSpec(pid)] * ENTRIES)

    def work(name: str) -> int:
        """Claim and complete until nothing is left."""
        mine, done = Kernel(open_far()), 0
        while mine.queue.counts().get("completed", 0) < ENTRIES:
            for entry in mine.queue.claim(worker_id=name, max_n=2, wait_s=DELAY_S):
                mine.queue.complete(entry.sched_id, "completed", token=entry.token)
                done += 1
        return done

    callers = [Caller(partial(work, f"host-{number}")) for number in range(HOSTS)]
    assert sum(caller.outcome() for caller in callers) == ENTRIES
    live, most, claims = 0, 0, Counter[int]()
    for event in kernel.journal.tail(0, 10_000, kinds=("kernel.sched.claimed", "kernel.sched.completed")):
        found = [entry[0] for entry in event.payload["entries"]]
        if event.kind.endswith("claimed"):
            claims.update(found)
        live += len(found) if event.kind.endswith("claimed") else -len(found)
        most = max(most, live)
    assert most <= CAP
    assert claims == Counter(ids)
    now = kernel.clock.now()
    tables, journal = kernel.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
    assert tables.at(now) == journal.at(now)


def test_a_parked_claim_is_woken(far: Far) -> None:
    _, open_far = far
    here, there = Kernel(open_far()), Kernel(open_far())
    pid = here.agents.create("coder")
    for _ in range(3):  # parked before the enqueue, or only just
        parked = Caller(lambda: there.queue.claim(worker_id="w", wait_s=PATIENCE_S))
        sched_id = here.queue.enqueue(ScheduleSpec(pid))
        assert [entry.sched_id for entry in parked.outcome()] == [sched_id]
