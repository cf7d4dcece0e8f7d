"""The fair-share Scheduler: one test for each check."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from rota.errors import ProjectInvalid, SchedInvalidPayload
from rota.policy.fair_share import (
    Agent,
    AgentState,
    AssignAction,
    Project,
    ProjectConstraint,
    ProjectStatus,
    Scheduler,
    SchedulerState,
    Task,
    TaskStatus,
    TaskType,
)


def ready(task_id: str, project_id: str = "A", **fields: Any) -> Task:
    return Task(task_id, project_id, status=TaskStatus.READY, **fields)


def agents(count: int, agent_type: str = "claude") -> list[Agent]:
    return [Agent(f"agent-{number}", f"Agent {number}", agent_type) for number in range(1, count + 1)]


def state(projects: list[Project], tasks: list[Task], workers: list[Agent], **fields: Any) -> SchedulerState:
    tables: dict[str, Any] = {
        "project_token_usage": {},
        "project_active_agent_counts": {},
        "tasks_completed_in_window": {project.id: 1 for project in projects},
    }
    return SchedulerState(projects, tasks, workers, **{**tables, **fields})


def given(world: SchedulerState) -> list[str]:
    return [action.task_id for action in Scheduler.schedule(world)]


A, B = Project("A", "A"), Project("B", "B")


# --- shares --------------------------------------------------------------------------------------


def test_the_worked_example_a_is_behind_its_three_quarters_and_goes_next() -> None:
    world = SchedulerState(
        [Project("A", "A", 3), Project("B", "B", 1)],
        [ready("a1", "A"), ready("b1", "B")],
        agents(1),
        {"A": 1000, "B": 500},
        {},
        {"A": 5, "B": 5},
    )
    assert Scheduler.schedule(world) == [AssignAction("agent-1", "a1", "A")]


def test_a_project_without_a_completion_in_the_window_goes_before_one_that_is_further_behind() -> None:
    world = state(
        [Project("A", "A", 9), Project("B", "B", 1)],
        [ready("a1", "A"), ready("b1", "B")],
        agents(1),
        project_token_usage={"B": 1000},
        tasks_completed_in_window={"A": 1},
    )
    assert given(world) == ["b1"]


def test_the_ranking_is_fixed_so_a_project_behind_takes_every_agent_up_to_its_limit() -> None:
    tasks = [ready(f"a{n}", "A") for n in range(5)] + [ready("b1", "B")]
    world = state([B, Project("A", "A", 1, 3)], tasks, agents(4), project_token_usage={"B": 10})
    assert given(world) == ["a0", "a1", "a2", "b1"]


def test_of_two_projects_with_the_guarantee_the_first_takes_both_agents() -> None:
    tasks = [ready("a1"), ready("a2"), ready("b1", "B")]
    assert given(state([A, B], tasks, agents(2), tasks_completed_in_window={})) == ["a1", "a2"]


def test_ties_between_projects_and_agents_keep_the_input_order() -> None:
    tasks = [ready("a1"), ready("b1", "B")]
    workers = [Agent("z", "z"), Agent("y", "y")]
    one_each = {"A": 1, "B": 1}
    assert Scheduler.schedule(state([B, A], tasks, workers, project_active_agent_counts=one_each)) == [
        AssignAction("z", "b1", "B"),
        AssignAction("y", "a1", "A"),
    ]


def test_weights_that_sum_to_zero_mean_equal_shares() -> None:
    tasks = [ready("a1"), ready("b1", "B")]
    world = state([Project("A", "A", 0), Project("B", "B", 0)], tasks, agents(1), project_token_usage={"A": 7, "B": 3})
    assert given(world) == ["b1"]


def test_usage_of_a_project_that_does_not_compete_counts_and_its_weight_does_not() -> None:
    # With 100 of C's, A stands at 60/200 − 3/4 and B at 40/200 − 1/4: A first. Without them, at 60% − 75% and
    # 40% − 25%, A too; but if C's weight of 96 counted, 60/200 − 3% and 40/200 − 1%: B first.
    gone = Project("C", "C", 96, status=ProjectStatus.PAUSED)
    tasks = [ready("a1"), ready("b1", "B"), ready("c1", "C")]
    projects = [Project("B", "B", 1), Project("A", "A", 3), gone]
    assert given(state(projects, tasks, agents(1), project_token_usage={"A": 60, "B": 40, "C": 100})) == ["a1"]
    # Here it is C's usage that decides: 8/10 − 2/3 against 2/10 − 1/3 favours B, 8/1010 − 2/3 favours A.
    projects = [Project("B", "B", 1), Project("A", "A", 2), gone]
    assert given(state(projects, tasks, agents(1), project_token_usage={"A": 8, "B": 2})) == ["b1"]
    assert given(state(projects, tasks, agents(1), project_token_usage={"A": 8, "B": 2, "C": 1000})) == ["a1"]


# --- tasks ---------------------------------------------------------------------------------------


def test_inside_a_project_lower_priority_numbers_go_first_then_older_then_the_lower_id() -> None:
    tasks = [
        ready("t-2", priority=5, created_at=9.0),
        ready("t-9", priority=5, created_at=1.0),
        ready("t-1", priority=5, created_at=9.0),
        ready("t-5", priority=1, created_at=50.0),
    ]
    assert given(state([Project("A", "A", 1, 9)], tasks, agents(4))) == ["t-5", "t-9", "t-1", "t-2"]


def test_only_ready_tasks_of_active_projects_are_assigned() -> None:
    tasks = [Task("a1", "A"), ready("b1", "B"), ready("x1", "unknown")]
    projects = [A, Project("B", "B", status=ProjectStatus.ARCHIVED)]
    assert given(state(projects, tasks, agents(2))) == []


def test_only_an_idle_agent_gets_a_task() -> None:
    workers = [
        Agent("busy", "busy", state=AgentState.BUSY),
        Agent("paused", "paused", state=AgentState.PAUSED),
        Agent("free", "free"),
        Agent("free", "listed twice"),
    ]
    assert Scheduler.schedule(state([A], [ready("a1"), ready("a2")], workers)) == [AssignAction("free", "a1", "A")]


def test_an_idle_agent_that_still_names_its_last_task_gets_one() -> None:
    stale = Agent("stale", "stale", "claude", current_task_id="old")
    gone = state([A], [ready("a1")], [stale])
    assert given(gone) == ["a1"]
    done = state([A], [Task("old", "A", status=TaskStatus.COMPLETED), ready("a1")], [stale])
    assert given(done) == ["a1"]
    cap = ProjectConstraint(max_agents_by_type={"claude": 1})  # it does not count as an agent of this type at work
    assert given(state([A], [*done.tasks], [stale], project_constraints={"A": cap})) == ["a1"]
    waits = ready("a2", affinity_agent_id="stale", created_at=990.0)  # and nobody waits for it
    assert given(state([A], [waits], [*agents(1), stale], now=1_000.0)) == ["a2"]


# --- budgets and caps ----------------------------------------------------------------------------


@pytest.mark.parametrize(("used", "expected"), [(99, ["a1"]), (100, []), (101, [])])
def test_nothing_is_assigned_once_the_global_budget_is_used(used: int, expected: list[str]) -> None:
    assert given(state([A], [ready("a1")], agents(1), global_budget=100, global_tokens_used=used)) == expected


@pytest.mark.parametrize(("used", "expected"), [(99, ["a1"]), (100, ["b1"])])
def test_a_project_that_used_its_budget_is_skipped(used: int, expected: list[str]) -> None:
    projects = [Project("A", "A", 100, budget_limit=100), B]
    world = state(projects, [ready("a1"), ready("b1", "B")], agents(1), project_token_usage={"A": used, "B": 900})
    assert given(world) == expected


def test_a_project_takes_no_more_agents_than_its_limit_counting_busy_ones() -> None:
    tasks = [ready(f"a{n}") for n in range(4)]
    assert given(state([Project("A", "A", 1, 3)], tasks, agents(4), project_active_agent_counts={"A": 1})) == [
        "a0",
        "a1",
    ]


def test_an_exclusive_project_takes_one_agent() -> None:
    world = state([A], [ready("a1"), ready("a2")], agents(2), project_constraints={"A": ProjectConstraint(True)})
    assert given(world) == ["a1"]
    world.project_active_agent_counts["A"] = 1
    assert given(world) == []


def test_a_paused_project_is_skipped() -> None:
    constraint = ProjectConstraint(pause_scheduling=True)
    tasks = [ready("a1"), ready("b1", "B")]
    assert given(state([A, B], tasks, agents(1), project_constraints={"A": constraint})) == ["b1"]


def test_a_cap_on_a_type_counts_busy_agents_and_those_assigned_in_the_round() -> None:
    held = Task("a0", "A", status=TaskStatus.IN_PROGRESS)
    at_work = Agent("at-work", "at work", "claude", AgentState.BUSY, "a0")
    tasks = [held, *(ready(f"a{n}") for n in range(1, 6))]
    idle = [Agent("c1", "c1", "claude"), Agent("x", "x", "codex"), Agent("c2", "c2", "codex, claude")]
    cap = {"A": ProjectConstraint(max_agents_by_type={"claude": 2})}
    project = Project("A", "A", 1, 9)
    world = state([project], tasks, [at_work, *idle], project_constraints=cap)
    assert [action.agent_id for action in Scheduler.schedule(world)] == ["c1", "x"]


# --- workspaces ----------------------------------------------------------------------------------


def test_workspaces_are_reserved_within_the_round() -> None:
    world = state([A], [ready("a1"), ready("a2")], agents(2), project_available_workspaces={"A": 1})
    assert given(world) == ["a1"]


def test_a_project_missing_from_the_workspace_table_has_none_and_an_empty_table_is_no_limit() -> None:
    tasks = [ready("a1"), ready("b1", "B")]
    assert given(state([A, B], tasks, agents(2), project_available_workspaces={"B": 5})) == ["b1"]
    assert given(state([A], tasks, agents(1), project_available_workspaces={})) == ["a1"]


def test_a_task_waits_until_the_workspace_it_prefers_is_free() -> None:
    tasks = [ready("a1", preferred_workspace_id="w"), ready("a2", priority=200)]
    assert given(state([A], tasks, agents(1), workspace_locks={"w": "other"})) == ["a2"]
    assert given(state([A], tasks, agents(1), workspace_locks={"w": None})) == ["a1"]
    assert given(state([A], tasks, agents(1), workspace_locks={"another": "other"})) == ["a1"]


def test_two_tasks_that_prefer_one_workspace_do_not_start_together() -> None:
    tasks = [ready("a1", preferred_workspace_id="w"), ready("a2", preferred_workspace_id="w")]
    assert given(state([A], tasks, agents(2))) == ["a1"]


# --- agent types ---------------------------------------------------------------------------------


def test_a_task_goes_only_to_an_agent_of_the_type_it_needs() -> None:
    tasks = [ready("a1", agent_type="codex"), ready("a2", priority=200)]
    assert given(state([A], tasks, agents(1, "claude"))) == ["a2"]
    assert given(state([A], tasks, agents(1, " claude , codex "))) == ["a1"]
    assert given(state([A], tasks, agents(1, ""))) == ["a2"]


@pytest.mark.parametrize("nothing", [None, "", "none", "null", " None "])
def test_some_type_names_accept_any_agent(nothing: str | None) -> None:
    assert given(state([A], [ready("a1", agent_type=nothing)], agents(1, "claude"))) == ["a1"]


def test_an_agent_without_a_fitting_task_in_the_first_projects_gets_one_of_the_last() -> None:
    projects = [Project(f"p{n}", f"p{n}") for n in range(10)]
    tasks = [ready(f"t{n}", f"p{n}", agent_type="codex") for n in range(9)] + [ready("t9", "p9")]
    assert given(state(projects, tasks, agents(2))) == ["t9"]


@pytest.mark.parametrize(("until", "expected"), [(99.0, ["a1"]), (100.0, ["a1"]), (100.5, [])])
def test_an_agent_whose_provider_cools_down_gets_nothing(until: float, expected: list[str]) -> None:
    world = state([A], [ready("a1")], agents(1), provider_cooldowns={"claude": until}, now=100.0)
    assert given(world) == expected


def test_an_agent_with_another_usable_type_gets_work() -> None:
    tasks = [ready("a1", agent_type="claude"), ready("a2", agent_type="codex", priority=200)]
    world = state([A], tasks, agents(1, "claude,codex"), provider_cooldowns={"claude": 200.0}, now=100.0)
    assert given(world) == ["a2"]


# --- affinity ------------------------------------------------------------------------------------


def test_a_task_that_prefers_this_agent_goes_before_more_urgent_ones() -> None:
    tasks = [ready("a1", priority=1), ready("mine", affinity_agent_id="agent-1")]
    assert given(state([A], tasks, agents(1))) == ["mine"]


def test_a_task_is_left_for_its_preferred_idle_agent() -> None:
    tasks = [ready("hers", priority=1, affinity_agent_id="agent-2"), ready("a2", priority=200)]
    assert given(state([A], tasks, agents(2))) == ["a2", "hers"]


def test_a_task_of_another_idle_agent_is_taken_when_there_is_nothing_better() -> None:
    assert given(state([A], [ready("hers", affinity_agent_id="agent-2")], agents(2))) == ["hers"]


def test_after_its_preferred_agent_got_other_work_a_task_has_no_preference() -> None:
    tasks = [
        ready("first", affinity_agent_id="agent-1", priority=1),
        ready("second", affinity_agent_id="agent-1", priority=2),
        ready("plain", priority=3),
    ]
    assert given(state([Project("A", "A", 1, 9)], tasks, agents(3))) == ["first", "second", "plain"]


@pytest.mark.parametrize(("waited", "expected"), [(119.0, []), (120.0, ["his"]), (121.0, ["his"])])
def test_a_task_waits_for_a_busy_agent_for_a_while(waited: float, expected: list[str]) -> None:
    workers = [*agents(1), Agent("busy", "busy", state=AgentState.BUSY, current_task_id="x")]
    task = ready("his", affinity_agent_id="busy", created_at=1000.0)
    assert given(state([A], [task], workers, now=1000.0 + waited)) == expected


@pytest.mark.parametrize("unknown", [{"now": 0.0}, {"affinity_wait_seconds": 0.0}, {"created_at": 0.0}])
def test_without_a_clock_a_wait_or_an_age_no_task_waits_for_a_busy_agent(unknown: dict[str, float]) -> None:
    workers = [*agents(1), Agent("busy", "busy", state=AgentState.BUSY)]
    facts = {"now": 1001.0, "affinity_wait_seconds": 120.0, "created_at": 1000.0, **unknown}
    task = ready("his", affinity_agent_id="busy", created_at=facts.pop("created_at"))
    assert given(state([A], [task], workers, **facts)) == ["his"]


def test_a_preference_for_an_unknown_or_failed_agent_does_not_count() -> None:
    workers = [*agents(1), Agent("broken", "broken", state=AgentState.ERROR)]
    tasks = [ready("a1", affinity_agent_id="broken", created_at=9.0), ready("a2", affinity_agent_id="unknown")]
    assert given(state([A], tasks, workers, now=10.0)) == ["a2"]
    assert given(state([A], tasks[:1], workers, now=10.0)) == ["a1"]


# --- sync tasks ----------------------------------------------------------------------------------


def test_a_ready_sync_task_is_the_only_one_its_project_starts() -> None:
    tasks = [ready("a1", priority=1), ready("s1", task_type=TaskType.SYNC), ready("s2", task_type=TaskType.SYNC)]
    assert given(state([A, B], [*tasks, ready("b1", "B")], agents(3))) == ["s1", "b1"]


@pytest.mark.parametrize("status", [TaskStatus.ASSIGNED, TaskStatus.IN_PROGRESS])
def test_while_a_sync_task_runs_its_project_starts_nothing(status: TaskStatus) -> None:
    sync = Task("s0", "A", status=status, task_type=TaskType.SYNC)
    tasks = [sync, ready("a1"), ready("s1", task_type=TaskType.SYNC)]
    assert given(state([A], tasks, agents(2))) == []


def test_a_finished_sync_task_blocks_nothing() -> None:
    sync = Task("s0", "A", status=TaskStatus.COMPLETED, task_type=TaskType.SYNC)
    assert given(state([A], [sync, ready("a1")], agents(1))) == ["a1"]


# --- types ---------------------------------------------------------------------------------------


def test_types_accept_positional_fields_and_statuses_as_strings() -> None:
    project = Project("A", "Alpha", 2.5, 4, "PAUSED", 7, 900)  # type: ignore[arg-type]
    assert (project.credit_weight, project.max_concurrent_agents, project.budget_limit) == (2.5, 4, 900)
    assert project.status is ProjectStatus.PAUSED
    task = Task("t", "A", "title", "description", 3, "READY", task_type="sync")  # type: ignore[arg-type]
    assert (task.priority, task.status, task.task_type) == (3, TaskStatus.READY, TaskType.SYNC)
    assert (Task("t", "A").priority, Task("t", "A").status) == (100, TaskStatus.DEFINED)
    assert (A.credit_weight, A.max_concurrent_agents, A.status) == (1.0, 2, ProjectStatus.ACTIVE)
    assert Agent("a", "a").state is AgentState.IDLE
    assert SchedulerState([], [], [], {}, {}, {}).affinity_wait_seconds == 120


def test_scheduling_does_not_change_its_input() -> None:
    world = state([A], [ready("a1", preferred_workspace_id="w")], agents(1), project_available_workspaces={"A": 1})
    assert Scheduler.schedule(world) == Scheduler.schedule(world)


@pytest.mark.parametrize(
    ("make", "error", "field"),
    [
        (lambda: Project("A", "A", math.nan), ProjectInvalid, "credit_weight"),
        (lambda: Project("A", "A", math.inf), ProjectInvalid, "credit_weight"),
        (lambda: Project("A", "A", -1), ProjectInvalid, "credit_weight"),
        (lambda: Project("A", "A", status="GONE"), ProjectInvalid, "status"),  # type: ignore[arg-type]
        (lambda: Project("A", "A", max_concurrent_agents=-1), ProjectInvalid, "max_concurrent_agents"),
        (lambda: Project("A", "A", budget_limit=-1), ProjectInvalid, "budget_limit"),
        (lambda: ProjectConstraint(max_agents_by_type={"claude": -1}), ProjectInvalid, "max_agents_by_type['claude']"),
        (lambda: Task("t", "A", status="LATER"), SchedInvalidPayload, "status"),  # type: ignore[arg-type]
        (lambda: Task("t", "A", task_type="party"), SchedInvalidPayload, "task_type"),  # type: ignore[arg-type]
        (lambda: Task("", "A"), SchedInvalidPayload, "id"),
        (lambda: Task("t", "A", created_at=math.nan), SchedInvalidPayload, "created_at"),
        (lambda: Agent("a", "a", state="GONE"), SchedInvalidPayload, "state"),  # type: ignore[arg-type]
        (lambda: SchedulerState([], [], [], {"A": -1}, {}, {}), SchedInvalidPayload, "project_token_usage['A']"),
        (lambda: SchedulerState([A, A], [], [], {}, {}, {}), SchedInvalidPayload, "projects"),
        (lambda: SchedulerState([], [], [], {}, {}, {}, now=math.nan), SchedInvalidPayload, "now"),
    ],
)
def test_a_bad_value_is_refused_by_name(make: Callable[[], object], error: type[Exception], field: str) -> None:
    with pytest.raises(error) as refused:
        make()
    assert getattr(refused.value, "field") == field  # noqa: B009  # the type of the error is a parameter
