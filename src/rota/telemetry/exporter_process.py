"""The exporter as a process of its own, beside the process that schedules or runs.

Making and encoding a span takes longer than scheduling an entry, which has three of them. In a process of its own,
with a lower priority, it takes none of the scheduler's time. It ends when the process that started it
closes its standard input, or is killed. One exporter works for a store at a time: it holds a lock beside the file, or
at the server, and the others wait for it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any, TypeAlias

from rota.errors import NotEnabled
from rota.lazy import exports
from rota.store.addresses import is_postgres, without_password
from rota.store.forks import owned
from rota.store.private_files import open_private

__all__ = [
    "NOTE",
    "CheckLock",
    "ExporterProcess",
    "check_installed",
    "hold_exporter_lock",
    "lower_priority",
    "mark_start",
]

NOTE = "otel"  # of the journal: how far the exporter has come
LOCK_SUFFIX = "-otel"
LOCK_POLL_S = 1.0
CLOSE_S = 30.0  # for the last pages, at the end
NICENESS = 5
_load = exports("rota.store", {"postgres_locks": ("session_lock",)})  # psycopg is not always there
_log = logging.getLogger("rota.telemetry")
CheckLock: TypeAlias = Callable[[], bool]  # takes the lock, or takes it once more


def check_installed() -> None:
    """Raise `NotEnabled` unless the extra `otel` is installed."""
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.exporter.otlp.proto.http") is None:
        raise NotEnabled("OpenTelemetry is not installed", hint="Install it: pip install 'rota[otel]'.")


def mark_start(journal: Any) -> None:
    """Let the first exporter of a store begin here, although it takes a moment to start."""
    if journal.recall(NOTE) is None:
        journal.remember(NOTE, {"cursor": journal.cursor()})


class ExporterProcess:
    """A running exporter. It is closed with `close`, or when this process ends."""

    def __init__(self, store: str, *, is_quiet: bool = False) -> None:
        command = [sys.executable, "-m", "rota", "otel", "--until-eof"]
        environment = {**os.environ, "ROTA_STORE": store}  # others may read a command: a URL may have a password
        errors = subprocess.DEVNULL if is_quiet else None
        self._process = subprocess.Popen(  # noqa: S603  # this program itself; a Ctrl-C is not for it
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, process_group=0, env=environment
        )

    @property
    def os_pid(self) -> int:
        """The process."""
        return self._process.pid

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Let it send what is in the journal, and wait for it."""
        assert self._process.stdin is not None  # noqa: S101  # a pipe was asked for
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            _log.warning("the exporter is stopped: the collector did not take the last events; the next one sends them")
            self._process.terminate()
            self._process.wait()
            return
        if self._process.returncode != 0:
            _log.warning("the exporter has failed; to see why, and to send the rest: rota otel --once")

    def __enter__(self) -> ExporterProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def hold_exporter_lock(store: str, stop: threading.Event, *, waits: bool = True) -> Iterator[CheckLock | None]:
    """Hold the lock of a store's exporter during the block; yields None if another one has it until told to stop.

    What it yields else raises `StoreUnavailable` if the lock was lost, which ends with a session of PostgreSQL.
    """
    with _lock_of(store) as take:
        is_held = take()  # also if it is told to stop already: what is in the journal is still to be sent
        if not is_held and waits:
            _log.info("another process exports %s; waiting for it", without_password(store))
        while not is_held and waits and not stop.wait(LOCK_POLL_S):
            is_held = take()
        yield take if is_held else None


@contextmanager
def _lock_of(store: str) -> Iterator[CheckLock]:
    """Yield a function that tries to take the lock, also again: beside a file, or at the server, for all hosts."""
    if is_postgres(store):
        with _load("session_lock")(store, NOTE) as take:
            yield take
        return
    descriptor = open_private(f"{os.path.realpath(store)}{LOCK_SUFFIX}")  # one file, whichever path leads to it
    with owned(descriptor):
        yield lambda: _lock(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def lower_priority() -> None:
    """Let the programs that schedule and run go first."""
    with suppress(OSError):
        os.nice(NICENESS)
