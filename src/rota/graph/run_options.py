"""The options of a run, and the reasons why a run ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from rota.clock import Clock, SystemClock
from rota.errors import InvalidInput
from rota.graph.accounts import RunAccount
from rota.graph.lanes.durable import DurableRuns
from rota.graph.stop import StopToken
from rota.graph.tasks import TaskExecutorConfig
from rota.graph.tracing import ROWS_MAX
from rota.model.checks import Checks

__all__ = ["IDLE_STEPS_MAX", "RuntimeRunnerOptions", "SchedulerStopReason"]

# maximum epochs of a run with `run_until_idle` and without `steps`, since something last arrived from outside
IDLE_STEPS_MAX = 1_000

_checks = Checks("RuntimeRunnerOptions", InvalidInput)


class SchedulerStopReason(StrEnum):
    """Why a run ended."""

    NOT_STARTED = "not_started"
    TICK_BOUND = "tick_bound"
    DURATION_BOUND = "duration_bound"
    IDLE = "idle"
    WAITING = "waiting"
    STOP_REQUESTED = "stop_requested"
    ERROR = "error"


@dataclass(frozen=True, kw_only=True)
class RuntimeRunnerOptions:
    """How long to run, on which clock, and what to record.

    Without `steps` and `duration_ms` a run has one epoch; with `run_until_idle` at most `IDLE_STEPS_MAX`.
    """

    steps: int | None = None
    duration_ms: float | None = None
    run_until_idle: bool = False
    stop_token: StopToken = field(default_factory=StopToken)
    clock: Clock = field(default_factory=SystemClock)
    trace: bool = False
    trace_rows_max: int = ROWS_MAX
    run_id: str | None = None  # None: a new id; pass an earlier id to resume a run with a queue lane
    restore: Mapping[str, Any] = field(default_factory=dict)  # by component: what its snapshot() returned earlier
    task_executor: TaskExecutorConfig = field(default_factory=TaskExecutorConfig)
    durable: DurableRuns | None = None  # the kernel that stores the run and its entries; required by queue lanes
    account: RunAccount | None = None  # where components count what they use; None: the store, or this process
    inputs: Mapping[str, Any] = field(default_factory=dict)  # values of the run's inputs (`rota.input`), by id
    fails_closed: bool = False  # an island: an invocation that takes longer than its budget ends the run
    returns_when_waiting: bool = False  # end as soon as nothing can happen before an entry ends or a time comes
    on_epoch: Callable[[int], None] | None = None  # called after each epoch, on the run's thread

    def __post_init__(self) -> None:
        if self.steps is not None:
            _checks.whole("steps", self.steps, 0)
        if self.duration_ms is not None:
            _checks.duration("duration_ms", self.duration_ms)
        _checks.whole("trace_rows_max", self.trace_rows_max, 1)

    @property
    def steps_max(self) -> int | None:
        """The maximum number of epochs; None: no maximum."""
        if self.steps is not None:
            return self.steps
        if self.run_until_idle:
            return IDLE_STEPS_MAX
        return None if self.duration_ms is not None else 1
