"""The queue against a reference model: any sequence of calls, on a clock that jumps, leaves both the same.

After every step every entry is compared, field by field, and every answer and every error as it is given. Claims
must hand out exactly the ids that the dictionary would, in exactly its order.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, invariant, multiple, rule

from rota import store
from rota.clock import ManualClock
from rota.errors import RotaError
from rota.kernel import Completion, Kernel, ReadyEntry
from rota.model.work import EXIT_KINDS, Backoff, ExitKind, ScheduleSpec
from rota.store import Statement
from tests.kernel_proof.reference_queue import HalfJitter, ReferenceEntry, ReferenceQueue

START_AT = 10_000_000.0
WORKERS = ("ann", "bob")
Claim = tuple[int, int]  # sched_id, token

halves = st.integers(0, 40).map(lambda number: number / 2)  # seconds, exact as floats
delays = st.one_of(st.just(0.0), halves)
priorities = st.integers(-2, 2)
exit_kinds = st.sampled_from(EXIT_KINDS)
retries = st.sampled_from([(), ("crashed",), ("failed", "crashed"), EXIT_KINDS])
backoffs = st.sampled_from([Backoff(), Backoff(0.0, 1.0, 0.0), Backoff(4.0, 2.0, 10.0)])
affinities = st.none() | st.sampled_from([*WORKERS, "cat"])  # a worker that never claims
timeouts_s = st.sampled_from([1.0, 5.0, 20.0])
jumps_s = st.sampled_from([0.5, 3.0, 30.0, 3_600.0, 86_400.0]).flatmap(lambda by_s: st.sampled_from([by_s, -by_s]))


def seen(entry: ReadyEntry) -> dict[str, Any]:
    """The public fields of an entry that are meaningful in its state."""
    live = entry.state == "dispatched"
    return {
        "state": entry.state,
        "hold": entry.hold,
        "attempt": entry.attempt,
        "priority": entry.priority,
        "runnable_at": entry.runnable_at,
        "deadline": entry.deadline,
        "worker_id": entry.worker_id,
        "created_at": entry.created_at,
        "dispatched_at": entry.dispatched_at,
        "completed_at": entry.completed_at,
        "exit_kind": entry.exit_kind,
        "token": entry.token if live or entry.state == "queued" else None,
        "expires_at": entry.claim_expires_at,
        "cancel_requested": entry.cancel_requested if live else False,
    }


def foreseen(entry: ReferenceEntry) -> dict[str, Any]:
    live = entry.state == "dispatched"
    return {
        "state": entry.state,
        "hold": entry.hold,
        "attempt": entry.attempt,
        "priority": entry.priority,
        "runnable_at": entry.runnable_at,
        "deadline": entry.deadline,
        "worker_id": entry.worker_id,
        "created_at": entry.created_at,
        "dispatched_at": entry.dispatched_at,
        "completed_at": entry.completed_at,
        "exit_kind": entry.exit_kind,
        "token": entry.token if live else None,
        "expires_at": entry.expires_at,
        "cancel_requested": entry.cancel_requested if live else False,
    }


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or the class of its error."""
    try:
        return call()
    except RotaError as error:
        return type(error)


