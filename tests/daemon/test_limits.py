"""Every limit of the daemon, at the limit and one past it."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rota.client import connect
from rota.daemon.limits import Limits
from rota.errors import LimitExceeded, SchedInvalidPayload
from rota.kernel import ScheduleSpec
from rota.model.checks import PAYLOAD_BYTES_MAX
from rota.wire.envelope import BATCH_MAX, BODY_BYTES_MAX, NESTING_MAX
from tests.daemon.web import Stream, rpc
from tests.daemon.world import Raw, Served, make_token, serving

COUNTS = {"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.counts", "params": {}}


def nested(depth: int) -> dict[str, Any]:
    payload: Any = []
    for _ in range(depth - 4):
        payload = [payload]
    params = {"pid": None, "kind": "x", "payload": {"a": payload}}
    return {"jsonrpc": "2.0", "id": 1, "method": "kernel.event.append", "params": params}


@pytest.fixture(params=["unix", "http"])
def ask(served: Served, request: pytest.FixtureRequest) -> Any:
    """Send raw bytes over each transport; the decoded answer."""
    if request.param == "unix":

        def over_unix(body: bytes) -> Any:
            with Raw(served.unix) as raw:
                raw.say(body + b"\n")
                return raw.hear()

        return over_unix
    token = make_token(served.path, "admin")
    return lambda body: rpc(served.url, token, body).json


def test_body_bytes_max(ask: Any) -> None:
    body = msgspec.json.encode(COUNTS)
    assert "result" in ask(body.ljust(BODY_BYTES_MAX))
    assert ask(body.ljust(BODY_BYTES_MAX + 1))["error"]["data"]["limit"] == "body_bytes_max"


def test_batch_max(ask: Any) -> None:
    assert len(ask(msgspec.json.encode([COUNTS] * BATCH_MAX))) == BATCH_MAX
    assert ask(msgspec.json.encode([COUNTS] * (BATCH_MAX + 1)))["error"]["data"]["limit"] == "batch_max"


def test_nesting_max(ask: Any) -> None:
    assert "result" in ask(msgspec.json.encode(nested(NESTING_MAX)))
    assert ask(msgspec.json.encode(nested(NESTING_MAX + 1)))["error"]["data"]["limit"] == "nesting_max"


def test_payload_bytes_max(client: Any) -> None:
    pid = client.create_agent("agent", "callable")
    empty = len(msgspec.json.encode({"a": ""}))
    client.enqueue(ScheduleSpec(pid, payload={"a": "x" * (PAYLOAD_BYTES_MAX - empty)}))
    with pytest.raises(SchedInvalidPayload, match="payload is 262,145 bytes"):
        client.enqueue(ScheduleSpec(pid, payload={"a": "x" * (PAYLOAD_BYTES_MAX - empty + 1)}))


def test_connections_max_on_the_unix_socket(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", limits=Limits(connections_max=2)) as served, contextlib.ExitStack() as stack:
        first, second = (stack.enter_context(Raw(served.unix)) for _ in range(2))
        assert "result" in first.ask("kernel.sched.counts")
        assert "result" in second.ask("kernel.sched.counts")
        with Raw(served.unix) as third:
            assert third.hear()["error"]["data"]["limit"] == "connections_max"
            assert third.hear() is None
        with pytest.raises(LimitExceeded), served.client(retry_s=0.0) as client:
            client.info()
        first.close()
        served._until(lambda: len(served.daemon._connections.open) < 2)
        with Raw(served.unix) as fourth:
            assert "result" in fourth.ask("kernel.sched.counts")


def test_connections_max_over_tcp(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", limits=Limits(connections_max=2)) as served, contextlib.ExitStack() as stack:
        token = make_token(served.path, "read")
        for _ in range(2):
            assert stack.enter_context(Stream(served.url, token)).status == 200
        assert rpc(served.url, token, COUNTS).status == 503


def test_pipeline_max_holds_back_what_is_sent_too_fast_and_loses_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", limits=Limits(pipeline_max=2)) as served, Raw(served.unix) as raw:
        count = 200
        raw.say(b"".join(msgspec.json.encode(COUNTS | {"id": number}) + b"\n" for number in range(count)))
        assert sorted(raw.hear()["id"] for _ in range(count)) == list(range(count))


def test_slow_s_cuts_off_who_does_not_end_a_line(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", limits=Limits(slow_s=0.05)) as served, Raw(served.unix) as raw:
        raw.say(b'{"jsonrpc"')
        assert raw.hear() is None
        with Raw(served.unix) as other:
            assert "result" in other.ask("kernel.sched.counts")


def test_slow_s_cuts_off_who_does_not_end_a_request_over_tcp(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", limits=Limits(slow_s=0.05)) as served:
        token = make_token(served.path, "read")
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            slow.sendall(b"POST /rpc HTTP/1.1\r\nHost: x\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert slow.recv(100) == b""
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            head = f"POST /rpc HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nAuthorization: Bearer {token}\r\n\r\n{{"
            slow.sendall(head.encode())
            assert b" 408 " in slow.recv(100)


def test_out_bytes_max_and_slow_s_cut_off_who_does_not_fetch_its_answers(tmp_path: Path) -> None:
    limits = Limits(out_bytes_max=10_000, slow_s=0.05)
    with serving(tmp_path / "rota.db", limits=limits) as served, served.client() as client:
        pid = client.create_agent("agent", "callable")
        client.enqueue(ScheduleSpec(pid, payload={"a": "x" * 200_000}))
        with Raw(served.unix) as raw:
            body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.list", "params": {}})
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for _ in range(50):
                    raw.say(body + b"\n")
            served._until(lambda: len(served.daemon._connections.open) == 1)
        assert client.info()["agent_count"] == 1


def test_subscribers_max(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", limits=Limits(subscribers_max=1)) as served:
        token = make_token(served.path, "read")
        with Stream(served.url, token) as first, Stream(served.url, token) as second:
            assert first.status == 200
            assert second.status == 429


def test_a_client_that_is_refused_for_a_limit_hears_which(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db") as served:
        token = make_token(served.path, "admin")
        for address in (served.unix, served.url):
            with connect(address, token=token) as client, pytest.raises(LimitExceeded) as caught:
                client.call("kernel.event.append", pid=None, kind="x", payload={"a": "x" * BODY_BYTES_MAX})
            assert caught.value.limit == "body_bytes_max"
