"""A fixture for supervisor tests: a store in memory, a manual clock, functions as agents."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rota import Rota
from rota.app import Job
from rota.clock import ManualClock
from rota.model.work import ReadyEntry

__all__ = ["PATIENCE_S", "START", "World"]

START = 1_000_000.0
PATIENCE_S = 20.0  # how long a test waits for what must happen


class World:
    """A Rota with a manual clock."""

    def __init__(self, **options: Any) -> None:
        self.clock = ManualClock(START)
        self.rota = Rota(clock=self.clock, **options)
        self._moved = threading.Event()

    def close(self) -> None:
        self.rota.close()

    def run_in_background(self, **settings: Any) -> threading.Thread:
        """Run until stopped, on another thread."""
        thread = threading.Thread(target=lambda: self.rota.run(**settings), daemon=True)
        thread.start()
        return thread

    def stop(self, running: threading.Thread) -> None:
        self.rota.stop()
        running.join(PATIENCE_S)
        assert not running.is_alive()

    def until(self, holds: Callable[[], bool]) -> None:
        """Advance the clock until a condition holds: the background thread pauses between two reads of the journal."""
        for _ in range(int(PATIENCE_S * 100)):
            if holds():
                return
            self.clock.advance(0.2)
            self._moved.wait(0.01)
        raise AssertionError("it did not happen")

    def ended(self, job: Job) -> ReadyEntry:
        """Wait until the entry has ended and return it."""
        self.until(lambda: job.entry().state == "completed")
        return job.entry()

    def facts(self, kind: str) -> list[dict[str, Any]]:
        return [event.payload for event in self.rota.api.journal.tail(kinds=(kind,))]
