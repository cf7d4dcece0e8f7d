"""What is scheduled: entries and their claims, agents, projects, workspaces, triggers.

An *entry* is a row of the queue: "this agent should run once". A *claim* is a worker's exclusive hold on an entry.
Higher priority runs sooner. Weights are whole thousandths (`WEIGHT_UNIT` is weight one), so that shares are computed in
integers. Instants end in `_at`; durations carry their unit.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from rota.errors import InvalidPayload, ProjectInvalid, SchedInvalidPayload
from rota.model.checks import TAGS_MAX, Checks
from rota.model.entry_status import EntryStatus
from rota.model.graph_budgets import GraphAccount
from rota.model.trace_context import TRACESTATE_CHARS_MAX, parse_traceparent

__all__ = [
    "AFTER_MAX",
    "DIMENSIONS",
    "EXIT_KINDS",
    "WEIGHT_UNIT",
    "Agent",
    "AttemptError",
    "Backoff",
    "Claim",
    "Intent",
    "Limits",
    "Project",
    "ProjectConstraint",
    "ProjectGrant",
    "ReadyEntry",
    "RestartPolicy",
    "ScheduleSpec",
    "Trigger",
    "Worker",
    "Workspace",
]

WEIGHT_UNIT = 1000  # weight one, in thousandths
WEIGHT_MAX = 1_000_000 * WEIGHT_UNIT
AFTER_MAX = 256  # predecessors of one entry
ATTEMPTS = 3  # of an entry, by default
ATTEMPTS_MAX = 1_000

ExitKind = Literal["completed", "cancelled", "failed", "crashed"]
EXIT_KINDS: tuple[ExitKind, ...] = ("completed", "cancelled", "failed", "crashed")

# Suggested dimensions of usage; any non-empty name is allowed. cost_micro is 10^-6 of a currency unit.
DIMENSIONS = ("tokens", "cost_micro", "cpu_s", "gpu_s", "wall_s", "tool_calls", "fs_w_bytes")


class Intent(StrEnum):
    """The intent of an agent; a policy may weigh it."""

    PROTECT = "PROTECT"
    ACCUMULATE = "ACCUMULATE"
    BELONG = "BELONG"
    DISCOVER = "DISCOVER"
    DOMINATE = "DOMINATE"
    NEUTRAL = "NEUTRAL"


class Backoff(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The delay before the next attempt: base × factor^(attempt-1), capped, with full jitter."""

    base_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 300.0

    def __post_init__(self) -> None:
        checks = Checks("Backoff", InvalidPayload)
        checks.duration("base_s", self.base_s)
        checks.number("factor", self.factor, 1)
        checks.duration("cap_s", self.cap_s)


_spec = Checks("ScheduleSpec", SchedInvalidPayload)
_ON_FAILED = ("cancel", "run", "hold")
_WORKSPACE_MODES = ("exclusive", "shared")
_RETRY_ON: tuple[ExitKind, ...] = ("crashed",)
_BACKOFF = Backoff()
_SIMPLE = (0.0, None, "manual", 0.0, None, (), ATTEMPTS, None)  # with those of `is_plain`, the values of `is_simple`
_PLAIN: tuple[Any, ...] = (
    (),
    (),
    *(None,) * 2,
    {},
    {},
    *(None,) * 9,
    "cancel",
    _RETRY_ON,
    _BACKOFF,
)  # the values of `is_plain`


class _PositionalSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pid: int  # owning agent
    priority: int = 0  # higher is sooner
    runnable_at: float = 0.0  # epoch seconds; 0 is "now"
    deadline: float | None = None  # epoch seconds
    trigger: str = "manual"  # manual, cron, event, resume, or any other word
    payload: dict[str, Any] = {}  # opaque to the kernel


