"""A pass that keeps what it read claims exactly what a new pass claims that has to read everything.

Two worlds get the same operations. In one a dispatcher makes all claims; in the other every claim is made by a new
dispatcher. Whatever happens between two claims, through this process or another, both must claim the same entries for
the same reasons.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rota import store
from rota.clock import ManualClock
from rota.errors import RotaError
from rota.kernel import Completion, Kernel, ReadyEntry, ScheduleSpec
from rota.model.reasons import PickReason
from rota.model.snapshot import Candidate, Decision, Decisions, Snapshot
from rota.policy.contract import CandidateWindow, Policy
from rota.policy.registry import make
from rota.service import candidate_windows
from rota.service.dispatcher import Dispatcher
from rota.store import Statement, Transaction

START_AT = 1_000.0
PROJECTS = ("heavy", "light", None)
AGENTS = 7  # more than a window shows
KINDS: tuple[tuple[str, ...], ...] = ((), (), ("gpu",))


class RolledBack(Exception):
    """Raised instead of a commit."""


def open_undoing(path: str, clock: ManualClock) -> Any:
    """Open a store that can roll back the next write: while its `undoes` is True."""
    opened: Any = store.open(path, clock=clock, durability="normal")  # no power cut here: nothing waits for the disk
    write, opened.undoes = opened.write, False

    def write_or_undo(work: Callable[[Transaction], Any]) -> Any:
        def undone(tx: Transaction) -> None:
            work(tx)
            raise RolledBack

        return write(undone if opened.undoes else work)

    opened.write = write_or_undo
    return opened


# --- policies ------------------------------------------------------------------------------------


def least_used_group(snapshot: Snapshot) -> Decisions:
    """A policy of another package: the group that used least, then the owner that ran least recently."""

    def key(candidate: Candidate) -> tuple[float, float, float, int]:
        group = snapshot.group(candidate)
        return group.usage + group.reserved, group.ended, snapshot.owner(candidate).last_run_at, candidate.id

    order = sorted(snapshot.candidates, key=key)
    return tuple(
        Decision(each.id, slot.id, PickReason("mine", f"{key(each)}"))
        for each, slot in zip(order, snapshot.slots, strict=False)
    )


def foreign(window: CandidateWindow) -> Policy:
    return Policy(name=f"foreign_{window}", rank=least_used_group, sentence="The group that used least.", window=window)


POLICIES = {
    **{name: make(name) for name in ("fair_share", "round_robin", "weighted_priority", "intent_weighted", "edf")},
    "fair_share without guarantee": make("fair_share", min_guarantee=False),
    "foreign, by owner": foreign("owner"),
    "foreign, by group": foreign("group"),
    "foreign, by deadline": foreign("deadline"),
}


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show fewer agents than there are, and few entries of each."""
    monkeypatch.setattr(candidate_windows, "WINDOW_MAX", 3)
    monkeypatch.setattr(candidate_windows, "HEADS_MAX", 2)


# --- two worlds ----------------------------------------------------------------------------------


class Op(NamedTuple):
    """One operation: its name and numbers that mean what it makes of them."""

    name: str
    which: int
    number: int


