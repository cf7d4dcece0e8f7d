"""The manual_step lane: the host says when its components run, and they run on the host's own thread.

For work that must happen in a certain place: the thread of a user interface, a test that goes step by step. Each step
is a turn of the lane. A host with little time executes a few invocations per step; the others wait, by priority, and
nobody waits for ever (see `queue` on aging).
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from rota.errors import GraphRunFailed
from rota.graph.lanes.independent import IndependentLane
from rota.graph.reports import RunStopped

__all__ = ["ManualLane"]


class ManualLane(IndependentLane):
    """An independent lane that the host advances."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._one_host = threading.Lock()
        self._host: int | None = None  # the thread that steps, while it does
        self._is_closed = False

    def step(self, invocations_max: int | None = None) -> int:
        """Execute what is ready, at most so many invocations; returns how many there were."""
        if self._host == threading.get_ident():
            raise GraphRunFailed(
                f"a component on lane {self.lane.id} stepped its own lane", hint="Only the host steps a lane."
            )
        with self._one_host:
            self._host = threading.get_ident()
            try:
                return 0 if self._is_closed else self._step(invocations_max)
            finally:
                self._host = None
                self.coroutines.close()  # the next step may come from another thread

    def close(self) -> None:
        """The run is over: wait for the step under way, and give up the rest."""
        with self._one_host:
            self._is_closed = True
            self.give_up()

    def _step(self, invocations_max: int | None) -> int:
        taken, before = 0, self.executed
        with self.lock:
            self.begin_turn()
        self.meter.tick_count += 1
        with contextlib.suppress(RunStopped):  # the failure is recorded, and the run looks for it
            while (invocations_max is None or taken < invocations_max) and self.run_next():
                taken += 1
        return self.executed - before
