"""Projects: creating and changing them, their status, caps and constraints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rota.errors import FleetInvalid, ProjectExists, ProjectIllegalTransition, ProjectInvalid, ProjectUnknown
from rota.model.events import FlowReweighted, ProjectCreated, ProjectTransitioned, ProjectUpdated
from rota.model.reasons import BlockingBase, CapReached, PausedByOperator, ProjectInactive
from rota.model.work import ProjectConstraint
from tests.kernel.world import START, World

# --- creating and changing -----------------------------------------------------------------------


def test_a_new_project_is_active_and_named_like_its_id(world: World) -> None:
    project = world.projects.create("lab", weight=2_000, max_concurrent=3, metadata={"owner": "anna"})
    assert project == world.projects.get("lab")
    assert (project.name, project.weight, project.max_concurrent, project.status) == ("lab", 2_000, 3, "ACTIVE")
    assert (project.metadata, project.created_at, project.paused_by) == ({"owner": "anna"}, START, None)
    assert world.facts() == [ProjectCreated(project_id="lab", weight=2_000, max_concurrent=3)]


def test_a_project_id_is_unique_and_one_is_reserved_for_all_projects(world: World) -> None:
    world.projects.create("lab")
    before = world.everything()
    with pytest.raises(ProjectExists) as caught:
        world.projects.create("lab")
    assert caught.value.code == -32182
    with pytest.raises(ProjectInvalid):
        world.projects.create("*")
    assert world.everything() == before


def test_an_unknown_project_is_named(world: World) -> None:
    before = world.everything()
    calls: list[Callable[[], object]] = [
        lambda: world.projects.get("nowhere"),
        lambda: world.projects.update("nowhere", weight=5),
        lambda: world.projects.move("nowhere", "pause"),
        lambda: world.projects.constrain("nowhere", ProjectConstraint()),
        lambda: world.projects.add_workspace("w", "nowhere", "/w"),
        lambda: world.ledger.set_budget("project", "nowhere", "tokens", 5),
    ]
    for call in calls:
        with pytest.raises(ProjectUnknown) as caught:
            call()
        assert caught.value.code == -32181
    assert world.everything() == before


def test_a_changed_weight_is_on_record_as_such(world: World) -> None:
    world.projects.create("lab")
    cursor = world.journal.cursor()
    project = world.projects.update("lab", weight=4_000, name="The Lab", metadata={"a": 1})
    assert (project.weight, project.name, project.metadata) == (4_000, "The Lab", {"a": 1})
    changes = {"weight": 4_000, "name": "The Lab", "metadata": {"a": 1}}
    assert world.facts(cursor) == [
        ProjectUpdated(project_id="lab", changes=changes),
        FlowReweighted(level="project", key="lab", weight=4_000, previous=1_000),
    ]


@pytest.mark.parametrize(
    "changes",
    [{"weight": 0}, {"weight": True}, {"max_concurrent": -1}, {"name": ""}, {"status": "PAUSED"}, {"bogus": 1}],
)
def test_an_invalid_change_changes_nothing(world: World, changes: dict[str, Any]) -> None:
    world.projects.create("lab")
    before = world.everything()
    with pytest.raises(ProjectInvalid):
        world.projects.update("lab", **changes)
    assert world.everything() == before


@pytest.mark.parametrize("cpu", [{"cores": "5-2"}, {"lease": 100_000}, {"quotas": "20ms/100ms"}, 7])
def test_cpu_settings_that_a_run_could_not_read_are_refused(world: World, cpu: Any) -> None:
    """They were accepted, and each agent of the project was paused at its next run, with its own settings blamed."""
    world.projects.create("lab", metadata={"cpu": {"cores": "0-1"}})
    with pytest.raises(FleetInvalid, match="CpuSettings"):
        world.projects.update("lab", metadata={"cpu": cpu})
    with pytest.raises(FleetInvalid, match="CpuSettings"):
        world.projects.create("studio", metadata={"cpu": cpu})
    assert [project.metadata for project in world.projects.list()[0]] == [{"cpu": {"cores": "0-1"}}]


def test_projects_are_listed_by_id_and_status(world: World) -> None:
    for name in ("c", "a", "b"):
        world.projects.create(name)
    world.projects.move("b", "pause")
    page, total = world.projects.list(limit=2)
    assert ([project.project_id for project in page], total) == (["a", "b"], 3)
    paused, total = world.projects.list(status="PAUSED")
    assert ([project.project_id for project in paused], total) == (["b"], 1)
    with pytest.raises(ProjectInvalid):
        world.projects.list(status="SLEEPING")


# --- status --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verbs", "status", "reason"),
    [
        (["pause"], "PAUSED", PausedByOperator(level="project", owner="lab", by="anna")),
        (["pause", "resume"], "ACTIVE", None),
        (["archive"], "ARCHIVED", ProjectInactive(project_id="lab", status="ARCHIVED")),
        (["pause", "archive", "restore"], "PAUSED", ProjectInactive(project_id="lab", status="PAUSED")),
        (["archive", "restore", "resume"], "ACTIVE", None),
    ],
)
def test_only_an_active_project_is_scheduled(
    world: World, lab: int, verbs: list[str], status: str, reason: BlockingBase | None
) -> None:
    sched_id, free = world.put(lab, priority=9), world.put(world.agent())
    for verb in verbs:
        project = world.projects.move("lab", verb, by="anna")
    assert project.status == status
    last = world.facts()[-1]
    assert isinstance(last, ProjectTransitioned)
    assert (last.new_status, last.by) == (status, "anna")
    assert world.take_ids() == ([sched_id, free] if reason is None else [free])
    if reason is not None:
        assert world.reasons_against(sched_id) == [reason]


@pytest.mark.parametrize(("way", "verb"), [([], "resume"), ([], "restore"), (["archive"], "pause"), ([], "explode")])
def test_an_illegal_move_changes_nothing(world: World, way: list[str], verb: str) -> None:
    world.projects.create("lab")
    for step in way:
        world.projects.move("lab", step)
    before = world.everything()
    with pytest.raises(ProjectIllegalTransition) as caught:
        world.projects.move("lab", verb)
    assert caught.value.code == -32187
    assert world.everything() == before


def test_a_run_of_a_project_that_is_paused_meanwhile_runs_on(world: World, lab: int) -> None:
    sched_id = world.put(lab)
    entry = world.take_one()
    world.projects.move("lab", "archive")
    assert entry.token is not None
    world.queue.heartbeat(sched_id, entry.token)
    assert world.queue.complete(sched_id, "completed", token=entry.token) == ("dispatched", "completed")


def test_the_fleet_can_be_paused_as_a_whole(world: World, lab: int) -> None:
    ids = [world.put(lab), world.put(world.agent())]
    world.projects.pause_fleet("anna", "maintenance")
    assert world.projects.fleet_paused_by() == "anna"
    assert world.take() == []
    assert world.reasons_against(ids[0]) == [PausedByOperator(level="fleet", owner="*", by="anna")]
    world.projects.resume_fleet("bert")
    assert world.projects.fleet_paused_by() is None
    assert world.take_ids() == ids
    kinds = [event.kind for event in world.events() if event.kind.startswith("kernel.pause")]
    assert kinds == ["kernel.pause.set", "kernel.pause.lifted"]


# --- caps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", [0, 1, 3])
def test_a_project_runs_at_most_its_cap_in_one_claim_and_in_many(world: World, cap: int) -> None:
    world.projects.create("lab", max_concurrent=cap)
    agents = [world.agent(project_id="lab") for _ in range(4)]
    ids = [world.put(pid, priority=9) for pid in agents for _ in range(2)]
    free = world.put(world.agent())
    assert world.take_ids() == [*ids[:cap], free]  # entries over the cap hide none behind them
    assert world.take() == []
    if cap:
        world.queue.complete(ids[0], "completed")
        assert world.take_ids() == [ids[cap]]
    world.projects.update("lab", max_concurrent=None)
    assert len(world.take(10)) == len(ids) - cap - min(cap, 1)


def test_an_agent_runs_at_most_its_cap(world: World) -> None:
    pid = world.agent(max_concurrent=2)
    ids = [world.put(pid) for _ in range(4)]
    assert world.take_ids() == ids[:2]
    assert world.take() == []
    assert world.reasons_against(ids[2]) == [CapReached(level="agent", owner=str(pid), running=2, cap=2)]
    world.queue.complete(ids[1], "failed")
    assert world.take_ids() == [ids[2]]
    world.agents.update(pid, max_concurrent=0)
    assert world.take() == []


def test_caps_hold_at_agent_and_project_together(world: World) -> None:
    world.projects.create("lab", max_concurrent=3)
    one, two = world.agent(project_id="lab", max_concurrent=2), world.agent(project_id="lab")
    ones, twos = [world.put(one, priority=9) for _ in range(3)], [world.put(two) for _ in range(3)]
    assert world.take_ids() == [*ones[:2], twos[0]]


def test_occupancy_is_what_is_live_however_it_ended(world: World, lab: int) -> None:
    world.projects.update("lab", max_concurrent=1)
    for ending in ("complete", "expire", "put_back", "gc", "retry"):
        world.put(lab, max_attempts=1 if ending != "retry" else 3)
        entry = world.take_one(claim_timeout_s=10)
        assert world.take() == []
        assert entry.token is not None
        if ending == "complete":
            world.queue.complete(entry.sched_id, "completed", token=entry.token)
        elif ending == "expire":
            world.clock.advance(11)
        elif ending == "put_back":
            world.queue.put_back(entry.sched_id, token=entry.token, runnable_at=world.now + 100_000)
        elif ending == "gc":
            world.clock.advance(1)
            assert world.queue.gc_dispatched(0.5) == 1
        else:
            world.queue.complete(entry.sched_id, "crashed", token=entry.token)
        free = world.put(lab)
        assert world.take_ids(1) == [free], ending
        world.queue.complete(free, "completed")
        for left in world.queue.list(state="queued")[0]:
            world.queue.cancel(left.sched_id)


# --- constraints ---------------------------------------------------------------------------------


def test_an_exclusive_project_runs_one_at_a_time(world: World, lab: int) -> None:
    ids = [world.put(lab) for _ in range(3)]
    world.projects.constrain("lab", ProjectConstraint(exclusive=True))
    assert world.take_ids() == ids[:1]
    world.queue.complete(ids[0], "completed")
    assert world.take_ids() == ids[1:2]
    world.projects.constrain("lab", ProjectConstraint())
    assert world.take_ids() == ids[2:]


def test_an_exclusive_project_with_a_cap_of_none_at_all_runs_nothing(world: World, lab: int) -> None:
    world.put(lab)
    world.projects.update("lab", max_concurrent=0)
    world.projects.constrain("lab", ProjectConstraint(exclusive=True))
    assert world.take() == []


def test_a_kind_of_slot_can_be_capped_for_a_project(world: World, lab: int) -> None:
    gpus = [world.put(lab, kind="gpu", priority=9) for _ in range(3)]
    plain = world.put(lab)
    other = world.put(lab, kind="cpu")
    world.projects.constrain("lab", ProjectConstraint(max_by_kind={"gpu": 1, "cpu": 0}))
    assert world.take_ids(kinds=("gpu", "cpu")) == [gpus[0], plain]
    assert world.reasons_against(gpus[1]) == [CapReached(level="kind", owner="lab", running=1, cap=1)]
    world.projects.constrain("lab", ProjectConstraint(max_by_kind={"gpu": 2}))
    assert world.take_ids(kinds=("gpu", "cpu")) == [gpus[1], other]


def test_a_constraint_can_pause_a_project(world: World, lab: int) -> None:
    sched_id = world.put(lab)
    world.projects.constrain("lab", ProjectConstraint(pause_scheduling=True))
    assert world.take() == []
    assert world.reasons_against(sched_id) == [PausedByOperator(level="project", owner="lab", by="constraint")]
    world.projects.constrain("lab", ProjectConstraint())
    assert world.take_ids() == [sched_id]
