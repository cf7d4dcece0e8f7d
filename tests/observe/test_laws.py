"""Laws of the fleet state: after any sequence of operations its counts match the tables."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from rota.cli.view import start_of
from rota.errors import RotaError
from rota.kernel import ScheduleSpec
from rota.model.work import Backoff
from rota.observe.fleet_state import FleetState
from rota.service.dispatcher import Dispatcher
from tests.kernel.world import World
from tests.observe.test_fleet_state import counts_of, folded

VERBS = (
    "put", "put_many", "put_late", "put_after", "take", "end", "fail", "back", "cancel", "change", "release", "wait",
    "ask",
)  # fmt: skip
WORKERS = (None, "worker", "box")  # affinity workers: the first claims often, the second rarely
OPERATIONS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 40)), max_size=60)


def do(world: World, pid: int, verb: str, number: int) -> None:
    """Run one operation; the number selects the entry, the count or the duration."""
    sched_id = number % 8 + 1  # few entries, so that much happens to each
    token = _token(world, sched_id)
    if verb == "put":
        spec = {"retry_on": ("failed", "crashed"), "backoff": Backoff(base_s=3.0), "max_attempts": 2}
        deadline = world.now + 50 if number % 5 == 0 else None
        world.put(pid, deadline=deadline, affinity=WORKERS[number % 3], **spec)
    elif verb == "put_many":
        later = world.now + number % 7
        world.queue.enqueue_many(
            [ScheduleSpec(pid, runnable_at=later if n % 2 else 0.0) for n in range(number % 5 + 1)]
        )
    elif verb == "put_late":
        world.put(pid, runnable_at=world.now + number, affinity=WORKERS[number % 3])
    elif verb == "put_after":
        failed = ("cancel", "run", "hold")[number % 3]
        world.put(pid, after=(sched_id,), on_failed=failed, affinity=WORKERS[number % 2])
    elif verb == "take":
        world.take(number % 4 + 1, claim_timeout_s=10.0, worker_id="worker" if number % 5 else "box")
    elif verb in ("end", "fail"):
        world.queue.complete(sched_id, "completed" if verb == "end" else "failed", token=token)
    elif verb == "back":
        world.queue.put_back(sched_id, token=token or 0, runnable_at=world.now + number % 3)
    elif verb == "cancel":
        world.queue.cancel(sched_id)
    elif verb == "change" and world.queue.get(sched_id).hold != "after":  # see test_fleet_state: that event comes late
        world.queue.change(sched_id, runnable_at=world.now + number % 4)
    elif verb == "wait":
        world.clock.advance(number)
        world.queue.upkeep()
    elif verb == "release" and world.queue.get(sched_id).hold == "worker":
        world.queue.release(sched_id)
    elif verb == "ask":
        world.queue.request_cancel(sched_id)


def _token(world: World, sched_id: int) -> int | None:
    with suppress(RotaError):
        return world.queue.get(sched_id).token
    return None


@given(OPERATIONS)
def test_the_counts_match_the_tables(operations: list[tuple[str, int]]) -> None:
    world = World()
    try:
        pid, state = world.agent(), FleetState()
        for verb, number in operations:
            with suppress(RotaError):  # a refused operation changes nothing, and the counts must agree
                do(world, pid, verb, number)
            folded(world, state)
            assert (state.queued, state.running, state.holds) == counts_of(world.kernel)
            assert state.report(world.queue.counts()).lost == 0
        live = sum(not row.is_free for row in state.rows)
        assert live == state.running
    finally:
        world.close()


@given(OPERATIONS, st.integers(0, 60))
def test_a_fleet_state_that_starts_later_counts_the_same(operations: list[tuple[str, int]], cut: int) -> None:
    world = World()
    try:
        pid, late = world.agent(), FleetState()
        for index, (verb, number) in enumerate(operations):
            if index == cut:
                late = FleetState(start_of(Dispatcher(world.kernel)))
            with suppress(RotaError):
                do(world, pid, verb, number)
        folded(world, late)
        queued, running, _ = counts_of(world.kernel)
        assert (late.queued, late.running) == (queued, running)
        assert late.report(world.queue.counts()).lost == 0
    finally:
        world.close()
