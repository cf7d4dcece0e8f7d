"""The desk: the calls a worker needs, whoever answers them.

An embedded service and a client of a daemon are both a desk, so a worker cannot tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from rota.errors import RotaError
from rota.kernel.asks import Beat, Completion, Turnover
from rota.model.work import ReadyEntry, ScheduleSpec

__all__ = ["Desk"]


class Desk(Protocol):
    """What a worker or a producer asks for."""

    def create_agent(self, name: str, template: str, **settings: Any) -> int:
        """Make an agent; its pid is the answer."""
        ...

    def enqueue(self, spec: ScheduleSpec) -> int:
        """Put an entry into the queue."""
        ...

    def enqueue_many(self, specs: Sequence[ScheduleSpec]) -> list[int]:
        """Put many entries into the queue: all or none."""
        ...

    def claim(
        self,
        worker_id: str,
        max_n: int = 1,
        *,
        wait_s: float = 0.0,
        claim_timeout_s: float = ...,
        incarnation: str = "",
        kinds: Sequence[str] = (),
    ) -> list[ReadyEntry]:
        """Take the next entries; while there are none, wait up to `wait_s`."""
        ...

    def heartbeat(self, sched_id: int, token: int) -> Beat:
        """Hold on to a claim."""
        ...

    def complete(
        self,
        sched_id: int,
        exit_kind: str,
        *,
        token: int | None = None,
        result: Any = None,
        outcome: str | None = None,
    ) -> tuple[str, str]:
        """End a run; the answer is (state before, state after)."""
        ...

    def complete_many(self, completions: Sequence[Completion]) -> list[tuple[str, str] | RotaError]:
        """End many runs in one commit; one that is refused has its error in its place."""
        ...

    def complete_and_claim(
        self,
        completions: Sequence[Completion],
        worker_id: str,
        max_n: int = 1,
        *,
        wait_s: float = 0.0,
        claim_timeout_s: float = ...,
        incarnation: str = "",
        kinds: Sequence[str] = (),
    ) -> Turnover:
        """End runs and take the next entries in one commit."""
        ...

    def get(self, sched_id: int) -> ReadyEntry:
        """Look at an entry."""
        ...

    def wait(self, sched_id: int, wait_s: float) -> ReadyEntry:
        """The entry once it has ended."""
        ...
