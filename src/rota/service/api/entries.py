"""The methods for entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, Unpack

from msgspec import UNSET, UnsetType

from rota import errors as e
from rota.errors import RotaError
from rota.kernel import Completion, EntryFilter, EntryGroup
from rota.kernel.bulk import BulkResult, BulkVerb
from rota.kernel.entry_reads import SearchResult
from rota.kernel.ledger import ChargeResult
from rota.kernel.run_reports import CompletionAnswer
from rota.kernel.running_entries import RunningPage
from rota.kernel.runs import HeartbeatReply
from rota.kernel.turn import CLAIM_TIMEOUT_S, ClaimOptions
from rota.model.work import ReadyEntry, ScheduleSpec
from rota.service.api.declaration import REFUSED, method, own_reads, owned, unfiltered, viewed

__all__ = ["QueueApi"]

EntryList: TypeAlias = list[ReadyEntry]  # in the class, `list` is a method
Groups: TypeAlias = list[EntryGroup]
_ENTRY = (e.SchedUnknownId, e.SchedInvalidPayload)
_NEW = (e.UnknownPid, e.SchedUnknownId, e.SchedInvalidPayload)
_RUN = (e.SchedUnknownId, e.StaleClaim, e.SchedInvalidPayload)


class QueueApi(Protocol):
    """Entries and their runs."""

    @method(
        "kernel.sched.enqueue",
        scope="enqueue",
        execution="write",
        bound=owned("spec"),
        run="children",
        result="sched_id",
        takes_struct=True,
        errors=_NEW,
    )
    def enqueue(self, spec: ScheduleSpec) -> int:
        """Enqueue an entry."""
        ...

    @method(
        "kernel.sched.enqueue_many",
        scope="enqueue",
        execution="write",
        bound=owned("specs"),
        run="children",
        result="sched_ids",
        errors=_NEW,
    )
    def enqueue_many(self, specs: Sequence[ScheduleSpec]) -> list[int]:
        """Enqueue many entries in one commit: all or none."""
        ...

    @method(
        "kernel.sched.enqueue_unique",
        scope="enqueue",
        execution="write",
        bound=owned("spec"),
        run="children",
        result=("sched_id", "created"),
        retry_safe=True,
        errors=_NEW,
    )
    def enqueue_unique(self, spec: ScheduleSpec, dedupe_by: Sequence[str] = ("pid", "trigger")) -> tuple[int, bool]:
        """Enqueue an entry unless a matching one is queued or running."""
        ...

    @method(
        "kernel.sched.complete",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="own",
        errors=(e.SchedIllegalTransition, *_RUN),
    )
    def complete(
        self, sched_id: int, exit_kind: str, *, token: int | None = None, result: Any = None, outcome: str | None = None
    ) -> tuple[str, str]:
        """Complete a run."""
        ...

    @method(
        "kernel.sched.complete_many",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.SchedInvalidPayload,),
    )
    def complete_many(self, completions: Sequence[Completion]) -> list[CompletionAnswer]:
        """Complete many runs in one commit; a rejected one has its error in its place."""
        ...

    @method(
        "kernel.sched.heartbeat",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="own",
        operate_fields=("now",),
        retry_safe=True,
        errors=_RUN,
    )
    def heartbeat(self, sched_id: int, token: int, now: float | None = None) -> HeartbeatReply:
        """Extend a claim."""
        ...

    @method(
        "kernel.sched.heartbeat_many",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        operate_fields=("now",),
        retry_safe=True,
        errors=(e.SchedInvalidPayload,),
    )
    def heartbeat_many(
        self, claims: Sequence[tuple[int, int]], now: float | None = None
    ) -> list[HeartbeatReply | RotaError]:
        """Extend many claims; a lost claim has its error in its place."""
        ...

    @method(
        "kernel.sched.charge",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="own",
        result="lines",
        errors=(e.LedgerInvalidAmount, *_RUN),
    )
    def charge(
        self,
        sched_id: int,
        amounts: Mapping[str, int],
        *,
        token: int | None = None,
        model: str | None = None,
        node: str | None = None,
        key: str | None = None,
    ) -> dict[str, ChargeResult]:
        """Record what a run used, at every level, the model that it used, and the node if it coordinates a graph.

        A second charge of a run with the same key records nothing, so a charge may be repeated.
        """
        ...

    @method("kernel.sched.put_back", scope="work", execution="write", bound=REFUSED, run="refused", errors=_RUN)
    def put_back(
        self,
        sched_id: int,
        *,
        token: int,
        verb: Literal["yield", "preempt"] = "yield",
        runnable_at: float | None = None,
        delay_s: float = 0.0,
    ) -> None:
        """Return a run's entry to the queue without counting an attempt."""
        ...

    @method(
        "kernel.sched.cancel",
        scope="enqueue",
        execution="write",
        bound=owned("sched_id"),
        run="own_or_child",
        errors=(e.SchedIllegalTransition, *_ENTRY),
    )
    def cancel(self, sched_id: int) -> tuple[str, str]:
        """Cancel a queued entry."""
        ...

    @method(
        "kernel.sched.request_cancel",
        scope="enqueue",
        execution="write",
        bound=owned("sched_id"),
        run="own_or_child",
        result="state",
        errors=(e.SchedIllegalTransition, *_ENTRY),
    )
    def request_cancel(self, sched_id: int, *, by: str | None = None) -> str:
        """Cancel a queued entry; ask a running one to stop at its next heartbeat."""
        ...

    @method(
        "kernel.sched.cancel_where",
        scope="operate",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        result="count",
        retry_safe=True,
        errors=(e.SchedInvalidStateFilter, e.SchedInvalidPayload),
    )
    def cancel_where(self, wanted: EntryFilter, *, reason: str | None = None) -> int:
        """Cancel every queued entry that matches the filter."""
        ...

    @method(
        "kernel.sched.retry_where",
        scope="operate",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        result="sched_ids",
        errors=(e.SchedInvalidStateFilter, e.SchedInvalidPayload),
    )
    def retry_where(self, wanted: EntryFilter) -> dict[int, int]:
        """Retry matching entries: in backoff, make them ready now; failed, enqueue a copy."""
        ...

    @method(
        "kernel.sched.bulk",
        scope="enqueue",
        execution="multi_commit",
        bound=owned("wanted"),
        run="refused",
        operate_fields=("verb",),
        errors=(e.SchedInvalidStateFilter, e.SchedInvalidPayload, e.LimitExceeded, e.ProjectUnknown),
    )
    def bulk(
        self,
        wanted: EntryFilter,
        verb: BulkVerb = "cancel",
        *,
        stop: bool = False,
        priority: int | None = None,
        runnable_at: float | None = None,
        deadline: float | UnsetType | None = UNSET,
        tags: Sequence[str] | None = None,
        created_before: float | None = None,
        sched_ids: Sequence[int] | None = None,
        by: str | None = None,
        dry_run: bool = False,
    ) -> BulkResult:
        """Cancel, retry, release or change every entry that matches the filter, or count what would be affected."""
        ...

    @method(
        "kernel.sched.change",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.SchedIllegalTransition, *_ENTRY),
    )
    def change(
        self,
        sched_id: int,
        *,
        priority: int | None = None,
        runnable_at: float | None = None,
        deadline: float | UnsetType | None = UNSET,
        tags: Sequence[str] | None = None,
    ) -> ReadyEntry:
        """Change the priority, time, deadline or tags of a queued entry."""
        ...

    @method(
        "kernel.sched.release",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.SchedIllegalTransition, *_ENTRY),
    )
    def release(self, sched_id: int) -> ReadyEntry:
        """Let an entry run although its predecessor failed or it is reserved for a worker."""
        ...

    @method(
        "kernel.sched.affinity_wait",
        scope="read",
        execution="read",
        bound=unfiltered("a setting of the store"),
        run="view",
        result="wait_s",
    )
    def affinity_wait(self) -> float:
        """Return how long an entry is reserved for its affinity worker."""
        ...

    @method(
        "kernel.sched.set_affinity_wait",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.SchedInvalidPayload,),
    )
    def set_affinity_wait(self, wait_s: float) -> None:
        """Set how long entries are reserved for their affinity worker."""
        ...

    @method(
        "kernel.sched.force_claim",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.SchedAdmissionDenied, *_ENTRY),
    )
    def force_claim(
        self,
        sched_id: int,
        *,
        worker_id: str,
        by: str = "operator",
        admission_check: bool = True,
        claim_timeout_s: float = CLAIM_TIMEOUT_S,
        incarnation: str = "",
        now: float | None = None,
    ) -> ReadyEntry:
        """Claim one entry out of order, if nothing blocks it."""
        ...

    @method("kernel.sched.get", scope="read", execution="read", bound=owned("sched_id"), run="view", errors=_ENTRY)
    def get(self, sched_id: int) -> ReadyEntry:
        """Return one entry."""
        ...

    @method(
        "kernel.sched.counts",
        scope="read",
        execution="read",
        bound=own_reads("counts"),
        run="view",
        result="states",
        errors=(e.SchedInvalidPayload,),
    )
    def counts(self, by: Literal["state", "status"] = "state") -> dict[str, int]:
        """Count the entries in each state, queued entries also by hold; or those of each status."""
        ...

    @method("kernel.sched.unfinished", scope="read", execution="read", bound=REFUSED, run="refused", result="groups")
    def unfinished(self, limit: int = 1_000) -> Groups:
        """Return what is queued or running, in groups that are alike in agent, hold, kind and needs."""
        ...

    @method(
        "kernel.sched.wait",
        scope="read",
        execution="wait",
        bound=owned("sched_id"),
        run="view",
        errors=(e.WaitTimeout, *_ENTRY),
    )
    def wait(self, sched_id: int, wait_s: float) -> ReadyEntry:
        """Wait for an entry to end, and return it."""
        ...

    @method(
        "kernel.sched.gc_expired",
        scope="operate",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        result="swept",
        retry_safe=True,
        errors=(e.InvalidPayload,),
    )
    def gc_expired(self, now: float | None = None) -> int:
        """Expire every queued entry past its deadline."""
        ...

    @method(
        "kernel.sched.gc_dispatched",
        scope="operate",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        result="count",
        retry_safe=True,
        errors=(e.SchedInvalidPayload,),
    )
    def gc_dispatched(self, stale_seconds: float, now: float | None = None) -> int:
        """Take back every claim without a heartbeat for stale_seconds."""
        ...

    @method(
        "kernel.sched.take_over",
        scope="work",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        result="count",
        retry_safe=True,
        errors=(e.SchedInvalidPayload,),
    )
    def take_over(self, worker_id: str, incarnation: str) -> int:
        """Take back what earlier incarnations of a restarted worker hold."""
        ...

    @method(
        "kernel.sched.upkeep",
        scope="work",
        execution="write",
        bound=REFUSED,
        run="refused",
        result="next_at",
        operate_fields=("now",),
        retry_safe=True,
        errors=(e.SchedInvalidPayload,),
    )
    def upkeep(self, now: float | None = None) -> float | None:
        """Do all due maintenance, and return when it is next due."""
        ...

    @method(
        "kernel.sched.nudge",
        scope="work",
        execution="inline",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.SchedInvalidPayload,),
    )
    def nudge(self, worker_id: str, incarnation: str = "") -> None:
        """Make a worker's waiting claim return immediately, without entries."""
        ...

    @method(
        "kernel.sched.peek",
        scope="read",
        execution="dry_run",
        bound=viewed("entries"),
        run="view",
        result="entries",
        retry_safe=True,
        errors=(e.SchedInvalidPayload,),
    )
    def peek(
        self,
        max_n: int = 1,
        *,
        kinds: Sequence[str] = (),
        worker_id: str = "peek",
        except_agents: Sequence[int] = (),
    ) -> list[ReadyEntry]:
        """Return what a claim in strict order would return now, without claiming it."""
        ...

    @method(
        "kernel.sched.retry",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        result="sched_id",
        errors=(e.SchedIllegalTransition, *_ENTRY),
    )
    def retry(self, sched_id: int) -> int:
        """Retry one entry: in backoff, make it ready now; failed, enqueue a copy."""
        ...

    def claim(
        self, *, worker_id: str, max_n: int = 1, wait_s: float = 0.0, **options: Unpack[ClaimOptions]
    ) -> list[ReadyEntry]:
        """Claim ready entries in strict order, whatever the policy is."""
        ...

    @method(
        "kernel.sched.list",
        scope="read",
        execution="read",
        bound=own_reads("entries"),
        run="view",
        result=("entries", "total"),
        errors=(e.SchedInvalidStateFilter, e.SchedInvalidPayload, e.LimitExceeded),
    )
    def list(
        self,
        *,
        state: str | None = None,
        pid: int | None = None,
        limit: int = 100,
        offset: int = 0,
        project_id: str | None = None,
        trigger: str | None = None,
        exit_kind: str | None = None,
        tag: str | None = None,
        status: str | Sequence[str] | None = None,
        after: int = 0,
    ) -> tuple[EntryList, int]:
        """Return a page of entries by id, those after an id, and the number of all matches; several statuses match any.

        To read all of them, give the last id of a page as `after`: it does not move while entries are added or removed.
        """
        ...

    @method(
        "kernel.sched.running",
        scope="read",
        execution="read",
        bound=own_reads("running"),
        run="view",
        errors=(e.SchedInvalidPayload, e.LimitExceeded),
    )
    def running(
        self, *, project_id: str | None = None, pid: int | None = None, limit: int = 100, offset: int = 0
    ) -> RunningPage:
        """Return a page of the entries that run now, with how far they are and what they wait for; and the number."""
        ...

    @method(
        "kernel.sched.search",
        scope="read",
        execution="read",
        bound=own_reads("search"),
        run="view",
        errors=(e.SchedInvalidStateFilter, e.SchedInvalidPayload, e.LimitExceeded),
    )
    def search(
        self,
        text: str,
        *,
        limit: int = 100,
        state: str | None = None,
        pid: int | None = None,
        project_id: str | None = None,
        trigger: str | None = None,
        exit_kind: str | None = None,
        tag: str | None = None,
        status: str | Sequence[str] | None = None,
    ) -> SearchResult:
        """Return the newest entries whose payload, result or errors hold a text, and whether all were looked at."""
        ...
