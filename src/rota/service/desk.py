"""The desk: the calls a worker needs, whoever answers them.

An embedded service and a client of a daemon are both a desk, so a worker cannot tell them apart.
"""

from __future__ import annotations

from typing import Any, Protocol

from rota.model.work import ReadyEntry, ScheduleSpec

__all__ = ["Desk"]


class Desk(Protocol):
    """What a worker or a producer asks for."""

    def create_agent(self, name: str, template: str) -> int:
        """Make an agent; its pid is the answer."""
        ...

    def enqueue(self, spec: ScheduleSpec) -> int:
        """Put an entry into the queue."""
        ...

    def claim(self, worker_id: str, max_n: int = 1) -> list[ReadyEntry]:
        """Take the next entries."""
        ...

    def complete(self, sched_id: int, exit_kind: str, *, token: int | None = None, result: Any = None) -> None:
        """End a run."""
        ...

    def get(self, sched_id: int) -> ReadyEntry:
        """Look at an entry."""
        ...
