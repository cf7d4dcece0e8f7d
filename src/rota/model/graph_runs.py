"""Graph runs as rows: their states, and what callers are told about them.

A graph run that the product executes has a *coordinator*: an entry of the agent that has the graph's name. A run of a
program that executes its graph itself (`rota graph run` without agents, `RuntimeRunner`) has none.

    running    its coordinator runs, or may run as soon as a slot is free; without one: some process has taken it
    waiting    nothing can happen before an entry ends or a time comes; `waits` says what it waits for
    succeeded, failed, cancelled    it has ended; a failed or cancelled one can be resumed from its checkpoint
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from rota.lazy import late
from rota.model.graph_budgets import GraphBudgetLine
from rota.model.work import ATTEMPTS_MAX, Backoff, RestartPolicy

if TYPE_CHECKING:
    from rota.model import agent_settings
    from rota.model.agent_settings import AgentSettings
else:
    agent_settings = late("rota.model.agent_settings")  # for those that start runs

__all__ = [
    "BUDGETS_KEY",
    "DOCUMENT_KEY",
    "ENDED",
    "LIVE",
    "NODE_STATES",
    "RUNNER",
    "STATUSES",
    "TEMPLATE",
    "GraphCancellation",
    "GraphNodeReport",
    "GraphRun",
    "GraphRunInfo",
    "GraphRunReport",
    "GraphRunStatus",
    "NodeState",
    "coordinator_settings",
    "new_run_id",
]

RUNNER = "graph"  # the runner of coordinators
TEMPLATE = "graph"  # of the agents that are graphs
DOCUMENT_KEY = "graph"  # in the metadata of an agent that is a graph of a fleet file: its document
BUDGETS_KEY = "graph_budgets"  # in the same place: the budgets of a run, under the empty name, and of its nodes

GRAPH_CHARS_SHOWN = 40  # of a graph's name in the name of a run that was given none
RUN_ID_BYTES = 4  # random ones, in such a name

GraphRunStatus: TypeAlias = Literal["running", "waiting", "succeeded", "failed", "cancelled"]
STATUSES: tuple[GraphRunStatus, ...] = ("running", "waiting", "succeeded", "failed", "cancelled")
LIVE: tuple[GraphRunStatus, ...] = ("running", "waiting")
ENDED: tuple[GraphRunStatus, ...] = ("succeeded", "failed", "cancelled")

NodeState: TypeAlias = Literal["pending", "waiting", "ready", "running", "succeeded", "failed", "cancelled"]
NODE_STATES: tuple[NodeState, ...] = ("pending", "waiting", "ready", "running", "succeeded", "failed", "cancelled")

# A supervisor that dies is no fault of the graph: its coordinator is tried again, and soon.
_BACKOFF = Backoff(base_s=0.5, factor=1.0, cap_s=0.5)


class GraphRunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A graph run, without its document and its checkpoint."""

    run_id: str
    graph: str
    pid: int  # the agent of the graph: its coordinator is an entry of it
    project_id: str | None = None
    status: GraphRunStatus = "running"
    sched_id: int | None = None  # the coordinator; None: a process executes the run itself
    next_epoch_id: int = 1
    inputs: dict[str, Any] = {}
    budget: dict[str, int] = {}  # the most that all of its entries may use, per dimension
    waits: str | None = None  # what a waiting run waits for
    waits_since: float | None = None
    result: Any = None  # left out of a list
    error: str | None = None
    started_at: float = 0.0
    updated_at: float = 0.0
    ended_at: float | None = None
    resumes: int = 0  # how often it was resumed after it had ended
    unreadable: str | None = None  # which stored columns cannot be read, and why


class GraphRun(GraphRunInfo, frozen=True, kw_only=True):
    """A graph run as its coordinator takes it."""

    fence: int  # the id of the event of taking it: only its holder may write
    document: dict[str, Any] | None = None  # None: the process that started the run has the graph
    checkpoint: bytes | None = None  # None: nothing was committed yet


class GraphNodeReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node of a graph run."""

    node: str
    state: NodeState
    agent: str | None = None  # None: it runs in the coordinator
    epoch_id: int | None = None  # of its newest entry
    entries: dict[str, int] = {}  # how many of its entries have which status
    newest: tuple[int, ...] = ()  # ids of its newest entries, at most `NEWEST_MAX`
    since: float | None = None  # when the newest one was created, started or ended
    usage: dict[str, int] = {}


class GraphRunReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one graph run."""

    run: GraphRunInfo
    document: dict[str, Any] | None = None
    nodes: tuple[GraphNodeReport, ...] = ()
    waits_for: tuple[int, ...] = ()  # entries that have not ended, oldest first, at most `NEWEST_MAX`
    usage: dict[str, int] = {}
    coordinator: str | None = None  # the status of the coordinator's entry; None: there is none, or it was pruned
    budgets: tuple[GraphBudgetLine, ...] = ()  # of the run and of its nodes


class GraphCancellation(msgspec.Struct, frozen=True, kw_only=True):
    """What cancelling a graph run did."""

    run: GraphRunInfo
    cancelled: int = 0  # entries that were queued
    stopped: int = 0  # entries that run and were asked to stop
    left: int = 0  # entries that still run, and end by themselves


def new_run_id(graph: str) -> str:
    """Return a name for a run of a graph that was given none."""
    return f"{graph[:GRAPH_CHARS_SHOWN]}-{os.urandom(RUN_ID_BYTES).hex()}"


def coordinator_settings(inputs: dict[str, Any] | None = None) -> AgentSettings:
    """Return the settings of an agent that is a graph; the inputs are the defaults of its runs."""
    return agent_settings.AgentSettings(
        runner=RUNNER,
        payload=inputs or {},
        max_attempts=ATTEMPTS_MAX,
        restart=RestartPolicy(when="on_crash", backoff=_BACKOFF, quarantine_after=0),
    )
