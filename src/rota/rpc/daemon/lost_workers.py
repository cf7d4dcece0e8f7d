"""The daemon looks from time to time for workers that vanished.

Workers look themselves whenever they renew their registration. But if all of them are gone, only the daemon is left to
record it.
"""

from __future__ import annotations

import asyncio

from rota.errors import RotaError
from rota.fault_log import FaultLog
from rota.kernel import Kernel

__all__ = ["LOOK_EVERY_S", "watch_workers"]

LOOK_EVERY_S = 15.0


async def watch_workers(kernel: Kernel) -> None:
    """Remove workers that vanished, for as long as the daemon runs."""
    faults = FaultLog("rota.daemon")
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            await asyncio.to_thread(kernel.workers.remove_lost)
        except RotaError as problem:  # of the store: the calls of clients get it too
            faults.failed("cannot look for lost workers", problem, then=f"trying every {LOOK_EVERY_S:g} s")
        else:
            faults.worked()
