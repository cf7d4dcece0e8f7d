"""Functions that workers run. They live in a module, so that another process can find them."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from rota.host.worker import in_worker, note, told

kept: list[Any] = []


def keep(value: Any) -> list[Any]:
    kept.append(value)
    return kept


def who() -> tuple[int, int, bool]:
    """The worker's pid, its parent's, and whether it knows what it is."""
    return os.getpid(), os.getppid(), in_worker()


def fails() -> NoReturn:
    raise LookupError("as it must")


class Unsendable(Exception):
    """An exception that pickles, and cannot be made again."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def raises_unsendable() -> NoReturn:
    raise Unsendable("this", "that")


def leaves() -> NoReturn:
    sys.exit(5)


def interrupts() -> NoReturn:
    raise KeyboardInterrupt


def returns_a_lambda() -> Callable[[], int]:
    return lambda: 1


class Evil:
    """A value that pickles in the worker and cannot be made again by the caller."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, (os.getpid(),)


def _refuse(pid: int) -> int:
    if pid != os.getpid():
        raise ValueError("not here")
    return pid


def returns_evil() -> Evil:
    return Evil()


def segfaults() -> None:
    ctypes.string_at(0)


def says_ready_and_waits(descriptor: int) -> None:
    os.write(descriptor, b"ready\n")
    while True:
        signal.pause()


def starts_a_child_and_dies() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    note(child.pid)
    while not told():
        pass
    os._exit(1)


def notes(count: int) -> int:
    for number in range(count):
        note(number)
    return count


def notes_from_threads(count: int) -> None:
    threads = [threading.Thread(target=note, args=("x" * 5_000,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def repeats_until_told_to_stop() -> list[Any]:
    heard: list[Any] = []
    note("listening")
    while "stop" not in heard:
        heard += told()
    return heard


def grows(count: int) -> int:
    return len(bytearray(count))


def draws() -> float:
    return random.random()


def environment(name: str) -> str | None:
    return os.environ.get(name)


def prints(text: str) -> None:
    print(text)


def echo(value: Any) -> Any:
    return value


def thread_that_notes_late(go: int) -> None:
    def late() -> None:
        os.read(go, 1)
        note("late")
        os.write(2, b"said\n")

    threading.Thread(target=late, daemon=True).start()
