"""Whether the file at the path is still the one that this process has open.

SQLite opens three files once: the database, its log (`-wal`) and the shared memory of its locks (`-shm`). It goes on
with them whatever becomes of their names. If one is deleted, moved or replaced, commits succeed and are gone when the
process ends; if another process opens what is at the path now, the two no longer see each other's locks. So no commit
is acknowledged, and no read is returned, before the three names were compared with the files that were opened.

**Cheaply.** After a disk flush three `stat` calls cost 12 µs, a tenth of a small commit. On Linux the kernel watches
the three files instead (inotify): it queues an event before the call returns that deletes, renames or writes one of
them. Asking whether an event is there costs 2 to 3 µs; only then, and every `CHECK_S`, are the names compared. Where
there is no such watch, they are compared at every commit.

**A restore into the same file** (`cp backup.db live.db`) leaves the names as they were. The database is written by
checkpoints only, which copy the log into it. So its header has a *generation* (SQLite's `user_version`): a transaction
that finds the same number in the database and through the log writes the next number, which reaches the database with
the next checkpoint. Hence:

    the generation through the log is that of the database, or the next one

An older database under the same log breaks this rule, and so does one of another store, because the first number is
random. `backup` writes a new random number into the copy. The rule is checked every `CHECK_S` while the store is used,
after every change of the database file, and when a file is opened: a restored database beside the log of an earlier
one would mix the two.

**A log that is cut** (`truncate`, `> live.db-wal`) keeps its name, and SQLite goes on behind the place where it ended.
So every `CHECK_S` its length and its header are compared with the number of pages that SQLite finds in it.

**Several names for one file** have a log each, so two processes would overwrite each other's pages. A database with
several hard links is refused, and so is one that is itself a mount point, as containers mount single files: its log
would lie outside of the mount.

**Opening beside others.** The first user of a file writes the identity of its three files into the shared memory of
the lock file (ipc_notify.py). A process that finds others there compares it with what is at the path before SQLite
opens anything, so it never begins a second log beside theirs.

A process that ends gives its locks back one by one, SQLite's before the one that says it is here. In between another
process may have been the last one for SQLite and have deleted the log. So a user whose files are not those at the path
may be one that is ending: it is given `LEAVING_S` before the path is refused.

**A newer rota** that opens the file migrates it, while this process goes on with statements for the tables as they
were. So every `CHECK_S` the version of the schema is read too.

**When a check fails** the store is lost: every call raises `StoreReplaced` from then on, and closing does not
checkpoint the log into a file that it may not belong to. Everything acknowledged stays where it was written, so a file
that was moved away can be moved back. A deleted log is different, because only its descriptors keep it: the engine
copies it into the database, if that is still in place and no other process can have begun a new log.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw

from rota.clock import AwakeClock
from rota.errors import InvalidInput, StoreReplaced
from rota.lazy import late
from rota.store.ipc_notify import FILES_AT, FILES_BYTES
from rota.store.migrations import LATEST
from rota.store.protocol import Row
from rota.store.statements.file import META_GET

if TYPE_CHECKING:
    import ctypes
    import logging
else:
    ctypes, logging = late("ctypes"), late("logging")

__all__ = ["StoreFiles", "check_generation", "check_path", "check_users", "is_first_user", "new_generation", "unused"]

CHECK_S = 0.5  # how late a change is noticed that no event reports
WATCH_AFTER = 12  # checks before the files are watched: a short command does not need it, and a watch is slow to close
LEAVING_S = 2.0  # how long a process that ends may hold its last lock
LEAVING_PAUSE_S = 0.01  # between two looks at it
RESCUE_MS = 1_000  # how long copying a deleted log waits for readers
GENERATION_AT = 60  # of the database's header: `user_version`, four bytes
GENERATION_MAX = 2**31 - 1
_FILES = ("", "-wal", "-shm")
_WRITTEN = 0x2  # IN_MODIFY: of the database only, because every commit writes the log
_CHANGES = 0x4 | 0x400 | 0x800  # IN_ATTRIB (the number of links), IN_DELETE_SELF, IN_MOVE_SELF
_EVENT_BYTES = 4_096
_IDENTITY = struct.Struct("=QQ")
_LOG_BEGINS = b"\x37\x7f\x06"  # and another byte, for the order of the bytes in its checksums
_LOG_HEADER_BYTES, _LOG_CHECKSUM_BYTES, _FRAME_HEADER_BYTES = 32, 8, 24
_MOUNTS = Path("/proc/self/mountinfo")
_monotonic = AwakeClock.monotonic  # a suspended machine does not use the store
_pause = threading.Event().wait

assert _IDENTITY.size * len(_FILES) == FILES_BYTES  # noqa: S101  # the two modules agree


def _identities(path: str) -> bytes:
    """Return device and inode of the database, its log and its shared memory; zeros for a file that is not there."""
    return b"".join(_identity(path + suffix) for suffix in _FILES)


def _identity(path: str) -> bytes:
    try:
        found = os.stat(path)  # noqa: PTH116  # a third of the cost of a Path
    except OSError:  # whatever the reason is: the file that was opened is not there
        return _IDENTITY.pack(0, 0)
    return _IDENTITY.pack(found.st_dev, found.st_ino)


# --- while a store is open -----------------------------------------------------------------------


class StoreFiles:
    """The files that a store has open."""

    def __init__(self, path: str, connection: apsw.Connection) -> None:
        self._path = path
        self._lock = threading.Lock()  # guards all that follows
        self._seen = _generations(connection)[1]  # the newest one found in the database file
        self.identities = _identities(path)  # SQLite has the log open now, because it was read
        self._frame_bytes = _FRAME_HEADER_BYTES + int(connection.pragma("page_size"))
        self._checks = 0
        self._advanced_changes = 0  # rows that the writing connection had changed when `advance` last looked
        self._watch: int | None = None
        self._problem, self._hint = "", ""
        self.lost = False
        self.due_at = 0.0  # when the names have to be compared, whatever the events say
        self.advance_at = 0.0  # when a transaction has to look whether the next generation is due
        self.drained = False  # a reader has taken events that the writer has not seen
        self.changed: Callable[[], Any] = partial(bool, 1)  # whether a file may have changed; before the watch: yes
        self._descriptors: list[int] = []  # of the log, and then of the watch
        with contextlib.suppress(FileNotFoundError):
            self._descriptors.append(os.open(path + "-wal", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))

    def check(self, connection: apsw.Connection, *, is_writer: bool = False) -> None:
        """Raise StoreReplaced if the files at the path are not those that were opened."""
        with self._lock:
            if not self.lost:
                self.due_at = _monotonic() + CHECK_S
                self.drained = not is_writer  # first: else the writer could find neither the events nor this
                if self._watch is not None and _drain(self._watch):
                    self.advance_at = 0.0  # perhaps a checkpoint: then the next generation is due
                if problem := self._compare(connection) or (self._compare_log(connection) if is_writer else ""):
                    self._lose(problem)
                self._checks += 1
                if self._checks == WATCH_AFTER:
                    self._start_watch()
        if self.lost:
            raise self.error()

    def check_names(self) -> None:
        """Raise StoreReplaced before another connection would open other files."""
        with self._lock:
            if not self.lost and (problem := self._compare_names()):
                self._lose(problem)
        if self.lost:
            raise self.error()

    def _lose(self, problem: str) -> None:
        self._problem, self.lost = problem, True
        self.changed, self.due_at = partial(bool, 1), 0.0  # every call checks, and raises

    def error(self) -> StoreReplaced:
        """The error of every call on a lost store."""
        return StoreReplaced(self._problem, hint=self._hint or None, path=self._path)

    def _compare(self, connection: apsw.Connection) -> str:
        """Return what has changed; empty if nothing has."""
        return self._compare_names() or self._compare_content(connection)

    def _compare_names(self) -> str:
        now = _identities(self._path)
        for index, suffix in enumerate(_FILES):
            place = slice(index * _IDENTITY.size, (index + 1) * _IDENTITY.size)
            if now[place] != self.identities[place]:
                gone = not any(now[place])
                verb = "was moved or deleted" if gone else "was replaced by another file"
                return f"{self._path}{suffix} {verb} while it was in use"
        return ""

    def _compare_content(self, connection: apsw.Connection) -> str:
        try:
            with connection:  # one view: no checkpoint can pass what the log says in it
                through_log, stored = _generations(connection)
                version = _schema_version(connection)
        except apsw.IOError:
            return ""  # unknown now; the next check finds it
        except apsw.Error as problem:
            return f"the content of {self._path} was replaced or damaged while it was in use ({problem})"
        if not _fits(through_log, stored) or stored < self._seen:
            return f"the content of {self._path} was replaced while it was in use"
        self._seen = stored
        if version > LATEST:
            self._hint = "Start this process again with the version of rota that migrated the file."
            return f"a newer rota migrated {self._path} to schema_version {version}; this process writes {LATEST}"
        return ""

    def _compare_log(self, connection: apsw.Connection) -> str:
        """Return whether the log was cut; no transaction is open. SQLite itself never looks at its length."""
        if not self._descriptors:
            return ""
        before = self._log_length()
        try:
            frames = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
        except apsw.Error:
            return ""  # unknown now; the next check finds it
        # twice: meanwhile other processes may have written to an empty log, or emptied one that they have copied
        if frames <= 0 or max(before, self._log_length()) >= _LOG_HEADER_BYTES + frames * self._frame_bytes:
            return ""
        return f"{self._path}-wal was cut while it was in use"

    def _log_length(self) -> int:
        """Return the length of the log; 0 without its header: what is written after a cut leaves a hole there."""
        header = os.pread(self._descriptors[0], _LOG_HEADER_BYTES, 0)
        is_whole = header.startswith(_LOG_BEGINS) and any(header[-_LOG_CHECKSUM_BYTES:])
        return os.fstat(self._descriptors[0]).st_size if is_whole else 0

    def advance(self, connection: apsw.Connection) -> None:
        """Write the next generation, if the present one has reached the database. The write transaction is open."""
        changes = connection.total_changes()
        if changes == self._advanced_changes:
            return  # a transaction without changes needs no flush, and gets none for this
        self._advanced_changes = changes
        self.advance_at = _monotonic() + CHECK_S
        through_log, stored = _generations(connection)
        if through_log == stored:
            following = through_log + 1 if 0 < through_log < GENERATION_MAX else new_generation()
            connection.execute(f"PRAGMA user_version = {following}")

    def rescue_log(self, connection: apsw.Connection) -> None:
        """Copy a deleted log into the database, if no process can have begun another one."""
        if not self._has_deleted_log():
            return
        try:
            connection.set_busy_timeout(RESCUE_MS)
            connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall()
            logging.getLogger(__name__).warning(
                "%s-wal was deleted; its changes were copied into the database", self._path
            )
        except apsw.Error as problem:
            logging.getLogger(__name__).error(
                "%s-wal was deleted, and its changes could not be copied: %s", self._path, problem
            )

    def _has_deleted_log(self) -> bool:
        now = _identities(self._path)
        database, log, shared = (now[at : at + _IDENTITY.size] for at in range(0, FILES_BYTES, _IDENTITY.size))
        same_database = database == self.identities[: _IDENTITY.size]
        same_shared = not any(shared) or shared == self.identities[-_IDENTITY.size :]
        deleted = not any(log) and bool(self._descriptors) and os.fstat(self._descriptors[0]).st_nlink == 0
        return deleted and same_database and same_shared

    def close(self) -> None:
        """Close the descriptors."""
        self.changed = partial(bool, 1)
        self._watch = None
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    def _start_watch(self) -> None:
        """Have the kernel report changes of the files; without a watch they are compared at every commit."""
        if sys.platform != "linux":
            return
        libc = ctypes.CDLL(None, use_errno=True)
        watch = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if watch < 0:  # the system's limit of watching processes
            return
        self._descriptors.append(watch)
        for suffix in _FILES:
            changes = _CHANGES if suffix else _CHANGES | _WRITTEN
            if libc.inotify_add_watch(watch, os.fsencode(self._path + suffix), changes) < 0:
                return
        events = select.epoll()  # unlike `poll`, several threads may ask at the same time; closed with its last use
        events.register(watch, select.EPOLLIN)
        self._watch = watch
        self.changed = partial(events.poll, 0, 1)
        self.due_at = 0.0  # a change may have come before the watch


def _drain(watch: int) -> bool:
    """Take all events; return whether there were any."""
    found = False
    with contextlib.suppress(BlockingIOError):
        while os.read(watch, _EVENT_BYTES):
            found = True
    return found


# --- the generation ------------------------------------------------------------------------------


def new_generation() -> int:
    """Return a random generation, from which a store counts on."""
    return 1 + int.from_bytes(os.urandom(8)) % (GENERATION_MAX // 2 - 1)


def check_generation(connection: apsw.Connection) -> None:
    """Refuse a database beside a log that belongs to another one."""
    with connection:
        through_log, stored = _generations(connection)
    if not _fits(through_log, stored):
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)  # closing would mix the two
        path = connection.filename
        text = f"{path} and its log {path}-wal do not belong together: the file was replaced and the log was not"
        hint = f"To use the file as it is: rm {path}-wal {path}-shm. To keep the log, put the earlier file back."
        raise StoreReplaced(text, hint=hint, path=path)


def _fits(through_log: int, stored: int) -> bool:
    return stored in (through_log, through_log - 1, 0)  # 0: an earlier version of rota wrote the database


def _generations(connection: apsw.Connection) -> tuple[int, int]:
    """Return the generation as the log has it, and as the database file has it; -1 if that is too short."""
    rows: list[Row] = connection.execute("PRAGMA user_version").fetchall()
    complete, header = connection.read("main", 0, GENERATION_AT, 4)  # by SQLite's own descriptor, without its cache
    return int(rows[0][0]), int.from_bytes(header, "big", signed=True) if complete else -1


def _schema_version(connection: apsw.Connection) -> int:
    """Return the version of rota's tables; 0 before they are made."""
    try:
        rows: list[Row] = connection.execute(META_GET.sql, ("schema_version",)).fetchall()
    except apsw.SQLError:
        return 0
    return int(rows[0][0]) if rows and str(rows[0][0]).isdecimal() else 0


