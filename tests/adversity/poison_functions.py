"""Functions that a worker process can import: they write garbage to the connection of their own worker."""

from __future__ import annotations

import os

from rota.host import worker

__all__ = ["even", "write_garbage", "write_unpicklable"]


def write_garbage() -> None:
    os.write(worker.fileno(), b"\xff" * 64)


def write_unpicklable() -> None:
    os.write(worker.fileno(), b"\x03\x00\x00\x00\x04abcd")  # a report of four bytes


def even(number: int) -> int:
    return number
