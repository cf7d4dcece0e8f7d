"""Each reason by example: its numbers, its sentence and the suggested changes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from rota import store
from rota.clock import ManualClock, local_time
from rota.kernel import Completion, Kernel, RunReport, ScheduleSpec
from rota.kernel.affinity import AFFINITY_WAIT_S
from rota.model import reasons
from rota.model.explanation import Explanation
from rota.model.reasons import BLOCKING, ORDERING, BlockingBase, OrderingBase
from rota.model.work import ProjectConstraint
from rota.policy.contract import Policy
from rota.service import entry_history
from rota.service.candidate_windows import HEADS_MAX, WINDOW_MAX
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import NAMED_MAX, explain

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


def why(kernel: Kernel, spec: ScheduleSpec, **options: object) -> Explanation:
    return explain(Dispatcher(kernel), kernel.queue.enqueue(spec), **options)  # type: ignore[arg-type]  # by name


# --- blocking ------------------------------------------------------------------------------------


def test_an_entry_scheduled_for_later_starts_then(kernel: Kernel, pid: int) -> None:
    explanation = why(kernel, ScheduleSpec(pid, runnable_at=START_AT + 60))
    assert explanation.blocking == (reasons.NotYetRunnable(runnable_at=START_AT + 60),)
    assert explanation.estimate.starts_at == START_AT + 60
    assert explanation.changes[0].arguments == {"sched_id": explanation.sched_id, "runnable_at": START_AT}


def test_an_entry_in_backoff_says_until_when(kernel: Kernel, pid: int) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    (run,) = kernel.queue.claim(worker_id="w")
    kernel.queue.complete(sched_id, "crashed", token=run.token)
    until_at = kernel.queue.get(sched_id).runnable_at
    explanation = explain(Dispatcher(kernel), sched_id)
    assert explanation.blocking == (reasons.BackingOff(until_at=until_at, attempt=1),)
    assert [step.words for step in explanation.story][1:] == [
        "claimed by w (attempt 1), chosen by strict",
        "back in the queue: retry",
    ]


def test_an_entry_that_waits_for_predecessors_names_those_that_have_not_completed(kernel: Kernel, pid: int) -> None:
    first, second = (kernel.queue.enqueue(ScheduleSpec(pid, 9)) for _ in range(2))
    (run,) = kernel.queue.claim(worker_id="w")
    kernel.queue.complete(first, "completed", token=run.token)
    explanation = why(kernel, ScheduleSpec(pid, after=(first, second)))
    assert explanation.blocking == (reasons.AfterPredecessor(waiting_for=(second,)),)
    assert explanation.estimate.starts_at is None
    assert explanation.changes[0].words == f"wait until {second} complete"


def test_an_entry_held_for_a_failed_predecessor_can_be_released_by_the_suggestion(kernel: Kernel, pid: int) -> None:
    first, other = (kernel.queue.enqueue(ScheduleSpec(pid, 9)) for _ in range(2))
    held = kernel.queue.enqueue(ScheduleSpec(pid, after=(first, other), on_failed="hold"))
    kernel.queue.force_claim(first, worker_id="w")
    kernel.queue.complete(first, "failed")
    explanation = explain(Dispatcher(kernel), held)
    assert [change.words for change in explanation.changes] == [
        f"wait until {other} complete",
        f"run it although {first} failed",
    ]
    assert (explanation.changes[1].verb, explanation.changes[1].arguments) == ("queue.release", {"sched_id": held})
    kernel.queue.cancel(other)
    kernel.queue.release(held)
    assert explain(Dispatcher(kernel), held).blocking == ()


def test_an_entry_that_was_not_picked_and_one_that_was_not_shown_are_distinguished(kernel: Kernel, pid: int) -> None:
    """A policy need not pick any entry. It sees only the first entries of an agent with many."""
    ids = kernel.queue.enqueue_many([ScheduleSpec(pid)] * (2 * HEADS_MAX))
    selective = Policy(name="selective", rank=lambda _snapshot: (), sentence="It picks no entry.", holds_back=True)
    first, last = (explain(Dispatcher(kernel, selective), sched_id).ordering for sched_id in (ids[0], ids[-1]))
    assert first == (reasons.NotPicked(policy="selective"),)
    assert last == (reasons.OutsideWindow(window=WINDOW_MAX),)


def test_each_level_at_which_a_budget_is_short_is_named_with_its_numbers(kernel: Kernel, pid: int) -> None:
    kernel.ledger.create(pid, {"tokens": 100})
    kernel.ledger.set_budget("project", "p", "tokens", 90, window_s=3_600)
    kernel.ledger.charge(pid, "tokens", 60)
    explanation = why(kernel, ScheduleSpec(pid, ceiling={"tokens": 50}))
    project, agent = explanation.blocking
    assert isinstance(project, reasons.OverBudget)
    assert isinstance(agent, reasons.OverBudget)
    assert (project.level, project.used, project.ask, project.limit) == ("project", 60, 50, 90)
    assert (agent.level, agent.used, agent.ask, agent.limit) == ("agent", 60, 50, 100)
    assert [change.words for change in explanation.changes] == [
        "raise tokens of project p from 90 to 110",
        f"raise tokens of agent {pid} from 100 to 110",
    ]
    assert explanation.changes[0].arguments["window_s"] == 3_600


def test_a_shared_limit_that_is_throttled_says_until_when(kernel: Kernel, pid: int) -> None:
    kernel.contexts.create(bound_to="name", bound_id="openai", budget=10, period_s=60)
    kernel.contexts.throttle("openai", 30.0)
    explanation = why(kernel, ScheduleSpec(pid, draws_on=("openai",)))
    assert explanation.blocking == (reasons.LimitExhausted(name="openai", until_at=START_AT + 30),)
    assert explanation.estimate.starts_at == explanation.changes[0].until_at == START_AT + 30


def test_a_depleted_context_of_the_agent_says_until_when(kernel: Kernel, pid: int) -> None:
    context = kernel.contexts.create(bound_to="agent", bound_id=pid, budget=10, period_s=60)
    kernel.contexts.charge(context.context_id, 10)
    explanation = why(kernel, ScheduleSpec(pid, expected={"tokens": 5}))
    (reason,) = explanation.blocking
    assert isinstance(reason, reasons.ContextExhausted)
    assert (reason.context_id, reason.until_at) == (context.context_id, START_AT + 60)


def test_a_taken_workspace_names_the_holder_and_since_when(kernel: Kernel, pid: int) -> None:
    kernel.projects.add_workspace("w1", "p", "/srv/p")
    holder = kernel.queue.enqueue(ScheduleSpec(pid, workspace_mode="exclusive"))
    kernel.queue.claim(worker_id="w")
    assert isinstance(kernel.clock, ManualClock)
    kernel.clock.advance(5)
    explanation = why(kernel, ScheduleSpec(pid, workspace_mode="exclusive"))
    assert explanation.blocking == (reasons.WorkspaceTaken(workspace=None, held_by=(holder,), since_at=START_AT),)


def test_every_pause_is_named_with_the_operator_that_made_it(kernel: Kernel, pid: int) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    kernel.agents.pause(pid, "ann")
    kernel.projects.move("p", "pause", by="bob")
    kernel.projects.pause_fleet("cy")
    explanation = explain(Dispatcher(kernel), sched_id)
    assert [
        (reason.level, reason.by) for reason in explanation.blocking if isinstance(reason, reasons.PausedByOperator)
    ] == [
        ("agent", "ann"),
        ("project", "bob"),
        ("fleet", "cy"),
    ]
    assert [change.verb for change in explanation.changes] == [
        "agents.resume",
        "projects.move",
        "projects.resume_fleet",
    ]


def test_caps_of_agent_project_and_kind_are_distinguished(kernel: Kernel, pid: int) -> None:
    kernel.queue.enqueue(ScheduleSpec(pid, kind="gpu"))
    kernel.queue.claim(worker_id="w", kinds=("gpu",))
    kernel.agents.update(pid, max_concurrent=1)
    kernel.projects.update("p", max_concurrent=1)
    kernel.projects.constrain("p", ProjectConstraint(max_by_kind={"gpu": 1}))
    explanation = why(kernel, ScheduleSpec(pid, kind="gpu"), kinds=("gpu",))
    caps = [reason for reason in explanation.blocking if isinstance(reason, reasons.CapReached)]
    levels = [(reason.level, reason.running, reason.cap) for reason in caps]
    assert levels == [("agent", 1, 1), ("project", 1, 1), ("kind", 1, 1)]


# --- ordering ------------------------------------------------------------------------------------


def test_the_entries_ahead_are_counted_and_the_first_few_listed(kernel: Kernel, pid: int) -> None:
    ids = [kernel.queue.enqueue(ScheduleSpec(pid, 5)) for _ in range(NAMED_MAX + 3)]
    explanation = why(kernel, ScheduleSpec(pid), policy="strict")
    (reason,) = explanation.ordering
    assert isinstance(reason, reasons.Outranked)
    assert (reason.ahead, reason.first, reason.policy) == (len(ids), tuple(ids[:NAMED_MAX]), "strict")
    assert reason.score == "priority 0, ready immediately"
    assert explanation.position == len(ids) + 1
    assert [each.sched_id for each in explanation.ahead] == ids[:NAMED_MAX]
    assert explanation.changes[0].arguments == {"sched_id": explanation.sched_id, "priority": 6}


def test_an_estimate_uses_the_recent_claim_rate(kernel: Kernel, pid: int) -> None:
    kernel.queue.enqueue_many([ScheduleSpec(pid, 5) for _ in range(20)])
    assert isinstance(kernel.clock, ManualClock)
    for _ in range(10):  # two in every ten seconds
        runs = kernel.queue.claim(worker_id="w", max_n=1)
        kernel.queue.complete_many([Completion(run.sched_id, token=run.token) for run in runs])
        kernel.clock.advance(5)
    explanation = why(kernel, ScheduleSpec(pid))
    assert explanation.estimate.starts_at == pytest.approx(explanation.now + 10 * 5)
    assert explanation.estimate.basis == "10 before it; 10 were claimed in the last 50 s"


def test_a_worker_without_a_slot_of_its_kind_cannot_claim_it(kernel: Kernel, pid: int) -> None:
    explanation = why(kernel, ScheduleSpec(pid, kind="gpu"))
    assert explanation.ordering == (reasons.NoSlot(kind="gpu", busy=0),)
    assert explain(Dispatcher(kernel), explanation.sched_id, kinds=("gpu",)).starts


def test_an_entry_held_for_a_worker_says_which_and_until_when_and_that_worker_can_claim_it(
    kernel: Kernel, pid: int
) -> None:
    kernel.queue.claim(worker_id="box")
    explanation = why(kernel, ScheduleSpec(pid, affinity="box"))
    assert explanation.blocking == ()
    assert explanation.ordering == (reasons.WaitsForWorker(worker_id="box", until_at=START_AT + AFFINITY_WAIT_S),)
    assert explanation.ordering[0].sentence() == f"it is held for worker box until {local_time(1120.0)}"
    assert explanation.estimate.starts_at == START_AT + AFFINITY_WAIT_S
    assert [step.words for step in explanation.story] == ["enqueued, held: for its worker"]
    assert explain(Dispatcher(kernel), explanation.sched_id, worker_id="box").starts
    (change,) = explanation.changes
    assert (change.verb, change.arguments) == ("queue.release", {"sched_id": explanation.sched_id})
    kernel.queue.release(**change.arguments)
    again = explain(Dispatcher(kernel), explanation.sched_id)
    assert again.starts
    assert again.story[-1].words == "ready: its hold (for its worker) is over"


def test_the_second_entry_held_for_a_worker_with_one_slot_stays_held(kernel: Kernel, pid: int) -> None:
    kernel.queue.claim(worker_id="box")
    kernel.queue.enqueue(ScheduleSpec(pid, 5, affinity="box"))
    second = kernel.queue.enqueue(ScheduleSpec(pid, affinity="box"))
    explanation = explain(Dispatcher(kernel), second, worker_id="box")
    assert [type(reason) for reason in explanation.ordering] == [reasons.WaitsForWorker]


def test_capacity_taken_by_the_entries_ahead_is_reported(kernel: Kernel, pid: int) -> None:
    kernel.agents.update(pid, max_concurrent=1)
    first = kernel.queue.enqueue(ScheduleSpec(pid))
    explanation = why(kernel, ScheduleSpec(pid), max_n=5)
    cap = reasons.CapReached(level="agent", owner=str(pid), running=1, cap=1)
    assert explanation.ordering == (reasons.CrowdedOut(by=(first,), then=(cap,)),)
    assert explanation.blocking == ()


def test_an_entry_outside_the_window_is_claimed_when_all_shown_ones_are_refused(kernel: Kernel) -> None:
    """The window contains the longest unserved agents; the entries of all of them are refused."""
    kernel.contexts.create(bound_to="name", bound_id="openai", budget=10, period_s=60)
    kernel.contexts.throttle("openai", 30.0)
    pids = [kernel.agents.create(f"a{at}") for at in range(WINDOW_MAX + 1)]
    kernel.queue.enqueue_many([ScheduleSpec(pid, draws_on=("openai",)) for pid in pids[:-1]])
    api = Dispatcher(kernel, "round_robin")
    last = kernel.queue.enqueue(ScheduleSpec(pids[-1]))
    explanation = explain(api, last)
    assert (explanation.blocking, explanation.ordering, explanation.position) == ((), (), 1)
    assert [entry.sched_id for entry in api.claim("any-worker")] == [last]


# --- history -------------------------------------------------------------------------------------


def test_the_history_of_a_finished_entry(kernel: Kernel, pid: int) -> None:
    sched_id = kernel.queue.enqueue_many([ScheduleSpec(pid) for _ in range(3)])[1]
    kernel.queue.change(sched_id, priority=7)
    (run,) = kernel.queue.claim(worker_id="w")
    kernel.queue.charge(sched_id, {"tokens": 1_500}, token=run.token)
    kernel.queue.request_cancel(sched_id, by="ann")
    kernel.queue.complete(sched_id, "cancelled", token=run.token, outcome="stopped")
    kernel.queue.claim(worker_id="w", max_n=9)
    explanation = explain(Dispatcher(kernel), sched_id)
    assert explanation.blocking == (reasons.NotQueued(state="completed"),)
    assert [step.words for step in explanation.story] == [
        "enqueued",
        "changed: priority = 7",
        "claimed by w (attempt 1), chosen by strict",
        "used 1,500 tokens",
        "asked to stop by ann",
        "ended: cancelled (stopped)",
    ]
    assert explanation.story_is_whole
    assert explanation.estimate.basis == "it is completed"


def test_a_run_that_went_back_to_the_queue_has_not_ended_in_the_history(kernel: Kernel, pid: int) -> None:
    """One that is refused its cores, for example: its report says completed, and a later error is not its own."""
    dispatcher, sched_id = Dispatcher(kernel), kernel.queue.enqueue(ScheduleSpec(pid))
    for report in ({"back": "yield"}, {"exit_kind": "failed", "result": {"error": "no network"}}):
        (run,) = kernel.queue.claim(worker_id="w")
        dispatcher.turn(
            [RunReport(sched_id=sched_id, token=run.token or 0, **report)],
            worker_id="w",
            max_n=0,
        )
    assert [step.words for step in explain(dispatcher, sched_id).story] == [
        "enqueued",
        "claimed by w (attempt 1), chosen by strict",
        "back in the queue: yield",
        "claimed by w (attempt 1), chosen by strict",
        "run 1 ended: failed: no network",
        "ended: failed; not retried: it is not retried when it has failed",
    ]


def test_a_running_entry_has_no_suggestions(kernel: Kernel, pid: int) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    kernel.queue.claim(worker_id="w")
    explanation = explain(Dispatcher(kernel), sched_id)
    assert (explanation.state, explanation.changes, explanation.position) == ("dispatched", (), None)
    assert explanation.estimate.starts_at == START_AT


def test_events_of_ids_that_contain_its_own_are_not_in_the_history(kernel: Kernel, pid: int) -> None:
    ids = kernel.queue.enqueue_many([ScheduleSpec(pid) for _ in range(12)])
    kernel.queue.cancel(ids[10])  # 11, which contains the digit 1
    assert [step.words for step in explain(Dispatcher(kernel), ids[0]).story] == ["enqueued"]


@pytest.mark.parametrize("more", [0, 1])
def test_a_long_range_of_the_journal_is_read_from_both_ends(
    kernel: Kernel, pid: int, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr(entry_history, "SCAN_MAX", 10)
    assert isinstance(kernel.clock, ManualClock)
    kernel.clock.advance(1)  # earlier events are not read
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    for number in range(18 + more):
        kernel.journal.append(None, "mine.note", {"number": number})
    (run,) = kernel.queue.claim(worker_id="w")
    explanation = explain(Dispatcher(kernel), run.sched_id)
    assert [step.words for step in explanation.story] == ["enqueued", "claimed by w (attempt 1), chosen by strict"]
    assert (explanation.sched_id, explanation.story_is_whole) == (sched_id, not more)


def test_a_history_with_pruned_events_is_marked_incomplete(kernel: Kernel, pid: int) -> None:
    sched_id = kernel.queue.enqueue(ScheduleSpec(pid))
    assert isinstance(kernel.clock, ManualClock)
    kernel.clock.advance(100)
    kernel.queue.change(sched_id, priority=1)
    kernel.retention.checkpoint()
    kernel.retention.prune(events_older_than_s=50, entries_older_than_s=50)
    explanation = explain(Dispatcher(kernel), sched_id)
    assert [step.words for step in explanation.story] == ["changed: priority = 1"]
    assert not explanation.story_is_whole


# --- as JSON -------------------------------------------------------------------------------------


def test_an_explanation_can_be_encoded_and_decoded(kernel: Kernel, pid: int) -> None:
    kernel.queue.enqueue(ScheduleSpec(pid, 9))
    kernel.agents.update(pid, max_concurrent=1)
    for explanation in (
        why(kernel, ScheduleSpec(pid, runnable_at=START_AT + 9)),
        why(kernel, ScheduleSpec(pid), max_n=3),
    ):
        assert msgspec.json.decode(msgspec.json.encode(explanation), type=Explanation) == explanation


def test_every_reason_can_be_decoded() -> None:
    """The unions contain every reason class."""
    assert set(BLOCKING) == set(reasons.BlockingReason.__args__)
    assert set(ORDERING) == set(reasons.OrderingReason.__args__)
    assert all(issubclass(code, BlockingBase | OrderingBase) for code in (*BLOCKING, *ORDERING))
