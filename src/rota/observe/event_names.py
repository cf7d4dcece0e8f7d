"""The names and parts from which sentences about events are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from rota.model.events import Event, EventData

__all__ = ["About", "Describers", "EntityNames", "FailedRun", "Line", "TextTone", "by_author", "readable"]

# quiet: for the live view and `rota tail`, not for a log; detail: for `rota tail --all` only
TextTone: TypeAlias = Literal["detail", "quiet", "plain", "good", "warn", "bad"]
Line: TypeAlias = tuple[TextTone, str] | tuple[TextTone, str, "About"]


class About(NamedTuple):
    """The entry that a sentence is about, and its agent if the event says so."""

    sched_id: int
    pid: int | None = None


class FailedRun(NamedTuple):
    """What is known about a run that failed; 0: unknown."""

    attempt: int = 0
    max_attempts: int = 0
    error: str | None = None


class EntityNames(Protocol):
    """The names of agents and runs in the sentences."""

    def agent(self, pid: int | None) -> str:
        """The name of an agent."""
        ...

    def run(self, sched_id: int) -> str:
        """The run of an entry: the name of its agent and the id of the entry."""
        ...

    def agent_of(self, sched_id: int) -> int | None:
        """The pid of the agent of a run, if it is known."""
        ...

    def why(self, sched_id: int, reason: str | None) -> str:
        """The outcome of a run that did not succeed."""
        ...

    def failed_run(self, sched_id: int) -> FailedRun:
        """The attempt that failed and its error, as far as known."""
        ...

    def run_details(self, sched_id: int, at: float) -> str:
        """How long it ran and what stopped it, as far as known."""
        ...


Describers: TypeAlias = Mapping[type[EventData], Callable[[Any, Event, EntityNames], Iterable[Line]]]


def readable(outcome: str) -> str:
    """Return a stored word as words."""
    return outcome.replace("_", " ")


def by_author(event: Event) -> str:
    """Return who did it, as the end of a sentence."""
    return f" by {event.author}" if event.author else ""
