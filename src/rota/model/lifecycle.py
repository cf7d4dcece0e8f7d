"""Every state machine in rota, as a table.

A machine is a set of arrows `(state, verb) -> state`. A state without an outgoing arrow is final. `advance` looks an
arrow up. If there is none, it raises the machine's error, which names the state, the verb and the legal verbs; nothing
has changed then. docs/state-machines.md is generated from these tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property, partial

import msgspec

from rota import errors

__all__ = [
    "AGENT",
    "CONTEXT",
    "ENTITY",
    "ENTRY",
    "FAIR_SHARE_AGENT",
    "FAIR_SHARE_TASK",
    "ISLAND",
    "LEASE",
    "MACHINES",
    "PROJECT",
    "TICK_AGENT",
    "StateMachine",
    "advance",
    "verb_to",
]


class StateMachine(msgspec.Struct, frozen=True, dict=True):
    """A named table of arrows."""

    name: str
    about: str  # a description for the documentation
    initial: str
    arrows: Mapping[tuple[str, str], str]
    error: Callable[..., errors.IllegalTransition]

    @cached_property
    def states(self) -> tuple[str, ...]:
        """Every state, the initial one first."""
        seen = dict.fromkeys([self.initial])
        for (source, _), target in self.arrows.items():
            seen |= dict.fromkeys([source, target])
        return tuple(seen)

    @cached_property
    def final(self) -> frozenset[str]:
        """The states without an outgoing arrow."""
        return frozenset(self.states) - {source for source, _ in self.arrows}

    def verbs(self, state: str) -> tuple[str, ...]:
        """Return the verbs that are legal in a state."""
        return tuple(verb for source, verb in self.arrows if source == state)

    def targets(self, state: str) -> frozenset[str]:
        """Return the states that can follow a state."""
        return frozenset(target for (source, _), target in self.arrows.items() if source == state)


def advance(
    machine: StateMachine, state: str, verb: str, subject: object = None, *, history: Sequence[str] = ()
) -> str:
    """Return the state after `verb`, or raise the machine's error if there is no such arrow."""
    target = machine.arrows.get((state, verb))
    if target is None:
        raise machine.error(subject, str(state), str(verb), legal=machine.verbs(state), history=history)
    return target


def verb_to(machine: StateMachine, state: str, target: str, subject: object = None) -> str:
    """Return the verb that leads from a state to a target, for interfaces that name targets."""
    for (source, verb), reached in machine.arrows.items():
        if source == state and reached == target:
            return verb
    legal = tuple(sorted(machine.targets(state)))
    raise machine.error(subject, str(state), str(target), legal=legal)


def _from(states: Sequence[str], verb: str, target: str) -> dict[tuple[str, str], str]:
    return {(state, verb): target for state in states}


# --- the tick world's agent ----------------------------------------------------------------------


class AgentProcessState(StrEnum):
    """The state of a tick-world agent."""

    CREATED = "CREATED"
    READY = "READY"
    RUNNING = "RUNNING"
    BLOCKED = "BLOCKED"
    TERMINATED = "TERMINATED"


_P = AgentProcessState
TICK_AGENT = StateMachine(
    "tick agent",
    "An agent of the tick world. It can block only from RUNNING; a created agent must first be activated.",
    _P.CREATED,
    {
        (_P.CREATED, "activate"): _P.READY,
        (_P.READY, "run"): _P.RUNNING,
        (_P.RUNNING, "yield"): _P.READY,
        (_P.RUNNING, "block"): _P.BLOCKED,
        (_P.BLOCKED, "release"): _P.READY,
        **_from([_P.READY, _P.RUNNING, _P.BLOCKED], "terminate", _P.TERMINATED),
    },
    errors.InvalidStateTransition,
)


# --- the kernel's agent --------------------------------------------------------------------------


class AgentState(StrEnum):
    """The state of a kernel agent."""

    READY = "READY"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    SUSPENDED = "SUSPENDED"
    DEAD = "DEAD"


