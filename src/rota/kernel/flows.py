"""Flows: the virtual time of each project and each agent, stored durably.

A flow's virtual time is its usage divided by its weight (see policy/virtual_time). It moves when a run is claimed under
a sharing policy (by the expected usage), when the run ends (by measured minus expected usage) and when usage is charged
without a run. A run that was neither estimated nor measured moves nothing. Each move is part of the event of the change
that caused it.

Which agents have ready entries is not stored. ready_owners.py keeps that in memory: it finds new entries by their ids,
and `mark_ready` marks the agents whose held or returned entries became ready again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from rota.kernel.rows import NEEDS, decode_needs
from rota.model.budgets import Flow
from rota.model.checks import INTEGER_MAX
from rota.model.events import FlowMove
from rota.model.work import WEIGHT_UNIT
from rota.policy.virtual_time import charged
from rota.store import Row, Transaction
from rota.store.statements import flows as sql

__all__ = [
    "NO_PROJECT",
    "SHARED_DIM",
    "ServedFlows",
    "expected_cost",
    "mark_competing",
    "mark_ready",
    "moves_for_costs",
    "save_moves",
    "save_served",
]

NO_PROJECT = ""  # the project of agents that have none
SHARED_DIM = "tokens"  # the dimension that flows and shares count by default, and contexts always (see store_policy)


class ServedFlows(msgspec.Struct, frozen=True):
    """What a pass did to flows: the moves, and the agents (with their projects) that it served without a move."""

    moves: Collection[FlowMove] = ()
    agents: Collection[tuple[int, str | None]] = ()


def expected_cost(row: Row, dim: str) -> int:
    """What the run of an entry is expected to use of the dimension that sharing counts; default 1."""
    if row[NEEDS] is None:
        return 1
    needs = decode_needs(row[NEEDS])
    return max(1, needs.expected.get(dim, needs.ceiling.get(dim, 1)))


def moves_for_costs(tx: Transaction, costs: Iterable[tuple[int, str | None, int]]) -> list[FlowMove]:
    """Return the moves for these (pid, project, cost), each charged to the agent and to its project."""
    agents: dict[int, tuple[str | None, int]] = {}
    costs = [each for each in costs if each[2]]
    if not costs:
        return []
    projects: dict[str | None, int] = {}
    for pid, project_id, cost in costs:
        agents[pid] = (project_id, agents.get(pid, (project_id, 0))[1] + cost)
        projects[project_id] = projects.get(project_id, 0) + cost
    agent_rows = {row[0]: row for row in tx.run_for(sql.AGENTS_OF, agents)}
    moves = []
    for pid, (project_id, cost) in agents.items():
        row = agent_rows.get(pid)
        if row is None:  # a damaged entry names no agent
            continue
        flow = Flow(level="agent", key=str(pid), parent=project_id or NO_PROJECT, weight=row[4], virtual_time=row[2])
        moves.append(_moved(flow, cost))
    project_rows = {row[0]: row for row in tx.run_for(sql.PROJECTS_OF, [name or NO_PROJECT for name in projects])}
    for project_id, cost in projects.items():
        name = project_id or NO_PROJECT
        _, virtual_time, clock, weight, _ = project_rows.get(name, (name, 0, 0, WEIGHT_UNIT, 0))
        moves.append(
            _moved(Flow(level="project", key=name, weight=weight, virtual_time=virtual_time, clock=clock), cost)
        )
    return moves


def _moved(flow: Flow, cost: int) -> FlowMove:
    virtual_time = _bounded(charged(flow.virtual_time, cost, flow.weight))
    return FlowMove(flow.level, flow.key, virtual_time, flow.clock, flow.parent or "")


def save_moves(tx: Transaction, moves: Iterable[FlowMove], *, event_id: int, served_at: float = 0.0) -> None:
    """Write moves that an event has recorded."""
    agents, projects = [], []
    for move in moves:
        if move.level == "agent":
            agents.append((int(move.key), move.parent, _bounded(move.virtual_time), served_at, event_id))
        else:
            projects.append((move.key, _bounded(move.virtual_time), _bounded(move.clock), event_id))
    if agents:
        tx.run_many(sql.AGENT_MOVE, sorted(agents))  # by pid: neighbours share pages
    if projects:
        tx.run_many(sql.PROJECT_MOVE, projects)


def save_served(tx: Transaction, served: ServedFlows, *, event_id: int, served_at: float) -> None:
    """Write what a pass did to flows."""
    if served.moves:
        save_moves(tx, served.moves, event_id=event_id, served_at=served_at)
    if served.agents:
        _mark_served(tx, served.agents, event_id=event_id, served_at=served_at)


def _mark_served(tx: Transaction, agents: Iterable[tuple[int, str | None]], *, event_id: int, served_at: float) -> None:
    """Store when these agents were last served, without moving them in virtual time."""
    rows = [(pid, project_id or NO_PROJECT, served_at, event_id) for pid, project_id in agents]
    tx.run_many(sql.AGENT_SERVED, sorted(rows))  # by pid: neighbours share pages


def mark_competing(tx: Transaction, entered: Collection[tuple[int, str]], left: Collection[int]) -> None:
    """Store which agents began to compete, with their projects, and which ceased to."""
    if entered:
        tx.run_many(sql.AGENT_ENTER, [(pid, project_id, 0) for pid, project_id in entered])
    if left:
        tx.run_many(sql.AGENT_LEAVE, [(pid,) for pid in left])


def _bounded(virtual_time: int) -> int:
    """Limit a virtual time to what a column can store."""
    return min(virtual_time, INTEGER_MAX)


def mark_ready(tx: Transaction, owners: Iterable[tuple[int, str | None]], *, event_id: int) -> None:
    """Mark agents that have entries which became ready again."""
    tx.run_many(sql.AGENT_TOUCH, [(pid, project_id or NO_PROJECT, event_id) for pid, project_id in owners])
