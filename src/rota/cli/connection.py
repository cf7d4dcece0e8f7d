"""Open the scheduler API at an address: a store in this process (a file, or PostgreSQL), or a daemon.

Commands use only the API's attributes and functions, which are the same for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rota import store
from rota.cli.options import FLEET_FILE, access
from rota.errors import InvalidInput, StoreMissing
from rota.kernel import AgentReads, EntryReads

if TYPE_CHECKING:
    from rota.cli.embedded_api import EmbeddedApi
    from rota.kernel import Kernel
    from rota.model import EntryReport
    from rota.rpc import Client
    from rota.service import GraphRunVerbs, RunLogs

__all__ = ["is_file", "is_store", "open_api", "open_client", "open_file"]

RETRY_S = 2.0  # how long a command retries to connect: enough for a daemon that is starting
_REMOTE = ("unix:", "http:", "https:", "postgres:", "postgresql:")


class FileApi:
    """The scheduler API of a file that this process opened.

    A command that only lists entries needs to read them, most others need the kernel; the dispatcher and the policies
    are loaded for those that need more.
    """

    _KERNEL = frozenset(
        (
            "clock",
            "contexts",
            "env",
            "info",
            "journal",
            "ledger",
            "projects",
            "supervision",
            "terminate",
            "usage",
            "workers",
        )
    )

    def __init__(self, opened: store.Store) -> None:
        self.store = opened
        self._whole: EmbeddedApi | None = None
        self.agents = _FilePart(AgentReads(opened), lambda: self.kernel.agents)
        self.queue = _FilePart(EntryReads(opened), lambda: self.kernel.queue)

    @cached_property
    def kernel(self) -> Kernel:
        """The whole kernel."""
        from rota.kernel import Kernel

        return Kernel(self.store)

    def __getattr__(self, name: str) -> Any:
        if name in self._KERNEL:
            return getattr(self.kernel, name)
        if self._whole is None:
            from rota.cli.embedded_api import EmbeddedApi

            self._whole = EmbeddedApi(self.kernel)
        return getattr(self._whole, name)

    @cached_property
    def graphs(self) -> GraphRunVerbs:
        """Graph runs."""
        from rota.service import GraphRunVerbs

        return GraphRunVerbs(self.kernel)

    @cached_property
    def logs(self) -> RunLogs:
        """What runs have printed."""
        from rota.service import RunLogs

        return RunLogs(cast("Kernel", self))  # reading them needs the entries only

    def show(self, sched_id: int) -> EntryReport:
        """Return everything about one entry."""
        from rota.service import entry_report

        return entry_report(self.store, self.store.clock, sched_id)

    def close(self) -> None:
        """Close the store, and end what was started."""
        self.store.close() if self._whole is None else self._whole.close()

    def __enter__(self) -> FileApi:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _FilePart:
    """A part of the kernel: what reads is there at once, every other method loads the whole kernel."""

    def __init__(self, reads: AgentReads | EntryReads, whole: Callable[[], Any]) -> None:
        self._reads, self._whole = reads, whole

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reads if hasattr(self._reads, name) else self._whole(), name)


def open_api(address: str, *, create: bool = False) -> EmbeddedApi | Client:
    """Open the scheduler API at an address; a missing file is created only with `create`."""
    if not is_store(address):
        return open_client(address)
    return cast("EmbeddedApi", FileApi(_open(address, create=create)))


def open_client(address: str, *, retry_s: float = RETRY_S) -> Client:
    """Return a client of a daemon, with the token file and CA file given on the command line."""
    from rota.rpc import connect, is_remote

    if not is_remote(address):
        store.check_address(address)
        raise _not_a_file(address)
    return connect(address, token_file=access.token_file, ca_file=access.ca_file, retry_s=retry_s)


@contextmanager
def open_file(address: str, *, create: bool = False, read_only: bool = False) -> Iterator[Kernel]:
    """Open a store in this process and yield its kernel."""
    from rota.kernel import Kernel

    opened = _open(address, create=create, read_only=read_only)
    try:
        yield Kernel(opened)
    finally:
        opened.close()


def _open(address: str, *, create: bool = False, read_only: bool = False) -> store.Store:
    if not is_store(address):
        store.check_address(address)
        raise _not_a_file(address)
    try:
        return store.open(address, read_only=read_only, create=create)
    except StoreMissing as problem:
        if is_file(address):
            problem.hint = f"Give one with --store or ROTA_STORE, or create one: {_creates_one()}."
        raise


def _creates_one() -> str:
    return "rota run" if Path(FLEET_FILE).exists() else "rota agents create NAME"


def _not_a_file(address: str) -> InvalidInput:
    hint = "Give the store's file with --store, or postgresql://user@host/database?schema=rota."
    return InvalidInput(f"{store.without_password(address)} is not a file", field="store", hint=hint)


def is_store(address: str) -> bool:
    """Return whether this process opens the store at an address itself: a file, or a schema on PostgreSQL."""
    return is_file(address) or store.is_postgres(address)


def is_file(address: str) -> bool:
    """Return whether an address is a file's path."""
    return not address.startswith(_REMOTE) and "://" not in address and not store.is_mistyped(address)