# --- before a file is opened ---------------------------------------------------------------------


def check_path(path: str) -> None:
    """Refuse a file that has several names, and a log without its database."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        found = None
    if found is None or found.st_size == 0:
        _check_no_log(path)
    elif not stat.S_ISREG(found.st_mode):
        return  # SQLite refuses it
    elif found.st_nlink > 1:
        text = f"{path} has {found.st_nlink} names (hard links), and each of them would have its own log"
        raise StoreReplaced(text, hint="Remove the other names, or make a copy: rota db backup.", path=path)
    elif _is_mount_point(path):
        text = f"{path} is mounted as a single file, and its log {path}-wal would lie outside of the mount"
        raise StoreReplaced(text, hint=f"Mount its folder instead: {os.path.dirname(path)}.", path=path)  # noqa: PTH120


def _check_no_log(path: str) -> None:
    """A log without its database holds changes of a file that was moved or deleted; a new database would delete it."""
    with contextlib.suppress(FileNotFoundError):
        if Path(path + "-wal").stat().st_size > 0:
            text = f"there is a log {path}-wal, but its database {path} was moved or deleted"
            hint = f"Put the file back; or, if the changes in the log may be lost: rm {path}-wal {path}-shm."
            raise StoreReplaced(text, hint=hint, path=path)


def _is_mount_point(path: str) -> bool:
    try:
        mounts = _MOUNTS.read_bytes().splitlines()
    except OSError:
        return False
    name = os.fsencode(path).replace(b"\\", b"\\134")
    for character in (b" ", b"\t", b"\n"):
        name = name.replace(character, b"\\%03o" % character[0])
    return any(mount.split(b" ", 5)[4] == name for mount in mounts)


def check_users(path: str) -> None:
    """Refuse a path where other processes have opened other files than those that are there now."""
    for _ in _while_users_end(path):
        with _users(path) as theirs:
            if theirs is None or _are_same(theirs, _identities(path)):
                return


def is_first_user(path: str, presence: int, theirs: bytes, own: bytes) -> bool:
    """Lock the presence file for this process alone, or return False if users of the same files have locked it.

    The lock between processes is held, so no process can begin to use the file meanwhile.
    """
    for _ in _while_users_end(path):
        try:
            fcntl.flock(presence, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _are_same(theirs, own):
                return False
        else:
            return True
    raise AssertionError  # the loop returns or raises


def _are_same(theirs: bytes, own: bytes) -> bool:
    return theirs == own or not any(theirs)  # zeros: by an earlier version of rota


def _while_users_end(path: str) -> Iterator[None]:
    """Yield again and again while users with other files may be ending; raise StoreReplaced if they do not."""
    give_up_at = _monotonic() + LEAVING_S
    while True:
        yield
        if _monotonic() >= give_up_at:
            text = f"{path} is in use by a process, and the file or its log was moved, deleted or replaced since"
            hint = f"Stop that process (fuser {path}-here finds it), then open the file again."
            raise StoreReplaced(text, hint=hint, path=path)
        _pause(LEAVING_PAUSE_S)


@contextlib.contextmanager
def _users(path: str) -> Iterator[bytes | None]:
    """Keep processes from opening a file; yields the identity of what its users have open, or None without users."""
    with contextlib.ExitStack() as stack:
        descriptors = []
        for suffix in ("-lock", "-here"):
            try:
                descriptors.append(os.open(path + suffix, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW))
            except FileNotFoundError:
                yield None  # rota has never opened it
                return
            stack.callback(os.close, descriptors[-1])
        lock, presence = descriptors
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            fcntl.flock(presence, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield os.pread(lock, FILES_BYTES, FILES_AT)
        else:
            yield None


@contextlib.contextmanager
def unused(path: str) -> Iterator[None]:
    """Keep other processes from opening a file that is to be overwritten; refuse one that a process has open."""
    real = os.path.realpath(path)
    with contextlib.suppress(FileNotFoundError):
        found = Path(real).stat()
        if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
            raise InvalidInput(f"{path} has other names (hard links)", field="path", hint="Choose another path.")
    with _users(real) as theirs:
        if theirs is not None:
            hint = "Choose another path, or stop the processes that use it."
            raise InvalidInput(f"{path} is a store that is in use", field="path", hint=hint)
        yield