_A = AgentState
AGENT = StateMachine(
    "agent",
    "An agent of the kernel. A run of a re-runnable agent ends in SUSPENDED and resumes to READY.",
    _A.READY,
    {
        (_A.READY, "run"): _A.RUNNING,
        (_A.RUNNING, "wait"): _A.WAITING,
        (_A.WAITING, "wake"): _A.RUNNING,
        **_from([_A.RUNNING, _A.WAITING], "suspend", _A.SUSPENDED),
        (_A.SUSPENDED, "resume"): _A.READY,
        **_from([_A.READY, _A.RUNNING, _A.WAITING, _A.SUSPENDED], "terminate", _A.DEAD),
    },
    partial(errors.IllegalTransition, "agent"),
)


# --- the queue's entry ---------------------------------------------------------------------------


class EntryState(StrEnum):
    """The state of a queue entry."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


_E = EntryState
ENTRY = StateMachine(
    "entry",
    "A row of the queue. Four verbs lead back to queued: the claim expired, the run is retried, it was "
    "preempted, or it yielded. A finished entry never reopens.",
    _E.QUEUED,
    {
        (_E.QUEUED, "claim"): _E.DISPATCHED,
        (_E.QUEUED, "gc_expired"): _E.EXPIRED,
        (_E.QUEUED, "cancel"): _E.CANCELLED,
        (_E.DISPATCHED, "complete"): _E.COMPLETED,
        (_E.DISPATCHED, "reclaim"): _E.QUEUED,
        (_E.DISPATCHED, "retry"): _E.QUEUED,
        (_E.DISPATCHED, "preempt"): _E.QUEUED,
        (_E.DISPATCHED, "yield"): _E.QUEUED,
    },
    partial(errors.SchedIllegalTransition, "entry"),
)


# --- projects ------------------------------------------------------------------------------------


class ProjectStatus(StrEnum):
    """The status of a project."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    ARCHIVED = "ARCHIVED"


_S = ProjectStatus
PROJECT = StateMachine(
    "project",
    "A fair-share account. Only an active project is scheduled; an archived one is restored as paused.",
    _S.ACTIVE,
    {
        (_S.ACTIVE, "pause"): _S.PAUSED,
        (_S.PAUSED, "resume"): _S.ACTIVE,
        **_from([_S.ACTIVE, _S.PAUSED], "archive", _S.ARCHIVED),
        (_S.ARCHIVED, "restore"): _S.PAUSED,
    },
    partial(errors.ProjectIllegalTransition, "project"),
)


# --- tasks and agents of the fair-share Scheduler ------------------------------------------------


class TaskStatus(StrEnum):
    """The status of a task of `rota.policy.fair_share.Scheduler`."""

    DEFINED = "DEFINED"
    READY = "READY"
    ASSIGNED = "ASSIGNED"
    IN_PROGRESS = "IN_PROGRESS"
    WAITING_INPUT = "WAITING_INPUT"
    PAUSED = "PAUSED"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    AWAITING_PLAN_APPROVAL = "AWAITING_PLAN_APPROVAL"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    BLOCKED = "BLOCKED"


