"""Graph runs: only the process that took a run last may write, and commits are durable."""

from __future__ import annotations

import pytest

from rota.errors import InvalidPayload, LimitExceeded, StaleClaim, UnknownPid
from rota.kernel import graph_run_progress
from tests.kernel.world import World


def test_a_run_begins_at_its_first_epoch_with_nothing_written_down(world: World, pid: int) -> None:
    run = world.kernel.graphs.take("r1", "g", pid)
    assert (run.run_id, run.graph, run.pid, run.next_epoch_id, run.checkpoint) == ("r1", "g", pid, 1, None)
    assert run.fence == world.journal.cursor()  # the event of taking it


def test_a_process_that_takes_a_run_gets_the_last_commit(world: World, pid: int) -> None:
    graphs = world.kernel.graphs
    fence = graphs.take("r1", "g", pid).fence
    for epoch_id in (2, 3):
        graphs.commit("r1", fence=fence, next_epoch_id=epoch_id, checkpoint=f'{{"é":{epoch_id}}}'.encode())
    again = graphs.take("r1", "g", world.agent("other"))
    assert (again.next_epoch_id, again.checkpoint) == (3, '{"é":3}'.encode())
    assert again.pid == pid  # the agent it began with
    assert again.fence > fence


def test_a_commit_with_an_old_fence_is_refused_and_changes_nothing(world: World, pid: int) -> None:
    graphs = world.kernel.graphs
    old = graphs.take("r1", "g", pid).fence
    new = graphs.take("r1", "g", pid).fence
    with pytest.raises(StaleClaim, match="r1 was taken by another process"):
        graphs.commit("r1", fence=old, next_epoch_id=2, checkpoint=b"old")
    graphs.commit("r1", fence=new, next_epoch_id=2, checkpoint=b"new")
    assert graphs.take("r1", "g", pid).checkpoint == b"new"


def test_a_run_of_another_graph_is_refused(world: World, pid: int) -> None:
    before = world.kernel.graphs.take("r1", "g", pid)
    with pytest.raises(InvalidPayload, match="'r1' is a run of graph g, not of h"):
        world.kernel.graphs.take("r1", "h", pid)
    world.kernel.graphs.commit("r1", fence=before.fence, next_epoch_id=2, checkpoint=b"{}")  # its fence still holds


def test_a_run_needs_an_agent_that_exists(world: World) -> None:
    with pytest.raises(UnknownPid):
        world.kernel.graphs.take("r1", "g", 99)
    assert world.kernel.graphs.list() == ([], 0)


@pytest.mark.parametrize("run_id", ["", "x" * 65, 7, None])
def test_a_name_that_no_run_can_have_is_refused(world: World, pid: int, run_id: str) -> None:
    with pytest.raises(InvalidPayload, match=r"GraphRun\.run_id"):
        world.kernel.graphs.take(run_id, "g", pid)
    with pytest.raises(InvalidPayload, match=r"GraphRun\.run_id"):
        world.kernel.graphs.forget(run_id)


def test_the_longest_name_is_taken(world: World, pid: int) -> None:
    assert world.kernel.graphs.take("x" * 64, "g", pid).run_id == "x" * 64


def test_a_checkpoint_has_a_largest_size(world: World, pid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_run_progress, "CHECKPOINT_BYTES_MAX", 3)
    fence = world.kernel.graphs.take("r1", "g", pid).fence
    world.kernel.graphs.commit("r1", fence=fence, next_epoch_id=2, checkpoint=b"123")
    with pytest.raises(LimitExceeded, match="CHECKPOINT_BYTES_MAX is 3 and 4 was requested"):
        world.kernel.graphs.commit("r1", fence=fence, next_epoch_id=3, checkpoint=b"1234")


def test_a_deleted_run_is_gone_and_cannot_be_committed(world: World, pid: int) -> None:
    fence = world.kernel.graphs.take("r1", "g", pid).fence
    assert world.kernel.graphs.forget("r1")
    assert not world.kernel.graphs.forget("r1")
    with pytest.raises(StaleClaim):
        world.kernel.graphs.commit("r1", fence=fence, next_epoch_id=2, checkpoint=b"")
    assert world.kernel.graphs.list() == ([], 0)


def test_runs_are_listed_by_name_without_their_checkpoints(world: World, pid: int) -> None:
    for run_id in ("b", "a", "c"):
        run = world.kernel.graphs.take(run_id, "g", pid)
        world.kernel.graphs.commit(run_id, fence=run.fence, next_epoch_id=2, checkpoint=b"{}")
    runs, total = world.kernel.graphs.list()
    assert ([run.run_id for run in runs], total) == (["a", "b", "c"], 3)
    assert [run.run_id for run in world.kernel.graphs.list(limit=1, offset=1)[0]] == ["b"]
    assert not hasattr(runs[0], "checkpoint")


def test_ended_returns_entries_that_ended_in_any_way_and_pruned_ones(world: World, pid: int) -> None:
    queued, running, done, cancelled = (world.put(pid, priority=-n) for n in range(4))
    world.queue.cancel(cancelled)
    world.queue.change(done, priority=9)
    world.queue.complete(world.take_ids(1)[0], "failed", result={"error": "no"})
    world.queue.change(running, priority=8)
    assert world.take_ids(1) == [running]
    answer = world.kernel.graphs.ended([queued, running, done, cancelled, 777])
    assert {sched_id: entry and entry.state for sched_id, entry in answer.items()} == {
        done: "completed",
        cancelled: "cancelled",
        777: None,
    }
    found = answer[done]
    assert found is not None
    assert (found.exit_kind, found.result) == ("failed", {"error": "no"})
    assert world.kernel.graphs.ended([]) == {}
