"""The methods for events, retention and the store as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol

from rota import errors as e
from rota.kernel.retention import PruneResult
from rota.model.events import Event, EventData
from rota.model.explanation import Explanation
from rota.model.work import Agent, ExitKind
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

    @method("system.info", scope="read", execution="read", bound=own_reads("info"), run="view")
    def info(self) -> dict[str, Any]:
        """Return counts and sizes of the store."""
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
