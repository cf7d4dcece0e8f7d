"""Helpers for tests with real processes: commands, lines from pipes, waiting for a process to exit."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rota.host.command import Command
from rota.host.reaper_client import ReaperClient
from rota.host.session import Session

PATIENCE_S = 60.0  # ends a test that hangs
STOLEN_NS_MAX = 10_000_000  # a tick: less than the tolerance of any share that is measured here
T = TypeVar("T")
ENV = {"PATH": os.environ["PATH"]}


def sh(script: str, **fields: object) -> Command:
    """A shell script as a command."""
    return Command(argv=("sh", "-c", script), env=ENV, **fields)  # type: ignore[arg-type]


def py(script: str, *arguments: str, **fields: object) -> Command:
    """A Python script as a command."""
    return Command(argv=(sys.executable, "-I", "-c", script, *arguments), env=ENV, **fields)  # type: ignore[arg-type]


def py_with_rota(script: str) -> Command:
    """A Python script that can import the same modules as the tests."""
    return Command(argv=(sys.executable, "-c", script), env={**ENV, "PYTHONPATH": os.pathsep.join(sys.path)})


def output_of(reaper: ReaperClient, command: Command, **spawn: object) -> bytes:
    """Run a command and return all its output."""
    with Pipe() as pipe:
        session = reaper.spawn(command, stdout=pipe.theirs, **spawn)  # type: ignore[arg-type]
        pipe.close_theirs()
        written = pipe.rest()
        assert session.wait(PATIENCE_S) is not None
        return written


class Pipe:
    """The output of a command, read line by line."""

    def __init__(self) -> None:
        self.ours, self.theirs = os.pipe()
        self._read = b""
        self._theirs_open = True

    def close_theirs(self) -> None:
        if self._theirs_open:
            os.close(self.theirs)
            self._theirs_open = False

    def write_line(self, text: str) -> None:
        """Write a line from the test."""
        os.write(self.theirs, f"{text}\n".encode())

    def line(self) -> str:
        """Return the next line; empty when all writers have closed. Fails if none arrives in time."""
        while b"\n" not in self._read and self._more():
            pass
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def rest(self) -> bytes:
        """Return everything until all writers have closed."""
        while self._more():
            pass
        rest, self._read = self._read, b""
        return rest

    def _more(self) -> bool:
        assert select.select([self.ours], [], [], PATIENCE_S)[0], "no output arrived"
        chunk = os.read(self.ours, 65536)
        self._read += chunk
        return bool(chunk)

    def __enter__(self) -> Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_theirs()
        os.close(self.ours)


def watch(pid: int) -> int:
    """A descriptor that becomes readable when a process exits. Open it while the process lives: pids are reused."""
    return os.pidfd_open(pid)


def dies(pidfd: int) -> bool:
    """Wait for a watched process to exit."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    try:
        return bool(poll.poll(PATIENCE_S * 1000))
    finally:
        os.close(pidfd)


def until(condition: Callable[[], bool]) -> None:
    """Poll a condition until it holds, letting other threads run meanwhile."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        os.sched_yield()


def stolen_ns() -> int:
    """How much CPU time the host of this machine has taken away, if this machine is a guest.

    A core accounts for it when it runs again, so each is visited before the figure is read.
    """
    cores = os.sched_getaffinity(0)
    try:
        for core in cores:
            os.sched_setaffinity(0, {core})
    finally:
        os.sched_setaffinity(0, cores)
    return int(Path("/proc/stat").read_text().split()[8]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def cpu_measured(
    read: Callable[[], T | None],
    is_expected: Callable[[T], bool],
    wait: Callable[[Callable[[], bool]], None] = until,
) -> T:
    """Return what `read` finds about the CPU time since this call, as soon as it finds something.

    The time that a host takes away counts as used by whoever was running, and the kernel gives it back to the others
    afterwards. So if it took some, and only then, `read` is called until it finds what is expected.
    """
    stolen = stolen_ns()
    found: list[T] = []

    def is_settled() -> bool:
        if (value := read()) is None:
            return False
        found[:] = [value]
        return is_expected(value) or stolen_ns() - stolen <= STOLEN_NS_MAX

    wait(is_settled)
    return found[0]


def open_descriptors(reaper: ReaperClient) -> tuple[int, int]:
    """The number of open descriptors in this process and in the reaper."""
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path(f"/proc/{reaper.pid}/fd").iterdir()))


def state_of(pid: int) -> str:
    """R runs, S sleeps, T is stopped, Z is a zombie, X is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


@contextmanager
def running(reaper: ReaperClient, command: Command, **spawn: object) -> Iterator[tuple[Session, Pipe]]:
    """A command that has printed "ready" and continues; killed at the end."""
    with Pipe() as pipe:
        session = reaper.spawn(command, stdout=pipe.theirs, **spawn)  # type: ignore[arg-type]
        pipe.close_theirs()
        assert pipe.line() == "ready"
        try:
            yield session, pipe
        finally:
            session.kill()
            session.wait(PATIENCE_S)


@contextmanager
def client(script: str) -> Iterator[tuple[subprocess.Popen[bytes], Pipe]]:
    """Another process that uses rota; its stdout is the pipe."""
    with Pipe() as pipe:
        process = subprocess.Popen([sys.executable, "-c", script], stdout=pipe.theirs, stdin=subprocess.PIPE)
        pipe.close_theirs()
        try:
            yield process, pipe
        finally:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
