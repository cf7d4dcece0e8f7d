"""What the runners of one supervisor share: the clock, the reaper process, the machine's control groups.

The reaper and the control groups are created on first use, so that a fleet of plain functions starts no process.
"""

from __future__ import annotations

import logging
import threading

from rota.clock import Clock, SystemClock
from rota.host.cgroups import Cgroups
from rota.host.lineage import kill_orphans
from rota.host.reaper_client import ReaperClient

__all__ = ["RunnerResources"]

_log = logging.getLogger("rota.fleet")


class RunnerResources:
    """Shared by the runners of one supervisor. A context manager; closing it kills every command."""

    def __init__(self, clock: Clock | None = None, *, echo: bool = False) -> None:
        self.clock = clock or SystemClock()
        self.echo = echo  # whether what functions print is also written to standard output
        self._lock = threading.Lock()
        self._reaper: ReaperClient | None = None
        self._cgroups: Cgroups | None = None

    @property
    def reaper(self) -> ReaperClient:
        """The reaper that starts every command. A lost one is replaced."""
        with self._lock:
            if self._reaper is None or self._reaper.is_lost:
                if self._reaper is None and (orphans := kill_orphans()):
                    _log.warning("killed %s orphaned processes of a supervisor that crashed", len(orphans))
                self._reaper = ReaperClient(clock=self.clock)
            return self._reaper

    @property
    def cgroups(self) -> Cgroups:
        """The control groups that this machine supports."""
        with self._lock:
            if self._cgroups is None:
                self._cgroups = Cgroups()
            return self._cgroups

    def close(self) -> None:
        """Kill every command that runs, and end the reaper."""
        with self._lock:
            reaper, self._reaper = self._reaper, None
        if reaper is not None:
            reaper.close()

    def __enter__(self) -> RunnerResources:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
