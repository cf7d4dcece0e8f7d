"""Flows: what is owed to each project and each agent, durably.

A flow's virtual time is what it used divided by its weight (see policy/virtual_time). It moves when a run is
claimed under a policy that shares (by what the run is expected to use), when the run settles (by the
difference to what was measured) and when usage is charged without a run. A run that was neither estimated nor
measured moves nothing. Each move is written in the fact of the change that caused it.

Who has ready entries is not written down. The service keeps it in memory: it sees new entries by their ids, and
`touch` tells it of agents whose held or returned entries are ready again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from rota.model.budgets import Flow
from rota.model.checks import INTEGER_MAX
from rota.model.events import FlowMove
from rota.model.work import WEIGHT_UNIT
from rota.policy.virtual_time import charged
from rota.store import Transaction
from rota.store.statements import flows as sql

__all__ = ["NO_PROJECT", "Served", "after_cost", "save", "serve", "touch"]

_encode = msgspec.json.Encoder().encode
NO_PROJECT = ""  # the project of agents that have none


class Served(NamedTuple):
    """What a pass did for flows: those it moved, and the agents (with their projects) it served without moving them."""

    moves: Collection[FlowMove] = ()
    agents: Collection[tuple[int, str | None]] = ()


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
    stand = {row[0]: row for row in tx.run(sql.AGENTS_OF, (_json(agents),))}
    moves = []
    for pid, (project_id, cost) in agents.items():
        row = stand[pid]
        flow = Flow(level="agent", key=str(pid), parent=project_id or NO_PROJECT, weight=row[4], virtual_time=row[2])
        moves.append(_moved(flow, cost))
    groups = {row[0]: row for row in tx.run(sql.PROJECTS_OF, (_json(name or NO_PROJECT for name in projects),))}
    for project_id, cost in projects.items():
        name = project_id or NO_PROJECT
        _, virtual_time, clock, weight = groups.get(name, (name, 0, 0, WEIGHT_UNIT))
        moves.append(
            _moved(Flow(level="project", key=name, weight=weight, virtual_time=virtual_time, clock=clock), cost)
        )
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
        tx.run_many(sql.AGENT_MOVE, sorted(agents))  # by pid: neighbours share pages
    if projects:
        tx.run_many(sql.PROJECT_MOVE, projects)


def serve(tx: Transaction, agents: Iterable[tuple[int, str | None]], *, event_id: int, served_at: float) -> None:
    """Note when these agents were last served; in virtual time they stay where they are."""
    rows = [(pid, project_id or NO_PROJECT, served_at, event_id) for pid, project_id in agents]
    tx.run_many(sql.AGENT_SERVED, sorted(rows))  # by pid: neighbours share pages


def _json(values: Iterable[int | str]) -> str:
    return _encode(list(values)).decode()


def _bounded(virtual_time: int) -> int:
    """A flow that has used more than a row can count stands at the end of time."""
    return min(virtual_time, INTEGER_MAX)


def touch(tx: Transaction, owners: Iterable[tuple[int, str | None]], *, event_id: int) -> None:
    """Note that these agents have entries that are ready again."""
    tx.run_many(sql.AGENT_TOUCH, [(pid, project_id or NO_PROJECT, event_id) for pid, project_id in owners])
