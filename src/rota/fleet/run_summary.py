"""What a supervisor did, and what it leaves: how many entries completed or failed, and what still waits for what."""

from __future__ import annotations

from typing import Literal

import msgspec

__all__ = ["RunSummary", "StillWaiting", "WaitKind"]

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


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor did. An entry that was retried counts once, by how it ended; `runs` counts each attempt."""

    runs: int = 0
    completed: int = 0
    failed: int = 0  # failed or crashed, and not retried again
    cancelled: int = 0
    expired: int = 0  # on this store meanwhile: their deadline passed before they could run
    waiting: tuple[StillWaiting, ...] = ()  # with `until_idle`: what is left

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
        return f"{self.runs:,} runs ended: {', '.join(shown)}" + (f"; {left:,} still waiting" if left else "")
