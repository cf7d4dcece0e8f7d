"""Parameters of the methods for events, access tokens and the daemon itself."""

from __future__ import annotations

from typing import Any

from rota.rpc.params import Params


class AppendEventParams(Params, frozen=True):
    """An event of the caller's own."""

    pid: int | None
    kind: str
    payload: dict[str, Any] | None = None
    causation_id: str | None = None
    correlation_id: str | None = None


class TailParams(Params, frozen=True):
    """The events after a cursor, and how long to wait while there are none."""

    since: int = 0
    limit: int = 1_000
    pid: int | None = None
    kinds: tuple[str, ...] = ()
    wait_s: float = 0.0


class RecordEventParams(Params, frozen=True):
    """An event about running work, by its kind."""

    kind: str
    payload: dict[str, Any]
    pid: int | None = None


class RememberParams(Params, frozen=True):
    """A note under a name."""

    name: str
    note: dict[str, Any]


class HelloParams(Params, frozen=True):
    """The client's protocol version and name."""

    protocol: int
    client: str = ""


class PruneParams(Params, frozen=True, kw_only=True):
    """The ages from which events and finished entries are removed."""

    events_older_than_s: float
    entries_older_than_s: float


class CreateTokenParams(Params, frozen=True):
    """A new token's scope, projects (null: all) and lifetime (null: unlimited)."""

    name: str
    scope: str
    projects: tuple[str, ...] | None = None
    expires_in_s: float | None = None


class TokenIdParams(Params, frozen=True):
    """A token, by its id."""

    token_id: str
