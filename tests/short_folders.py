"""Short folders for sockets that tests or other programs make: a path has room for 107 bytes, TMPDIR may be longer."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["SHORT", "short_folder"]

SHORT = "/tmp"


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rota-t-", dir=SHORT, ignore_cleanup_errors=True) as folder:
        yield Path(folder)
