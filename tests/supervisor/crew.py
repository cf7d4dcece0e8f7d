"""A small world for the supervisor's tests: a store in memory, a clock moved by hand, functions as agents."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from rota import Rota
from rota.app import Job
from rota.clock import ManualClock
from rota.model.work import ReadyEntry

__all__ = ["PATIENCE_S", "START", "Crew"]

START = 1_000_000.0
PATIENCE_S = 20.0  # of the test itself, for what must happen; never how long something takes


class Crew:
    """A Rota whose time is moved by hand."""

    def __init__(self, **how: Any) -> None:
        self.clock = ManualClock(START)
        self.rota = Rota(clock=self.clock, **how)
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
        """Let the clock tick while something has not happened: the watch pauses between two looks."""
        for _ in range(int(PATIENCE_S * 100)):
            if holds():
                return
            self.clock.advance(0.2)
            self._moved.wait(0.01)
        raise AssertionError("it did not happen")

    def ended(self, job: Job) -> ReadyEntry:
        """The entry once it has ended."""
        self.until(lambda: job.entry().state == "completed")
        return job.entry()

    def facts(self, kind: str) -> list[dict[str, Any]]:
        return [event.payload for event in self.rota.desk.journal.tail(kinds=(kind,))]
