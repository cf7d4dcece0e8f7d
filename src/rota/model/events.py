"""Every fact the system can record, typed and versioned.

The journal is the one record: metrics, trace, feed and replay are folds over these facts. A fact is
written in the transaction that makes it true; a batch verb writes one fact with many ids. Kinds
begin with `kernel.`; a user's own events must not.

A fact's shape may change: raise its `version`, and add to `UPGRADES` a function from the old payload
to the new one. Old rows are never rewritten; they are read through the upgrades.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import msgspec

from rota.errors import InvalidPayload, StoreCorrupt
from rota.model.checks import PAYLOAD_BYTES_MAX, Checks

__all__ = ["FACTS", "RESERVED_PREFIX", "UPGRADES", "Event", "Fact", "check_user_event", "decode", "encode"]

RESERVED_PREFIX = "kernel."


class Event(msgspec.Struct, frozen=True):
    """A row of the journal: a fact, or a user's own event, with when and why."""

    event_id: int
    pid: int | None  # the agent it is about; None is the fleet's
    ts: float
    kind: str
    payload: dict[str, Any]
    causation_id: str | None = None
    correlation_id: str | None = None


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fact rota records."""

    kind: ClassVar[str] = ""
    version: ClassVar[int] = 1


class FlowMove(msgspec.Struct, frozen=True, array_like=True):
    """Where a flow stands after a charge."""

    level: Literal["project", "agent"]
    key: str
    virtual_time: int
    clock: int = 0  # of a project: the time of its agents
    parent: str = ""  # of an agent: its project


# --- agents --------------------------------------------------------------------------------------


class ProcessCreated(Fact, frozen=True, kw_only=True):
    """An agent was made."""

    kind = "kernel.process.created"
    name: str
    template: str
    parent_pid: int | None = None
    project_id: str | None = None


class ProcessTransitioned(Fact, frozen=True, kw_only=True):
    """An agent went from one state to another."""

    kind = "kernel.process.transitioned"
    prev_state: str
    new_state: str
    reason: str | None = None


class ProcessTerminated(Fact, frozen=True, kw_only=True):
    """An agent ended."""

    kind = "kernel.process.terminated"
    prev_state: str
    exit_kind: str | None = None
    detail: dict[str, Any] = {}


class ProcessRecovered(Fact, frozen=True, kw_only=True):
    """An agent was found running at start and put where it can go on."""

    kind = "kernel.process.recovered"
    prev_state: str
    new_state: str
    policy: str
    reason: str


class ProcessUpdated(Fact, frozen=True, kw_only=True):
    """An agent's own settings changed."""

    kind = "kernel.process.updated"
    changes: dict[str, Any]


# --- entries -------------------------------------------------------------------------------------


class EntriesEnqueued(Fact, frozen=True, kw_only=True):
    """Entries joined the queue: `count` of them, numbered from `first_id`."""

    kind = "kernel.sched.enqueued"
    first_id: int
    count: int = 1
    held: dict[str, list[int]] = {}  # by reason, those that are not ready yet
    deduped: int = 0


class ClaimedEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a claim."""

    sched_id: int
    pid: int
    attempt: int
    ask: dict[str, int] = {}
    workspace: str | None = None


class EntriesClaimed(Fact, frozen=True, kw_only=True):
    """A worker took entries. This event's id is the claims' token."""

    kind = "kernel.sched.claimed"
    worker_id: str
    incarnation: str
    entries: list[ClaimedEntry]
    policy: str
    because: list[str] = []
    flows: list[FlowMove] = []
    contexts: dict[str, int] = {}  # by context_id, what was taken at once (requests)
    forced_by: str | None = None
    admission_skipped: bool = False


class CompletedEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a completion."""

    sched_id: int
    exit_kind: str
    outcome: str | None = None


class EntriesCompleted(Fact, frozen=True, kw_only=True):
    """Runs ended, well or badly, for good."""

    kind = "kernel.sched.completed"
    entries: list[CompletedEntry]
    worker_id: str | None = None
    flows: list[FlowMove] = []


