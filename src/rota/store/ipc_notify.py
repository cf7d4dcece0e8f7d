"""How processes on one file wake each other.

Every process that has somebody waiting listens on a datagram socket in a folder beside the file; whoever
commits something others may wait for sends a byte to each. A bell is a hint and nothing more: what changed
is read from the file, and a poll every `POLL_S` is the net under a bell that could not be hung or was missed.

Who listens is asked at every commit, where even one call of the system is dear: the processor comes back from a
flush with nothing in its caches. So there is a *board*, a few bytes of memory that all processes share (they map the
lock file): whoever hangs a bell leaves a new mark on it, and whoever rings looks at the board only. And whoever opens
the file leaves its name there, so that the one who was first can tell whether it still has the file to itself.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["POLL_S", "Bells", "Board", "Watch"]

POLL_S = 0.05  # how late a missed bell is noticed
_SUFFIX = ".bell"
_ADDRESS_BYTES_MAX = 100  # what a socket address holds, with some to spare
_MARK_BYTES = 8
_NAME_AT = 16  # between them stood a count, in files of earlier versions
_BOARD_BYTES = 24
_log = logging.getLogger(__name__)


class Board:
    """A few bytes that all who hold the same file share. Written under the lock of whoever commits, or by chance."""

    def __init__(self, lock: int) -> None:
        # room on the disk, not only a size: where that is missing, writing to shared memory kills the process
        os.posix_fallocate(lock, 0, _BOARD_BYTES)
        self._bytes = mmap.mmap(lock, _BOARD_BYTES)
        self.last_comer = memoryview(self._bytes)[_NAME_AT:]  # the name of whoever opened the file last

    @property
    def mark(self) -> bytes:
        """Something else whenever a bell was hung."""
        return self._bytes[:_MARK_BYTES]

    @mark.setter
    def mark(self, mark: bytes) -> None:
        self._bytes[:_MARK_BYTES] = mark

    def close(self) -> None:
        """Look no more."""
        self.last_comer.release()
        self._bytes.close()


class Bells:
    """The folder of bells beside one file."""

    def __init__(self, path: str, board: Board) -> None:
        self._folder = Path(f"{path}-bells")
        self._board = board
        self._seen = b""  # what was on the board when the others were last listed
        self._name = ""
        self._own: socket.socket | None = None
        self._out: socket.socket | None = None
        self._others: list[str] = []

    def hang(self) -> socket.socket | None:
        """Listen; None where the system does not let us, and then the poll has to do."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            # not from the pid alone: one that was killed leaves its bell behind, and pids come again
            self._name = f"{os.getpid()}-{os.urandom(8).hex()}{_SUFFIX}"
            self._own = self._bind()
            self._board.mark = os.urandom(_MARK_BYTES)
        return self._own

    def ring(self) -> None:
        """Wake everybody else who listens. Costs a look at the board where nobody does."""
        mark = self._board.mark
        if mark != self._seen:
            with contextlib.suppress(OSError):  # short of something: then they are listed at the next ring
                self._others = self._list()
                self._seen = mark
        for name in self._others:
            self._send(name)

    def take_down(self) -> None:
        """Stop listening."""
        if self._own is not None:
            self._own.close()
            with contextlib.suppress(OSError):
                (self._folder / self._name).unlink()

    def close(self) -> None:
        """Stop ringing."""
        if self._out is not None:
            self._out.close()

    def _bind(self) -> socket.socket:
        own = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            with self._address(self._name) as address:
                own.bind(address)
        except OSError:
            own.close()
            raise
        return own

    def _list(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            names = [path.name for path in self._folder.iterdir()]
            return [name for name in names if name.endswith(_SUFFIX) and name != self._name]
        return []

    def _send(self, name: str) -> None:
        try:
            if self._out is None:
                self._out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            with self._address(name) as address:
                self._out.sendto(b"!", address)
        except ConnectionRefusedError:  # whoever listened there is gone
            with contextlib.suppress(OSError):
                (self._folder / name).unlink()
        except OSError:
            pass  # it has not answered its bell yet, or we are short of something: it will look anyway

    @contextlib.contextmanager
    def _address(self, name: str) -> Iterator[str]:
        """A path that fits a socket address (108 bytes), however deep the file lies."""
        path = str(self._folder / name)
        if len(os.fsencode(path)) < _ADDRESS_BYTES_MAX:
            yield path
            return
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{folder}/{name}"
        finally:
            os.close(folder)


class Watch:
    """A thread that looks whenever the bell rings, and every `POLL_S` in any case."""

    def __init__(self, bells: Bells | None, look: Callable[[], None]) -> None:
        self._bells = bells
        self._look = look
        self._stop_in, self._stop_out = os.pipe()
        self._thread = threading.Thread(target=self._run, name="rota-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        os.write(self._stop_out, b"!")
        os.close(self._stop_out)
        if self._thread is not threading.current_thread():  # one who is told of a change may close the store
            self._thread.join()

    def _run(self) -> None:
        bell = self._bells.hang() if self._bells is not None else None
        ends = select.poll()  # not select(): that one refuses numbers above 1,023
        ends.register(self._stop_in, select.POLLIN)
        if bell is not None:
            ends.register(bell, select.POLLIN)
        while self._stop_in not in (ready := [end for end, _ in ends.poll(POLL_S * 1_000)]):
            self._look_once(bell if ready else None)
        os.close(self._stop_in)
        if self._bells is not None:
            self._bells.take_down()

    def _look_once(self, rung: socket.socket | None) -> None:
        try:
            if rung is not None:
                _drain(rung)
            self._look()
        except Exception:  # the net must hold: whoever waits here waits for the next look
            _log.exception("a look at what other processes wrote failed")


def _drain(bell: socket.socket) -> None:
    """Many rings are one."""
    with contextlib.suppress(BlockingIOError):
        while bell.recv(64):
            pass
