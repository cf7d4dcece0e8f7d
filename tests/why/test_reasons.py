"""Each reason by example: what is said, with which numbers, and what would change it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from rota import store
from rota.clock import ManualClock
from rota.kernel import Completion, Kernel, ScheduleSpec
from rota.kernel.affinity import AFFINITY_WAIT_S
from rota.model import reasons
from rota.model.explanation import Explanation
from rota.model.reasons import BLOCKING, ORDERING, Blocking, Ordering
from rota.model.work import ProjectConstraint
from rota.policy.contract import Policy
from rota.service import entry_history
from rota.service.dispatcher import Dispatcher
from rota.service.explain import NAMED_MAX, explain
from rota.service.ranked_pass import HEADS_MAX, WINDOW_MAX

START_AT = 1_000.0


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel(store.open(":memory:", clock=ManualClock(START_AT)))
    made.projects.create("p")
    yield made
    made.store.close()


@pytest.fixture
def pid(kernel: Kernel) -> int:
    return kernel.agents.create("a", project_id="p")


def why(kernel: Kernel, spec: ScheduleSpec, **asked: object) -> Explanation:
    return explain(Dispatcher(kernel), kernel.queue.enqueue(spec), **asked)  # type: ignore[arg-type]  # by name


# --- blocking ------------------------------------------------------------------------------------


def test_one_whose_time_has_not_come_starts_then(kernel: Kernel, pid: int) -> None:
    told = why(kernel, ScheduleSpec(pid, runnable_at=START_AT + 60))
    assert told.blocking == (reasons.NotYetRunnable(runnable_at=START_AT + 60),)
    assert told.estimate.starts_at == START_AT + 60
    assert told.changes[0].arguments == {"sched_id": told.sched_id, "runnable_at": START_AT}


def test_one_that_backs_off_says_until_when(kernel: Kernel, pid: int) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    (run,) = kernel.queue.claim(worker_id="w")
    kernel.queue.complete(sched_id, "crashed", token=run.token)
    until_at = kernel.queue.get(sched_id).runnable_at
    told = explain(Dispatcher(kernel), sched_id)
    assert told.blocking == (reasons.BackingOff(until_at=until_at, attempt=1),)
    assert [step.words for step in told.story][1:] == [
        "claimed by w (attempt 1), chosen by strict",
        "back in the queue: retry",
    ]


def test_one_that_waits_for_others_names_those_that_have_not_completed(kernel: Kernel, pid: int) -> None:
    first, second = (kernel.queue.enqueue(ScheduleSpec(pid, 9)) for _ in range(2))
    (run,) = kernel.queue.claim(worker_id="w")
    kernel.queue.complete(first, "completed", token=run.token)
    told = why(kernel, ScheduleSpec(pid, after=(first, second)))
    assert told.blocking == (reasons.AfterPredecessor(waiting_for=(second,)),)
    assert told.estimate.starts_at is None
    assert told.changes[0].words == f"let {second} complete"


def test_one_that_is_held_for_a_failed_one_can_be_released_and_what_is_proposed_does_it(
    kernel: Kernel, pid: int
) -> None:
    first, other = (kernel.queue.enqueue(ScheduleSpec(pid, 9)) for _ in range(2))
    held = kernel.queue.enqueue(ScheduleSpec(pid, after=(first, other), on_failed="hold"))
    kernel.queue.force_claim(first, worker_id="w")
    kernel.queue.complete(first, "failed")
    told = explain(Dispatcher(kernel), held)
    assert [change.words for change in told.changes] == [
        f"let {other} complete",
        f"let it run although {first} failed",
    ]
    assert (told.changes[1].verb, told.changes[1].arguments) == ("queue.release", {"sched_id": held})
    kernel.queue.cancel(other)
    kernel.queue.release(held)
    assert explain(Dispatcher(kernel), held).blocking == ()


def test_one_that_a_choosy_policy_was_shown_and_one_that_it_was_not_are_told_apart(kernel: Kernel, pid: int) -> None:
    """A policy need not pick anybody. Of an agent with much to do it is shown no more than the first few."""
    ids = kernel.queue.enqueue_many([ScheduleSpec(pid)] * (2 * HEADS_MAX))
    choosy = Policy(name="choosy", rank=lambda _snapshot: (), sentence="it takes nobody")
    first, last = (explain(Dispatcher(kernel, choosy), sched_id).ordering for sched_id in (ids[0], ids[-1]))
    assert first == (reasons.NotPicked(policy="choosy"),)
    assert last == (reasons.OutsideWindow(window=WINDOW_MAX),)


def test_the_level_at_which_a_budget_is_short_is_named_with_its_numbers(kernel: Kernel, pid: int) -> None:
    kernel.ledger.create(pid, {"tokens": 100})
    kernel.ledger.set_budget("project", "p", "tokens", 90, window_s=3_600)
    kernel.ledger.charge(pid, "tokens", 60)
    told = why(kernel, ScheduleSpec(pid, ceiling={"tokens": 50}))
    project, agent = told.blocking
    assert isinstance(project, reasons.OverBudget)
    assert isinstance(agent, reasons.OverBudget)
    assert (project.level, project.used, project.ask, project.limit) == ("project", 60, 50, 90)
    assert (agent.level, agent.used, agent.ask, agent.limit) == ("agent", 60, 50, 100)
    assert [change.words for change in told.changes] == [
        "raise tokens of project p from 90 to 110",
        f"raise tokens of agent {pid} from 100 to 110",
    ]
    assert told.changes[0].arguments["window_s"] == 3_600


def test_a_shared_limit_that_is_throttled_says_until_when(kernel: Kernel, pid: int) -> None:
    kernel.contexts.create(bound_to="name", bound_id="openai", budget=10, period_s=60)
    kernel.contexts.throttle("openai", 30.0)
    told = why(kernel, ScheduleSpec(pid, draws_on=("openai",)))
    assert told.blocking == (reasons.LimitExhausted(name="openai", until_at=START_AT + 30),)
    assert told.estimate.starts_at == told.changes[0].until_at == START_AT + 30


def test_an_agents_own_context_that_is_depleted_says_until_when(kernel: Kernel, pid: int) -> None:
    context = kernel.contexts.create(bound_to="agent", bound_id=pid, budget=10, period_s=60)
    kernel.contexts.charge(context.context_id, 10)
    told = why(kernel, ScheduleSpec(pid, expected={"tokens": 5}))
    (reason,) = told.blocking
    assert isinstance(reason, reasons.ContextDepleted)
    assert (reason.context_id, reason.until_at) == (context.context_id, START_AT + 60)


def test_a_workspace_that_is_held_says_by_whom_and_since_when(kernel: Kernel, pid: int) -> None:
    kernel.projects.add_workspace("w1", "p", "/srv/p")
    holder = kernel.queue.enqueue(ScheduleSpec(pid, workspace_mode="exclusive"))
    kernel.queue.claim(worker_id="w")
    assert isinstance(kernel.clock, ManualClock)
    kernel.clock.advance(5)
    told = why(kernel, ScheduleSpec(pid, workspace_mode="exclusive"))
    assert told.blocking == (reasons.WorkspaceTaken(workspace=None, held_by=(holder,), since_at=START_AT),)


def test_every_pause_above_an_entry_is_named_with_whoever_paused_it(kernel: Kernel, pid: int) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    kernel.agents.pause(pid, "ann")
    kernel.projects.move("p", "pause", by="bob")
    kernel.projects.pause_fleet("cy")
    told = explain(Dispatcher(kernel), sched_id)
    assert [(reason.level, reason.by) for reason in told.blocking if isinstance(reason, reasons.PausedBy)] == [
        ("agent", "ann"),
        ("project", "bob"),
        ("fleet", "cy"),
    ]
    assert [change.verb for change in told.changes] == ["agents.resume", "projects.move", "projects.resume_fleet"]


def test_caps_of_agent_project_and_kind_are_told_apart(kernel: Kernel, pid: int) -> None:
    kernel.queue.enqueue(ScheduleSpec(pid, kind="gpu"))
    kernel.queue.claim(worker_id="w", kinds=("gpu",))
    kernel.agents.update(pid, max_concurrent=1)
    kernel.projects.update("p", max_concurrent=1)
    kernel.projects.constrain("p", ProjectConstraint(max_by_kind={"gpu": 1}))
    told = why(kernel, ScheduleSpec(pid, kind="gpu"), kinds=("gpu",))
    caps = [reason for reason in told.blocking if isinstance(reason, reasons.CapReached)]
    levels = [(reason.level, reason.running, reason.cap) for reason in caps]
    assert levels == [("agent", 1, 1), ("project", 1, 1), ("kind", 1, 1)]


# --- ordering ------------------------------------------------------------------------------------


def test_those_that_go_first_are_counted_and_the_first_few_named(kernel: Kernel, pid: int) -> None:
    ids = [kernel.queue.enqueue(ScheduleSpec(pid, 5)) for _ in range(NAMED_MAX + 3)]
    told = why(kernel, ScheduleSpec(pid))
    (reason,) = told.ordering
    assert isinstance(reason, reasons.Outranked)
    assert (reason.ahead, reason.first, reason.policy) == (len(ids), tuple(ids[:NAMED_MAX]), "strict")
    assert reason.score == "priority 0, ready at once"
    assert told.position == len(ids) + 1
    assert [each.sched_id for each in told.ahead] == ids[:NAMED_MAX]
    assert told.changes[0].arguments == {"sched_id": told.sched_id, "priority": 6}


def test_an_estimate_goes_by_the_pace_of_late(kernel: Kernel, pid: int) -> None:
    kernel.queue.enqueue_many([ScheduleSpec(pid, 5) for _ in range(20)])
    assert isinstance(kernel.clock, ManualClock)
    for _ in range(10):  # two in every ten seconds
        runs = kernel.queue.claim(worker_id="w", max_n=1)
        kernel.queue.complete_many([Completion(run.sched_id, token=run.token) for run in runs])
        kernel.clock.advance(5)
    told = why(kernel, ScheduleSpec(pid))
    assert told.estimate.starts_at == pytest.approx(told.now + 10 * 5)
    assert told.estimate.basis == "10 before it; 10 were handed out in the last 50 s"


def test_without_a_slot_of_its_kind_nobody_who_asks_can_take_it(kernel: Kernel, pid: int) -> None:
    told = why(kernel, ScheduleSpec(pid, kind="gpu"))
    assert told.ordering == (reasons.NoSlot(kind="gpu", busy=0),)
    assert explain(Dispatcher(kernel), told.sched_id, kinds=("gpu",)).starts


def test_one_that_is_kept_for_a_worker_says_for_whom_and_until_when_and_its_worker_may_have_it(
    kernel: Kernel, pid: int
) -> None:
    kernel.queue.claim(worker_id="box")
    told = why(kernel, ScheduleSpec(pid, affinity="box"))
    assert told.blocking == ()
    assert told.ordering == (reasons.WaitsForWorker(worker_id="box", until_at=START_AT + AFFINITY_WAIT_S),)
    assert told.ordering[0].sentence() == "it is kept for worker box until 1120.0"
    assert told.estimate.starts_at == START_AT + AFFINITY_WAIT_S
    assert [step.words for step in told.story] == ["enqueued, held: for its worker"]
    assert explain(Dispatcher(kernel), told.sched_id, worker_id="box").starts
    (change,) = told.changes
    assert (change.verb, change.arguments) == ("queue.release", {"sched_id": told.sched_id})
    kernel.queue.release(**change.arguments)
    again = explain(Dispatcher(kernel), told.sched_id)
    assert again.starts
    assert again.story[-1].words == "ready: its wait (for its worker) is over"


def test_of_two_kept_for_a_worker_with_one_slot_the_second_is_told_that_it_is_kept_on(kernel: Kernel, pid: int) -> None:
    kernel.queue.claim(worker_id="box")
    kernel.queue.enqueue(ScheduleSpec(pid, 5, affinity="box"))
    second = kernel.queue.enqueue(ScheduleSpec(pid, affinity="box"))
    told = explain(Dispatcher(kernel), second, worker_id="box")
    assert [type(reason) for reason in told.ordering] == [reasons.WaitsForWorker]


def test_what_those_before_it_take_away_is_told(kernel: Kernel, pid: int) -> None:
    kernel.agents.update(pid, max_concurrent=1)
    first = kernel.queue.enqueue(ScheduleSpec(pid))
    told = why(kernel, ScheduleSpec(pid), max_n=5)
    cap = reasons.CapReached(level="agent", owner=str(pid), running=1, cap=1)
    assert told.ordering == (reasons.CrowdedOut(by=(first,), then=(cap,)),)
    assert told.blocking == ()


def test_one_that_the_policy_is_not_shown_is_taken_when_all_that_it_was_shown_are_refused(kernel: Kernel) -> None:
    """A policy is shown as many owners as it may be, longest unserved first; all of those are refused, one by one."""
    kernel.contexts.create(bound_to="name", bound_id="openai", budget=10, period_s=60)
    kernel.contexts.throttle("openai", 30.0)
    pids = [kernel.agents.create(f"a{at}") for at in range(WINDOW_MAX + 1)]
    kernel.queue.enqueue_many([ScheduleSpec(pid, draws_on=("openai",)) for pid in pids[:-1]])
    desk = Dispatcher(kernel, "round_robin")
    last = kernel.queue.enqueue(ScheduleSpec(pids[-1]))
    told = explain(desk, last)
    assert (told.blocking, told.ordering, told.position) == ((), (), 1)
    assert [entry.sched_id for entry in desk.claim("anybody")] == [last]


# --- stories -------------------------------------------------------------------------------------


def test_a_finished_entry_tells_its_story(kernel: Kernel, pid: int) -> None:
    sched_id = kernel.queue.enqueue_many([ScheduleSpec(pid) for _ in range(3)])[1]
    kernel.queue.change(sched_id, priority=7)
    (run,) = kernel.queue.claim(worker_id="w")
    kernel.queue.charge(sched_id, {"tokens": 1_500}, token=run.token)
    kernel.queue.request_cancel(sched_id, by="ann")
    kernel.queue.complete(sched_id, "cancelled", token=run.token, outcome="stopped")
    kernel.queue.claim(worker_id="w", max_n=9)
    told = explain(Dispatcher(kernel), sched_id)
    assert told.blocking == (reasons.NotQueued(state="completed"),)
    assert [step.words for step in told.story] == [
        "enqueued",
        "changed: priority = 7",
        "claimed by w (attempt 1), chosen by strict",
        "used 1,500 tokens",
        "asked to stop by ann",
        "ended: cancelled (stopped)",
    ]
    assert told.story_is_whole
    assert told.estimate.basis == "it is completed"


def test_a_running_entry_says_that_it_runs_and_needs_nothing(kernel: Kernel, pid: int) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    kernel.queue.claim(worker_id="w")
    told = explain(Dispatcher(kernel), sched_id)
    assert (told.state, told.changes, told.position) == ("dispatched", (), None)
    assert told.estimate.starts_at == START_AT


def test_numbers_that_only_contain_its_own_are_not_its_story(kernel: Kernel, pid: int) -> None:
    ids = kernel.queue.enqueue_many([ScheduleSpec(pid) for _ in range(12)])
    kernel.queue.cancel(ids[10])  # 11, in whose number 1 occurs
    assert [step.words for step in explain(Dispatcher(kernel), ids[0]).story] == ["enqueued"]


@pytest.mark.parametrize("more", [0, 1])
def test_a_long_stretch_of_the_journal_is_read_from_both_ends(
    kernel: Kernel, pid: int, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr(entry_history, "SCAN_MAX", 10)
    assert isinstance(kernel.clock, ManualClock)
    kernel.clock.advance(1)  # what was recorded before it is not looked at
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    for number in range(18 + more):
        kernel.journal.append(None, "mine.note", {"number": number})
    (run,) = kernel.queue.claim(worker_id="w")
    told = explain(Dispatcher(kernel), run.sched_id)
    assert [step.words for step in told.story] == ["enqueued", "claimed by w (attempt 1), chosen by strict"]
    assert (told.sched_id, told.story_is_whole) == (sched_id, not more)


def test_what_was_pruned_is_missing_and_said_to_be(kernel: Kernel, pid: int) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    assert isinstance(kernel.clock, ManualClock)
    kernel.clock.advance(100)
    kernel.queue.change(sched_id, priority=1)
    kernel.retention.checkpoint()
    kernel.retention.prune(events_older_than_s=50, entries_older_than_s=50)
    told = explain(Dispatcher(kernel), sched_id)
    assert [step.words for step in told.story] == ["changed: priority = 1"]
    assert not told.story_is_whole


# --- as JSON -------------------------------------------------------------------------------------


def test_an_explanation_survives_being_sent(kernel: Kernel, pid: int) -> None:
    kernel.queue.enqueue(ScheduleSpec(pid, 9))
    kernel.agents.update(pid, max_concurrent=1)
    for told in (why(kernel, ScheduleSpec(pid, runnable_at=START_AT + 9)), why(kernel, ScheduleSpec(pid), max_n=3)):
        assert msgspec.json.decode(msgspec.json.encode(told), type=Explanation) == told


def test_every_code_can_be_read_back() -> None:
    """The unions name every reason there is."""
    assert set(BLOCKING) == set(reasons.BlockingReason.__args__)
    assert set(ORDERING) == set(reasons.OrderingReason.__args__)
    assert all(issubclass(code, Blocking | Ordering) for code in (*BLOCKING, *ORDERING))
