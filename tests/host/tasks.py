"""Functions that workers run. They are in a module, so that another process can import them."""

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

from rota.host.worker import in_worker, notices, report

kept: list[Any] = []


def keep(value: Any) -> list[Any]:
    kept.append(value)
    return kept


def process_info() -> tuple[int, int, bool]:
    """The pid of the worker, the pid of its parent, and the result of in_worker."""
    return os.getpid(), os.getppid(), in_worker()


def fails() -> NoReturn:
    raise LookupError("on purpose")


class Unsendable(Exception):
    """An exception that can be pickled but not unpickled."""

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


class Undecodable:
    """A value that the worker can pickle and the caller cannot unpickle."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, (os.getpid(),)


def _refuse(pid: int) -> int:
    if pid != os.getpid():
        raise ValueError("not here")
    return pid


def returns_undecodable() -> Undecodable:
    return Undecodable()


def leaves_its_connection_to_a_daemon() -> None:
    """Forks a process that leaves the group and keeps every descriptor open, reports its pid, and exits."""
    left, leaves = os.pipe()
    if daemon := os.fork():
        os.read(left, 1)  # until it has left: with the worker its group is killed
        report(daemon)
        os._exit(3)
    os.setsid()
    os.write(leaves, b"x")
    signal.pause()


def segfaults() -> None:
    ctypes.string_at(0)


def prints_ready_and_waits(descriptor: int) -> None:
    os.write(descriptor, b"ready\n")
    while True:
        signal.pause()


def starts_a_child_and_dies() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    report(child.pid)
    while not notices():
        pass
    os._exit(1)


def reports(count: int) -> int:
    for number in range(count):
        report(number)
    return count


def reports_from_threads(count: int) -> None:
    threads = [threading.Thread(target=report, args=("x" * 5_000,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def reads_notices_until_stop() -> list[Any]:
    received: list[Any] = []
    report("listening")
    while "stop" not in received:
        received += notices()
    return received


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


def thread_that_reports_late(go: int) -> None:
    def late() -> None:
        os.read(go, 1)
        report("late")
        os.write(2, b"reported\n")

    threading.Thread(target=late, daemon=True).start()
