"""Agents: the things that entries run. A pid is never reused.

An agent's state is changed by the process that runs it, never by a method of the queue. A re-runnable agent ends a
run in SUSPENDED and resumes to READY; a one-shot agent ends it in DEAD. A pause is a flag, not a state: a paused
agent keeps its state and gets no new runs.

The settings in an agent's metadata are checked whenever they are written. An agent whose stored settings, or those of
its project, a supervisor cannot use (damaged, or written by another version) is paused by `quarantine: …`. Writing its
metadata ends that, and so does writing the metadata of its project: if the fault was elsewhere, its next run finds it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from rota.errors import InvalidPayload, StoreCorrupt
from rota.kernel.agent_reads import AgentReads
from rota.kernel.entry_reads import EntryFilter
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.ledger import inherit_ledger
from rota.kernel.lookups import check_project_exists, find_agent
from rota.kernel.paging import LIST_MAX, page
from rota.kernel.queue import Queue
from rota.kernel.rows import agent_from_row, json_list, json_text
from rota.lazy import late
from rota.model.agent_metadata import hide_env
from rota.model.checks import ID_CHARS_MAX, PAYLOAD_BYTES_MAX, Checks
from rota.model.events import (
    Paused,
    ProcessCreated,
    ProcessRecovered,
    ProcessTerminated,
    ProcessTransitioned,
    ProcessUpdated,
    Resumed,
)
from rota.model.lifecycle import AGENT, AgentState, advance, verb_to
from rota.model.work import EXIT_KINDS, WEIGHT_MAX, WEIGHT_UNIT, Agent, Intent
from rota.store import Transaction
from rota.store.statements import agents as sql
from rota.store.statements import flows as flow_sql

if TYPE_CHECKING:
    from rota.model import agent_settings
else:
    agent_settings = late("rota.model.agent_settings")  # most commands write no agent

__all__ = ["OWNER_TERMINATED", "QUARANTINED_FOR", "Agents", "Recovery", "end_quarantines", "move_agent"]

Pids: TypeAlias = list[int]
AgentList: TypeAlias = list[Agent]  # in the class, `list` is a method
Recovery = Literal["mark-suspended", "mark-dead"]
QUARANTINED_FOR = "quarantine: "  # before the reason, as the `by` of a pause until the agent's settings change
QUEUED = ("cancel", "keep")  # what becomes of the queued entries of an agent that ends
OWNER_TERMINATED = "owner_terminated"  # the reason of entries that are cancelled with their agent
RECOVERIES: dict[str, str] = {"mark-suspended": "suspend", "mark-dead": "terminate"}

_agent = Checks("Agent", InvalidPayload)


def move_agent(tx: Transaction, pid: int, state: str, target: str, *, reason: str | None, now: float) -> None:
    """Move an agent from one state to another inside a transaction; raises if the transition is illegal."""
    verb_to(AGENT, state, target, pid)
    event = ProcessTransitioned(prev_state=state, new_state=target, reason=reason)
    event_id = append(tx, event, now=now, pid=pid)
    if target == AgentState.DEAD:
        tx.run(sql.MOVE_OR_END, (target, reason, now, None, None, event_id, pid))
    else:
        tx.run(sql.MOVE, (target, reason, now, event_id, pid))


def end_quarantines(tx: Transaction, project_id: str, now: float) -> None:
    """Resume the agents of a project that wait for settings to change: those of the project have."""
    prefix = (len(QUARANTINED_FOR), QUARANTINED_FOR)
    for row in tx.run(sql.PAUSED_WITHIN, (json_list([project_id]), *prefix, LIST_MAX)):
        pid = agent_from_row(row).pid
        tx.run(sql.TOUCH, (_end_quarantine(tx, pid, now), now, pid))


def _end_quarantine(tx: Transaction, pid: int, now: float) -> int:
    tx.run(sql.PAUSE, (None, now, pid))
    return append(tx, Resumed(level="agent", key=str(pid), by="settings"), now=now, pid=pid)


def _metadata(value: Any) -> str:
    """Check an agent's metadata and the settings in it; returns it encoded."""
    body = _json("metadata", value)
    agent_settings.check_settings(value)
    return body


