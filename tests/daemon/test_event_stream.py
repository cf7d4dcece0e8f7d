"""The journal as server-sent events: replay, gaps, heartbeats, slow subscribers, shutdown."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rota.errors import StoreUnavailable
from rota.kernel import ScheduleSpec
from rota.rpc.daemon.event_stream import BATCH
from rota.rpc.daemon.transport import DaemonLimits
from tests.daemon.harness import PATIENCE_S, Raw, Served, make_token, serving
from tests.daemon.http_client import Stream, fetch


def reading(served: Served) -> Stream:
    return Stream(served.url, make_token(served.path, "read"))


def test_a_subscriber_gets_past_events_and_then_new_ones(served: Served) -> None:
    token = make_token(served.path, "read")
    with served.client() as client:
        pid = client.create_agent("agent", "callable")
        with Stream(served.url, token, "/events?since=0") as stream:
            frames = stream.frames()
            seen = [next(frames) for _ in range(client.journal.cursor())]
            assert [int(frame.id) for frame in seen] == list(range(1, len(seen) + 1))
            assert "kernel.process.created" in [frame.event for frame in seen]
            client.enqueue(ScheduleSpec(pid))
            live = next(frames)
            assert live.event == "kernel.sched.enqueued"
            assert live.data["payload"] == {"first_id": 1}
            assert live.data["pid"] == pid
        with Stream(served.url, token, last_event_id=live.id) as again:
            client.journal.append(pid, "note")
            assert next(again.frames()).event == "note"


def test_without_a_cursor_only_new_events_are_sent(served: Served) -> None:
    token = make_token(served.path, "read")
    with served.client() as client, Stream(served.url, token) as stream:
        assert next(stream.lines()).startswith(":"), "the subscription is confirmed"
        client.journal.append(None, "note", {"a": 1})
        frame = next(stream.frames())
        assert (frame.event, frame.data["payload"]) == ("note", {"a": 1})


def test_a_client_is_answered_when_it_has_its_place_in_the_journal(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what it does after the answer could come before its first event."""
    transport: Any = served.daemon.transport
    events = transport.events
    read, begun, may_go_on = events._first_and_last, threading.Event(), threading.Event()

    def read_slowly() -> Any:
        begun.set()
        assert may_go_on.wait(PATIENCE_S)
        return read()

    monkeypatch.setattr(events, "_first_and_last", read_slowly)
    token, (host, port) = make_token(served.path, "read"), served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.sendall(f"GET /events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        assert begun.wait(PATIENCE_S)
        assert select.select([connection], [], [], 0)[0] == [], "nothing is sent yet"
        may_go_on.set()
        assert connection.recv(64).startswith(b"HTTP/1.1 200")


def test_a_stream_whose_place_cannot_be_read_is_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def away() -> Any:
        raise StoreUnavailable("the server is away")

    transport: Any = served.daemon.transport
    events = transport.events
    monkeypatch.setattr(events, "_first_and_last", away)
    token = make_token(served.path, "read")
    assert fetch(served.url, "/events", authorization=f"Bearer {token}").status == 503
    assert events._subscribers == set()


def test_removed_events_are_reported_as_a_gap(served: Served) -> None:
    token = make_token(served.path, "read")
    with served.client() as client:
        for _ in range(5):
            client.journal.append(None, "old")
        client.call("system.prune", events_older_than_s=0.0, entries_older_than_s=0.0)
        first = client.journal.tail()[0].event_id
        with Stream(served.url, token, "/events?since=0") as stream:
            gap = next(stream.frames())
    assert (gap.event, gap.data) == ("gap", {"from": 1, "to": first - 1, "reason": "removed"})


def test_heartbeats_are_sent(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serving(tmp_path / "rota.db", limits=DaemonLimits(heartbeat_s=0.01)))
        lines = stack.enter_context(reading(served)).lines()
        alive = [next(lines) for _ in range(6)]
    assert alive == [": alive", ""] * 3


def test_an_invalid_cursor_is_rejected(served: Served) -> None:
    token = make_token(served.path, "read")
    for bad in ("x", "-1", "1.5", "9" * 30):
        assert fetch(served.url, f"/events?since={bad}", authorization=f"Bearer {token}").status == 400
    assert fetch(served.url, "/events").status == 401


def test_subscribers_get_a_shutdown_event(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db") as served:
        stream = Stream(served.url, make_token(served.path, "read"))
        assert next(stream.lines()).startswith(":")
        served.loop.call_soon_threadsafe(served.daemon.stop)
        assert list(stream.frames())[-1].event == "shutdown"
        stream.close()


def test_a_slow_subscriber_gets_a_gap_and_is_disconnected(tmp_path: Path) -> None:
    limits = DaemonLimits(lag_events_max=BATCH, slow_s=600.0)
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serving(tmp_path / "rota.db", limits=limits))
        stream, raw = stack.enter_context(reading(served)), stack.enter_context(Raw(served.unix))
        assert next(stream.lines()).startswith(":")
        note = {"pid": None, "kind": "note", "payload": {"a": "x" * 2_000}}
        event = {"jsonrpc": "2.0", "id": 1, "method": "kernel.event.append", "params": note}
        for _ in range(80):  # more than the operating system buffers for a connection
            raw.send(msgspec.json.encode([event] * 100) + b"\n")
            assert len(raw.receive()) == 100
        last = raw.ask("kernel.event.cursor")["result"]["cursor"]
        frames = list(stream.frames())
    gap = frames[-1]
    assert gap.event == "gap"
    assert gap.data["reason"] == "slow"
    assert gap.data["from"] == int(frames[-2].id) + 1
    assert gap.data["to"] <= last


def test_a_subscriber_that_reads_nothing_is_disconnected(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serving(tmp_path / "rota.db", limits=DaemonLimits(slow_s=0.1)))
        stream, raw = stack.enter_context(reading(served)), stack.enter_context(Raw(served.unix))
        assert next(stream.lines()).startswith(":")
        note = {"pid": None, "kind": "note", "payload": {"a": "x" * 200_000}}
        for _ in range(60):
            assert "result" in raw.ask("kernel.event.append", note)
        served.until_no_subscriber()
