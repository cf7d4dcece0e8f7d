"""The folder of logs: a file for each run, the oldest of too many gone, and never one that is being written."""

from __future__ import annotations

import os
from pathlib import Path

from rota.fleet.log_folder import LogFolder, found_logs, log_name


def begin(logs: LogFolder, sched_id: int, *, attempt: int = 1) -> Path:
    """A run that begins and prints; later ones have printed later."""
    path = logs.path_for(sched_id, attempt)
    assert path is not None
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"output of {sched_id}")
    os.utime(path, (sched_id, sched_id))
    return path


def kept(folder: Path) -> list[int]:
    return sorted(int(path.name.partition(".")[0]) for path in folder.glob("*.log"))


def test_the_oldest_go_and_no_more_than_a_tenth_too_many_are_ever_there(tmp_path: Path) -> None:
    logs = LogFolder(str(tmp_path / "logs"), 20, list)
    most = 0
    for sched_id in range(1, 101):
        begin(logs, sched_id)
        most = max(most, len(kept(tmp_path / "logs")))
    assert most == 22
    logs.tidy()
    assert kept(tmp_path / "logs") == list(range(81, 101))


def test_of_few_there_is_never_one_too_many(tmp_path: Path) -> None:
    logs = LogFolder(str(tmp_path), 3, list)
    for sched_id in range(1, 9):
        begin(logs, sched_id)
        assert len(kept(tmp_path)) <= 3
    assert kept(tmp_path) == [6, 7, 8]


def test_what_is_being_written_stays_and_what_is_not_a_log_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    logs = LogFolder(str(tmp_path), 5, lambda: [1, 12])
    for sched_id in range(1, 31):
        begin(logs, sched_id)
    logs.tidy()
    assert kept(tmp_path) == [1, 12, 28, 29, 30]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_nothing_is_kept_where_nothing_is_to_be(tmp_path: Path) -> None:
    assert LogFolder(str(tmp_path / "logs"), 0, list).path_for(1, 1) is None
    assert not (tmp_path / "logs").exists()


def test_a_folder_that_is_not_there_yet_or_holds_what_cannot_be_removed_stops_nobody(tmp_path: Path) -> None:
    logs = LogFolder(str(tmp_path / "logs"), 1, list)
    logs.tidy()
    (tmp_path / "logs" / "0.1.log").mkdir(parents=True)  # a folder by the name of a log
    begin(logs, 1)
    begin(logs, 2)
    logs.tidy()
    assert (tmp_path / "logs" / "0.1.log").is_dir()


def test_an_entrys_logs_are_found_by_attempt_and_no_other_entrys(tmp_path: Path) -> None:
    for sched_id, attempt in ((7, 1), (7, 10), (7, 2), (77, 1)):
        (tmp_path / log_name(sched_id, attempt)).write_text("")
    (tmp_path / "7.copy.log").write_text("")
    assert list(found_logs(tmp_path, 7)) == [1, 2, 10]
    assert found_logs(tmp_path / "nowhere", 7) == {}
