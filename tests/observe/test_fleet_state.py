"""The fleet state is folded from the events of real kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.run_reports import RunReport
from rota.model.events import Event
from rota.model.work import Backoff, ReadyEntry
from rota.observe import fleet_state, run_chart
from rota.observe.fleet_state import AgentName, FleetState, StartingState
from rota.service.dispatcher import Dispatcher
from tests.kernel.world import START, World

FAST = Backoff(base_s=2.0, factor=1.0, cap_s=2.0)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def folded(world: World, state: FleetState | None = None) -> FleetState:
    state = state or FleetState()
    for event in world.events(state.through_id):
        state.fold(event)
    return state


def texts(state: FleetState) -> list[str]:
    return [text.text for text in state.texts]


def create_agents(world: World, **weights: int) -> dict[str, int]:
    """Create projects of these weights with an agent in each. Return the agents by project."""
    for project_id, weight in weights.items():
        world.projects.create(project_id, weight=weight)
    return {project_id: world.agent(f"{project_id}-agent", project_id=project_id) for project_id in weights}


def run_for(world: World, entry: ReadyEntry, seconds: float, tokens: int = 0) -> None:
    """Run a claimed entry this long and complete it."""
    world.clock.advance(seconds)
    if tokens:
        world.queue.charge(entry.sched_id, {"tokens": tokens}, token=entry.token)
    world.queue.complete(entry.sched_id, "completed", token=entry.token)


# --- counts --------------------------------------------------------------------------------------


def counts_of(kernel: Kernel) -> tuple[int, int, dict[str, int]]:
    tables = kernel.queue.counts()
    queued = sum(count for state, count in tables.items() if state.startswith("queued"))
    holds = {state.partition(":")[2]: count for state, count in tables.items() if state.startswith("queued:")}
    return queued, tables.get("dispatched", 0), holds


def test_counts_match_the_tables_through_all_state_changes_of_an_entry(world: World) -> None:
    pid = world.agent("worker")
    state = FleetState()
    first = world.put(pid, retry_on=("failed", "crashed"), backoff=FAST)
    later = world.put(pid, runnable_at=START + 50)
    world.put(pid, after=(first,))
    world.put(pid, after=(later,), on_failed="run")
    late = world.put(pid, deadline=START + 10, runnable_at=START + 5)

    def check() -> None:
        folded(world, state)
        assert (state.queued, state.running, state.holds) == counts_of(world.kernel)
        assert state.report(world.queue.counts()).lost == 0

    check()
    (entry,) = world.take()
    check()
    world.queue.complete(first, "failed", token=entry.token)  # requeued with a backoff
    check()
    world.clock.advance(3)
    (entry,) = world.take()
    check()
    world.queue.put_back(first, token=entry.token or 0, runnable_at=world.now + 1)
    check()
    world.clock.advance(1)
    (entry,) = world.take(claim_timeout_s=30)
    world.queue.change(late, runnable_at=world.now + 1)
    check()
    world.queue.change(late, runnable_at=world.now)
    check()
    world.clock.advance(20)
    world.queue.upkeep()  # the deadline has passed
    check()
    world.clock.advance(30)
    world.queue.upkeep()  # the claim has expired; the later one is ready
    check()
    world.queue.cancel(later)
    check()
    assert state.finished == {"expired": 1, "cancelled": 1}
    assert (state.retries, state.reclaimed) == (1, 1)
    assert state.failures == {"failed": 1, "claim_expired": 1}
    world.clock.advance(10)
    while entries := world.take(10):
        for each in entries:
            world.queue.complete(each.sched_id, "completed", token=each.token)
    check()
    assert state.finished == {"expired": 1, "cancelled": 1, "completed": 3}
    assert (state.enqueued, state.queued, state.running) == (5, 0, 0)


def test_an_entry_missing_from_the_tables_is_counted_as_lost(world: World) -> None:
    pid = world.agent()
    world.queue.enqueue_many([ScheduleSpec(pid)] * 5)
    state = folded(world)
    assert state.report(world.queue.counts()).lost == 0
    assert state.report({"queued": 3, "queued:time": 1}).lost == 1


def test_retries_and_failures_are_counted_by_outcome(world: World) -> None:
    pid = world.agent("crasher")
    world.put(pid, retry_on=("failed", "crashed"), backoff=FAST, max_attempts=2)
    for outcome in ("no_network", "out_of_memory"):
        (entry,) = world.take()
        report = RunReport(
            sched_id=entry.sched_id, token=entry.token or 0, exit_kind="failed", outcome=outcome, stopped_by="TERM"
        )
        world.dispatcher.turn([report], worker_id="worker", max_n=0)
        world.clock.advance(3)
    state = folded(world)
    assert state.failures == {"no_network": 1, "out_of_memory": 1}
    assert (state.retries, dict(state.finished)) == (1, {"failed": 1})
    assert "crasher #1 failed (no network) after 0.0 s, stopped by TERM (attempt 1; next in 2.0 s)" in texts(state)
    assert "crasher #1 started on worker, attempt 2" in texts(state)
    assert "crasher #1 failed (out of memory) after 0.0 s, stopped by TERM (attempt 2)" in texts(state)


# --- shares --------------------------------------------------------------------------------------


def test_shares_are_charged_tokens_against_weight(world: World) -> None:
    agents = create_agents(world, research=3_000, review=1_000)
    for project_id, tokens in (("research", 700), ("review", 300)):
        world.put(agents[project_id])
        run_for(world, world.take_one(), 2.0, tokens)
    report = folded(world).report(world.queue.counts())
    assert report.measure == "tokens"
    research, review = report.projects
    assert (research.share, research.target, review.share, review.target) == (0.7, 0.75, 0.3, 0.25)
    assert report.share_error == pytest.approx(0.05)
    assert (research.runs, research.seconds, research.charged) == (1, 2.0, {"tokens": 700})
    x, y = 0.7 / 3, 0.3 / 1
    assert report.jain == pytest.approx((x + y) ** 2 / (2 * (x * x + y * y)))


def test_without_tokens_shares_are_seconds_of_running(world: World) -> None:
    agents = create_agents(world, research=1_000, review=1_000)
    for project_id, seconds in (("research", 6.0), ("review", 2.0)):
        world.put(agents[project_id])
        run_for(world, world.take_one(), seconds)
    report = folded(world).report(world.queue.counts())
    assert report.measure == "seconds"
    assert [project.share for project in report.projects] == [0.75, 0.25]


def test_a_project_that_never_ran_counts_only_if_it_is_listed(world: World) -> None:
    agents = create_agents(world, busy=1_000, starved=1_000)
    world.put(agents["busy"])
    run_for(world, world.take_one(), 1.0, 10)
    state = folded(world)
    assert state.report(world.queue.counts()).jain == 1.0
    both = state.report(world.queue.counts(), among=("busy", "starved"))
    assert both.jain == 0.5
    assert both.share_error == 0.5


def test_a_changed_weight_and_a_refund_are_counted(world: World) -> None:
    agents = create_agents(world, research=1_000, review=1_000)
    for project_id in agents:
        world.ledger.create(agents[project_id], {"tokens": 1_000})
        world.ledger.charge(agents[project_id], "tokens", 100)
    world.ledger.refund(agents["review"], "tokens", 50)
    world.projects.update("research", weight=2_000)
    report = folded(world).report(world.queue.counts())
    assert [(project.charged["tokens"], project.weight) for project in report.projects] == [(100, 2_000), (50, 1_000)]
    assert report.share_error == pytest.approx(0.0)


def test_the_shares_of_eevdf_match_the_weights(world: World) -> None:
    agents = create_agents(world, research=3_000, review=1_000)
    api = Dispatcher(world.kernel, "eevdf")
    for pid in agents.values():
        world.queue.enqueue_many([ScheduleSpec(pid)] * 200)
    for _ in range(200):
        (entry,) = api.claim("worker")
        run_for(world, entry, 1.0, 100)
    report = folded(world).report(world.queue.counts())
    assert report.share_error <= 0.01
    assert report.jain >= 0.999
    assert (report.queued, report.lost) == (200, 0)


# --- waits and slots -----------------------------------------------------------------------------


def test_a_wait_lasts_from_ready_to_claimed(world: World) -> None:
    pid = world.agent()
    world.put(pid)
    world.put(pid, runnable_at=START + 10)
    world.clock.advance(4)
    world.take()  # waited 4
    world.clock.advance(6)
    world.queue.upkeep()  # the other is ready now
    world.clock.advance(1)
    world.take()  # waited 1
    waits = folded(world).waits()
    assert (waits.count, waits.p50_s, waits.p99_s, waits.max_s) == (2, 1.0, 4.0, 4.0)


def test_an_entry_that_waits_for_predecessors_and_its_time_waits_since_the_later_one(world: World) -> None:
    pid = world.agent()
    first = world.put(pid)
    world.put(pid, after=(first,), runnable_at=START + 10)
    run_for(world, world.take_one(), 2.0)
    world.clock.advance(8)
    world.queue.upkeep()  # its time has come
    world.clock.advance(3)
    world.take_one()
    assert folded(world).waits().max_s == 3.0


def test_a_changed_time_does_not_release_an_entry_that_waits_for_predecessors(world: World) -> None:
    pid = world.agent()
    second = world.put(pid, after=(world.put(pid),))
    world.queue.change(second, runnable_at=START)
    assert folded(world).holds == {"after": 1}


def test_runs_of_a_worker_take_its_first_free_row(world: World) -> None:
    agents = create_agents(world, lab=1_000)
    world.queue.enqueue_many([ScheduleSpec(agents["lab"])] * 4)
    first, second = world.take(2, worker_id="a")
    world.clock.advance(5)
    world.queue.complete(first.sched_id, "completed", token=first.token)
    world.take(1, worker_id="a")
    world.take(1, worker_id="b")
    state = folded(world)
    rows = [(row.worker_id, row.number, [span.sched_id for span in row.spans]) for row in state.rows]
    assert rows == [("a", 1, [1, 3]), ("a", 2, [2]), ("b", 1, [4])]
    ended = state.rows[0].spans[0]
    assert (ended.project_id, ended.start_at, ended.end_at, ended.ending) == ("lab", START, START + 5, "completed")
    assert (state.runs_of("a"), state.runs_of("b")) == ([3, 2], [4])
    assert second.sched_id == 2


def test_a_stopped_worker_is_dropped_after_the_window(world: World) -> None:
    pid = world.agent()
    world.queue.enqueue_many([ScheduleSpec(pid)] * 2)
    run_for(world, world.take(worker_id="old")[0], 1.0)
    world.clock.advance(run_chart.WINDOW_S + 1)
    world.take(worker_id="new")
    assert [row.worker_id for row in folded(world).rows] == ["new"]


def test_runs_beyond_the_rows_of_the_chart_are_still_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_chart, "ROWS_MAX", 2)
    pid = world.agent()
    world.queue.enqueue_many([ScheduleSpec(pid)] * 3)
    world.take(3)
    state = folded(world)
    assert (len(state.rows), state.running) == (2, 3)


def test_entries_beyond_the_tracking_limit_are_still_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_state, "TRACKED_MAX", 10)
    pid = world.agent()
    world.queue.enqueue_many([ScheduleSpec(pid)] * 25)
    state = folded(world)
    assert (state.queued, state.untracked) == (25, 15)
    taken = world.take(25)
    for entry in taken:
        world.queue.complete(entry.sched_id, "completed", token=entry.token)
    report = folded(world, state).report(world.queue.counts())
    assert (report.waits.count, report.finished, report.lost) == (10, {"completed": 25}, 0)


# --- starting state and unknown events -------------------------------------------------------------


def test_a_fleet_state_can_start_after_the_journal_was_pruned(world: World) -> None:
    agents = create_agents(world, lab=2_000)
    world.queue.enqueue_many([ScheduleSpec(agents["lab"])] * 3)
    running = world.take(1)[0]
    world.kernel.retention.prune(events_older_than_s=0.0, entries_older_than_s=0.0)
    start = StartingState(
        through_id=world.journal.cursor(),
        at=world.now,
        weights={"lab": 2_000},
        agents={agents["lab"]: AgentName("lab-agent", "lab")},
        queued=2,
        running=1,
    )
    state = FleetState(start)
    run_for(world, running, 3.0, 40)
    run_for(world, world.take(1)[0], 1.0, 60)
    report = folded(world, state).report(world.queue.counts())
    assert (report.enqueued, report.finished, report.queued, report.running, report.lost) == (
        3,
        {"completed": 2},
        1,
        0,
        0,
    )
    assert report.projects[0].charged == {"tokens": 100}
    assert state.projects["lab"].runs == 1  # the start of the other one is unknown
    assert "lab-agent #2 completed after 1.0 s" in texts(state)
    assert "entry 1 completed" in texts(state)


def test_unknown_kinds_are_skipped_except_those_of_users(world: World) -> None:
    state = folded(world)
    before = state.through_id
    assert state.fold(Event(before + 1, None, START, "kernel.of.the.future", {"x": 1})) == []
    (own,) = state.fold(Event(before + 2, None, START, "mine.own", {"x": 1}))
    assert own.text == 'mine.own: {"x":1}'
    newer = Event(before + 3, None, START, "kernel.sched.enqueued", {"v": 99, "first": [1]})
    assert state.fold(newer) == []
    assert (state.through_id, state.unread, state.enqueued) == (before + 3, 1, 0)


def test_only_the_last_texts_are_kept(world: World) -> None:
    pid = world.agent("chatty")
    for _ in range(fleet_state.TEXTS_MAX + 5):
        world.put(pid)
    state = folded(world)
    assert len(state.texts) == fleet_state.TEXTS_MAX
    assert state.texts[-1].text == f"chatty #{fleet_state.TEXTS_MAX + 5} queued"
