"""The board is folded from what real kernels record."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rota.kernel import Kernel, ScheduleSpec
from rota.kernel.supervision import RunReport
from rota.model.events import Event
from rota.model.work import Backoff, ReadyEntry
from rota.observe import fleet_state as boards
from rota.observe import spans
from rota.observe.fleet_state import AgentTag, Board, Start
from rota.service.dispatcher import Dispatcher
from tests.kernel.world import START, World

FAST = Backoff(base_s=2.0, factor=1.0, cap_s=2.0)


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def folded(world: World, board: Board | None = None) -> Board:
    board = board or Board()
    for event in world.events(board.through_id):
        board.fold(event)
    return board


def texts(board: Board) -> list[str]:
    return [story.text for story in board.stories]


def furnished(world: World, **weights: int) -> dict[str, int]:
    """Projects of these weights, with an agent in each; the agents are the answer."""
    for project_id, weight in weights.items():
        world.projects.create(project_id, weight=weight)
    return {project_id: world.agent(f"{project_id}-agent", project_id=project_id) for project_id in weights}


def run_for(world: World, entry: ReadyEntry, seconds: float, tokens: int = 0) -> None:
    """Let a claimed entry run this long and end well."""
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


def test_counts_follow_the_tables_through_every_way_an_entry_can_go(world: World) -> None:
    pid = world.agent("worker")
    board = Board()
    first = world.put(pid, retry_on=("failed", "crashed"), backoff=FAST)
    later = world.put(pid, runnable_at=START + 50)
    world.put(pid, after=(first,))
    world.put(pid, after=(later,), on_failed="run")
    late = world.put(pid, deadline=START + 10, runnable_at=START + 5)

    def check() -> None:
        folded(world, board)
        assert (board.queued, board.running, board.holds) == counts_of(world.kernel)
        assert board.report(world.queue.counts()).lost == 0

    check()
    (entry,) = world.take()
    check()
    world.queue.complete(first, "failed", token=entry.token)  # goes back, with a pause
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
    assert board.finished == {"expired": 1, "cancelled": 1}
    assert (board.retries, board.reclaimed) == (1, 1)
    assert board.failures == {"failed": 1, "claim_expired": 1}
    world.clock.advance(10)
    while entries := world.take(10):
        for each in entries:
            world.queue.complete(each.sched_id, "completed", token=each.token)
    check()
    assert board.finished == {"expired": 1, "cancelled": 1, "completed": 3}
    assert (board.enqueued, board.queued, board.running) == (5, 0, 0)


def test_an_entry_that_is_nowhere_is_counted_as_lost(world: World) -> None:
    pid = world.agent()
    world.queue.enqueue_many([ScheduleSpec(pid)] * 5)
    board = folded(world)
    assert board.report(world.queue.counts()).lost == 0
    assert board.report({"queued": 3, "queued:time": 1}).lost == 1


def test_retries_and_failures_are_told_apart_by_outcome(world: World) -> None:
    pid = world.agent("crasher")
    world.put(pid, retry_on=("failed", "crashed"), backoff=FAST, max_attempts=2)
    for outcome in ("no_network", "out_of_memory"):
        (entry,) = world.take()
        report = RunReport(
            sched_id=entry.sched_id, token=entry.token or 0, exit_kind="failed", outcome=outcome, stopped_by="TERM"
        )
        world.kernel.supervision.turn([report], worker_id="worker", max_n=0)
        world.clock.advance(3)
    board = folded(world)
    assert board.failures == {"no_network": 1, "out_of_memory": 1}
    assert (board.retries, dict(board.finished)) == (1, {"failed": 1})
    assert "crasher #1 ended no network after 0.0 s, stopped by TERM; retried in 2.0 s" in texts(board)
    assert "crasher #1 started on worker, attempt 2" in texts(board)
    assert "crasher #1 ended failed (out of memory) after 0.0 s, stopped by TERM" in texts(board)


# --- shares --------------------------------------------------------------------------------------


def test_shares_are_charged_tokens_against_weight(world: World) -> None:
    agents = furnished(world, research=3_000, review=1_000)
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
    agents = furnished(world, research=1_000, review=1_000)
    for project_id, seconds in (("research", 6.0), ("review", 2.0)):
        world.put(agents[project_id])
        run_for(world, world.take_one(), seconds)
    report = folded(world).report(world.queue.counts())
    assert report.measure == "seconds"
    assert [project.share for project in report.projects] == [0.75, 0.25]


def test_a_project_that_never_ran_counts_only_if_it_is_named(world: World) -> None:
    agents = furnished(world, busy=1_000, starved=1_000)
    world.put(agents["busy"])
    run_for(world, world.take_one(), 1.0, 10)
    board = folded(world)
    assert board.report(world.queue.counts()).jain == 1.0
    both = board.report(world.queue.counts(), among=("busy", "starved"))
    assert both.jain == 0.5
    assert both.share_error == 0.5


def test_a_changed_weight_and_a_refund_are_taken_in(world: World) -> None:
    agents = furnished(world, research=1_000, review=1_000)
    for project_id in agents:
        world.ledger.create(agents[project_id], {"tokens": 1_000})
        world.ledger.charge(agents[project_id], "tokens", 100)
    world.ledger.refund(agents["review"], "tokens", 50)
    world.projects.update("research", weight=2_000)
    report = folded(world).report(world.queue.counts())
    assert [(project.charged["tokens"], project.weight) for project in report.projects] == [(100, 2_000), (50, 1_000)]
    assert report.share_error == pytest.approx(0.0)


def test_eevdf_shares_three_to_one_and_the_board_sees_it(world: World) -> None:
    agents = furnished(world, research=3_000, review=1_000)
    desk = Dispatcher(world.kernel, "eevdf")
    for pid in agents.values():
        world.queue.enqueue_many([ScheduleSpec(pid)] * 200)
    for _ in range(200):
        (entry,) = desk.claim("worker")
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


def test_an_entry_that_waits_for_others_and_for_its_time_has_waited_since_the_later(world: World) -> None:
    pid = world.agent()
    first = world.put(pid)
    world.put(pid, after=(first,), runnable_at=START + 10)
    run_for(world, world.take_one(), 2.0)
    world.clock.advance(8)
    world.queue.upkeep()  # its time has come
    world.clock.advance(3)
    world.take_one()
    assert folded(world).waits().max_s == 3.0


def test_another_time_does_not_free_an_entry_that_waits_for_others(world: World) -> None:
    pid = world.agent()
    second = world.put(pid, after=(world.put(pid),))
    world.queue.change(second, runnable_at=START)
    assert folded(world).holds == {"after": 1}


def test_runs_of_a_worker_take_its_first_free_row(world: World) -> None:
    agents = furnished(world, lab=1_000)
    world.queue.enqueue_many([ScheduleSpec(agents["lab"])] * 4)
    first, second = world.take(2, worker_id="a")
    world.clock.advance(5)
    world.queue.complete(first.sched_id, "completed", token=first.token)
    world.take(1, worker_id="a")
    world.take(1, worker_id="b")
    board = folded(world)
    rows = [(lane.worker_id, lane.number, [span.sched_id for span in lane.spans]) for lane in board.lanes]
    assert rows == [("a", 1, [1, 3]), ("a", 2, [2]), ("b", 1, [4])]
    ended = board.lanes[0].spans[0]
    assert (ended.project_id, ended.start_at, ended.end_at, ended.ending) == ("lab", START, START + 5, "well")
    assert (board.runs_of("a"), board.runs_of("b")) == ([3, 2], [4])
    assert second.sched_id == 2


def test_a_worker_that_is_gone_is_forgotten_after_the_window(world: World) -> None:
    pid = world.agent()
    world.queue.enqueue_many([ScheduleSpec(pid)] * 2)
    run_for(world, world.take(worker_id="old")[0], 1.0)
    world.clock.advance(spans.WINDOW_S + 1)
    world.take(worker_id="new")
    assert [lane.worker_id for lane in folded(world).lanes] == ["new"]


def test_more_runs_at_once_than_can_be_drawn_are_counted_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans, "LANES_MAX", 2)
    pid = world.agent()
    world.queue.enqueue_many([ScheduleSpec(pid)] * 3)
    world.take(3)
    board = folded(world)
    assert (len(board.lanes), board.running) == (2, 3)


def test_a_queue_deeper_than_can_be_tracked_is_still_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "TRACKED_MAX", 10)
    pid = world.agent()
    world.queue.enqueue_many([ScheduleSpec(pid)] * 25)
    board = folded(world)
    assert (board.queued, board.untracked) == (25, 15)
    taken = world.take(25)
    for entry in taken:
        world.queue.complete(entry.sched_id, "completed", token=entry.token)
    report = folded(world, board).report(world.queue.counts())
    assert (report.waits.count, report.finished, report.lost) == (10, {"completed": 25}, 0)


# --- where a board begins, and what it passes over -------------------------------------------------


def test_a_board_can_begin_where_the_journal_was_cut(world: World) -> None:
    agents = furnished(world, lab=2_000)
    world.queue.enqueue_many([ScheduleSpec(agents["lab"])] * 3)
    running = world.take(1)[0]
    world.kernel.retention.prune(events_older_than_s=0.0, entries_older_than_s=0.0)
    begin = Start(
        through_id=world.journal.cursor(),
        at=world.now,
        weights={"lab": 2_000},
        agents={agents["lab"]: AgentTag("lab-agent", "lab")},
        queued=2,
        running=1,
    )
    board = Board(begin)
    run_for(world, running, 3.0, 40)
    run_for(world, world.take(1)[0], 1.0, 60)
    report = folded(world, board).report(world.queue.counts())
    assert (report.enqueued, report.finished, report.queued, report.running, report.lost) == (
        3,
        {"completed": 2},
        1,
        0,
        0,
    )
    assert report.projects[0].charged == {"tokens": 100}
    assert board.projects["lab"].runs == 1  # how long the other one ran is not known
    assert "lab-agent #2 ended well after 1.0 s" in texts(board)
    assert "entry 1 ended well" in texts(board)


def test_kinds_that_are_not_known_are_passed_over(world: World) -> None:
    board = folded(world)
    before = board.through_id
    for number, kind in enumerate(("kernel.of.the.future", "mine.own"), before + 1):
        assert board.fold(Event(number, None, START, kind, {"x": 1})) == []
    newer = Event(before + 3, None, START, "kernel.sched.enqueued", {"v": 99, "first": [1]})
    assert board.fold(newer) == []
    assert (board.through_id, board.unread, board.enqueued) == (before + 3, 1, 0)


def test_only_the_last_stories_are_kept(world: World) -> None:
    pid = world.agent("chatty")
    for _ in range(boards.STORIES_MAX + 5):
        world.put(pid)
    board = folded(world)
    assert len(board.stories) == boards.STORIES_MAX
    assert board.stories[-1].text == f"chatty is to run: entry {boards.STORIES_MAX + 5}"
