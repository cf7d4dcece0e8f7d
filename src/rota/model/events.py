"""Every event that rota records, typed and versioned.

Metrics, traces, the feed and the replay are computed from these events. An event is written in the transaction of the
change it describes; a batch call writes one event with many ids. Kinds begin with `kernel.`; the events of users must
not. `event_codec.py` says how events are stored and how a new version of one is introduced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import msgspec

from rota.model.policy_setting import PolicySetting, ShareBy
from rota.model.prices import ModelPrice
from rota.model.retention import RetentionSetting

__all__ = ["EVENT_TYPES", "RESERVED_PREFIX", "Event", "EventData"]

RESERVED_PREFIX = "kernel."


class Event(msgspec.Struct, frozen=True):
    """A row of the journal: one of rota's events or a user's, with its time, its cause and its author."""

    event_id: int
    pid: int | None  # the agent it concerns; None: the fleet
    ts: float
    kind: str
    payload: dict[str, Any]
    causation_id: str | None = None
    correlation_id: str | None = None
    author: str = ""  # token:ID, uid:N, worker:ID, run:SCHED_ID or user:NAME; empty: written by an earlier version


class EventData(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The typed data of one of rota's events."""

    kind: ClassVar[str] = ""
    version: ClassVar[int] = 1


class FlowMove(msgspec.Struct, frozen=True, array_like=True):
    """The virtual time of a flow after a charge."""

    level: Literal["project", "agent"]
    key: str
    virtual_time: int
    clock: int = 0  # of a project: the virtual time of its agents
    parent: str = ""  # of an agent: its project


# --- agents --------------------------------------------------------------------------------------


class ProcessCreated(EventData, frozen=True, kw_only=True):
    """An agent was created."""

    kind = "kernel.process.created"
    name: str
    template: str
    parent_pid: int | None = None
    project_id: str | None = None


class ProcessTransitioned(EventData, frozen=True, kw_only=True):
    """An agent moved from one state to another."""

    kind = "kernel.process.transitioned"
    prev_state: str
    new_state: str
    reason: str | None = None


class ProcessTerminated(EventData, frozen=True, kw_only=True):
    """An agent ended."""

    kind = "kernel.process.terminated"
    prev_state: str
    exit_kind: str | None = None
    detail: dict[str, Any] = {}


class ProcessRecovered(EventData, frozen=True, kw_only=True):
    """An agent that was running when its process stopped was moved to a state from which it can continue."""

    kind = "kernel.process.recovered"
    prev_state: str
    new_state: str
    policy: str
    reason: str


class ProcessUpdated(EventData, frozen=True, kw_only=True):
    """An agent's settings changed."""

    kind = "kernel.process.updated"
    changes: dict[str, Any]


# --- entries -------------------------------------------------------------------------------------


class EntriesEnqueued(EventData, frozen=True, kw_only=True):
    """`count` entries were enqueued, numbered from `first_id`."""

    kind = "kernel.sched.enqueued"
    first_id: int
    count: int = 1
    held: dict[str, list[int]] = {}  # by hold, the entries that are not ready yet
    deduped: int = 0


class ClaimedEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a claim."""

    sched_id: int
    pid: int
    attempt: int
    ask: dict[str, int] = {}
    workspace: str | None = None
    waited_ms: int | None = None  # from ready to claimed; predecessors that ended later are not taken into account


class EntriesClaimed(EventData, frozen=True, kw_only=True):
    """A worker claimed entries. This event's id is the claim token."""

    kind = "kernel.sched.claimed"
    worker_id: str
    incarnation: str
    entries: list[ClaimedEntry]
    policy: str
    because: list[str] = []
    flows: list[FlowMove] = []
    contexts: dict[str, int] = {}  # by context_id, what was charged at the claim (requests)
    forced_by: str | None = None
    admission_skipped: bool = False
    host: str | None = None  # that claimed and keeps the logs of the runs, of a store that many hosts share


class CompletedEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a completion."""

    sched_id: int
    exit_kind: str
    outcome: str | None = None


class EntriesCompleted(EventData, frozen=True, kw_only=True):
    """Entries were completed, successfully or not."""

    kind = "kernel.sched.completed"
    entries: list[CompletedEntry]
    worker_id: str | None = None
    flows: list[FlowMove] = []


class EntriesReturned(EventData, frozen=True, kw_only=True):
    """Dispatched entries were requeued."""

    kind = "kernel.sched.returned"
    verb: Literal["reclaim", "retry", "preempt", "yield"]
    sched_ids: list[int]
    runnable_at: float | None = None
    reason: str | None = None
    flows: list[FlowMove] = []


class EntriesReleased(EventData, frozen=True, kw_only=True):
    """Held entries became ready: their time came, their predecessors ended, or their affinity worker asked for work."""

    kind = "kernel.sched.released"
    hold: str
    sched_ids: list[int]


class EntriesHeldForWorker(EventData, frozen=True, kw_only=True):
    """Entries lost their hold and are now held for their affinity worker."""

    kind = "kernel.sched.kept"
    hold: str  # the hold they had before
    sched_ids: list[int]


class EntriesExpired(EventData, frozen=True, kw_only=True):
    """Queued entries passed their deadline and expired."""

    kind = "kernel.sched.expired"
    sched_ids: list[int]


class EntriesCancelled(EventData, frozen=True, kw_only=True):
    """Queued entries were cancelled."""

    kind = "kernel.sched.cancelled"
    sched_ids: list[int]
    reason: str | None = None


class EntriesChanged(EventData, frozen=True, kw_only=True):
    """The priority, time, deadline or tags of queued entries changed."""

    kind = "kernel.sched.changed"
    sched_ids: list[int]
    changes: dict[str, Any]


class CancelRequested(EventData, frozen=True, kw_only=True):
    """Cancellation of running entries was requested."""

    kind = "kernel.sched.cancel_requested"
    sched_ids: list[int]
    by: str | None = None


class ClaimsExtended(EventData, frozen=True, kw_only=True):
    """The wall clock jumped, and live claims were extended by the jump."""

    kind = "kernel.sched.claims_extended"
    by_s: float
    count: int


# --- budgets -------------------------------------------------------------------------------------


class LedgerCreated(EventData, frozen=True, kw_only=True):
    """An agent got a ledger, or more dimensions in it."""

    kind = "kernel.ledger.created"
    grants: dict[str, int]
    warn_at: float
    used: dict[str, int] = {}  # from the beginning, by the agent that had the name before
    inherited_from: int | None = None  # the pid of that agent


class LedgerCharged(EventData, frozen=True, kw_only=True):
    """Usage was recorded, also if it exceeds a limit."""

    kind = "kernel.ledger.charged"
    amounts: dict[str, int]
    sched_id: int | None = None
    project_id: str | None = None
    contexts: dict[str, int] = {}  # by context_id
    flows: list[FlowMove] = []
    ask: str | None = None  # the key of what the run acquired from a limit, if this settles it
    model: str | None = None  # that was used, if the caller named it
    account: tuple[str, str] | None = None  # the graph run and the node in whose budgets it counts, too
    outer: list[tuple[str, str]] = []  # the runs and nodes around that one, in whose budgets it counts as well


class LedgerRefunded(EventData, frozen=True, kw_only=True):
    """Usage was refunded."""

    kind = "kernel.ledger.refunded"
    amounts: dict[str, int]
    contexts: dict[str, int] = {}
    flows: list[FlowMove] = []


class LedgerGranted(EventData, frozen=True, kw_only=True):
    """A grant was changed."""

    kind = "kernel.ledger.granted"
    dim: str
    granted: int
    previous: int


class LedgerWarned(EventData, frozen=True, kw_only=True):
    """Usage crossed the warning threshold."""

    kind = "kernel.ledger.warned"
    dim: str
    used: int
    granted: int


class LedgerBreached(EventData, frozen=True, kw_only=True):
    """Usage exceeded its limit."""

    kind = "kernel.ledger.breached"
    level: str
    owner: str
    dim: str
    used: int
    limit: int


class BudgetAlert(EventData, frozen=True, kw_only=True):
    """Usage reached a share of a budget, at which an alert was asked for. Once for each share and window."""

    kind = "kernel.budget.alert"
    level: Literal["agent", "project", "global"]
    owner: str  # the agent's pid, the project, or "*"
    dim: str
    share: float
    used: int
    limit: int
    window_s: float | None = None  # None: a total


class BudgetSet(EventData, frozen=True, kw_only=True):
    """A project or global budget was set, changed or removed."""

    kind = "kernel.budget.set"
    level: Literal["project", "global"]
    owner: str
    dim: str
    limit: int | None
    window_s: float | None = None


class PricesSet(EventData, frozen=True, kw_only=True):
    """The prices of models changed; a model without one has no price any more."""

    kind = "kernel.prices.set"
    prices: dict[str, ModelPrice | None]


class ShareWindowSet(EventData, frozen=True, kw_only=True):
    """The window of fair_share changed."""

    kind = "kernel.share.window_set"
    window_s: float
    previous_s: float


class AffinityWaitSet(EventData, frozen=True, kw_only=True):
    """The time for which entries are held for their affinity worker changed."""

    kind = "kernel.affinity.wait_set"
    wait_s: float
    previous_s: float


class BudgetLent(EventData, frozen=True, kw_only=True):
    """A run lent part of its budget to an entry that it spawned."""

    kind = "kernel.budget.lent"
    sched_id: int
    parent_id: int
    amounts: dict[str, int]


class BudgetReturned(EventData, frozen=True, kw_only=True):
    """The unused part of a loan returned to the parent."""

    kind = "kernel.budget.returned"
    sched_id: int
    parent_id: int
    amounts: dict[str, int]


class FlowReweighted(EventData, frozen=True, kw_only=True):
    """The weight of a flow changed."""

    kind = "kernel.flow.reweighted"
    level: Literal["project", "agent"]
    key: str
    weight: int
    previous: int


class ContextCreated(EventData, frozen=True, kw_only=True):
    """A context was created."""

    kind = "kernel.context.created"
    context_id: int
    budget: int
    period: int
    bound_to: str
    bound_id: str
    unit: str = "tokens"
    project_id: str | None = None


class ContextAdjusted(EventData, frozen=True, kw_only=True):
    """A context was adjusted, from its next refill on."""

    kind = "kernel.context.adjusted"
    context_id: int
    changes: dict[str, Any]


class ContextBudgetDepleted(EventData, frozen=True, kw_only=True):
    """A context's budget is used up until its next refill."""

    kind = "kernel.context.depleted"
    context_id: int
    remaining: int
    refill_at: float | None = None


