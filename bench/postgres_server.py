"""A PostgreSQL for a benchmark: a new one in a folder of its own, with every commit on disk.

Both sides of a case use the same server, each in tables of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.postgres_server import PostgresServer  # it knows where the binaries are, and how to start them as root

__all__ = ["BenchServer"]

SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",  # no checkpoint in the middle of a round
}


class BenchServer:
    """A server that ends with its case."""

    def __init__(self, **settings: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rota-bench-")
        self._server = PostgresServer(Path(self._folder.name, "server"), settings={**SETTINGS, **settings})
        self._server.__enter__()
        self._schemas = 0

    @property
    def dsn(self) -> str:
        """Its address."""
        return self._server.dsn()

    def new_store(self) -> str:
        """Return the URL of a rota that does not exist yet."""
        self._schemas += 1
        return f"{self.dsn}&schema=rota_{self._schemas}"

    def close(self) -> None:
        """Stop it and remove its files."""
        self._server.__exit__()
        self._folder.cleanup()
