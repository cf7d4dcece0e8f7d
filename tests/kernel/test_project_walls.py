"""Projects are walls: keys, notes, parents, predecessors and limits of one project are nothing to another."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rota.errors import (
    ContextExists,
    ContextInvalid,
    LimitExceeded,
    ProjectInvalid,
    ProjectUnknown,
    RotaError,
    SchedInvalidPayload,
    SchedUnknownId,
    UnknownAgent,
    UnknownPid,
)
from rota.kernel import ScheduleSpec, grants
from rota.kernel.contexts import THROTTLE_MAX_S
from rota.kernel.replay import KernelState
from rota.model.events import LimitResumed, LimitThrottled
from rota.model.reasons import LimitExhausted
from rota.model.work import ReadyEntry
from tests.kernel.world import World
from tests.store.world import sql

NEVER_USED = 987_654


class Walls(World):
    """Two projects, `red` and `blue`, and a scope without a project, with an agent in each."""

    def __init__(self) -> None:
        super().__init__()
        self.projects.create("red")
        self.projects.create("blue")
        self.red = self.agent("reader", project_id="red")
        self.blue = self.agent("writer", project_id="blue")
        self.free = self.agent("free")

    def run_of(self, pid: int, **spec: object) -> ReadyEntry:
        """Start a run of an agent."""
        return self.queue.force_claim(self.put(pid, **spec), worker_id="worker")

    def spawn(self, run: ReadyEntry, pid: int, **spec: object) -> int:
        assert run.token is not None
        return self.kernel.supervision.spawn(ScheduleSpec(pid, parent_id=run.sched_id, **spec), run.token)  # type: ignore[arg-type]

    def await_entry(self, run: ReadyEntry, sched_id: int) -> None:
        assert run.token is not None
        self.kernel.supervision.rest(run.sched_id, run.token, waiting=True, awaits=[sched_id])


@pytest.fixture
def walls() -> Walls:
    return Walls()


def refusal(call: Callable[[], object], kind: type[RotaError]) -> str:
    """Make a call that is refused; returns what the caller learns, without the id that it gave."""
    with pytest.raises(kind) as caught:
        call()
    number = str(caught.value.data.get("sched_id") or caught.value.data.get("pid"))
    return f"{caught.value} {sorted(caught.value.data)}".replace(number, "ID")


# --- idempotency keys ----------------------------------------------------------------------------


def test_the_same_key_in_two_projects_makes_two_entries(walls: Walls) -> None:
    made = [walls.put(pid, key="daily") for pid in (walls.red, walls.blue, walls.free)]
    assert len(set(made)) == 3
    assert [walls.put(pid, key="daily") for pid in (walls.red, walls.blue, walls.free)] == made


def test_a_squatted_key_swallows_no_entry_of_another_project(walls: Walls) -> None:
    squatted = walls.put(walls.red, key="trigger:blue/writer:0:60", payload={"from": "red"})
    spec = ScheduleSpec(walls.blue, key="trigger:blue/writer:0:60")
    sched_id, created = walls.queue.enqueue_unique(spec, dedupe_by=("key",))
    assert created
    assert sched_id != squatted
    assert walls.queue.get(sched_id).project_id == "blue"
    assert walls.queue.enqueue_unique(spec, dedupe_by=("key",)) == (sched_id, False)


def test_keys_of_a_batch_are_looked_up_in_the_project_of_each_entry(walls: Walls) -> None:
    first = walls.put(walls.red, key="k")
    specs = [ScheduleSpec(pid, key="k") for pid in (walls.red, walls.blue, walls.free, walls.blue)]
    assert walls.queue.enqueue_many(specs) == [first, first + 1, first + 2, first + 1]


def test_a_spawned_child_has_the_key_of_its_own_project(walls: Walls) -> None:
    walls.put(walls.blue, key="child")
    run = walls.run_of(walls.red)
    child = walls.spawn(run, walls.red, key="child")
    assert walls.queue.get(child).project_id == "red"
    assert walls.spawn(run, walls.red, key="child") == child


def test_a_key_of_a_dead_agents_project_still_finds_its_entry(walls: Walls) -> None:
    sched_id = walls.put(walls.red, key="k")
    walls.kernel.terminate(walls.red, "completed", queued="keep")
    assert walls.put(walls.red, key="k") == sched_id


# --- notes ---------------------------------------------------------------------------------------


def test_each_project_has_notes_of_its_own(walls: Walls) -> None:
    walls.journal.remember("cursor", {"at": 0})
    walls.journal.remember("cursor", {"at": 1}, project_id="red")
    walls.journal.remember("cursor", {"at": 2}, project_id="blue")
    found = [walls.journal.recall("cursor", project_id=project) for project in (None, "red", "blue")]
    assert found == [{"at": 0}, {"at": 1}, {"at": 2}]


@pytest.mark.parametrize("name", ["triggers:fleet", 'red","x', "project:red/x", "red/x", "project_note:x"])
def test_no_name_of_a_note_reaches_out_of_its_project(walls: Walls, name: str) -> None:
    walls.journal.remember("triggers:fleet", {"heard": 7})
    walls.journal.remember("x", {"of": "red"}, project_id="red")
    walls.journal.remember(name, {"of": "blue"}, project_id="blue")
    assert walls.journal.recall("triggers:fleet") == {"heard": 7}
    assert walls.journal.recall("x", project_id="red") == {"of": "red"}


def test_a_note_needs_a_project_that_exists(walls: Walls) -> None:
    with pytest.raises(ProjectUnknown):
        walls.journal.remember("x", {}, project_id="green")
    assert walls.journal.recall("x", project_id="green") is None


def test_a_damaged_note_of_a_project_is_found(walls: Walls) -> None:
    walls.journal.remember("x", {}, project_id="red")
    walls.store.write(lambda tx: tx.run(sql("UPDATE kernel_meta SET value = '{' WHERE key LIKE 'project_note:%'")))
    (problem,) = walls.kernel.check()
    assert "project_note" in problem


# --- parents, predecessors, causes ---------------------------------------------------------------


@pytest.mark.parametrize("field", ["parent_id", "after", "causation_id"])
def test_an_entry_of_another_project_cannot_be_named_and_is_as_unknown_as_one_that_never_was(
    walls: Walls, field: str
) -> None:
    known = walls.put(walls.blue)

    def name(sched_id: int) -> Callable[[], int]:
        value = {"parent_id": sched_id, "after": (sched_id,), "causation_id": f"entry:{sched_id}"}[field]
        return lambda: walls.put(walls.red, **{field: value})

    before = walls.everything()
    assert refusal(name(known), SchedUnknownId) == refusal(name(NEVER_USED), SchedUnknownId)
    assert walls.everything() == before
    own = walls.put(walls.red)
    assert name(own)() > own


@pytest.mark.parametrize("pids", [("red", "free"), ("free", "red"), ("red", "blue")])
def test_without_a_project_is_a_scope_of_its_own(walls: Walls, pids: tuple[str, str]) -> None:
    namer, named = (getattr(walls, each) for each in pids)
    with pytest.raises(SchedUnknownId):
        walls.put(namer, after=(walls.put(named),))


def test_a_batch_across_projects_is_refused_whole(walls: Walls) -> None:
    before = walls.everything()
    with pytest.raises(SchedUnknownId) as caught:
        walls.queue.enqueue_many([ScheduleSpec(walls.red), ScheduleSpec(walls.blue, after=(-1,))])
    assert caught.value.data["index"] == 1
    assert walls.everything() == before


def test_a_causation_that_names_no_entry_is_any_text(walls: Walls) -> None:
    for cause in ("event:1", "entry:", "entry:x", "entry:-1", "entries:5"):
        walls.put(walls.red, causation_id=cause)
    with pytest.raises(SchedUnknownId):
        walls.put(walls.red, causation_id=f"entry:{10**200}")


def test_a_copy_of_a_failed_entry_names_the_entry_of_its_own_project(walls: Walls) -> None:
    failed = walls.ended(walls.red, "failed")
    assert walls.queue.get(walls.queue.retry(failed)).project_id == "red"


# --- runs ----------------------------------------------------------------------------------------


def test_a_run_starts_no_agent_of_another_project(walls: Walls) -> None:
    run = walls.run_of(walls.red)
    before = walls.everything()
    stranger = refusal(lambda: walls.spawn(run, walls.blue), UnknownPid)
    assert stranger == refusal(lambda: walls.spawn(run, NEVER_USED), UnknownPid)
    assert walls.everything() == before
    assert walls.queue.get(walls.spawn(run, walls.red)).parent_id == run.sched_id


def test_a_name_means_only_agents_that_the_run_may_reach(walls: Walls) -> None:
    run = walls.run_of(walls.red)
    assert run.token is not None
    find = walls.kernel.supervision.agent_to_spawn
    with pytest.raises(UnknownAgent):
        find(run.sched_id, run.token, "writer")
    walls.agent("writer")
    with pytest.raises(UnknownAgent):  # nor does it learn that there are two
        find(run.sched_id, run.token, "writer")
    own = walls.agent("writer", project_id="red")
    assert find(run.sched_id, run.token, "writer").pid == own


def test_a_run_awaits_no_entry_of_another_project(walls: Walls) -> None:
    run, theirs = walls.run_of(walls.red), walls.ended(walls.blue, "completed")
    stranger = refusal(lambda: walls.await_entry(run, theirs), SchedUnknownId)
    assert stranger == refusal(lambda: walls.await_entry(run, NEVER_USED), SchedUnknownId)
    walls.await_entry(run, walls.spawn(run, walls.red))


def test_a_grant_opens_the_wall_in_one_direction_until_it_is_revoked(walls: Walls) -> None:
    red, blue = walls.run_of(walls.red), walls.run_of(walls.blue)
    walls.projects.grant("red", "blue")
    child = walls.spawn(red, walls.blue, after=(red.sched_id,))
    assert walls.queue.get(child).project_id == "blue"
    walls.await_entry(red, child)
    assert walls.put(walls.red, after=(child,)) > child
    assert red.token is not None
    assert walls.kernel.supervision.agent_to_spawn(red.sched_id, red.token, "writer").pid == walls.blue
    with pytest.raises(UnknownPid):
        walls.spawn(blue, walls.red)
    with pytest.raises(SchedUnknownId):
        walls.put(walls.blue, after=(red.sched_id,))
    assert walls.projects.revoke_grant("red", "blue")
    with pytest.raises(UnknownPid):
        walls.spawn(red, walls.blue)
    with pytest.raises(SchedUnknownId):
        walls.await_entry(red, child)
    assert not walls.projects.revoke_grant("red", "blue")


def test_a_child_behind_a_wall_cannot_lend_the_way_back(walls: Walls) -> None:
    """A grant from red to blue and one from blue to green give red nothing in green."""
    walls.projects.create("green")
    green = walls.agent("green", project_id="green")
    walls.projects.grant("red", "blue")
    walls.projects.grant("blue", "green")
    with pytest.raises(UnknownPid):
        walls.spawn(walls.run_of(walls.red), green)


def test_a_grant_may_be_for_what_has_no_project(walls: Walls) -> None:
    walls.projects.grant(None, "blue")
    assert walls.spawn(walls.run_of(walls.free), walls.blue)
    with pytest.raises(UnknownPid):
        walls.spawn(walls.run_of(walls.blue), walls.free)


def test_grants_are_listed_with_who_made_them_and_are_events(walls: Walls) -> None:
    since = walls.journal.cursor()
    made = walls.projects.grant("red", "blue")
    assert walls.projects.grant("red", "blue") == made
    walls.projects.grant(None, "red")
    walls.projects.revoke_grant(None, "red")
    assert walls.projects.grants() == [made]
    assert made.granted_by == walls.events(since)[0].author
    kinds = ["kernel.project.granted", "kernel.project.granted", "kernel.project.grant_revoked"]
    assert [event.kind for event in walls.events(since)] == kinds


def test_invalid_grants_are_refused(walls: Walls, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProjectInvalid, match="another project"):
        walls.projects.grant("red", "red")
    with pytest.raises(ProjectUnknown):
        walls.projects.grant("red", "green")
    monkeypatch.setattr(grants, "GRANTS_MAX", 1)
    walls.projects.grant("red", "blue")
    with pytest.raises(LimitExceeded, match="grants_max"):
        walls.projects.grant("blue", "red")


def test_grants_are_replayed_from_checkpoint_and_journal(walls: Walls) -> None:
    walls.projects.grant("red", "blue")
    walls.projects.grant(None, "red")
    walls.kernel.retention.checkpoint()
    walls.projects.revoke_grant(None, "red")
    walls.projects.grant("blue", "red")
    tables = walls.store.read(KernelState.from_tables)
    assert tables.grants == {("red", "blue"), ("blue", "red")}
    assert walls.store.read(KernelState.from_journal).at(walls.now) == tables.at(walls.now)


# --- limits --------------------------------------------------------------------------------------


def limit(walls: Walls, name: str = "model", **more: object) -> None:
    walls.contexts.create(bound_to="name", bound_id=name, budget=10, period_s=60, **more)  # type: ignore[arg-type]


def throttle(walls: Walls, run: ReadyEntry, retry_after_s: float, name: str | None = None) -> dict[str, float]:
    assert run.token is not None
    return walls.kernel.supervision.throttle(run.sched_id, run.token, retry_after_s, name)


def test_a_run_pauses_only_limits_that_it_draws_on(walls: Walls) -> None:
    limit(walls)
    limit(walls, "other")
    run = walls.run_of(walls.red, draws_on=("model",))
    with pytest.raises(SchedInvalidPayload, match="draws on"):
        throttle(walls, run, 5, "other")
    assert throttle(walls, run, 5) == {"model": walls.now + 5}
    assert [event.by for event in walls.facts() if isinstance(event, LimitThrottled)] == [walls.red]
    (reason,) = walls.reasons_against(walls.put(walls.blue, draws_on=("model",)))
    assert isinstance(reason, LimitExhausted)
    free = walls.put(walls.blue, draws_on=("other",))
    assert walls.take_ids() == [free]


def test_a_pause_has_a_maximum_and_can_be_lifted(walls: Walls) -> None:
    limit(walls)
    run = walls.run_of(walls.red, draws_on=("model",))
    assert throttle(walls, run, 1_000_000 * 86_400.0) == {"model": walls.now + THROTTLE_MAX_S}
    assert walls.contexts.throttle("model", THROTTLE_MAX_S) == walls.now + THROTTLE_MAX_S
    with pytest.raises(ContextInvalid):
        walls.contexts.throttle("model", THROTTLE_MAX_S + 1)
    waits = walls.put(walls.blue, draws_on=("model",))
    caller = walls.waiter()
    walls.contexts.resume("model")
    assert caller.outcome() == [waits]
    assert [event.name for event in walls.facts() if isinstance(event, LimitResumed)] == ["model"]


def test_a_refill_after_a_lifted_pause_comes_at_its_own_time(walls: Walls) -> None:
    limit(walls)
    run = walls.run_of(walls.red, draws_on=("model",))
    walls.queue.charge(run.sched_id, {"tokens": 10}, token=run.token)
    throttle(walls, run, 3_600)
    walls.contexts.resume("model")
    waits = walls.put(walls.red, draws_on=("model",))
    assert walls.take_ids() == []
    walls.clock.advance(61)
    assert walls.take_ids() == [waits]


def test_a_limit_of_one_project_binds_and_is_paused_by_its_own_entries_only(walls: Walls) -> None:
    limit(walls, project_id="blue")
    with pytest.raises(SchedInvalidPayload, match="no limit has this name"):
        walls.put(walls.red, draws_on=("model",))
    run = walls.run_of(walls.blue, draws_on=("model",))
    assert throttle(walls, run, 60) == {"model": walls.now + 60}
    theirs = walls.put(walls.red)
    walls.put(walls.blue, draws_on=("model",))
    assert walls.take_ids() == [theirs]


def test_projects_may_have_limits_of_the_same_name_but_not_beside_a_shared_one(walls: Walls) -> None:
    for project_id in ("red", "blue"):
        limit(walls, project_id=project_id)
    with pytest.raises(ContextExists, match="of single projects"):
        limit(walls, project_id=None)
    run = walls.run_of(walls.red, draws_on=("model",))
    walls.queue.charge(run.sched_id, {"tokens": 4}, token=run.token)
    left = {context.project_id: context.remaining for context in walls.contexts.list()}
    assert left == {"red": 6, "blue": 10}
    with pytest.raises(ProjectUnknown):
        limit(walls, project_id="green")
    with pytest.raises(ContextInvalid, match="only for a limit"):
        walls.contexts.create(bound_to="agent", bound_id=walls.red, budget=1, period_s=1, project_id="red")
