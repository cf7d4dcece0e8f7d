"""Frames arrive whole and in order, each with its own descriptors, however the reads fall."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rota.host import frames
from rota.host.frames import FRAME_BYTES_MAX, FRAME_FDS_MAX, Frame, Inbox, Outbox, encode, send
from rota.host.reaper_client import Minder
from tests.host.support import PATIENCE_S, output_of, py_with_rota

texts = st.text(max_size=40)  # lone surrogates too: that is how strange file names look
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
    """Send a frame with some pipes, and say which they are."""
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
    assert frame.is_whole
    inodes = [os.fstat(fd).st_ino for fd in frame.fds]
    frame.close()
    return frame.message["text"], inodes


def _received(sock: socket.socket) -> list[Frame]:
    inbox, found = Inbox(sock), []
    while (more := inbox.receive()) is not None:
        found += more
    return found


def test_a_frame_as_long_as_the_limit_arrives_and_one_past_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "FRAME_BYTES_MAX", 10_000)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        inbox = Inbox(theirs)
        message = {"text": "x" * (10_000 - len(encode({"text": ""})))}
        send(ours, encode(message))
        assert inbox.receive() == [Frame(message, ())]
        ours.send(b"x" * 10_001)
        with pytest.raises(ValueError, match="longer than 10,000 bytes"):
            inbox.receive()


def test_an_outbox_never_waits_and_loses_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.settimeout(PATIENCE_S)
        outbox, inbox = Outbox(ours), Inbox(theirs)
        sent = [{"number": number, "text": "x" * 5_000} for number in range(200)]
        for message in sent:
            outbox.put(message)
        assert outbox  # nobody has read, so not all can have gone
        seen: list[dict[str, Any]] = []
        while len(seen) < len(sent):
            seen += [frame.message for frame in inbox.receive() or ()]
            outbox.flush()
        assert seen == sent
        assert not outbox


def test_an_outbox_closes_the_descriptors_that_have_gone_and_those_that_never_will() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.setblocking(False)
        outbox = Outbox(ours)
        first, second = os.pipe()
        outbox.put({}, (first,))
        with pytest.raises(OSError):
            os.fstat(first)
        theirs.close()
        outbox.put({}, (second,))
        with pytest.raises(OSError):
            os.fstat(second)
        assert not outbox


def test_an_inbox_closes_the_descriptors_of_a_frame_that_never_ends() -> None:
    ours, theirs = socket.socketpair()
    one, other = os.pipe()
    with ours, theirs:
        inbox = Inbox(theirs)
        socket.send_fds(ours, [encode({}, [one])[:-1]], [one])
        assert inbox.receive() == []
        (kept,) = inbox._begun_fds
        inbox.close()
        with pytest.raises(OSError):
            os.fstat(kept)
    os.close(one)
    os.close(other)


LOSES = """
import os, resource, socket
from rota.host.frames import Inbox, encode, send
ours, theirs = socket.socketpair()
ends = os.pipe()
send(ours, encode({"number": 1}, ends), ends)
send(ours, encode({"number": 2}, ends[:1]), ends[:1])
highest = max(int(name) for name in os.listdir("/proc/self/fd"))
for name in range(3, highest):
    try: os.fstat(name)
    except OSError: os.dup2(0, name)  # fill the gaps
resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, 4096))  # room for one more, and two come
inbox = Inbox(theirs)
for _ in range(2):
    (frame,) = inbox.receive()
    print(frame.message["number"], frame.is_whole, len(frame.fds))
    frame.close()
"""


def test_descriptors_that_get_lost_spoil_their_own_frame_and_no_other(minder: Minder) -> None:
    assert output_of(minder, py_with_rota(LOSES), stderr=2).decode().splitlines() == ["1 False 1", "2 True 1"]


def test_the_limits_fit_what_the_kernel_takes() -> None:
    assert FRAME_FDS_MAX < 253  # SCM_MAX_FD
    assert FRAME_BYTES_MAX > 5 * 6 * 1024 * 1024  # the longest argument list: a byte for each empty text, told in five
