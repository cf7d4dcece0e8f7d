"""Layer 1: where rows live. `open` is the only place that names a concrete store."""

from __future__ import annotations

from rota.clock import Clock
from rota.errors import StoreUnavailable
from rota.store.joined import JointStore
from rota.store.protocol import Nudge, Row, Statement, Store, Transaction
from rota.store.sqlite import Durability, SqliteStore

__all__ = ["JointStore", "Nudge", "Row", "Statement", "Store", "Transaction", "open", "open_joint"]


def open(  # noqa: A001  # `store.open` reads as what it is; nobody imports it bare
    url: str, *, clock: Clock | None = None, durability: Durability = "full", read_only: bool = False
) -> Store:
    """Open a store by its address: a file's path, or `:memory:` for one that lives in this process."""
    if "://" in url:
        raise StoreUnavailable(f"no store for {url!r}", hint="Give a file's path, or :memory:.")
    return SqliteStore(url, clock=clock, durability=durability, read_only=read_only)


def open_joint(path: str, *, clock: Clock | None = None, durability: Durability = "full") -> JointStore:
    """Open a store to which whole verbs can be posted, as a daemon does."""
    return JointStore(SqliteStore(path, clock=clock, durability=durability))
