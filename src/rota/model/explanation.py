"""The answer to "why is it not running?": what stands in the way, who goes first, and what would change it."""

from __future__ import annotations

from typing import Any

import msgspec

from rota.model.reasons import BlockingReason, OrderingReason

__all__ = ["Ahead", "Change", "Estimate", "Explanation", "Step"]


class Ahead(msgspec.Struct, frozen=True):
    """An entry that goes first."""

    sched_id: int
    pid: int
    project_id: str | None
    score: str  # what decided, in the policy's words


class Estimate(msgspec.Struct, frozen=True):
    """When an entry may start, as far as anybody can say, and from what that was reckoned."""

    starts_at: float | None  # None: nobody can say
    basis: str


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that would help an entry start: a verb to call, or else something to wait for."""

    words: str
    verb: str | None = None  # of the kernel's parts: "agents.resume"
    arguments: dict[str, Any] = {}
    until_at: float | None = None  # waiting until then is enough


class Step(msgspec.Struct, frozen=True):
    """Something that happened to an entry, as the journal has it."""

    event_id: int
    at: float
    kind: str
    words: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why an entry is not running, true at one moment of the journal and for one claim.

    Without any reason that claim returns it. Without a blocking reason it can be forced.
    """

    sched_id: int
    pid: int
    state: str  # as that claim would find it
    cursor: int  # the last event of the journal when this was true
    now: float
    worker_id: str
    max_n: int
    kinds: tuple[str, ...] = ()
    policy: str  # by which the claim would choose; strict, if another failed
    policy_source: str = ""  # how that is known
    blocking: tuple[BlockingReason, ...] = ()
    ordering: tuple[OrderingReason, ...] = ()
    position: int | None = None  # 1 is next; None: blocked, or behind all that were looked at
    ahead: tuple[Ahead, ...] = ()  # the first few
    estimate: Estimate
    changes: tuple[Change, ...] = ()  # all of them together would start it
    story: tuple[Step, ...] = ()
    story_is_whole: bool = True  # False: some of the journal was skipped, or has been pruned

    @property
    def starts(self) -> bool:
        """Whether that claim would return it."""
        return not self.blocking and not self.ordering
