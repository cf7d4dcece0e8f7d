"""A supervisor's turn: runs and their agents move together, in one commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rota.errors import LedgerInvalidAmount, SchedInvalidPayload, SchedUnknownId, StaleClaim
from rota.kernel import KernelState, RunReport, ScheduleSpec
from rota.kernel.turn import TurnResult
from rota.model.work import ReadyEntry
from tests.kernel.world import START, World


def turn(world: World, *reports: RunReport, max_n: int = 1, **how: Any) -> TurnResult:
    return world.dispatcher.turn(reports, worker_id="worker", max_n=max_n, **how)


def began(world: World, **how: Any) -> ReadyEntry:
    (entry,) = turn(world, **how).entries
    return entry


def done(entry: ReadyEntry, **how: Any) -> RunReport:
    assert entry.token is not None
    return RunReport(sched_id=entry.sched_id, token=entry.token, **how)


def moves(world: World, pid: int) -> list[str]:
    facts = world.journal.tail(pid=pid)
    return [event.payload["new_state"] for event in facts if event.kind == "kernel.process.transitioned"]


def test_an_agent_runs_while_its_run_lives_and_is_ready_again_after_it(world: World) -> None:
    pid = world.agent()
    world.put(pid)
    entry = began(world)
    assert world.agents.get(pid).state == "RUNNING"
    assert turn(world, done(entry)).answers == [("dispatched", "completed")]
    assert world.agents.get(pid).state == "READY"
    assert moves(world, pid) == ["RUNNING", "SUSPENDED", "READY"]


def test_an_agent_whose_next_run_begins_with_the_end_of_its_last_does_not_move(world: World) -> None:
    pid = world.agent()
    world.put(pid)
    world.put(pid)
    first = began(world)
    result = turn(world, done(first))
    assert [entry.pid for entry in result.entries] == [pid]
    assert moves(world, pid) == ["RUNNING"]


def test_an_agent_with_two_runs_rests_only_when_both_have_ended(world: World) -> None:
    pid = world.agent()
    world.put(pid)
    world.put(pid)
    first, second = turn(world, max_n=2).entries
    turn(world, done(first), max_n=0)
    assert world.agents.get(pid).state == "RUNNING"
    turn(world, done(second), max_n=0)
    assert world.agents.get(pid).state == "READY"


def test_a_one_shot_agent_ends_with_its_entry_and_what_else_waits_for_it_is_cancelled(world: World) -> None:
    pid = world.agent(rerunnable=False)
    world.put(pid, max_attempts=1)
    other = world.put(pid)
    entry = began(world)
    turn(world, done(entry, exit_kind="failed"), max_n=0)
    agent = world.agents.get(pid)
    assert (agent.state, agent.exit_kind) == ("DEAD", "failed")
    assert world.queue.get(other).state == "cancelled"


def test_a_one_shot_agent_whose_run_will_be_retried_lives_on(world: World) -> None:
    pid = world.agent(rerunnable=False)
    world.put(pid)
    turn(world, done(began(world), exit_kind="crashed"), max_n=0)
    assert world.agents.get(pid).state == "READY"


def test_a_run_that_yields_goes_back_without_counting_an_attempt(world: World) -> None:
    pid = world.agent()
    sched_id = world.put(pid)
    entry = began(world)
    answers = turn(world, done(entry, back="yield", back_at=START + 30), max_n=0).answers
    assert answers == [("dispatched", "queued")]
    again = world.queue.get(sched_id)
    assert (again.state, again.hold, again.runnable_at, again.attempt) == ("queued", "time", START + 30, 0)
    assert world.agents.get(pid).state == "READY"


def test_a_run_that_was_asked_to_stop_is_not_put_back(world: World) -> None:
    sched_id = world.put(world.agent())
    entry = began(world)
    world.queue.request_cancel(sched_id)
    assert turn(world, done(entry, back="preempt"), max_n=0).answers == [("dispatched", "completed")]
    assert world.queue.get(sched_id).exit_kind == "cancelled"


def test_over_budget_is_not_tried_again_though_failures_are(world: World) -> None:
    pid = world.agent()
    over, failed = (world.put(pid, retry_on=("failed",)) for _ in range(2))
    first, second = turn(world, max_n=2).entries
    turn(world, done(first, exit_kind="failed", outcome="over_budget"), done(second, exit_kind="failed"), max_n=0)
    assert (world.queue.get(over).state, world.queue.get(failed).state) == ("completed", "queued")


def test_a_stale_report_changes_nothing_and_does_not_affect_others(world: World) -> None:
    world.put(world.agent())
    world.put(world.agent())
    first, second = turn(world, max_n=2).entries
    stale = RunReport(sched_id=first.sched_id, token=99_999, usage={"tokens": 5})
    unknown = RunReport(sched_id=12_345, token=1)
    answers = turn(world, stale, unknown, done(second), done(second), max_n=0).answers
    assert [type(answer) for answer in answers] == [StaleClaim, SchedUnknownId, tuple, StaleClaim]
    assert "the entry runs again elsewhere" in str(answers[0])
    assert "The entry has ended; discard this result." in str(answers[3])
    assert world.queue.get(first.sched_id).state == "dispatched"


def test_what_was_measured_is_charged_with_the_end(world: World) -> None:
    pid = world.agent()
    world.ledger.create(pid, {"tokens": 100, "wall_s": 10})
    world.put(pid)
    turn(world, done(began(world), usage={"tokens": 7, "wall_s": 3, "cpu_s": 2}), max_n=0)
    assert {line.dim: line.used for line in world.ledger.get(pid)} == {"tokens": 7, "wall_s": 3}
    (ended,) = [event for event in world.journal.tail(pid=pid) if event.kind == "kernel.run.ended"]
    assert ended.payload["usage"] == {"tokens": 7, "wall_s": 3}  # no budget counts cpu_s


def test_time_is_charged_to_a_project_that_budgets_it(world: World) -> None:
    world.projects.create("lab")
    world.ledger.set_budget("project", "lab", "cpu_s", 100)
    world.put(world.agent(project_id="lab"))
    turn(world, done(began(world), usage={"cpu_s": 2}), max_n=0)
    assert [(line.dim, line.used) for line in world.ledger.budgets()] == [("cpu_s", 2)]


def test_an_idle_turn_writes_nothing(world: World) -> None:
    world.agent()
    before = world.journal.cursor()
    assert turn(world) == TurnResult([], [])
    assert world.journal.cursor() == before


def test_a_waiting_turn_comes_back_with_what_is_enqueued(world: World) -> None:
    pid = world.agent()
    waiter = world.waiter_of(lambda: turn(world, wait_s=1_000.0).entries)
    sched_id = world.put(pid)
    assert [entry.sched_id for entry in waiter.outcome()] == [sched_id]
    assert world.agents.get(pid).state == "RUNNING"


def test_what_ended_is_durable_before_the_waiting_begins(world: World) -> None:
    sched_id = world.put(world.agent())
    entry = began(world)
    waiter = world.waiter_of(lambda: turn(world, done(entry), wait_s=1_000.0).entries)
    assert world.queue.get(sched_id).state == "completed"
    world.queue.nudge("worker")
    assert waiter.outcome() == []


def test_peek_returns_what_a_claim_would_and_changes_nothing(world: World) -> None:
    low, high = world.put(world.agent(), priority=1), world.put(world.agent(), priority=5)
    paused = world.agent()
    world.put(paused, priority=9)
    world.agents.pause(paused, "anna")
    before = world.journal.cursor()
    assert [entry.sched_id for entry in world.queue.peek(5)] == [high, low]
    assert world.journal.cursor() == before
    assert world.take_ids() == [high, low]


# --- nudges --------------------------------------------------------------------------------------


def test_a_nudge_ends_a_waiting_claim_which_claims_nothing(world: World) -> None:
    waiter = world.waiter_of(lambda: world.take(worker_id="worker", incarnation="a", wait_s=1_000.0))
    other = world.waiter_of(lambda: world.take(worker_id="other", wait_s=1_000.0))
    world.queue.nudge("worker", "b")  # another incarnation
    world.queue.nudge("worker", "a")
    assert waiter.outcome() == []
    assert not other.is_done
    world.put(world.agent())
    assert len(other.outcome()) == 1


def test_a_nudge_that_comes_too_early_is_not_lost_and_counts_once(world: World) -> None:
    world.queue.nudge("worker")
    world.queue.nudge("worker")
    assert world.take(worker_id="worker", wait_s=1_000.0) == []
    waiter = world.waiter_of(lambda: world.take(worker_id="worker", wait_s=1_000.0))
    sched_id = world.put(world.agent())
    assert [entry.sched_id for entry in waiter.outcome()] == [sched_id]


def test_a_nudge_does_not_keep_a_claim_from_what_is_there(world: World) -> None:
    sched_id = world.put(world.agent())
    world.queue.nudge("worker")
    assert world.take_ids(worker_id="worker", wait_s=1_000.0) == [sched_id]


# --- recovery, checkpoints -------------------------------------------------------------------------


def test_recovery_moves_only_agents_without_a_live_run(world: World) -> None:
    lost, held = world.agent("lost"), world.agent("held")
    world.put(lost)
    world.put(held)
    turn(world, max_n=2, claim_timeout_s=10.0)
    assert world.kernel.supervision.recover() == []
    held_id = next(e.sched_id for e in world.queue.list(state="dispatched")[0] if e.pid == held)
    world.clock.advance(11)
    world.queue.upkeep()
    world.clock.advance(2)
    world.queue.force_claim(held_id, worker_id="other")
    assert world.kernel.supervision.recover() == [lost]
    assert (world.agents.get(lost).state, world.agents.get(held).state) == ("READY", "RUNNING")


def test_a_checkpoint_is_given_to_the_next_attempt_and_is_the_result_of_a_run_that_gave_none(world: World) -> None:
    sched_id = world.put(world.agent(), max_attempts=2)
    entry = began(world)
    assert entry.result is None
    world.kernel.supervision.checkpoint(sched_id, entry.token or 0, {"page": 3})
    turn(world, done(entry, exit_kind="crashed"), max_n=0)
    world.clock.advance(1_000)
    again = began(world)
    assert again.result == {"page": 3}
    turn(world, done(again, exit_kind="crashed"), max_n=0)
    assert (world.queue.get(sched_id).state, world.queue.get(sched_id).result) == ("completed", {"page": 3})


def test_a_result_takes_the_place_of_the_checkpoint(world: World) -> None:
    sched_id = world.put(world.agent())
    entry = began(world)
    world.kernel.supervision.checkpoint(sched_id, entry.token or 0, {"page": 3})
    turn(world, done(entry, result="all of it"), max_n=0)
    assert world.queue.get(sched_id).result == "all of it"


@pytest.mark.parametrize("verb", ["checkpoint", "began", "settings_changed", "rest"])
def test_a_worker_that_lost_its_claim_can_change_nothing(world: World, verb: str) -> None:
    sched_id = world.put(world.agent())
    entry = began(world, claim_timeout_s=5.0)
    world.clock.advance(6)
    world.queue.upkeep()
    supervision, token = world.kernel.supervision, entry.token or 0
    calls: dict[str, Callable[[], object]] = {
        "checkpoint": lambda: supervision.checkpoint(sched_id, token, {}),
        "began": lambda: supervision.began(sched_id, token, slot="s", runner="command"),
        "settings_changed": lambda: supervision.settings_changed(sched_id, token, enforced=["weight = 2"]),
        "rest": lambda: supervision.rest(sched_id, token, waiting=True),
    }
    cursor = world.journal.cursor()
    with pytest.raises(StaleClaim):
        calls[verb]()
    assert world.journal.cursor() == cursor


def test_a_quarantined_agent_is_paused_and_the_journal_says_until_when(world: World) -> None:
    pid = world.agent()
    world.put(pid)
    world.kernel.supervision.quarantine(pid, 5, START + 600)
    assert turn(world).entries == []
    assert [agent.pid for agent in world.agents.paused("quarantine")] == [pid]
    (fact,) = [event for event in world.journal.tail(pid=pid) if event.kind == "kernel.run.quarantined"]
    assert fact.payload == {"failures": 5, "until_at": START + 600}


def test_new_metadata_of_a_project_end_the_quarantine_of_its_agents_whose_settings_are_invalid(world: World) -> None:
    for name in ("lab", "other"):
        world.projects.create(name)
    mine, failing, theirs = (world.agent(name, project_id=name) for name in ("lab", "lab", "other"))
    for pid in (mine, theirs):
        world.kernel.supervision.quarantine(pid, reason="its project has invalid settings")
    world.kernel.supervision.quarantine(failing, 5, START + 600)
    entries = [world.put(pid) for pid in (mine, failing, theirs)]
    world.projects.update("lab", name="Lab")
    assert turn(world, max_n=3).entries == []
    world.projects.update("lab", metadata={"cpu": {"weight": 2.0}})
    assert [entry.sched_id for entry in turn(world, max_n=3).entries] == entries[:1]
    assert [agent.pid for agent in world.agents.paused("quarantine", prefix=True)] == [failing, theirs]
    tables, journal = world.store.read(lambda tx: (KernelState.from_tables(tx), KernelState.from_journal(tx)))
    assert journal.at(world.now) == tables.at(world.now)


# --- children --------------------------------------------------------------------------------------


def lab(world: World, budget: int = 100) -> int:
    world.projects.create("lab")
    world.ledger.set_budget("project", "lab", "tokens", budget)
    return world.agent(project_id="lab")


def child_of(parent: ReadyEntry, pid: int, **spec: Any) -> ScheduleSpec:
    return ScheduleSpec(pid, parent_id=parent.sched_id, **spec)


def test_a_child_runs_on_what_its_parent_lent_though_nothing_else_is_free(world: World) -> None:
    pid = lab(world)
    world.put(pid, ceiling={"tokens": 100})
    parent = began(world)
    assert world.queue.get(world.put(pid, ceiling={"tokens": 40})).state == "queued"
    assert turn(world).entries == []  # everything is reserved for the parent
    child_id = world.kernel.supervision.spawn(child_of(parent, pid, priority=9), parent.token or 0, {"tokens": 40})
    (child,) = turn(world, max_n=5).entries
    assert (child.sched_id, child.ceiling) == (child_id, {"tokens": 40})
    assert world.queue.get(parent.sched_id).ceiling == {"tokens": 60}


def test_what_a_child_left_goes_back_to_its_parent_when_it_goes_on(world: World) -> None:
    pid = lab(world)
    world.put(pid, ceiling={"tokens": 100})
    parent = began(world)
    world.kernel.supervision.spawn(child_of(parent, pid), parent.token or 0, {"tokens": 40})
    assert world.kernel.supervision.rest(parent.sched_id, parent.token or 0, waiting=True) == {}
    assert world.agents.get(pid).state == "WAITING"
    (child,) = turn(world).entries
    world.queue.charge(child.sched_id, {"tokens": 25}, token=child.token)
    turn(world, done(child), max_n=0)
    assert world.kernel.supervision.rest(parent.sched_id, parent.token or 0, waiting=False) == {"tokens": 15}
    assert world.queue.get(parent.sched_id).ceiling == {"tokens": 75}
    assert world.kernel.supervision.rest(parent.sched_id, parent.token or 0, waiting=False) == {}  # once


def test_all_attempts_of_a_child_count_against_what_it_was_lent(world: World) -> None:
    pid = lab(world)
    world.put(pid, ceiling={"tokens": 100})
    parent = began(world)
    world.kernel.supervision.spawn(child_of(parent, pid), parent.token or 0, {"tokens": 40})
    for exit_kind in ("crashed", "completed"):
        (child,) = turn(world).entries
        world.queue.charge(child.sched_id, {"tokens": 15}, token=child.token)
        turn(world, done(child, exit_kind=exit_kind), max_n=0)
        world.clock.advance(10)
        world.queue.heartbeat(parent.sched_id, parent.token or 0)
    assert world.kernel.supervision.rest(parent.sched_id, parent.token or 0, waiting=False) == {"tokens": 10}


def test_a_loan_above_what_is_left_is_refused_and_nothing_is_enqueued(world: World) -> None:
    pid = lab(world)
    world.put(pid, ceiling={"tokens": 50})
    parent = began(world)
    world.queue.charge(parent.sched_id, {"tokens": 20}, token=parent.token)
    before = world.queue.counts()
    with pytest.raises(LedgerInvalidAmount, match="more than the 30 left to the run"):
        world.kernel.supervision.spawn(child_of(parent, pid), parent.token or 0, {"tokens": 31})
    assert world.queue.counts() == before


def test_a_child_must_name_its_parent(world: World) -> None:
    with pytest.raises(SchedInvalidPayload, match="parent_id"):
        world.kernel.supervision.spawn(ScheduleSpec(world.agent()), 1)
