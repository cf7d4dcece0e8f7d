"""What the engine records about itself: counters, and an optional trace of every event and its decisions.

Every counter is *permanent* (exact, and part of what rota promises) or *diagnostic* (it explains where time went, may
change between versions, and no decision reads it: a test overwrites all of them and expects the same decisions).
`LABELS` maps each counter to its kind.

    counter               kind          counts
    picks                 permanent     times a core chose what to run
    idles                 permanent     picks that found nothing to run
    preemptions           permanent     entities stopped while they could have continued
    steals                permanent     entities taken by an idle core
    migrations            permanent     entities moved to balance cores, or off a core where they may not be
    reschedules           permanent     requests to another core to choose again
    depletions            permanent     contexts that ran out while their entity could have continued
    timeouts              permanent     timeout notices posted for such contexts
    misses                permanent     activations that ended after their deadline
    affinity_broken       permanent     entities placed outside their mask because no core in it was available
    stale_orders          permanent     updates of the policy service dropped because of their epoch
    fallbacks             permanent     times the policy service was lost, and the engine's own rule applied
    looks                 diagnostic    heap entries inspected by picks, beyond the one that was taken
    reschedules_merged    diagnostic    requests to a core that already had one pending
    ticks                 diagnostic    tick events
    ticks_early           diagnostic    ticks that came before the slice ended and changed nothing
    steals_tried          diagnostic    queues that idle cores looked into
    timeouts_merged       diagnostic    notices added to one that was not acknowledged yet
    trace_bytes           diagnostic    bytes of trace written

**The trace** wraps the engine's handlers; an engine without a trace calls them directly and pays nothing. Each line is
JSON: the instant, the event's name, the event, and its decisions. The trace keeps the latest `bytes_max` bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from rota.cores.events import Decision, trace_name

__all__ = ["LABELS", "TRACE_BYTES_MAX", "Counters", "EngineTrace"]

Label = Literal["permanent", "diagnostic"]

LABELS: Mapping[str, Label] = {
    **dict.fromkeys(
        (
            "picks",
            "idles",
            "preemptions",
            "steals",
            "migrations",
            "reschedules",
            "depletions",
            "timeouts",
            "misses",
            "affinity_broken",
            "stale_orders",
            "fallbacks",
        ),
        "permanent",
    ),
    **dict.fromkeys(
        ("looks", "reschedules_merged", "ticks", "ticks_early", "steals_tried", "timeouts_merged", "trace_bytes"),
        "diagnostic",
    ),
}

TRACE_BYTES_MAX = 16 * 1024 * 1024
Handler = Callable[[Any, int], Sequence[Decision]]


class Counters:
    """The counters of one engine. They only grow."""

    __slots__ = tuple(LABELS)

    picks: int
    idles: int
    preemptions: int
    steals: int
    migrations: int
    reschedules: int
    depletions: int
    timeouts: int
    misses: int
    affinity_broken: int
    stale_orders: int
    fallbacks: int
    looks: int
    reschedules_merged: int
    ticks: int
    ticks_early: int
    steals_tried: int
    timeouts_merged: int
    trace_bytes: int

    def __init__(self) -> None:
        for name in LABELS:
            setattr(self, name, 0)

    def as_dict(self) -> dict[str, int]:
        """Every counter by name."""
        return {name: getattr(self, name) for name in LABELS}


class EngineTrace:
    """The latest events and decisions of one engine, as JSON lines."""

    def __init__(self, bytes_max: int = TRACE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept_bytes = 0
        self._lines: deque[bytes] = deque()
        self._encode = msgspec.json.Encoder().encode

    def lines(self) -> list[bytes]:
        """The kept lines, oldest first."""
        return list(self._lines)

    def wrap(self, handlers: Mapping[type, Handler], counters: Counters) -> dict[type, Handler]:
        """Return the same handlers, each of which also writes its event and decisions to the trace."""
        return {kind: self._traced(handler, counters) for kind, handler in handlers.items()}

    def write(self, now: int, event: object, decisions: Sequence[Decision]) -> int:
        """Append one event and its decisions; return the length of the line in bytes."""
        named = [[trace_name(type(decision)), decision] for decision in decisions]
        line = self._encode([now, trace_name(type(event)), event, named])
        self._lines.append(line)
        self._kept_bytes += len(line)
        while self._kept_bytes > self._bytes_max:
            self._kept_bytes -= len(self._lines.popleft())
        return len(line)

    def _traced(self, handler: Handler, counters: Counters) -> Handler:
        def traced(event: Any, now: int) -> Sequence[Decision]:
            decisions = handler(event, now)
            counters.trace_bytes += self.write(now, event, decisions)
            return decisions

        return traced
