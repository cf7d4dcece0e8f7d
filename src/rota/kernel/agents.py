"""Agents: the schedulable processes. A pid is never reused.

An agent's state is moved by whoever runs it, never by a queue verb. A re-runnable agent ends a run in
SUSPENDED and resumes to READY; a one-shot agent ends it in DEAD. A pause is a flag, not a state: a paused
agent keeps its state and gets no new runs.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from rota.errors import InvalidPayload, ProjectUnknown, UnknownPid
from rota.kernel.core import LIST_MAX, Core, page
from rota.kernel.journal import append
from rota.kernel.rows import agent_of
from rota.model.checks import PAYLOAD_BYTES_MAX, Checks
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
from rota.store.statements import projects as project_sql

__all__ = ["Agents", "Recovery", "find"]

Pids: TypeAlias = list[int]
Found: TypeAlias = list[Agent]
Recovery = Literal["mark-suspended", "mark-dead"]
RECOVERIES: dict[str, str] = {"mark-suspended": "suspend", "mark-dead": "terminate"}

_agent = Checks("Agent", InvalidPayload)
_encoder = msgspec.json.Encoder()


def find(tx: Transaction, pid: int) -> Agent:
    """An agent, or the error that there is none."""
    rows = tx.run(sql.GET, (_agent.whole("pid", pid),))
    if not rows:
        raise UnknownPid(pid)
    return agent_of(rows[0])


def _as_json(field: str, value: Any) -> str:
    _agent.mapping(field, value)
    try:
        body = _encoder.encode(value)
    except (TypeError, ValueError) as problem:
        raise _agent.refuse(field, f"is not JSON: {problem}") from problem
    if len(body) > PAYLOAD_BYTES_MAX:
        raise _agent.refuse(field, f"is {len(body):,} bytes; at most {PAYLOAD_BYTES_MAX:,} are taken")
    return body.decode()


class Agents:
    """Making agents and moving them through their states."""

    def __init__(self, core: Core) -> None:
        self._core = core

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
        """Make an agent; its pid is the answer. Nothing is enqueued.

        With `unique`, a living agent of this name is the answer instead, as it is.
        """
        _agent.text("name", name)
        _agent.text("template", template)
        settings = _settings(priority, weight, intent, max_concurrent)
        _agent.flag("rerunnable", rerunnable)
        _agent.flag("unique", unique)
        body = _as_json("metadata", {} if metadata is None else metadata)
        now = self._core.now()

        def work(tx: Transaction) -> int:
            if unique and (there := tx.run(sql.FIND, (name,))):
                return int(there[0][0])
            if parent_pid is not None:
                find(tx, parent_pid)
            if project_id is not None and not tx.run(project_sql.GET, (project_id,)):
                raise ProjectUnknown(f"there is no project {project_id!r}", project_id=project_id)
            priority, weight, intent, most = settings
            row = (parent_pid, name, template, now, now, body, project_id, priority, weight, intent, rerunnable, most)
            pid = int(tx.run(sql.CREATE, row)[0][0])
            fact = ProcessCreated(name=name, template=template, parent_pid=parent_pid, project_id=project_id)
            tx.run(sql.TOUCH, (append(tx, fact, now=now, pid=pid), now, pid))
            return pid

        return self._core.write(work)

    def get(self, pid: int) -> Agent:
        """One agent."""
        return self._core.read(lambda tx: find(tx, pid))

    def find(self, name: str) -> list[Agent]:
        """The living agents of a name, youngest first: names need not be unique."""
        _agent.text("name", name)
        return [agent_of(row) for row in self._core.read(lambda tx: tx.run(sql.FIND, (name,)))]

    def list(
        self, *, state: str | None = None, project_id: str | None = None, limit: int = 100, offset: int = 0
    ) -> tuple[list[Agent], int]:
        """A page of agents by pid, and how many there are in all."""
        if state is not None:
            _agent.one_of("state", state, AGENT.states)
        _agent.note("project_id", project_id)
        at = page(limit, offset)

        def work(tx: Transaction) -> tuple[list[Agent], int]:
            rows = tx.run(sql.LIST, (state, project_id, at.limit, at.offset))
            return [agent_of(row) for row in rows], int(tx.run(sql.COUNT, (state, project_id))[0][0])

        return self._core.read(work)

    def transition(self, pid: int, state: str, *, reason: str | None = None, expect: str | None = None) -> Agent:
        """Put an agent into another state, if there is such an arrow; `expect` also names the state before."""
        _agent.one_of("state", state, AGENT.states)
        _agent.note("reason", reason)
        _agent.note("expect", expect)
        now = self._core.now()

        def work(tx: Transaction) -> Agent:
            agent = find(tx, pid)
            if expect is not None and agent.state != expect:
                raise AGENT.error(pid, agent.state, f"{state} (expected {expect})", legal=AGENT.verbs(agent.state))
            verb_to(AGENT, agent.state, state, pid)
            fact = ProcessTransitioned(prev_state=agent.state, new_state=state, reason=reason)
            event_id = append(tx, fact, now=now, pid=pid)
            tx.run(sql.MOVE, (state, reason, now, None, None, event_id, pid))
            return find(tx, pid)

        return self._core.write(work)

    def end(self, tx: Transaction, pid: int, exit_kind: str, detail: dict[str, Any], now: float) -> Agent:
        """End an agent inside a transaction that also sees to its entries."""
        agent = find(tx, pid)
        advance(AGENT, agent.state, "terminate", pid)
        fact = ProcessTerminated(prev_state=agent.state, exit_kind=exit_kind, detail=detail)
        event_id = append(tx, fact, now=now, pid=pid)
        tx.run(sql.MOVE, (AgentState.DEAD, None, now, exit_kind, _as_json("detail", detail), event_id, pid))
        self._core.memo.forget()  # it was known to live
        return agent

    def check_exit(self, exit_kind: str, detail: dict[str, Any] | None) -> dict[str, Any]:
        """The detail of an ending, once both are found to be right."""
        _agent.one_of("exit_kind", exit_kind, EXIT_KINDS)
        _as_json("detail", {} if detail is None else detail)
        return detail or {}

    def update(self, pid: int, **changes: Any) -> Agent:
        """Change priority, weight, intent, max_concurrent or metadata."""
        for field in changes:
            _agent.one_of("field", field, ("priority", "weight", "intent", "max_concurrent", "metadata"))
        if "metadata" in changes:
            _as_json("metadata", changes["metadata"])
        now = self._core.now()

        def work(tx: Transaction) -> Agent:
            agent = msgspec.structs.replace(find(tx, pid), **changes)
            settings = _settings(agent.priority, agent.weight, agent.intent, agent.max_concurrent)
            event_id = append(tx, ProcessUpdated(changes=changes), now=now, pid=pid)
            tx.run(sql.SET, (*settings, _as_json("metadata", agent.metadata), now, event_id, pid))
            tx.run(flow_sql.AGENT_TOUCH, (pid, agent.project_id or "", event_id))
            tx.notes.wake = True
            return find(tx, pid)

        return self._core.write(work)

    def pause(self, pid: int, by: str, reason: str | None = None) -> None:
        """Give an agent no more runs until it is resumed. What runs, runs on."""
        _agent.text("by", by)
        _agent.note("reason", reason)
        self._set_pause(pid, by, Paused(level="agent", key=str(pid), by=by, reason=reason))

    def resume(self, pid: int, by: str) -> None:
        """Lift an agent's pause."""
        _agent.text("by", by)
        self._set_pause(pid, None, Resumed(level="agent", key=str(pid), by=by))

    def _set_pause(self, pid: int, by: str | None, fact: Paused | Resumed) -> None:
        now = self._core.now()

        def work(tx: Transaction) -> None:
            find(tx, pid)
            tx.run(sql.PAUSE, (by, now, pid))
            tx.run(sql.TOUCH, (append(tx, fact, now=now, pid=pid), now, pid))
            tx.notes.wake = True

        self._core.write(work)

    def paused(self, by: str, *, limit: int = LIST_MAX) -> Found:
        """The agents that this one has paused, by pid."""
        _agent.text("by", by)
        rows = self._core.read(lambda tx: tx.run(sql.PAUSED, (by, page(limit, 0).limit)))
        return [agent_of(row) for row in rows]

    def recover(self, policy: Recovery = "mark-suspended", *, reason: str = "daemon_restart") -> Pids:
        """Put agents that were at work when everything stopped where they can go on; their pids are the answer."""
        _agent.one_of("policy", policy, RECOVERIES)
        _agent.text("reason", reason)
        now = self._core.now()

        def work(tx: Transaction) -> Pids:
            rows = tx.run(sql.INTERRUPTED)
            for pid, state in rows:
                target = advance(AGENT, state, RECOVERIES[policy], pid)
                fact = ProcessRecovered(prev_state=state, new_state=target, policy=policy, reason=reason)
                event_id = append(tx, fact, now=now, pid=pid)
                exit_kind = "crashed" if target == AgentState.DEAD else None
                tx.run(sql.MOVE, (target, reason, now, exit_kind, None, event_id, pid))
            return [pid for pid, _ in rows]

        return self._core.write(work)


def _settings(priority: int, weight: int, intent: Intent | str, most: int | None) -> tuple[int, int, str, int | None]:
    _agent.whole("priority", priority)
    _agent.whole("weight", weight, 1, WEIGHT_MAX)
    _agent.one_of("intent", intent, [each.value for each in Intent])
    if most is not None:
        _agent.whole("max_concurrent", most, 0)
    return priority, weight, str(intent), most
