"""A test fixture: a kernel in memory, a manual clock, and short helper methods."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest

from rota import store
from rota.clock import ManualClock
from rota.errors import SchedAdmissionDenied
from rota.kernel import Kernel, ScheduleSpec
from rota.model.event_codec import decode
from rota.model.events import Event, EventData
from rota.model.reasons import BLOCKING, BlockingBase
from rota.model.work import ReadyEntry
from rota.service.dispatcher import Dispatcher
from rota.store import Row, Statement, Store
from tests.store.world import Caller, WatchedParking
from tests.stores import everything

_REASONS = {str(kind.__struct_config__.tag): kind for kind in BLOCKING}
START = 1_000.0  # when every world begins
T = TypeVar("T")
POLICIES = ("strict", "round_robin", "fair_share", "eevdf", "edf")  # one for each kind of pass


class FixedJitter(random.Random):
    """A generator that always returns the same share of a range: 1.0 is the longest delay, 0.0 none."""

    share = 1.0

    def uniform(self, a: float, b: float) -> float:
        return a + (b - a) * self.share


class World:
    """A kernel, its clock, and helpers."""

    def __init__(self, path: str = ":memory:", clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(START)
        self.rng = FixedJitter()
        self.store: Store = store.open(path, clock=self.clock)
        self.begin(Kernel(self.store, rng=self.rng))
        self.queue.upkeep()  # the first call stores the clock offset

    def begin(self, kernel: Kernel) -> None:
        """Use this kernel from now on."""
        self.kernel, self.dispatcher = kernel, Dispatcher(kernel)
        self.agents, self.journal, self.ledger = kernel.agents, kernel.journal, kernel.ledger
        self.contexts, self.projects, self.queue = kernel.contexts, kernel.projects, kernel.queue

    @property
    def now(self) -> float:
        return self.clock.now()

    # --- doing -----------------------------------------------------------------------------------

    def agent(self, name: str = "agent", **settings: Any) -> int:
        return self.agents.create(name, **settings)

    def put(self, pid: int, **spec: Any) -> int:
        """Enqueue an entry."""
        return self.queue.enqueue(ScheduleSpec(pid, **spec))

    def take(self, max_n: int = 1, *, worker_id: str = "worker", **how: Any) -> list[ReadyEntry]:
        """Claim entries."""
        return self.queue.claim(worker_id=worker_id, max_n=max_n, **how)

    def take_ids(self, max_n: int = 1_000, **how: Any) -> list[int]:
        """Claim entries; returns their ids."""
        return [entry.sched_id for entry in self.take(max_n, **how)]

    def take_one(self, **how: Any) -> ReadyEntry:
        """Claim the one entry that is ready."""
        (entry,) = self.take(2, **how)
        return entry

    def ended(self, pid: int, exit_kind: str = "failed", **spec: Any) -> int:
        """Run a new entry to this exit kind; returns its id."""
        sched_id = self.put(pid, **spec)
        self.queue.force_claim(sched_id, worker_id="worker")
        self.queue.complete(sched_id, exit_kind)
        return sched_id

    # --- waiting ---------------------------------------------------------------------------------

    def waiter(self, api: Dispatcher | None = None, *, wait_s: float = 100_000.0, **how: Any) -> Caller[list[int]]:
        """Claim on another thread; returns once the claim is parked."""
        asked = api or self.dispatcher
        return self.waiter_of(lambda: [entry.sched_id for entry in asked.claim("waiter", wait_s=wait_s, **how)])

    def waiter_of(self, call: Callable[[], T]) -> Caller[T]:
        """Make a waiting call on another thread; returns once it is parked."""
        writer: Any = self.store  # to see who waits there
        if not isinstance(writer._parked.requests, WatchedParking):
            writer._parked.requests = WatchedParking()
        count = len(writer._parked.requests)
        caller = Caller(call)
        writer._parked.requests.until(count + 1)
        return caller

    def pass_time_until_done(self, caller: Caller[Any], *, step_s: float = 0.01) -> None:
        """Advance the clock step by step until a call has returned.

        A thread may be about to wait when the clock moves, and then waits a little longer than necessary.
        """
        for _ in range(1_000):
            caller._thread.join(0.01)
            if caller.is_done:
                return
            self.clock.advance(step_s)

    # --- looking ---------------------------------------------------------------------------------

    def reasons_against(self, sched_id: int) -> list[BlockingBase]:
        """Return every reason that blocks an entry, from force_claim."""
        with pytest.raises(SchedAdmissionDenied) as caught:
            self.queue.force_claim(sched_id, worker_id="operator")
        return [msgspec.convert(reason, _REASONS[reason["code"]]) for reason in caught.value.data["reasons"]]

    def state(self, sched_id: int) -> str:
        """An entry's state, and its hold if it has one: "queued:after"."""
        entry = self.queue.get(sched_id)
        return entry.state if entry.hold is None else f"{entry.state}:{entry.hold}"

    def events(self, since: int = 0) -> list[Event]:
        return self.journal.tail(since, 10_000)

    def facts(self, since: int = 0) -> list[EventData]:
        """Everything the kernel recorded, decoded."""
        return [decode(event.kind, event.payload) for event in self.events(since) if event.kind.startswith("kernel.")]

    def rows(self, sql: str) -> list[Row]:
        return self.store.read(lambda tx: tx.run(Statement("test", "Made for a test.", sql)))

    def everything(self) -> dict[str, list[Row]]:
        """Every row of every table: what must be the same when nothing was written."""
        return everything(self.store)

    def close(self) -> None:
        self.store.close()
