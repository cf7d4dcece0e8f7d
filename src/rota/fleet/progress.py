"""Progress reports of a run: the journal gets the newest one, at most one in `PAUSE_S`.

A function may report after every page it reads. The first report is recorded at once; one that follows too soon is kept
and recorded when the pause is over, unless a newer one has replaced it. A report is only for people: one that cannot be
recorded is lost, and the run goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from rota.clock import Clock
from rota.errors import InvalidPayload, RotaError
from rota.fault_log import FaultLog
from rota.host.watchdog import Watchdog
from rota.model.checks import NOTE_CHARS_MAX, Checks

__all__ = ["ProgressReports"]

PAUSE_S = 1.0
_checks = Checks("progress", InvalidPayload)


class ProgressReports:
    """The progress of one run. Any thread may report it."""

    def __init__(self, clock: Clock, watchdog: Watchdog, record: Callable[[float, str], None]) -> None:
        self._clock = clock
        self._watchdog = watchdog
        self._record = record
        self._faults = FaultLog("rota.fleet")
        self._lock = threading.Lock()
        self._recorded_at: float | None = None
        self._newest: tuple[float, str] | None = None  # not recorded yet
        self._timer: int | None = None

    def report(self, fraction: float, text: str = "") -> None:
        """Record a report now, or when the pause after the last one is over."""
        _checks.number("fraction", fraction, 0, 1)
        with self._lock:
            self._newest = float(fraction), str(text)[:NOTE_CHARS_MAX].encode("utf-8", "replace").decode()
            now = self._clock.monotonic()
            left_s = 0.0 if self._recorded_at is None else self._recorded_at + PAUSE_S - now
            if left_s > 0:
                if self._timer is None:
                    self._timer = self._watchdog.watch(left_s, self._flush)
                return
        self._flush()

    def close(self) -> None:
        """Record the last report: the run has ended."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            self._watchdog.cancel(timer)
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            newest, self._newest, self._timer = self._newest, None, None
            self._recorded_at = self._clock.monotonic()
        if newest is None:
            return
        try:
            self._record(*newest)
        except RotaError as problem:
            self._faults.failed("cannot record the progress of a run", problem)
        else:
            self._faults.worked()
