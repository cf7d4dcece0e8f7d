"""Graph runs whose coordinator ended before them: a background task of the supervisor ends them.

A coordinator may be cancelled by its id, end with its agent, or crash too often. Then nothing in the run acts any more,
while entries that it has enqueued would go on and spend.
"""

from __future__ import annotations

from collections.abc import Sequence

from rota.model.events import EntriesCancelled, Event, ProcessTerminated, RunEnded
from rota.service.api import SchedulerApi

__all__ = ["TIDY_S", "GraphTidy"]

TIDY_S = 60.0  # how often it looks, besides when an entry was cancelled or a run did not succeed


class GraphTidy:
    """Ends graph runs that have lost their coordinator."""

    kinds = (EntriesCancelled.kind, ProcessTerminated.kind, RunEnded.kind)

    def __init__(self, api: SchedulerApi) -> None:
        self._api = api
        self._due_at = 0.0  # on the advancing clock

    def on_events(self, events: Sequence[Event]) -> None:
        """Look again after events that may have ended a coordinator."""
        if any(event.kind in self.kinds and event.payload.get("exit_kind") != "completed" for event in events):
            self._due_at = 0.0

    def due_in_s(self) -> float | None:
        """Return how long until it looks again."""
        return max(0.0, self._due_at - self._api.clock.monotonic())

    def on_due(self) -> None:
        """End the runs that have lost their coordinator."""
        self._due_at = self._api.clock.monotonic() + TIDY_S
        self._api.graphs.tidy()
