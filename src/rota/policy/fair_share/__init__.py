"""Fair share: the project furthest behind its weight is next.

`fair_share` is the policy. `Scheduler` applies the same idea to a program's own projects, tasks and agents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.policy.fair_share.passed_over import PassedOver, PassedOverReason
    from rota.policy.fair_share.policy import fair_share
    from rota.policy.fair_share.scheduler import Scheduler
    from rota.policy.fair_share.scheduler_types import (
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

__all__ = [
    "Agent",
    "AgentState",
    "AssignAction",
    "PassedOver",
    "PassedOverReason",
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

__getattr__ = exports(
    __name__,
    {
        "passed_over": ("PassedOver", "PassedOverReason"),
        "policy": ("fair_share",),
        "scheduler": ("Scheduler",),
        "scheduler_types": (
            "Agent",
            "AgentState",
            "AssignAction",
            "Project",
            "ProjectConstraint",
            "ProjectStatus",
            "SchedulerState",
            "Task",
            "TaskStatus",
            "TaskType",
        ),
    },
)
