"""Ready tasks that a round passes over can be asked for, each with the check that it fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.policy.fair_share import (
    Agent,
    AgentState,
    PassedOver,
    PassedOverReason,
    Project,
    ProjectConstraint,
    ProjectStatus,
    Scheduler,
    SchedulerState,
    Task,
    TaskStatus,
    TaskType,
)
from tests.policy.test_fair_share_reference import STATES_PER_SEED, TYPES, Chance
from tests.policy.test_fair_share_scheduler import A, agents, ready, state

Reason = PassedOverReason
BUSY = Agent("busy", "busy", "claude", state=AgentState.BUSY, current_task_id="x")


def only(
    *workers: Agent, task: Task | None = None, projects: tuple[Project, ...] = (A,), **fields: Any
) -> SchedulerState:
    return state([*projects], [task or ready("a1")], [*workers], **fields)


one = agents(1)[0]
CASES: dict[Reason, SchedulerState] = {
    Reason.GLOBAL_BUDGET: only(one, global_budget=5, global_tokens_used=5),
    Reason.PROJECT_INACTIVE: only(one, projects=(Project("A", "A", status=ProjectStatus.PAUSED),)),
    Reason.SCHEDULING_PAUSED: only(one, project_constraints={"A": ProjectConstraint(pause_scheduling=True)}),
    Reason.PROJECT_BUDGET: only(one, projects=(Project("A", "A", budget_limit=9),), project_token_usage={"A": 9}),
    Reason.NO_IDLE_AGENT: only(BUSY),
    Reason.AGENTS_MAX: only(one, project_active_agent_counts={"A": 2}),
    Reason.NO_WORKSPACE: only(one, project_available_workspaces={"B": 1}),
    Reason.SYNC: state(
        [A], [Task("s", "A", status=TaskStatus.IN_PROGRESS, task_type=TaskType.SYNC), ready("a1")], [one]
    ),
    Reason.WORKSPACE_HELD: only(one, task=ready("a1", preferred_workspace_id="w"), workspace_locks={"w": "t"}),
    Reason.WAITS_FOR_AGENT: only(one, BUSY, task=ready("a1", affinity_agent_id="busy", created_at=990.0), now=1_000.0),
    Reason.NO_AGENT_OF_TYPE: only(one, task=ready("a1", agent_type="codex")),
    Reason.TYPE_MAX: only(one, project_constraints={"A": ProjectConstraint(max_agents_by_type={"claude": 0})}),
}


@pytest.mark.parametrize("reason", CASES)
def test_each_check_is_a_reason(reason: Reason) -> None:
    assert Scheduler.schedule(CASES[reason]) == []
    ((passed),) = Scheduler.passed_over(CASES[reason])
    assert (passed.task_id, passed.project_id, passed.reason) == ("a1", "A", reason)
    assert passed.detail


def test_every_reason_is_tested() -> None:
    assert {*CASES, Reason.OUTRANKED} == set(Reason)


def test_what_the_round_itself_uses_up_is_a_reason_too() -> None:
    big, tasks = Project("A", "A", max_concurrent_agents=9), [ready("a1"), ready("a2")]
    assert Scheduler.passed_over(state([big], tasks, agents(1))) == [
        PassedOver("a2", "A", Reason.OUTRANKED, "all 1 idle agents that it could have got other tasks")
    ]
    narrow = replace(big, max_concurrent_agents=1)
    assert [each.reason for each in Scheduler.passed_over(state([narrow], tasks, agents(2)))] == [Reason.AGENTS_MAX]
    shared = [replace(task, preferred_workspace_id="w") for task in tasks]
    assert [each.reason for each in Scheduler.passed_over(state([big], shared, agents(2)))] == [Reason.WORKSPACE_HELD]
    sync = [ready("s", task_type=TaskType.SYNC, priority=1), ready("a1")]
    assert [each.reason for each in Scheduler.passed_over(state([big], sync, agents(2)))] == [Reason.SYNC]


@given(st.integers(0, 2**32))
def test_every_ready_task_is_assigned_or_has_one_reason_and_more_agents_leave_none_outranked(seed: int) -> None:
    chance = Chance(seed)
    for _ in range(STATES_PER_SEED):
        world = chance.state()
        before = repr(world)
        assigned = [action.task_id for action in Scheduler.schedule(world)]
        passed = Scheduler.passed_over(world)
        assert repr(world) == before
        ready_ids = [task.id for task in world.tasks if task.status == TaskStatus.READY]
        assert sorted([*assigned, *(each.task_id for each in passed)]) == sorted(ready_ids)
        more = [Agent(f"more-{n}-{kind}", "", kind) for n in range(len(world.tasks)) for kind in ("", *TYPES)]
        enough = replace(world, agents=[*world.agents, *more])
        assert Reason.OUTRANKED not in {each.reason for each in Scheduler.passed_over(enough)}
