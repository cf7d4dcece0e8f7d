"""Frames arrive completely and in order, each with its own descriptors, however the reads are split."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.host import frames
from rota.host.frames import FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame, FrameReader, FrameWriter, encode, send
from rota.host.reaper_client import ReaperClient
from tests.host.support import PATIENCE_S, output_of, py_with_rota

texts = st.text(max_size=40)  # includes lone surrogates, as in file names that are not UTF-8
messages = st.lists(st.tuples(texts, st.integers(0, 3), st.booleans()), min_size=1, max_size=12)


@given(messages, st.integers(1, 400))
def test_each_frame_brings_its_own_descriptors(sent: list[tuple[str, int, bool]], read_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "READ_BYTES", read_bytes)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            expected = [_send(ours, text, count, long) for text, count, long in sent]
            ours.shutdown(socket.SHUT_WR)
            assert [_seen(frame) for frame in _received(theirs)] == expected


def _send(sock: socket.socket, text: str, count: int, long: bool) -> tuple[str, list[int]]:
    """Send a frame with some pipes and return their inodes."""
    text = text * 50 if long else text
    ends = [end for _ in range(count) for end in os.pipe()]
    try:
        line = encode({"text": text}, ends)
        send(sock, line, ends)
        return text, [os.fstat(end).st_ino for end in ends]
    finally:
        for end in ends:
            os.close(end)


def _seen(frame: Frame) -> tuple[str, list[int]]:
    assert frame.has_all_fds
    inodes = [os.fstat(fd).st_ino for fd in frame.fds]
    frame.close()
    return frame.message["text"], inodes


def _received(sock: socket.socket) -> list[Frame]:
    reader, found = FrameReader(sock), []
    while (more := reader.receive()) is not None:
        found += more
    return found


def test_a_frame_at_the_length_limit_arrives_and_a_longer_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FRAME_BYTES_MAX", 10_000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = FrameReader(theirs)
        message = {"text": "x" * (10_000 - len(encode({"text": ""})))}
        send(ours, encode(message))
        assert reader.receive() == [Frame(message, ())]
        ours.send(b"x" * 10_001)
        with pytest.raises(ValueError, match="longer than 10,000 bytes"):
            reader.receive()


def test_a_writer_never_waits_and_loses_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.settimeout(PATIENCE_S)
        writer, reader = FrameWriter(ours), FrameReader(theirs)
        sent = [{"number": number, "text": "x" * 5_000} for number in range(200)]
        for message in sent:
            writer.put(message)
        assert writer  # the reader has not read, so not all can have been sent
        seen: list[dict[str, Any]] = []
        while len(seen) < len(sent):
            seen += [frame.message for frame in reader.receive() or ()]
            writer.flush()
        assert seen == sent
        assert not writer


def test_a_writer_closes_descriptors_that_were_sent_or_discarded() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        writer = FrameWriter(ours)
        first, second = os.pipe()
        writer.put({}, (first,))
        with pytest.raises(OSError):
            os.fstat(first)
        theirs.close()
        writer.put({}, (second,))
        with pytest.raises(OSError):
            os.fstat(second)
        assert not writer


def test_a_reader_closes_the_descriptors_of_an_incomplete_frame() -> None:
    ours, theirs = socket.socketpair()
    one, other = os.pipe()
    with ours, theirs:
        reader = FrameReader(theirs)
        socket.send_fds(ours, [encode({}, [one])[:-1]], [one])
        assert reader.receive() == []
        (kept,) = reader._partial_fds
        reader.close()
        with pytest.raises(OSError):
            os.fstat(kept)
    os.close(one)
    os.close(other)


LOSES = """
import os, resource, socket
from rota.host.frames import FrameReader, encode, send
ours, theirs = socket.socketpair()
ends = os.pipe()
send(ours, encode({"number": 1}, ends), ends)
send(ours, encode({"number": 2}, ends[:1]), ends[:1])
highest = max(int(name) for name in os.listdir("/proc/self/fd"))
for name in range(3, highest):
    try: os.fstat(name)
    except OSError: os.dup2(0, name)  # fill the gaps
resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, 4096))  # room for one more descriptor, and two arrive
reader = FrameReader(theirs)
for _ in range(2):
    (frame,) = reader.receive()
    print(frame.message["number"], frame.has_all_fds, len(frame.fds))
    frame.close()
"""


def test_lost_descriptors_affect_their_own_frame_only(reaper: ReaperClient) -> None:
    assert output_of(reaper, py_with_rota(LOSES), stderr=2).decode().splitlines() == ["1 False 1", "2 True 1"]


def test_the_limits_fit_those_of_the_kernel() -> None:
    assert FRAME_FDS_MAX < 253  # SCM_MAX_FD
    assert FRAME_BYTES_MAX > 5 * 6 * 1024 * 1024  # the longest argument list: one byte per empty text, encoded in five
