"""Files, folders and processes for the store's tests."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rota import store
from rota.errors import RotaError
from rota.store.migrations import LATEST, STEPS
from tests.store.world import PATIENCE_S

# Processes that share only the file with this one. A fork server with the needed modules loaded starts them in a tenth
# of the time of a new interpreter.
CLEAN = multiprocessing.get_context("forkserver")
CLEAN.set_forkserver_preload(["tests.store.child_processes"])
UNPRIVILEGED = 65_534


def contents(folder: Path) -> dict[str, bytes]:
    """The bytes of every file in a folder."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def script(version: int = LATEST) -> str:
    """The SQL that creates a file of this version, as an earlier program left it."""
    steps = "".join(text for step, text in sorted(STEPS.items()) if step <= version)
    return f"{steps} INSERT INTO kernel_meta (key, value) VALUES ('schema_version', '{version}');"


def descriptors() -> int:
    """The number of open file descriptors."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # not a folder of files


@contextlib.contextmanager
def children(work: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> Iterator[list[BaseProcess]]:
    """Run child processes in the background; each must exit with 0."""
    started = [CLEAN.Process(target=work, args=each, daemon=True) for each in arguments]
    for process in started:
        process.start()
    try:
        yield list(started)
        for process in started:
            process.join(PATIENCE_S)
            assert process.exitcode == 0, f"a process ended with {process.exitcode}"
    finally:
        for process in started:
            process.kill()
            process.join()
            process.close()


def without_rights(work: Callable[..., str], *arguments: Any) -> str:
    """What work returns in a process without privileges, even if we are root."""
    pipe, end = CLEAN.Pipe(duplex=False)
    with children(_drop_rights, [(end, work, arguments)]):
        assert pipe.poll(PATIENCE_S), "the process sent nothing"
        return str(pipe.recv())


def _drop_rights(end: Any, work: Callable[..., str], arguments: tuple[Any, ...]) -> None:
    if os.geteuid() == 0:
        os.setegid(UNPRIVILEGED)
        os.seteuid(UNPRIVILEGED)
    end.send(work(*arguments))


def name_of_error(path: str, read_only: bool) -> str:
    """The name of the error that opening a file raises."""
    try:
        store.open(path, read_only=read_only).close()
    except RotaError as error:
        return type(error).__name__
    return "nothing"


def open_together(together: Any, paths: list[str]) -> None:
    """Open each file at the same time as other processes."""
    for path in paths:
        together.wait(PATIENCE_S)
        store.open(path).close()


@contextlib.contextmanager
def thousands_of_open_files() -> Iterator[None]:
    """Have so many open files during the block that new descriptors are above 1,023, which select() refuses."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], 4_096), limits[1]))
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        yield
    finally:
        for descriptor in others:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
