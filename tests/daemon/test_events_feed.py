"""The journal as server-sent events: replay, gaps, signs of life, slow subscribers, the end."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from rota.kernel import ScheduleSpec
from rota.rpc.daemon.feed import BATCH
from rota.rpc.daemon.limits import Limits
from tests.daemon.web import Stream, fetch
from tests.daemon.world import Raw, Served, make_token, serving


def reading(served: Served) -> Stream:
    return Stream(served.url, make_token(served.path, "read"))


def test_a_subscriber_gets_what_was_and_then_what_comes(served: Served) -> None:
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


def test_without_a_cursor_only_what_comes_is_sent(served: Served) -> None:
    token = make_token(served.path, "read")
    with served.client() as client, Stream(served.url, token) as stream:
        assert next(stream.lines()).startswith(":"), "it is heard"
        client.journal.append(None, "note", {"a": 1})
        frame = next(stream.frames())
        assert (frame.event, frame.data["payload"]) == ("note", {"a": 1})


def test_what_retention_removed_is_announced_as_a_gap(served: Served) -> None:
    token = make_token(served.path, "read")
    with served.client() as client:
        for _ in range(5):
            client.journal.append(None, "old")
        client.call("system.prune", events_older_than_s=0.0, entries_older_than_s=0.0)
        first = client.journal.tail()[0].event_id
        with Stream(served.url, token, "/events?since=0") as stream:
            gap = next(stream.frames())
    assert (gap.event, gap.data) == ("gap", {"from": 1, "to": first - 1, "reason": "removed"})


def test_signs_of_life_are_given(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serving(tmp_path / "rota.db", limits=Limits(heartbeat_s=0.01)))
        lines = stack.enter_context(reading(served)).lines()
        alive = [next(lines) for _ in range(6)]
    assert alive == [": alive", ""] * 3


def test_a_bad_cursor_is_refused(served: Served) -> None:
    token = make_token(served.path, "read")
    for bad in ("x", "-1", "1.5", "9" * 30):
        assert fetch(served.url, f"/events?since={bad}", authorization=f"Bearer {token}").status == 400
    assert fetch(served.url, "/events").status == 401


def test_subscribers_are_told_when_the_daemon_stops(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db") as served:
        stream = Stream(served.url, make_token(served.path, "read"))
        assert next(stream.lines()).startswith(":")
        served.loop.call_soon_threadsafe(served.daemon.stop)
        assert list(stream.frames())[-1].event == "shutdown"
        stream.close()


def test_one_that_falls_too_far_behind_is_told_what_it_misses_and_cut_off(tmp_path: Path) -> None:
    limits = Limits(lag_events_max=BATCH, slow_s=30.0)
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serving(tmp_path / "rota.db", limits=limits))
        stream, raw = stack.enter_context(reading(served)), stack.enter_context(Raw(served.unix))
        assert next(stream.lines()).startswith(":")
        note = {"pid": None, "kind": "note", "payload": {"a": "x" * 2_000}}
        event = {"jsonrpc": "2.0", "id": 1, "method": "kernel.event.append", "params": note}
        for _ in range(80):  # more than the system keeps for a connection nobody reads
            raw.say(msgspec.json.encode([event] * 100) + b"\n")
            assert len(raw.hear()) == 100
        last = raw.ask("kernel.event.cursor")["result"]["cursor"]
        frames = list(stream.frames())
    gap = frames[-1]
    assert gap.event == "gap"
    assert gap.data["reason"] == "slow"
    assert gap.data["from"] == int(frames[-2].id) + 1
    assert gap.data["to"] <= last


def test_one_that_fetches_nothing_is_cut_off(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serving(tmp_path / "rota.db", limits=Limits(slow_s=0.1)))
        stream, raw = stack.enter_context(reading(served)), stack.enter_context(Raw(served.unix))
        assert next(stream.lines()).startswith(":")
        note = {"pid": None, "kind": "note", "payload": {"a": "x" * 200_000}}
        for _ in range(60):
            assert "result" in raw.ask("kernel.event.append", note)
        served.until_no_subscriber()
