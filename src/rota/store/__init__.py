"""The store: transactions on one SQLite file, in memory, or on PostgreSQL (layer 1).

`open` and `open_joined` are the only places that name a concrete store.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rota.clock import Clock
from rota.errors import StoreMissing, StoreUnavailable
from rota.lazy import exports
from rota.store.addresses import (
    check_address,
    driver_missing,
    host_path,
    is_mistyped,
    is_postgres,
    shown_address,
    without_password,
)
from rota.store.joined import JoinedStore
from rota.store.private_files import create_private, write_private
from rota.store.protocol import Row, Statement, Store, Transaction, TransactionEffects, WakeHandle
from rota.store.requests import PostedWrite
from rota.store.sqlite import NORMAL_DURABILITY_KEY, SQLITE_OLDEST, Durability, SqliteStore
from rota.store.sqlite_engine import MEMORY

if TYPE_CHECKING:
    from rota.store.postgres import PostgresStore
    from rota.store.postgres_health import ServerHealth, ServerSession, server_health

__all__ = [
    "NORMAL_DURABILITY_KEY",
    "SQLITE_OLDEST",
    "Durability",
    "JoinedStore",
    "PostedWrite",
    "Row",
    "ServerHealth",
    "ServerSession",
    "Statement",
    "Store",
    "Transaction",
    "TransactionEffects",
    "WakeHandle",
    "check_address",
    "create_private",
    "host_path",
    "is_mistyped",
    "is_postgres",
    "open",
    "open_joined",
    "server_health",
    "shown_address",
    "without_password",
    "write_private",
]

# psycopg is loaded where a store on PostgreSQL is used
__getattr__ = _load = exports(
    "rota.store",
    {"postgres": ("PostgresStore",), "postgres_health": ("ServerHealth", "ServerSession", "server_health")},
)


def open(  # noqa: A001  # callers write `store.open`; the bare name is never imported
    url: str,
    *,
    clock: Clock | None = None,
    durability: Durability = "full",
    read_only: bool = False,
    create: bool = True,
) -> Store:
    """Open a store: the path of a file, `:memory:` for one that lives in this process, or `postgresql://…?schema=rota`.

    With durability "normal" no commit is flushed to disk: a power cut or a crash of the system loses acknowledged
    work of the last seconds or minutes. A crash of the process loses nothing in either case.

    A store that does not exist is created; without `create` it raises StoreMissing.
    """
    return _open(url, clock=clock, durability=durability, read_only=read_only, create=create)


def open_joined(
    path: str, *, clock: Clock | None = None, durability: Durability = "full", create: bool = True
) -> JoinedStore:
    """Open a store that accepts posted writes, as the daemon does."""
    return JoinedStore(_open(path, clock=clock, durability=durability, read_only=False, create=create))


def _open(
    url: str, *, clock: Clock | None, durability: Durability, read_only: bool, create: bool
) -> SqliteStore | PostgresStore:
    if is_postgres(url):
        try:
            make: type[PostgresStore] = _load("PostgresStore")
        except ModuleNotFoundError as problem:
            raise driver_missing(problem) from problem
        return make(url, clock=clock, durability=durability, read_only=read_only, create=create)
    check_address(url)
    if "://" in url:
        hint = "Give the path of a file, `:memory:`, or postgresql://user@host/database?schema=rota."
        raise StoreUnavailable(f"no store for {url.partition('://')[0]}://", hint=hint)
    if not create and url != MEMORY and not Path(url).exists():
        path = os.path.abspath(url)  # noqa: PTH100  # a link is named as it was given
        raise StoreMissing(f"there is no store at {path}", path=path)
    return SqliteStore(url, clock=clock, durability=durability, read_only=read_only)
