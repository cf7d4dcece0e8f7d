"""The wire table: every method once.

A row says what a method is called, what it takes and answers, which errors are its own, which scope it needs, which
verb of which part answers it, and how. Dispatch, client, reference page and `rpc.discover` all read this table, so a
method that is not here does not exist, and one that is here is documented, guarded and callable.

Scopes form a ladder: each includes those before it. `read` looks; `enqueue` puts entries in and takes them back;
`work` claims, runs and charges; `operate` changes what others do; `admin` says who may do what.

Manners, for a server that may not block:
- `read`: looks at one consistent view, and waits for nobody
- `write`: one commit, shared with whoever writes at the same time
- `claim`: a write that may wait for something to hand out
- `steps`: several commits, one after the other, so that others come in between
- `wait`: looks, and waits for a change
- `door`: answered by whoever serves, not by the kernel
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
from rota.rpc.params import Nothing
from rota.rpc.params import register as kp
from rota.rpc.params import work as p
from rota.rpc.results import DONE, Shape, fields, one, same, together
from rota.rpc.results import register as kr
from rota.rpc.results import work as r

__all__ = ["ANY_METHOD", "METHODS", "PROTOCOL", "SCOPES", "Manner", "Method", "Scope", "of_part"]

PROTOCOL = 1  # raised when a method changes in a way that an older client would misread

Scope: TypeAlias = Literal["read", "enqueue", "work", "operate", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "enqueue", "work", "operate", "admin")
Manner: TypeAlias = Literal["read", "write", "claim", "steps", "wait", "door"]

ANY_METHOD: tuple[type[RotaError], ...] = (  # errors that every method may answer with
    e.InvalidInput, e.LimitExceeded, e.Unauthenticated, e.Forbidden, e.LockedOut, e.StoreUnavailable,
)  # fmt: skip


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    sentence: str
    params: Any  # its type; a noun of the model where the method takes just that
    shape: Shape
    scope: Scope
    manner: Manner
    part: str  # of the kernel: queue, agents, …; desk is the dispatcher, office whoever serves
    verb: str
    errors: tuple[type[RotaError], ...] = ()
    guarded: tuple[str, ...] = ()  # fields that need scope operate when they are not left at their default
    safe: bool = False  # may be asked again when the answer was lost: it changes nothing, or the same
    whole: bool = False  # the verb takes the parameters as one noun


def _row(  # noqa: PLR0917  # a row of the table is read as columns
    name: str, params: Any, shape: Shape, scope: Scope, manner: Manner, answered_by: str, sentence: str, **more: Any
) -> Method:
    part, verb = answered_by.split(".")
    safe = more.pop("safe", manner in ("read", "wait"))
    return Method(
        name=name,
        params=params,
        shape=shape,
        scope=scope,
        manner=manner,
        part=part,
        verb=verb,
        sentence=sentence,
        safe=safe,
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
_OWN_TIME = ("now", "admission_check")

_SCHED: Sequence[Method] = (
    _row("kernel.sched.enqueue", ScheduleSpec, one(r.Enqueued), "enqueue", "write", "queue.enqueue",
         "Put an entry into the queue.", errors=_NEW, whole=True),
    _row("kernel.sched.enqueue_many", p.EnqueueMany, one(r.EnqueuedMany), "enqueue", "write", "queue.enqueue_many",
         "Put many entries into the queue: all or none.", errors=_NEW),
    _row("kernel.sched.enqueue_unique", p.EnqueueUnique, fields(r.EnqueuedUnique, together), "enqueue", "write",
         "queue.enqueue_unique", "Put an entry in unless one like it waits or runs.", errors=_NEW, safe=True),
    _row("kernel.sched.claim", p.Claim, one(r.Claimed), "work", "claim", "desk.claim",
         "Hand ready entries to a worker; while there are none, wait up to wait_s.", errors=_CLAIM, guarded=_OWN_TIME),
    _row("kernel.sched.complete", p.Complete, r.COMPLETED, "work", "write", "queue.complete",
         "End a run.", errors=(e.SchedIllegalTransition, *_RUN)),
    _row("kernel.sched.complete_many", p.CompleteMany, r.COMPLETED_MANY, "work", "write", "queue.complete_many",
         "End many runs in one commit; one that is refused has its error in its place.",
         errors=(e.SchedInvalidPayload,)),
    _row("kernel.sched.complete_and_claim", p.CompleteAndClaim, r.TURNED_OVER, "work", "claim",
         "desk.complete_and_claim", "End runs and take the next entries in one commit.", errors=_CLAIM,
         guarded=_OWN_TIME),
    _row("kernel.sched.heartbeat", p.Heartbeat, r.HELD, "work", "write", "queue.heartbeat",
         "Hold on to a live claim.", errors=_RUN, guarded=("now",), safe=True),
    _row("kernel.sched.heartbeat_many", p.HeartbeatMany, r.HELD_MANY, "work", "write", "queue.heartbeat_many",
         "Hold on to many; a claim that is lost has its error in its place.", errors=(e.SchedInvalidPayload,),
         guarded=("now",), safe=True),
    _row("kernel.sched.charge", p.ChargeRun, r.RUN_CHARGED, "work", "write", "queue.charge",
         "Record what a run used, at every level.", errors=(e.LedgerInvalidAmount, *_RUN)),
    _row("kernel.sched.put_back", p.PutBack, DONE, "work", "write", "queue.put_back",
         "Put a run back into the queue; it does not count as an attempt.", errors=_RUN),
    _row("kernel.sched.cancel", p.EntryId, r.CANCELLED, "enqueue", "write", "queue.cancel",
         "Cancel an entry that waits.", errors=(e.SchedIllegalTransition, *_ENTRY)),
    _row("kernel.sched.request_cancel", p.RequestCancel, one(r.State), "enqueue", "write", "queue.request_cancel",
         "Ask an entry to stop: one that runs is told at its next heartbeat.",
         errors=(e.SchedIllegalTransition, *_ENTRY)),
    _row("kernel.sched.cancel_where", p.CancelWhere, one(r.Count), "operate", "steps", "queue.cancel_where",
         "Cancel every waiting entry that matches.", errors=(e.SchedInvalidStateFilter, e.SchedInvalidPayload),
         safe=True),
    _row("kernel.sched.retry_where", p.RetryWhere, one(r.Retried), "operate", "steps", "queue.retry_where",
         "Run again what matches: a backed-off entry at once, one that ended badly as a new entry.",
         errors=(e.SchedInvalidStateFilter, e.SchedInvalidPayload)),
    _row("kernel.sched.change", p.Change, same(ReadyEntry), "operate", "write", "queue.change",
         "Give a waiting entry another priority, time or deadline.", errors=(e.SchedIllegalTransition, *_ENTRY),
         safe=True),
    _row("kernel.sched.release", p.EntryId, same(ReadyEntry), "operate", "write", "queue.release",
         "Let an entry run although one that it waits for failed, or although it is kept for a worker.",
         errors=(e.SchedIllegalTransition, *_ENTRY)),
    _row("kernel.sched.affinity_wait", Nothing, one(r.AffinityWait), "read", "read", "queue.affinity_wait",
         "How long an entry is kept for the worker it would rather have."),
    _row("kernel.sched.set_affinity_wait", p.SetAffinityWait, DONE, "operate", "write", "queue.set_affinity_wait",
         "Keep entries this long for the worker they would rather have.", errors=(e.SchedInvalidPayload,), safe=True),
    _row("kernel.sched.force_claim", p.ForceClaim, same(ReadyEntry), "operate", "write", "queue.force_claim",
         "Hand out one entry whoever is first, if nothing blocks it.", errors=(e.SchedAdmissionDenied, *_ENTRY)),
    _row("kernel.sched.get", p.EntryId, same(ReadyEntry), "read", "read", "queue.get",
         "One entry as it stands.", errors=_ENTRY),
    _row("kernel.sched.list", p.ListEntries, fields(r.EntryPage, together), "read", "read", "queue.list",
         "A page of entries by id, and how many match in all.",
         errors=(e.SchedInvalidStateFilter, e.SchedInvalidPayload, e.LimitExceeded)),
    _row("kernel.sched.counts", Nothing, one(r.Counts), "read", "read", "queue.counts",
         "How many entries are in each state; those that wait also by why."),
    _row("kernel.sched.wait", p.WaitFor, same(ReadyEntry), "read", "wait", "queue.wait",
         "The entry once it has ended.", errors=(e.WaitTimeout, *_ENTRY)),
    _row("kernel.sched.gc_expired", p.At, one(r.Swept), "operate", "steps", "queue.gc_expired",
         "Sweep every waiting entry past its deadline.", errors=(e.InvalidPayload,), safe=True),
    _row("kernel.sched.gc_dispatched", p.Stale, one(r.Count), "operate", "steps", "queue.gc_dispatched",
         "Take back every claim whose last heartbeat is longer ago than this.", errors=(e.SchedInvalidPayload,),
         safe=True),
    _row("kernel.sched.take_over", p.TakeOver, one(r.Count), "work", "steps", "queue.take_over",
         "A worker has come back to life: take back at once what its earlier lives held.",
         errors=(e.SchedInvalidPayload,), safe=True),
    _row("kernel.sched.upkeep", p.At, one(r.Next), "work", "write", "queue.upkeep",
         "Do what is due; the answer is when the next thing falls due.", errors=(e.SchedInvalidPayload,),
         guarded=("now",), safe=True),
)  # fmt: skip

_SCHED_MORE: Sequence[Method] = (
    _row("kernel.sched.nudge", p.NudgeWorker, DONE, "work", "door", "queue.nudge",
         "Let a worker's waiting claim come back at once, empty-handed.", errors=(e.SchedInvalidPayload,), safe=True),
    _row("kernel.sched.peek", p.Peek, one(r.Claimed), "read", "read", "queue.peek",
         "What a claim in strict order would be handed now, without handing it out.", errors=(e.SchedInvalidPayload,)),
    _row("kernel.sched.retry", p.EntryId, one(r.Enqueued), "operate", "write", "queue.retry",
         "Run one entry again: at once if it backs off, as a new entry if it ended badly.",
         errors=(e.SchedIllegalTransition, *_ENTRY)),
    _row("kernel.sched.explain", p.Explain, same(Explanation), "read", "steps", "office.explain",
         "Why an entry is not running: what blocks it, who goes first, when, and what would change it.",
         errors=(e.UnknownPolicy, *_ENTRY), guarded=("now",), safe=True),
)  # fmt: skip

_RUNS: Sequence[Method] = (
    _row("kernel.run.turn", p.Turn, r.TURNED_OVER, "work", "claim", "desk.turn",
         "A supervisor's turn: end runs, take the next entries and move the agents of both, in one commit.",
         errors=_CLAIM, guarded=_OWN_TIME),
    _row("kernel.run.began", p.Began, DONE, "work", "write", "supervision.began",
         "Record that a runner began an entry.", errors=_RUN),
    _row("kernel.run.checkpoint", p.Checkpointed, DONE, "work", "write", "supervision.checkpoint",
         "Keep where a run stands: its next attempt is given it.", errors=_RUN, safe=True),
    _row("kernel.run.rest", p.Rest, one(r.Amounts), "work", "write", "supervision.rest",
         "A run waits for its children, or goes on with what they left of what it lent them.", errors=_RUN),
    _row("kernel.run.spawn", p.SpawnChild, one(r.Enqueued), "work", "write", "supervision.spawn",
         "Enqueue a child of a run, with a part of the run's budget.", errors=(e.LedgerInvalidAmount, *_NEW, *_RUN)),
    _row("kernel.run.quarantine", p.Quarantine, DONE, "work", "write", "supervision.quarantine",
         "Leave an agent that keeps failing alone for a while.", errors=(*_AGENT, e.SchedInvalidPayload), safe=True),
    _row("kernel.run.moved", p.SupervisorMoves, DONE, "work", "write", "supervision.moved",
         "Record that a supervisor started, drains, stopped, or took over.", errors=(e.SchedInvalidPayload,)),
    _row("kernel.run.recover", Nothing, one(kr.Pids), "work", "write", "supervision.recover",
         "Let agents rest whose runs nobody holds any more.", safe=True),
)  # fmt: skip

_AGENTS: Sequence[Method] = (
    _row("kernel.agent.create", kp.CreateAgent, one(kr.NewAgent), "work", "write", "agents.create",
         "Make an agent. Nothing is enqueued.", errors=(e.ProjectUnknown, *_AGENT)),
    _row("kernel.agent.get", kp.Pid, same(Agent), "read", "read", "agents.get", "One agent.", errors=_AGENT),
    _row("kernel.agent.find", kp.Name, one(kr.AgentList), "read", "read", "agents.find",
         "The living agents of a name, youngest first.", errors=(e.InvalidPayload,)),
    _row("kernel.agent.paused", kp.PausedAgents, one(kr.AgentList), "read", "read", "agents.paused",
         "The agents that somebody has paused.", errors=(e.InvalidPayload,)),
    _row("kernel.agent.list", kp.ListAgents, fields(kr.AgentPage, together), "read", "read", "agents.list",
         "A page of agents by pid, and how many there are in all.", errors=(e.InvalidPayload,)),
    _row("kernel.agent.transition", kp.Transition, same(Agent), "work", "write", "agents.transition",
         "Put an agent into another state, if there is such an arrow.", errors=(e.IllegalTransition, *_AGENT)),
    _row("kernel.agent.update", kp.UpdateAgent, same(Agent), "operate", "write", "agents.update",
         "Change an agent's priority, weight, intent, max_concurrent or metadata.", errors=_AGENT, safe=True),
    _row("kernel.agent.pause", kp.PauseAgent, DONE, "operate", "write", "agents.pause",
         "Give an agent no more runs until it is resumed.", errors=_AGENT, safe=True),
    _row("kernel.agent.resume", kp.ResumeAgent, DONE, "operate", "write", "agents.resume",
         "Lift an agent's pause.", errors=_AGENT, safe=True),
    _row("kernel.agent.terminate", kp.Terminate, same(Agent), "work", "steps", "kernel.terminate",
         "End an agent for good; its waiting entries are cancelled unless they are to be kept.",
         errors=(e.IllegalTransition, *_AGENT)),
    _row("kernel.agent.recover", kp.Recover, one(kr.Pids), "work", "write", "agents.recover",
         "Put agents that were at work when everything stopped where they can go on.", errors=(e.InvalidPayload,),
         safe=True),
)  # fmt: skip

_LEDGER: Sequence[Method] = (
    _row("kernel.ledger.create", kp.CreateLedger, one(kr.Lines), "operate", "write", "ledger.create",
         "Give an agent a total for each dimension: all of them or none.",
         errors=(e.LedgerExists, e.LedgerInvalidWarnAt, *_LINE)),
    _row("kernel.ledger.get", kp.Pid, one(kr.Lines), "read", "read", "ledger.get",
         "An agent's lines; none is no error.", errors=(e.LedgerInvalidAmount,)),
    _row("kernel.ledger.charge", kp.Amount, r.STANDING, "work", "write", "ledger.charge",
         "Record usage of one dimension in which the agent has a line.", errors=_LINE),
    _row("kernel.ledger.check", kp.Amount, kr.WOULD_USE, "read", "read", "ledger.check",
         "What a charge would do, without doing it.", errors=_LINE),
    _row("kernel.ledger.refund", kp.Amount, same(LedgerLine), "operate", "write", "ledger.refund",
         "Give usage back, at every level; not more than was used.", errors=(e.LedgerInvalidRefund, *_LINE)),
    _row("kernel.ledger.update_grant", kp.UpdateGrant, same(LedgerLine), "operate", "write", "ledger.update_grant",
         "Change a grant and with it the limit.", errors=_LINE, safe=True),
    _row("kernel.ledger.list_breached", Nothing, one(kr.Lines), "read", "read", "ledger.list_breached",
         "Every line that is used up and more."),
    _row("kernel.ledger.set_budget", kp.SetBudget, DONE, "operate", "write", "ledger.set_budget",
         "Set what a project, or everybody, may use per rolling window.",
         errors=(e.ProjectUnknown, e.LedgerInvalidAmount), safe=True),
    _row("kernel.ledger.share_window", Nothing, one(kr.ShareWindow), "read", "read", "ledger.share_window",
         "How far back fair_share looks."),
    _row("kernel.ledger.set_share_window", kp.SetShareWindow, DONE, "operate", "write", "ledger.set_share_window",
         "Have fair_share look back this far.", errors=(e.LedgerInvalidAmount,), safe=True),
    _row("kernel.ledger.budgets", Nothing, one(kr.Budgets), "read", "read", "ledger.budgets",
         "Every project's and the global budgets, with usage and reservations."),
)  # fmt: skip

_PROJECTS: Sequence[Method] = (
    _row("kernel.project.create", kp.CreateProject, same(Project), "operate", "write", "projects.create",
         "Make a project.", errors=(e.ProjectExists, e.ProjectInvalid)),
    _row("kernel.project.get", kp.ProjectId, same(Project), "read", "read", "projects.get", "One project.",
         errors=_PROJECT),
    _row("kernel.project.list", kp.ListProjects, fields(kr.ProjectPage, together), "read", "read", "projects.list",
         "A page of projects by id, and how many there are in all.", errors=(e.ProjectInvalid,)),
    _row("kernel.project.update", kp.UpdateProject, same(Project), "operate", "write", "projects.update",
         "Change a project's name, weight, max_concurrent or metadata.", errors=_PROJECT, safe=True),
    _row("kernel.project.constrain", kp.Constrain, same(Project), "operate", "write", "projects.constrain",
         "Put a constraint on a project; an empty one releases it.", errors=_PROJECT, safe=True),
    _row("kernel.project.move", kp.MoveProject, same(Project), "operate", "write", "projects.move",
         "Pause, resume, archive or restore a project.", errors=(e.ProjectIllegalTransition, *_PROJECT)),
    _row("kernel.project.pause_fleet", kp.PauseFleet, DONE, "operate", "write", "projects.pause_fleet",
         "Give nobody any more runs until the fleet is resumed.", errors=(e.ProjectInvalid,), safe=True),
    _row("kernel.project.resume_fleet", kp.ResumeFleet, DONE, "operate", "write", "projects.resume_fleet",
         "Lift the fleet's pause.", errors=(e.ProjectInvalid,), safe=True),
    _row("kernel.project.fleet_paused_by", Nothing, one(kr.PausedBy), "read", "read", "projects.fleet_paused_by",
         "Who paused everybody, if anybody did."),
    _row("kernel.project.add_workspace", kp.AddWorkspace, same(Workspace), "operate", "write",
         "projects.add_workspace", "Give a project a workspace.", errors=(e.WorkspaceExists, *_PROJECT)),
    _row("kernel.project.remove_workspace", kp.WorkspaceId, DONE, "operate", "write", "projects.remove_workspace",
         "Take a workspace away, if nobody holds it.",
         errors=(e.WorkspaceUnknown, e.WorkspaceHeld, e.ProjectInvalid)),
    _row("kernel.project.workspace", kp.WorkspaceId, same(Workspace), "read", "read", "projects.workspace",
         "One workspace and who holds it.", errors=(e.WorkspaceUnknown, e.ProjectInvalid)),
    _row("kernel.project.workspaces", kp.ProjectId, one(kr.Workspaces), "read", "read", "projects.workspaces",
         "A project's workspaces and who holds them.", errors=(e.ProjectInvalid,)),
)  # fmt: skip

_CONTEXTS: Sequence[Method] = (
    _row("kernel.context.create", kp.CreateContext, same(SchedulingContext), "operate", "write", "contexts.create",
         "Admit a context: a budget per period.",
         errors=(e.ContextExists, e.UnknownPid, e.ProjectUnknown, e.ContextInvalid)),
    _row("kernel.context.get", kp.ContextId, same(SchedulingContext), "read", "read", "contexts.get",
         "One context as it stands now.", errors=_CONTEXT),
    _row("kernel.context.list", kp.ListPage, one(kr.Contexts), "read", "read", "contexts.list",
         "A page of contexts, by id."),
    _row("kernel.context.adjust", kp.AdjustContext, same(SchedulingContext), "operate", "write", "contexts.adjust",
         "Other numbers, in force from the next refill on.", errors=(e.StaleHandle, *_CONTEXT)),
    _row("kernel.context.revoke", kp.ContextId, DONE, "operate", "write", "contexts.revoke",
         "Take a context back: every handle to it is stale from now on.",
         errors=(e.ContextIllegalTransition, *_CONTEXT)),
    _row("kernel.context.resolve", kp.ResolveHandle, same(SchedulingContext), "read", "read", "contexts.resolve",
         "The context a handle stands for.", errors=(e.StaleHandle, *_CONTEXT)),
    _row("kernel.context.charge", kp.ChargeContext, same(SchedulingContext), "work", "write", "contexts.charge",
         "Use up a context outside of any run.", errors=(e.StaleHandle, *_CONTEXT), guarded=("now",)),
    _row("kernel.context.throttle", kp.Throttle, one(kr.Until), "work", "write", "contexts.throttle",
         "A provider asked for a pause: everybody who draws on this name waits.", errors=_CONTEXT),
)  # fmt: skip

_EVENTS: Sequence[Method] = (
    _row("kernel.event.append", kp.AppendEvent, one(kr.Appended), "work", "write", "journal.append",
         "Record an event of one's own. Kinds that begin with kernel. are rota's.", errors=_AGENT),
    _row("kernel.event.tail", kp.Tail, kr.EVENTS, "read", "wait", "journal.tail",
         "Events after a cursor, oldest first; while there are none, wait up to wait_s.", errors=(e.InvalidPayload,)),
    _row("kernel.event.record", kp.RecordFact, one(kr.Appended), "work", "write", "office.record",
         "Record a fact about running work: a run, a trigger, a supervisor or the fleet.", errors=_AGENT),
    _row("kernel.event.remember", kp.Remember, DONE, "work", "write", "journal.remember",
         "Keep a note under a name, in place of the one before.", errors=(e.InvalidPayload,), safe=True),
    _row("kernel.event.recall", kp.Name, one(kr.Note), "read", "read", "journal.recall",
         "The note kept under a name, if there is one.", errors=(e.InvalidPayload,)),
    _row("kernel.event.cursor", Nothing, one(kr.Cursor), "read", "read", "journal.cursor",
         "The id of the last event."),
)  # fmt: skip

_SYSTEM: Sequence[Method] = (
    _row("system.hello", kp.Hello, same(kr.Welcome), "read", "door", "office.hello",
         "Say which protocol you speak; the answer says who serves, and what you may do.", safe=True),
    _row("system.info", Nothing, same(dict[str, Any]), "read", "read", "kernel.info",
         "A few numbers about the file."),
    _row("system.checkpoint", Nothing, one(kr.Checkpoint), "admin", "steps", "retention.checkpoint",
         "Write down the folded state.", safe=True),
    _row("system.prune", kp.Prune, kr.PRUNED, "admin", "steps", "retention.prune",
         "Remove facts and finished entries that are older, behind a new checkpoint.", errors=(e.InvalidPayload,),
         safe=True),
    _row("system.token_create", kp.CreateToken, same(kr.NewToken), "admin", "write", "tokens.create",
         "Make an access token. Its secret is shown this once."),
    _row("system.token_list", Nothing, one(kr.Tokens), "admin", "read", "tokens.list",
         "Every access token, without its secret."),
    _row("system.token_revoke", kp.TokenId, same(kr.TokenLine), "admin", "write", "tokens.revoke",
         "Let a token open nothing any more.", errors=(e.UnknownRequest,), safe=True),
    _row("rpc.discover", Nothing, same(dict[str, Any]), "read", "door", "office.discover",
         "This table as an OpenRPC document.", safe=True),
)  # fmt: skip

METHODS: Mapping[str, Method] = {
    row.name: row
    for rows in (_SCHED, _SCHED_MORE, _RUNS, _AGENTS, _LEDGER, _PROJECTS, _CONTEXTS, _EVENTS, _SYSTEM)
    for row in rows
}  # fmt: skip


def of_part(part: str) -> dict[str, Method]:
    """The methods that a part of the kernel answers, by the part's own verb."""
    return {row.verb: row for row in METHODS.values() if row.part == part}
