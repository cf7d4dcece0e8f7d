"""Layer 1: the durable kernel. It decides whether an entry may run, never which."""

from __future__ import annotations

from rota.clock import Clock, SystemClock
from rota.errors import IllegalQueueTransition, SchedIllegalTransition, SchedInvalidPayload, SchedUnknownId
from rota.kernel.agents import Agents
from rota.kernel.journal import Journal
from rota.kernel.queue import Queue
from rota.model.work import ReadyEntry, ScheduleSpec
from rota.store import Store

__all__ = [
    "IllegalQueueTransition",
    "Kernel",
    "ReadyEntry",
    "SchedIllegalTransition",
    "SchedInvalidPayload",
    "SchedUnknownId",
    "ScheduleSpec",
]


class Kernel:
    """The kernel's parts over one store and one clock."""

    def __init__(self, store: Store, clock: Clock | None = None) -> None:
        self.store = store
        self.clock = clock or SystemClock()
        self.journal = Journal(store)
        self.agents = Agents(store, self.clock)
        self.queue = Queue(store, self.clock)
