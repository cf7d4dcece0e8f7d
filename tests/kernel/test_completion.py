"""Completion: results, many completions at once, complete_and_claim, and waiting for an entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rota.errors import RotaError, SchedIllegalTransition, SchedInvalidPayload, SchedUnknownId, StaleClaim, WaitTimeout
from rota.kernel import Completion, EntryFilter, RunReport, ScheduleSpec
from rota.kernel.run_reports import COMPLETE_MAX
from rota.model.checks import RESULT_BYTES_MAX
from rota.model.events import EntriesClaimed, EntriesCompleted
from rota.model.work import Backoff, ReadyEntry
from rota.service.dispatcher import Dispatcher
from tests.kernel.world import START, World
from tests.store.world import Caller

# --- results and completions ---------------------------------------------------------------------


@pytest.mark.parametrize("result", [{"n": 1}, [1, None, "x"], "text", 0, False, 1.5, "", [], {}])
def test_a_result_is_kept_with_its_entry(world: World, pid: int, result: Any) -> None:
    sched_id = world.put(pid)
    world.queue.complete(sched_id, "completed", token=world.take_one().token, result=result)
    assert world.queue.get(sched_id).result == result


def test_a_result_may_be_as_large_as_the_limit_and_not_a_byte_larger(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    token = world.take_one().token
    before = world.everything()
    with pytest.raises(SchedInvalidPayload) as caught:
        world.queue.complete(sched_id, "completed", token=token, result="x" * (RESULT_BYTES_MAX - 1))
    assert caught.value.field == "result"
    assert world.everything() == before
    world.queue.complete(sched_id, "completed", token=token, result="x" * (RESULT_BYTES_MAX - 2))
    assert len(world.queue.get(sched_id).result) == RESULT_BYTES_MAX - 2


def test_an_outcome_is_finer_than_the_exit_kind(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    world.queue.complete(sched_id, "failed", token=world.take_one().token, outcome="over_budget")
    entry = world.queue.get(sched_id)
    assert (entry.exit_kind, entry.outcome) == ("failed", "over_budget")


def test_many_runs_end_in_one_commit_each_with_its_own_answer(world: World, pid: int) -> None:
    ids = [world.put(pid) for _ in range(4)]
    tokens = {entry.sched_id: entry.token for entry in world.take(3)}
    cursor = world.journal.cursor()
    answers = world.queue.complete_many(
        [
            Completion(ids[0], "completed", tokens[ids[0]], {"n": 1}),
            Completion(ids[1], "completed", 1),  # not its token
            Completion(ids[2], "crashed", tokens[ids[2]]),
            Completion(ids[3]),  # not dispatched
            Completion(99),
            Completion(ids[0]),  # twice
        ]
    )
    assert answers[0] == ("dispatched", "completed")
    assert answers[2] == ("dispatched", "queued")
    kinds = [type(answers[n]) for n in (1, 3, 4, 5)]
    assert kinds == [StaleClaim, SchedIllegalTransition, SchedUnknownId, SchedIllegalTransition]
    assert [world.state(each) for each in ids] == ["completed", "dispatched", "queued:backoff", "queued"]
    assert [type(fact).__name__ for fact in world.facts(cursor)] == ["EntriesCompleted", "EntriesReturned"]


def test_a_thousand_completions_are_accepted_and_one_more_is_refused(world: World, pid: int) -> None:
    ids = world.queue.enqueue_many([ScheduleSpec(pid)] * COMPLETE_MAX)
    world.take(COMPLETE_MAX)
    before = world.everything()
    with pytest.raises(SchedInvalidPayload, match="at most 1,000"):
        world.queue.complete_many([Completion(each) for each in [*ids, 99]])
    with pytest.raises(SchedInvalidPayload):  # an invalid value refuses the whole call
        world.queue.complete_many([Completion(ids[0]), Completion(ids[1], "exploded")])
    assert world.everything() == before
    assert world.queue.complete_many([Completion(each) for each in ids]) == [("dispatched", "completed")] * 1_000
    fact = world.facts()[-1]
    assert isinstance(fact, EntriesCompleted)
    assert len(fact.entries) == 1_000


def test_a_worker_ends_its_runs_and_takes_the_next_in_one_commit(world: World) -> None:
    pid = world.agent(max_concurrent=2)
    ids = [world.put(pid) for _ in range(5)]
    tokens = [entry.token for entry in world.take(2)]
    cursor = world.journal.cursor()
    done = [Completion(ids[0], "completed", tokens[0], {"n": 1}), Completion(ids[1], "failed", tokens[1])]
    result = world.dispatcher.complete_and_claim(done, worker_id="w", max_n=5)
    assert result.answers[0] == ("dispatched", "completed")
    assert [entry.sched_id for entry in result.entries] == ids[2:4]  # the capacity that its own runs freed
    assert result.entries == [world.queue.get(each) for each in ids[2:4]]
    assert [type(fact) for fact in world.facts(cursor)] == [EntriesCompleted, EntriesClaimed]
    assert world.queue.get(ids[0]).result == {"n": 1}


def test_complete_and_claim_works_under_every_policy(world: World, api: Dispatcher) -> None:
    pid = world.agent(max_concurrent=1)
    ids = [world.put(pid) for _ in range(3)]
    seen = []
    live = api.claim("worker")
    while live:
        seen += [entry.sched_id for entry in live]
        done = [Completion(entry.sched_id, "completed", entry.token) for entry in live]
        answers, live = api.complete_and_claim(done, "worker")
        assert answers == [("dispatched", "completed")]
    assert seen == ids


@pytest.mark.parametrize("way", ["dependent", "retry", "yield", "due"])
def test_what_a_turn_makes_ready_is_claimed_in_it_and_in_its_place(world: World, pid: int, way: str) -> None:
    """The first ready entries may be read before the runs end; what becomes ready then goes before them."""
    backoff = Backoff(base_s=0.0)
    first = world.put(pid, priority=9, retry_on=("crashed",), backoff=backoff)
    entry = world.take_one()
    others = [world.put(pid) for _ in range(3)]
    expected = first
    if way == "dependent":
        expected = world.put(pid, priority=5, after=(first,))
    elif way == "due":
        expected = world.put(pid, priority=5, delay_s=10.0)
        world.clock.advance(20.0)
    back: Any = "yield" if way == "yield" else None
    kind: Any = "crashed" if way == "retry" else "completed"
    report = RunReport(sched_id=first, token=entry.token or 0, exit_kind=kind, back=back)
    result = world.dispatcher.turn([report], "worker", 3, policy="strict")
    assert [each.sched_id for each in result.entries] == [expected, *others[:2]]


def test_a_refused_completion_does_not_prevent_the_next_claim(world: World, pid: int) -> None:
    lost, following = world.put(pid), world.put(pid)
    token = world.take(1)[0].token or 0
    result = world.dispatcher.complete_and_claim([Completion(lost, "completed", token + 1)], worker_id="w")
    assert [type(answer) for answer in result.answers] == [StaleClaim]
    assert [entry.sched_id for entry in result.entries] == [following]
    assert world.state(lost) == "dispatched"


def test_complete_and_claim_with_invalid_input_does_neither(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    world.put(pid)
    token = world.take(1)[0].token
    before = world.everything()
    for wrong in ({"worker_id": ""}, {"worker_id": "w", "max_n": 0}, {"worker_id": "w", "wait_s": -1.0}):
        with pytest.raises(SchedInvalidPayload):
            world.dispatcher.complete_and_claim([Completion(sched_id, "completed", token)], **wrong)
    with pytest.raises(SchedInvalidPayload):
        world.dispatcher.complete_and_claim([Completion(sched_id, "exploded", token)], worker_id="w")
    assert world.everything() == before


# --- waiting for an end --------------------------------------------------------------------------


def _wait(world: World, sched_id: int, wait_s: float = 1_000.0) -> Caller[ReadyEntry]:
    caller = Caller(lambda: world.queue.wait(sched_id, wait_s))
    world.clock.until_parked()
    return caller


def _complete(world: World, sched_id: int) -> None:
    world.take(1)
    world.queue.complete(sched_id, "completed", result={"n": 1})


ENDINGS: dict[str, Callable[[World, int], object]] = {
    "completed": _complete,
    "cancelled": lambda world, sched_id: world.queue.cancel(sched_id),
    "expired": lambda world, _sched_id: world.queue.gc_expired(now=START + 600),
    "swept": lambda world, _sched_id: world.queue.upkeep(now=START + 600),
    "cancelled by filter": lambda world, _sched_id: world.queue.cancel_where(EntryFilter(tag="x")),
    "owner terminated": lambda world, sched_id: world.kernel.terminate(world.queue.get(sched_id).pid, "failed"),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_caller_that_waits_for_an_entry_is_woken_when_it_ends(world: World, pid: int, ending: str) -> None:
    sched_id = world.put(pid, deadline=START + 500, tags=("x",))
    waiter = _wait(world, sched_id)
    ENDINGS[ending](world, sched_id)
    entry = waiter.outcome()
    assert entry == world.queue.get(sched_id)
    assert entry.state in ("completed", "cancelled", "expired")


def test_a_caller_that_waits_for_a_dependent_is_woken_when_it_is_cancelled(world: World, pid: int) -> None:
    first = world.put(pid)
    second = world.put(pid, after=(first,))
    third = world.put(pid, after=(second,))
    waiter = _wait(world, third)
    world.take_one()
    world.queue.complete(first, "failed")
    assert waiter.outcome().state == "cancelled"


def test_waiting_for_what_has_ended_does_not_wait(world: World, pid: int) -> None:
    sched_id = world.ended(pid)
    assert world.queue.wait(sched_id, 0.0).exit_kind == "failed"


def test_waiting_ends_with_an_error_when_the_time_is_over_and_the_entry_goes_on(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    with pytest.raises(WaitTimeout) as caught:
        world.queue.wait(sched_id, 0.0)
    assert caught.value.code == -32139
    waiter = _wait(world, sched_id, 30.0)
    world.take_one()
    world.queue.complete(sched_id, "crashed", token=world.queue.get(sched_id).token)  # it will be tried again
    world.clock.advance(30)
    with pytest.raises(WaitTimeout, match="still waiting"):
        waiter.outcome()


def test_a_retry_does_not_end_the_wait_and_the_last_attempt_does(world: World, pid: int) -> None:
    sched_id = world.put(pid, max_attempts=2)
    waiter = _wait(world, sched_id)
    world.queue.complete(sched_id, "crashed", token=world.take_one().token)
    assert not waiter.is_done
    world.clock.until_parked()
    world.queue.retry_where(EntryFilter(pid=pid))
    world.queue.complete(sched_id, "crashed", token=world.take_one().token)
    entry = waiter.outcome()
    assert (entry.state, entry.exit_kind, entry.attempt) == ("completed", "crashed", 2)


@pytest.mark.parametrize(("sched_id", "error"), [(99, SchedUnknownId), (True, SchedInvalidPayload)])
def test_waiting_for_nothing_is_refused(world: World, sched_id: int, error: type[RotaError]) -> None:
    world.put(world.agent())
    with pytest.raises(error):
        world.queue.wait(sched_id, 5.0)
