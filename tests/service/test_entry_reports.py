"""Everything about one entry: its attempts, what they used, its relatives, also where the journal is pruned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from rota.errors import RotaError, SchedInvalidPayload, SchedUnknownId, StaleClaim
from rota.kernel import Kernel, RunReport, ScheduleSpec
from rota.kernel.entry_relations import CHILDREN_MAX
from rota.model.entry_report import EntryReport
from rota.model.run_failures import ERROR_CHARS_MAX, OUTPUT_CHARS_MAX, TRACEBACK_CHARS_MAX, failure_in
from rota.model.work import Backoff, ReadyEntry
from rota.service.entry_reports import entry_report
from tests.graph.durable_worlds import count_work_note
from tests.kernel.world import START, World

NO_WAIT = Backoff(base_s=0.0)
RETRIED: dict[str, Any] = {"max_attempts": 2, "retry_on": ("failed", "crashed"), "backoff": NO_WAIT}


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.store.close()


@pytest.fixture
def pid(world: World) -> int:
    return world.agent("coder")


def shown(world: World, sched_id: int) -> EntryReport:
    return entry_report(world.kernel.store, world.kernel.clock, sched_id)


def end(world: World, run: ReadyEntry, **report: Any) -> None:
    """End a run as a supervisor does."""
    assert run.token is not None
    (answer,) = world.dispatcher.turn(
        [RunReport(sched_id=run.sched_id, token=run.token, **report)], worker_id="worker", max_n=0
    ).answers
    assert not isinstance(answer, RotaError)


def test_each_attempt_has_its_worker_times_error_and_usage_and_the_entry_their_sum(world: World, pid: int) -> None:
    sched_id = world.put(pid, payload={"n": 1}, **RETRIED)
    first = world.take_one(worker_id="box-a")
    world.kernel.supervision.began(
        sched_id, first.token or 0, slot="s1", runner="command", os_pid=42, advisories=["no control group"]
    )
    world.clock.advance(2)
    failed = {"error": "exited with code 3", "exit_code": 3, "output_tail": "oh no\n", "advisories": ["no usage found"]}
    end(world, first, exit_kind="failed", result=failed, usage={"tokens": 7}, wall_ms=1_900, cpu_ms=50)
    world.clock.advance(1)
    second = world.take_one(worker_id="box-b")
    world.queue.charge(sched_id, {"tokens": 5, "cost_micro": 20}, token=second.token)
    raised = {"error": "ValueError: no", "type": "ValueError", "traceback": "File x\n"}
    end(world, second, exit_kind="failed", result=raised, outcome="timed_out", usage={"tokens": 1}, stopped_by="TERM")
    found = shown(world, sched_id)
    one, two = found.attempts
    assert (one.attempt, one.worker_id, one.slot, one.runner, one.os_pid) == (1, "box-a", "s1", "command", 42)
    assert (one.claimed_at, one.started_at, one.ended_at) == (START, START, START + 2)
    assert (one.ended, one.exit_kind, one.wall_ms, one.cpu_ms) == ("retry", "failed", 1_900, 50)
    assert (one.error, one.exit_code, one.output_tail) == ("exited with code 3", 3, "oh no\n")
    assert (one.usage, one.advisories) == ({"tokens": 7}, ("no control group", "no usage found"))
    assert (two.attempt, two.worker_id, two.ended, two.outcome) == (2, "box-b", "failed", "timed_out")
    assert (two.error, two.error_type, two.traceback) == ("ValueError: no", "ValueError", "File x\n")
    assert (two.usage, two.stopped_by) == ({"tokens": 6, "cost_micro": 20}, "TERM")
    assert (found.usage, found.agent) == ({"tokens": 13, "cost_micro": 20}, "coder")
    assert found.advisories == ("no control group", "no usage found")
    assert (found.entry.status, found.not_retried) == ("failed", "it was attempt 2 of 2")
    assert (found.history[0].words, found.history_is_complete) == ("enqueued", True)


def test_an_attempt_has_the_settings_that_are_in_force_now(world: World, pid: int) -> None:
    sched_id = world.put(pid)
    token = world.take_one().token or 0
    runs = world.kernel.supervision
    runs.began(sched_id, token, slot="s1", runner="command", advisories=["no usage found"], enforced=["weight = 1"])
    world.clock.advance(2)
    runs.settings_changed(sched_id, token, advisories=["quota is cooperative"], enforced=["weight = 2"] * 99)
    (attempt,) = (found := shown(world, sched_id)).attempts
    assert (attempt.started_at, attempt.advisories) == (START, ("quota is cooperative",))
    assert attempt.enforced == ("weight = 2",) * 20
    assert found.history[-1].words.startswith("run 1 has other cpu settings: weight = 2; ")
    with pytest.raises(StaleClaim):
        runs.settings_changed(sched_id, token + 1, enforced=["weight = 3"])
    runs.settings_changed(sched_id, token)
    assert shown(world, sched_id).history[-1].words == "run 1 has other cpu settings: none is left"


def test_a_claim_that_expired_and_a_run_that_yielded_are_told_apart(world: World, pid: int) -> None:
    sched_id = world.put(pid, **RETRIED)
    run = world.take_one()
    end(world, run, back="yield")
    world.take_one(claim_timeout_s=10)
    world.clock.advance(11)
    world.queue.upkeep()
    world.take_one(worker_id="other")
    found = shown(world, sched_id)
    assert [(each.attempt, each.ended, each.exit_kind) for each in found.attempts] == [
        (1, "yield", None),
        (1, "reclaim", "crashed"),
        (2, None, None),
    ]
    assert "its claim expired" in (found.attempts[1].error or "")
    assert (found.entry.status, found.attempts[2].worker_id) == ("running", "other")


def test_a_run_that_works_shows_how_far_it_is_and_what_it_waits_for(world: World, pid: int) -> None:
    world.contexts.create(bound_to="name", bound_id="api", unit="requests", budget=1, period_s=60)
    sched_id = world.put(pid)
    token = world.take_one().token or 0
    world.kernel.supervision.progress(sched_id, token, 0.25, "reading")
    world.kernel.supervision.progress(sched_id, token, 0.5, "writing")
    world.kernel.supervision.acquire(sched_id, token, "api", {"requests": 1}, key="1")
    world.kernel.supervision.acquire(sched_id, token, "api", {"requests": 1}, key="2")
    found = shown(world, sched_id)
    assert found.progress is not None
    assert (found.progress.fraction, found.progress.text) == (0.5, "writing")
    assert [(use.name, use.granted_at is None) for use in found.limits] == [("api", False), ("api", True)]
    ((running,), total) = world.queue.running()
    assert (total, running.agent, running.progress) == (1, "coder", found.progress)
    assert [use.name for use in running.waits_for] == ["api"]
    world.clock.advance(1)
    world.queue.complete(sched_id, "completed", token=token)
    assert (shown(world, sched_id).progress, shown(world, sched_id).limits) == (None, ())
    assert world.queue.running() == ([], 0)


def test_relatives_have_their_agents_and_statuses(world: World, pid: int) -> None:
    world.projects.create("lab", name="The Lab")
    child = world.agent("child", project_id="lab")
    parent = world.put(world.agent("parent", project_id="lab"))
    run = world.take_one()
    ids = [world.put(child, parent_id=parent, priority=n) for n in range(2)]
    last = world.put(child, after=tuple(ids))
    world.queue.complete(world.take(1)[0].sched_id, "completed")
    found = shown(world, parent)
    assert [(each.sched_id, each.agent, each.status) for each in found.children] == [
        (ids[0], "child", "ready"),
        (ids[1], "child", "succeeded"),
    ]
    own = shown(world, ids[0])
    assert own.parent is not None
    assert (own.parent.sched_id, own.parent.agent, own.parent.status) == (parent, "parent", "running")
    assert (own.project, own.entry.project_id) == ("The Lab", "lab")
    assert [(each.sched_id, each.status) for each in shown(world, last).after] == [
        (ids[0], "ready"),
        (ids[1], "succeeded"),
    ]
    assert run.sched_id == parent
    assert shown(world, world.put(pid)).children == ()


def test_a_retried_copy_is_a_child_of_the_same_parent_and_many_children_are_cut(world: World, pid: int) -> None:
    parent = world.put(pid)
    world.take_one()
    failed = world.put(pid, parent_id=parent)
    world.queue.complete(world.take_one().sched_id, "failed")
    copy = world.queue.retry(failed)
    assert [each.sched_id for each in shown(world, parent).children] == [failed, copy]
    world.queue.enqueue_many([ScheduleSpec(pid, parent_id=parent)] * (CHILDREN_MAX - 2))
    assert shown(world, parent).children_are_complete
    world.put(pid, parent_id=parent)
    found = shown(world, parent)
    assert (len(found.children), found.children_are_complete) == (CHILDREN_MAX, False)


def test_an_expired_and_a_cancelled_entry_have_no_attempts(world: World, pid: int) -> None:
    expired, cancelled = world.put(pid, deadline=START + 1), world.put(pid)
    world.queue.request_cancel(cancelled, by="ann")
    world.clock.advance(2)
    world.queue.gc_expired()
    assert [(shown(world, each).entry.status, shown(world, each).attempts) for each in (expired, cancelled)] == [
        ("expired", ()),
        ("cancelled", ()),
    ]
    assert shown(world, cancelled).history[-1].words == "cancelled (ann)"


def test_without_the_journal_the_row_says_what_it_has(world: World, pid: int) -> None:
    sched_id = world.put(pid, **RETRIED)
    for error in ("first", "second"):
        run = world.take_one()
        end(world, run, exit_kind="failed", result={"error": error, "traceback": f"File {error}\n"})
    world.clock.advance(1_000)
    world.put(pid)
    world.kernel.retention.prune(events_older_than_s=1, entries_older_than_s=100_000)
    found = shown(world, sched_id)
    assert [(each.attempt, each.error, each.traceback) for each in found.attempts] == [
        (1, "first", None),
        (2, "second", "File second\n"),
    ]
    assert not found.history_is_complete


def test_an_entry_of_a_graph_names_its_run_and_its_node() -> None:
    world = count_work_note()
    with world.runner("r7") as runner:
        runner.step()
        (entry,) = world.entries()
        node = entry_report(world.kernel.store, world.kernel.clock, entry.sched_id).graph
        assert node is not None
        assert (node.run_id, node.graph, node.component, node.epoch_id) == (
            "r7",
            "world",
            "work",
            entry.payload["epoch"],
        )
        world.work()


def test_an_entry_that_is_not_there_is_an_error(world: World) -> None:
    with pytest.raises(SchedUnknownId):
        shown(world, 99)
    with pytest.raises(SchedInvalidPayload):
        entry_report(world.kernel.store, world.kernel.clock, "7")  # type: ignore[arg-type]


def test_what_is_kept_of_a_failure_is_bounded_and_says_what_was_cut() -> None:
    long = {"error": "e" * 5_000, "traceback": "t" * 9_000, "output_tail": "o" * 9_000, "advisories": ["a"] * 99}
    kept = failure_in(long)
    assert kept.error == "e" * ERROR_CHARS_MAX + " … (cut)"
    assert kept.traceback == "(cut) … " + "t" * TRACEBACK_CHARS_MAX
    assert kept.output_tail == "(cut) … " + "o" * OUTPUT_CHARS_MAX
    assert len(kept.advisories) == 10
    odd: list[Any] = [None, 5, "text", [], {"error": 5, "exit_code": True, "traceback": "", "advisories": "x"}]
    assert {failure_in(each) for each in odd} == {failure_in({})}


def test_a_report_is_the_same_after_a_trip_over_the_wire(world: World, pid: int) -> None:
    world.put(pid, tags=("x",))
    found = shown(world, world.ended(pid, "failed", parent_id=1))
    assert msgspec.json.decode(msgspec.json.encode(found), type=EntryReport) == found
    assert isinstance(world.kernel, Kernel)


def test_the_history_is_whole_when_the_clocks_of_hosts_differ_a_little(world: World, pid: int) -> None:
    ids: list[int] = []
    for ahead_s in (0.03, -0.03) * 20:  # every second event is of a host whose clock is behind
        world.clock.jump(ahead_s)
        world.clock.advance(0.001)
        ids.append(world.put(pid))
    for ahead_s in (0.03, -0.03) * 20:
        world.clock.jump(ahead_s)
        world.clock.advance(0.001)
        (run,) = world.take(1)
        end(world, run, exit_kind="completed")
    for sched_id in ids:
        found = shown(world, sched_id)
        assert found.history_is_complete
        assert [attempt.ended for attempt in found.attempts] == ["completed"]
