"""The daemon looks from time to time for workers that vanished, and does what none of them does any more.

Workers look themselves whenever they renew their registration, and their claims and heartbeats do what is due. But if
all of them are gone, only the daemon is left to do it: their claims expire, entries pass their deadlines.
"""

from __future__ import annotations

import asyncio

from rota.errors import RotaError
from rota.fault_log import FaultLog
from rota.kernel import Kernel

__all__ = ["LOOK_EVERY_S", "watch_workers"]

LOOK_EVERY_S = 15.0


async def watch_workers(kernel: Kernel) -> None:
    """Remove workers that vanished, and do what workers leave undone, for as long as the daemon runs."""
    faults, looks = FaultLog("rota.daemon"), _Looks(kernel)
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            await asyncio.to_thread(looks.look)
        except RotaError as problem:  # of the store: the calls of clients get it too
            faults.failed("cannot look for lost workers", problem, then=f"trying every {LOOK_EVERY_S:g} s")
        else:
            faults.worked()


class _Looks:
    """What one look found, for the next one."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._was_due = False

    def look(self) -> None:
        """Do what was due at the last look and still is: workers that were asleep with this machine come first."""
        was_due, self._was_due = self._was_due, self._kernel.queue.is_due()
        if was_due and self._was_due:
            self._kernel.queue.upkeep()
        self._kernel.workers.remove_lost()
