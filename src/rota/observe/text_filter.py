"""Which sentences about events a reader wants to see: by kind, agent, project, or only what is worth a sentence."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

import msgspec

from rota.model.events import Event
from rota.observe.event_text import EventText
from rota.observe.run_names import RunNames

__all__ = ["TextFilter", "project_named"]

_PROJECT_FIELDS = ("project_id", "owner", "key")


class TextFilter(msgspec.Struct, frozen=True, kw_only=True):
    """What a sentence must be about to be shown; by default everything but what happens by the thousand."""

    kind: str | None = None  # a pattern: kernel.sched.*
    pid: int | None = None
    project_id: str | None = None
    everything: bool = False  # also sentences of the tone `detail`

    def wants(
        self, event: Event, text: EventText, names: RunNames, find: Callable[[int], int | None] = lambda _id: None
    ) -> bool:
        """Return whether a sentence is shown; `find` returns the agent of an entry that `names` does not know."""
        if text.tone == "detail" and not self.everything:
            return False
        if self.kind is not None and not fnmatchcase(event.kind, self.kind):
            return False
        if self.pid is None and self.project_id is None:
            return True
        pid = find(text.sched_id) if text.pid is None and text.sched_id is not None else text.pid
        if self.pid is not None and pid != self.pid:
            return False
        return self.project_id is None or self.project_id in (names.project_of(pid), project_named(event))


def project_named(event: Event) -> str | None:
    """Return the project that an event is about without an agent."""
    payload = event.payload
    if payload.get("level", "project") != "project":
        return None
    return next((payload[field] for field in _PROJECT_FIELDS if isinstance(payload.get(field), str)), None)
