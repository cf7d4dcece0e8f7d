"""What a supervisor did, and what it leaves: how many entries completed or failed, and what still waits for what."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["RunAdvisory", "RunSummary", "StillWaiting", "WaitKind"]

# retry: a back-off · delayed: a time, or a budget's window · limit: a refill · worker: its affinity worker
# after: a predecessor · running: it runs at another worker · quarantined: its agent, after repeated failures
# blocked: nothing that happens by itself lets it run
WaitKind = Literal["retry", "delayed", "limit", "worker", "after", "running", "quarantined", "blocked"]


class StillWaiting(msgspec.Struct, frozen=True, kw_only=True):
    """Entries of one agent that have not ended."""

    agent: str
    pid: int
    count: int
    sched_id: int  # the first of them
    kind: WaitKind
    why: str
    until_at: float | None = None  # in epoch seconds; None: unknown, or it does not end by itself

    def __str__(self) -> str:
        """Return it as text, without the time."""
        entries = f"entry {self.sched_id}" if self.count == 1 else f"{self.count:,} entries from {self.sched_id} on"
        return f"{self.agent}: {entries}: {self.why}"


class RunAdvisory(msgspec.Struct, frozen=True, kw_only=True):
    """A warning of an agent's runs: something configured had no effect."""

    agent: str
    text: str
    count: int  # of runs
    sched_id: int  # the first of them

    def __str__(self) -> str:
        """Return it as one line."""
        runs = f"#{self.sched_id}" if self.count == 1 else f"{self.count:,} runs from #{self.sched_id} on"
        return f"{self.agent} {runs}: {self.text}" if self.count == 1 else f"{self.agent}, {runs}: {self.text}"


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor did. An entry that was retried counts once, by how it ended; `runs` counts each attempt."""

    runs: int = 0
    completed: int = 0
    failed: int = 0  # failed or crashed, and not retried again
    last_failed: int | None = None  # the entry id of one of them
    cancelled: int = 0
    expired: int = 0  # on this store meanwhile: their deadline passed before they could run
    waiting: tuple[StillWaiting, ...] = ()  # with `until_idle`: what is left
    advisories: tuple[RunAdvisory, ...] = ()  # what runs warned about

    @property
    def blocked(self) -> tuple[StillWaiting, ...]:
        """What is left and cannot run unless something is changed, or its agent stops failing."""
        return tuple(each for each in self.waiting if each.kind in ("blocked", "quarantined"))

    @property
    def ok(self) -> bool:
        """Whether everything that ended completed, and everything that is left can still run."""
        return not (self.failed or self.expired or self.blocked)

    def __str__(self) -> str:
        """Return it as one line."""
        counts = {name: getattr(self, name) for name in ("completed", "failed", "cancelled", "expired")}
        shown = [f"{count:,} {name}" for name, count in counts.items() if count or name == "completed"]
        left = sum(each.count for each in self.waiting)
        waiting = f"; {left:,} still waiting" if left else ""
        return f"{self.runs:,} run{'' if self.runs == 1 else 's'} ended: {', '.join(shown)}{waiting}"
