"""Results of the methods for events, access tokens and the daemon itself."""

from __future__ import annotations

from typing import Any

import msgspec

from rota.kernel.retention import PruneResult
from rota.model.events import Event
from rota.rpc.results import ResultCodec, many_fields


class AppendEventResult(msgspec.Struct, frozen=True):
    """The new event."""

    event_id: int


class NoteResult(msgspec.Struct, frozen=True):
    """The note stored under a name, or null."""

    note: dict[str, Any] | None


class CursorResult(msgspec.Struct, frozen=True):
    """The id of the last event."""

    cursor: int


class EventsResult(msgspec.Struct, frozen=True):
    """Events, oldest first, and the cursor to continue from."""

    events: list[Event]
    next_cursor: int


EVENTS = ResultCodec(
    EventsResult,
    lambda params, events: EventsResult(events, events[-1].event_id if events else params.since),
    lambda result: result.events,
)


class HelloResult(msgspec.Struct, frozen=True):
    """The server's versions and policy, and the caller's rights."""

    rota_version: str
    protocol: int
    store: str
    policy: str
    caller: str
    scope: str
    projects: tuple[str, ...] | None = None


class PrunedRows(msgspec.Struct, frozen=True):
    """The number of removed rows, and the checkpoint before them."""

    events: int
    entries: int
    checkpoint_id: int


PRUNE = many_fields(PrunedRows, PruneResult)


class CheckpointResult(msgspec.Struct, frozen=True):
    """The last event that the checkpoint covers."""

    through_id: int


class TokenLine(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret."""

    token_id: str
    name: str
    scope: str
    projects: tuple[str, ...] | None = None
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None


class CreateTokenResult(msgspec.Struct, frozen=True):
    """A token with its secret, which is shown only once."""

    token: str
    line: TokenLine


class TokenListResult(msgspec.Struct, frozen=True):
    """All tokens, without their secrets."""

    tokens: list[TokenLine]