_T = TaskStatus
FAIR_SHARE_TASK = StateMachine(
    "task",
    "A task of the fair-share Scheduler. An administrator can restart it from any state but READY and IN_PROGRESS.",
    _T.DEFINED,
    {
        (_T.DEFINED, "DEPS_MET"): _T.READY,
        (_T.READY, "ASSIGNED"): _T.ASSIGNED,
        (_T.READY, "PLAN_FOUND"): _T.AWAITING_PLAN_APPROVAL,
        (_T.ASSIGNED, "AGENT_STARTED"): _T.IN_PROGRESS,
        (_T.ASSIGNED, "TIMEOUT"): _T.BLOCKED,
        (_T.ASSIGNED, "EXECUTION_ERROR"): _T.READY,
        (_T.ASSIGNED, "RECOVERY"): _T.READY,
        (_T.IN_PROGRESS, "AGENT_COMPLETED"): _T.COMPLETED,
        (_T.IN_PROGRESS, "MERGE_SUCCEEDED"): _T.COMPLETED,
        (_T.IN_PROGRESS, "SUBTASKS_COMPLETED"): _T.COMPLETED,
        (_T.IN_PROGRESS, "PR_CREATED"): _T.AWAITING_APPROVAL,
        (_T.IN_PROGRESS, "PLAN_FOUND"): _T.AWAITING_PLAN_APPROVAL,
        (_T.IN_PROGRESS, "AGENT_FAILED"): _T.FAILED,
        (_T.IN_PROGRESS, "TOKENS_EXHAUSTED"): _T.PAUSED,
        (_T.IN_PROGRESS, "AGENT_QUESTION"): _T.WAITING_INPUT,
        (_T.IN_PROGRESS, "RETRY"): _T.READY,
        (_T.IN_PROGRESS, "RECOVERY"): _T.READY,
        (_T.IN_PROGRESS, "MAX_RETRIES"): _T.BLOCKED,
        (_T.IN_PROGRESS, "MERGE_FAILED"): _T.BLOCKED,
        (_T.IN_PROGRESS, "TIMEOUT"): _T.BLOCKED,
        (_T.IN_PROGRESS, "ADMIN_STOP"): _T.BLOCKED,
        (_T.WAITING_INPUT, "HUMAN_REPLIED"): _T.IN_PROGRESS,
        (_T.WAITING_INPUT, "INPUT_TIMEOUT"): _T.PAUSED,
        (_T.PAUSED, "RESUME_TIMER"): _T.READY,
        (_T.AWAITING_APPROVAL, "PR_MERGED"): _T.COMPLETED,
        (_T.AWAITING_APPROVAL, "PR_CLOSED"): _T.BLOCKED,
        (_T.AWAITING_PLAN_APPROVAL, "PLAN_APPROVED"): _T.IN_PROGRESS,
        (_T.AWAITING_PLAN_APPROVAL, "PLAN_REJECTED"): _T.READY,
        (_T.AWAITING_PLAN_APPROVAL, "PLAN_DELETED"): _T.COMPLETED,
        (_T.FAILED, "RETRY"): _T.READY,
        (_T.FAILED, "MAX_RETRIES"): _T.BLOCKED,
        **_from([_T.BLOCKED, _T.FAILED], "ADMIN_SKIP", _T.COMPLETED),
        **_from([state for state in _T if state not in (_T.READY, _T.IN_PROGRESS)], "ADMIN_RESTART", _T.READY),
    },
    partial(errors.IllegalTransition, "task"),
)


class SlotState(StrEnum):
    """The state of an agent of `rota.policy.fair_share.Scheduler`, which rota treats as a slot."""

    IDLE = "IDLE"
    BUSY = "BUSY"
    PAUSED = "PAUSED"
    ERROR = "ERROR"


_L = SlotState
FAIR_SHARE_AGENT = StateMachine(
    "slot",
    "An agent of the fair-share Scheduler, treated as a slot. Only an idle one gets work.",
    _L.IDLE,
    {
        (_L.IDLE, "assign"): _L.BUSY,
        (_L.BUSY, "finish"): _L.IDLE,
        (_L.BUSY, "recover"): _L.IDLE,
        (_L.BUSY, "fail"): _L.ERROR,
        (_L.ERROR, "reset"): _L.IDLE,
        (_L.IDLE, "pause"): _L.PAUSED,
        (_L.PAUSED, "resume"): _L.IDLE,
    },
    partial(errors.IllegalTransition, "slot"),
)


# --- cores ---------------------------------------------------------------------------------------


class EntityState(StrEnum):
    """The state of an entity on the cores."""

    SLEEPING = "sleeping"
    READY = "ready"
    RUNNING = "running"
    THROTTLED = "throttled"
    CALLING = "calling"
    EXITED = "exited"


