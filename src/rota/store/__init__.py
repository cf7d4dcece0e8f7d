"""The store: transactions on one SQLite file or in memory (layer 1).

`open` and `open_joined` are the only places that name a concrete store.
"""

from __future__ import annotations

from rota.clock import Clock
from rota.errors import StoreUnavailable
from rota.store.joined import JoinedStore
from rota.store.private_files import create_private, write_private
from rota.store.protocol import Row, Statement, Store, Transaction, TransactionEffects, WakeHandle
from rota.store.requests import PostedWrite
from rota.store.sqlite import NORMAL_DURABILITY_KEY, SQLITE_OLDEST, Durability, SqliteStore

__all__ = [
    "NORMAL_DURABILITY_KEY",
    "SQLITE_OLDEST",
    "Durability",
    "JoinedStore",
    "PostedWrite",
    "Row",
    "Statement",
    "Store",
    "Transaction",
    "TransactionEffects",
    "WakeHandle",
    "create_private",
    "open",
    "open_joined",
    "write_private",
]


def open(  # noqa: A001  # callers write `store.open`; the bare name is never imported
    url: str, *, clock: Clock | None = None, durability: Durability = "full", read_only: bool = False
) -> Store:
    """Open a store: the path of a file, or `:memory:` for one that lives in this process.

    With durability "normal" no commit is flushed to disk: a power cut or a crash of the system loses acknowledged
    work of the last seconds or minutes. A crash of the process loses nothing in either case.
    """
    _check_url(url)
    return SqliteStore(url, clock=clock, durability=durability, read_only=read_only)


def open_joined(path: str, *, clock: Clock | None = None, durability: Durability = "full") -> JoinedStore:
    """Open a store that accepts posted writes, as the daemon does."""
    _check_url(path)
    return JoinedStore(SqliteStore(path, clock=clock, durability=durability))


def _check_url(url: str) -> None:
    if "://" in url:
        raise StoreUnavailable(f"no store for {url!r}", hint="Give the path of a file, or `:memory:`.")
