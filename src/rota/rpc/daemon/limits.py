"""What the daemon puts up with. Each limit has a name, which is in the error that it gives."""

from __future__ import annotations

import msgspec

from rota.rpc.jsonrpc import BODY_BYTES_MAX

__all__ = ["Limits"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon's own limits; those of the wire (body, batch, nesting) and of an entry (payload) stand with them."""

    connections_max: int = 512  # on each transport
    head_bytes_max: int = 64 * 1024  # of a request's address and headers over HTTP
    pipeline_max: int = 64  # requests of one connection that are not answered yet; more are not read before some are
    answer_bytes_max: int = 64 * 1024 * 1024  # of one answer, or of all answers to a batch
    out_bytes_max: int = 2 * BODY_BYTES_MAX  # answers that one client has not fetched
    slow_s: float = 30.0  # how long a client may take to send one request, or to fetch what it was sent
    subscribers_max: int = 128  # at /events
    lag_events_max: int = 10_000  # how far a subscriber may fall behind
    heartbeat_s: float = 15.0  # between two signs of life at /events
    grace_s: float = 10.0  # for what is under way when the daemon stops
    failures_max: int = 3  # of authentication, from one address
    failures_s: float = 10.0  # in so long a time
    lockout_s: float = 60.0  # then nothing is heard from there
    addresses_max: int = 10_000  # whose failures are remembered