class ContextReplenished(EventData, frozen=True, kw_only=True):
    """A context was refilled."""

    kind = "kernel.context.replenished"
    context_id: int
    amount: int
    remaining: int


class ContextRevoked(EventData, frozen=True, kw_only=True):
    """A context was revoked; every handle to it is stale."""

    kind = "kernel.context.revoked"
    context_id: int


class LimitThrottled(EventData, frozen=True, kw_only=True):
    """A provider asked for a pause: every entry that draws on this limit waits."""

    kind = "kernel.context.throttled"
    name: str
    until_at: float
    by: int | None = None  # the pid of the agent that reported it


class LimitResumed(EventData, frozen=True, kw_only=True):
    """The pause of a limit was ended before its time."""

    kind = "kernel.context.resumed"
    name: str


class LimitAwaited(EventData, frozen=True, kw_only=True):
    """A run asked a limit for more than is available, and waits."""

    kind = "kernel.context.awaited"
    sched_id: int
    name: str
    amounts: dict[str, int]


class LimitAcquired(EventData, frozen=True, kw_only=True):
    """A run got from a limit what it asked for."""

    kind = "kernel.context.acquired"
    sched_id: int
    name: str
    amounts: dict[str, int]
    contexts: dict[str, int] = {}  # the amounts charged, by context id
    waited_ms: int = 0


