"""The files of a log: bounded, in order at every moment, and read by offsets in the run's own stream."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.errors import StaleClaim, UnsafePath
from rota.service.log_files import LogContent, LoggedRun, LogWriter, gap_line, has_log, log_name, read_log, run_of_file

RUN = LoggedRun(sched_id=7, attempt=1, claim=40, store_id="ab12")
pieces = st.lists(st.binary(min_size=1, max_size=40), max_size=30)


def write(folder: Path, *written: bytes, run: LoggedRun = RUN, limit: int = 10, start: int = 0, **more: bool) -> int:
    """Write pieces as one process does, and end."""
    writer = LogWriter(folder, run, limit, **more)
    for piece in written:
        writer.append(start, piece)
        start += len(piece)
    writer.close()
    return writer.end


def whole(folder: Path, store_id: str | None = "ab12", *, offset: int = 0, step: int = 1_000) -> str:
    """What a reader is shown: the kept bytes, and a line for those that are missing."""
    text = ""
    while True:
        part = read_log(folder, 7, 1, offset, step, store_id=store_id)
        text += gap_line(part.offset - offset) + part.data.decode()
        if not part.data:
            return text
        offset = part.offset + len(part.data)


def test_short_output_is_kept_completely(tmp_path: Path) -> None:
    assert write(tmp_path, b"abc", b"defghij") == 10
    assert read_log(tmp_path, 7, 1, 0, 1_000) == LogContent(0, b"abcdefghij", 10, 0)
    assert read_log(tmp_path, 7, 1, -6, 3) == LogContent(4, b"efg", 10, 0)
    assert whole(tmp_path) == "abcdefghij"
    assert whole(tmp_path, step=2) == "abcdefghij"
    assert not has_log(tmp_path, 7, 2)


def test_the_middle_of_long_output_is_dropped_and_counted(tmp_path: Path) -> None:
    write(tmp_path, *(bytes([letter]) for letter in b"abcdefghijklmnopqrstuv"))
    assert whole(tmp_path) == "abcde\n… 10 bytes dropped …\npqrstuv"
    assert read_log(tmp_path, 7, 1, 0, 3) == LogContent(0, b"abc", 22, 10)
    assert read_log(tmp_path, 7, 1, -4, 100) == LogContent(18, b"stuv", 22, 10)
    assert read_log(tmp_path, 7, 1, 500, 100) == LogContent(22, b"", 22, 10)


@given(st.integers(0, 64), pieces)
def test_the_beginning_and_the_end_are_kept_and_the_files_are_bounded(
    tmp_path_factory: pytest.TempPathFactory, limit: int, written: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    writer, printed = LogWriter(folder, RUN, limit), b""
    for piece in written:
        writer.append(len(printed), piece)
        printed += piece
        shown = read_parts(folder)
        assert all(printed[at : at + len(data)] == data for at, data in shown)
        assert sum(len(data) for _, data in shown) <= limit + limit // 2
        assert not limit or printed.startswith(shown[0][1])
    writer.close()
    total = read_log(folder, 7, 1, 0, 0).total_bytes
    shown = read_parts(folder)
    assert total == len(printed)
    tail = printed[len(printed) - limit // 2 :] if len(printed) > limit else b""
    assert b"".join(data for _, data in shown).endswith(tail)


def read_parts(folder: Path) -> list[tuple[int, bytes]]:
    parts, offset = [], 0
    while (part := read_log(folder, 7, 1, offset, 1_000)).data:
        parts.append((part.offset, part.data))
        offset = part.offset + len(part.data)
    assert part.dropped_bytes == part.total_bytes - sum(len(data) for _, data in parts)
    return parts


@given(pieces, st.data())
def test_pieces_may_be_repeated_and_writers_resumed(
    tmp_path_factory: pytest.TempPathFactory, written: list[bytes], data: st.DataObject
) -> None:
    once, often = tmp_path_factory.mktemp("once"), tmp_path_factory.mktemp("often")
    write(once, *written)
    printed = 0
    for piece in written:
        for _ in range(data.draw(st.integers(1, 3))):
            back = data.draw(st.integers(0, len(piece)))
            assert write(often, piece, start=printed) == printed + len(piece)  # a new process for each piece
            assert write(often, piece[:back], start=printed) == printed + len(piece)
        printed += len(piece)
    assert read_parts(often) == read_parts(once)


def test_a_reader_that_is_overtaken_sees_how_much_it_missed_and_nothing_twice(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path, RUN, 10)
    writer.append(0, b"abcdefg")
    first = read_log(tmp_path, 7, 1, 0, 100)
    second = read_log(tmp_path, 7, 1, 5, 100)
    assert (first.data, second.data) == (b"abcdefg", b"fg")
    writer.append(7, b"hijklmnopqrstuvwxyz")
    third = read_log(tmp_path, 7, 1, 7, 100)
    assert (third.offset, third.data) == (20, b"uvwxyz")
    assert gap_line(third.offset - 7) == "\n… 13 bytes dropped …\n"
    writer.close()


def test_missing_pieces_are_a_gap(tmp_path: Path) -> None:
    write(tmp_path, b"abc")
    write(tmp_path, b"xyz", start=1_000)
    assert whole(tmp_path) == "abc\n… 997 bytes dropped …\nxyz"


def test_a_run_that_continues_the_same_attempt_is_appended(tmp_path: Path) -> None:
    later = RUN._replace(claim=50)
    write(tmp_path, b"abc")
    assert write(tmp_path, b"de", run=later) == 2
    assert write(tmp_path, b"f", run=later, start=2) == 3
    assert whole(tmp_path) == "abcdef"
    with pytest.raises(StaleClaim, match="token 40 of entry 7 is not that of its last claim"):
        write(tmp_path, b"late", start=3, is_live=False)
    assert whole(tmp_path) == "abcdef"


def test_the_log_of_another_store_is_neither_shown_nor_continued(tmp_path: Path) -> None:
    write(tmp_path, b"of a store that was deleted", run=RUN._replace(store_id="cd34", claim=900))
    assert whole(tmp_path) == ""
    write(tmp_path, b"mine")
    assert whole(tmp_path) == "mine"


def test_the_log_of_a_run_that_a_restore_undid_is_replaced(tmp_path: Path) -> None:
    write(tmp_path, b"before the restore", run=RUN._replace(claim=90))
    write(tmp_path, b"after it")
    assert whole(tmp_path) == "after it"


def test_a_log_of_an_earlier_version_is_read_as_it_is(tmp_path: Path) -> None:
    (tmp_path / log_name(7, 1)).write_text("first\n… 5 bytes dropped …\nlast\n")
    assert whole(tmp_path) == "first\n… 5 bytes dropped …\nlast\n"


def test_a_removed_file_is_begun_again(tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "logs", RUN, 1_000)
    writer.append(0, b"gone")
    for path in (tmp_path / "logs").iterdir():
        path.unlink()
    (tmp_path / "logs").rmdir()
    writer.append(4, b"here")
    writer.close()
    assert whole(tmp_path / "logs") == "\n… 4 bytes dropped …\nhere"


def test_files_are_private_and_links_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "logs", b"a" * 100)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "logs").iterdir()} == {0o600}
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / log_name(7, 1)).symlink_to(victim)
    with pytest.raises(UnsafePath):
        read_log(tmp_path, 7, 1, 0, 100)
    with pytest.raises(UnsafePath):
        write(tmp_path, b"x")
    assert victim.read_text() == "mine"


def test_names_of_files() -> None:
    assert [run_of_file(name) for name in ("7.1.log", "7.12.a.log", "7.1.b.log")] == [(7, 1), (7, 12), (7, 1)]
    assert {run_of_file(name) for name in ("7.log", "7.copy.log", "7.1.c.log", "7.1.log.gz", "x7.1.log")} == {None}
