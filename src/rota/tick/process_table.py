"""The process table: every agent of a tick world.

A row is an agent and its number is the agent's pid; row 0 is the kernel, the parent of agents that no agent spawned,
and is never scheduled. The fields that ordering reads (state, priority, intent, birth) are columns of machine numbers
from the standard library, so that a million agents fit in little memory and numpy, if installed, reads them without
copying. Other fields are kept beside them, and only for agents that have them.

    pid        0 (kernel)   1          2
    state      none         READY      BLOCKED
    priority   0.0          1.0        3.0
    until                              7        released by unblock_expired(7)

An `AgentDescriptor` is a value: it describes an agent at one moment. To spawn an agent, make one and pass it to the
table; to change an agent, use the table's methods. Each state change follows a transition of
`rota.model.lifecycle.TICK_AGENT`, or raises and changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rota.errors import InvalidPayload, InvalidStateTransition, UnknownPid
from rota.model.checks import Checks
from rota.model.lifecycle import TICK_AGENT, AgentProcessState, advance, verb_to
from rota.model.work import Intent
from rota.policy.ranking import INTENT_WEIGHTS, UNKNOWN_INTENT_WEIGHT
from rota.tick.priority_queue import AgentPriorityQueue

__all__ = [
    "INTENTS",
    "KERNEL_PID",
    "PRIORITY_MAX",
    "PRIORITY_MIN",
    "READY",
    "RUNNING",
    "AgentDescriptor",
    "AgentLifecycleManager",
    "Columns",
    "ProcessTable",
    "clamp_priority",
]

STATES = tuple(AgentProcessState)
INTENTS = tuple(Intent)
_STATE_CODE = {state: code for code, state in enumerate(STATES)}
_INTENT_CODE = {intent: code for code, intent in enumerate(INTENTS)}
READY = _STATE_CODE[AgentProcessState.READY]  # the value in the state column
RUNNING = _STATE_CODE[AgentProcessState.RUNNING]
_KERNEL_STATE = 255  # the state of row 0, which is no agent's state

KERNEL_PID = 0  # the parent of agents that no agent spawned
PRIORITY_MIN = 0.1
PRIORITY_MAX = 10.0
FLOAT_PLACES = 4  # decimals in the canonical form

_descriptor_checks = Checks("AgentDescriptor", InvalidPayload)
_table_checks = Checks("ProcessTable", InvalidPayload)


def clamp_priority(priority: float) -> float:
    """Check that a priority is a finite number and clamp it to the allowed range."""
    _descriptor_checks.number("priority", priority)
    return min(PRIORITY_MAX, max(PRIORITY_MIN, float(priority)))


@dataclass(frozen=True, slots=True)
class AgentDescriptor:
    """An agent at one moment."""

    pid: int = 0  # assigned by the process table
    agent_id: str = ""  # empty: named after its pid
    parent_pid: int = KERNEL_PID
    state: AgentProcessState = AgentProcessState.CREATED
    priority: float = 1.0
    intent: Intent = Intent.NEUTRAL
    role: str = "ANALYST"
    resource_quota: Mapping[str, float] = field(default_factory=dict)
    birth_tick: int = 0
    exit_tick: int | None = None
    blocked_until_tick: int | None = None
    exit_reason: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _descriptor_checks.whole("pid", self.pid, 0)
        _descriptor_checks.whole("parent_pid", self.parent_pid, 0)
        _descriptor_checks.whole("birth_tick", self.birth_tick)
        _descriptor_checks.text("role", self.role)
        if self.agent_id != "":
            _descriptor_checks.text("agent_id", self.agent_id)
        for name, amount in _descriptor_checks.mapping("resource_quota", self.resource_quota).items():
            _descriptor_checks.number(f"resource_quota[{name!r}]", amount, 0)
        # normalize: clamp the priority, and convert plain strings to enums
        object.__setattr__(self, "priority", clamp_priority(self.priority))
        object.__setattr__(self, "state", AgentProcessState(_descriptor_checks.one_of("state", self.state, STATES)))
        object.__setattr__(self, "intent", Intent(_descriptor_checks.one_of("intent", self.intent, INTENTS)))

    def to_dict(self) -> dict[str, Any]:
        """The canonical form: plain values, quotas sorted by name, floats rounded to four places."""
        quota = {name: _rounded(amount) for name, amount in sorted(self.resource_quota.items())}
        return {
            "pid": self.pid,
            "agent_id": self.agent_id,
            "parent_pid": self.parent_pid,
            "state": self.state.value,
            "priority": _rounded(self.priority),
            "intent": self.intent.value,
            "role": self.role,
            "resource_quota": quota,
            "birth_tick": self.birth_tick,
            "exit_tick": self.exit_tick,
            "blocked_until_tick": self.blocked_until_tick,
            "exit_reason": self.exit_reason,
        }


def _rounded(number: float) -> float:
    return round(float(number), FLOAT_PLACES)


class Columns:
    """The fields that ordering reads, a row per pid. Written by the table, and by a world that runs its agents."""

    __slots__ = ("birth_tick", "intent", "priority", "state")

    def __init__(self) -> None:
        self.state = bytearray([_KERNEL_STATE])  # an index of STATES
        self.priority = array("d", [0.0])
        self.intent = bytearray([0])  # an index of INTENTS
        self.birth_tick = array("q", [0])

    def __len__(self) -> int:
        return len(self.state)


class ProcessTable:
    """The agents of a tick world, by pid."""

    def __init__(self) -> None:
        self.columns = Columns()
        self._agent_ids = ["kernel"]
        self._roles = [""]
        self._parents = array("q", [KERNEL_PID])
        self._children: dict[int, list[int]] = {}
        self._quotas: dict[int, dict[str, float]] = {}
        self._exit_ticks: dict[int, int] = {}
        self._exit_reasons: dict[int, str] = {}
        self._timers = AgentPriorityQueue()  # blocked agents, by the negated tick that releases them

    def __len__(self) -> int:
        return len(self.columns) - 1

    def __contains__(self, pid: object) -> bool:
        return type(pid) is int and KERNEL_PID < pid < len(self.columns)

    # --- spawning and terminating ---------------------------------------------------------------

    def spawn_agent(self, descriptor: AgentDescriptor) -> int:
        """Add an agent and return its pid: the next number, never used before.

        The descriptor's own pid is ignored. Its state is CREATED, or READY to activate the agent immediately.
        """
        self._check_spawn(descriptor)
        columns, pid = self.columns, len(self.columns)
        columns.state.append(_STATE_CODE[descriptor.state])
        columns.priority.append(descriptor.priority)
        columns.intent.append(_INTENT_CODE[descriptor.intent])
        columns.birth_tick.append(descriptor.birth_tick)
        self._agent_ids.append(descriptor.agent_id or f"agent_{pid:04d}")
        self._roles.append(descriptor.role)
        self._parents.append(descriptor.parent_pid)
        self._children.setdefault(descriptor.parent_pid, []).append(pid)
        if descriptor.resource_quota:
            self._quotas[pid] = dict(descriptor.resource_quota)
        return pid

    def _check_spawn(self, descriptor: AgentDescriptor) -> None:
        if descriptor.state not in (AgentProcessState.CREATED, AgentProcessState.READY):
            raise _table_checks.refuse("state", f"of a new agent must be CREATED or READY, not {descriptor.state}")
        if descriptor.exit_tick is not None or descriptor.blocked_until_tick is not None:
            raise _table_checks.refuse("exit_tick", "and blocked_until_tick of a new agent must be None")
        if descriptor.parent_pid == KERNEL_PID:
            return
        if self.state(descriptor.parent_pid) is AgentProcessState.TERMINATED:
            raise _table_checks.refuse("parent_pid", f"must be a living agent; {descriptor.parent_pid} is TERMINATED")

    def terminate(self, pid: int, tick: int, reason: str | None = None) -> None:
        """Terminate an agent. A second call changes nothing."""
        if self.state(pid) is AgentProcessState.TERMINATED:
            return
        _table_checks.whole("tick", tick)
        self.transition_state(pid, AgentProcessState.TERMINATED)
        self._exit_ticks[pid] = tick
        if reason is not None:
            self._exit_reasons[pid] = reason

    # --- state -----------------------------------------------------------------------------------

    def state(self, pid: int) -> AgentProcessState:
        """The state of an agent."""
        if pid not in self:
            raise UnknownPid(pid)
        return STATES[self.columns.state[pid]]

    def transition_state(self, pid: int, target: AgentProcessState) -> None:
        """Move an agent to a state, if its current state allows it."""
        current = self.state(pid)
        reached = advance(TICK_AGENT, current, verb_to(TICK_AGENT, current, target, pid), pid)
        self.columns.state[pid] = _STATE_CODE[AgentProcessState(reached)]
        if pid in self._timers:  # it was blocked and no longer is
            self._timers.remove(pid)

    def activate(self, pid: int) -> None:
        """Make a created agent ready."""
        current = self.state(pid)
        if current is not AgentProcessState.CREATED:  # other transitions lead to READY too, and are not `activate`
            raise InvalidStateTransition(pid, current, AgentProcessState.READY, legal=TICK_AGENT.verbs(current))
        self.transition_state(pid, AgentProcessState.READY)

    def set_running(self, pid: int) -> None:
        """A ready agent starts to run."""
        self.transition_state(pid, AgentProcessState.RUNNING)

    def set_ready(self, pid: int) -> None:
        """A running agent stops, or a blocked one is released."""
        self.transition_state(pid, AgentProcessState.READY)

    def block(self, pid: int, until_tick: int | None = None) -> None:
        """A running agent waits: until a tick, or until `set_ready`."""
        if until_tick is not None:
            _table_checks.whole("until_tick", until_tick)
        self.transition_state(pid, AgentProcessState.BLOCKED)
        if until_tick is not None:
            self._timers.push(pid, -until_tick)

    def unblock_expired(self, tick: int) -> list[int]:
        """Release the agents blocked until this tick or an earlier one, and return their pids."""
        released = []
        while (pid := self._timers.peek()) is not None and -self._timers.priority(pid) <= tick:
            self.set_ready(pid)
            released.append(pid)
        return sorted(released)

    # --- priority --------------------------------------------------------------------------------

    def set_priority(self, pid: int, priority: float) -> None:
        """Set the priority of a living agent, clamped to the range."""
        self.set_priorities({pid: priority})

    def set_priorities(self, priorities: Mapping[int, float]) -> None:
        """Set the priorities of many living agents: all of them, or none if one is refused."""
        clamped = {pid: clamp_priority(priority) for pid, priority in priorities.items()}
        for pid in clamped:
            if self.state(pid) is AgentProcessState.TERMINATED:
                raise _table_checks.refuse("priority", f"of agent {pid} cannot change: it is TERMINATED")
        column = self.columns.priority
        for pid, priority in clamped.items():
            column[pid] = priority

    # --- reading ---------------------------------------------------------------------------------

    def get_descriptor(self, pid: int) -> AgentDescriptor:
        """The current descriptor of an agent."""
        state = self.state(pid)
        columns = self.columns
        return AgentDescriptor(
            pid=pid,
            agent_id=self._agent_ids[pid],
            parent_pid=self._parents[pid],
            state=state,
            priority=columns.priority[pid],
            intent=INTENTS[columns.intent[pid]],
            role=self._roles[pid],
            resource_quota=dict(self._quotas.get(pid, {})),
            birth_tick=columns.birth_tick[pid],
            exit_tick=self._exit_ticks.get(pid),
            blocked_until_tick=int(-self._timers.priority(pid)) if pid in self._timers else None,
            exit_reason=self._exit_reasons.get(pid),
        )

    def list_by_state(self, state: AgentProcessState) -> list[AgentDescriptor]:
        """The agents in a state, by pid."""
        code = _STATE_CODE[AgentProcessState(state)]
        return [self.get_descriptor(pid) for pid, other in enumerate(self.columns.state) if other == code]

    def count(self, state: AgentProcessState) -> int:
        """The number of agents in a state."""
        return self.columns.state.count(_STATE_CODE[state])

    def agent_id(self, pid: int) -> str:
        """The name of an agent."""
        if pid not in self:
            raise UnknownPid(pid)
        return self._agent_ids[pid]

    def role(self, pid: int) -> str:
        """The role of an agent."""
        if pid not in self:
            raise UnknownPid(pid)
        return self._roles[pid]

    def children(self, pid: int) -> list[int]:
        """The agents that this one spawned, terminated ones included, by pid; 0 lists the agents without a parent."""
        if pid != KERNEL_PID and pid not in self:
            raise UnknownPid(pid)
        return list(self._children.get(pid, ()))

    def to_snapshot(self) -> dict[str, Any]:
        """The whole table in canonical form."""
        pids = range(1, len(self.columns))
        return {"next_pid": len(self.columns), "agents": [self.get_descriptor(pid).to_dict() for pid in pids]}

    def to_hash(self) -> str:
        """SHA-256 of the canonical form: equal runs give equal hashes."""
        text = json.dumps(self.to_snapshot(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


class AgentLifecycleManager:
    """Spawns and terminates agents of a process table. The default priority of an agent is the weight of its intent."""

    def __init__(self, process_table: ProcessTable) -> None:
        self.process_table = process_table

    def create_from_lists(
        self, agent_ids: Sequence[str], intents: Sequence[Intent], roles: Sequence[str] | None = None, *, tick: int = 0
    ) -> list[int]:
        """Spawn one ready agent per id, with the intent (and role) at the same index."""
        if len(intents) != len(agent_ids) or (roles is not None and len(roles) != len(agent_ids)):
            raise InvalidPayload("create_from_lists needs lists of the same length", field="agent_ids")
        descriptors = [
            AgentDescriptor(
                agent_id=agent_id,
                state=AgentProcessState.READY,
                priority=_default_priority(intent),
                intent=intent,
                role=roles[at] if roles is not None else "ANALYST",
                birth_tick=tick,
            )
            for at, (agent_id, intent) in enumerate(zip(agent_ids, intents, strict=True))
        ]
        return [self.process_table.spawn_agent(descriptor) for descriptor in descriptors]

    def spawn_child(
        self,
        parent_pid: int,
        agent_id: str = "",
        *,
        intent: Intent | None = None,
        role: str | None = None,
        priority: float | None = None,
        tick: int = 0,
    ) -> int:
        """Spawn a ready agent under a living parent. The parent's intent and role are the defaults."""
        parent = self.process_table.get_descriptor(parent_pid)
        intent = parent.intent if intent is None else intent
        child = AgentDescriptor(
            agent_id=agent_id,
            parent_pid=parent_pid,
            state=AgentProcessState.READY,
            priority=_default_priority(intent) if priority is None else priority,
            intent=intent,
            role=parent.role if role is None else role,
            birth_tick=tick,
        )
        return self.process_table.spawn_agent(child)

    def terminate_agent(self, pid: int, tick: int, reason: str | None = None) -> None:
        """Terminate an agent; its children live on."""
        self.process_table.terminate(pid, tick, reason)

    def get_lineage(self, pid: int) -> list[int]:
        """The agent, its parent, its grandparent and so on, without the kernel."""
        lineage = []
        while pid != KERNEL_PID:
            lineage.append(pid)
            pid = self.process_table.get_descriptor(pid).parent_pid
        return lineage

    def children(self, pid: int) -> list[int]:
        """The agents that this one spawned, by pid."""
        return self.process_table.children(pid)


def _default_priority(intent: Intent) -> float:
    return INTENT_WEIGHTS.get(intent, UNKNOWN_INTENT_WEIGHT)
