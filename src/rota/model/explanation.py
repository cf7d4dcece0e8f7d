"""Why an entry is not running: what blocks it, which entries run first, and what would start it."""

from __future__ import annotations

from typing import Any

import msgspec

from rota.model.reasons import BlockingReason, OrderingReason

__all__ = ["EntryAhead", "Explanation", "HistoryStep", "StartEstimate", "Suggestion"]


class EntryAhead(msgspec.Struct, frozen=True):
    """An entry that runs first."""

    sched_id: int
    pid: int
    project_id: str | None
    score: str  # what decided, in the policy's terms


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

    Without any reason the claim returns the entry. Without a blocking reason an operator can force it.
    """

    sched_id: int
    pid: int
    state: str  # as that claim would find it
    cursor: int  # the last event of the journal at that time
    now: float
    worker_id: str
    max_n: int
    kinds: tuple[str, ...] = ()
    policy: str  # that the claim would use; strict, if another failed
    policy_source: str = ""  # where the policy name comes from
    blocking: tuple[BlockingReason, ...] = ()
    ordering: tuple[OrderingReason, ...] = ()
    position: int | None = None  # 1 is next; None: blocked, or behind every entry examined
    ahead: tuple[EntryAhead, ...] = ()  # the first few
    estimate: StartEstimate
    changes: tuple[Suggestion, ...] = ()  # all of them together would start it
    story: tuple[HistoryStep, ...] = ()
    story_is_whole: bool = True  # False: part of the journal was skipped or is pruned

    @property
    def starts(self) -> bool:
        """Whether that claim would return the entry."""
        return not self.blocking and not self.ordering
