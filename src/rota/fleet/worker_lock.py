"""A file lock on a worker id: only one supervisor at a time works under it.

A supervisor that starts under the worker id of an earlier process immediately takes over the claims of that process.
If the earlier process still runs (the same fleet was started twice by mistake), its runs would be started a second
time. So a supervisor with a worker id locks a file of that name. The operating system releases the lock when the
process ends, however it ends; until then a second supervisor is refused before it changes anything.

The lock covers one machine, or machines that share a file system with locks. Hosts that share a store on PostgreSQL are
covered by the store (`Store.hold_worker_id`). Elsewhere, choose distinct worker ids.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from rota.errors import InvalidInput, UnsafePath, WorkerExists
from rota.model.checks import Checks
from rota.store.forks import owned
from rota.store.private_files import make_private_folder, open_private

__all__ = ["hold_worker_id"]

NAME_BYTES_MAX = 255  # of a file's name
_PID_BYTES = 32
_NOT_LOCKED = "worker id %s is not locked, a second supervisor could use it: %s"
_checks = Checks("Supervisor", InvalidInput)
_log = logging.getLogger("rota.fleet")


@contextmanager
def hold_worker_id(folder: str, worker_id: str | None) -> Iterator[None]:
    """Lock a worker id during the block, or raise `WorkerExists`; None locks nothing.

    The file is not removed: otherwise two processes could lock two files of the same name.
    """
    descriptor = None if worker_id is None else _open(folder, worker_id)
    if worker_id is None or descriptor is None:
        yield
        return
    with owned(descriptor):  # a forked child that outlives the supervisor must not keep its worker id
        _lock(descriptor, worker_id)
        yield


def _open(folder: str, worker_id: str) -> int | None:
    """Open the lock file; None, with a warning, if it cannot be created: the supervisor then runs without a lock."""
    path = Path(folder, _file_name(worker_id))
    try:
        os.close(make_private_folder(folder, follows_own_link=True, parents=True))
        return open_private(path)
    except (OSError, UnsafePath) as problem:
        _log.warning(_NOT_LOCKED, worker_id, problem)
        return None


def _file_name(worker_id: str) -> str:
    """Return the name of the lock file. A worker id may look like a path (`rack/box`), so it is encoded."""
    name = quote(_checks.name("worker_id", worker_id), safe="") + ".lock"
    return name if len(name) <= NAME_BYTES_MAX else f"{hashlib.sha256(worker_id.encode()).hexdigest()}.lock"


def _lock(descriptor: int, worker_id: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, _PID_BYTES, 0).decode(errors="replace").strip() or "unknown"
        raise WorkerExists(
            f"worker id {worker_id} is in use by the supervisor in process {holder}", worker_id=worker_id
        ) from None
    except OSError as problem:  # the file system has no locks
        _log.warning(_NOT_LOCKED, worker_id, problem)
        return
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
