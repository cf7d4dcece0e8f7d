"""The queue: every entry, and every method on entries and their runs.

Each method is one transaction that also writes its event. The queue decides whether an entry may run; in strict order
(priority, then runnable_at, then id) it also selects the first ones itself. Any other order comes from a policy, which
the service applies to the same claim pass.
"""

from __future__ import annotations

from rota.kernel.affinity import AffinitySettings
from rota.kernel.bulk import BulkChanges
from rota.kernel.claims import Claims
from rota.kernel.enqueue import Enqueuing
from rota.kernel.environment import KernelEnvironment

__all__ = ["Queue"]


class Queue(Enqueuing, BulkChanges, Claims, AffinitySettings):
    """All methods of the queue."""

    def __init__(self, env: KernelEnvironment) -> None:
        Enqueuing.__init__(self, env)
        Claims.__init__(self, env)