class World:
    """A file with two processes' worth of connections: `here` claims, `there` only writes."""

    def __init__(self, path: Path, policy: Policy, *, keeps: bool) -> None:
        self.clock = ManualClock(START_AT)
        self.here = Kernel(open_undoing(str(path), self.clock), rng=random.Random(1))
        self.there: Kernel | None = None
        self._path = path
        self._policy = policy
        self._kept = Dispatcher(self.here, policy) if keeps else None
        self.live: list[ReadyEntry] = []
        for name, weight in (("heavy", 3_000), ("light", 1_000)):
            self.here.projects.create(name, weight=weight)
        self.pids = [
            self.here.agents.create(f"a{number}", project_id=PROJECTS[number % len(PROJECTS)])
            for number in range(AGENTS)
        ]

    def close(self) -> None:
        self.here.store.close()
        if self.there is not None:
            self.there.store.close()

    def do(self, op: Op) -> object:
        """Carry an operation out; one that is refused is refused in both worlds."""
        try:
            return getattr(self, op.name)(op)
        except (RotaError, ValueError) as problem:
            return type(problem).__name__

    # --- what may happen -------------------------------------------------------------------------

    def claim(self, op: Op, *, now: float | None = None) -> list[tuple[int, str]]:
        dispatcher = self._kept or Dispatcher(self.here, self._policy)
        before = self.here.journal.cursor()
        entries = dispatcher.claim("w", 1 + op.number % 5, kinds=KINDS[op.which % len(KINDS)], now=now)
        self.live += entries
        reasons = [
            reason
            for event in self.here.journal.tail(before, limit=1_000)
            if event.kind == "kernel.sched.claimed"
            for reason in event.payload.get("because", [])
        ]
        return list(zip([entry.sched_id for entry in entries], [*reasons, *[""] * len(entries)], strict=False))

    def claim_later(self, op: Op) -> object:
        return self.claim(op, now=self.clock.now() + op.number)

    def claim_undone(self, op: Op) -> None:
        live = len(self.live)
        undoing: Any = self.here.store
        undoing.undoes = True
        try:
            with suppress(RolledBack):
                self.claim(op)
        finally:
            undoing.undoes = False
            del self.live[live:]

    def enqueue(self, op: Op) -> int:
        return self.here.queue.enqueue(self._spec(op.which, op.number))

    def enqueue_many(self, op: Op) -> list[int]:
        specs = [self._spec(op.which + step, op.number + 3 * step) for step in range(1 + op.number % 4)]
        return self.here.queue.enqueue_many(specs)

    def _spec(self, which: int, number: int) -> ScheduleSpec:
        now = self.clock.now()
        return ScheduleSpec(
            self.pids[which % AGENTS],
            priority=number % 3,
            runnable_at=now + 2 if number % 7 == 6 else 0.0,
            deadline=now + number % 4 + 1 if number % 5 == 4 else None,
            kind="gpu" if number % 8 == 7 else None,
            expected={"tokens": number} if number % 2 and number else {},
        )

    def complete(self, op: Op, exit_kind: str = "completed") -> object:
        if not self.live:
            return None
        run = self.live.pop(op.which % len(self.live))
        if op.number % 4 == 3:
            self.here.queue.charge(run.sched_id, {"tokens": op.number}, token=run.token)
        return self.here.queue.complete(run.sched_id, exit_kind, token=run.token)

    def complete_many(self, op: Op) -> object:
        count = 1 + op.number % 3
        runs, self.live = self.live[:count], self.live[count:]
        answers = self.here.queue.complete_many([Completion(run.sched_id, token=run.token) for run in runs])
        return [str(answer) for answer in answers]  # errors are equal if they say the same

    def crash(self, op: Op) -> object:
        return self.complete(op, "crashed")

    def put_back(self, op: Op) -> None:
        if self.live:
            run = self.live.pop(op.which % len(self.live))
            self.here.queue.put_back(run.sched_id, token=run.token or 0)

    def cancel(self, op: Op) -> object:
        return self.here.queue.cancel(1 + op.which)

    def change(self, op: Op) -> object:
        return self.here.queue.change(1 + op.which, priority=op.number % 5).priority

    def pause(self, op: Op) -> None:
        self.here.agents.pause(self.pids[op.which % AGENTS], by="test")

    def resume(self, op: Op) -> None:
        self.here.agents.resume(self.pids[op.which % AGENTS], by="test")

    def cap(self, op: Op) -> None:
        self.here.agents.update(self.pids[op.which % AGENTS], max_concurrent=op.number % 3 or None)

    def weigh(self, op: Op) -> None:
        self.here.projects.update(PROJECTS[op.which % 2] or "", weight=1_000 * (1 + op.number % 5))

    def cap_project(self, op: Op) -> None:
        self.here.projects.update(PROJECTS[op.which % 2] or "", max_concurrent=op.number % 3 or None)

    def pause_project(self, op: Op) -> None:
        self.here.projects.move(PROJECTS[op.which % 2] or "", "pause" if op.number % 2 else "resume")

    def advance(self, op: Op) -> None:
        self.clock.advance(op.number % 4)

    def jump_back(self, op: Op) -> None:
        self.clock.jump(-(op.number % 3))

    def elsewhere(self, op: Op) -> object:
        """Another process enqueues, or claims in strict order and completes."""
        if self.there is None:
            self.there = Kernel(store.open(str(self._path), clock=self.clock, durability="normal"))
        if op.number % 2:
            return self.there.queue.enqueue(self._spec(op.which, op.number))
        runs = self.there.queue.claim(worker_id="elsewhere", max_n=1 + op.which % 2)
        ended = [Completion(run.sched_id, token=run.token) for run in runs]
        return len(self.there.queue.complete_many(ended))


@contextmanager
def two_worlds(policy: Policy) -> Iterator[tuple[World, World]]:
    with tempfile.TemporaryDirectory() as folder:
        worlds = [World(Path(folder) / f"{keeps}.db", policy, keeps=keeps) for keeps in (True, False)]
        try:
            yield worlds[0], worlds[1]
        finally:
            for world in worlds:
                world.close()