class QueueAgainstDictionary(RuleBasedStateMachine):
    entries = Bundle("entries")
    claims = Bundle("claims")  # every claim there ever was, most of them stale by now

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock(START_AT)
        self.kernel = Kernel(store.open(":memory:", clock=self.clock), rng=HalfJitter())
        self.queue = self.kernel.queue
        self.pids = [self.kernel.agents.create(name) for name in ("one", "two")]
        self.plain = ReferenceQueue()

    def teardown(self) -> None:
        self.kernel.store.close()

    @property
    def now(self) -> float:
        return self.clock.now()

    def agree(self, real: Callable[[], Any], plain: Callable[[], Any]) -> Any:
        """Check that both return the same or raise the same error."""
        answer = outcome(real)
        assert answer == outcome(plain)
        return answer

    # --- in --------------------------------------------------------------------------------------

    def spec(self, agent: int, priority: int, delay_s: float, lasts_s: float | None, **more: Any) -> ScheduleSpec:
        """A delay of a whole number of seconds is given as a duration, another one as a date."""
        deadline = None if lasts_s is None else self.now + delay_s + lasts_s
        if delay_s % 1 == 0:
            return ScheduleSpec(self.pids[agent], priority, 0.0, deadline, delay_s=delay_s, **more)
        return ScheduleSpec(self.pids[agent], priority, self.now + delay_s, deadline, **more)

    @rule(
        target=entries,
        agent=st.integers(0, 1),
        priority=priorities,
        delay_s=delays,
        lasts_s=st.none() | halves,
        key=st.none() | st.sampled_from(["k1", "k2", "k3"]),
        max_attempts=st.integers(1, 3),
        retry_on=retries,
        backoff=backoffs,
        affinity=affinities,
    )
    def enqueue(
        self, agent: int, priority: int, delay_s: float, lasts_s: float | None, **more: Any
    ) -> MultipleResults[int]:
        spec = self.spec(agent, priority, delay_s, lasts_s, **more)
        known = set(self.plain.entries)
        sched_id: int = self.agree(lambda: self.queue.enqueue(spec), lambda: self.plain.enqueue(spec, self.now))
        return multiple() if sched_id in known else multiple(sched_id)

    @rule(
        target=entries,
        priority=priorities,
        delay_s=delays,
        lasts_s=st.none() | halves,
        first=entries,
        second=entries,
        on_failed=st.sampled_from(["cancel", "run", "hold"]),
        affinity=affinities,
    )
    def enqueue_after(
        self,
        *,
        priority: int,
        delay_s: float,
        lasts_s: float | None,
        first: int,
        second: int,
        **more: Any,
    ) -> int:
        spec = self.spec(0, priority, delay_s, lasts_s, after=(first, second), **more)
        sched_id: int = self.agree(lambda: self.queue.enqueue(spec), lambda: self.plain.enqueue(spec, self.now))
        return sched_id

    @rule(
        target=entries,
        length=st.integers(2, 4),
        first=entries,
        on_failed=st.sampled_from(["cancel", "run"]),
        max_attempts=st.integers(1, 2),
    )
    def enqueue_a_chain(self, length: int, first: int, on_failed: str, max_attempts: int) -> MultipleResults[int]:
        """Each waits for the one before it, and the last for an entry of long ago as well."""
        more = {"on_failed": on_failed, "max_attempts": max_attempts}
        specs = [self.spec(1, 0, 0.0, None, after=(-1,) if at else (), **more) for at in range(length - 1)]
        specs.append(self.spec(1, 0, 0.0, None, after=(-1, first), **more))
        ids: list[int] = self.agree(
            lambda: self.queue.enqueue_many(specs), lambda: self.plain.enqueue_many(specs, self.now)
        )
        return multiple(*ids)

    @rule(target=entries, agent=st.integers(0, 1), trigger=st.sampled_from(["manual", "cron"]))
    def enqueue_unique(self, agent: int, trigger: str) -> MultipleResults[int]:
        spec = self.spec(agent, 0, 0.0, None, trigger=trigger)
        sched_id, created = self.agree(
            lambda: self.queue.enqueue_unique(spec), lambda: self.plain.enqueue_unique(spec, self.now)
        )
        return multiple(sched_id) if created else multiple()

    # --- handing out and holding on --------------------------------------------------------------

    @rule(target=claims, worker=st.sampled_from(WORKERS), most=st.integers(1, 4), timeout_s=timeouts_s)
    def claim(self, worker: str, most: int, timeout_s: float) -> MultipleResults[Claim]:
        handed_out = self.queue.claim(worker_id=worker, max_n=most, claim_timeout_s=timeout_s, incarnation="1")
        token = (handed_out[0].token if handed_out else None) or 0
        ids = self.plain.claim(worker, most, timeout_s, token, self.now)
        assert [entry.sched_id for entry in handed_out] == ids
        assert all(entry.token == token for entry in handed_out)
        assert [seen(entry) for entry in handed_out] == [foreseen(self.plain[sched_id]) for sched_id in ids]
        return multiple(*((sched_id, token) for sched_id in ids))

    @rule(target=claims, entry=entries, timeout_s=timeouts_s)
    def force_claim(self, entry: int, timeout_s: float) -> MultipleResults[Claim]:
        last_event = self.kernel.journal.cursor()
        answer = outcome(
            lambda: self.queue.force_claim(entry, worker_id="ann", claim_timeout_s=timeout_s, incarnation="1")
        )
        token = (answer.token if isinstance(answer, ReadyEntry) else None) or 0
        expected = outcome(lambda: self.plain.force_claim(entry, "ann", timeout_s, token, self.now))
        if not isinstance(answer, ReadyEntry):
            assert answer == expected
            assert self.kernel.journal.cursor() == last_event
            return multiple()
        assert answer.sched_id == expected
        return multiple((entry, token))

    @rule(claim=claims)
    def heartbeat(self, claim: Claim) -> None:
        self.agree(lambda: tuple(self.queue.heartbeat(*claim)), lambda: self.plain.heartbeat(*claim, self.now))

    # --- ending ----------------------------------------------------------------------------------

    @rule(claim=claims, exit_kind=exit_kinds)
    def complete(self, claim: Claim, exit_kind: ExitKind) -> None:
        sched_id, token = claim
        self.agree(
            lambda: self.queue.complete(sched_id, exit_kind, token=token),
            lambda: self.plain.complete(sched_id, exit_kind, token, self.now),
        )

    @rule(entry=entries, exit_kind=exit_kinds)
    def complete_without_token(self, entry: int, exit_kind: ExitKind) -> None:
        self.agree(
            lambda: self.queue.complete(entry, exit_kind),
            lambda: self.plain.complete(entry, exit_kind, None, self.now),
        )

    @rule(claim=claims, entry=entries)
    def complete_with_the_token_of_another(self, claim: Claim, entry: int) -> None:
        self.agree(
            lambda: self.queue.complete(entry, "completed", token=claim[1]),
            lambda: self.plain.complete(entry, "completed", claim[1], self.now),
        )

    @rule(claim=claims, delay_s=delays, verb=st.sampled_from(["yield", "preempt"]))
    def put_back(self, claim: Claim, delay_s: float, verb: Any) -> None:
        sched_id, token = claim
        at = self.now + delay_s
        self.agree(
            lambda: self.queue.put_back(sched_id, token=token, verb=verb, runnable_at=at),
            lambda: self.plain.put_back(sched_id, token, at, self.now),
        )

    # --- changing what waits ---------------------------------------------------------------------

    @rule(entry=entries)
    def cancel(self, entry: int) -> None:
        self.agree(lambda: self.queue.cancel(entry), lambda: self.plain.cancel(entry, self.now))

    @rule(entry=entries)
    def request_cancel(self, entry: int) -> None:
        self.agree(lambda: self.queue.request_cancel(entry), lambda: self.plain.request_cancel(entry, self.now))

    @rule(
        entry=entries,
        priority=st.none() | priorities,
        delay_s=st.none() | halves,
        lasts_s=st.none() | halves,
    )
    def change(self, entry: int, priority: int | None, delay_s: float | None, lasts_s: float | None) -> None:
        runnable_at = None if delay_s is None else self.now + delay_s
        deadline = None if lasts_s is None else self.now + lasts_s

        def real() -> None:
            given: Any = {} if deadline is None else {"deadline": deadline}
            self.queue.change(entry, priority=priority, runnable_at=runnable_at, **given)

        self.agree(real, lambda: self.plain.change(entry, priority, runnable_at, deadline, self.now))

    @rule(wait_s=st.sampled_from([0.0, 5.0, 120.0]))
    def set_affinity_wait(self, wait_s: float) -> None:
        self.queue.set_affinity_wait(wait_s)
        self.plain.set_affinity_wait(wait_s, self.now)

    @rule(entry=entries)
    def release_what_is_kept(self, entry: int) -> None:
        if self.plain[entry].hold == "worker":
            self.queue.release(entry)
            self.plain.release(entry)

    # --- time ------------------------------------------------------------------------------------

    @rule(seconds=halves)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(by_s=jumps_s, seconds=halves)
    def the_wall_clock_jumps(self, by_s: float, seconds: float) -> None:
        """It is set while the advancing clock goes on: what waits for a time waits for as long as before."""
        self.clock.jump(by_s)
        self.clock.advance(seconds)
        self.plain.jump(by_s, self.now)
        self.upkeep()

    @rule()
    def upkeep(self) -> None:
        """What falls due next is never in the past."""
        due_at = self.queue.upkeep()
        self.plain.turn(self.now)
        assert due_at is None or due_at >= self.now
        assert due_at == self.next_due_at()

    def next_due_at(self) -> float | None:
        """When time next changes something, by the dictionary: a release, an expired claim, a passed deadline."""
        instants: list[float | None] = []
        for entry in self.plain.entries.values():
            if entry.state == "queued":
                instants += [entry.deadline, entry.runnable_at if entry.hold in ("time", "backoff") else None]
                instants.append(entry.held_until if entry.hold == "worker" else None)
            instants.append(entry.expires_at)
        return min((at for at in instants if at is not None), default=None)

    @rule()
    def gc_expired(self) -> None:
        self.agree(self.queue.gc_expired, lambda: self.plain.gc_expired(self.now))

    @rule(stale_s=halves)
    def gc_dispatched(self, stale_s: float) -> None:
        self.agree(lambda: self.queue.gc_dispatched(stale_s), lambda: self.plain.gc_dispatched(stale_s, self.now))

    @rule(worker=st.sampled_from(WORKERS))
    def a_worker_comes_back_to_life(self, worker: str) -> None:
        self.agree(lambda: self.queue.take_over(worker, "2"), lambda: self.plain.take_over(worker, self.now))

    # --- what must hold after every step ---------------------------------------------------------

    @invariant()
    def every_entry_is_as_foreseen(self) -> None:
        listed, total = self.queue.list(limit=10_000)
        assert total == len(self.plain.entries)
        for entry in listed:
            assert (entry.sched_id, seen(entry)) == (entry.sched_id, foreseen(self.plain[entry.sched_id]))

    @invariant()
    def what_is_noted_as_kept_is_what_is_held_for_a_worker(self) -> None:
        noted = Statement("noted", "Made for a test.", "SELECT sched_id, worker_id FROM kept_entries")
        rows: dict[int, str] = dict(self.kernel.store.read(lambda tx: tx.run(noted)))
        kept = {one.sched_id: one.spec.affinity for one in self.plain.entries.values() if one.hold == "worker"}
        assert rows == kept


