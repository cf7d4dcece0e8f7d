"""What is known about each worktree, in a file beside it, and the lock on it.

    FOLDER/.rota/entry-12.json    whose it is and how far it was made; written before git starts, so that a worktree
                                  that was half made when the supervisor was killed is recognized and made again
    FOLDER/.rota/entry-12.lock    locked while a run uses the worktree or it is being removed

The record is a fact of the disk and not of the store: a worktree exists on one machine only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from rota.decoding import decode_json
from rota.model.worktrees import WorktreeSettings
from rota.store import create_private
from rota.store.private_files import make_private_folder, open_private

__all__ = ["WorktreeRecord", "locked", "read_record", "records_in", "remove_record", "write_record"]

LOCK_WAIT_S = 120.0  # for a run that has lost its claim and is still being stopped
_LOCK_PAUSE_S = 0.05
_FOLDER = ".rota"


class WorktreeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about one worktree."""

    path: str
    settings: WorktreeSettings
    state: Literal["creating", "created", "ready"]  # ready: its setup has run
    workspace_id: str
    pid: int  # the agent
    sched_id: int | None = None  # the entry that used it last
    branch: str | None = None  # the branch that was made for that entry
    kept: str | None = None  # why it is kept after the entry's end
    kept_at: float | None = None


def _file(path: str, suffix: str) -> Path:
    folder, name = os.path.split(path)
    return Path(folder, _FOLDER, f"{name}.{suffix}")


def read_record(path: str) -> WorktreeRecord | None:
    """Return the record of the worktree at a path; None if there is none, or it cannot be read."""
    try:
        return decode_json(_file(path, "json").read_bytes(), WorktreeRecord)
    except (OSError, msgspec.DecodeError):
        return None


def write_record(record: WorktreeRecord) -> WorktreeRecord:
    """Write a record, atomically."""
    file = _file(record.path, "json")
    part = file.with_suffix(".part")
    part.unlink(missing_ok=True)
    with os.fdopen(create_private(part), "wb") as opened:
        opened.write(msgspec.json.encode(record))
    part.replace(file)
    return record


def remove_record(path: str) -> None:
    """Remove the record and the lock of a worktree that is gone. Call it with the lock."""
    for suffix in ("json", "lock"):
        _file(path, suffix).unlink(missing_ok=True)


def records_in(folder: str) -> list[WorktreeRecord]:
    """Return the records of the worktrees in a folder."""
    names = sorted(Path(folder, _FOLDER).glob("*.json"))
    found = (read_record(str(Path(folder, name.stem))) for name in names)
    return [record for record in found if record is not None]


@contextlib.contextmanager
def locked(path: str, pause: Callable[[float], bool] | None = None) -> Iterator[bool]:
    """Hold the lock of a worktree; yields whether it was obtained. Without `pause` it does not wait for it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    os.close(make_private_folder(_file(path, "lock").parent))
    descriptor = open_private(_file(path, "lock"))
    try:
        yield _obtain(descriptor, pause)
    finally:
        os.close(descriptor)


def _obtain(descriptor: int, pause: Callable[[float], bool] | None) -> bool:
    waited_s = 0.0
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if pause is None or waited_s >= LOCK_WAIT_S or pause(_LOCK_PAUSE_S):
                return False
            waited_s += _LOCK_PAUSE_S
        else:
            return True