class EntriesReturned(Fact, frozen=True, kw_only=True):
    """Dispatched entries went back to the queue."""

    kind = "kernel.sched.returned"
    verb: Literal["reclaim", "retry", "preempt", "yield"]
    sched_ids: list[int]
    runnable_at: float | None = None
    reason: str | None = None
    flows: list[FlowMove] = []


class EntriesReleased(Fact, frozen=True, kw_only=True):
    """Held entries became ready: their time came, what they waited for ended, or the worker they waited for asked."""

    kind = "kernel.sched.released"
    hold: str
    sched_ids: list[int]


class EntriesKept(Fact, frozen=True, kw_only=True):
    """Held entries could be ready, and are kept for the worker they would rather have."""

    kind = "kernel.sched.kept"
    hold: str  # what they had waited for
    sched_ids: list[int]


class EntriesExpired(Fact, frozen=True, kw_only=True):
    """Queued entries passed their deadline and were swept."""

    kind = "kernel.sched.expired"
    sched_ids: list[int]


class EntriesCancelled(Fact, frozen=True, kw_only=True):
    """Queued entries were cancelled."""

    kind = "kernel.sched.cancelled"
    sched_ids: list[int]
    reason: str | None = None


class EntriesChanged(Fact, frozen=True, kw_only=True):
    """Queued entries got another priority, time, deadline or tags."""

    kind = "kernel.sched.changed"
    sched_ids: list[int]
    changes: dict[str, Any]


class CancelRequested(Fact, frozen=True, kw_only=True):
    """A running entry was asked to stop."""

    kind = "kernel.sched.cancel_requested"
    sched_ids: list[int]
    by: str | None = None


class ClaimsExtended(Fact, frozen=True, kw_only=True):
    """The wall clock jumped, and live claims were given the time back."""

    kind = "kernel.sched.claims_extended"
    by_s: float
    count: int


# --- budgets -------------------------------------------------------------------------------------


class LedgerCreated(Fact, frozen=True, kw_only=True):
    """An agent was given a ledger, or more dimensions of one."""

    kind = "kernel.ledger.created"
    grants: dict[str, int]
    warn_at: float


class LedgerCharged(Fact, frozen=True, kw_only=True):
    """Usage was recorded. It is recorded even when it passes a limit."""

    kind = "kernel.ledger.charged"
    amounts: dict[str, int]
    sched_id: int | None = None
    project_id: str | None = None
    contexts: dict[str, int] = {}  # by context_id
    flows: list[FlowMove] = []


class LedgerRefunded(Fact, frozen=True, kw_only=True):
    """Usage was given back."""

    kind = "kernel.ledger.refunded"
    amounts: dict[str, int]
    contexts: dict[str, int] = {}
    flows: list[FlowMove] = []


class LedgerGranted(Fact, frozen=True, kw_only=True):
    """A grant was changed."""

    kind = "kernel.ledger.granted"
    dim: str
    granted: int
    previous: int


class LedgerWarned(Fact, frozen=True, kw_only=True):
    """Usage crossed its warning mark."""

    kind = "kernel.ledger.warned"
    dim: str
    used: int
    granted: int


class LedgerBreached(Fact, frozen=True, kw_only=True):
    """Usage crossed its limit."""

    kind = "kernel.ledger.breached"
    level: str
    owner: str
    dim: str
    used: int
    limit: int


class BudgetSet(Fact, frozen=True, kw_only=True):
    """A project or global budget was set, changed or removed."""

    kind = "kernel.budget.set"
    level: Literal["project", "global"]
    owner: str
    dim: str
    limit: int | None
    window_s: float | None = None


class ShareWindowSet(Fact, frozen=True, kw_only=True):
    """fair_share looks back this far from now on."""

    kind = "kernel.share.window_set"
    window_s: float
    previous_s: float