class LimitSettled(EventData, frozen=True, kw_only=True):
    """What a run acquired from a limit is settled: the limit gets back what was not used, or is charged more."""

    kind = "kernel.context.settled"
    sched_id: int
    name: str
    used: dict[str, int] = {}
    contexts: dict[str, int] = {}  # by context id: what is charged in addition; negative: what returns
    by: Literal["run", "end", "start"] = "run"  # the run, the end of its claim, or its first ask


# --- projects, workspaces, pauses ----------------------------------------------------------------


class ProjectCreated(EventData, frozen=True, kw_only=True):
    """A project was created."""

    kind = "kernel.project.created"
    project_id: str
    weight: int
    max_concurrent: int | None = None


class ProjectUpdated(EventData, frozen=True, kw_only=True):
    """A project's settings changed."""

    kind = "kernel.project.updated"
    project_id: str
    changes: dict[str, Any]


class ProjectTransitioned(EventData, frozen=True, kw_only=True):
    """A project moved from one status to another."""

    kind = "kernel.project.transitioned"
    project_id: str
    prev_status: str
    new_status: str
    by: str | None = None


class ProjectGranted(EventData, frozen=True, kw_only=True):
    """Runs and entries of one project may reach into another; an empty text is no project."""

    kind = "kernel.project.granted"
    from_project: str
    to_project: str


class ProjectGrantRevoked(EventData, frozen=True, kw_only=True):
    """A grant between two projects was taken back."""

    kind = "kernel.project.grant_revoked"
    from_project: str
    to_project: str


class WorkspaceAdded(EventData, frozen=True, kw_only=True):
    """A workspace was added to a project."""

    kind = "kernel.workspace.added"
    workspace_id: str
    project_id: str
    path: str


class WorkspaceKept(EventData, frozen=True, kw_only=True):
    """The worktree of an entry that has ended is kept."""

    kind = "kernel.workspace.kept"
    workspace_id: str
    project_id: str
    reason: str


class WorkspaceRemoved(EventData, frozen=True, kw_only=True):
    """A workspace was removed."""

    kind = "kernel.workspace.removed"
    workspace_id: str
    reason: str | None = None


class Paused(EventData, frozen=True, kw_only=True):
    """An agent, a project or the fleet was paused."""

    kind = "kernel.pause.set"
    level: Literal["agent", "project", "fleet"]
    key: str
    by: str
    reason: str | None = None


class Resumed(EventData, frozen=True, kw_only=True):
    """An agent, a project or the fleet was resumed."""

    kind = "kernel.pause.lifted"
    level: Literal["agent", "project", "fleet"]
    key: str
    by: str


# --- the store and the clock ---------------------------------------------------------------------


class StoreMigrated(EventData, frozen=True, kw_only=True):
    """A file of the first kernel was migrated: the events before are that program's."""

    kind = "kernel.store.migrated"
    from_version: int
    to_version: int


class JournalCheckpointed(EventData, frozen=True, kw_only=True):
    """A checkpoint of the replayed state was stored, so that older events can be pruned."""

    kind = "kernel.journal.checkpointed"
    through_id: int


class RowsPruned(EventData, frozen=True, kw_only=True):
    """Old rows were deleted."""

    kind = "kernel.journal.pruned"
    table: str
    count: int
    ranges: list[tuple[int, int]] = []  # first and last id of each range


class RetentionSet(EventData, frozen=True, kw_only=True):
    """What the store keeps was changed."""

    kind = "kernel.retention.set"
    setting: RetentionSetting
    previous: RetentionSetting


class RowUnreadable(EventData, frozen=True, kw_only=True):
    """A stored row cannot be read and is left out. A damaged event is read as one of this kind, in its place."""

    kind = "kernel.store.unreadable"
    table: str
    key: str  # of the row
    problem: str


