"""The log folder: a file for each run; the oldest surplus files are removed, never one of a current run."""

from __future__ import annotations

import os
from pathlib import Path

from rota.fleet.run_logs import LogFolder, find_logs, log_name


def begin(logs: LogFolder, sched_id: int, *, attempt: int = 1) -> Path:
    """Start a run that prints; a higher sched_id has a later modification time."""
    path = logs.path_for(sched_id, attempt)
    assert path is not None
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"output of {sched_id}")
    os.utime(path, (sched_id, sched_id))
    return path


def kept(folder: Path) -> list[int]:
    return sorted(int(path.name.partition(".")[0]) for path in folder.glob("*.log"))


def test_the_oldest_are_removed_and_there_is_never_more_than_a_tenth_too_many(tmp_path: Path) -> None:
    logs = LogFolder(str(tmp_path / "logs"), 20, list)
    most = 0
    for sched_id in range(1, 101):
        begin(logs, sched_id)
        most = max(most, len(kept(tmp_path / "logs")))
    assert most == 22
    logs.remove_surplus()
    assert kept(tmp_path / "logs") == list(range(81, 101))


def test_a_small_maximum_is_never_exceeded(tmp_path: Path) -> None:
    logs = LogFolder(str(tmp_path), 3, list)
    for sched_id in range(1, 9):
        begin(logs, sched_id)
        assert len(kept(tmp_path)) <= 3
    assert kept(tmp_path) == [6, 7, 8]


def test_logs_of_current_runs_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    logs = LogFolder(str(tmp_path), 5, lambda: [1, 12])
    for sched_id in range(1, 31):
        begin(logs, sched_id)
    logs.remove_surplus()
    assert kept(tmp_path) == [1, 12, 28, 29, 30]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_maximum_of_zero_keeps_no_logs(tmp_path: Path) -> None:
    assert LogFolder(str(tmp_path / "logs"), 0, list).path_for(1, 1) is None
    assert not (tmp_path / "logs").exists()


def test_a_missing_folder_or_a_file_that_cannot_be_removed_is_no_error(tmp_path: Path) -> None:
    logs = LogFolder(str(tmp_path / "logs"), 1, list)
    logs.remove_surplus()
    (tmp_path / "logs" / "0.1.log").mkdir(parents=True)  # a folder named like a log
    begin(logs, 1)
    begin(logs, 2)
    logs.remove_surplus()
    assert (tmp_path / "logs" / "0.1.log").is_dir()


def test_the_logs_of_an_entry_are_found_by_attempt(tmp_path: Path) -> None:
    for sched_id, attempt in ((7, 1), (7, 10), (7, 2), (77, 1)):
        (tmp_path / log_name(sched_id, attempt)).write_text("")
    (tmp_path / "7.copy.log").write_text("")
    assert list(find_logs(tmp_path, 7)) == [1, 2, 10]
    assert find_logs(tmp_path / "nowhere", 7) == {}
