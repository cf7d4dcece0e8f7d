"""What travels along an edge, and where it came from.

A publication becomes one `Message` on each edge that leads away from the port. All messages of one invocation share an
`Origin`: the epoch they were published in, when, and what caused them. Ids are made of facts that are there anyway and
are written out only when somebody reads them:

    id           "<edge>#<number>": the n-th message offered to this edge, from 1
    causation    the id of the message whose arrival made the publisher run
    correlation  the id of the first message of the chain, kept all the way down

    sensor ─e1→ filter ─e2→ motor      e1#1 is a root: it correlates with itself
                                       e2#1 was caused by e1#1 and correlates with e1#1
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

__all__ = ["Inputs", "Message", "Origin", "origin_of"]


class Origin(msgspec.Struct, gc=False):
    """The invocation a message came from."""

    epoch_id: int
    published_at_s: float  # by the run's monotonic clock
    correlation: str | None = None  # None: the messages are roots
    cause_channel: str | None = None
    cause_number: int = 0

    @property
    def causation_id(self) -> str:
        """The message that made the publisher run; empty for a root."""
        return "" if self.cause_channel is None else f"{self.cause_channel}#{self.cause_number}"


class Message(msgspec.Struct):
    """One payload on one edge."""

    payload: Any
    channel_id: str
    number: int
    origin: Origin
    timestamp_ms: float | None = None  # event time, in the edge's timestamp domain
    deadline_missed: bool = False

    @property
    def id(self) -> str:
        """The message's name in this run."""
        return f"{self.channel_id}#{self.number}"

    @property
    def epoch_id(self) -> int:
        """The epoch it was published in."""
        return self.origin.epoch_id

    @property
    def causation_id(self) -> str:
        """The message that caused it; empty for a root."""
        return self.origin.causation_id

    @property
    def correlation_id(self) -> str:
        """The root of its chain; a root names itself."""
        return self.origin.correlation or self.id


# What one invocation is given: for each channel of the component, in order, a message, a batch of them, or nothing.
Inputs: TypeAlias = tuple[Message | tuple[Message, ...] | None, ...]


def origin_of(inputs: Inputs, epoch_id: int, at_s: float) -> Origin:
    """The origin of what an invocation publishes: caused by the first message it was given, if any."""
    for given in inputs:
        if given:
            cause = given[-1] if type(given) is tuple else given
            return Origin(epoch_id, at_s, cause.correlation_id, cause.channel_id, cause.number)  # type: ignore[union-attr]
    return Origin(epoch_id, at_s)