class ClockJumped(EventData, frozen=True, kw_only=True):
    """The wall clock moved relative to the advancing clock, and every duration that was running moved with it."""

    kind = "kernel.clock.jumped"
    by_s: float
    moved: dict[str, int] = {}  # how many claims, delays, affinity holds, contexts, windows and quarantines


class StoreFailedOver(EventData, frozen=True, kw_only=True):
    """The database is on another timeline: a standby was promoted, or a backup restored. Live claims are taken back."""

    kind = "kernel.store.failed_over"
    before: str  # system identifier and timeline
    after: str


# --- the policy service --------------------------------------------------------------------------


class PolicyFellBack(EventData, frozen=True, kw_only=True):
    """A policy failed, and strict order replaced it."""

    kind = "kernel.policy.fell_back"
    policy: str
    failure: Literal["raised", "stalled", "nonsense", "stale"]
    detail: str


class PolicyChosen(EventData, frozen=True, kw_only=True):
    """The policy of the store was set or forgotten, or what sharing counts; a new dimension restarts all shares."""

    kind = "kernel.policy.chosen"
    policy: PolicySetting | None
    share_by: ShareBy
    share_by_set_by: str | None = None
    restarts_shares: bool = False
    by: str = ""


class ProfileMapped(EventData, frozen=True, kw_only=True):
    """The service mapped a hint to a weight, a context or a lease."""

    kind = "kernel.policy.profile_mapped"
    subject: str
    hint: str
    granted: dict[str, Any]
    epoch: int


class PolicyReloaded(EventData, frozen=True, kw_only=True):
    """The service's settings were reloaded; decisions of older epochs are dropped."""

    kind = "kernel.policy.reloaded"
    epoch: int
    changes: dict[str, Any] = {}


class CpuContextChanged(EventData, frozen=True, kw_only=True):
    """A context for CPU time was admitted, refused, adjusted or revoked."""

    kind = "kernel.cpu_context.moved"
    context_id: int
    owner: str
    verb: Literal["admit", "refuse", "adjust", "revoke"]
    budget_ns: int
    period_ns: int
    reason: str | None = None


class LeaseChanged(EventData, frozen=True, kw_only=True):
    """A lease was granted, refused, revoked or released."""

    kind = "kernel.lease.moved"
    lease_id: int
    owner: str
    verb: str
    state: str
    reason: str | None = None


class IslandChanged(EventData, frozen=True, kw_only=True):
    """An island was admitted, refused, started or stopped, or it overran."""

    kind = "kernel.island.moved"
    island_id: int
    verb: str
    state: str
    evidence: dict[str, int] = {}


class CoresGranted(EventData, frozen=True, kw_only=True):
    """A claim was granted leased cores, reserved time or a quota on a host; it ends with the claim."""

    kind = "kernel.cores.granted"
    sched_id: int
    token: int
    host: str
    host_name: str
    owner: str
    leased: tuple[int, ...] = ()
    reserved_ppm: dict[str, int] = {}  # by core
    quota_us: int | None = None
    quota_period_us: int | None = None
    island: str | None = None
    evidence: dict[str, int] = {}


class CoresRefused(EventData, frozen=True, kw_only=True):
    """A claim was refused what it asked of the cores of a host."""

    kind = "kernel.cores.refused"
    sched_id: int
    host: str
    host_name: str
    owner: str
    reason: str
    held_by: tuple[int, ...] = ()  # entries whose grants are in the way
    missing: list[str] = []
    island: str | None = None
    asked: dict[str, Any] = {}  # of which host and what: it is decided again when a grant there ends


class CoresReturned(EventData, frozen=True, kw_only=True):
    """Grants ended: their cores and their reserved time are free again."""

    kind = "kernel.cores.returned"
    sched_ids: list[int]
    reason: Literal["released", "claim_ended"]


class DeadlineMissed(EventData, frozen=True, kw_only=True):
    """A run or an island's activation ended after its deadline."""

    kind = "kernel.deadline.missed"
    subject: str
    lateness: int