class ScheduleSpec(_PositionalSpec, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The argument of `enqueue`: which agent should run, and how. Checked when it is created."""

    tags: tuple[str, ...] = ()
    delay_s: float = 0.0  # instead of runnable_at: a time from now, which a jump of the wall clock does not change
    key: str | None = None  # idempotency: one entry per key
    after: tuple[int, ...] = ()  # sched_ids that must complete first; in enqueue_many, -1 is the entry just before
    on_failed: Literal["cancel", "run", "hold"] = "cancel"  # what to do when one of them does not complete
    max_attempts: int = ATTEMPTS
    retry_on: tuple[ExitKind, ...] = _RETRY_ON
    backoff: Backoff = _BACKOFF
    expected: dict[str, int] = {}  # expected usage of a run, per dimension
    ceiling: dict[str, int] = {}  # maximum usage of a run, per dimension
    draws_on: tuple[str, ...] = ()  # names of shared limits
    concurrency_key: str | None = None  # of its project's live runs with this key ...
    concurrency_limit: int | None = None  # ... there are at most this many
    kind: str | None = None  # the kind of slot it needs; None runs anywhere
    workspace: str | None = None  # the workspace it prefers
    workspace_mode: Literal["exclusive", "shared"] | None = None  # None: it needs no workspace
    affinity: str | None = None  # the preferred worker
    parent_id: int | None = None  # the entry that spawned it and lends it budget and priority
    correlation_id: str | None = None
    causation_id: str | None = None
    account: GraphAccount | None = None  # the graph run and node in whose budgets it counts
    traceparent: str | None = None  # the span that caused it, as the W3C writes it; its trace is continued
    tracestate: str | None = None  # what belongs to that span; passed on as it is

    @property
    def is_simple(self) -> bool:
        """Whether nothing but pid, priority and payload is given."""
        return (
            self.runnable_at, self.deadline, self.trigger, self.delay_s, self.key, self.after, self.max_attempts,
            self.kind,
        ) == _SIMPLE and self.is_plain  # fmt: skip

    @property
    def is_plain(self) -> bool:
        """Whether all fields have defaults except the positional ones, after, delay_s, key, kind and max_attempts."""
        # one comparison of tuples, which recognises the very objects that are the defaults: half the time of "and"
        return (
            self.tags, self.draws_on, self.concurrency_key, self.concurrency_limit, self.expected, self.ceiling,
            self.workspace, self.workspace_mode, self.affinity, self.parent_id, self.correlation_id, self.causation_id,
            self.account, self.traceparent, self.tracestate, self.on_failed, self.retry_on, self.backoff,
        ) == _PLAIN  # fmt: skip

    def __post_init__(self) -> None:
        # this runs several times for every entry, so defaults are recognised without a call
        _spec.whole("pid", self.pid)
        _spec.whole("priority", self.priority)
        if self.runnable_at != 0.0 or type(self.runnable_at) is not float:
            _spec.instant("runnable_at", self.runnable_at)
        if self.deadline is not None:
            _spec.instant("deadline", self.deadline)
            if self.deadline < self.runnable_at:
                early_s = self.runnable_at - self.deadline
                raise _spec.refuse("deadline", f"lies {early_s:,.0f} s before runnable_at")
        if self.delay_s != 0.0 and _spec.duration("delay_s", self.delay_s) and self.runnable_at:
            raise _spec.refuse("delay_s", "must not be given together with runnable_at")
        if self.trigger != "manual":
            _spec.name("trigger", self.trigger)
        _spec.mapping("payload", self.payload)
        if self.max_attempts != ATTEMPTS or type(self.max_attempts) is not int:
            _spec.whole("max_attempts", self.max_attempts, 1, ATTEMPTS_MAX)
        if self.key is not None:
            _spec.text("key", self.key)
        if self.kind is not None:
            _spec.name("kind", self.kind)
        if self.after != ():
            self._check_after()
        if not self.is_plain:
            self._check_rest()

    def _check_rest(self) -> None:
        _spec.names("tags", self.tags, TAGS_MAX)
        _spec.amounts("expected", self.expected)
        _spec.amounts("ceiling", self.ceiling)
        _spec.texts("draws_on", self.draws_on)
        _spec.optional_text("concurrency_key", self.concurrency_key)
        if (self.concurrency_key is None) != (self.concurrency_limit is None):
            raise _spec.refuse("concurrency_limit", "and concurrency_key must be given together")
        if self.concurrency_limit is not None:
            _spec.whole("concurrency_limit", self.concurrency_limit, 1)
        for kind in _spec.texts("retry_on", self.retry_on):
            _spec.one_of("retry_on", kind, EXIT_KINDS)
        _spec.one_of("on_failed", self.on_failed, _ON_FAILED)
        if not isinstance(self.backoff, Backoff):
            raise _spec.refuse("backoff", f"must be a Backoff, not {self.backoff!r}")
        if self.workspace_mode is not None:
            _spec.one_of("workspace_mode", self.workspace_mode, _WORKSPACE_MODES)
        if self.parent_id is not None:
            _spec.whole("parent_id", self.parent_id, 1)
        if self.account is not None:
            if type(self.account) is not GraphAccount:
                raise _spec.refuse("account", f"must be a GraphAccount, not {self.account!r}")
            self.account.check()
        for field in ("workspace", "affinity", "correlation_id", "causation_id"):
            if getattr(self, field) is not None:
                _spec.text(field, getattr(self, field))
        if self.traceparent is not None or self.tracestate is not None:
            self._check_trace()

    def _check_trace(self) -> None:
        if self.traceparent is None or parse_traceparent(_spec.text("traceparent", self.traceparent)) is None:
            raise _spec.refuse("traceparent", f"must be 00-TRACE-SPAN-FLAGS in lower case, not {self.traceparent!r}")
        if self.tracestate is not None:
            _spec.text("tracestate", self.tracestate, TRACESTATE_CHARS_MAX)

    def _check_after(self) -> None:
        if type(self.after) is not tuple or len(self.after) > AFTER_MAX:
            raise _spec.refuse("after", f"must be a tuple of at most {AFTER_MAX} sched_ids")
        for sched_id in self.after:
            if _spec.whole("after", sched_id) == 0:
                raise _spec.refuse("after", "must not be 0: positive numbers are sched_ids, negative ones count back")


class AttemptError(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an earlier attempt of an entry failed."""

    attempt: int
    error: str
    at: float = 0.0  # when it ended, in epoch seconds


class _PositionalEntry(msgspec.Struct, frozen=True):
    sched_id: int
    pid: int
    priority: int
    runnable_at: float
    deadline: float | None
    trigger: str
    payload: dict[str, Any]
    state: str  # see lifecycle.ENTRY
    worker_id: str | None  # the worker that claimed it
    created_at: float
    dispatched_at: float | None
    completed_at: float | None
    exit_kind: str | None


class ReadyEntry(_PositionalEntry, frozen=True, kw_only=True):
    """An entry of the queue, as the kernel returns it."""

    status: EntryStatus = "ready"  # derived from state, hold and exit_kind where the row is read
    project_id: str | None = None
    hold: Literal["time", "after", "backoff", "worker"] | None = None  # why a queued entry is not ready
    attempt: int = 0  # runs started so far; the number of the live run while dispatched
    max_attempts: int = 3
    outcome: str | None = None  # finer than exit_kind: timed_out, over_budget, quarantined, …
    result: Any = None
    tags: tuple[str, ...] = ()
    key: str | None = None
    token: int | None = None  # of the live claim
    claim_expires_at: float | None = None
    cancel_requested: bool = False
    expected: dict[str, int] = {}
    ceiling: dict[str, int] = {}
    draws_on: tuple[str, ...] = ()
    kind: str | None = None
    workspace: str | None = None
    parent_id: int | None = None
    correlation_id: str | None = None
    account: GraphAccount | None = None  # the graph run and node in whose budgets it counts
    traceparent: str | None = None  # the span that caused it
    tracestate: str | None = None
    errors: tuple[AttemptError, ...] = ()  # of the attempts that were retried; the last one is in `result`
    unreadable: str | None = None  # which stored columns cannot be read, and why; they are empty here


class Worker(msgspec.Struct, frozen=True):
    """A worker's name and its incarnation: every restart is a new one."""

    worker_id: str
    incarnation: str


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's exclusive hold on an entry. It expires unless heartbeats extend it."""

    sched_id: int
    worker_id: str
    incarnation: str
    token: int  # the event id of the claim: unique and increasing; also the fence of its workspace
    claimed_at: float
    heartbeat_at: float
    claim_timeout_s: float
    reserved: dict[str, int] = {}  # reserved of the budgets until the run ends
    workspace: str | None = None

    @property
    def expires_at(self) -> float:
        """When the kernel requeues the entry."""
        return self.heartbeat_at + self.claim_timeout_s


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of one run; None: no limit here."""

    wall_s: float | None = None
    cpu_s: float | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    open_files: int | None = None
    log_bytes: int = 1024 * 1024
    tokens: int | None = None


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether an agent is restarted after a run, and when it is quarantined."""

    when: Literal["never", "on_crash", "on_failure", "always"] = "on_failure"  # always: also after success
    backoff: Backoff = Backoff()
    quarantine_after: int = 5  # failures in a row
    quarantine_s: float = 600.0


class Agent(msgspec.Struct, frozen=True):
    """Something that can be scheduled. Its `pid` is never reused."""

    pid: int
    parent_pid: int | None
    name: str
    template: str
    state: str  # see lifecycle.AGENT
    state_reason: str | None
    created_at: float
    updated_at: float
    started_at: float | None
    ended_at: float | None
    exit_kind: str | None
    exit_detail: dict[str, Any]
    metadata: dict[str, Any]
    last_event_id: int | None
    # not in the first kernel
    project_id: str | None = None
    priority: int = 0
    weight: int = WEIGHT_UNIT
    intent: Intent = Intent.NEUTRAL
    rerunnable: bool = True  # after a run it becomes SUSPENDED and then READY, not DEAD
    max_concurrent: int | None = None  # live claims at the same time; None: no limit here
    paused_by: str | None = None
    unreadable: str | None = None  # which stored column cannot be read, and why; it is empty here

    def __repr__(self) -> str:  # its metadata may hold secrets (agent_settings.py), and tracebacks show this
        shown = (name for name in self.__struct_fields__ if name != "metadata")
        return f"Agent({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


_constraint = Checks("ProjectConstraint", ProjectInvalid)


class ProjectConstraint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A constraint that an operator puts on a project until it is released."""

    exclusive: bool = False  # one run at a time
    max_by_kind: dict[str, int] = {}  # maximum live runs per kind of slot
    pause_scheduling: bool = False

    def __post_init__(self) -> None:
        _constraint.flag("exclusive", self.exclusive)
        _constraint.flag("pause_scheduling", self.pause_scheduling)
        _constraint.amounts("max_by_kind", self.max_by_kind)


_project = Checks("Project", ProjectInvalid)


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant: the account to which runs are charged."""

    project_id: str
    name: str
    weight: int = WEIGHT_UNIT
    max_concurrent: int | None = None
    status: str = "ACTIVE"  # see lifecycle.PROJECT
    constraint: ProjectConstraint = ProjectConstraint()
    paused_by: str | None = None
    created_at: float = 0.0
    updated_at: float = 0.0
    metadata: dict[str, Any] = {}
    unreadable: str | None = None  # which stored columns cannot be read, and why

    def __post_init__(self) -> None:
        _project.text("project_id", self.project_id)
        _project.text("name", self.name)
        _project.whole("weight", self.weight, 1, WEIGHT_MAX)
        if self.max_concurrent is not None:
            _project.whole("max_concurrent", self.max_concurrent, 0)


class ProjectGrant(msgspec.Struct, frozen=True):
    """Runs and entries of one project may reach into another; None is no project."""

    from_project: str | None
    to_project: str | None
    granted_at: float
    granted_by: str


class Workspace(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that a run holds exclusively, or shares with readers."""

    workspace_id: str
    project_id: str
    path: str
    source: Literal["folder", "worktree", "entry"] = "folder"  # entry: the worktree of one entry
    lock_mode: Literal["exclusive", "shared"] | None = None  # None: free
    held_by: tuple[int, ...] = ()  # sched_ids of the live claims on it
    held_since: float | None = None
    fence: int = 0  # the highest claim token that has held it
    kept: str | None = None  # why the worktree of an entry that has ended is kept


TriggerKind = Literal["cron", "event", "interval", "start", "after", "hook"]


class Trigger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What enqueues an agent without a person; one of six kinds."""

    kind: TriggerKind
    cron: str | None = None
    zone: str = "UTC"
    event: str | None = None  # an event kind, or a prefix ending in *; hook: also a name (fleet/hook_rules.py)
    every_s: float | None = None
    after: str | None = None  # another agent's name
    payload: dict[str, Any] = {}
    priority: int | None = None
    catch_up: bool = True  # cron, interval: fire once for what was missed while no supervisor ran
    event_as: str | None = None  # event, after: the payload key under which the event is passed
    only_project: str | None = None  # hook: only events of this project
    only_agent: str | None = None  # hook: only events of agents of this name
