"""How a daemon is found, and how there is only one of it for a file.

Beside the file stands a folder that only its owner may enter: in it a lock, the socket, and a note that says where and
by whom the file is served. The lock says whether that is still so: it is held as long as the daemon lives and ends
with it, however it ends. So a note without a held lock is an old one, and nobody has to believe a process number.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec

from rota.errors import StoreUnavailable

__all__ = ["Note", "Presence", "locate"]

_ADDRESS_BYTES_MAX = 107  # what a socket address holds


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What a daemon says of itself."""

    schema: int = 1
    pid: int
    started_at: float
    addresses: tuple[str, ...]  # the unix socket first
    rota_version: str
    protocol: int


def _folder(store: str) -> Path:
    return Path(f"{os.path.realpath(store)}-daemon")


def locate(store: str) -> Note | None:
    """The note of the daemon that serves a file, if one does; an old note is removed, a damaged one is none."""
    folder = _folder(store)
    try:
        text = (folder / "daemon.json").read_bytes()
    except OSError:
        return None
    if not _is_held(folder / "lock"):
        with contextlib.suppress(OSError):
            (folder / "daemon.json").unlink()
        return None
    try:
        return msgspec.json.decode(text, type=Note)
    except msgspec.DecodeError:
        return None


def _is_held(lock: Path) -> bool:
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


class Presence:
    """A daemon's own folder beside the file it serves."""

    def __init__(self, store: str, socket: str | None = None) -> None:
        self._folder = _folder(store)
        self._note = self._folder / "daemon.json"
        self._lock: int | None = None
        self.socket = str(self._folder / "rota.sock") if socket is None else os.path.realpath(socket)
        if len(os.fsencode(self.socket)) > _ADDRESS_BYTES_MAX:
            text = (
                f"the socket's path has {len(os.fsencode(self.socket))} bytes; {_ADDRESS_BYTES_MAX} fit: {self.socket}"
            )
            raise StoreUnavailable(text, hint="Give a shorter one with --socket.")

    def enter(self) -> None:
        """Take the lock, or say who has it."""
        for folder in {self._folder, Path(self.socket).parent}:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._check_folder()
        lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            os.close(lock)
            raise StoreUnavailable(self._taken(), hint="Talk to that one, or stop it first.") from problem
        self._lock = lock
        with contextlib.suppress(FileNotFoundError):  # one that was killed leaves its socket behind
            Path(self.socket).unlink()

    def _check_folder(self) -> None:
        """Whoever can enter the socket's folder could put another socket in its place."""
        folder = Path(self.socket).parent
        mode = folder.stat().st_mode & 0o777
        if mode & 0o077:
            text = f"{folder} may be entered by others (mode {mode:o})"
            raise StoreUnavailable(text, hint=f"Run: chmod 700 {folder}")

    def _taken(self) -> str:
        with contextlib.suppress(OSError, msgspec.DecodeError):
            note = msgspec.json.decode(self._note.read_bytes(), type=Note)
            return f"process {note.pid} serves this file already, at {note.addresses[0]}"
        return "another daemon serves this file already"

    def announce(self, note: Note) -> None:
        """Say where it serves; the note appears whole."""
        part = self._note.with_suffix(".part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(note))
        part.replace(self._note)

    def leave(self) -> None:
        """Take everything away, the lock last."""
        for path in (self._note, Path(self.socket)):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
