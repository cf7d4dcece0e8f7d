"""What commands talk to: an address becomes a desk.

A desk has the kernel's parts as attributes and the claim verbs beside them. Commands use nothing else, so whatever
has the same attributes and signatures can stand behind them.
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
from rota.model.explanation import Explanation
from rota.rpc.client import Client, connect, is_remote
from rota.service.dispatcher import Dispatcher
from rota.service.explain import explain

__all__ = ["EmbeddedDesk", "is_file", "open_desk", "open_file", "reach"]

REACH_S = 2.0  # how long a command tries to reach a daemon: one that is just starting, not one that is not there
_REMOTE = ("unix:", "http:", "https:", "postgres:", "postgresql:")


class EmbeddedDesk(Dispatcher):
    """A desk over a file that this process opened itself."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.terminate, self.info = kernel.terminate, kernel.info

    def explain(
        self,
        sched_id: int,
        *,
        worker_id: str = "anybody",
        max_n: int = 1,
        policy: str | None = None,
        kinds: tuple[str, ...] = (),
        now: float | None = None,
    ) -> Explanation:
        """Why an entry is not running."""
        return explain(
            self,
            sched_id,
            worker_id=worker_id,
            max_n=max_n,
            policy=policy,
            kinds=kinds,
            now=now,
            from_outside=True,
        )

    def __enter__(self) -> EmbeddedDesk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_desk(address: str, *, create: bool = False) -> EmbeddedDesk | Client:
    """The desk at an address, in this process or a daemon's.

    A file that is not there is made only by those who put something in first.
    """
    return reach(address) if is_remote(address) else EmbeddedDesk(_kernel(address, create=create))


def reach(address: str, *, retry_s: float = REACH_S) -> Client:
    """A client of a daemon, with what was said about getting in."""
    return connect(address, token_file=access.token_file, ca_file=access.ca_file, retry_s=retry_s)


@contextmanager
def open_file(address: str, *, create: bool = False, read_only: bool = False) -> Iterator[Kernel]:
    """The kernel over a file, for those who care for the file itself."""
    kernel = _kernel(address, create=create, read_only=read_only)
    try:
        yield kernel
    finally:
        kernel.store.close()


def _kernel(address: str, *, create: bool = False, read_only: bool = False) -> Kernel:
    if not is_file(address):
        raise InvalidInput(f"{address} is not a file", field="store", hint="Name the store's file with --store.")
    if not create and not Path(address).exists():
        raise StoreUnavailable(
            f"there is no store at {os.path.abspath(address)}",  # noqa: PTH100  # a link is named as it was given
            hint="Name one with --store or ROTA_STORE, or begin one: rota agents create NAME.",
        )
    return Kernel(store.open(address, read_only=read_only))


def is_file(address: str) -> bool:
    """Whether an address is a file's path."""
    return not address.startswith(_REMOTE) and "://" not in address
