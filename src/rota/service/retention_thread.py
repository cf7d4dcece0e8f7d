"""The thread on which a daemon or a supervisor removes old rows from its store (kernel/automatic_retention.py).

It belongs to a process that has the file itself: a supervisor at a daemon leaves it to the daemon. A store in memory
ends with its process and keeps everything. Pauses and looks are measured on the machine's own clock, because they only
decide how soon other writers get their turn.
"""

from __future__ import annotations

import logging
import threading
import uuid

from rota.fault_log import FaultLog
from rota.kernel import Kernel
from rota.kernel.automatic_retention import LOOK_S
from rota.store.author import MAINTENANCE, acting_as

__all__ = ["RetentionThread"]

FAILED_S = 60.0  # how long it waits after an error of the store
_log = logging.getLogger("rota.retention")


class RetentionThread:
    """Looks from time to time, until it is closed."""

    def __init__(self, kernel: Kernel, first_after_s: float = 0.0) -> None:
        """`first_after_s` is how long it waits before the first look; a short run needs it at once, a daemon later."""
        self._first_after_s = first_after_s
        self._kernel = kernel
        self._holder = uuid.uuid4().hex
        self._faults = FaultLog("rota.retention")
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="rota-retention", daemon=True)

    def start(self) -> None:
        """Start the thread, unless the store is in memory."""
        if self._kernel.store.host_path is not None:
            self._thread.start()

    def close(self) -> None:
        """End it after its current step."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _serve(self) -> None:
        wait_s = self._first_after_s
        with acting_as(MAINTENANCE):
            while not self._closing.wait(wait_s):
                wait_s = self._look()

    def _look(self) -> float:
        """Do what is due; return how long until the next look."""
        try:
            removed = self._kernel.retention.keep(self._holder, lambda pause_s: not self._closing.wait(pause_s))
            if removed is not None and (removed.entries or removed.events):
                _log.info("removed %s finished entries and %s events", removed.entries, removed.events)
            due_in_s = self._kernel.retention.due_in_s()
        except Exception as problem:  # a defect here must not end what this process is for
            self._faults.failed("cannot remove old rows", problem, then=f"trying every {FAILED_S:g} s")
            return FAILED_S
        self._faults.worked()
        return min(LOOK_S, max(1.0, due_in_s))
