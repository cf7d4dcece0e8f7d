"""The daemon's directory beside the file it serves: a lock, the socket, and `daemon.json`.

Only the owner may enter the directory, and a link in its place is refused (store/private_files.py). The lock allows one
daemon per file. The operating system releases it when the daemon ends, however it ends, so a `daemon.json` without a
held lock is stale; its process id need not be checked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rota.decoding import decode_json
from rota.errors import StoreUnavailable, UnsafePath
from rota.store.addresses import host_path
from rota.store.private_files import create_private, make_private_folder, open_private
from rota.store.socket_paths import check_socket_path

__all__ = ["DaemonInfo", "RuntimeDirectory", "daemon_address", "find_daemon"]


class DaemonInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `daemon.json`."""

    schema: int = 1
    pid: int
    started_at: float
    addresses: tuple[str, ...]  # the unix socket first
    rota_version: str
    protocol: int


def _directory(store: str) -> Path:
    return Path(f"{host_path(store)}-daemon")


def find_daemon(store: str) -> DaemonInfo | None:
    """Return the daemon that serves a file, or None. A stale `daemon.json` is removed, a damaged one ignored.

    So is one in a directory that neither this user nor the owner of the file made: it could name any socket.
    """
    directory = _directory(store)
    try:
        if not _is_trusted(directory, store):
            return None
        text = (directory / "daemon.json").read_bytes()
    except OSError:
        return None
    if not _is_held(directory / "lock"):
        with contextlib.suppress(OSError):
            (directory / "daemon.json").unlink()
        return None
    try:
        return decode_json(text, DaemonInfo)
    except msgspec.DecodeError:
        return None


def daemon_address(store: str) -> str | None:
    """Return the address, on this machine, of the daemon that serves a file, or None."""
    info = find_daemon(store)
    return None if info is None else info.addresses[0]


def _is_trusted(directory: Path, store: str) -> bool:
    found, owners = directory.lstat(), {os.geteuid(), 0}
    with contextlib.suppress(FileNotFoundError):
        owners.add(Path(host_path(store)).stat().st_uid)
    return stat.S_ISDIR(found.st_mode) and found.st_uid in owners


def _is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


class RuntimeDirectory:
    """A daemon's directory beside the file it serves."""

    def __init__(self, store: str, socket: str | None = None) -> None:
        self._directory = _directory(store)
        self._info_file = self._directory / "daemon.json"
        self._lock: int | None = None
        self.socket = str(self._directory / "rota.sock") if socket is None else os.path.realpath(socket)
        check_socket_path(self.socket)

    def acquire(self) -> None:
        """Take the lock, or raise an error that names the daemon that holds it."""
        with _unusable(self._directory):
            for directory in {self._directory, Path(self.socket).parent}:
                os.close(make_private_folder(directory, parents=True))
            self._check_permissions()
            lock = open_private(self._directory / "lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            os.close(lock)
            hint = "Connect to that daemon, or stop it first."
            raise StoreUnavailable(self._other_daemon(), hint=hint) from problem
        self._lock = lock
        with _unusable(self._directory), contextlib.suppress(FileNotFoundError):
            Path(self.socket).unlink()  # a killed daemon leaves its socket behind

    def _check_permissions(self) -> None:
        """Raise an error if other users own or may enter the socket's directory: they could replace the socket."""
        directory = Path(self.socket).parent
        found = directory.stat()
        mode = found.st_mode & 0o777
        if found.st_uid not in (os.geteuid(), 0):
            text = f"{directory} belongs to another user ({found.st_uid})"
            raise UnsafePath(text, hint="Choose another directory with --socket.", path=str(directory))
        if mode & 0o077:
            text = f"other users may enter {directory} (mode {mode:o})"
            raise StoreUnavailable(text, hint=f"chmod 700 {directory}")

    def _other_daemon(self) -> str:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            info = decode_json(self._info_file.read_bytes(), DaemonInfo)
            return f"process {info.pid} already serves this file, at {info.addresses[0]}"
        return "another daemon already serves this file"

    def publish(self, info: DaemonInfo) -> None:
        """Write `daemon.json`, atomically."""
        part = self._info_file.with_suffix(".part")
        with _unusable(self._directory):
            part.unlink(missing_ok=True)
            with os.fdopen(create_private(part), "wb") as file:
                file.write(msgspec.json.encode(info))
            part.replace(self._info_file)

    def release(self) -> None:
        """Remove `daemon.json` and the socket, then release the lock. What cannot be removed is stale without it."""
        for path in (self._info_file, Path(self.socket)):
            with contextlib.suppress(OSError):
                path.unlink()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextlib.contextmanager
def _unusable(directory: Path) -> Iterator[None]:
    """Turn what the operating system refuses (no room, no inodes, a read-only directory) into an error with a hint."""
    try:
        yield
    except OSError as problem:
        text = f"cannot write {problem.filename or directory}: {problem.strerror or problem}"
        hint = "Free disk space, or make the directory writable; --socket gives the socket another directory."
        raise StoreUnavailable(text, hint=hint) from problem
