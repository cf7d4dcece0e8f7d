"""Files and folders that only their owner may read: the store's, logs, sockets, locks, backups, traces.

They hold payloads, results and the output of programs. So rota creates them 0600, and folders 0700, whatever the umask
is. Three rules:

1. **The mode of what exists is left alone.** An operator who opens a store to a group, or a log folder to a collector,
   did so on purpose. `rota doctor` says if others may read or write a store.
2. **What lies beside a store follows the store** (`like`): locks and the folder of notifications get its mode and, if
   this process is root, its owner. SQLite does the same with `-wal` and `-shm`. A store that was opened to a group
   stays usable for all its members.
3. **A link is not followed where rota chooses the name.** Another user who may write to the folder could have planted
   it, so that rota overwrites a file of its own user. The same goes for a fifo, a device, and a file with other names
   (hard links). Each raises `UnsafePath`. Links in the paths that an operator gives are followed as usual.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from rota.errors import UnsafePath

__all__ = ["create_private", "make_private_folder", "open_private", "refuse_link", "write_private"]

FILE_MODE = 0o600
FOLDER_MODE = 0o700
_NOT_FOLLOWED = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # the last: opening a planted fifo would wait
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LINKS = (errno.ELOOP, errno.EMLINK, errno.ENXIO)  # what systems answer for a link, and for a socket


def create_private(path: str | Path, *, like: str | None = None, dir_fd: int | None = None) -> int:
    """Create a file and return its descriptor; raises FileExistsError if the name is taken, also by a link."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _NOT_FOLLOWED, FILE_MODE, dir_fd=dir_fd)
    try:
        _set_mode(descriptor, FILE_MODE, like)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_private(path: str | Path, *, like: str | None = None, dir_fd: int | None = None) -> int:
    """Open a file for reading and writing, or create it; raises `UnsafePath` for a link and for what is no file."""
    try:
        return create_private(path, like=like, dir_fd=dir_fd)
    except FileExistsError:
        pass
    try:
        descriptor = os.open(path, os.O_RDWR | _NOT_FOLLOWED, dir_fd=dir_fd)
    except OSError as problem:
        raise _unsafe(path, "is a link") if problem.errno in _LINKS else problem from None
    found = os.fstat(descriptor)
    if stat.S_ISREG(found.st_mode) and found.st_nlink <= 1:  # 0: it was removed just now
        return descriptor
    os.close(descriptor)
    raise _unsafe(path, "has other names (hard links)" if stat.S_ISREG(found.st_mode) else "is not a regular file")


def write_private(path: str | Path, data: bytes) -> None:
    """Write to a file that the user named: a new one is private, an existing one is overwritten and keeps its mode."""
    try:
        file = os.fdopen(create_private(path), "wb")
    except FileExistsError:  # perhaps the user's own link, or /dev/stdout
        file = Path(path).open("wb")  # noqa: SIM115  # closed below
    with file:
        file.write(data)


def make_private_folder(
    path: str | Path, *, like: str | None = None, follows_own_link: bool = False, parents: bool = False
) -> int:
    """Open a folder and return its descriptor, creating it if it is missing; raises `UnsafePath` for a link.

    With `follows_own_link`, a link that belongs to this user or to root is followed: it may lead to another disk.
    """
    try:
        os.mkdir(path, FOLDER_MODE)  # noqa: PTH102  # the cheapest way to find out
    except FileExistsError:
        return _open_folder(path, follows_own_link=follows_own_link)
    except FileNotFoundError:
        if not parents:
            raise
        os.close(make_private_folder(Path(path).parent, follows_own_link=True, parents=True))
        return make_private_folder(path, like=like, follows_own_link=follows_own_link)
    try:
        descriptor = os.open(path, _FOLDER | os.O_NOFOLLOW)
    except PermissionError:  # the umask takes the owner's own rights
        Path(path).chmod(FOLDER_MODE)
        descriptor = os.open(path, _FOLDER | os.O_NOFOLLOW)
    try:
        _set_mode(descriptor, FOLDER_MODE, like)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_folder(path: str | Path, *, follows_own_link: bool) -> int:
    found = os.lstat(path)
    if not stat.S_ISLNK(found.st_mode):
        try:
            return os.open(path, _FOLDER | os.O_NOFOLLOW)
        except NotADirectoryError:
            raise _unsafe(path, "is not a folder") from None
    if not follows_own_link:
        raise _unsafe(path, "is a link")
    if found.st_uid not in (os.geteuid(), 0):
        raise _unsafe(path, "is a link that belongs to another user")
    return os.open(path, _FOLDER)


def refuse_link(path: str | Path, *, hint: str | None = None) -> None:
    """Raise `UnsafePath` if there is a link at a path that another library is about to open or replace."""
    if os.path.islink(path):  # noqa: PTH114  # this is asked at every opening of a store
        raise _unsafe(path, "is a link", hint)


def _set_mode(descriptor: int, mode: int, like: str | None) -> None:
    """Give what was just created its mode, from which the umask may have taken something, and perhaps its owner."""
    if like is not None:
        found = os.stat(like)  # noqa: PTH116  # as above
        readable = found.st_mode & 0o666
        mode = readable | (readable & 0o444) >> 2 if mode == FOLDER_MODE else readable
        if os.geteuid() == 0 and (found.st_uid or found.st_gid):
            os.fchown(descriptor, found.st_uid, found.st_gid)
    os.fchmod(descriptor, mode)


def _unsafe(path: str | Path, what: str, hint: str | None = None) -> UnsafePath:
    return UnsafePath(f"{path} {what}, and rota does not use it", hint=hint, path=str(path))
