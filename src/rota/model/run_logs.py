"""A part of what a run has printed."""

from __future__ import annotations

import msgspec

__all__ = ["READ_BYTES", "LogPart", "LogPlace"]

READ_BYTES = 256 * 1024  # of a part, unless more or less is asked for


class LogPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the log of one attempt. Offsets count the bytes that the run has printed, kept or not."""

    sched_id: int
    attempt: int
    attempts: int  # that the entry has begun so far
    offset: int  # of the first byte of `data`; more than was asked for, if the bytes between were dropped
    data: bytes  # empty at the end
    total_bytes: int  # that were printed so far
    dropped_bytes: int  # of them, that were not kept
    ended: bool  # the attempt has ended: nothing more is printed


class LogPlace(msgspec.Struct, frozen=True):
    """A host that keeps a log, of a store that many hosts share."""

    host: str
    is_here: bool  # what `read` returns comes from it
    daemon: str | None = None  # the address at which its daemon serves the store; None: none is known
