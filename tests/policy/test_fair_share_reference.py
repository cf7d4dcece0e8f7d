"""The fast Scheduler equals a plainly written algorithm, on any state."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from bench.policy_fair_share import Described
from rota.policy.fair_share import (
    Agent,
    AgentState,
    Project,
    ProjectConstraint,
    ProjectStatus,
    Scheduler,
    SchedulerState,
    Task,
    TaskStatus,
    TaskType,
)

PROJECTS = ["A", "B", "C", "D"]
AGENTS = ["g1", "g2", "g3", "g4", "g5"]
TYPES = ["claude", "codex", "aider"]
WORKSPACES = ["w1", "w2", "w3"]
STATES_PER_SEED = 50  # drawn from a seed: a state has hundreds of choices, too many to draw one by one


class Chance(random.Random):
    """Draws states in which every check matters now and then, and none all the time."""

    def usually(self, usual: object, *others: object) -> object:
        return self.choice(others) if self.random() < 0.2 else usual

    def per_project(self, draw: Callable[[], int]) -> dict[str, int]:
        return {project_id: draw() for project_id in PROJECTS if self.random() < 0.8}

    def project(self, project_id: str) -> Project:
        return Project(
            project_id,
            project_id,
            credit_weight=self.choice([0, 1, 1.5, 3]),
            max_concurrent_agents=self.randint(0, 5),
            status=self.usually(ProjectStatus.ACTIVE, ProjectStatus.PAUSED),  # type: ignore[arg-type]
            budget_limit=self.usually(None, 0, 50),  # type: ignore[arg-type]
        )

    def task(self, number: int) -> Task:
        return Task(
            f"t-{number}",
            self.choice([*PROJECTS, "unknown"]),
            priority=self.randint(1, 3),
            status=self.usually(TaskStatus.READY, *TaskStatus),  # type: ignore[arg-type]
            task_type=self.usually(None, TaskType.FEATURE, TaskType.SYNC),  # type: ignore[arg-type]
            preferred_workspace_id=self.usually(None, *WORKSPACES),  # type: ignore[arg-type]
            agent_type=self.usually(None, "none", *TYPES),  # type: ignore[arg-type]
            affinity_agent_id=self.choice([None, None, None, *AGENTS, "unknown"]),
            created_at=self.choice([0.0, 850.0, 880.0, 950.0]),
        )

    def agent(self, agent_id: str) -> Agent:
        return Agent(
            agent_id,
            agent_id,
            ", ".join(self.sample(TYPES, self.randint(0, 2))),
            self.usually(AgentState.IDLE, *AgentState),  # type: ignore[arg-type]
            self.usually(None, "t-0", "t-1"),  # type: ignore[arg-type]
        )

    def constraint(self) -> ProjectConstraint:
        return ProjectConstraint(
            exclusive=self.random() < 0.2,
            max_agents_by_type={kind: self.randint(0, 2) for kind in TYPES if self.random() < 0.4},
            pause_scheduling=self.random() < 0.2,
        )

    def state(self) -> SchedulerState:
        return SchedulerState(
            projects=[self.project(project_id) for project_id in self.sample(PROJECTS, 4)],
            tasks=[self.task(number) for number in self.sample(range(20), self.randint(0, 20))],
            agents=[self.agent(agent_id) for agent_id in self.sample(AGENTS, 5)],
            project_token_usage=self.per_project(lambda: self.randint(0, 100)),
            project_active_agent_counts=self.per_project(lambda: self.randint(0, 2)),
            tasks_completed_in_window=self.per_project(lambda: self.randint(0, 2)),
            project_available_workspaces=self.choice([{}, self.per_project(lambda: self.randint(0, 3))]),
            workspace_locks={workspace: self.choice([None, "t-99"]) for workspace in WORKSPACES[:2]},
            global_budget=self.usually(None, 50, 100),  # type: ignore[arg-type]
            global_tokens_used=self.randint(0, 60),
            provider_cooldowns={kind: self.choice([999.0, 1000.0, 1001.0]) for kind in TYPES[:2]},
            project_constraints={project_id: self.constraint() for project_id in PROJECTS if self.random() < 0.4},
            now=self.choice([0.0, 1000.0, 1000.0]),
            affinity_wait_seconds=self.choice([0.0, 120.0, 120.0]),
        )


@given(st.integers(0, 2**32))
def test_the_scheduler_equals_the_plain_algorithm_and_assigns_nothing_twice(seed: int) -> None:
    chance = Chance(seed)
    for _ in range(STATES_PER_SEED):
        state = chance.state()
        actions = Scheduler.schedule(state)
        assert actions == Described(state).schedule()
        by_id = {task.id: task for task in state.tasks}
        preferred = [by_id[action.task_id].preferred_workspace_id for action in actions]
        reserved = [workspace for workspace in preferred if workspace is not None]
        assert len({action.agent_id for action in actions}) == len(actions)
        assert len({action.task_id for action in actions}) == len(actions)
        assert len(set(reserved)) == len(reserved)