class AffinityWaitSet(Fact, frozen=True, kw_only=True):
    """Entries wait this long for the worker they would rather have from now on."""

    kind = "kernel.affinity.wait_set"
    wait_s: float
    previous_s: float


class BudgetLent(Fact, frozen=True, kw_only=True):
    """A run lent a part of its budget to work that it spawned."""

    kind = "kernel.budget.lent"
    sched_id: int
    parent_id: int
    amounts: dict[str, int]


class BudgetReturned(Fact, frozen=True, kw_only=True):
    """What a child left of what it was lent went back to its parent."""

    kind = "kernel.budget.returned"
    sched_id: int
    parent_id: int
    amounts: dict[str, int]


class FlowReweighted(Fact, frozen=True, kw_only=True):
    """A flow's share changed."""

    kind = "kernel.flow.reweighted"
    level: Literal["project", "agent"]
    key: str
    weight: int
    previous: int


class ContextCreated(Fact, frozen=True, kw_only=True):
    """A context was admitted."""

    kind = "kernel.context.created"
    context_id: int
    budget: int
    period: int
    bound_to: str
    bound_id: str
    unit: str = "tokens"


class ContextAdjusted(Fact, frozen=True, kw_only=True):
    """A context's numbers change at its next refill."""

    kind = "kernel.context.adjusted"
    context_id: int
    changes: dict[str, Any]


class ContextDepleted(Fact, frozen=True, kw_only=True):
    """A context's budget is used up until it is refilled."""

    kind = "kernel.context.depleted"
    context_id: int
    remaining: int
    refill_at: float | None = None


class ContextReplenished(Fact, frozen=True, kw_only=True):
    """A context was refilled."""

    kind = "kernel.context.replenished"
    context_id: int
    amount: int
    remaining: int


class ContextRevoked(Fact, frozen=True, kw_only=True):
    """A context was taken back; every handle to it is stale."""

    kind = "kernel.context.revoked"
    context_id: int


class LimitThrottled(Fact, frozen=True, kw_only=True):
    """A provider asked for a pause: everybody who draws on this name waits."""

    kind = "kernel.context.throttled"
    name: str
    until_at: float
    by: int | None = None  # the pid of the agent that was told


# --- projects, workspaces, pauses ----------------------------------------------------------------


class ProjectCreated(Fact, frozen=True, kw_only=True):
    """A project was made."""

    kind = "kernel.project.created"
    project_id: str
    weight: int
    max_concurrent: int | None = None


class ProjectUpdated(Fact, frozen=True, kw_only=True):
    """A project's settings changed."""

    kind = "kernel.project.updated"
    project_id: str
    changes: dict[str, Any]


class ProjectTransitioned(Fact, frozen=True, kw_only=True):
    """A project went from one status to another."""

    kind = "kernel.project.transitioned"
    project_id: str
    prev_status: str
    new_status: str
    by: str | None = None


class WorkspaceAdded(Fact, frozen=True, kw_only=True):
    """A project was given a workspace."""

    kind = "kernel.workspace.added"
    workspace_id: str
    project_id: str
    path: str


class WorkspaceRemoved(Fact, frozen=True, kw_only=True):
    """A workspace was taken away."""

    kind = "kernel.workspace.removed"
    workspace_id: str


class Paused(Fact, frozen=True, kw_only=True):
    """An agent, a project or the whole fleet gets no more runs."""

    kind = "kernel.pause.set"
    level: Literal["agent", "project", "fleet"]
    key: str
    by: str
    reason: str | None = None


class Resumed(Fact, frozen=True, kw_only=True):
    """A pause ended."""

    kind = "kernel.pause.lifted"
    level: Literal["agent", "project", "fleet"]
    key: str
    by: str


# --- the store and the clock ---------------------------------------------------------------------


class StoreMigrated(Fact, frozen=True, kw_only=True):
    """The file went from one schema version to the next."""

    kind = "kernel.store.migrated"
    from_version: int
    to_version: int


