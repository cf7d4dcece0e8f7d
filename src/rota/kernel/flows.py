"""Flows: what is owed to each project and each agent, durably.

A flow's virtual time is what it used divided by its weight (see policy/virtual_time). It moves when a run is
claimed under a policy that shares (by what the run is expected to use), when the run settles (by the
difference to what was measured) and when usage is charged without a run. A run that was neither estimated nor
measured moves nothing. Each move is written in the fact of the change that caused it.

Who has ready entries is not written down. The service keeps it in memory: it sees new entries by their ids, and
`touch` tells it of agents whose held or returned entries are ready again.
"""

from __future__ import annotations

from collections.abc import Iterable

from rota.model.budgets import Flow
from rota.model.checks import INTEGER_MAX
from rota.model.events import FlowMove
from rota.model.work import WEIGHT_UNIT
from rota.policy.virtual_time import charged
from rota.store import Transaction
from rota.store.statements import flows as sql

__all__ = ["NO_PROJECT", "after_cost", "agent_flow", "project_flow", "save", "touch"]

NO_PROJECT = ""  # the project of agents that have none


def agent_flow(tx: Transaction, pid: int, project_id: str | None = None) -> Flow:
    """Where an agent's flow stands; one that never moved stands at 0."""
    rows = tx.run(sql.AGENT_GET, (pid,))
    if not rows:
        return Flow(level="agent", key=str(pid), parent=project_id or NO_PROJECT)
    _, parent, virtual_time, last_run_at, weight = rows[0]
    return Flow(
        level="agent",
        key=str(pid),
        parent=parent,
        weight=weight,
        virtual_time=virtual_time,
        last_run_at=last_run_at,
    )


def project_flow(tx: Transaction, project_id: str | None) -> Flow:
    """Where a project's flow stands; one that never moved stands at 0."""
    key = project_id or NO_PROJECT
    rows = tx.run(sql.PROJECT_GET, (key,))
    _, virtual_time, clock, weight = rows[0] if rows else (key, 0, 0, WEIGHT_UNIT)
    return Flow(level="project", key=key, weight=weight, virtual_time=virtual_time, clock=clock)


def after_cost(tx: Transaction, costs: Iterable[tuple[int, str | None, int]]) -> list[FlowMove]:
    """Where flows stand after these (pid, project, cost), each charged to the agent and to its project."""
    agents: dict[int, tuple[str | None, int]] = {}
    costs = [each for each in costs if each[2]]
    if not costs:
        return []
    projects: dict[str | None, int] = {}
    for pid, project_id, cost in costs:
        agents[pid] = (project_id, agents.get(pid, (project_id, 0))[1] + cost)
        projects[project_id] = projects.get(project_id, 0) + cost
    moves = [_moved(agent_flow(tx, pid, project_id), cost) for pid, (project_id, cost) in agents.items()]
    moves += [_moved(project_flow(tx, project_id), cost) for project_id, cost in projects.items()]
    return moves


def _moved(flow: Flow, cost: int) -> FlowMove:
    time = _bounded(charged(flow.virtual_time, cost, flow.weight))
    return FlowMove(flow.level, flow.key, time, flow.clock, flow.parent or "")


def save(tx: Transaction, moves: Iterable[FlowMove], *, event_id: int, served_at: float = 0.0) -> None:
    """Write moves that a fact has recorded."""
    agents, projects = [], []
    for move in moves:
        if move.level == "agent":
            agents.append((int(move.key), move.parent, _bounded(move.virtual_time), served_at, event_id))
        else:
            projects.append((move.key, _bounded(move.virtual_time), _bounded(move.clock), event_id))
    if agents:
        tx.run_many(sql.AGENT_MOVE, agents)
    if projects:
        tx.run_many(sql.PROJECT_MOVE, projects)


def _bounded(virtual_time: int) -> int:
    """A flow that has used more than a row can count stands at the end of time."""
    return min(virtual_time, INTEGER_MAX)


def touch(tx: Transaction, owners: Iterable[tuple[int, str | None]], *, event_id: int) -> None:
    """Note that these agents have entries that are ready again."""
    tx.run_many(sql.AGENT_TOUCH, [(pid, project_id or NO_PROJECT, event_id) for pid, project_id in owners])
