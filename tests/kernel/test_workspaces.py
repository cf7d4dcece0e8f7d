"""Workspaces: held by live claims, alone or together, fenced by their tokens."""

from __future__ import annotations

import pytest

from rota.errors import WorkspaceExists, WorkspaceHeld, WorkspaceUnknown
from rota.kernel import ScheduleSpec
from rota.model.reasons import WorkspaceTaken
from tests.kernel.world import START, World


@pytest.fixture
def owner(world: World, lab: int) -> int:
    """The agent of a project with one workspace, "desk"."""
    world.projects.add_workspace("desk", "lab", "/desk")
    return lab


def test_a_workspace_is_held_by_the_claim_that_took_it_and_free_when_that_ends(world: World, owner: int) -> None:
    first = world.put(owner, workspace_mode="exclusive")
    second = world.put(owner, workspace_mode="exclusive")
    (entry,) = world.take(5)
    assert (entry.sched_id, entry.workspace) == (first, "desk")
    held = world.projects.workspace("desk")
    assert (held.held_by, held.lock_mode, held.held_since, held.fence) == ((first,), "exclusive", START, entry.token)
    assert world.reasons_against(second) == [WorkspaceTaken(workspace=None, held_by=(first,), since_at=START)]
    world.queue.complete(first, "completed", token=entry.token)
    free = world.projects.workspace("desk")
    assert (free.held_by, free.lock_mode, free.held_since, free.fence) == ((), None, None, entry.token)
    (later,) = world.take(5)
    assert (later.sched_id, later.workspace) == (second, "desk")


def test_the_fence_is_the_token_of_the_last_holder_and_only_ever_grows(world: World, owner: int) -> None:
    fences = []
    for _ in range(3):
        sched_id = world.put(owner, workspace_mode="exclusive")
        entry = world.take_one()
        fences.append(world.projects.workspace("desk").fence)
        assert fences[-1] == entry.token
        world.queue.complete(sched_id, "completed", token=entry.token)
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("ending", ["expire", "put_back", "retry", "gc_dispatched", "take_over"])
def test_however_a_run_ends_its_workspace_is_free_again(world: World, owner: int, ending: str) -> None:
    first = world.put(owner, workspace_mode="exclusive")
    second = world.put(owner, workspace_mode="exclusive")
    token = world.take_one(claim_timeout_s=10, incarnation="first life").token
    assert token is not None
    if ending == "expire":
        world.clock.advance(10)
    elif ending == "put_back":
        world.queue.put_back(first, token=token, runnable_at=world.now + 500)
    elif ending == "retry":
        world.queue.complete(first, "crashed", token=token)
    elif ending == "gc_dispatched":
        world.clock.advance(1)
        world.queue.gc_dispatched(0.5)
    else:
        world.queue.take_over("worker", "second life")
    assert world.take_ids() == [second]
    assert world.projects.workspace("desk").held_by == (second,)


def test_shared_runs_hold_a_workspace_together_and_exclude_exclusive_ones(world: World, owner: int) -> None:
    readers = [world.put(owner, workspace_mode="shared", priority=5) for _ in range(2)]
    writer = world.put(owner, workspace_mode="exclusive", priority=3)
    late = world.put(owner, workspace_mode="shared")
    assert world.take_ids() == [*readers, late]
    held = world.projects.workspace("desk")
    assert (held.lock_mode, held.held_by) == ("shared", (*readers, late))
    for sched_id in [*readers, late]:
        assert world.take() == []
        world.queue.complete(sched_id, "completed")
    assert world.take_ids() == [writer]
    another = world.put(owner, workspace_mode="shared")
    assert world.take() == []
    world.queue.complete(writer, "completed")
    assert world.take_ids() == [another]


def test_a_run_takes_any_free_workspace_unless_it_names_one(world: World, owner: int) -> None:
    world.projects.add_workspace("bench", "lab", "/bench")
    wish = world.put(owner, workspace_mode="exclusive", workspace="desk", priority=5)
    same = world.put(owner, workspace_mode="exclusive", workspace="desk", priority=4)
    any_one = world.put(owner, workspace_mode="exclusive", priority=3)
    left_out = world.put(owner, workspace_mode="exclusive")
    assert [(entry.sched_id, entry.workspace) for entry in world.take(9)] == [(wish, "desk"), (any_one, "bench")]
    assert world.reasons_against(same) == [WorkspaceTaken(workspace="desk", held_by=(wish,), since_at=START)]
    assert world.reasons_against(left_out) == [WorkspaceTaken(workspace=None, held_by=(wish, any_one), since_at=START)]


def test_two_in_one_claim_do_not_get_the_same_workspace(world: World, owner: int) -> None:
    world.projects.add_workspace("bench", "lab", "/bench")
    world.queue.enqueue_many([ScheduleSpec(owner, workspace_mode="exclusive")] * 3)
    assert sorted(entry.workspace or "" for entry in world.take(3)) == ["bench", "desk"]


