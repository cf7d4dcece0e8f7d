"""A part of what a run has printed."""

from __future__ import annotations

import msgspec

__all__ = ["READ_BYTES", "LogPart"]

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
