"""The methods for events, retention and the store as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol

from rota import errors as e
from rota.kernel.retention import PruneResult
from rota.model.entry_report import EntryReport
from rota.model.events import Event, EventData
from rota.model.explanation import Explanation, ExplanationSummary
from rota.model.retention import RetentionSetting, RetentionStatus
from rota.model.work import Agent, ExitKind, ScheduleSpec
from rota.service.api.declaration import REFUSED, method, own_reads, owned, unfiltered

__all__ = ["JournalApi", "RetentionApi", "SystemApi"]

_AGENT = (e.UnknownPid, e.InvalidPayload)


class JournalApi(Protocol):
    """The journal of events."""

    @method(
        "kernel.event.append",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="own",
        result="event_id",
        errors=_AGENT,
    )
    def append(
        self,
        pid: int | None,
        kind: str,
        payload: dict[str, Any] | None = None,
        *,
        causation_id: str | None = None,
        correlation_id: str | None = None,
    ) -> int:
        """Append an event of the caller's own; kinds that begin with kernel. are reserved."""
        ...

    @method(
        "kernel.event.tail",
        scope="read",
        execution="wait",
        bound=own_reads("events"),
        run="view",
        errors=(e.InvalidPayload,),
    )
    def tail(
        self,
        since: int = 0,
        limit: int = 1_000,
        *,
        pid: int | None = None,
        kinds: tuple[str, ...] = (),
        wait_s: float = 0.0,
    ) -> list[Event]:
        """Return the events after a cursor, oldest first; while there are none, wait up to wait_s."""
        ...

    @method(
        "kernel.event.remember",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        audited=False,
        retry_safe=True,
        errors=(e.InvalidPayload,),
    )
    def remember(self, name: str, note: dict[str, Any], *, project_id: str | None = None) -> None:
        """Store a note under a name, replacing the previous one; each project has notes of its own."""
        ...

    @method(
        "kernel.event.recall",
        scope="read",
        execution="read",
        bound=own_reads("note"),
        run="view",
        result="note",
        errors=(e.InvalidPayload,),
    )
    def recall(self, name: str, *, project_id: str | None = None) -> dict[str, Any] | None:
        """Return the note stored under a name, or null."""
        ...

    @method(
        "kernel.event.cursor", scope="read", execution="read", bound=unfiltered("a number"), run="view", result="cursor"
    )
    def cursor(self) -> int:
        """Return the id of the last event."""
        ...

    def record(self, fact: EventData, *, pid: int | None = None) -> int:
        """Record an event about a run, a trigger, a supervisor or the fleet."""
        ...

    def wait(self, since: int, wait_s: float) -> int:
        """Wait up to `wait_s` for an event after `since`, and return the id of the last event."""
        ...

    def follow(self, since: int | None = None, *, wait_s: float | None = None) -> Iterator[Event]:
        """Yield events as they are committed, from a cursor or from now on; end after `wait_s` without one."""
        ...


class RetentionApi(Protocol):
    """Checkpoints and the removal of old rows."""

    @method(
        "system.checkpoint",
        scope="admin",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        result="through_id",
        retry_safe=True,
    )
    def checkpoint(self) -> int:
        """Write a checkpoint of the folded state."""
        ...

    @method(
        "system.prune",
        scope="admin",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.InvalidPayload,),
    )
    def prune(self, *, events_older_than_s: float, entries_older_than_s: float) -> PruneResult:
        """Remove old events and finished entries after writing a checkpoint."""
        ...

    @method("system.retention", scope="read", execution="read", bound=REFUSED, run="refused")
    def status(self) -> RetentionStatus:
        """Return what the store keeps, what it has, and what was removed last."""
        ...

    @method(
        "system.set_retention",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.InvalidPayload,),
    )
    def set(
        self,
        *,
        enabled: bool | None = None,
        entries_s: float | None = None,
        entries_max: int | None = None,
        events_s: float | None = None,
        events_max: int | None = None,
        by: str = "operator",
    ) -> RetentionSetting:
        """Change what the store keeps, for all processes; what is not given stays."""
        ...


