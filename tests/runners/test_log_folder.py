"""The log folder: bounded in runs and bytes; the oldest are removed, never those of a current run."""

from __future__ import annotations

import os
from pathlib import Path

from rota.service.log_files import log_name
from rota.service.log_folder import FolderUsage, LogFolder, attempts_in, folder_usage


def begin(logs: LogFolder, sched_id: int, *, attempt: int = 1, size: int = 10) -> None:
    """Start a run that prints; a higher sched_id has a later modification time."""
    logs.make_room(runs=1, size=size)
    logs.path.mkdir(exist_ok=True)
    for part in ("", ".a"):
        path = logs.path / log_name(sched_id, attempt, part)
        path.write_bytes(b"x" * (size // 2))
        os.utime(path, (sched_id, sched_id))


def kept(folder: Path) -> list[int]:
    return sorted({int(path.name.partition(".")[0]) for path in folder.glob("*.log")})


def folder_of(path: Path, runs: int, *live: int, size: int = 1_000_000) -> LogFolder:
    return LogFolder(path, lambda ids: set(ids) & set(live), runs, size)


def test_the_oldest_are_removed_and_there_is_never_more_than_a_tenth_too_many(tmp_path: Path) -> None:
    logs = folder_of(tmp_path / "logs", 20)
    most = 0
    for sched_id in range(1, 101):
        begin(logs, sched_id)
        most = max(most, len(kept(tmp_path / "logs")))
    assert most == 22
    logs.remove_surplus()
    assert kept(tmp_path / "logs") == list(range(81, 101))
    assert folder_usage(tmp_path / "logs") == FolderUsage(20, 200)


def test_a_small_maximum_is_never_exceeded(tmp_path: Path) -> None:
    logs = folder_of(tmp_path, 3)
    for sched_id in range(1, 9):
        begin(logs, sched_id)
        assert len(kept(tmp_path)) <= 3
    assert kept(tmp_path) == [6, 7, 8]


def test_bytes_are_bounded_too(tmp_path: Path) -> None:
    logs = folder_of(tmp_path, 1_000, 2, size=1_000)
    for sched_id in range(1, 41):
        begin(logs, sched_id, size=100)
        assert folder_usage(tmp_path).bytes <= 1_200  # what is about to be written, and a tenth
    logs.remove_surplus()
    assert kept(tmp_path) == [2, *range(32, 41)]
    assert folder_usage(tmp_path) == FolderUsage(10, 1_000)


def test_logs_of_current_runs_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "1.copy.log").write_text("mine")
    logs = folder_of(tmp_path, 5, 1, 12)
    for sched_id in range(1, 31):
        begin(logs, sched_id)
    logs.remove_surplus()
    assert kept(tmp_path) == [1, 12, 28, 29, 30]
    assert (tmp_path / "notes.txt").read_text() == (tmp_path / "1.copy.log").read_text() == "mine"


def test_new_maxima_hold_from_the_next_output_on(tmp_path: Path) -> None:
    logs = folder_of(tmp_path, 1_000)
    for sched_id in range(1, 31):
        begin(logs, sched_id)
    logs.set_maxima(5, 1_000_000)
    begin(logs, 31)
    assert kept(tmp_path) == [27, 28, 29, 30, 31]


def test_a_maximum_of_zero_keeps_no_logs(tmp_path: Path) -> None:
    assert not folder_of(tmp_path, 0).keeps_logs
    assert not folder_of(tmp_path, 1, size=0).keeps_logs
    assert folder_of(tmp_path, 1, size=1).keeps_logs


def test_a_missing_folder_or_a_file_that_cannot_be_removed_is_no_error(tmp_path: Path) -> None:
    logs = folder_of(tmp_path / "logs", 1)
    logs.remove_surplus()
    assert folder_usage(tmp_path / "logs") == FolderUsage(0, 0)
    (tmp_path / "logs" / "0.1.log").mkdir(parents=True)  # a folder named like a log
    begin(logs, 1)
    begin(logs, 2)
    logs.remove_surplus()
    assert (tmp_path / "logs" / "0.1.log").is_dir()


def test_the_logs_of_an_entry_are_found_by_attempt(tmp_path: Path) -> None:
    for sched_id, attempt in ((7, 1), (7, 10), (7, 2), (77, 1)):
        (tmp_path / log_name(sched_id, attempt)).write_text("")
    (tmp_path / "7.copy.log").write_text("")
    assert attempts_in(tmp_path, 7) == [1, 2, 10]
    assert attempts_in(tmp_path / "nowhere", 7) == []
