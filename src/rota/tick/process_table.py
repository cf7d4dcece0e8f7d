"""Every agent of a tick world, in one table.

A row is an agent and its number is the agent's pid; row 0 stands for the kernel, the parent of agents
that no agent spawned, and is never scheduled. What ordering reads (state, priority, intent, birth) is
kept as columns of plain machine numbers from the standard library, so that a million agents fit in
little memory and numpy, where it is installed, can look at them without copying. What ordering does
not read is kept beside them, and only for agents that have it.

    pid        0 (kernel)   1          2
    state      nobody       READY      BLOCKED
    priority   0.0          1.0        3.0
    until                              7        released by unblock_expired(7)

Descriptors handed out are values; the verbs of the table are the only way to change an agent. Each
state change follows an arrow of `rota.model.lifecycle.TICK_AGENT` or raises and changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping
from typing import Any

from rota.errors import InvalidPayload, InvalidStateTransition, UnknownPid
from rota.model.checks import Checks
from rota.model.lifecycle import TICK_AGENT, AgentProcessState, advance, verb_to
from rota.model.work import Intent
from rota.tick.descriptor import KERNEL_PID, AgentDescriptor, clamp_priority
from rota.tick.priority_queue import AgentPriorityQueue

__all__ = ["INTENTS", "READY", "RUNNING", "Columns", "ProcessTable"]

STATES = tuple(AgentProcessState)
INTENTS = tuple(Intent)
_STATE_CODE = {state: code for code, state in enumerate(STATES)}
_INTENT_CODE = {intent: code for code, intent in enumerate(INTENTS)}
READY = _STATE_CODE[AgentProcessState.READY]  # as it stands in the state column
RUNNING = _STATE_CODE[AgentProcessState.RUNNING]
_NOBODY = 255  # the state of row 0: no agent's

_checks = Checks("ProcessTable", InvalidPayload)


class Columns:
    """What ordering reads, a row per pid. To be written by the table, and by a world that runs its agents."""

    __slots__ = ("birth_tick", "intent", "priority", "state")

    def __init__(self) -> None:
        self.state = bytearray([_NOBODY])  # a position in STATES
        self.priority = array("d", [0.0])
        self.intent = bytearray([0])  # a position in INTENTS
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
        self._timers = AgentPriorityQueue()  # blocked agents by minus the tick that releases them

    def __len__(self) -> int:
        return len(self.columns) - 1

    def __contains__(self, pid: object) -> bool:
        return type(pid) is int and KERNEL_PID < pid < len(self.columns)

    # --- being born and dying --------------------------------------------------------------------

    def spawn_agent(self, descriptor: AgentDescriptor) -> int:
        """Add an agent and return its pid: the next number, never used before.

        The descriptor's own pid is not read. Its state is CREATED, or READY to activate it at once.
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
            raise _checks.refuse("state", f"of a new agent must be CREATED or READY, not {descriptor.state}")
        if descriptor.exit_tick is not None or descriptor.blocked_until_tick is not None:
            raise _checks.refuse("exit_tick", "and blocked_until_tick of a new agent must be None")
        if descriptor.parent_pid == KERNEL_PID:
            return
        if self.state(descriptor.parent_pid) is AgentProcessState.TERMINATED:
            raise _checks.refuse("parent_pid", f"must be alive, and {descriptor.parent_pid} is TERMINATED")

    def terminate(self, pid: int, tick: int, reason: str | None = None) -> None:
        """End an agent. A second time changes nothing."""
        if self.state(pid) is AgentProcessState.TERMINATED:
            return
        _checks.whole("tick", tick)
        self.transition_state(pid, AgentProcessState.TERMINATED)
        self._exit_ticks[pid] = tick
        if reason is not None:
            self._exit_reasons[pid] = reason

    # --- state -----------------------------------------------------------------------------------

    def state(self, pid: int) -> AgentProcessState:
        """Where an agent stands."""
        if pid not in self:
            raise UnknownPid(pid)
        return STATES[self.columns.state[pid]]

    def transition_state(self, pid: int, target: AgentProcessState) -> None:
        """Move an agent to a state, if an arrow leads there from its own."""
        current = self.state(pid)
        reached = advance(TICK_AGENT, current, verb_to(TICK_AGENT, current, target, pid), pid)
        self.columns.state[pid] = _STATE_CODE[AgentProcessState(reached)]
        if pid in self._timers:  # it was blocked and no longer is
            self._timers.remove(pid)

    def activate(self, pid: int) -> None:
        """Make a created agent ready."""
        current = self.state(pid)
        if current is not AgentProcessState.CREATED:  # other arrows lead to READY too, and are not this verb
            raise InvalidStateTransition(pid, current, AgentProcessState.READY, legal=TICK_AGENT.verbs(current))
        self.transition_state(pid, AgentProcessState.READY)

    def set_running(self, pid: int) -> None:
        """A ready agent starts its turn."""
        self.transition_state(pid, AgentProcessState.RUNNING)

    def set_ready(self, pid: int) -> None:
        """A running agent ends its turn, or a blocked one is released."""
        self.transition_state(pid, AgentProcessState.READY)

    def block(self, pid: int, until_tick: int | None = None) -> None:
        """A running agent waits: until a tick, or until it is released with `set_ready`."""
        if until_tick is not None:
            _checks.whole("until_tick", until_tick)
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
        """Give a living agent a priority, clamped to the range."""
        self.set_priorities({pid: priority})

    def set_priorities(self, priorities: Mapping[int, float]) -> None:
        """Give many living agents their priorities: all of them, or none if one is refused."""
        clamped = {pid: clamp_priority(priority) for pid, priority in priorities.items()}
        for pid in clamped:
            if self.state(pid) is AgentProcessState.TERMINATED:
                raise _checks.refuse("priority", f"of agent {pid} cannot change: it is TERMINATED")
        column = self.columns.priority
        for pid, priority in clamped.items():
            column[pid] = priority

    # --- looking ---------------------------------------------------------------------------------

    def get_descriptor(self, pid: int) -> AgentDescriptor:
        """An agent as it stands now."""
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
        """How many agents are in a state."""
        return self.columns.state.count(_STATE_CODE[state])

    def agent_id(self, pid: int) -> str:
        """An agent's name."""
        if pid not in self:
            raise UnknownPid(pid)
        return self._agent_ids[pid]

    def role(self, pid: int) -> str:
        """An agent's role."""
        if pid not in self:
            raise UnknownPid(pid)
        return self._roles[pid]

    def children(self, pid: int) -> list[int]:
        """The agents that this one spawned, dead ones too, by pid; those of pid 0 have no parent."""
        if pid != KERNEL_PID and pid not in self:
            raise UnknownPid(pid)
        return list(self._children.get(pid, ()))

    def to_snapshot(self) -> dict[str, Any]:
        """The whole table in canonical form: plain values only."""
        pids = range(1, len(self.columns))
        return {"next_pid": len(self.columns), "agents": [self.get_descriptor(pid).to_dict() for pid in pids]}

    def to_hash(self) -> str:
        """SHA-256 of the canonical form: equal runs give equal hashes."""
        text = json.dumps(self.to_snapshot(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()
