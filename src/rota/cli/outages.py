"""What a command prints while its store is away, and how it waits for an entry meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from rota.cli.terminal_text import say

if TYPE_CHECKING:
    from rota.clock import Clock
    from rota.errors import StoreUnavailable
    from rota.model import ReadyEntry
    from rota.service import SchedulerApi

__all__ = ["call_and_say_outage", "wait_for_end"]

T = TypeVar("T")


def call_and_say_outage(
    clock: Clock,
    call: Callable[[], T],
    gives_up: Callable[[], bool] = lambda: False,
    *,
    limit_s: float | None = None,
    repeats: bool = False,
    prefix: str = "",
) -> T:
    """Call as `call_through_outage` does; print once that the store is away, and once that it is there again."""
    from rota.service import call_through_outage

    was_away = False

    def say_away(problem: StoreUnavailable) -> None:
        nonlocal was_away
        was_away = True
        say(f"{prefix}{problem.message}; waiting for it", err=True)

    value = call_through_outage(clock, call, gives_up, limit_s=limit_s, repeats=repeats, say=say_away)
    if was_away:
        say(f"{prefix}connected again", err=True)
    return value


def wait_for_end(api: SchedulerApi, sched_id: int, wait_s: float) -> ReadyEntry:
    """Wait for an entry to end and return it, also if the store is away meanwhile; raises `WaitTimeout`."""
    give_up_at = api.clock.monotonic() + wait_s

    def wait() -> ReadyEntry:
        return api.queue.wait(sched_id, max(0.0, give_up_at - api.clock.monotonic()))

    return call_and_say_outage(api.clock, wait, limit_s=wait_s, repeats=True)
