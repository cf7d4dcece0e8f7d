"""A bounded log keeps the beginning and the end of the output."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.fleet.run_logs import BoundedLog, LogFileCopy
from rota.service.log_files import LoggedRun, read_log
from rota.service.log_folder import LogFolder, folder_usage

pieces = st.lists(st.binary(max_size=40), max_size=30)


def test_short_output_is_kept_completely() -> None:
    log = BoundedLog(10)
    log.write(b"abc")
    log.write(b"defghij")
    assert (log.kept(), log.dropped_bytes, log.tail(4)) == (b"abcdefghij", 0, "ghij")


def test_the_beginning_and_the_end_of_long_output_are_kept() -> None:
    log = BoundedLog(10)
    for letter in b"abcdefghijklmno":
        log.write(bytes([letter]))
    assert log.kept() == "abcde\n… 5 bytes dropped …\nklmno".encode()
    assert (log.dropped_bytes, log.seen_bytes) == (5, 15)
    assert log.tail(100) == "klmno"  # the bytes before it were dropped


def test_a_tail_begins_with_a_whole_character() -> None:
    log = BoundedLog(100)
    log.write("äöü".encode())
    assert log.tail(3) == "ü"
    log.write(b"\xff")
    assert log.tail(1) == "\N{REPLACEMENT CHARACTER}"


@given(st.integers(0, 64), pieces)
def test_only_the_middle_is_dropped(limit: int, written: list[bytes]) -> None:
    log = BoundedLog(limit)
    for piece in written:
        log.write(piece)
    whole = b"".join(written)
    head, tail = (limit + 1) // 2, limit // 2
    assert log.seen_bytes == len(whole)
    assert log.dropped_bytes == max(len(whole) - limit, 0)
    if len(whole) <= limit:
        assert log.kept() == whole
    else:
        kept = log.kept()
        assert kept.startswith(whole[:head])
        assert kept.endswith(whole[len(whole) - tail :])
    assert len(log._head) + len(log._tail) <= limit + tail


@given(st.integers(0, 64), pieces, st.integers(1, 50))
def test_a_reader_by_offset_gets_every_kept_byte_once_and_knows_what_is_missing(
    limit: int, written: list[bytes], step: int
) -> None:
    log, read, offset = BoundedLog(limit), [], 0
    for piece in [*written, b""]:
        log.write(piece)
        at, data = log.since(offset, step)
        assert at >= offset
        read.append((at, data))
        offset = at + len(data)
    whole = b"".join(written)
    assert all(whole[at : at + len(data)] == data for at, data in read)


def test_a_reader_that_is_too_slow_continues_with_the_end() -> None:
    log = BoundedLog(10)
    log.write(b"abcdefgh")
    assert log.since(0, 100) == (0, b"abcde")
    assert log.since(5, 100) == (5, b"fgh")
    log.write(b"ijklmnopqrstuvwxyz")
    assert log.since(8, 100) == (21, b"vwxyz")
    assert log.since(26, 100) == (26, b"")


class Copied:
    """A copy that notes what it gets."""

    problem = None

    def __init__(self) -> None:
        self.log: list[object] = []

    def write(self, offset: int, data: bytes) -> None:
        self.log.append((offset, data))

    def close(self) -> None:
        self.log.append("closed")


def test_copies_get_everything_with_its_offset() -> None:
    copy = Copied()
    log = BoundedLog(4, copy)
    for piece in (b"abc", b"", b"defgh", b"i"):
        log.write(piece)
    log.close()
    assert copy.log == [(0, b"abc"), (3, b"defgh"), (8, b"i"), "closed"]


def in_files(folder: Path, limit: int = 1024) -> tuple[BoundedLog, LogFileCopy]:
    copy = LogFileCopy(LogFolder(folder, lambda _: ()), LoggedRun(7, 1, 40, "ab"), limit)
    return BoundedLog(limit, copy), copy


def test_a_run_that_prints_nothing_has_no_file(tmp_path: Path) -> None:
    log, copy = in_files(tmp_path / "logs")
    log.write(b"")
    log.close()
    assert copy.problem is None
    assert not (tmp_path / "logs").exists()


def test_a_flood_of_output_stays_within_the_limit(tmp_path: Path) -> None:
    log, _ = in_files(tmp_path / "deep" / "logs", 64 * 1024)
    for _ in range(400):
        log.write(b"x" * 64 * 1024)
    log.write(b"the end")
    log.close()
    assert log.seen_bytes == 400 * 64 * 1024 + 7
    assert log.tail(7) == "the end"
    assert folder_usage(tmp_path / "deep" / "logs").bytes < 97 * 1024
    end = read_log(tmp_path / "deep" / "logs", 7, 1, -7, 100)
    assert (end.data, end.total_bytes) == (b"the end", log.seen_bytes)


def test_a_full_disk_ends_the_copy_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log, copy = in_files(tmp_path)
    log.write(b"hello")
    (opened,) = (
        each for each in Path("/proc/self/fd").iterdir() if os.path.realpath(each) == str(tmp_path / "7.1.log")
    )
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, int(opened.name))
    os.close(full)
    log.write(b", world")
    log.write(b"!")
    log.close()
    assert log.kept() == b"hello, world!"
    assert os.strerror(28) in (copy.problem or "")
    assert caplog.text.count("the output of entry 7 is not kept") == 1


def test_a_folder_that_cannot_be_created_ends_the_copy_and_not_the_run() -> None:
    log, copy = in_files(Path("/dev/null"))
    log.write(b"hello")
    log.close()
    assert log.tail(5) == "hello"
    assert copy.problem


def test_a_handler_may_write_to_the_log_whose_problem_it_reports() -> None:
    log, _ = in_files(Path("/dev/null"))
    told: list[str] = []

    class IntoTheLog(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            told.append(record.getMessage())
            log.write(b"told")

    handler = IntoTheLog()
    logging.getLogger("rota.fleet").addHandler(handler)
    try:
        log.write(b"hello, ")
    finally:
        logging.getLogger("rota.fleet").removeHandler(handler)
    assert log.kept() == b"hello, told"
    assert [text.partition(": ")[0] for text in told] == ["the output of entry 7 is not kept in /dev/null"]
