"""What a program is told about its run by its environment.

ROTA_SCHED_ID ROTA_ATTEMPT ROTA_TOKEN    the idempotency key
ROTA_AGENT                               the agent's name
ROTA_DEADLINE                            epoch seconds; not set if there is none
ROTA_REMAINING_TOKENS, …                 what was left of each budget when the run began
ROTA_PAYLOAD                             the payload as JSON, if it is short
ROTA_CHECKPOINT                          what the last attempt saved: as JSON (it begins with a brace) if it is
                                         short, else the path of a file that has it
"""

from __future__ import annotations

import os
import re

import msgspec

from rota.fleet.runners.contract import Assignment

__all__ = ["CHECKPOINT_FD", "INLINE_BYTES_MAX", "facts", "in_memory", "long_checkpoint"]

INLINE_BYTES_MAX = 32 * 1024  # of one value: a kernel takes 128 KiB
CHECKPOINT_FD = 3  # where a long checkpoint is found
_NOT_A_NAME = re.compile(r"[^A-Z0-9_]")


def facts(work: Assignment) -> dict[str, str]:
    """The variables of one run, the payload excepted."""
    entry = work.entry
    told = {
        "ROTA_SCHED_ID": str(entry.sched_id),
        "ROTA_ATTEMPT": str(entry.attempt),
        "ROTA_TOKEN": str(entry.token),
        "ROTA_AGENT": work.agent.name,
    }
    if entry.deadline is not None:
        told["ROTA_DEADLINE"] = repr(entry.deadline)
    for dim, amount in work.remaining.items():
        told[f"ROTA_REMAINING_{_NOT_A_NAME.sub('_', dim.upper())}"] = str(amount)
    if work.checkpoint is not None:
        saved = msgspec.json.encode(work.checkpoint)
        short = len(saved) <= INLINE_BYTES_MAX
        told["ROTA_CHECKPOINT"] = saved.decode() if short else f"/dev/fd/{CHECKPOINT_FD}"
    return told


def long_checkpoint(work: Assignment) -> bytes | None:
    """A checkpoint that does not fit into a variable."""
    if work.checkpoint is None:
        return None
    saved = msgspec.json.encode(work.checkpoint)
    return saved if len(saved) > INLINE_BYTES_MAX else None


def in_memory(data: bytes) -> int:
    """A descriptor of a file with this in it, to be read from the start. It never blocks whoever fills or reads it."""
    fd = os.memfd_create("rota")
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