class Checkpointed(Fact, frozen=True, kw_only=True):
    """The folded state was written down, so that the journal before it can go."""

    kind = "kernel.journal.checkpointed"
    through_id: int


class Pruned(Fact, frozen=True, kw_only=True):
    """Old rows were removed."""

    kind = "kernel.journal.pruned"
    table: str
    count: int
    ranges: list[tuple[int, int]] = []  # first and last id of each stretch


class ClockJumped(Fact, frozen=True, kw_only=True):
    """The wall clock moved against the monotonic one."""

    kind = "kernel.clock.jumped"
    by_s: float


# --- the policy service --------------------------------------------------------------------------


class PolicyFellBack(Fact, frozen=True, kw_only=True):
    """A policy failed, and strict order took its place."""

    kind = "kernel.policy.fell_back"
    policy: str
    failure: Literal["raised", "stalled", "nonsense", "stale"]
    detail: str


class ProfileMapped(Fact, frozen=True, kw_only=True):
    """The service turned a hint into a weight, a context or a lease."""

    kind = "kernel.policy.profile_mapped"
    subject: str
    hint: str
    granted: dict[str, Any]
    epoch: int


class PolicyReloaded(Fact, frozen=True, kw_only=True):
    """The service's settings were read anew; decisions of older epochs are dropped."""

    kind = "kernel.policy.reloaded"
    epoch: int
    changes: dict[str, Any] = {}


class CpuContextMoved(Fact, frozen=True, kw_only=True):
    """A context for CPU time was admitted, refused, adjusted or revoked."""

    kind = "kernel.cpu_context.moved"
    context_id: int
    owner: str
    verb: Literal["admit", "refuse", "adjust", "revoke"]
    budget_ns: int
    period_ns: int
    reason: str | None = None


class LeaseMoved(Fact, frozen=True, kw_only=True):
    """A lease was granted, refused, revoked or released."""

    kind = "kernel.lease.moved"
    lease_id: int
    owner: str
    verb: str
    state: str
    reason: str | None = None


class IslandMoved(Fact, frozen=True, kw_only=True):
    """An island was admitted, refused, started, overran or stopped."""

    kind = "kernel.island.moved"
    island_id: int
    verb: str
    state: str
    evidence: dict[str, int] = {}


class DeadlineMissed(Fact, frozen=True, kw_only=True):
    """A run or an island's activation ended after its deadline."""

    kind = "kernel.deadline.missed"
    subject: str
    lateness: int


# --- running -------------------------------------------------------------------------------------


class RunStarted(Fact, frozen=True, kw_only=True):
    """A runner began an entry."""

    kind = "kernel.run.started"
    sched_id: int
    attempt: int
    token: int
    slot: str
    runner: str
    os_pid: int | None = None


class RunEnded(Fact, frozen=True, kw_only=True):
    """A runner ended an entry."""

    kind = "kernel.run.ended"
    sched_id: int
    attempt: int
    exit_kind: str
    outcome: str | None = None
    wall_ms: int = 0
    usage: dict[str, int] = {}
    stopped_by: Literal["message", "TERM", "KILL"] | None = None


class RunCheckpointed(Fact, frozen=True, kw_only=True):
    """An agent saved where it stands."""

    kind = "kernel.run.checkpointed"
    sched_id: int
    token: int
    state: dict[str, Any]


class AgentQuarantined(Fact, frozen=True, kw_only=True):
    """An agent kept failing and is left alone for a while."""

    kind = "kernel.run.quarantined"
    failures: int
    until_at: float


class TriggerFired(Fact, frozen=True, kw_only=True):
    """A trigger enqueued an entry, or found one there already."""

    kind = "kernel.trigger.fired"
    trigger: str
    sched_id: int
    created: bool = True


class SupervisorMoved(Fact, frozen=True, kw_only=True):
    """A supervisor started, drains, stopped, or took over another's work."""

    kind = "kernel.supervisor.moved"
    worker_id: str
    incarnation: str
    verb: Literal["started", "draining", "stopped", "took_over"]


