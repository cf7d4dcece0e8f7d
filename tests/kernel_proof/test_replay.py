"""Checkpoint + the events after it = the tables: after every kind of change, across prunes, and after a restart."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota import store
from rota.clock import ManualClock
from rota.kernel import Completion, EntryFilter, Kernel, ScheduleSpec
from rota.kernel.replay import KernelState, id_ranges
from rota.kernel.settings import read_setting
from rota.model.work import EXIT_KINDS
from rota.service.dispatcher import Dispatcher
from rota.store import Transaction

POLICIES = ("strict", "eevdf", "fair_share", "round_robin")


class Life:
    """A kernel on which random calls are made."""

    def __init__(self, seed: int, path: str = ":memory:", open_store: Callable[..., store.Store] = store.open) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock(1_000.0)
        self.kernel = Kernel(open_store(path, clock=self.clock), rng=random.Random(seed))
        self.api = Dispatcher(self.kernel)
        self.kernel.projects.create("lab", weight=3_000)
        self.pids = [self.kernel.agents.create(f"agent {n}", project_id="lab" if n % 2 else None) for n in range(4)]
        self.kernel.ledger.create(self.pids[0], {"tokens": 500})
        self.tokens = self.kernel.contexts.create(bound_to="name", bound_id="model", budget=300, period_s=60).context_id
        self.kernel.contexts.create(bound_to="name", bound_id="model", budget=4, period_s=60, unit="requests")
        self.live: list[tuple[int, int]] = []
        self.deeds: list[Callable[[], object]] = [
            self.enqueue,
            self.enqueue_many,
            self.claim,
            self.claim,
            self.end,
            self.end,
            self.charge,
            self.budget,
            self.wait,
            self.jump,
            self.tidy,
            self.prune,
            self.open_wall,
        ]

    def step(self) -> None:
        self.rng.choice(self.deeds)()

    def enqueue(self) -> None:
        now = self.clock.now()
        late = self.rng.choice([None, now + 30])
        runnable_at = self.rng.choice([0.0, now + 20])
        draws_on = self.rng.choice([(), ("model",)])
        self.api.queue.enqueue(
            ScheduleSpec(self.rng.choice(self.pids), runnable_at=runnable_at, deadline=late, draws_on=draws_on)
        )

    def enqueue_many(self) -> None:
        pid = self.rng.choice(self.pids)
        first = ScheduleSpec(pid, retry_on=("crashed", "failed"), max_attempts=2)
        self.api.queue.enqueue_many([first, ScheduleSpec(pid, after=(-1,)), ScheduleSpec(pid, tags=("some",))])

    def open_wall(self) -> None:
        change = self.rng.choice((self.kernel.projects.grant, self.kernel.projects.revoke_grant))
        change(*self.rng.choice((("lab", None), (None, "lab"))))

    def claim(self) -> None:
        entries = self.api.claim("w", self.rng.randint(1, 3), policy=self.rng.choice(POLICIES), claim_timeout_s=40)
        self.live += [(entry.sched_id, entry.token or 0) for entry in entries]

    def end(self) -> None:
        if self.live:
            sched_id, token = self.live.pop(self.rng.randrange(len(self.live)))
            self.api.queue.complete_many([Completion(sched_id, self.rng.choice(EXIT_KINDS), token)])

    def charge(self) -> None:
        if self.live:
            sched_id, token = self.live[-1]
            entry = self.kernel.queue.get(sched_id)
            if (entry.state, entry.token) == ("dispatched", token):  # an entry that was taken back may have ended
                self.kernel.queue.charge(sched_id, {"tokens": self.rng.randint(0, 90)}, token=token)
        self.kernel.ledger.charge(self.pids[0], "tokens", self.rng.randint(0, 9))

    def budget(self) -> None:
        self.kernel.ledger.update_grant(self.pids[0], "tokens", self.rng.randint(1, 900))
        self.kernel.ledger.refund(self.pids[0], "tokens", 0)
        self.kernel.contexts.adjust(self.tokens, budget=self.rng.randint(1, 500), period_s=self.rng.choice([5, 60]))
        self.kernel.projects.update("lab", weight=self.rng.randint(1, 5_000))

    def wait(self) -> None:
        self.clock.advance(self.rng.choice([1, 25, 90]))

    def jump(self) -> None:
        """The wall clock jumps, there or back."""
        self.clock.jump(-3_000 if self.clock.now() > 4_000 else self.rng.choice([-0.3, 0.3, 3_600]))

    def tidy(self) -> None:
        self.kernel.queue.upkeep()
        self.kernel.queue.cancel_where(EntryFilter(tag="some"))
        self.kernel.queue.retry_where(EntryFilter(exit_kind="failed", pid=self.pids[1]))

    def prune(self) -> None:
        ages = {"events_older_than_s": self.rng.choice([0, 50]), "entries_older_than_s": self.rng.choice([0, 50])}
        self.kernel.retention.prune(**ages)

    def both(self) -> tuple[KernelState, KernelState]:
        return self.kernel.store.read(self._states)

    def _states(self, tx: Transaction) -> tuple[KernelState, KernelState]:
        # of a clock jump that no transaction has noticed yet, the tables know nothing
        _, _, offset_s = (read_setting(tx, "clock_offset") or "").partition(" ")
        now = self.clock.monotonic() + float(offset_s) if offset_s else self.clock.now()
        return KernelState.from_tables(tx).at(now), KernelState.from_journal(tx).at(now)


@pytest.mark.parametrize("seed", range(12))
def test_the_journal_rebuilds_the_tables_after_every_step(seed: int) -> None:
    life = Life(seed)
    for _ in range(60):
        life.step()
        tables, journal = life.both()
        assert journal == tables
    assert tables.entries
    assert tables.contexts
    life.kernel.store.close()


def test_a_prune_leaves_fewer_events_and_the_same_state(tmp_path: Path) -> None:
    life = Life(1, str(tmp_path / "rota.db"))
    pid = life.pids[0]
    ids = life.api.queue.enqueue_many([ScheduleSpec(pid) for _ in range(30)])
    entries = life.api.claim("w", 20)
    life.api.queue.complete_many([Completion(entry.sched_id, "completed", entry.token) for entry in entries])
    before = life.kernel.info()["event_count"]
    life.clock.advance(100)
    gone = life.kernel.retention.prune(events_older_than_s=10, entries_older_than_s=10)
    assert (gone.entries, gone.events) == (20, before)  # all of them lie before the checkpoint
    tables, journal = life.both()
    assert journal == tables
    assert set(tables.entries) == set(ids) - {entry.sched_id for entry in entries}
    life.kernel.store.close()
    again = Kernel(store.open(str(tmp_path / "rota.db"), clock=life.clock))
    assert again.store.read(KernelState.from_journal) == again.store.read(KernelState.from_tables)
    again.store.close()


def test_an_entry_that_others_wait_for_is_not_pruned() -> None:
    life = Life(2)
    pid = life.pids[0]
    first, second, held = life.api.queue.enqueue_many(
        [ScheduleSpec(pid, priority=9), ScheduleSpec(pid), ScheduleSpec(pid, after=(-2, -1))]
    )
    (entry,) = life.api.claim("w")
    life.api.queue.complete(first, "completed", token=entry.token)
    life.clock.advance(100)
    assert life.kernel.retention.prune(events_older_than_s=0, entries_older_than_s=0).entries == 0
    (entry,) = life.api.claim("w")
    life.api.queue.complete(second, "completed", token=entry.token)
    assert life.kernel.queue.get(held).hold is None
    life.kernel.store.close()


def test_ids_are_not_reused_after_everything_was_pruned() -> None:
    life = Life(3)
    pid = life.pids[0]
    (last,) = life.api.queue.enqueue_many([ScheduleSpec(pid)])
    (entry,) = life.api.claim("w")
    life.api.queue.complete(last, "completed", token=entry.token)
    life.clock.advance(100)
    life.kernel.retention.prune(events_older_than_s=0, entries_older_than_s=0)
    cursor = life.kernel.journal.cursor()
    assert life.api.queue.enqueue(ScheduleSpec(pid)) > last
    assert life.kernel.journal.cursor() > cursor
    life.kernel.store.close()


@given(st.dictionaries(st.integers(1, 60), st.sampled_from(["queued", "completed"])))
def test_id_ranges_cover_exactly_the_entries(entries: dict[int, str]) -> None:
    found = list(id_ranges(entries))
    assert {first + n: state for first, count, state in found for n in range(count)} == entries
    for (first, count, state), (after, _, other) in pairwise(found):
        assert after > first + count or other != state