_N = EntityState
ENTITY = StateMachine(
    "entity",
    "What runs on a core. A ready entity is in exactly one core's queue; a throttled one has no budget; a calling one "
    "waits for a reply and has lent its budget to the server.",
    _N.SLEEPING,
    {
        (_N.SLEEPING, "wake"): _N.READY,
        (_N.READY, "run"): _N.RUNNING,
        (_N.RUNNING, "preempt"): _N.READY,
        (_N.RUNNING, "block"): _N.SLEEPING,
        (_N.RUNNING, "reply"): _N.SLEEPING,
        (_N.RUNNING, "call"): _N.CALLING,
        (_N.CALLING, "answer"): _N.READY,
        **_from([_N.READY, _N.RUNNING], "deplete", _N.THROTTLED),
        (_N.THROTTLED, "replenish"): _N.READY,
        **_from([_N.SLEEPING, _N.READY, _N.RUNNING, _N.THROTTLED, _N.CALLING], "exit", _N.EXITED),
    },
    partial(errors.EntityIllegalTransition, "entity"),
)


# --- contexts, leases, islands -------------------------------------------------------------------


class ContextState(StrEnum):
    """The state of a scheduling context."""

    ADMITTED = "admitted"
    ACTIVE = "active"
    DEPLETED = "depleted"
    REVOKED = "revoked"


_C = ContextState
CONTEXT = StateMachine(
    "context",
    "A budget per period. A depleted context waits for its next refill; after a revocation all handles are stale.",
    _C.ADMITTED,
    {
        (_C.ADMITTED, "bind"): _C.ACTIVE,
        (_C.ACTIVE, "unbind"): _C.ADMITTED,
        (_C.ACTIVE, "deplete"): _C.DEPLETED,
        (_C.DEPLETED, "replenish"): _C.ACTIVE,
        **_from([_C.ADMITTED, _C.ACTIVE, _C.DEPLETED], "revoke", _C.REVOKED),
    },
    partial(errors.ContextIllegalTransition, "context"),
)


class LeaseState(StrEnum):
    """The state of an isolation lease."""

    REQUESTED = "requested"
    ACTIVE = "active"
    REVOKING = "revoking"
    REVOKED = "revoked"
    REFUSED = "refused"


_Z = LeaseState
LEASE = StateMachine(
    "lease",
    "Exclusive capacity. After a revocation its owner has a bounded time to leave.",
    _Z.REQUESTED,
    {
        (_Z.REQUESTED, "grant"): _Z.ACTIVE,
        (_Z.REQUESTED, "refuse"): _Z.REFUSED,
        (_Z.ACTIVE, "revoke"): _Z.REVOKING,
        (_Z.ACTIVE, "release"): _Z.REVOKED,
        (_Z.REVOKING, "release"): _Z.REVOKED,
    },
    partial(errors.LeaseIllegalTransition, "lease"),
)


class IslandState(StrEnum):
    """The state of a realtime island."""

    PROPOSED = "proposed"
    ADMITTED = "admitted"
    RUNNING = "running"
    OVERRUN = "overrun"
    STOPPED = "stopped"
    REFUSED = "refused"


_I = IslandState
ISLAND = StateMachine(
    "island",
    "A realtime graph, admitted or refused as a whole. After an overrun it can only stop: it fails closed.",
    _I.PROPOSED,
    {
        (_I.PROPOSED, "admit"): _I.ADMITTED,
        (_I.PROPOSED, "refuse"): _I.REFUSED,
        (_I.ADMITTED, "start"): _I.RUNNING,
        (_I.RUNNING, "overrun"): _I.OVERRUN,
        **_from([_I.ADMITTED, _I.RUNNING, _I.OVERRUN], "stop", _I.STOPPED),
    },
    partial(errors.IslandIllegalTransition, "island"),
)

MACHINES: tuple[StateMachine, ...] = (
    TICK_AGENT,
    AGENT,
    ENTRY,
    PROJECT,
    FAIR_SHARE_TASK,
    FAIR_SHARE_AGENT,
    ENTITY,
    CONTEXT,
    LEASE,
    ISLAND,
)
