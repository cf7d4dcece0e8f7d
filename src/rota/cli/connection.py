"""Open the scheduler API at an address: a file in this process, or a daemon.

Commands use only the API's attributes and functions, which are the same for both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rota import store
from rota.cli.options import access
from rota.errors import InvalidInput, StoreUnavailable
from rota.kernel import Kernel
from rota.model import Explanation
from rota.rpc import Client, connect, is_remote
from rota.service import Dispatcher, explain

__all__ = ["EmbeddedApi", "is_file", "open_api", "open_client", "open_file"]

RETRY_S = 2.0  # how long a command retries to connect: enough for a daemon that is starting
_REMOTE = ("unix:", "http:", "https:", "postgres:", "postgresql:")


class EmbeddedApi(Dispatcher):
    """The scheduler API of a file that this process opened."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.terminate, self.info = kernel.terminate, kernel.info

    def explain(
        self,
        sched_id: int,
        *,
        worker_id: str = "any-worker",
        max_n: int = 1,
        policy: str | None = None,
        kinds: tuple[str, ...] = (),
        now: float | None = None,
    ) -> Explanation:
        """Explain why an entry is not running."""
        return explain(
            self,
            sched_id,
            worker_id=worker_id,
            max_n=max_n,
            policy=policy,
            kinds=kinds,
            now=now,
            policy_from_store=True,
        )

    def __enter__(self) -> EmbeddedApi:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_api(address: str, *, create: bool = False) -> EmbeddedApi | Client:
    """Open the scheduler API at an address; a missing file is created only with `create`."""
    return open_client(address) if is_remote(address) else EmbeddedApi(_kernel(address, create=create))


def open_client(address: str, *, retry_s: float = RETRY_S) -> Client:
    """Return a client of a daemon, with the token file and CA file given on the command line."""
    return connect(address, token_file=access.token_file, ca_file=access.ca_file, retry_s=retry_s)


@contextmanager
def open_file(address: str, *, create: bool = False, read_only: bool = False) -> Iterator[Kernel]:
    """Open a file and yield its kernel."""
    kernel = _kernel(address, create=create, read_only=read_only)
    try:
        yield kernel
    finally:
        kernel.store.close()


def _kernel(address: str, *, create: bool = False, read_only: bool = False) -> Kernel:
    if not is_file(address):
        raise InvalidInput(f"{address} is not a file", field="store", hint="Give the store's file with --store.")
    if not create and not Path(address).exists():
        raise StoreUnavailable(
            f"there is no store at {os.path.abspath(address)}",  # noqa: PTH100  # a link is named as it was given
            hint="Give one with --store or ROTA_STORE, or create one: rota agents create NAME.",
        )
    return Kernel(store.open(address, read_only=read_only))


def is_file(address: str) -> bool:
    """Return whether an address is a file's path."""
    return not address.startswith(_REMOTE) and "://" not in address
