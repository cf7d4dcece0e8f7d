"""The exporter as a process of its own, beside the process that schedules or runs.

Making protobuf messages of ten thousand spans takes as long as scheduling ten thousand entries. In a process of its
own, with a lower priority, it takes none of the time of the scheduler's. It ends when the process that started it
closes its standard input, or is killed. One exporter works for a store at a time: it holds a lock beside the file, and
the others wait for it.
"""

from __future__ import annotations

import fcntl
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from rota.store.forks import owned
from rota.store.private_files import open_private

__all__ = ["ExporterProcess", "hold_exporter_lock", "lower_priority"]

LOCK_SUFFIX = ".otel.lock"
LOCK_POLL_S = 1.0
CLOSE_S = 15.0  # for the last pages, at the end
NICENESS = 5
_log = logging.getLogger("rota.telemetry")


class ExporterProcess:
    """A running exporter. It is closed with `close`, or when this process ends."""

    def __init__(self, store: str, *, is_quiet: bool = False) -> None:
        command = [sys.executable, "-m", "rota", "otel", "--store", store, "--until-eof"]
        errors = subprocess.DEVNULL if is_quiet else None
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors)  # noqa: S603  # this program itself

    @property
    def os_pid(self) -> int:
        """The process."""
        return self._process.pid

    def close(self) -> None:
        """Let it send what is in the journal, and wait for it."""
        assert self._process.stdin is not None  # noqa: S101  # a pipe was asked for
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            _log.warning("the exporter is stopped: the collector did not take the last events; the next one sends them")
            self._process.terminate()
            self._process.wait()

    def __enter__(self) -> ExporterProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def hold_exporter_lock(store: str, stop: threading.Event) -> Iterator[bool]:
    """Hold the lock of a file's exporter during the block; yields False if told to stop while another one has it."""
    descriptor = open_private(f"{store}{LOCK_SUFFIX}")
    with owned(descriptor):
        said = False
        while not stop.is_set():
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if not said:
                    _log.info("another process exports %s; waiting for it", store)
                    said = True
                stop.wait(LOCK_POLL_S)
            else:
                break
        yield not stop.is_set()


def lower_priority() -> None:
    """Let the programs that schedule and run go first."""
    with suppress(OSError):
        os.nice(NICENESS)
