"""The queue: one place where every "this agent should run" is written down.

Each verb is one transaction with its fact in it. The queue decides whether an entry may run; in strict order
(priority, then time, then id) it also hands out the first ones itself. Any other order is a policy's, through the
service, over the same pass.
"""

from __future__ import annotations

from rota.kernel.core import Core
from rota.kernel.enqueue import Intake
from rota.kernel.results import Results
from rota.kernel.runs import Runs

__all__ = ["Queue"]


class Queue(Intake, Runs):
    """Every verb of the queue: entries that wait, and runs of them."""

    def __init__(self, core: Core) -> None:
        results = Results(core.store, core.clock)
        Intake.__init__(self, core, results)
        Runs.__init__(self, core, results)
