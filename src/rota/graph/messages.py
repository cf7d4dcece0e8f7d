"""The messages that edges carry, and where each message came from.

A publication becomes one `Message` on each edge that leaves the port. All messages of one invocation share an `Origin`:
the epoch in which they were published, the time, and the message that caused them. Ids are built from fields that the
message has anyway, and only when they are read:

    id           "<edge>#<number>": the n-th message offered to this edge, counted from 1
    causation    the id of the message whose arrival made the publisher run
    correlation  the id of the first message of the chain, passed on unchanged

    sensor ─e1→ filter ─e2→ motor      e1#1 is a root: its correlation id is its own id
                                       e2#1 was caused by e1#1 and has the correlation id e1#1
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

__all__ = ["Inputs", "Message", "Origin", "origin_of"]


class Origin(msgspec.Struct, gc=False):
    """The invocation that published a message."""

    epoch_id: int
    published_at_s: float  # on the run's monotonic clock
    correlation: str | None = None  # None: the messages are roots
    cause_channel: str | None = None
    cause_number: int = 0

    @property
    def causation_id(self) -> str:
        """The id of the message that made the publisher run; empty for a root."""
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
        """The message's id, unique in its run."""
        return f"{self.channel_id}#{self.number}"

    @property
    def epoch_id(self) -> int:
        """The epoch in which the message was published."""
        return self.origin.epoch_id

    @property
    def causation_id(self) -> str:
        """The id of the message that caused this one; empty for a root."""
        return self.origin.causation_id

    @property
    def correlation_id(self) -> str:
        """The id of the first message of the chain; for a root its own id."""
        return self.origin.correlation or self.id


# The inputs of one invocation: for each channel of the component, in order, a message, a batch of messages, or None.
Inputs: TypeAlias = tuple[Message | tuple[Message, ...] | None, ...]


def origin_of(inputs: Inputs, epoch_id: int, at_s: float) -> Origin:
    """Return the origin of an invocation's publications; the cause is the first message among its inputs, if any."""
    for given in inputs:
        if given:
            cause = given[-1] if type(given) is tuple else given
            return Origin(epoch_id, at_s, cause.correlation_id, cause.channel_id, cause.number)  # type: ignore[union-attr]
    return Origin(epoch_id, at_s)
