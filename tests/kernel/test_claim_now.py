"""`claim(now=t)` filters by `t` and does no more; and among all that is due, the higher priority goes first."""

from __future__ import annotations

import pytest

from rota.kernel import ScheduleSpec
from rota.kernel.maintenance import PROMOTE_MAX
from rota.service.explanation import explain
from rota.store import Statement
from tests.kernel.world import POLICIES, START, World

LATER = START + 500.0
everything = pytest.mark.parametrize("policy", POLICIES)


def rows(world: World) -> list[object]:
    """Every row of the queue."""
    statement = Statement("all", "", "SELECT * FROM agent_schedule_queue ORDER BY sched_id")
    return [*world.store.read(lambda tx: tx.run(statement))]


def take(world: World, policy: str, max_n: int = 100, **how: float) -> list[int]:
    return [entry.sched_id for entry in world.dispatcher.claim("w", max_n, policy=policy, **how)]  # type: ignore[arg-type]


# --- a caller's now ------------------------------------------------------------------------------


@everything
def test_a_later_now_shows_what_is_runnable_then_and_changes_nothing_else(world: World, policy: str) -> None:
    pid, other = world.agent(), world.agent("other")
    soon, late = world.put(pid, runnable_at=START + 100), world.put(other, runnable_at=START + 900)
    doomed = world.put(pid, deadline=START + 300)
    held = world.put(other)
    world.queue.force_claim(held, worker_id="sleeper", claim_timeout_s=60)
    before, events = rows(world), len(world.events())
    assert take(world, policy, 1, now=LATER) == [soon]
    claimed = world.queue.get(soon)
    assert (claimed.dispatched_at, claimed.claim_expires_at) == (START, START + 3_600)  # the clock's, not the caller's
    assert [event.kind for event in world.events()[events:]] == ["kernel.sched.claimed"]
    assert world.events()[-1].ts == START
    after = rows(world)
    assert [row for row in after if row not in before] == [after[0]]  # no other row has changed
    assert (world.state(doomed), world.state(late), world.state(held)) == ("queued", "queued:time", "dispatched")
    assert take(world, policy, now=LATER) == []
    assert rows(world) == after


@everything
def test_an_earlier_now_hides_what_is_runnable_by_the_clock(world: World, policy: str) -> None:
    pid = world.agent()
    first, second = world.put(pid, runnable_at=START + 10), world.put(pid, runnable_at=START + 20)
    world.clock.advance(30)
    assert take(world, policy, now=START + 10) == [first]
    assert take(world, policy, now=START + 19) == []
    assert take(world, policy) == [second]


def test_a_deadline_is_compared_with_the_callers_now_and_nothing_is_swept(world: World) -> None:
    pid = world.agent()
    passed = world.put(pid, deadline=START - 1)
    ahead = world.put(pid, deadline=START + 1)
    assert world.take_ids(now=START - 2) == [passed, ahead]
    late = world.put(pid, deadline=START + 5)
    world.clock.advance(10)
    assert world.take_ids(now=START + 10) == []
    assert world.state(late) == "queued"
    assert world.queue.gc_expired(now=START + 10) == 1  # only this sweeps it
    assert world.take_ids() == []


def test_the_claims_of_others_expire_by_the_clock(world: World) -> None:
    sched_id = world.put(world.agent())
    world.take_one(claim_timeout_s=60)
    assert world.take_ids(now=START + 1_000_000, worker_id="other") == []
    assert world.state(sched_id) == "dispatched"
    world.clock.advance(61)
    world.take(now=START, worker_id="other")
    assert (
        world.state(sched_id) == "queued:backoff"
    )  # the first kernel's workers always give a now: taken back all the same


def test_an_unreadable_future_entry_is_passed_over(world: World) -> None:
    pid = world.agent()
    bad, good = world.put(pid, runnable_at=START + 1, priority=1), world.put(pid, runnable_at=START + 2)
    harm = Statement("harm", "", "UPDATE agent_schedule_queue SET payload = '{' WHERE sched_id = ?")
    world.store.write(lambda tx: tx.run(harm, (bad,)))
    assert world.take_ids(1, now=START + 5) == [good]


def test_an_entry_that_will_wait_for_its_worker_is_not_shown_to_others(world: World) -> None:
    pid = world.agent()
    world.take(worker_id="mine")
    sched_id = world.put(pid, runnable_at=START + 5, affinity="mine")
    assert world.take_ids(now=START + 6, worker_id="other") == []
    assert world.take_ids(now=START + 6, worker_id="mine") == [sched_id]


def test_force_claim_filters_by_its_now_too(world: World) -> None:
    pid = world.agent()
    sched_id, other = world.put(pid, runnable_at=START + 5), world.put(pid, deadline=START + 1)
    assert world.reasons_against(sched_id)
    assert world.queue.force_claim(sched_id, worker_id="w", now=START + 5).dispatched_at == START
    assert world.state(other) == "queued"


@everything
def test_why_says_what_such_a_claim_would_do(world: World, policy: str) -> None:
    pid = world.agent()
    sched_id = world.put(pid, runnable_at=START + 100)
    assert explain(world.dispatcher, sched_id, policy=policy).blocking
    assert explain(world.dispatcher, sched_id, policy=policy, now=LATER).starts
    assert world.queue.get(sched_id).hold == "time"


# --- all that is due -----------------------------------------------------------------------------


def many(world: World, count: int, **spec: float) -> None:
    pid = world.agent("many")
    world.queue.enqueue_many([ScheduleSpec(pid, runnable_at=START + 1 + n / count, **spec) for n in range(count)])  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", ["strict", "eevdf", "fair_share", "weighted_priority"])
def test_the_highest_priority_of_thousands_that_fall_due_together_goes_first(world: World, policy: str) -> None:
    many(world, 3 * PROMOTE_MAX)
    urgent = world.put(world.agents.find("many")[0].pid, runnable_at=START + 9, priority=99)
    world.clock.advance(10)
    assert take(world, policy, 1) == [urgent]


def test_what_is_ready_already_does_not_go_before_what_is_due(world: World) -> None:
    low = world.put(world.agent())
    many(world, 2 * PROMOTE_MAX, priority=5)
    blocked = world.agents.find("many")[0].pid
    middle = world.put(world.agent("middle"), runnable_at=START + 9, priority=3)
    world.clock.advance(10)
    world.agents.pause(blocked, "me")  # so that the whole first step is refused
    assert world.take_ids(1) == [middle]
    assert world.take_ids(1) == [low]


def test_only_a_step_is_released_when_that_is_enough(world: World) -> None:
    many(world, 2 * PROMOTE_MAX)
    world.clock.advance(10)
    assert len(world.take_ids(1)) == 1
    assert sum(entry.hold == "time" for entry in world.queue.list(limit=10_000)[0]) == PROMOTE_MAX


def test_of_more_agents_than_a_policy_is_shown_the_highest_priority_is_among_them(world: World) -> None:
    pids = [world.agent(f"a{n}") for n in range(1_010)]
    for pid in pids:
        world.put(pid)
    served = take(world, "weighted_priority", 5)
    recent = [world.queue.get(sched_id).pid for sched_id in served]
    for pid in pids:
        if pid not in recent:
            world.put(pid)
    urgent = world.put(recent[0], priority=99)
    assert take(world, "weighted_priority", 1) == [urgent]
