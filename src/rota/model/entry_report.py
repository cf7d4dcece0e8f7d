"""What people read about entries beyond their rows: those that run, and everything about one of them."""

from __future__ import annotations

import msgspec

from rota.model.entry_status import EntryStatus
from rota.model.explanation import HistoryStep
from rota.model.graph_places import GraphNode
from rota.model.work import ReadyEntry

__all__ = [
    "AttemptReport",
    "EntryReport",
    "GraphNode",
    "LimitUse",
    "RelatedEntry",
    "RunProgress",
    "RunningEntry",
]


class RunProgress(msgspec.Struct, frozen=True):
    """How far a run is, as it reported last."""

    fraction: float  # from 0 to 1
    text: str
    at: float


class LimitUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has acquired from a limit, or waits for there."""

    name: str
    amounts: dict[str, int]
    asked_at: float
    granted_at: float | None = None  # None: it waits


class RunningEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that runs now."""

    entry: ReadyEntry
    agent: str  # its name
    progress: RunProgress | None = None
    waits_for: tuple[LimitUse, ...] = ()


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One claim of an entry and the run that followed. A run that yields or is preempted counts no attempt."""

    attempt: int
    worker_id: str | None = None
    claimed_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None  # None: it runs, or the journal does not say
    slot: str | None = None
    runner: str | None = None
    os_pid: int | None = None
    node: str | None = None  # of a cluster
    host: str | None = None  # that keeps its log, of a store that many hosts share
    workspace: str | None = None
    ended: str | None = None  # completed, failed, crashed, cancelled; or retry, reclaim, preempt, yield
    exit_kind: str | None = None
    outcome: str | None = None
    stopped_by: str | None = None
    wall_ms: int | None = None
    cpu_ms: int | None = None
    usage: dict[str, int] = {}  # charged by this run
    error: str | None = None
    error_type: str | None = None
    traceback: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    output_tail: str | None = None  # the end of what it printed
    advisories: tuple[str, ...] = ()  # what of its settings is not enforced as it reads
    enforced: tuple[str, ...] = ()  # what of its `cpu` settings is enforced, and how


class RelatedEntry(msgspec.Struct, frozen=True):
    """Another entry: a parent, a child, a predecessor."""

    sched_id: int
    pid: int
    agent: str  # its name
    status: EntryStatus
    project_id: str | None = None


class EntryReport(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one entry, as of one event of the journal."""

    entry: ReadyEntry
    agent: str  # its name
    project: str | None = None  # its project's name
    now: float
    cursor: int  # the last event of the journal at that time
    attempts: tuple[AttemptReport, ...] = ()  # oldest first
    usage: dict[str, int] = {}  # charged by all of its runs
    not_retried: str | None = None  # why it was not tried again
    progress: RunProgress | None = None  # of the live run
    limits: tuple[LimitUse, ...] = ()  # of the live run
    workspace_path: str | None = None
    lent: dict[str, int] = {}  # the budget that its parent lent it
    parent: RelatedEntry | None = None
    children: tuple[RelatedEntry, ...] = ()
    children_are_complete: bool = True  # False: there are more
    after: tuple[RelatedEntry, ...] = ()  # its predecessors
    after_gone: tuple[int, ...] = ()  # predecessors that were pruned
    graph: GraphNode | None = None
    history: tuple[HistoryStep, ...] = ()
    history_is_complete: bool = True  # False: part of the journal was skipped or is pruned

    @property
    def advisories(self) -> tuple[str, ...]:
        """What the runs were told, each once."""
        return tuple(dict.fromkeys(each for attempt in self.attempts for each in attempt.advisories))
