"""The daemon looks from time to time for workers that vanished, and does what is due while none of them claims.

Workers look themselves whenever they renew their registration, and their claims do what is due. But if all of them are
gone, or all of their slots are taken, only the daemon is left to do it: claims expire, entries pass their deadlines.
"""

from __future__ import annotations

import asyncio

from rota.errors import RotaError
from rota.fault_log import FaultLog
from rota.kernel import Kernel

__all__ = ["LOOK_EVERY_S", "watch_workers", "welcome_workers"]

LOOK_EVERY_S = 15.0
ASLEEP_S = 5.0  # a look that is later than this: the machine was asleep, and workers have not extended their claims yet


def welcome_workers(kernel: Kernel) -> None:
    """Do what became due while no daemon ran; workers whose claims have expired meanwhile first extend them."""
    if kernel.queue.run_due(reclaims=False):
        kernel.env.returning.begin()


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
        self._had_expired = False  # claims had expired
        self._looked_at = kernel.clock.monotonic()

    def look(self) -> None:
        """Do what is due. Claims are taken back if claims had expired at the last look, too.

        So the heartbeats of workers that were asleep with this machine come first.
        """
        last_at, self._looked_at = self._looked_at, self._kernel.clock.monotonic()
        was_asleep = self._looked_at - last_at > LOOK_EVERY_S + ASLEEP_S
        if was_asleep:
            self._kernel.env.returning.begin()
        reclaims, self._had_expired = self._had_expired and not was_asleep, False
        self._had_expired = self._kernel.queue.run_due(reclaims=reclaims)
        self._kernel.workers.remove_lost()
