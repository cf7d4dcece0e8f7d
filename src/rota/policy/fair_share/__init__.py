"""Fair share: whoever is furthest behind its weight goes next. The seed's door, and the policy."""

from rota.policy.fair_share.door import Scheduler
from rota.policy.fair_share.nouns import (
    Agent,
    AgentState,
    AssignAction,
    Project,
    ProjectConstraint,
    ProjectStatus,
    SchedulerState,
    Task,
    TaskStatus,
    TaskType,
)
from rota.policy.fair_share.policy import fair_share

__all__ = [
    "Agent",
    "AgentState",
    "AssignAction",
    "Project",
    "ProjectConstraint",
    "ProjectStatus",
    "Scheduler",
    "SchedulerState",
    "Task",
    "TaskStatus",
    "TaskType",
    "fair_share",
]
