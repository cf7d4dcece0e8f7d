"""Layer 1: where rows live. `open` is the only place that names a concrete store."""

from __future__ import annotations

from rota.errors import StoreUnavailable
from rota.store.protocol import Statement, Store, Transaction
from rota.store.sqlite import SqliteStore

__all__ = ["Statement", "Store", "Transaction", "open"]


def open(url: str) -> Store:  # noqa: A001  # `store.open` reads as what it is; nobody imports it bare
    """Open a store by its address: a file's path, or `:memory:` for one that lives in this process."""
    if "://" in url:
        raise StoreUnavailable(f"no store for {url!r}", hint="Give a file's path, or :memory:.")
    return SqliteStore(url)
