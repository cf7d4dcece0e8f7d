"""The folder in which the output of runs is kept, a file for each: of so many runs, and no more.

A run's file is named by its entry and attempt, so whoever knows these finds it: `rota logs 7`. When there are too many
the oldest go, by when they were last written; those of runs that are under way here stay. To look at the folder for
every run would cost more than the run: it is looked at once for each tenth part of what may be kept, so for a while
there are up to a tenth more.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["LOGS_MAX", "LogFolder", "found_logs", "log_name"]

LOGS_MAX = 10_000  # runs whose output is kept, where nothing else is said
SUFFIX = ".log"


def log_name(sched_id: int, attempt: int) -> str:
    """What the file of a run is called."""
    return f"{sched_id}.{attempt}{SUFFIX}"


def found_logs(folder: Path, sched_id: int) -> dict[int, Path]:
    """The files that are kept of an entry, by attempt."""
    found: dict[int, Path] = {}
    for path in folder.glob(f"{sched_id}.*{SUFFIX}"):
        attempt = path.name.removeprefix(f"{sched_id}.").removesuffix(SUFFIX)
        if attempt.isascii() and attempt.isdecimal():
            found[int(attempt)] = path
    return dict(sorted(found.items()))


class LogFolder:
    """Files for the output of runs. Any number of threads may ask for one."""

    def __init__(self, folder: str, most: int, live: Callable[[], Iterable[int]]) -> None:
        """Keep at most so many; `live` says which entries run."""
        self._folder = Path(folder)
        self._most = most
        self._live = live
        self._lock = threading.Lock()
        self._until_look = 0  # how many more runs may begin before somebody looks at the folder

    def path_for(self, sched_id: int, attempt: int) -> Path | None:
        """Where the output of a run that begins now is kept; None if none is kept at all."""
        if self._most <= 0:
            return None
        with self._lock:
            looks = self._until_look <= 0
            self._until_look = self._most // 10 if looks else self._until_look - 1
        if looks:
            self.tidy(for_new=1)
        return self._folder / log_name(sched_id, attempt)

    def tidy(self, *, for_new: int = 0) -> None:
        """Remove the oldest beyond what may be kept, and as many more as will come at once."""
        with suppress(FileNotFoundError), os.scandir(self._folder) as files:
            logs = [file for file in files if file.name.endswith(SUFFIX)]
            too_many = len(logs) + for_new - self._most
            if too_many > 0:
                self._remove_oldest(logs, too_many)

    def _remove_oldest(self, logs: list[os.DirEntry[str]], count: int) -> None:
        live = {str(sched_id) for sched_id in self._live()}
        aged = sorted((_written_at(log), log.path) for log in logs if log.name.partition(".")[0] not in live)
        for _, path in aged[:count]:
            with suppress(OSError):  # another supervisor was quicker, or may remove it and we may not
                Path(path).unlink()


def _written_at(log: os.DirEntry[str]) -> float:
    try:
        return log.stat().st_mtime
    except OSError:
        return 0.0