def _shown(changes: dict[str, Any]) -> dict[str, Any]:
    """Return changes as an event has them: without the values of variables."""
    return {**changes, "metadata": hide_env(changes["metadata"])} if "metadata" in changes else changes


def _json(field: str, value: Any) -> str:
    return json_text(_agent, field, _agent.mapping(field, value), PAYLOAD_BYTES_MAX)


def _insert(tx: Transaction, row: tuple[Any, ...], now: float) -> int:
    """Write a new agent, and the event about it."""
    parent_pid, name, template, *_, project_id = row[:7]
    pid = int(tx.run(sql.CREATE, row)[0][0])
    event = ProcessCreated(name=name, template=template, parent_pid=parent_pid, project_id=project_id)
    tx.run(sql.TOUCH, (append(tx, event, now=now, pid=pid), now, pid))
    return pid


class Agents(AgentReads):
    """Creating agents and moving them through their states."""

    def __init__(self, env: KernelEnvironment, queue: Queue) -> None:
        super().__init__(env)
        self._env = env
        self._queue = queue

    def create(
        self,
        name: str,
        template: str = "callable",
        *,
        parent_pid: int | None = None,
        metadata: dict[str, Any] | None = None,
        project_id: str | None = None,
        priority: int = 0,
        weight: int = WEIGHT_UNIT,
        intent: Intent | str = Intent.NEUTRAL,
        rerunnable: bool = True,
        max_concurrent: int | None = None,
        unique: bool = False,
    ) -> int:
        """Create an agent and return its pid. Nothing is enqueued.

        With `unique`, returns the live agent of this name in the project if there is one, unchanged; otherwise the new
        agent gets the ledger of the last one of this name in the project, with what that has used.
        """
        _agent.name("name", name)
        _agent.name("template", template)
        settings = _settings(priority, weight, intent, max_concurrent)
        _agent.flag("rerunnable", rerunnable)
        _agent.flag("unique", unique)
        body = _metadata({} if metadata is None else metadata)
        now = self._env.now()

        def work(tx: Transaction) -> int:
            if unique and (existing := tx.run(sql.FIND_IN_PROJECT, (name, project_id))):
                return int(existing[0][0])
            if parent_pid is not None:
                find_agent(tx, parent_pid)
            if project_id is not None:
                check_project_exists(tx, project_id)
            priority, weight, intent, cap = settings
            row = (parent_pid, name, template, now, now, body, project_id, priority, weight, intent, rerunnable, cap)
            pid = _insert(tx, row, now)
            if unique:
                inherit_ledger(tx, pid, name, project_id, now)
            return pid

        return self._env.write(work)

    def create_in(
        self,
        tx: Transaction,
        name: str,
        template: str,
        *,
        metadata: dict[str, Any],
        project_id: str | None,
        now: float,
    ) -> int:
        """Create an agent with default settings inside a transaction, with the ledger of the last one of this name."""
        body, (priority, weight, intent, cap) = _metadata(metadata), _settings(0, WEIGHT_UNIT, Intent.NEUTRAL, None)
        row = (None, name, template, now, now, body, project_id, priority, weight, intent, True, cap)
        pid = _insert(tx, row, now)
        inherit_ledger(tx, pid, name, project_id, now)
        return pid

    def transition(
        self,
        pid: int,
        state: str,
        *,
        reason: str | None = None,
        expect: str | None = None,
        queued: Literal["cancel", "keep"] = "cancel",
    ) -> Agent:
        """Move an agent to another state, if the transition is legal; `expect` is the required state before.

        An agent that becomes DEAD has its queued entries cancelled, unless `queued` is "keep", as with `terminate`.
        """
        _agent.one_of("state", state, AGENT.states)
        _agent.one_of("queued", queued, QUEUED)
        _agent.optional_text("reason", reason)
        _agent.optional_text("expect", expect)
        ends = state == AgentState.DEAD and queued == "cancel"
        now = self._env.now()

        def work(tx: Transaction) -> Agent:
            agent = find_agent(tx, pid)
            if expect is not None and agent.state != expect:
                raise AGENT.error(pid, agent.state, f"{state} (expected {expect})", legal=AGENT.verbs(agent.state))
            move_agent(tx, pid, agent.state, state, reason=reason, now=now)
            if ends:
                self._queue.cancel_batch_in(tx, EntryFilter(pid=pid), now, OWNER_TERMINATED)
            return find_agent(tx, pid)

        moved = self._env.write(work)
        if ends:  # entries beyond the first batch
            self._queue.cancel_where(EntryFilter(pid=pid), reason=OWNER_TERMINATED)
        return moved

    def terminate_in(self, tx: Transaction, pid: int, exit_kind: str, detail: dict[str, Any], now: float) -> Agent:
        """Terminate an agent inside a transaction that also handles its entries."""
        agent = find_agent(tx, pid)
        advance(AGENT, agent.state, "terminate", pid)
        event = ProcessTerminated(prev_state=agent.state, exit_kind=exit_kind, detail=detail)
        event_id = append(tx, event, now=now, pid=pid)
        tx.run(sql.MOVE_OR_END, (AgentState.DEAD, None, now, exit_kind, _json("detail", detail), event_id, pid))
        self._env.cache.invalidate()  # it may be cached as alive
        return agent

    def check_exit(self, exit_kind: str, detail: dict[str, Any] | None) -> dict[str, Any]:
        """Check an exit kind and its detail; returns the detail."""
        _agent.one_of("exit_kind", exit_kind, EXIT_KINDS)
        _json("detail", {} if detail is None else detail)
        return detail or {}

    def update(self, pid: int, **changes: Any) -> Agent:
        """Change priority, weight, intent, max_concurrent or metadata."""
        for field in changes:
            _agent.one_of("field", field, ("priority", "weight", "intent", "max_concurrent", "metadata"))
        if "metadata" in changes:
            _metadata(changes["metadata"])
        return self._env.write(lambda tx: self.update_in(tx, pid, changes, self._env.now()))

    def update_in(self, tx: Transaction, pid: int, changes: dict[str, Any], now: float) -> Agent:
        """Change an agent inside a transaction; the changes were checked."""
        agent = find_agent(tx, pid)
        if agent.unreadable is not None and "metadata" not in changes:  # it would be replaced by nothing
            hint = "Write its metadata in the same call; `rota reload` does it for an agent of a fleet file."
            raise StoreCorrupt(f"agent {pid} cannot be read: {agent.unreadable}", hint=hint, pid=pid)
        if "metadata" in changes and str(agent.paused_by).startswith(QUARANTINED_FOR):
            _end_quarantine(tx, pid, now)
        agent = msgspec.structs.replace(agent, **changes)
        settings = _settings(agent.priority, agent.weight, agent.intent, agent.max_concurrent)
        event_id = append(tx, ProcessUpdated(changes=_shown(changes)), now=now, pid=pid)
        tx.run(sql.SET, (*settings, _json("metadata", agent.metadata), now, event_id, pid))
        tx.run(flow_sql.AGENT_TOUCH, (pid, agent.project_id or "", event_id))
        tx.effects.wake_parked = True
        return find_agent(tx, pid)

    def pause(self, pid: int, by: str, reason: str | None = None) -> None:
        """Stop new claims of an agent's entries until it is resumed. Live runs continue."""
        _agent.text("by", by)
        _agent.optional_text("reason", reason)
        self._set_pause(pid, by, Paused(level="agent", key=str(pid), by=by, reason=reason))

    def resume(self, pid: int, by: str) -> None:
        """End an agent's pause."""
        _agent.text("by", by)
        self._set_pause(pid, None, Resumed(level="agent", key=str(pid), by=by))

    def _set_pause(self, pid: int, by: str | None, event: Paused | Resumed) -> None:
        self._env.write(lambda tx: self.set_pause_in(tx, pid, by, event, self._env.now()))

    def set_pause_in(self, tx: Transaction, pid: int, by: str | None, event: Paused | Resumed, now: float) -> None:
        """Pause or resume an agent inside a transaction."""
        find_agent(tx, pid)
        tx.run(sql.PAUSE, (by, now, pid))
        tx.run(sql.TOUCH, (append(tx, event, now=now, pid=pid), now, pid))
        tx.effects.wake_parked = True

    def paused(self, by: str, *, limit: int = LIST_MAX, prefix: bool = False) -> AgentList:
        """Return the agents paused by this name, or by names that begin with it, by pid."""
        _agent.text("by", by)
        chars = len(by) if _agent.flag("prefix", prefix) else ID_CHARS_MAX
        rows = self._env.read(lambda tx: tx.run(sql.PAUSED, (chars, by, page(limit, 0).limit)))
        return [agent_from_row(row) for row in rows]

    def recover(self, policy: Recovery = "mark-suspended", *, reason: str = "daemon_restart") -> Pids:
        """Suspend or terminate the agents that were RUNNING or WAITING when their process died; returns their pids."""
        _agent.one_of("policy", policy, RECOVERIES)
        _agent.text("reason", reason)
        now = self._env.now()

        def work(tx: Transaction) -> Pids:
            rows = tx.run(sql.INTERRUPTED)
            for pid, state in rows:
                _recover(tx, (pid, state), policy, reason, now)
            return [pid for pid, _ in rows]

        pids = self._env.write(work)
        if policy == "mark-dead":
            for pid in pids:
                self._queue.cancel_where(EntryFilter(pid=pid), reason=OWNER_TERMINATED)
        return pids

    def interrupted(self) -> dict[int, float]:
        """Return the agents that are RUNNING or WAITING, with the times of their last changes."""
        rows = self._env.read(lambda tx: tx.run(sql.INTERRUPTED_BY_RUN))
        return {pid: changed_at for pid, _, changed_at, _ in rows}

    def recover_idle(self, unchanged: Mapping[int, float], *, reason: str = "daemon_restart") -> Pids:
        """Suspend those of some agents that have no live run and have not changed since a time; returns their pids."""
        now = self._env.now()

        def work(tx: Transaction) -> Pids:
            rows = [
                row
                for row in tx.run(sql.INTERRUPTED_BY_RUN)
                if not row[3] and unchanged.get(row[0], math.nan) == row[2]
            ]
            for pid, state, _, _ in rows:
                _recover(tx, (pid, state), "mark-suspended", reason, now)
            return [row[0] for row in rows]

        return self._env.write(work)


def _recover(tx: Transaction, agent: tuple[int, str], policy: Recovery, reason: str, now: float) -> None:
    """Recover an agent, given by pid and state."""
    pid, state = agent
    target = advance(AGENT, state, RECOVERIES[policy], pid)
    event = ProcessRecovered(prev_state=state, new_state=target, policy=policy, reason=reason)
    event_id = append(tx, event, now=now, pid=pid)
    exit_kind = "crashed" if target == AgentState.DEAD else None
    tx.run(sql.MOVE_OR_END, (target, reason, now, exit_kind, None, event_id, pid))


def _settings(priority: int, weight: int, intent: Intent | str, cap: int | None) -> tuple[int, int, str, int | None]:
    _agent.whole("priority", priority)
    _agent.whole("weight", weight, 1, WEIGHT_MAX)
    _agent.one_of("intent", intent, [each.value for each in Intent])
    if cap is not None:
        _agent.whole("max_concurrent", cap, 0)
    return priority, weight, str(intent), cap