@pytest.mark.usefixtures("owner")
def test_a_workspace_of_another_project_cannot_be_taken(world: World) -> None:
    world.projects.create("other")
    stranger = world.agent(project_id="other")
    for pid in (stranger, world.agent()):
        sched_id = world.put(pid, workspace_mode="exclusive", workspace="desk")
        assert world.take() == []
        assert world.reasons_against(sched_id) == [WorkspaceTaken(workspace="desk", held_by=())]
        world.queue.cancel(sched_id)


def test_an_entry_that_needs_no_workspace_holds_none(world: World, owner: int) -> None:
    world.put(owner)
    assert world.take_one().workspace is None
    assert world.projects.workspace("desk").held_by == ()


@pytest.mark.usefixtures("owner")
def test_a_workspace_has_an_id_and_a_path_of_its_own(world: World) -> None:
    before = world.everything()
    for workspace_id, path in (("desk", "/other"), ("other", "/desk")):
        with pytest.raises(WorkspaceExists) as caught:
            world.projects.add_workspace(workspace_id, "lab", path)
        assert caught.value.code == -32185
    assert world.everything() == before
    world.projects.add_workspace("bench", "lab", "/bench", source="worktree")
    assert [each.workspace_id for each in world.projects.workspaces("lab")] == ["bench", "desk"]


def test_a_workspace_that_is_held_is_not_taken_away(world: World, owner: int) -> None:
    sched_id = world.put(owner, workspace_mode="exclusive")
    world.take_one()
    before = world.everything()
    with pytest.raises(WorkspaceHeld) as caught:
        world.projects.remove_workspace("desk")
    assert caught.value.code == -32186
    assert world.everything() == before
    world.queue.complete(sched_id, "completed")
    world.projects.remove_workspace("desk")
    assert world.projects.workspaces("lab") == []
    for call in (world.projects.workspace, world.projects.remove_workspace):
        with pytest.raises(WorkspaceUnknown) as unknown:
            call("desk")
        assert unknown.value.code == -32184


def test_a_retried_entry_gets_the_workspace_that_it_had_and_others_the_least_used(world: World, owner: int) -> None:
    for name in ("chair", "shelf", "table"):
        world.projects.add_workspace(name, "lab", f"/{name}")
    sched_id = world.put(owner, workspace_mode="exclusive", max_attempts=9)
    first = world.take_one()
    assert first.workspace == "chair"
    assert first.token is not None
    world.queue.put_back(sched_id, token=first.token, runnable_at=world.now)
    other = world.put(owner, workspace_mode="exclusive", priority=9)
    assert [each.workspace for each in world.take(1)] == ["desk"], "the first that was not used"
    assert world.queue.get(sched_id).workspace == "chair", "a queued entry remembers it"
    again = world.take_one()
    assert (again.sched_id, again.workspace) == (sched_id, "chair")
    world.queue.complete(sched_id, "completed", token=again.token)
    assert world.queue.get(sched_id).workspace == "chair"
    assert world.projects.workspace("chair").held_by == ()
    third = world.put(owner, workspace_mode="exclusive")
    assert world.take_one().workspace == "shelf"
    assert {other, third} == {world.projects.workspace(name).held_by[0] for name in ("desk", "shelf")}


def test_an_entry_may_ask_for_a_workspace_of_its_own_which_no_other_entry_gets(world: World, owner: int) -> None:
    own = [world.put(owner, workspace="lab/entry-{entry}", workspace_mode="exclusive") for _ in range(2)]
    entries = world.take(5)
    assert [entry.workspace for entry in entries] == [f"lab/entry-{sched_id}" for sched_id in own]
    world.projects.add_workspace(f"lab/entry-{own[0]}", "lab", "/w", source="entry")
    assert world.projects.workspace(f"lab/entry-{own[0]}").held_by == (own[0],)
    world.projects.remove_workspace("desk")
    world.queue.complete(own[0], "completed", token=entries[0].token)
    waits = world.put(owner, workspace_mode="exclusive")
    assert world.take(5) == []
    assert world.reasons_against(waits) == [WorkspaceTaken(workspace=None, held_by=(), since_at=None)]


def test_why_a_workspace_is_kept_is_recorded(world: World, owner: int) -> None:
    world.projects.keep_workspace("desk", "it has a draft")
    assert world.projects.workspace("desk").kept == "it has a draft"
    world.projects.remove_workspace("desk", "swept")
    kept, removed = world.kernel.journal.tail(kinds=("kernel.workspace.kept", "kernel.workspace.removed"))
    assert kept.payload == {"workspace_id": "desk", "project_id": "lab", "reason": "it has a draft"}
    assert removed.payload == {"workspace_id": "desk", "reason": "swept"}
    with pytest.raises(WorkspaceUnknown):
        world.projects.keep_workspace("desk", "gone")
    assert owner
