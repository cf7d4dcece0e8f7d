"""What the runners of one supervisor share: the clock, one minder, the control groups of the machine.

Each is made when it is first asked for, so that a fleet of plain functions starts no process at all.
"""

from __future__ import annotations

import logging
import threading

from rota.clock import Clock, SystemClock
from rota.host.cgroups import Cgroups
from rota.host.orphans import end_strays
from rota.host.reaper_client import Minder

__all__ = ["Workshop"]

_log = logging.getLogger("rota.runtime")


class Workshop:
    """Shared by the runners of one supervisor. Use it as a context; closing it ends every command."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self._making = threading.Lock()
        self._minder: Minder | None = None
        self._cgroups: Cgroups | None = None

    @property
    def minder(self) -> Minder:
        """The minder that starts every command. If it was lost, the next one takes its place."""
        with self._making:
            if self._minder is None or self._minder.is_lost:
                if self._minder is None and (strays := end_strays()):
                    _log.warning("ended %s processes that a crash had left behind", len(strays))
                self._minder = Minder(clock=self.clock)
            return self._minder

    @property
    def cgroups(self) -> Cgroups:
        """The control groups, as far as this machine gives them."""
        with self._making:
            if self._cgroups is None:
                self._cgroups = Cgroups()
            return self._cgroups

    def close(self) -> None:
        """End every command that runs, and the minder."""
        with self._making:
            minder, self._minder = self._minder, None
        if minder is not None:
            minder.close()

    def __enter__(self) -> Workshop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
