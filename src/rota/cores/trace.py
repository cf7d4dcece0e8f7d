"""A trace of the engine: every event and its decisions, as lines, the latest of them kept.

An engine without a trace pays nothing for it: tracing wraps the engine's handlers, and where there is none they
are called directly. Lines are JSON, so that a file of them can be read by anything; `bytes_max` bounds what is
kept, the oldest goes first, and `Evidence.trace_bytes` counts everything that was ever written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from rota.cores.events import Decision
from rota.cores.evidence import Evidence

__all__ = ["TRACE_BYTES_MAX", "Trace"]

TRACE_BYTES_MAX = 16 * 1024 * 1024
Handler = Callable[[Any, int], Sequence[Decision]]


class Trace:
    """The latest events and decisions of one engine."""

    def __init__(self, bytes_max: int = TRACE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept_bytes = 0
        self._lines: deque[bytes] = deque()
        self._encode = msgspec.json.Encoder().encode

    def lines(self) -> list[bytes]:
        """What is kept, oldest first."""
        return list(self._lines)

    def around(self, handlers: Mapping[type, Handler], evidence: Evidence) -> dict[type, Handler]:
        """The same handlers, each of which writes down what it was told and what it said."""
        return {kind: self._traced(kind.__name__, handler, evidence) for kind, handler in handlers.items()}

    def note(self, now: int, name: str, event: object, decisions: Sequence[Decision]) -> int:
        """Write down what an engine was told and what it said; the answer is how many bytes that took."""
        said = [[type(decision).__name__, decision] for decision in decisions]
        return self._write(self._encode([now, name, event, said]))

    def _traced(self, name: str, handler: Handler, evidence: Evidence) -> Handler:
        def traced(event: Any, now: int) -> Sequence[Decision]:
            decisions = handler(event, now)
            evidence.trace_bytes += self.note(now, name, event, decisions)
            return decisions

        return traced

    def _write(self, line: bytes) -> int:
        self._lines.append(line)
        self._kept_bytes += len(line)
        while self._kept_bytes > self._bytes_max:
            self._kept_bytes -= len(self._lines.popleft())
        return len(line)