TestQueueAgainstDictionary = QueueAgainstDictionary.TestCase
TestQueueAgainstDictionary.settings = settings(stateful_step_count=100 if "ROTA_SOAK" in os.environ else 40)


# --- regressions found by the state machine ------------------------------------------------------


def a_kernel() -> tuple[Kernel, ManualClock, int]:
    clock = ManualClock(START_AT)
    kernel = Kernel(store.open(":memory:", clock=clock), rng=HalfJitter())
    return kernel, clock, kernel.agents.create("one")


def test_a_run_that_was_asked_to_stop_does_not_come_back_when_it_is_put_back() -> None:
    kernel, _, pid = a_kernel()
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    (run,) = kernel.queue.claim(worker_id="ann")
    kernel.queue.request_cancel(sched_id)
    kernel.queue.put_back(sched_id, token=run.token or 0)
    entry = kernel.queue.get(sched_id)
    assert (entry.state, entry.exit_kind) == ("completed", "cancelled")
    assert kernel.queue.claim(worker_id="bob") == []


def test_a_sweep_counts_expired_entries_and_not_cancelled_dependents() -> None:
    kernel, clock, pid = a_kernel()
    late = kernel.queue.enqueue(ScheduleSpec(pid, deadline=START_AT + 1))
    behind = kernel.queue.enqueue(ScheduleSpec(pid, after=(late,)))
    clock.advance(2)
    assert kernel.queue.gc_expired() == 1
    assert kernel.queue.get(behind).state == "cancelled"


def test_a_claim_that_expires_after_its_entrys_deadline_is_swept_in_the_same_turn() -> None:
    kernel, clock, pid = a_kernel()
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid, deadline=START_AT + 10))
    kernel.queue.claim(worker_id="ann", claim_timeout_s=20)
    clock.advance(20)
    assert kernel.queue.upkeep() is None
    assert kernel.queue.get(sched_id).state == "expired"


def test_one_completion_and_many_are_retried_by_the_same_rule() -> None:
    kernel, _, pid = a_kernel()
    for _ in range(3):
        kernel.queue.enqueue(ScheduleSpec(pid, retry_on=("completed",), max_attempts=2))
    one, *more = kernel.queue.claim(worker_id="ann", max_n=3)
    assert kernel.queue.complete(one.sched_id, "completed", token=one.token) == ("dispatched", "queued")
    answers = kernel.queue.complete_many([Completion(run.sched_id, "completed", run.token) for run in more])
    assert answers == [("dispatched", "queued")] * 2
