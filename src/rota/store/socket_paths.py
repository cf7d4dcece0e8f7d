"""Unix sockets whose path is longer than the system allows.

The address of a unix socket has room for 107 bytes, and the folder of a store may be deeper than that. Then the socket
is bound and connected to through its open folder: `/proc/self/fd/7/rota.sock` is the same file. Only the name of the
socket itself must be short.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from rota.errors import StoreUnavailable

__all__ = ["RUN_FOLDER_PREFIX", "SOCKET_PATH_BYTES_MAX", "check_socket_path", "is_run_socket", "socket_path"]

RUN_FOLDER_PREFIX = "rota-runs-"  # of the folder with the socket of a supervisor for its runs

SOCKET_PATH_BYTES_MAX = 107  # what `sun_path` holds on Linux
NAME_BYTES_MAX = SOCKET_PATH_BYTES_MAX - len("/proc/self/fd/1234567/")
_DESCRIPTORS = Path("/proc/self/fd")


def check_socket_path(path: str) -> None:
    """Raise `StoreUnavailable` if no socket can have this path."""
    size, name_size = len(os.fsencode(path)), len(os.fsencode(Path(path).name))
    if size <= SOCKET_PATH_BYTES_MAX or (name_size <= NAME_BYTES_MAX and _DESCRIPTORS.is_dir()):
        return
    text = f"the socket's path has {size} bytes, at most {SOCKET_PATH_BYTES_MAX} are possible: {path}"
    if name_size > NAME_BYTES_MAX:
        text = f"the socket's name has {name_size} bytes, at most {NAME_BYTES_MAX} are possible: {path}"
    raise StoreUnavailable(text, hint="Give the daemon a shorter one: `rota serve --socket PATH`.")


def is_run_socket(path: str) -> bool:
    """Whether a path is that of a supervisor's own socket for its runs, which no other process serves later."""
    return Path(path).parent.name.startswith(RUN_FOLDER_PREFIX)


@contextlib.contextmanager
def socket_path(path: str) -> Iterator[str]:
    """The path of a socket, for `bind` or `connect` inside the block; a short one, however deep the folder lies."""
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        yield path
        return
    folder = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield str(_DESCRIPTORS / str(folder) / Path(path).name)
    finally:
        os.close(folder)
