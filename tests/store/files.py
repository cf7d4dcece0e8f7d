"""Files, folders and processes for the store's tests."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rota import store
from rota.errors import RotaError
from rota.store.migrations import LATEST, STEPS
from tests.store.world import PATIENCE_S

# Processes that share nothing with us but the file. They come from a server that has loaded what they need and
# nothing more, which takes a tenth of the time of a new interpreter.
CLEAN = multiprocessing.get_context("forkserver")
CLEAN.set_forkserver_preload(["tests.store.deeds"])
NOBODY = 65_534


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, byte for byte."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def script(version: int = LATEST) -> str:
    """The SQL that makes a file of this version, as an earlier program would have left it."""
    steps = "".join(text for step, text in sorted(STEPS.items()) if step <= version)
    return f"{steps} INSERT INTO kernel_meta (key, value) VALUES ('schema_version', '{version}');"


def descriptors() -> int:
    """How many files this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # not a folder of files


@contextlib.contextmanager
def children(work: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> Iterator[list[BaseProcess]]:
    """Processes that are at work meanwhile; each must end well."""
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
    """What work says in a process that may only do what anybody may, even if we are root."""
    pipe, end = CLEAN.Pipe(duplex=False)
    with children(_drop_rights, [(end, work, arguments)]):
        assert pipe.poll(PATIENCE_S), "it said nothing"
        return str(pipe.recv())


def _drop_rights(end: Any, work: Callable[..., str], arguments: tuple[Any, ...]) -> None:
    if os.geteuid() == 0:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    end.send(work(*arguments))


def name_of_error(path: str, read_only: bool) -> str:
    """What opening a file raises, by name."""
    try:
        store.open(path, read_only=read_only).close()
    except RotaError as error:
        return type(error).__name__
    return "nothing"


def open_together(together: Any, paths: list[str]) -> None:
    """Open each file at the same moment as other processes do."""
    for path in paths:
        together.wait(PATIENCE_S)
        store.open(path).close()
