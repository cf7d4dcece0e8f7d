"""A bounded log keeps the beginning and the end of the output."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rota.fleet.run_logs import BoundedLog

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


@given(limit=st.integers(0, 64), written=pieces)
def test_the_file_has_the_same_content_and_is_bounded_at_every_moment(
    tmp_path_factory: object, limit: int, written: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("log") / "run.log"  # type: ignore[attr-defined]
    log = BoundedLog(limit, path)
    gap = len("\n… 1,000 bytes dropped …\n".encode())
    for piece in written:
        log.write(piece)
        assert path.stat().st_size <= limit + limit // 2 + gap
        assert path.read_bytes().startswith(b"".join(written)[: min((limit + 1) // 2, log.seen_bytes)])
    log.close()
    assert path.read_bytes() == log.kept()


def test_a_flood_of_output_stays_within_the_limit(tmp_path: Path) -> None:
    log = BoundedLog(64 * 1024, tmp_path / "deep" / "run.log")
    for _ in range(2_000):
        log.write(b"x" * 64 * 1024)
    log.write(b"the end")
    log.close()
    assert log.seen_bytes == 2_000 * 64 * 1024 + 7
    assert log.tail(7) == "the end"
    assert (tmp_path / "deep" / "run.log").stat().st_size < 65 * 1024


def test_a_full_disk_ends_the_copy_and_not_the_run(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    log = BoundedLog(1024, path)
    (opened,) = (each for each in Path("/proc/self/fd").iterdir() if os.path.realpath(each) == str(path))
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, int(opened.name))
    os.close(full)
    log.write(b"hello")
    log.close()
    assert log.kept() == b"hello"
    assert os.strerror(28) in (log.copy_problem or "")


def test_a_folder_that_cannot_be_created_ends_the_copy_and_not_the_run() -> None:
    log = BoundedLog(1024, Path("/dev/null/run.log"))
    log.write(b"hello")
    assert log.tail(5) == "hello"
    assert log.copy_problem
