"""A process on a disk that is too small, run by test_full_disk: it prints the result of each caller as JSON.

Usage: `python -m tests.store.full_disk_process SCENE FOLDER LIMIT`. LIMIT is the maximum size of a file in bytes, or 0
if the disk itself is small.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import threading
from pathlib import Path
from typing import Any

from rota import store
from rota.errors import StoreUnavailable
from rota.kernel import Kernel
from rota.store import Store, Transaction
from rota.store.sqlite import SqliteStore
from tests.kernel_proof.test_replay import Life
from tests.store.files import name_of_error
from tests.store.world import Caller, WatchedQueue, happened, sql

BLOBS = sql("CREATE TABLE blobs (name TEXT PRIMARY KEY, blob BLOB NOT NULL)")
PUT = sql("INSERT INTO blobs (name, blob) VALUES (?, randomblob(?))")
NAMES = sql("SELECT name, length(blob) FROM blobs ORDER BY name")
SMALL, SPARE = 100, 300_000
TIMES = 6


def room(folder: Path, limit: int) -> int:
    """The number of bytes the store can still write."""
    if limit:
        return limit - (folder / "rota.db-wal").stat().st_size
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def set_limit(limit: int) -> None:
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def blob(opened: Store, name: str, size: int) -> str:
    """Whether a blob was written or refused."""
    try:
        opened.write(lambda tx: tx.run(PUT, (name, size)))
    except StoreUnavailable:
        return "refused"
    return "written"


def together(opened: SqliteStore, sizes: dict[str, int]) -> dict[str, str]:
    """The result of each write when all are in one batch."""
    begun, end = threading.Event(), threading.Event()

    def hold(_tx: Transaction) -> None:
        begun.set()
        happened(end)

    opened._queue = queued = WatchedQueue()
    holder = Caller(lambda: opened.write(hold))
    happened(begun)
    callers = {}
    for place, (name, size) in enumerate(sizes.items()):
        callers[name] = Caller(lambda name=name, size=size: blob(opened, name, size))  # type: ignore[misc]
        queued.until(place + 1)
    end.set()
    holder.outcome()
    return {name: caller.outcome() for name, caller in callers.items()}


def in_a_group(folder: Path, limit: int) -> dict[str, Any]:
    """Five large writes that do not fit together and eight small ones arrive at the same time."""
    path = str(folder / "rota.db")
    opened = SqliteStore(path)
    opened.write(lambda tx: tx.run(BLOBS))
    before = {f"before {n}": blob(opened, f"before {n}", 1_000) for n in range(20)}
    # the limit holds per file: the log takes one large blob, is checkpointed, and takes another
    big = (room(folder, limit) - SPARE) // (1 if limit else 3)
    set_limit(limit)
    sizes: dict[str, int] = {}
    for n in range(8):
        sizes[f"small {n}"] = SMALL
        if n < 5:
            sizes[f"big {n}"] = big
    results = together(opened, sizes)
    after = {f"after {n}": blob(opened, f"after {n}", SMALL) for n in range(5)}
    opened.close()
    again = store.open(path)
    names = {str(row[0]): int(row[1]) for row in again.read(lambda tx: tx.run(NAMES))}
    answer = {"results": before | results | after, "names": names, "big": big, "problems": again.check()}
    again.close()
    return answer


def on_a_full_disk(folder: Path, limit: int) -> dict[str, Any]:
    """Write until not even the smallest blob fits, free space, and continue."""
    path = str(folder / "rota.db")
    opened = SqliteStore(path)
    opened.write(lambda tx: tx.run(BLOBS))
    set_limit(limit)
    results: dict[str, str] = {}
    for size in (100_000, 20_000, 5_000, 500, 10):
        for n in range(1_000):
            name = f"{size}.{n}"
            results[name] = blob(opened, name, size)
            if results[name] == "refused":
                break
    names = {str(row[0]) for row in opened.read(lambda tx: tx.run(NAMES))}
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        os.system(f"mount -o remount,size=64m {folder}")
    later = blob(opened, "later", 100_000)
    answer = {"results": results, "names": sorted(names), "later": later, "problems": opened.check()}
    opened.close()
    return answer


def fill(folder: Path) -> None:
    """Fill the disk completely."""
    with (folder / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while filler.write(b"x" * 4_096):
            pass


def new_file(folder: Path, limit: int) -> dict[str, Any]:
    """Open a new file on a full disk."""
    set_limit(limit)
    if not limit:
        fill(folder)
    return {"error": name_of_error(str(folder / "rota.db"), False)}


def old_file(folder: Path, limit: int) -> dict[str, Any]:
    """Open an existing file on a disk without space for the lock file."""
    path = folder / "rota.db"
    opened = SqliteStore(str(path))
    (folder / "rota.db-lock").unlink()
    set_limit(limit)
    if not limit:
        fill(folder)
    answer = {"error": name_of_error(str(path), False)}
    opened.close()
    return answer


def full_again_and_again(folder: Path, limit: int) -> dict[str, Any]:
    """Let a disk fill up and be freed six times during all kinds of work, and replay the journal each time."""
    life = Life(limit, str(folder / "rota.db"))
    refused, laws = [0] * TIMES, []

    def work(deeds: int, number: int) -> None:
        for _ in range(deeds):
            try:
                life.step()
                life.kernel.journal.append(life.pids[0], "user.note", {"text": "x" * 1_000})
            except StoreUnavailable:
                refused[number] += 1
        tables, journal = life.both()
        laws.append(journal == tables)

    for number in range(TIMES):
        work(40, number)
        if limit:
            log = (folder / "rota.db-wal").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (log + number * 10_000, resource.RLIM_INFINITY))
        else:
            fill(folder)
        work(60, number)
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        else:
            (folder / "filler").unlink()
    work(20, 0)
    life.kernel.store.close()
    again = Kernel(store.open(str(folder / "rota.db"), clock=life.clock))
    life.kernel = again
    tables, journal = life.both()
    answer = {"refused": refused, "laws": [*laws, journal == tables], "problems": again.store.check()}
    again.store.close()
    return answer


if __name__ == "__main__":
    scene, folder, limit = sys.argv[1:]
    print(json.dumps(globals()[scene](Path(folder), int(limit))))
