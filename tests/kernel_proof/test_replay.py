"""Checkpoint + the facts after it = the tables: after every kind of change, across prunes, and after a restart."""

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
from rota.kernel.replay import State, stretches
from rota.model.work import EXIT_KINDS
from rota.service.dispatcher import Dispatcher

POLICIES = ("strict", "eevdf", "fair_share", "round_robin")


class Life:
    """A kernel to which all sorts of things happen, as chance has it."""

    def __init__(self, seed: int, path: str = ":memory:") -> None:
        self.chance = random.Random(seed)
        self.clock = ManualClock(1_000.0)
        self.kernel = Kernel(store.open(path, clock=self.clock), chance=random.Random(seed))
        self.desk = Dispatcher(self.kernel)
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
            self.tidy,
            self.prune,
        ]

    def step(self) -> None:
        self.chance.choice(self.deeds)()

    def enqueue(self) -> None:
        now = self.clock.now()
        late = self.chance.choice([None, now + 30])
        runnable_at = self.chance.choice([0.0, now + 20])
        draws_on = self.chance.choice([(), ("model",)])
        self.desk.queue.enqueue(
            ScheduleSpec(self.chance.choice(self.pids), runnable_at=runnable_at, deadline=late, draws_on=draws_on)
        )

    def enqueue_many(self) -> None:
        pid = self.chance.choice(self.pids)
        first = ScheduleSpec(pid, retry_on=("crashed", "failed"), max_attempts=2)
        self.desk.queue.enqueue_many([first, ScheduleSpec(pid, after=(-1,)), ScheduleSpec(pid, tags=("some",))])

    def claim(self) -> None:
        entries = self.desk.claim(
            "w", self.chance.randint(1, 3), policy=self.chance.choice(POLICIES), claim_timeout_s=40
        )
        self.live += [(entry.sched_id, entry.token or 0) for entry in entries]

    def end(self) -> None:
        if self.live:
            sched_id, token = self.live.pop(self.chance.randrange(len(self.live)))
            self.desk.queue.complete_many([Completion(sched_id, self.chance.choice(EXIT_KINDS), token)])

    def charge(self) -> None:
        if self.live and self.kernel.queue.get(self.live[-1][0]).token == self.live[-1][1]:
            self.kernel.queue.charge(self.live[-1][0], {"tokens": self.chance.randint(0, 90)}, token=self.live[-1][1])
        self.kernel.ledger.charge(self.pids[0], "tokens", self.chance.randint(0, 9))

    def budget(self) -> None:
        self.kernel.ledger.update_grant(self.pids[0], "tokens", self.chance.randint(1, 900))
        self.kernel.ledger.refund(self.pids[0], "tokens", 0)
        self.kernel.contexts.adjust(
            self.tokens, budget=self.chance.randint(1, 500), period_s=self.chance.choice([5, 60])
        )
        self.kernel.projects.update("lab", weight=self.chance.randint(1, 5_000))

    def wait(self) -> None:
        self.clock.advance(self.chance.choice([1, 25, 90]))

    def tidy(self) -> None:
        self.kernel.queue.upkeep()
        self.kernel.queue.cancel_where(EntryFilter(tag="some"))
        self.kernel.queue.retry_where(EntryFilter(exit_kind="failed", pid=self.pids[1]))

    def prune(self) -> None:
        ages = {"events_older_than_s": self.chance.choice([0, 50]), "entries_older_than_s": self.chance.choice([0, 50])}
        self.kernel.retention.prune(**ages)

    def both(self) -> tuple[State, State]:
        now = self.clock.now()
        return self.kernel.store.read(lambda tx: (State.of_tables(tx).at(now), State.of_journal(tx).at(now)))


@pytest.mark.parametrize("seed", range(12))
def test_the_journal_tells_what_the_tables_hold_after_every_step(seed: int) -> None:
    life = Life(seed)
    for _ in range(60):
        life.step()
        tables, journal = life.both()
        assert journal == tables
    assert tables.entries
    assert tables.contexts
    life.kernel.store.close()


def test_a_prune_leaves_fewer_facts_and_the_same_state(tmp_path: Path) -> None:
    life = Life(1, str(tmp_path / "rota.db"))
    pid = life.pids[0]
    ids = life.desk.queue.enqueue_many([ScheduleSpec(pid) for _ in range(30)])
    entries = life.desk.claim("w", 20)
    life.desk.queue.complete_many([Completion(entry.sched_id, "completed", entry.token) for entry in entries])
    before = life.kernel.info()["event_count"]
    life.clock.advance(100)
    gone = life.kernel.retention.prune(events_older_than_s=10, entries_older_than_s=10)
    assert (gone.entries, gone.events) == (20, before)  # all of them lie before the checkpoint
    tables, journal = life.both()
    assert journal == tables
    assert set(tables.entries) == set(ids) - {entry.sched_id for entry in entries}
    life.kernel.store.close()
    again = Kernel(store.open(str(tmp_path / "rota.db"), clock=life.clock))
    assert again.store.read(State.of_journal) == again.store.read(State.of_tables)
    again.store.close()


def test_what_somebody_waits_for_is_not_pruned() -> None:
    life = Life(2)
    pid = life.pids[0]
    first, second, held = life.desk.queue.enqueue_many(
        [ScheduleSpec(pid, priority=9), ScheduleSpec(pid), ScheduleSpec(pid, after=(-2, -1))]
    )
    (entry,) = life.desk.claim("w")
    life.desk.queue.complete(first, "completed", token=entry.token)
    life.clock.advance(100)
    assert life.kernel.retention.prune(events_older_than_s=0, entries_older_than_s=0).entries == 0
    (entry,) = life.desk.claim("w")
    life.desk.queue.complete(second, "completed", token=entry.token)
    assert life.kernel.queue.get(held).hold is None
    life.kernel.store.close()


def test_numbers_are_not_given_twice_after_everything_was_pruned() -> None:
    life = Life(3)
    pid = life.pids[0]
    (last,) = life.desk.queue.enqueue_many([ScheduleSpec(pid)])
    (entry,) = life.desk.claim("w")
    life.desk.queue.complete(last, "completed", token=entry.token)
    life.clock.advance(100)
    life.kernel.retention.prune(events_older_than_s=0, entries_older_than_s=0)
    cursor = life.kernel.journal.cursor()
    assert life.desk.queue.enqueue(ScheduleSpec(pid)) > last
    assert life.kernel.journal.cursor() > cursor
    life.kernel.store.close()


@given(st.dictionaries(st.integers(1, 60), st.sampled_from(["queued", "completed"])))
def test_stretches_say_the_same_in_fewer_words(entries: dict[int, str]) -> None:
    found = list(stretches(entries))
    assert {first + n: state for first, count, state in found for n in range(count)} == entries
    for (first, count, state), (after, _, other) in pairwise(found):
        assert after > first + count or other != state
