"""Why an entry is not running: what blocks it, which entries run first, and what would start it."""

from __future__ import annotations

from typing import Any

import msgspec

from rota.model.entry_status import EntryStatus
from rota.model.graph_places import GraphNode
from rota.model.reasons import UNATTENDED, BlockingReason, CoresRefused, OrderingReason, WorkerReason

__all__ = [
    "EntryAhead",
    "Explanation",
    "ExplanationSummary",
    "HistoryStep",
    "ReasonCount",
    "StartEstimate",
    "Suggestion",
]


class EntryAhead(msgspec.Struct, frozen=True):
    """An entry that runs first."""

    sched_id: int
    pid: int
    project_id: str | None
    score: str  # what decided, in the policy's terms
    agent: str = ""  # its agent's name


class StartEstimate(msgspec.Struct, frozen=True):
    """When an entry may start, and what the estimate is based on."""

    starts_at: float | None  # None: unknown
    basis: str


class Suggestion(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change that would help an entry start: a kernel call, or something to wait for."""

    words: str
    verb: str | None = None  # a kernel call, such as "agents.resume"
    arguments: dict[str, Any] = {}
    until_at: float | None = None  # waiting until then is enough


class HistoryStep(msgspec.Struct, frozen=True):
    """An event of an entry's history, from the journal."""

    event_id: int
    at: float
    kind: str
    words: str
    author: str = ""  # of the event


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why one claim would not return an entry, as of one event of the journal.

    Without any reason the claim returns the entry. Without a blocking reason an operator can force it. Whether a worker
    is there to make such a claim is another question, which `workers` answers.
    """

    sched_id: int
    pid: int
    agent: str = ""  # its name
    state: str  # as that claim would find it
    status: EntryStatus = "ready"  # the same, as people see it
    cursor: int  # the last event of the journal at that time
    now: float
    worker_id: str
    max_n: int
    kinds: tuple[str, ...] = ()
    policy: str  # that the claim would use; strict, if another failed
    policy_source: str = ""  # where the policy name comes from
    blocking: tuple[BlockingReason, ...] = ()
    ordering: tuple[OrderingReason, ...] = ()
    workers: WorkerReason | None = None  # why no worker would claim it now, or that nothing is heard of its own
    position: int | None = None  # 1 is next; None: blocked, or behind every entry examined
    ahead: tuple[EntryAhead, ...] = ()  # the first few
    estimate: StartEstimate
    claim_expired_at: float | None = None  # when the claim of its run expired, which that claim would take back
    changes: tuple[Suggestion, ...] = ()  # all of them together would start it
    graph: GraphNode | None = None  # its place in a graph run
    story: tuple[HistoryStep, ...] = ()
    story_is_whole: bool = True  # False: part of the journal was skipped or is pruned

    @property
    def starts(self) -> bool:
        """Whether that claim would return the entry."""
        return not self.blocking and not self.ordering

    @property
    def start(self) -> StartEstimate:
        """When it starts: the estimate of the claim, or unknown while a missing worker or a host is in its way."""
        if isinstance(self.workers, CoresRefused):  # its time is only that of the next attempt
            return StartEstimate(None, self.workers.sentence())
        if self.workers is not None and isinstance(self.workers, UNATTENDED) and not self.blocking:
            return StartEstimate(None, self.workers.sentence())
        return self.estimate


class ReasonCount(msgspec.Struct, frozen=True):
    """How many of the examined entries wait for one reason, with one of them as an example."""

    reason: BlockingReason | WorkerReason | None  # of the example; None: nothing blocks it and a worker can claim it
    count: int
    sched_id: int  # the example
    pid: int
    agent: str = ""


class ExplanationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Why the entries of an agent, of a project or of the whole store wait, as of one event of the journal."""

    cursor: int
    now: float
    waiting: int  # entries that wait for time, a predecessor, a back-off or a worker
    ready: int  # the other queued entries
    running: int
    examined: int  # queued entries that the reasons were counted for
    is_whole: bool  # whether these are all of them
    reasons: tuple[ReasonCount, ...] = ()  # most frequent first
