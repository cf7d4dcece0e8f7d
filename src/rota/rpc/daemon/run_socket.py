"""A supervisor's own socket: through it the programs that it runs act for their runs, without a daemon.

The supervisor has opened the store's file itself. When it starts its first program, a thread of its process begins to
serve a unix socket over the same kernel: the daemon's protocol and its executor, but only for clients that show the
valid token of a run (kernel/run_tokens.py). So `rota enqueue` or `rota acquire` inside a run work as they do at a
daemon, and with the same rights. A fleet of Python functions never starts the thread.

The socket is in a new folder that only its owner may enter, in XDG_RUNTIME_DIR or the folder for temporary files, where
its path is short enough for programs that do not know store/socket_paths.py. The folder is removed at the end. That of
a killed process is removed by the next supervisor of the same user. A lock on the folder tells the two apart; it also
keeps system services that remove old temporary files away from it.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import logging
import os
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path

from rota.errors import StoreUnavailable
from rota.rpc.daemon.buffers import SharedMemory
from rota.rpc.daemon.call_executor import CallExecutor
from rota.rpc.daemon.connections import fit_open_files
from rota.rpc.daemon.transport import DaemonLimits
from rota.rpc.daemon.unix_listener import UnixListener
from rota.rpc.handlers import RpcHandlers
from rota.service.dispatcher import Dispatcher
from rota.store import JoinedStore
from rota.store.socket_paths import RUN_FOLDER_PREFIX, SOCKET_PATH_BYTES_MAX

__all__ = ["FOLDER_PREFIX", "RunSocket", "temporary_folders"]

FOLDER_PREFIX = RUN_FOLDER_PREFIX
_SOCKET = "rota.sock"
_TRIES_MAX = 10  # folders that another process may remove while they are made
_LIMITS = DaemonLimits(connections_max=1_024, grace_s=2.0)  # a run that waits for a limit keeps its connection
_log = logging.getLogger("rota.fleet")


class RunSocket:
    """The socket of one supervisor's process. Create it to start serving."""

    def __init__(self, dispatcher: Dispatcher, joined: JoinedStore, *, runs_only: bool = True) -> None:
        """Serve the store of a dispatcher; raises `StoreUnavailable` if no socket can be made.

        Without `runs_only` it serves every token, as a daemon does: for the MCP server of a file (rota.mcp.upstream).
        """
        self._dispatcher = dispatcher
        self._joined = joined
        self._runs_only = runs_only
        self._os_pid = os.getpid()
        self._is_closed = False
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        try:
            self._folder, self._lock = _make_folder()
        except OSError as problem:
            hint = "Set TMPDIR to a folder that you can write."
            raise StoreUnavailable(f"cannot make a folder for the socket of runs: {problem}", hint=hint) from problem
        self.address = f"unix:{self._folder / _SOCKET}"
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="rota-run-socket", daemon=True)
        atexit.register(self.close)
        try:
            self._thread.start()
            started.result()
        except (OSError, RuntimeError) as problem:  # the second: no more threads
            self.close()
            raise StoreUnavailable(f"cannot listen on {self._folder / _SOCKET}: {problem}") from problem

    def close(self) -> None:
        """Stop serving and remove the folder; a second call, or one in a forked child, does nothing."""
        if self._is_closed or os.getpid() != self._os_pid:
            return
        self._is_closed = True
        atexit.unregister(self.close)
        with contextlib.suppress(RuntimeError, AttributeError):  # the loop has ended, or never started
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread.is_alive():
            self._thread.join(_LIMITS.grace_s * 2)
        _remove_folder(self._folder)
        os.close(self._lock)

    def _run(self, started: Future[None]) -> None:
        try:
            asyncio.run(self._serve(started))
        except BaseException as problem:
            if not started.done():
                started.set_exception(problem)
            else:
                _log.exception("the socket for runs has failed: commands inside runs do not work any more")

    async def _serve(self, started: Future[None]) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        handlers = RpcHandlers(self._dispatcher.kernel, self._dispatcher)
        limits = fit_open_files(_LIMITS, transports=1)
        executor = CallExecutor(self._loop, self._joined, handlers, limits)
        listener = UnixListener(executor, SharedMemory(limits), limits, runs_only=self._runs_only)
        try:
            await listener.open(str(self._folder / _SOCKET))
            started.set_result(None)
            await self._stop.wait()
            await listener.close()
        finally:
            executor.close()
            handlers.close()


# --- the folder ------------------------------------------------------------------------------------


def temporary_folders() -> list[Path]:
    """Return the folders in which the folder of a socket may be made, the preferred one first."""
    named = (os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp")  # noqa: S108  # the last resort
    longest = SOCKET_PATH_BYTES_MAX - len(f"/{FOLDER_PREFIX}12345678/{_SOCKET}")
    found = sorted(filter(None, dict.fromkeys(named)), key=lambda name: len(os.fsencode(name)) > longest)
    return [folder for folder in map(Path, found) if folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)]


def _make_folder() -> tuple[Path, int]:
    """Make a locked folder for a socket; return it and its lock. Folders of killed processes are removed first."""
    for parent in temporary_folders():
        _remove_stale(parent)
        for _ in range(_TRIES_MAX):
            folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent))  # mode 0700
            lock = _lock_of(folder)
            if lock is not None:
                return folder, lock
    raise FileNotFoundError("no folder for temporary files can be written")


def _lock_of(folder: Path) -> int | None:
    """Lock a folder and return the descriptor; None if another process has locked or removed it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if folder.lstat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _remove_stale(parent: Path) -> None:
    """Remove the folders of this user's processes that have ended: their locks are free."""
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid() and (lock := _lock_of(folder)) is not None:
                _remove_folder(folder)
                os.close(lock)


def _remove_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):
        (folder / _SOCKET).unlink(missing_ok=True)
        folder.rmdir()