# --- running -------------------------------------------------------------------------------------


class RunFailure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a run that is tried again failed with, as far as it is known. A final failure is in the entry's result."""

    error: str | None = None
    error_type: str | None = None
    traceback: str | None = None  # its end
    exit_code: int | None = None
    signal: str | None = None
    output_tail: str | None = None  # the end of what it printed
    advisories: tuple[str, ...] = ()


class RunStarted(EventData, frozen=True, kw_only=True):
    """A runner started an entry."""

    kind = "kernel.run.started"
    sched_id: int
    attempt: int
    token: int
    slot: str
    runner: str
    os_pid: int | None = None
    advisories: tuple[str, ...] = ()  # what of its settings is not enforced as it reads
    enforced: tuple[str, ...] = ()  # what of its `cpu` settings is enforced, and how
    node: str | None = None  # of a cluster, on which it runs


class RunSettingsChanged(EventData, frozen=True, kw_only=True):
    """The `cpu` settings of a run in progress, or what is enforced of them, have changed."""

    kind = "kernel.run.settings_changed"
    sched_id: int
    attempt: int
    token: int
    advisories: tuple[str, ...] = ()  # what of its settings is not enforced as it reads, from now on
    enforced: tuple[str, ...] = ()  # what of its `cpu` settings is enforced, and how


class RunEnded(EventData, frozen=True, kw_only=True):
    """A run ended."""

    kind = "kernel.run.ended"
    sched_id: int
    attempt: int
    exit_kind: str
    outcome: str | None = None
    wall_ms: int = 0
    usage: dict[str, int] = {}
    stopped_by: Literal["message", "TERM", "KILL"] | None = None
    cpu_ms: int = 0  # measured, also if no budget counts it
    failure: RunFailure | None = None  # if it failed and is tried again
    node: str | None = None  # of a cluster, on which it ran
    slot: str | None = None  # of its worker; that of a command is in kernel.run.started


class RunOverBudget(EventData, frozen=True, kw_only=True):
    """A charge found the run over its ceiling, its agent's grant or the budgets of its graph run; it is stopped."""

    kind = "kernel.run.over_budget"
    sched_id: int
    token: int | None = None  # of the claim that charged
    level: Literal["run", "agent", "graph"]
    dim: str
    used: int
    limit: int


class RunProgressed(EventData, frozen=True, kw_only=True):
    """A run reported how far it is; at most about one report a second is recorded."""

    kind = "kernel.run.progressed"
    sched_id: int
    attempt: int
    fraction: float  # from 0 to 1
    text: str = ""


class RunCheckpointed(EventData, frozen=True, kw_only=True):
    """A run saved a checkpoint. The checkpoint itself is in the entry's row until the next one replaces it."""

    kind = "kernel.run.checkpointed"
    version = 2  # version 1 had the checkpoint itself as `state`
    sched_id: int
    token: int
    size_bytes: int  # of the checkpoint as JSON
    digest: str  # of the same: BLAKE2b, 128 bits, hexadecimal


class AgentQuarantined(EventData, frozen=True, kw_only=True):
    """An agent failed repeatedly and is quarantined for a while, or its settings cannot be used until they change."""

    kind = "kernel.run.quarantined"
    failures: int
    until_at: float | None = None  # None: until its settings are written again
    reason: str | None = None  # what is wrong with its settings


class TriggerFired(EventData, frozen=True, kw_only=True):
    """A trigger enqueued an entry, or found an existing one."""

    kind = "kernel.trigger.fired"
    trigger: str
    sched_id: int
    created: bool = True


class HookDropped(EventData, frozen=True, kw_only=True):
    """Too many deliveries of a hook waited, and the oldest were dropped."""

    kind = "kernel.hook.dropped"
    hook: str
    count: int
    sched_ids: list[int] = []  # those that were queued; the others were dropped before


