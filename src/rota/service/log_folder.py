"""The folder that holds the logs of runs, bounded in all: a number of runs and a number of bytes.

Beyond a maximum the logs of the oldest runs are removed, by the time of their last output; those of live runs stay.
Listing the folder for every run would cost more than the run. So it is listed when a tenth of a maximum has been
written since the last time, and in between there may be a tenth more than the maximum. Several processes may write to
one folder; each of them counts what it writes itself, and removes by its own maxima.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rota.service.log_files import run_of_file

__all__ = ["LOGS_BYTES_MAX", "LOGS_MAX", "FolderUsage", "LogFolder", "attempts_in", "folder_usage"]

LOGS_MAX = 10_000  # default maximum number of runs
LOGS_BYTES_MAX = 2 * 1024**3  # default maximum of their bytes together

Run = tuple[int, int]  # entry and attempt


class FolderUsage(NamedTuple):
    """What a folder holds."""

    runs: int
    bytes: int


class _KeptLog(NamedTuple):
    written_at: float
    run: Run
    bytes: int
    names: list[str]


class LogFolder:
    """A folder of logs with its two maxima. Any thread may use it."""

    def __init__(
        self,
        folder: Path,
        live_among: Callable[[Collection[int]], Collection[int]],
        logs_max: int = LOGS_MAX,
        logs_bytes_max: int = LOGS_BYTES_MAX,
    ) -> None:
        """`live_among` returns which of some entries run now."""
        self.path = folder
        self.logs_max, self.logs_bytes_max = logs_max, logs_bytes_max
        self._live_among = live_among
        self._lock = threading.Lock()
        self._runs_left = 0  # how many more may begin before the folder is listed
        self._bytes_left = 0  # how many more may be written

    @property
    def keeps_logs(self) -> bool:
        """Whether logs are kept at all."""
        return self.logs_max > 0 and self.logs_bytes_max > 0

    def set_maxima(self, logs_max: int, logs_bytes_max: int) -> None:
        """Change the maxima; the next output is checked against them."""
        self.logs_max, self.logs_bytes_max = logs_max, logs_bytes_max
        with self._lock:
            self._runs_left = self._bytes_left = 0

    def make_room(self, *, runs: int, size: int) -> None:
        """Count what is about to be written; remove the oldest logs if that may be too much."""
        with self._lock:
            self._runs_left -= runs
            self._bytes_left -= size
            if self._runs_left >= 0 and self._bytes_left >= 0:
                return
            self._runs_left, self._bytes_left = self.logs_max // 10, self.logs_bytes_max // 10
        self.remove_surplus(for_runs=runs)

    def remove_surplus(self, *, for_runs: int = 0) -> None:
        """Remove the oldest logs beyond the maxima, and make room for `for_runs` new ones."""
        logs = sorted(_list_logs(self.path))
        surplus_runs = len(logs) + for_runs - self.logs_max
        surplus_bytes = sum(log.bytes for log in logs) - self.logs_bytes_max
        if surplus_runs <= 0 and surplus_bytes <= 0:
            return
        for log in logs:
            if surplus_runs <= 0 and surplus_bytes <= 0:
                return
            if not self._live_among([log.run[0]]):
                surplus_runs -= 1
                surplus_bytes -= log.bytes
                self._remove(log)

    def _remove(self, log: _KeptLog) -> None:
        for name in sorted(log.names):  # the ends first: the beginning says that there is a log
            with suppress(OSError):  # another process has removed it, or this one lacks the permission
                (self.path / name).unlink()


def folder_usage(folder: Path) -> FolderUsage:
    """Return how many runs have a log in a folder, and their bytes."""
    logs = _list_logs(folder)
    return FolderUsage(len(logs), sum(log.bytes for log in logs))


def attempts_in(folder: Path, sched_id: int) -> list[int]:
    """Return the attempts of an entry that have a log in a folder, in order."""
    runs = (run_of_file(path.name) for path in folder.glob(f"{sched_id}.*"))
    return sorted({run[1] for run in runs if run is not None})


def _list_logs(folder: Path) -> list[_KeptLog]:
    found: dict[Run, list[os.DirEntry[str]]] = {}
    with suppress(OSError), os.scandir(folder) as files:
        for file in files:
            if (run := run_of_file(file.name)) is not None:
                found.setdefault(run, []).append(file)
    logs = []
    for run, files_of_run in found.items():
        states = [state for file in files_of_run if (state := _state(file)) is not None]
        if states:
            written_at = max(state.st_mtime for state in states)
            size = sum(state.st_size for state in states)
            logs.append(_KeptLog(written_at, run, size, [file.name for file in files_of_run]))
    return logs


def _state(file: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return file.stat(follow_symlinks=False) if file.is_file(follow_symlinks=False) else None
    except OSError:  # it was removed
        return None
