"""What a command says while its store is away, and how it waits for an entry meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.cli.terminal_text import say

if TYPE_CHECKING:
    from rota.errors import StoreUnavailable
    from rota.model import ReadyEntry
    from rota.service import SchedulerApi

__all__ = ["Outage", "wait_for_end"]


class Outage:
    """Says once that the store is away, and once that it is there again."""

    def __init__(self) -> None:
        self.has_begun = False

    def begin(self, problem: StoreUnavailable) -> None:
        """The store cannot be reached."""
        self.has_begun = True
        say(f"{problem.message}; waiting for it", err=True)

    def end(self) -> None:
        """It can."""
        if self.has_begun:
            say("connected again", err=True)


def wait_for_end(api: SchedulerApi, sched_id: int, wait_s: float) -> ReadyEntry:
    """Wait for an entry to end and return it, also if the store is away meanwhile; raises `WaitTimeout`."""
    from rota.service import call_through_outage

    give_up_at = api.clock.monotonic() + wait_s
    outage = Outage()

    def wait() -> ReadyEntry:
        left_s = max(0.0, give_up_at - api.clock.monotonic()) if outage.has_begun else wait_s
        return api.queue.wait(sched_id, left_s)

    entry = call_through_outage(api.clock, wait, lambda: False, limit_s=wait_s, repeats=True, say=outage.begin)
    outage.end()
    return entry
