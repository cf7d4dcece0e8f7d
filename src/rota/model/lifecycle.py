"""Every state machine in rota, as a table, under one `advance`.

A machine is a set of arrows `(state, verb) -> state`. A state with no arrow out is final. `advance`
looks the arrow up; where there is none it raises the machine's own error, which names the state,
the verb and what would be legal, and nothing has changed. docs/state-machines.md is drawn from here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial

from rota import errors

__all__ = [
    "AGENT",
    "CONTEXT",
    "ENTITY",
    "ENTRY",
    "ISLAND",
    "LEASE",
    "MACHINES",
    "PROJECT",
    "SEED_AGENT",
    "SEED_TASK",
    "TICK_AGENT",
    "Machine",
    "advance",
    "verb_to",
]


@dataclass(frozen=True)
class Machine:
    """A named table of arrows."""

    name: str
    about: str  # a sentence for the drawing
    initial: str
    arrows: Mapping[tuple[str, str], str]
    error: Callable[..., errors.IllegalTransition]
    states: tuple[str, ...] = field(init=False)
    final: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        seen = dict.fromkeys([self.initial])
        for (source, _), target in self.arrows.items():
            seen |= dict.fromkeys([source, target])
        object.__setattr__(self, "states", tuple(seen))
        leaving = {source for source, _ in self.arrows}
        object.__setattr__(self, "final", frozenset(state for state in seen if state not in leaving))

    def verbs(self, state: str) -> tuple[str, ...]:
        """What can be done from a state."""
        return tuple(verb for source, verb in self.arrows if source == state)

    def targets(self, state: str) -> frozenset[str]:
        """Where a state can lead."""
        return frozenset(target for (source, _), target in self.arrows.items() if source == state)


def advance(machine: Machine, state: str, verb: str, subject: object = None, *, story: Sequence[str] = ()) -> str:
    """The state after `verb`, or the machine's error if there is no such arrow."""
    target = machine.arrows.get((state, verb))
    if target is None:
        raise machine.error(subject, str(state), str(verb), legal=machine.verbs(state), story=story)
    return target


def verb_to(machine: Machine, state: str, target: str, subject: object = None) -> str:
    """The verb that leads from a state to a target, for doors that speak of targets."""
    for (source, verb), reached in machine.arrows.items():
        if source == state and reached == target:
            return verb
    legal = tuple(sorted(machine.targets(state)))
    raise machine.error(subject, str(state), str(target), legal=legal)


def _from(states: Sequence[str], verb: str, target: str) -> dict[tuple[str, str], str]:
    return {(state, verb): target for state in states}


# --- the tick world's agent ----------------------------------------------------------------------


class AgentProcessState(StrEnum):
    """Where a tick-world agent stands."""

    CREATED = "CREATED"
    READY = "READY"
    RUNNING = "RUNNING"
    BLOCKED = "BLOCKED"
    TERMINATED = "TERMINATED"


_P = AgentProcessState
TICK_AGENT = Machine(
    "tick agent",
    "An agent of the tick world. Blocking is legal only from RUNNING; a created agent must first be activated.",
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
    """Where a kernel agent stands."""

    READY = "READY"
    RUNNING = "RUNNING"
    WAITING = "WAITING"
    SUSPENDED = "SUSPENDED"
    DEAD = "DEAD"


_A = AgentState
AGENT = Machine(
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
    """Where a queue entry stands."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


_E = EntryState
ENTRY = Machine(
    "entry",
    "A row of the queue. Four ways lead back to queued: the claim expired, the run is retried, it was "
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
    """Whether a project takes part."""

    ACTIVE = "ACTIVE"
    PAUSED = "PAUSED"
    ARCHIVED = "ARCHIVED"


_S = ProjectStatus
PROJECT = Machine(
    "project",
    "A fair-share account. Only an active one is scheduled; an archived one comes back paused.",
    _S.ACTIVE,
    {
        (_S.ACTIVE, "pause"): _S.PAUSED,
        (_S.PAUSED, "resume"): _S.ACTIVE,
        **_from([_S.ACTIVE, _S.PAUSED], "archive", _S.ARCHIVED),
        (_S.ARCHIVED, "restore"): _S.PAUSED,
    },
    partial(errors.ProjectIllegalTransition, "project"),
)


# --- the fair-share door's task and agent --------------------------------------------------------


class TaskStatus(StrEnum):
    """Where a task of the fair-share door stands."""

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
SEED_TASK = Machine(
    "task",
    "A task at the fair-share door. An administrator can restart it from anywhere but READY and IN_PROGRESS.",
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
    """Where an agent of the fair-share door (a slot, to us) stands."""

    IDLE = "IDLE"
    BUSY = "BUSY"
    PAUSED = "PAUSED"
    ERROR = "ERROR"


_L = SlotState
SEED_AGENT = Machine(
    "slot",
    "An agent at the fair-share door; here it is a slot. Only an idle one is given work.",
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
    """Where an entity on the cores stands."""

    SLEEPING = "sleeping"
    READY = "ready"
    RUNNING = "running"
    THROTTLED = "throttled"
    CALLING = "calling"
    EXITED = "exited"


_N = EntityState
ENTITY = Machine(
    "entity",
    "What runs on a core. Ready, it is owned by exactly one core's queue; throttled, it would run but has no budget; "
    "calling, it waits for a reply and has lent its budget to whoever serves it.",
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
    """Where a scheduling context stands."""

    ADMITTED = "admitted"
    ACTIVE = "active"
    DEPLETED = "depleted"
    REVOKED = "revoked"


_C = ContextState
CONTEXT = Machine(
    "context",
    "A budget per period. Depleted, it waits for its next refill; revoked, every handle to it is stale.",
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
    """Where an isolation lease stands."""

    REQUESTED = "requested"
    ACTIVE = "active"
    REVOKING = "revoking"
    REVOKED = "revoked"
    REFUSED = "refused"


_Z = LeaseState
LEASE = Machine(
    "lease",
    "Exclusive capacity. Its owner has a bounded time to leave after it is revoked.",
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
    """Where a realtime island stands."""

    PROPOSED = "proposed"
    ADMITTED = "admitted"
    RUNNING = "running"
    OVERRUN = "overrun"
    STOPPED = "stopped"
    REFUSED = "refused"


_I = IslandState
ISLAND = Machine(
    "island",
    "A realtime graph, admitted whole or refused whole. After an overrun it can only stop: it fails closed.",
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

MACHINES: tuple[Machine, ...] = (
    TICK_AGENT,
    AGENT,
    ENTRY,
    PROJECT,
    SEED_TASK,
    SEED_AGENT,
    ENTITY,
    CONTEXT,
    LEASE,
    ISLAND,
)
