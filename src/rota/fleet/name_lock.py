"""A supervisor's name, held while it lives.

A supervisor that comes back under its name takes over at once what its earlier life held. If that life is not over (the
same fleet was started twice by mistake), its runs would be begun a second time beside the first. So whoever works
under a name holds a lock on a file of that name: the system gives it free when the process ends, however it ends, and
until then a second one is refused before it has touched anything.

The file tells one machine, or those that share a file system with locks. On others, names are for people to keep apart.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from rota.errors import WorkerExists

__all__ = ["held_name"]

_PID_BYTES = 32
_log = logging.getLogger("rota.runtime")


@contextmanager
def held_name(folder: str, worker_id: str | None) -> Iterator[None]:
    """Hold a name meanwhile, or raise `WorkerExists`; without a name there is nothing to hold.

    The file stays: to remove it would let two take the same name.
    """
    descriptor = None if worker_id is None else _opened(folder, worker_id)
    if worker_id is None or descriptor is None:
        yield
        return
    try:
        _lock(descriptor, worker_id)
        yield
    finally:
        os.close(descriptor)


def _opened(folder: str, worker_id: str) -> int | None:
    """The file of a name. Where none can be made nobody is kept from working, and it is said."""
    path = Path(folder, f"{quote(worker_id, safe='')}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        _log.warning("nobody can be kept from working as %s too: %s", worker_id, problem)
        return None


def _lock(descriptor: int, worker_id: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(descriptor, _PID_BYTES, 0).decode(errors="replace").strip() or "unknown"
        raise WorkerExists(
            f"a supervisor called {worker_id} is at work already, as process {holder}", worker_id=worker_id
        ) from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
