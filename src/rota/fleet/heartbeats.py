"""The watch: holds on to the claims, hears what is recorded, does what falls due. One thread.

It waits in the journal, not in a timer: it wakes when something is recorded, when a heartbeat is due, or when one of
its duties is. However much is recorded, it looks a few times a second at most, and only at the kinds of fact that
somebody here wants. A watch that has nothing to hold on to writes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from rota.errors import RotaError
from rota.fleet.live_run import LiveRun
from rota.kernel.journal import READ_MAX
from rota.model.events import CancelRequested, Event
from rota.service.api import Desk

__all__ = ["Duty", "Watch"]

LISTEN_PAUSE_S = 0.1  # between two looks at the journal
_log = logging.getLogger("rota.runtime")


class Duty(Protocol):
    """Something that is done beside the runs, on the watch's thread."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The facts it wants to hear of."""
        ...

    def hear(self, events: Sequence[Event]) -> None:
        """Facts were recorded; of other kinds too."""
        ...

    def next_at(self) -> float | None:
        """When it falls due; None if nothing does by time."""
        ...

    def due(self, now: float) -> None:
        """Its time has come."""
        ...


class Watch:
    """Watches over the runs of a supervisor."""

    def __init__(
        self, desk: Desk, heartbeat_s: float, runs: Callable[[], list[LiveRun]], duties: Sequence[Duty]
    ) -> None:
        self._desk = desk
        self._heartbeat_s = heartbeat_s
        self._runs = runs
        self._duties = duties
        self._kinds = tuple(sorted({CancelRequested.kind, *(kind for duty in duties for kind in duty.kinds)}))
        self._bell = threading.Condition()
        self._is_over = False
        self._seen = desk.journal.cursor()
        self._thread = threading.Thread(target=self._serve, name="rota-watch", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self, wake: Callable[[], None]) -> None:
        """End. `wake` records something, which is what the watch waits for."""
        with self._bell:
            self._is_over = True
            self._bell.notify_all()
        wake()
        self._thread.join()

    def _serve(self) -> None:
        beat_at = self._desk.clock.monotonic() + self._heartbeat_s
        while not self._is_over:
            try:
                cursor = self._desk.journal.wait(self._seen, self._until_due_s(beat_at))
                if self._desk.clock.monotonic() >= beat_at:
                    beat_at = self._desk.clock.monotonic() + self._heartbeat_s
                    self._beat()
                self._hear(cursor)
                self._do_duties()
            except RotaError as problem:
                _log.warning("the watch failed and goes on: %s", problem)
            except Exception:  # a duty's own fault: without the watch every claim would be lost
                _log.exception("the watch failed and goes on")
            with self._bell:
                if not self._is_over:
                    self._desk.clock.wait(self._bell, LISTEN_PAUSE_S)

    def _until_due_s(self, beat_at: float) -> float:
        dues = [at - self._desk.clock.now() for duty in self._duties if (at := duty.next_at()) is not None]
        return max(0.0, min([beat_at - self._desk.clock.monotonic(), *dues]))

    def _beat(self) -> None:
        """Hold on to every claim; a run whose claim was lost, or that shall stop, hears of it."""
        runs = self._runs()
        if not runs:
            return
        answers = self._desk.queue.heartbeat_many([(run.entry.sched_id, run.token) for run in runs])
        for run, answer in zip(runs, answers, strict=True):
            if not isinstance(answer, RotaError):
                if answer.cancel_requested:
                    run.stop("cancelled")
            elif any(run is other for other in self._runs()):  # else it has ended meanwhile, as runs do
                run.stop("fenced")

    def _hear(self, cursor: int) -> None:
        while self._seen < cursor:
            events = self._desk.journal.tail(self._seen, READ_MAX, kinds=self._kinds)
            self._stop_cancelled(events)
            for duty in self._duties:
                duty.hear(events)
            self._seen = cursor if len(events) < READ_MAX else events[-1].event_id

    def _stop_cancelled(self, events: Sequence[Event]) -> None:
        wanted = {
            sched_id
            for event in events
            if event.kind == CancelRequested.kind
            for sched_id in event.payload["sched_ids"]
        }
        for run in self._runs() if wanted else ():
            if run.entry.sched_id in wanted:
                run.stop("cancelled")

    def _do_duties(self) -> None:
        now = self._desk.clock.now()
        for duty in self._duties:
            if (at := duty.next_at()) is not None and at <= now:
                duty.due(now)