class SystemApi(Protocol):
    """What concerns several parts."""

    @method(
        "kernel.agent.terminate",
        scope="operate",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        audited=False,
        errors=(e.IllegalTransition, *_AGENT),
    )
    def terminate(
        self,
        pid: int,
        exit_kind: ExitKind,
        detail: dict[str, Any] | None = None,
        *,
        queued: Literal["cancel", "keep"] = "cancel",
    ) -> Agent:
        """Terminate an agent; its queued entries are cancelled unless queued is keep."""
        ...

    @method(
        "kernel.agent.enqueue",
        scope="enqueue",
        execution="write",
        bound=owned("pid"),
        run="refused",
        result="sched_id",
        errors=(e.FleetInvalid, e.UnknownPid, e.SchedUnknownId, e.SchedInvalidPayload),
    )
    def enqueue_agent(
        self,
        pid: int,
        payload: dict[str, Any] | None = None,
        *,
        priority: int | None = None,
        runnable_at: float | None = None,
        delay_s: float | None = None,
        deadline: float | None = None,
        key: str | None = None,
        tags: tuple[str, ...] | None = None,
        trigger: str | None = None,
        after: tuple[int, ...] | None = None,
        on_failed: Literal["cancel", "run", "hold"] | None = None,
        max_attempts: int | None = None,
        expected: dict[str, int] | None = None,
        ceiling: dict[str, int] | None = None,
        draws_on: tuple[str, ...] | None = None,
        kind: str | None = None,
        affinity: str | None = None,
        workspace: str | None = None,
        workspace_mode: Literal["exclusive", "shared"] | None = None,
        correlation_id: str | None = None,
        causation_id: str | None = None,
    ) -> int:
        """Enqueue an entry of an agent; what is null comes from the agent's settings, as `rota enqueue` does it."""
        ...

    @method("system.info", scope="read", execution="read", bound=own_reads("info"), run="view")
    def info(self) -> dict[str, Any]:
        """Return counts and sizes of the store."""
        ...

    @method(
        "kernel.sched.show",
        scope="read",
        execution="read",
        bound=owned("sched_id", view="entry_report"),
        run="view",
        errors=(e.SchedUnknownId, e.SchedInvalidPayload),
    )
    def show(self, sched_id: int) -> EntryReport:
        """Return everything about one entry: its attempts, usage, relatives and history."""
        ...

    @method(
        "kernel.sched.explain",
        scope="read",
        execution="dry_run",
        bound=owned("sched_id", view="explanation"),
        run="view",
        operate_fields=("now",),
        retry_safe=True,
        errors=(e.UnknownPolicy, e.SchedUnknownId, e.SchedInvalidPayload),
    )
    def explain(
        self,
        sched_id: int,
        *,
        worker_id: str = "any-worker",
        max_n: int = 1,
        policy: str | None = None,
        kinds: tuple[str, ...] = (),
        now: float | None = None,
    ) -> Explanation:
        """Explain why an entry is not running: what blocks it, what runs first, and what would change that."""
        ...

    @method(
        "kernel.sched.estimate",
        scope="read",
        execution="dry_run",
        bound=owned("spec", view="explanation"),
        run="children",
        retry_safe=True,
        errors=(e.UnknownPid, e.SchedUnknownId, e.SchedInvalidPayload),
    )
    def estimate(self, spec: ScheduleSpec) -> Explanation:
        """Explain what would happen to an entry if it were enqueued now: its place, and when it may start."""
        ...

    @method(
        "kernel.sched.explain_many",
        scope="read",
        execution="dry_run",
        bound=owned("project_id", view="explanation_summary"),
        run="refused",
        retry_safe=True,
        errors=(e.ProjectUnknown, e.SchedInvalidPayload),
    )
    def explain_many(self, *, pid: int | None = None, project_id: str | None = None) -> ExplanationSummary:
        """Count the reasons why the queued entries of an agent, of a project or of the whole store wait."""
        ...
