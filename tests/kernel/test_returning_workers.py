"""Workers that were away, because the store was, or the machine was suspended: none takes back what still runs."""

from __future__ import annotations

from typing import Any

import pytest

from rota.kernel.environment import RETURN_EVERY_S, RETURN_S
from rota.model.events import WorkerLost
from rota.model.workers import WORKER_ALIVE_S, WORKER_REFRESH_S, WORKER_SILENT_S, SlotPool
from tests.kernel.world import World

TIMEOUT_S = 60.0


def register(world: World, worker_id: str) -> None:
    pools = [SlotPool(worker_id, 2)]
    world.kernel.workers.register(worker_id, f"of {worker_id}", kind="supervisor", host="h", os_pid=1, pools=pools)


def claim(world: World, worker_id: str, **how: Any) -> list[int]:
    """Claim as a supervisor does; returns the entries."""
    given: dict[str, Any] = {"claim_timeout_s": TIMEOUT_S, "incarnation": f"of {worker_id}"} | how
    _, entries = world.dispatcher.turn([], worker_id, 1, **given)
    return [entry.sched_id for entry in entries]


def running(world: World, pid: int, worker_id: str, **how: Any) -> int:
    """Return an entry that this registered worker runs."""
    register(world, worker_id)
    sched_id = world.put(pid)
    assert claim(world, worker_id, **how) == [sched_id]
    return sched_id


def beat(world: World, *sched_ids: int) -> None:
    """Send the heartbeats of one worker."""
    world.queue.heartbeat_many([(each, world.queue.get(each).token or 0) for each in sched_ids])


def states(world: World, *sched_ids: int) -> list[str]:
    return [world.state(each) for each in sched_ids]


def pass_time(world: World, seconds: float, *workers: str) -> None:
    """Let time pass in which these workers renew their registrations."""
    for _ in range(int(seconds / WORKER_REFRESH_S)):
        world.clock.advance(WORKER_REFRESH_S)
        for worker_id in workers:
            register(world, worker_id)


def test_the_claim_of_a_worker_that_was_away_takes_back_nothing(world: World, pid: int) -> None:
    own, other = running(world, pid, "box"), running(world, pid, "rack")
    world.clock.advance(90)
    assert claim(world, "box") == []
    next_one = world.put(pid)
    assert claim(world, "box") == [next_one]  # it still claims what is ready
    beat(world, own)
    register(world, "box")
    assert claim(world, "box") == []  # the heartbeat of the other is on its way
    world.clock.advance(RETURN_S - 1)
    assert claim(world, "box") == []
    beat(world, other)
    assert states(world, own, other) == ["dispatched", "dispatched"]
    assert [world.queue.get(each).attempt for each in (own, other)] == [1, 1]


def test_what_a_dead_worker_had_is_taken_back_when_the_others_are_here_again(world: World, pid: int) -> None:
    own, dead = running(world, pid, "box"), running(world, pid, "dead")
    world.clock.advance(90)
    beat(world, own)
    register(world, "box")
    world.clock.advance(RETURN_S)
    assert claim(world, "box") == []
    assert states(world, own, dead) == ["dispatched", "queued:backoff"]


def test_a_worker_that_is_here_takes_back_what_a_dead_one_had_at_once(world: World, pid: int) -> None:
    dead = running(world, pid, "dead")
    pass_time(world, TIMEOUT_S, "box")
    assert claim(world, "box") == []
    assert states(world, dead) == ["queued:backoff"]


def test_an_idle_worker_that_was_away_leaves_the_others_time_for_their_heartbeats(world: World, pid: int) -> None:
    register(world, "idle")
    other = running(world, pid, "rack")
    world.clock.advance(90)
    assert claim(world, "idle") == []
    register(world, "idle")
    assert claim(world, "idle") == []
    assert states(world, other) == ["dispatched"]


def test_a_short_absence_is_known_by_the_worker_s_own_claims(world: World, pid: int) -> None:
    """Claims may be shorter than the time in which a registration is renewed."""
    own = running(world, pid, "box", claim_timeout_s=2)
    world.clock.advance(3)
    assert claim(world, "box") == []
    beat(world, own)
    assert states(world, own) == ["dispatched"]


def test_a_claim_that_its_worker_does_not_know_of_is_taken_back(world: World, pid: int) -> None:
    """The response of the claim was lost: the worker is here, and sends no heartbeat for it."""
    unknown = running(world, pid, "box")
    pass_time(world, TIMEOUT_S + RETURN_S, "box")
    register(world, "box")
    pass_time(world, WORKER_REFRESH_S, "box")
    assert claim(world, "box") == []
    assert states(world, unknown) == ["queued:backoff"]


def test_a_claim_that_waits_leaves_its_worker_s_runs_alone_when_time_has_passed(world: World, pid: int) -> None:
    own = running(world, pid, "box")
    waiter = world.waiter_of(lambda: claim(world, "box", wait_s=10_000))
    world.clock.advance(90)  # as when the machine wakes up: the waiting claim is due before any heartbeat
    ready = world.put(pid)
    assert waiter.outcome() == [ready]
    assert states(world, own) == ["dispatched"]


def test_a_suspended_worker_s_waiting_claim_does_not_keep_others_from_taking_back(world: World, pid: int) -> None:
    """It waits at a daemon: both find the same, but only the one is suspended."""
    register(world, "suspended")
    dead = running(world, pid, "dead", claim_timeout_s=WORKER_SILENT_S)
    pass_time(world, WORKER_REFRESH_S, "box")
    world.waiter_of(lambda: claim(world, "suspended", wait_s=10_000))
    here = world.waiter_of(lambda: claim(world, "box", wait_s=10_000))
    world.clock.advance(WORKER_SILENT_S - WORKER_REFRESH_S + 1)
    world.pass_time_until_done(here)
    assert world.queue.get(dead).attempt == 2


def test_a_late_worker_is_welcome_only_so_often(world: World, pid: int) -> None:
    """One whose heartbeats are always late must not keep all other claims from being taken back."""
    late = running(world, pid, "late", claim_timeout_s=1)
    dead = running(world, pid, "dead")
    for _ in range(int((TIMEOUT_S + RETURN_EVERY_S) / 5)):
        world.clock.advance(5)
        beat(world, late)
        world.take(worker_id="plain")
    assert world.queue.get(dead).worker_id == "plain"


def test_idle_workers_that_were_away_are_not_lost(world: World) -> None:
    register(world, "box")
    register(world, "rack")
    world.clock.advance(2 * WORKER_ALIVE_S)
    register(world, "box")
    world.kernel.workers.remove_lost()
    register(world, "rack")
    assert [fact for fact in world.facts() if isinstance(fact, WorkerLost)] == []


def test_one_that_does_not_come_back_is_lost(world: World) -> None:
    register(world, "box")
    register(world, "rack")
    world.clock.advance(2 * WORKER_ALIVE_S)
    pass_time(world, 2 * RETURN_S, "box")
    assert [fact.worker_id for fact in world.facts() if isinstance(fact, WorkerLost)] == ["rack"]


@pytest.mark.parametrize("forced", [False, True])
def test_other_claims_leave_time_too_once_a_worker_has_come_back(world: World, pid: int, forced: bool) -> None:
    own, other = running(world, pid, "box"), running(world, pid, "rack")
    world.clock.advance(90)
    beat(world, own)
    ready = world.put(pid)
    if forced:
        world.queue.force_claim(ready, worker_id="operator")
    else:
        world.take(2, worker_id="plain")
    assert states(world, own, other, ready) == ["dispatched"] * 3
