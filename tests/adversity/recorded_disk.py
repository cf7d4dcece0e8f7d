"""A disk that records what SQLite writes, and what such a disk may hold after a power cut.

SQLite reaches files through a *VFS*. `RecordedDisk` is one that passes every call on and notes each write, truncation,
deletion and sync. A power cut may come after any of these operations. What the disk holds then:

- everything that was done to a file before its last sync, and deletions before the last sync of the folder; SQLite
  syncs the folder with the first sync of a log or a rollback journal that it has created
- of what was done after it, any selection: each operation happened, or did not, or only in some of its sectors, in any
  order. A file that was deleted and created again is the old one or the new one

`after_power_cut` draws one such state; a test draws many of them.

A VFS in Python cannot share memory between connections, so a store on this disk has a single connection, in exclusive
locking mode, which also reads. What it writes to the file and to its log, and when it syncs, is the same.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeVar

import apsw

from rota.store import Transaction
from rota.store.sqlite import SqliteStore

__all__ = ["AloneStore", "Operation", "RecordedDisk", "after_power_cut"]

SECTOR_BYTES = 512  # written whole or not at all
T = TypeVar("T")


class Operation(NamedTuple):
    """Something that was done to a file."""

    file: str
    verb: Literal["write", "truncate", "delete", "sync", "sync folder"]
    at: int = 0  # of a write: its place; of a truncation: the new size
    data: bytes = b""


class RecordedDisk(apsw.VFS):
    """A VFS that records; it is the default one inside `recording`."""

    def __init__(self, name: str) -> None:
        self.usual = apsw.vfs_names()[0]  # does the work
        super().__init__(name, self.usual)
        self.name = name
        self.operations: list[Operation] = []

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802  # SQLite's name
        return RecordedFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802  # SQLite's name
        super().xDelete(filename, syncdir)
        self.operations.append(Operation(filename, "delete"))

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Connections that are opened here are recorded as long as they exist."""
        apsw.set_default_vfs(self.name)
        apsw.connection_hooks.append(_read_and_write_alone)
        try:
            yield
        finally:
            apsw.connection_hooks.remove(_read_and_write_alone)
            apsw.set_default_vfs(self.usual)


class RecordedFile(apsw.VFSFile):
    """A file whose changes are recorded."""

    def __init__(self, disk: RecordedDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__(disk.usual, name, flags)
        self._operations = disk.operations
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name or ""
        is_journal = flags[0] & (apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL)
        self._syncs_folder = bool(is_journal and flags[0] & apsw.SQLITE_OPEN_CREATE)

    def xWrite(self, data: Any, offset: int) -> None:  # noqa: N802  # SQLite's name
        super().xWrite(data, offset)
        self._operations.append(Operation(self._name, "write", offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802  # SQLite's name
        super().xTruncate(newsize)
        self._operations.append(Operation(self._name, "truncate", newsize))

    def xSync(self, flags: int) -> None:  # noqa: N802  # SQLite's name
        super().xSync(flags)
        self._operations.append(Operation(self._name, "sync"))
        if self._syncs_folder:
            self._operations.append(Operation(self._name, "sync folder"))
            self._syncs_folder = False


def _read_and_write_alone(connection: apsw.Connection) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")


class AloneStore(SqliteStore):
    """A store that reads on the connection that writes."""

    def read(self, work: Callable[[Transaction], T]) -> T:
        return self._read_memory(work)


# --- the power cut ---------------------------------------------------------------------------------


def after_power_cut(operations: list[Operation], rng: random.Random) -> dict[str, bytes]:
    """Draw what the disk may hold if the power fails after these operations: files by name."""
    files: dict[str, bytearray] = {}
    pending: dict[str, list[Operation]] = {}
    for each in operations:
        if each.verb == "sync folder":
            for unsynced in pending.values():
                while any(one.verb == "delete" for one in unsynced):
                    _apply(files, unsynced.pop(0))
        elif each.verb == "sync":
            for one in pending.pop(each.file, ()):
                _apply(files, one)
        else:
            pending.setdefault(each.file, []).append(each)
    loses = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])  # how much of what was not synced is lost
    for unsynced in pending.values():
        for each in _survivors(unsynced, loses, rng):
            _apply(files, each)
    return {name: bytes(body) for name, body in files.items()}


def _survivors(unsynced: list[Operation], loses: float, rng: random.Random) -> Iterator[Operation]:
    """Yield what happens of the operations on a file that were not synced."""
    for each in unsynced:
        if rng.random() >= loses:
            yield each
        elif each.verb == "delete":
            return  # the old file is still there, and not the one that was created in its place
        elif each.verb == "write" and rng.random() < 0.5:
            yield from _some_sectors(each, rng)


def _apply(files: dict[str, bytearray], each: Operation) -> None:
    if each.verb == "delete":
        files.pop(each.file, None)
        return
    body = files.setdefault(each.file, bytearray())
    end = each.at + len(each.data)
    body.extend(bytes(max(0, end - len(body))))
    if each.verb == "truncate":
        del body[each.at :]
    else:
        body[each.at : end] = each.data


def _some_sectors(write: Operation, rng: random.Random) -> Iterator[Operation]:
    start, end = write.at, write.at + len(write.data)
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if rng.random() < 0.5:
            yield write._replace(at=start, data=write.data[start - write.at : stop - write.at])
        start = stop