class FleetReloaded(Fact, frozen=True, kw_only=True):
    """The fleet file was read anew."""

    kind = "kernel.fleet.reloaded"
    changes: dict[str, Any] = {}


# --- doors ---------------------------------------------------------------------------------------


class DaemonMoved(Fact, frozen=True, kw_only=True):
    """The daemon started or stopped."""

    kind = "kernel.daemon.moved"
    verb: Literal["started", "stopped"]
    rota_version: str


class AccessDenied(Fact, frozen=True, kw_only=True):
    """Somebody was turned away."""

    kind = "kernel.auth.denied"
    peer: str
    method: str | None
    reason: str


class OperatorActed(Fact, frozen=True, kw_only=True):
    """An operator did something that others may ask about."""

    kind = "kernel.auth.operated"
    who: str
    method: str
    detail: dict[str, Any] = {}


class TokenMoved(Fact, frozen=True, kw_only=True):
    """An access token was made or revoked."""

    kind = "kernel.auth.token"
    token_id: str
    verb: Literal["created", "revoked"]
    scope: list[str] = []


# --- graphs --------------------------------------------------------------------------------------


class GraphRunTaken(Fact, frozen=True, kw_only=True):
    """A process began a run of a graph, or went on with it. This event's id is the run's fence."""

    kind = "kernel.graph.taken"
    run_id: str
    graph: str
    next_epoch_id: int


class GraphRunCommitted(Fact, frozen=True, kw_only=True):
    """A run of a graph wrote down where it stands: everything before this epoch is committed."""

    kind = "kernel.graph.committed"
    run_id: str
    next_epoch_id: int


class GraphRunForgotten(Fact, frozen=True, kw_only=True):
    """A run of a graph was removed; nobody can resume it."""

    kind = "kernel.graph.forgotten"
    run_id: str


# --- reading and writing -------------------------------------------------------------------------

FACTS: Mapping[str, type[Fact]] = {fact.kind: fact for fact in Fact.__subclasses__()}

UPGRADES: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {}

_encoder = msgspec.json.Encoder()


def encode(fact: Fact) -> bytes:
    """A fact's payload as it is stored; its kind goes beside it."""
    body = _encoder.encode(fact)
    if fact.version == 1:
        return body
    return b'{"v":%d%s%s' % (fact.version, b"" if body == b"{}" else b",", body[1:])


def decode(kind: str, payload: dict[str, Any]) -> Fact:
    """The fact in a stored payload, brought up to its present shape."""
    fact = FACTS.get(kind)
    if fact is None:
        raise StoreCorrupt(f"the journal has a fact of unknown kind {kind}", kind=kind)
    version = payload.get("v", 1)
    body = {name: value for name, value in payload.items() if name != "v"}
    if version > fact.version:
        raise StoreCorrupt(f"{kind} version {version} was written by a newer rota", kind=kind, version=version)
    while version < fact.version:
        body = UPGRADES[kind, version](body)
        version += 1
    try:
        return msgspec.convert(body, fact)
    except msgspec.ValidationError as problem:
        raise StoreCorrupt(f"a stored {kind} cannot be read: {problem}", kind=kind) from problem


_event = Checks("Event", InvalidPayload)


def check_user_event(kind: str, payload: dict[str, Any]) -> bytes:
    """A user's event, checked and encoded: any kind but ours, any JSON that is not too large."""
    _event.text("kind", kind)
    if kind.startswith(RESERVED_PREFIX):
        raise _event.refuse("kind", f"must not begin with {RESERVED_PREFIX!r}: those are rota's own facts")
    _event.mapping("payload", payload)
    try:
        body = _encoder.encode(payload)
    except (TypeError, ValueError) as problem:
        raise _event.refuse("payload", f"is not JSON: {problem}") from problem
    if len(body) > PAYLOAD_BYTES_MAX:
        raise _event.refuse("payload", f"is {len(body):,} bytes; at most {PAYLOAD_BYTES_MAX:,} are taken")
    return body