OFTEN = ["enqueue", "enqueue_many", "enqueue_many", "claim", "claim", "claim", "complete", "complete_many", "advance"]
SELDOM = [
    "claim_later",
    "claim_undone",
    "crash",
    "put_back",
    "cancel",
    "change",
    "pause",
    "resume",
    "cap",
    "weigh",
    "cap_project",
    "pause_project",
    "jump_back",
    "elsewhere",
]
operations = st.builds(Op, st.sampled_from(OFTEN * 2 + SELDOM), st.integers(0, 12), st.integers(0, 16))


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
@settings(max_examples=settings().max_examples // 4, deadline=None)
@pytest.mark.long_on_postgres
@given(history=st.lists(operations, min_size=12, max_size=50))
def test_a_kept_pass_claims_what_a_new_one_claims(policy: Policy, history: list[Op]) -> None:
    start = [Op("enqueue_many", number, number + 3) for number in range(4)]
    with two_worlds(policy) as (kept, new):
        for at, op in enumerate([*start, *history, Op("claim", 0, 4), Op("claim", 2, 4)]):
            assert kept.do(op) == new.do(op), (at, op)


# --- by example ----------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_an_entry_whose_time_has_not_come_is_found_when_it_comes(policy: Policy) -> None:
    """Maintenance for a later time has released the entry; claims before that time must not take it."""
    with two_worlds(policy) as worlds:
        for world in worlds:
            early = world.here.queue.enqueue(ScheduleSpec(world.pids[0], priority=9, runnable_at=START_AT + 5))
            world.here.queue.enqueue_many([ScheduleSpec(world.pids[1])] * 3)
            world.here.queue.upkeep(START_AT + 6)
            before = [world.claim(Op("claim", 0, 0))[0][0] for _ in range(2)]
            world.clock.advance(5)
            assert early not in before
            assert world.claim(Op("claim", 0, 0))[0][0] == early


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_an_entry_whose_deadline_is_now_is_not_shown(policy: Policy) -> None:
    with two_worlds(policy) as worlds:
        taken = []
        for world in worlds:
            world.here.queue.enqueue_many([ScheduleSpec(pid) for pid in world.pids for _ in range(2)])
            late = world.here.queue.enqueue(ScheduleSpec(world.pids[2], priority=9, deadline=START_AT + 5))
            world.here.queue.enqueue(ScheduleSpec(world.pids[2], priority=8, deadline=START_AT + 5))
            first = world.claim(Op("claim", 0, 0))
            world.clock.advance(5)
            taken.append((first, [world.claim(Op("claim", 0, 1)) for _ in range(3)]))
            assert late not in [sched_id for claim in taken[-1][1] for sched_id, _ in claim]
        assert taken[0] == taken[1]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_an_agent_that_is_blocked_for_one_claim_is_shown_to_the_next(policy: Policy) -> None:
    """An agent over its grant may run if the claim does not check budgets."""
    with two_worlds(policy) as (kept, new):
        taken = []
        for world in (kept, new):
            world.here.ledger.create(world.pids[0], {"tokens": 1})
            world.here.ledger.charge(world.pids[0], "tokens", 5)
            world.here.queue.enqueue_many([ScheduleSpec(pid) for pid in world.pids[:2] for _ in range(4)])
            api = Dispatcher(world.here, policy)
            claims = []
            for checks in (True, False, True, False):
                api = api if world is kept else Dispatcher(world.here, policy)
                claims.append([entry.pid for entry in api.claim("w", 2, admission_check=checks)])
            taken.append(claims)
        assert taken[0] == taken[1]
        assert kept.pids[0] not in [*taken[0][0], *taken[0][2]]
        assert kept.pids[0] in [*taken[0][1], *taken[0][3]]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_a_project_that_was_refused_is_asked_again(policy: Policy) -> None:
    """Its entries need a limit that the run of another project uses."""
    with two_worlds(policy) as worlds:
        for world in worlds:
            world.here.contexts.create(bound_to="name", bound_id="api", budget=1, period_s=9_999, unit="tokens")
            specs = [
                ScheduleSpec(pid, priority=priority, draws_on=("api",), expected={"tokens": 1})
                for pid, priority in zip(world.pids, (9, 8), strict=False)
            ]
            _, waiting = world.here.queue.enqueue_many(specs)
            world.do(Op("claim", 0, 0))
            assert world.claim(Op("claim", 0, 0)) == []
            world.do(Op("complete", 0, 0))
            assert [sched_id for sched_id, _ in world.claim(Op("claim", 0, 0))] == [waiting]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_an_entry_that_changed_without_notice_is_not_claimed(policy: Policy) -> None:
    """Whatever a pass remembers, an entry is claimed only if its row says that it is ready."""
    with two_worlds(policy) as (world, _):
        ids = world.here.queue.enqueue_many([ScheduleSpec(pid) for pid in world.pids for _ in range(2)])
        first = world.claim(Op("claim", 0, 0))
        text = "UPDATE agent_schedule_queue SET hold = 'after' WHERE state = 'queued' AND sched_id != ?"
        unheld = next(sched_id for sched_id in ids if sched_id != first[0][0])
        world.here.store.write(lambda tx: tx.run(Statement("test_hold", "Hold all entries but one.", text), (unheld,)))
        claimed = {sched_id for _ in range(3) for sched_id, _ in world.claim(Op("claim", 0, 4))}
        assert claimed <= {unheld}
