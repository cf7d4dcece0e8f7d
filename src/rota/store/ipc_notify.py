"""How processes that share a file tell each other about commits.

Every process in which a request waits listens on a datagram socket in a folder beside the file. A process that commits
sends one byte to each of these sockets. The datagram is only a hint: the listener reads from the file what changed. A
poll every `POLL_S` covers a socket that could not be created and a datagram that was lost.

The sender must know at every commit whether another process listens, and even one system call is expensive there: after
a disk flush the CPU caches are cold. So all processes map a few bytes of the lock file as shared memory:

    bytes  0 to 7   listener version: a new random value whenever a process starts to listen
    bytes  8 to 15  unused (a counter in files of earlier versions)
    bytes 16 to 23  last opener: a random id, written by each process that opens the file
    bytes 24 to 71  files: device and inode of the database, its log and its shared memory, written by the first user

The sender compares the listener version with the one it saw last and lists the folder only if it differs. A process
that found the file unused compares the last opener with its own id to know that it is still the only user.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rota.errors import UnsafePath
from rota.fault_log import FaultLog
from rota.lazy import late
from rota.store.private_files import make_private_folder
from rota.store.socket_paths import socket_path

if TYPE_CHECKING:
    import logging
    import socket
else:
    logging, socket = late("logging"), late("socket")

__all__ = ["FILES_AT", "FILES_BYTES", "POLL_S", "CommitListener", "CommitNotifier", "SharedWords"]

POLL_S = 0.05  # how late a lost notification is noticed
_SUFFIX = ".bell"
_VERSION_BYTES = 8
_OPENER_AT = 16
FILES_AT, FILES_BYTES = 24, 48
_SIZE_BYTES = FILES_AT + FILES_BYTES


class SharedWords:
    """The bytes of the lock file that every user of the database maps. Written with the lock held, or at random."""

    def __init__(self, lock: int) -> None:
        # allocates disk blocks, not only a size: without them, a write to the mapping kills the process on a full disk
        os.posix_fallocate(lock, 0, _SIZE_BYTES)
        self._bytes = mmap.mmap(lock, _SIZE_BYTES)
        words = memoryview(self._bytes)
        self.last_opener = words[_OPENER_AT:FILES_AT]  # the id of the process that opened the file last
        self.files = words[FILES_AT:]  # the identity of the files that the users of the database have open

    @property
    def listener_version(self) -> bytes:
        """A value that changes whenever a process starts to listen."""
        return self._bytes[:_VERSION_BYTES]

    @listener_version.setter
    def listener_version(self, version: bytes) -> None:
        self._bytes[:_VERSION_BYTES] = version

    def close(self) -> None:
        """Unmap the bytes."""
        self.last_opener.release()
        self.files.release()
        self._bytes.close()


class CommitNotifier:
    """Sends notifications to the listeners of one file, and owns this process's listening socket."""

    def __init__(self, path: str, words: SharedWords) -> None:
        self._path = path
        self._folder = Path(f"{path}-bells")
        self._words = words
        self._seen_version = b""  # the listener version when the other sockets were last listed
        self._own_name = ""
        self._own: socket.socket | None = None
        self._out: socket.socket | None = None
        self._others: list[str] = []
        self._is_closed = False

    def listen(self) -> socket.socket | None:
        """Create and return this process's socket; None if the system refuses, and then only the poll is left."""
        with contextlib.suppress(OSError):
            self._open_folder()
            # more than the pid: a killed process leaves its socket behind, and pids are reused
            self._own_name = f"{os.getpid()}-{os.urandom(8).hex()}{_SUFFIX}"
            self._own = self._bind()
            self._words.listener_version = os.urandom(_VERSION_BYTES)
        return self._own

    def notify(self) -> None:
        """Wake every other listener. Without listeners this costs one look at shared memory."""
        if self._is_closed:  # a commit may end while the store is closed: it opens no socket any more
            return
        version = self._words.listener_version
        if version != self._seen_version:
            with contextlib.suppress(OSError):  # out of descriptors or memory: list them at the next commit
                self._others = self._list_others()
                self._seen_version = version
        for name in self._others:
            self._send(name)

    def stop_listening(self) -> None:
        """Close and remove this process's socket."""
        if self._own is not None:
            self._own.close()
            with contextlib.suppress(OSError):
                (self._folder / self._own_name).unlink()

    def close(self) -> None:
        """Close the sockets. A forked child does this too: the listening socket's name is its parent's."""
        self._is_closed = True
        for each in (self._own, self._out):
            if each is not None:
                each.close()

    def _open_folder(self) -> None:
        """Create the folder. It follows the database's mode, so that other users of a shared store reach the socket."""
        try:
            os.close(make_private_folder(self._folder, like=self._path))
        except UnsafePath as problem:
            logging.getLogger(__name__).warning("commits of other processes are noticed by polling only: %s", problem)
            raise OSError(problem.message) from problem

    def _bind(self) -> socket.socket:
        mode = Path(self._path).stat().st_mode & 0o666  # first: the database may have been deleted
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            with contextlib.suppress(OSError):  # Linux only: the file that `bind` makes has at most the socket's mode
                os.fchmod(own.fileno(), mode)
            with socket_path(str(self._folder / self._own_name)) as address:
                own.bind(address)
                Path(address).chmod(mode)  # whatever the umask has taken away
        except OSError:
            own.close()
            raise
        return own

    def _list_others(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            names = [path.name for path in self._folder.iterdir()]
            return [name for name in names if name.endswith(_SUFFIX) and name != self._own_name]
        return []

    def _send(self, name: str) -> None:
        try:
            if self._out is None:
                self._out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            with socket_path(str(self._folder / name)) as address:
                self._out.sendto(b"!", address)
        except ConnectionRefusedError:  # its process has died
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
        except OSError:
            pass  # its buffer is full, or we are out of descriptors: its poll covers that


class CommitListener:
    """A thread that calls `check` after every notification, and every `POLL_S` in any case."""

    def __init__(self, notifier: CommitNotifier | None, check: Callable[[], None]) -> None:
        self._notifier = notifier
        self._check = check
        self._faults = FaultLog(__name__)
        self._stop_in, self._stop_out = os.pipe()
        self._thread = threading.Thread(target=self._run, name="rota-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        os.write(self._stop_out, b"!")
        os.close(self._stop_out)
        if self._thread is not threading.current_thread():  # a change listener may close the store
            self._thread.join()

    def forget(self) -> None:
        """In a forked child, which does not have the thread: close the descriptors."""
        os.close(self._stop_in)
        os.close(self._stop_out)

    def _run(self) -> None:
        own = self._notifier.listen() if self._notifier is not None else None
        poll = select.poll()  # select() refuses descriptors above 1,023
        poll.register(self._stop_in, select.POLLIN)
        if own is not None:
            poll.register(own, select.POLLIN)
        while self._stop_in not in (ready := [descriptor for descriptor, _ in poll.poll(POLL_S * 1_000)]):
            self._check_once(own if ready else None)
        os.close(self._stop_in)
        if self._notifier is not None:
            self._notifier.stop_listening()

    def _check_once(self, notified: socket.socket | None) -> None:
        try:
            if notified is not None:
                _drain(notified)
            self._check()
        except Exception as problem:  # the thread must survive: parked requests depend on the next check
            self._faults.failed("the check for commits of other processes", problem)
        else:
            self._faults.worked()


def _drain(own: socket.socket) -> None:
    """Read all pending datagrams: several notifications need one check."""
    with contextlib.suppress(BlockingIOError):
        while own.recv(64):
            pass
