"""How events are stored: encode, decode, and read older versions.

The fields of an event type may change: raise its `version`, and add to `UPGRADES` a function from the old payload to
the new one. Stored rows are never rewritten; they are upgraded when they are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from rota.decoding import convert
from rota.errors import InvalidPayload, StoreCorrupt
from rota.lazy import late
from rota.model.checks import PAYLOAD_BYTES_MAX, Checks, check_finite
from rota.model.events import EVENT_TYPES, RESERVED_PREFIX, EventData, RunCheckpointed

if TYPE_CHECKING:
    import hashlib
else:
    hashlib = late("hashlib")

__all__ = ["UPGRADES", "check_user_event", "decode", "encode", "run_checkpointed"]

_encoder = msgspec.json.Encoder()
_event = Checks("Event", InvalidPayload)


def run_checkpointed(sched_id: int, token: int, body: bytes) -> RunCheckpointed:
    """Return the event of a checkpoint, given as JSON: its size and its digest, not the checkpoint."""
    digest = hashlib.blake2b(body, digest_size=16).hexdigest()
    return RunCheckpointed(sched_id=sched_id, token=token, size_bytes=len(body), digest=digest)


def _without_checkpoint(old: dict[str, Any]) -> dict[str, Any]:
    """Upgrade a `RunCheckpointed` of version 1, which has the checkpoint itself."""
    event = run_checkpointed(0, 0, _encoder.encode(old.get("state", {})))
    kept = {name: value for name, value in old.items() if name != "state"}
    return {**kept, "size_bytes": event.size_bytes, "digest": event.digest}


UPGRADES: dict[tuple[str, int], Callable[[dict[str, Any]], dict[str, Any]]] = {
    (RunCheckpointed.kind, 1): _without_checkpoint,
}


def encode(data: EventData) -> bytes:
    """Return the payload to store; the kind has its own column."""
    body = _encoder.encode(data)
    if data.version == 1:
        return body
    return b'{"v":%d%s%s' % (data.version, b"" if body == b"{}" else b",", body[1:])


def decode(kind: str, payload: dict[str, Any]) -> EventData:
    """Return the typed data of a stored payload, upgraded to its current version."""
    event_type = EVENT_TYPES.get(kind)
    if event_type is None:
        raise StoreCorrupt(f"the journal has an event of unknown kind {kind}", kind=kind)
    version = payload.get("v", 1)
    body = {name: value for name, value in payload.items() if name != "v"}
    if not isinstance(version, int) or version > event_type.version:
        raise StoreCorrupt(f"{kind} version {version!r} was written by a newer rota", kind=kind, version=version)
    try:
        while version < event_type.version:
            body = UPGRADES[kind, version](body)
            version += 1
        return convert(body, event_type)
    except (msgspec.ValidationError, KeyError, TypeError) as problem:
        raise StoreCorrupt(f"a stored {kind} cannot be read: {problem}", kind=kind) from problem


def check_user_event(kind: str, payload: dict[str, Any]) -> bytes:
    """Check and encode a user's event: any kind without the reserved prefix, any JSON below the size limit."""
    _event.name("kind", kind)
    if kind.startswith(RESERVED_PREFIX):
        raise _event.refuse("kind", f"must not begin with {RESERVED_PREFIX!r}: these are rota's own events")
    _event.mapping("payload", payload)
    try:
        body = _encoder.encode(payload)
        check_finite(payload, body)
    except (TypeError, ValueError) as problem:
        raise _event.refuse("payload", f"is not JSON: {problem}") from problem
    if len(body) > PAYLOAD_BYTES_MAX:
        raise _event.refuse("payload", f"is {len(body):,} bytes; the maximum is {PAYLOAD_BYTES_MAX:,}")
    return body