class SupervisorChanged(EventData, frozen=True, kw_only=True):
    """A supervisor started, is draining, has drained, stopped, or took over the claims of another."""

    kind = "kernel.supervisor.moved"
    worker_id: str
    incarnation: str
    verb: Literal["started", "draining", "drained", "stopped", "took_over"]  # drained: all of its runs have ended


class WorkerLost(EventData, frozen=True, kw_only=True):
    """A registered worker vanished without leaving: it was not seen for a while and holds no claim any more."""

    kind = "kernel.worker.lost"
    worker_id: str
    host: str
    entries: int  # whose claims expired since it was last seen; each is retried, or ends if no attempt is left
    incarnation: str = ""


class FleetReloadRequested(EventData, frozen=True, kw_only=True):
    """The supervisors of a fleet, or of all fleets of the store, are asked to read their file again."""

    kind = "kernel.fleet.reload_requested"
    by: str
    fleet: str | None = None  # its name; None: all fleets


class FleetReloaded(EventData, frozen=True, kw_only=True):
    """The fleet file was reloaded."""

    kind = "kernel.fleet.reloaded"
    changes: dict[str, Any] = {}


# --- access --------------------------------------------------------------------------------------


class DaemonChanged(EventData, frozen=True, kw_only=True):
    """The daemon started or stopped."""

    kind = "kernel.daemon.moved"
    verb: Literal["started", "stopped"]
    rota_version: str


class AccessDenied(EventData, frozen=True, kw_only=True):
    """A caller was refused access. Refusals of one caller for one reason within a minute share an event."""

    kind = "kernel.auth.denied"
    peer: str
    method: str | None
    reason: str
    count: int = 1  # of refusals


class OperatorActed(EventData, frozen=True, kw_only=True):
    """An operator changed something."""

    kind = "kernel.auth.operated"
    who: str
    method: str
    detail: dict[str, Any] = {}


class TokenChanged(EventData, frozen=True, kw_only=True):
    """An access token was created or revoked, or got another secret."""

    kind = "kernel.auth.token"
    token_id: str
    verb: Literal["created", "revoked", "rotated"]
    scope: list[str] = []


# --- graphs --------------------------------------------------------------------------------------


class GraphRunTaken(EventData, frozen=True, kw_only=True):
    """A process started or resumed a graph run. This event's id is the run's fence."""

    kind = "kernel.graph.taken"
    run_id: str
    graph: str
    next_epoch_id: int


class GraphRunCommitted(EventData, frozen=True, kw_only=True):
    """A graph run saved its state: everything before this epoch is committed."""

    kind = "kernel.graph.committed"
    run_id: str
    next_epoch_id: int


class GraphRunStarted(EventData, frozen=True, kw_only=True):
    """A graph run was stored, with the entry that coordinates it; or a run that had ended was resumed."""

    kind = "kernel.graph.started"
    run_id: str
    graph: str
    sched_id: int
    resumed: bool = False


class GraphRunEnded(EventData, frozen=True, kw_only=True):
    """A graph run ended; its other entries are cancelled or asked to stop."""

    kind = "kernel.graph.ended"
    run_id: str
    graph: str
    status: Literal["succeeded", "failed", "cancelled"]
    error: str | None = None


class GraphRunWaits(EventData, frozen=True, kw_only=True):
    """A graph run can do nothing until an entry ends or a time comes, and holds no slot meanwhile."""

    kind = "kernel.graph.waits"
    run_id: str
    waits: str


class GraphBudgetSet(EventData, frozen=True, kw_only=True):
    """A graph run, or one of its nodes, got a budget in one dimension, or another one."""

    kind = "kernel.graph.budget_set"
    run_id: str
    node: str = ""  # "": the whole run
    dim: str
    limit: int


class GraphRunForgotten(EventData, frozen=True, kw_only=True):
    """A graph run was deleted and cannot be resumed."""

    kind = "kernel.graph.forgotten"
    run_id: str


EVENT_TYPES: Mapping[str, type[EventData]] = {data.kind: data for data in EventData.__subclasses__()}
