"""Agents whose workers are gone, when a daemon starts.

An agent is RUNNING or WAITING while a worker runs it. If the worker died, perhaps with the daemon, nothing moves the
agent on. So a daemon that starts suspends the agents that have no live claim. Some may have one whose worker is gone:
they are suspended when that claim is taken back, unless they have changed by then, which shows that a worker is there.
Agents that begin to run later are their worker's business: between two claims a worker may well hold an agent RUNNING.
"""

from __future__ import annotations

import asyncio
import logging

from rota.errors import RotaError
from rota.fault_log import FaultLog
from rota.kernel import Kernel

__all__ = ["LOOK_EVERY_S", "AgentRecovery"]

LOOK_EVERY_S = 15.0  # between two looks at the claims that were live at the start
_log = logging.getLogger("rota.daemon")


class AgentRecovery:
    """Suspends the agents that ran when the daemon started and whose workers are gone."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._watched = kernel.agents.interrupted()

    def look(self) -> bool:
        """Suspend agents without a claim; returns whether there are any left to watch."""
        agents = self._kernel.agents
        if self._watched:
            recovered = agents.recover_idle(self._watched)
            if recovered:
                _log.info("suspended %d agents whose workers are gone: %s", len(recovered), recovered[:20])
            unchanged = agents.interrupted().items() & self._watched.items()
            self._watched = dict(unchanged)
        return bool(self._watched)

    async def watch(self) -> None:
        """Look from time to time, until none is left."""
        more, faults = True, FaultLog("rota.daemon")
        while more:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                more = await asyncio.to_thread(self.look)
            except RotaError as problem:  # of the store: the calls of clients get it too
                faults.failed("cannot recover agents", problem, then=f"trying every {LOOK_EVERY_S:g} s")
            else:
                faults.worked()
