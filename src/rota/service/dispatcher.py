"""The dispatcher: snapshot, policy, verified claim.

Strict order needs no snapshot: it is one statement of the kernel.
"""

from __future__ import annotations

from typing import Any

from rota.kernel import Kernel
from rota.model.work import ReadyEntry, ScheduleSpec
from rota.policy.contract import Policy
from rota.policy.registry import make

__all__ = ["Dispatcher"]


class Dispatcher:
    """A desk over an embedded kernel."""

    def __init__(self, kernel: Kernel, policy: Policy | None = None) -> None:
        self._kernel = kernel
        self.policy = policy or make("strict")

    def create_agent(self, name: str, template: str) -> int:
        """Make an agent; its pid is the answer."""
        return self._kernel.agents.create(name, template)

    def enqueue(self, spec: ScheduleSpec) -> int:
        """Put an entry into the queue."""
        return self._kernel.queue.enqueue(spec)

    def claim(self, worker_id: str, max_n: int = 1) -> list[ReadyEntry]:
        """Take the next entries."""
        return self._kernel.queue.claim(worker_id=worker_id, max_n=max_n)

    def complete(self, sched_id: int, exit_kind: str, *, token: int | None = None, result: Any = None) -> None:
        """End a run."""
        self._kernel.queue.complete(sched_id, exit_kind, token=token, result=result)

    def get(self, sched_id: int) -> ReadyEntry:
        """Look at an entry."""
        return self._kernel.queue.get(sched_id)
