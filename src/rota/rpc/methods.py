"""The method table: every RPC method, declared once.

A row declares a method's name, parameters, result, errors and scope, the object and function that implement it, and
how the server executes it. The server, the clients, the reference page and `rpc.discover` all read this table.

Scopes are ordered, and each includes the ones before it. `read` reads; `enqueue` enqueues and cancels entries; `work`
claims, runs and charges; `operate` changes what other callers do; `admin` manages access tokens.

The daemon's event loop must not block, so each method declares its execution:
- `read`: reads one consistent snapshot, and never waits
- `write`: one commit, shared with other writes of the same moment
- `claim`: a write that may wait for entries to claim
- `multi_commit`: several commits in a row; other writes may come in between
- `wait`: reads, and waits for a change
- `inline`: answered by the server in its event loop, without the kernel
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from rota import errors as e
from rota.errors import RotaError
from rota.model.budgets import LedgerLine, SchedulingContext
from rota.model.explanation import Explanation
from rota.model.work import Agent, Project, ReadyEntry, ScheduleSpec, Workspace
from rota.rpc.params import NameParams, NoParams
from rota.rpc.params import accounts as ap
from rota.rpc.params import entries as p
from rota.rpc.params import system as sp
from rota.rpc.results import NO_RESULT, ResultCodec, as_is, as_tuple, many_fields, one_field
from rota.rpc.results import accounts as ar
from rota.rpc.results import entries as r
from rota.rpc.results import system as sr

__all__ = ["ANY_METHOD", "METHODS", "PROTOCOL", "SCOPES", "Execution", "Method", "Scope", "methods_of_part"]

PROTOCOL = 1  # increased when a method changes in a way that an older client would misread

Scope: TypeAlias = Literal["read", "enqueue", "work", "operate", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "enqueue", "work", "operate", "admin")
Execution: TypeAlias = Literal["read", "write", "claim", "multi_commit", "wait", "inline"]

ANY_METHOD: tuple[type[RotaError], ...] = (  # errors that every method may return
    e.InvalidInput, e.LimitExceeded, e.Unauthenticated, e.Forbidden, e.LockedOut, e.StoreUnavailable,
)  # fmt: skip


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    summary: str
    params: Any  # the type of its parameters: a `Params` subclass or a struct of the model
    codec: ResultCodec
    scope: Scope
    execution: Execution
    part: str  # the object that implements it: a part of the kernel (queue, agents, …), `dispatcher` or `handlers`
    verb: str  # that object's function
    errors: tuple[type[RotaError], ...] = ()
    operate_fields: tuple[str, ...] = ()  # parameters that need scope `operate` unless they have their default
    retry_safe: bool = False  # may be sent again when the response was lost: it changes nothing, or nothing more
    takes_struct: bool = False  # the function takes the parameters as one struct


def _row(  # noqa: PLR0917  # a row of the table is read as columns
    name: str,
    params: Any,
    codec: ResultCodec,
    scope: Scope,
    execution: Execution,
    implemented_by: str,
    summary: str,
    **more: Any,
) -> Method:
    part, verb = implemented_by.split(".")
    retry_safe = more.pop("retry_safe", execution in ("read", "wait"))
    return Method(
        name=name,
        params=params,
        codec=codec,
        scope=scope,
        execution=execution,
        part=part,
        verb=verb,
        summary=summary,
        retry_safe=retry_safe,
        **more,
    )


_ENTRY = (e.SchedUnknownId, e.SchedInvalidPayload)
_NEW = (e.UnknownPid, e.SchedUnknownId, e.SchedInvalidPayload)
_RUN = (e.SchedUnknownId, e.StaleClaim, e.SchedInvalidPayload)
_CLAIM = (e.SchedInvalidPayload, e.UnknownPolicy)
_AGENT = (e.UnknownPid, e.InvalidPayload)
_PROJECT = (e.ProjectUnknown, e.ProjectInvalid)
_CONTEXT = (e.ContextUnknown, e.ContextInvalid)
_LINE = (e.UnknownPid, e.LedgerUnknownDim, e.LedgerInvalidAmount)
_CLAIM_OVERRIDES = ("now", "admission_check")

_SCHED: Sequence[Method] = (
    _row("kernel.sched.enqueue", ScheduleSpec, one_field(r.EnqueueResult), "enqueue", "write", "queue.enqueue",
         "Enqueue an entry.", errors=_NEW, takes_struct=True),
    _row("kernel.sched.enqueue_many", p.EnqueueManyParams, one_field(r.EnqueueManyResult), "enqueue", "write",
         "queue.enqueue_many", "Enqueue many entries in one commit: all or none.", errors=_NEW),
    _row("kernel.sched.enqueue_unique", p.EnqueueUniqueParams, many_fields(r.EnqueueUniqueResult, as_tuple), "enqueue",
         "write", "queue.enqueue_unique", "Enqueue an entry unless a matching one is queued or running.", errors=_NEW,
         retry_safe=True),
    _row("kernel.sched.claim", p.ClaimParams, one_field(r.ClaimResult), "work", "claim", "dispatcher.claim",
         "Claim ready entries for a worker; while there are none, wait up to wait_s.", errors=_CLAIM,
         operate_fields=_CLAIM_OVERRIDES),
    _row("kernel.sched.complete", p.CompleteParams, r.COMPLETE, "work", "write", "queue.complete",
         "Complete a run.", errors=(e.SchedIllegalTransition, *_RUN)),
    _row("kernel.sched.complete_many", p.CompleteManyParams, r.COMPLETE_MANY, "work", "write", "queue.complete_many",
         "Complete many runs in one commit; a rejected one has its error in its place.",
         errors=(e.SchedInvalidPayload,)),
    _row("kernel.sched.complete_and_claim", p.CompleteAndClaimParams, r.COMPLETE_AND_CLAIM, "work", "claim",
         "dispatcher.complete_and_claim", "Complete runs and claim the next entries in one commit.", errors=_CLAIM,
         operate_fields=_CLAIM_OVERRIDES),
    _row("kernel.sched.heartbeat", p.HeartbeatParams, r.HEARTBEAT, "work", "write", "queue.heartbeat",
         "Extend a claim.", errors=_RUN, operate_fields=("now",), retry_safe=True),
    _row("kernel.sched.heartbeat_many", p.HeartbeatManyParams, r.HEARTBEAT_MANY, "work", "write",
         "queue.heartbeat_many", "Extend many claims; a lost claim has its error in its place.",
         errors=(e.SchedInvalidPayload,), operate_fields=("now",), retry_safe=True),
    _row("kernel.sched.charge", p.ChargeRunParams, r.CHARGE_RUN, "work", "write", "queue.charge",
         "Record what a run used, at every level.", errors=(e.LedgerInvalidAmount, *_RUN)),
    _row("kernel.sched.put_back", p.PutBackParams, NO_RESULT, "work", "write", "queue.put_back",
         "Return a run's entry to the queue without counting an attempt.", errors=_RUN),
    _row("kernel.sched.cancel", p.EntryIdParams, r.CANCEL, "enqueue", "write", "queue.cancel",
         "Cancel a queued entry.", errors=(e.SchedIllegalTransition, *_ENTRY)),
    _row("kernel.sched.request_cancel", p.RequestCancelParams, one_field(r.StateResult), "enqueue", "write",
         "queue.request_cancel", "Cancel a queued entry; ask a running one to stop at its next heartbeat.",
         errors=(e.SchedIllegalTransition, *_ENTRY)),
    _row("kernel.sched.cancel_where", p.CancelWhereParams, one_field(r.CountResult), "operate", "multi_commit",
         "queue.cancel_where", "Cancel every queued entry that matches the filter.",
         errors=(e.SchedInvalidStateFilter, e.SchedInvalidPayload), retry_safe=True),
    _row("kernel.sched.retry_where", p.RetryWhereParams, one_field(r.RetryResult), "operate", "multi_commit",
         "queue.retry_where", "Retry matching entries: in backoff, make them ready now; failed, enqueue a copy.",
         errors=(e.SchedInvalidStateFilter, e.SchedInvalidPayload)),
    _row("kernel.sched.change", p.ChangeEntryParams, as_is(ReadyEntry), "operate", "write", "queue.change",
         "Change the priority, time or deadline of a queued entry.", errors=(e.SchedIllegalTransition, *_ENTRY),
         retry_safe=True),
    _row("kernel.sched.release", p.EntryIdParams, as_is(ReadyEntry), "operate", "write", "queue.release",
         "Let an entry run although its predecessor failed or it is reserved for a worker.",
         errors=(e.SchedIllegalTransition, *_ENTRY)),
    _row("kernel.sched.affinity_wait", NoParams, one_field(r.AffinityWaitResult), "read", "read",
         "queue.affinity_wait", "Return how long an entry is reserved for its affinity worker."),
    _row("kernel.sched.set_affinity_wait", p.SetAffinityWaitParams, NO_RESULT, "operate", "write",
         "queue.set_affinity_wait", "Set how long entries are reserved for their affinity worker.",
         errors=(e.SchedInvalidPayload,), retry_safe=True),
    _row("kernel.sched.force_claim", p.ForceClaimParams, as_is(ReadyEntry), "operate", "write", "queue.force_claim",
         "Claim one entry out of order, if nothing blocks it.", errors=(e.SchedAdmissionDenied, *_ENTRY)),
    _row("kernel.sched.get", p.EntryIdParams, as_is(ReadyEntry), "read", "read", "queue.get",
         "Return one entry.", errors=_ENTRY),
    _row("kernel.sched.list", p.ListEntriesParams, many_fields(r.EntryPageResult, as_tuple), "read", "read",
         "queue.list", "Return a page of entries by id, and the number of matches.",
         errors=(e.SchedInvalidStateFilter, e.SchedInvalidPayload, e.LimitExceeded)),
    _row("kernel.sched.counts", NoParams, one_field(r.CountsResult), "read", "read", "queue.counts",
         "Count the entries in each state; queued entries also by hold."),
    _row("kernel.sched.wait", p.WaitParams, as_is(ReadyEntry), "read", "wait", "queue.wait",
         "Wait for an entry to end, and return it.", errors=(e.WaitTimeout, *_ENTRY)),
    _row("kernel.sched.gc_expired", p.NowParams, one_field(r.SweepResult), "operate", "multi_commit",
         "queue.gc_expired", "Expire every queued entry past its deadline.", errors=(e.InvalidPayload,),
         retry_safe=True),
    _row("kernel.sched.gc_dispatched", p.StaleClaimsParams, one_field(r.CountResult), "operate", "multi_commit",
         "queue.gc_dispatched", "Take back every claim without a heartbeat for stale_seconds.",
         errors=(e.SchedInvalidPayload,), retry_safe=True),
    _row("kernel.sched.take_over", p.TakeOverParams, one_field(r.CountResult), "work", "multi_commit",
         "queue.take_over", "Take back what earlier incarnations of a restarted worker hold.",
         errors=(e.SchedInvalidPayload,), retry_safe=True),
    _row("kernel.sched.upkeep", p.NowParams, one_field(r.NextResult), "work", "write", "queue.upkeep",
         "Do all due maintenance, and return when it is next due.", errors=(e.SchedInvalidPayload,),
         operate_fields=("now",), retry_safe=True),
    _row("kernel.sched.nudge", p.NudgeParams, NO_RESULT, "work", "inline", "queue.nudge",
         "Make a worker's waiting claim return immediately, without entries.", errors=(e.SchedInvalidPayload,),
         retry_safe=True),
    _row("kernel.sched.peek", p.PeekParams, one_field(r.ClaimResult), "read", "read", "queue.peek",
         "Return what a claim in strict order would return now, without claiming it.",
         errors=(e.SchedInvalidPayload,)),
    _row("kernel.sched.retry", p.EntryIdParams, one_field(r.EnqueueResult), "operate", "write", "queue.retry",
         "Retry one entry: in backoff, make it ready now; failed, enqueue a copy.",
         errors=(e.SchedIllegalTransition, *_ENTRY)),
    _row("kernel.sched.explain", p.ExplainParams, as_is(Explanation), "read", "multi_commit", "handlers.explain",
         "Explain why an entry is not running: what blocks it, what runs first, and what would change that.",
         errors=(e.UnknownPolicy, *_ENTRY), operate_fields=("now",), retry_safe=True),
)  # fmt: skip

_RUNS: Sequence[Method] = (
    _row("kernel.run.turn", p.TurnParams, r.COMPLETE_AND_CLAIM, "work", "claim", "dispatcher.turn",
         "For supervisors: complete runs, claim the next entries and move the agents of both, in one commit.",
         errors=_CLAIM, operate_fields=_CLAIM_OVERRIDES),
    _row("kernel.run.began", p.RunStartedParams, NO_RESULT, "work", "write", "supervision.began",
         "Record that a runner started an entry.", errors=_RUN),
    _row("kernel.run.checkpoint", p.CheckpointParams, NO_RESULT, "work", "write", "supervision.checkpoint",
         "Save a run's checkpoint for its next attempt.", errors=_RUN, retry_safe=True),
    _row("kernel.run.rest", p.RestParams, one_field(r.AmountsResult), "work", "write", "supervision.rest",
         "Record that a run waits for its children, or continues with what is left of the budget lent to them.",
         errors=_RUN),
    _row("kernel.run.spawn", p.SpawnParams, one_field(r.EnqueueResult), "work", "write", "supervision.spawn",
         "Enqueue a child of a run, with a part of the run's budget.", errors=(e.LedgerInvalidAmount, *_NEW, *_RUN)),
    _row("kernel.run.quarantine", p.QuarantineParams, NO_RESULT, "work", "write", "supervision.quarantine",
         "Pause an agent that keeps failing until a given time.", errors=(*_AGENT, e.SchedInvalidPayload),
         retry_safe=True),
    _row("kernel.run.moved", p.SupervisorMovedParams, NO_RESULT, "work", "write", "supervision.moved",
         "Record that a supervisor started, drains, stopped or took over.", errors=(e.SchedInvalidPayload,)),
    _row("kernel.run.recover", NoParams, one_field(ar.PidsResult), "work", "write", "supervision.recover",
         "At a supervisor's start: move agents whose runs have no live claim out of their running state.",
         retry_safe=True),
)  # fmt: skip

_AGENTS: Sequence[Method] = (
    _row("kernel.agent.create", ap.CreateAgentParams, one_field(ar.CreateAgentResult), "work", "write",
         "agents.create", "Create an agent; nothing is enqueued.", errors=(e.ProjectUnknown, *_AGENT)),
    _row("kernel.agent.get", ap.PidParams, as_is(Agent), "read", "read", "agents.get",
         "Return one agent.", errors=_AGENT),
    _row("kernel.agent.find", NameParams, one_field(ar.AgentListResult), "read", "read", "agents.find",
         "Return the living agents of a name, youngest first.", errors=(e.InvalidPayload,)),
    _row("kernel.agent.paused", ap.PausedAgentsParams, one_field(ar.AgentListResult), "read", "read", "agents.paused",
         "Return the agents paused by a given person or program.", errors=(e.InvalidPayload,)),
    _row("kernel.agent.list", ap.ListAgentsParams, many_fields(ar.AgentPageResult, as_tuple), "read", "read",
         "agents.list", "Return a page of agents by pid, and the number of matches.", errors=(e.InvalidPayload,)),
    _row("kernel.agent.transition", ap.TransitionParams, as_is(Agent), "work", "write", "agents.transition",
         "Move an agent to another state, if its state machine allows it.", errors=(e.IllegalTransition, *_AGENT)),
    _row("kernel.agent.update", ap.UpdateAgentParams, as_is(Agent), "operate", "write", "agents.update",
         "Change an agent's priority, weight, intent, max_concurrent or metadata.", errors=_AGENT, retry_safe=True),
    _row("kernel.agent.pause", ap.PauseAgentParams, NO_RESULT, "operate", "write", "agents.pause",
         "Pause an agent: its entries are not claimed until it is resumed.", errors=_AGENT, retry_safe=True),
    _row("kernel.agent.resume", ap.ResumeAgentParams, NO_RESULT, "operate", "write", "agents.resume",
         "Resume a paused agent.", errors=_AGENT, retry_safe=True),
    _row("kernel.agent.terminate", ap.TerminateParams, as_is(Agent), "work", "multi_commit", "kernel.terminate",
         "Terminate an agent; its queued entries are cancelled unless queued is keep.",
         errors=(e.IllegalTransition, *_AGENT)),
    _row("kernel.agent.recover", ap.RecoverParams, one_field(ar.PidsResult), "work", "write", "agents.recover",
         "Mark the agents that were running at a crash as suspended or dead.", errors=(e.InvalidPayload,),
         retry_safe=True),
)  # fmt: skip

_LEDGER: Sequence[Method] = (
    _row("kernel.ledger.create", ap.CreateLedgerParams, one_field(ar.LedgerLinesResult), "operate", "write",
         "ledger.create", "Grant an agent a total for each dimension: all or none.",
         errors=(e.LedgerExists, e.LedgerInvalidWarnAt, *_LINE)),
    _row("kernel.ledger.get", ap.PidParams, one_field(ar.LedgerLinesResult), "read", "read", "ledger.get",
         "Return an agent's ledger lines; the list may be empty.", errors=(e.LedgerInvalidAmount,)),
    _row("kernel.ledger.charge", ap.AmountParams, r.CHARGE, "work", "write", "ledger.charge",
         "Record usage of one dimension of an agent's ledger.", errors=_LINE),
    _row("kernel.ledger.check", ap.AmountParams, ar.CHECK_CHARGE, "read", "read", "ledger.check",
         "Return what a charge would do, without charging.", errors=_LINE),
    _row("kernel.ledger.refund", ap.AmountParams, as_is(LedgerLine), "operate", "write", "ledger.refund",
         "Take back usage, at every level, up to what was used.", errors=(e.LedgerInvalidRefund, *_LINE)),
    _row("kernel.ledger.update_grant", ap.UpdateGrantParams, as_is(LedgerLine), "operate", "write",
         "ledger.update_grant", "Change a grant, and its limit with it.", errors=_LINE, retry_safe=True),
    _row("kernel.ledger.list_breached", NoParams, one_field(ar.LedgerLinesResult), "read", "read",
         "ledger.list_breached", "Return every ledger line whose usage exceeds its limit."),
    _row("kernel.ledger.set_budget", ap.SetBudgetParams, NO_RESULT, "operate", "write", "ledger.set_budget",
         "Set the budget of a project, or of the whole store, per rolling window.",
         errors=(e.ProjectUnknown, e.LedgerInvalidAmount), retry_safe=True),
    _row("kernel.ledger.share_window", NoParams, one_field(ar.ShareWindowResult), "read", "read",
         "ledger.share_window", "Return how far back fair_share looks."),
    _row("kernel.ledger.set_share_window", ap.SetShareWindowParams, NO_RESULT, "operate", "write",
         "ledger.set_share_window", "Set how far back fair_share looks.", errors=(e.LedgerInvalidAmount,),
         retry_safe=True),
    _row("kernel.ledger.budgets", NoParams, one_field(ar.BudgetsResult), "read", "read", "ledger.budgets",
         "Return the project budgets and the global budgets, with usage and reservations."),
)  # fmt: skip

_PROJECTS: Sequence[Method] = (
    _row("kernel.project.create", ap.CreateProjectParams, as_is(Project), "operate", "write", "projects.create",
         "Create a project.", errors=(e.ProjectExists, e.ProjectInvalid)),
    _row("kernel.project.get", ap.ProjectIdParams, as_is(Project), "read", "read", "projects.get",
         "Return one project.", errors=_PROJECT),
    _row("kernel.project.list", ap.ListProjectsParams, many_fields(ar.ProjectPageResult, as_tuple), "read", "read",
         "projects.list", "Return a page of projects by id, and the number of matches.", errors=(e.ProjectInvalid,)),
    _row("kernel.project.update", ap.UpdateProjectParams, as_is(Project), "operate", "write", "projects.update",
         "Change a project's name, weight, max_concurrent or metadata.", errors=_PROJECT, retry_safe=True),
    _row("kernel.project.constrain", ap.ConstrainParams, as_is(Project), "operate", "write", "projects.constrain",
         "Set a constraint on a project; an empty one removes it.", errors=_PROJECT, retry_safe=True),
    _row("kernel.project.move", ap.MoveProjectParams, as_is(Project), "operate", "write", "projects.move",
         "Pause, resume, archive or restore a project.", errors=(e.ProjectIllegalTransition, *_PROJECT)),
    _row("kernel.project.pause_fleet", ap.PauseFleetParams, NO_RESULT, "operate", "write", "projects.pause_fleet",
         "Pause the whole fleet: nothing is claimed until it is resumed.", errors=(e.ProjectInvalid,),
         retry_safe=True),
    _row("kernel.project.resume_fleet", ap.ResumeFleetParams, NO_RESULT, "operate", "write", "projects.resume_fleet",
         "Resume the fleet.", errors=(e.ProjectInvalid,), retry_safe=True),
    _row("kernel.project.fleet_paused_by", NoParams, one_field(ar.PausedByResult), "read", "read",
         "projects.fleet_paused_by", "Return who paused the fleet, or null."),
    _row("kernel.project.add_workspace", ap.AddWorkspaceParams, as_is(Workspace), "operate", "write",
         "projects.add_workspace", "Add a workspace to a project.", errors=(e.WorkspaceExists, *_PROJECT)),
    _row("kernel.project.remove_workspace", ap.WorkspaceIdParams, NO_RESULT, "operate", "write",
         "projects.remove_workspace", "Remove a workspace that no run holds.",
         errors=(e.WorkspaceUnknown, e.WorkspaceHeld, e.ProjectInvalid)),
    _row("kernel.project.workspace", ap.WorkspaceIdParams, as_is(Workspace), "read", "read", "projects.workspace",
         "Return one workspace and the runs that hold it.", errors=(e.WorkspaceUnknown, e.ProjectInvalid)),
    _row("kernel.project.workspaces", ap.ProjectIdParams, one_field(ar.WorkspacesResult), "read", "read",
         "projects.workspaces", "Return a project's workspaces and the runs that hold them.",
         errors=(e.ProjectInvalid,)),
)  # fmt: skip

_CONTEXTS: Sequence[Method] = (
    _row("kernel.context.create", ap.CreateContextParams, as_is(SchedulingContext), "operate", "write",
         "contexts.create", "Create a context: a budget per period.",
         errors=(e.ContextExists, e.UnknownPid, e.ProjectUnknown, e.ContextInvalid)),
    _row("kernel.context.get", ap.ContextIdParams, as_is(SchedulingContext), "read", "read", "contexts.get",
         "Return one context.", errors=_CONTEXT),
    _row("kernel.context.list", ap.PageParams, one_field(ar.ContextsResult), "read", "read", "contexts.list",
         "Return a page of contexts, by id."),
    _row("kernel.context.adjust", ap.AdjustContextParams, as_is(SchedulingContext), "operate", "write",
         "contexts.adjust", "Change a context's budget and period from the next refill on.",
         errors=(e.StaleHandle, *_CONTEXT)),
    _row("kernel.context.revoke", ap.ContextIdParams, NO_RESULT, "operate", "write", "contexts.revoke",
         "Revoke a context; all its handles become stale.", errors=(e.ContextIllegalTransition, *_CONTEXT)),
    _row("kernel.context.resolve", ap.ResolveHandleParams, as_is(SchedulingContext), "read", "read",
         "contexts.resolve", "Return the context of a handle.", errors=(e.StaleHandle, *_CONTEXT)),
    _row("kernel.context.charge", ap.ChargeContextParams, as_is(SchedulingContext), "work", "write", "contexts.charge",
         "Charge a context outside of any run.", errors=(e.StaleHandle, *_CONTEXT), operate_fields=("now",)),
    _row("kernel.context.throttle", ap.ThrottleParams, one_field(ar.UntilResult), "work", "write", "contexts.throttle",
         "Pause a named limit because its provider asked for it.", errors=_CONTEXT),
)  # fmt: skip

_EVENTS: Sequence[Method] = (
    _row("kernel.event.append", sp.AppendEventParams, one_field(sr.AppendEventResult), "work", "write",
         "journal.append", "Append an event of the caller's own; kinds that begin with kernel. are reserved.",
         errors=_AGENT),
    _row("kernel.event.tail", sp.TailParams, sr.EVENTS, "read", "wait", "journal.tail",
         "Return the events after a cursor, oldest first; while there are none, wait up to wait_s.",
         errors=(e.InvalidPayload,)),
    _row("kernel.event.record", sp.RecordEventParams, one_field(sr.AppendEventResult), "work", "write",
         "handlers.record", "Record an event about running work: a run, a trigger, a supervisor or the fleet.",
         errors=_AGENT),
    _row("kernel.event.remember", sp.RememberParams, NO_RESULT, "work", "write", "journal.remember",
         "Store a note under a name, replacing the previous one.", errors=(e.InvalidPayload,), retry_safe=True),
    _row("kernel.event.recall", NameParams, one_field(sr.NoteResult), "read", "read", "journal.recall",
         "Return the note stored under a name, or null.", errors=(e.InvalidPayload,)),
    _row("kernel.event.cursor", NoParams, one_field(sr.CursorResult), "read", "read", "journal.cursor",
         "Return the id of the last event."),
)  # fmt: skip

_SYSTEM: Sequence[Method] = (
    _row("system.hello", sp.HelloParams, as_is(sr.HelloResult), "read", "inline", "handlers.hello",
         "Agree on the protocol version; return the server's versions and the caller's rights.", retry_safe=True),
    _row("system.info", NoParams, as_is(dict[str, Any]), "read", "read", "kernel.info",
         "Return counts and sizes of the store."),
    _row("system.checkpoint", NoParams, one_field(sr.CheckpointResult), "admin", "multi_commit",
         "retention.checkpoint", "Write a checkpoint of the folded state.", retry_safe=True),
    _row("system.prune", sp.PruneParams, sr.PRUNE, "admin", "multi_commit", "retention.prune",
         "Remove old events and finished entries after writing a checkpoint.", errors=(e.InvalidPayload,),
         retry_safe=True),
    _row("system.token_create", sp.CreateTokenParams, as_is(sr.CreateTokenResult), "admin", "write", "tokens.create",
         "Create an access token; its secret is returned only here."),
    _row("system.token_list", NoParams, one_field(sr.TokenListResult), "admin", "read", "tokens.list",
         "Return all access tokens, without their secrets."),
    _row("system.token_revoke", sp.TokenIdParams, as_is(sr.TokenLine), "admin", "write", "tokens.revoke",
         "Revoke an access token.", errors=(e.UnknownRequest,), retry_safe=True),
    _row("rpc.discover", NoParams, as_is(dict[str, Any]), "read", "inline", "handlers.discover",
         "Return this table as an OpenRPC document.", retry_safe=True),
)  # fmt: skip

METHODS: Mapping[str, Method] = {
    row.name: row
    for rows in (_SCHED, _RUNS, _AGENTS, _LEDGER, _PROJECTS, _CONTEXTS, _EVENTS, _SYSTEM)
    for row in rows
}  # fmt: skip


def methods_of_part(part: str) -> dict[str, Method]:
    """Return the methods that a part of the kernel implements, by function name."""
    return {row.verb: row for row in METHODS.values() if row.part == part}
