"""Every limit of the daemon, at the limit and one past it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rota.errors import LimitExceeded, SchedInvalidPayload
from rota.kernel import ScheduleSpec
from rota.model.checks import PAYLOAD_BYTES_MAX, RESULT_BYTES_MAX
from rota.rpc import connect
from rota.rpc.authorization import Principal
from rota.rpc.daemon.event_stream import Subscriber
from rota.rpc.daemon.transport import DaemonLimits
from rota.rpc.daemon.unix_socket import LineProtocol
from rota.rpc.jsonrpc import BATCH_MAX, BODY_BYTES_MAX, NESTING_MAX
from tests.daemon.harness import PATIENCE_S, Raw, Served, make_token, serving
from tests.daemon.http_client import Stream, fetch, rpc

COUNTS = {"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.counts", "params": {}}


def nested(depth: int) -> dict[str, Any]:
    payload: Any = []
    for _ in range(depth - 4):
        payload = [payload]
    params = {"pid": None, "kind": "x", "payload": {"a": payload}}
    return {"jsonrpc": "2.0", "id": 1, "method": "kernel.event.append", "params": params}


@pytest.fixture(params=["unix", "http"])
def ask(served: Served, request: pytest.FixtureRequest) -> Any:
    """Send raw bytes over each transport, and return the decoded response."""
    if request.param == "unix":

        def over_unix(body: bytes) -> Any:
            with Raw(served.unix) as raw:
                raw.send(body + b"\n")
                return raw.receive()

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


def test_result_bytes_max(client: Any) -> None:
    pid = client.create_agent("agent", "callable")
    runs = [client.enqueue(ScheduleSpec(pid)) for _ in range(2)]
    client.claim("worker", 2)
    client.complete(runs[0], "completed", result="x" * (RESULT_BYTES_MAX - len('""')))
    with pytest.raises(SchedInvalidPayload, match="262,145 bytes"):
        client.complete(runs[1], "completed", result="x" * (RESULT_BYTES_MAX - len('""') + 1))


# --- answers -------------------------------------------------------------------------------------


def over_both_transports(served: Served) -> Iterator[Callable[[Any], Any]]:
    """Call over each transport, and return the decoded response."""
    with Raw(served.unix) as raw:

        def over_unix(body: Any) -> Any:
            raw.send(msgspec.json.encode(body) + b"\n")
            return raw.receive()

        yield over_unix
    token = make_token(served.path, "admin")
    yield lambda body: rpc(served.url, token, body).json


def test_answer_bytes_max(tmp_path: Path) -> None:
    size = len(msgspec.json.encode({"id": 1, "result": {"states": {}}, "jsonrpc": "2.0"}))
    for most, fits in ((size, True), (size - 1, False)):
        limits = DaemonLimits(answer_bytes_max=most)
        with serving(tmp_path / f"{most}.db", limits=limits) as served:
            for ask in over_both_transports(served):
                answer = ask(COUNTS)
                assert ("result" in answer) == fits
                if not fits:
                    assert answer["error"]["data"]["limit"] == "answer_bytes_max"
                    assert answer["error"]["data"]["asked"] == size


def test_answer_bytes_max_covers_all_responses_to_a_batch(tmp_path: Path) -> None:
    size = len(msgspec.json.encode({"id": 1, "result": {"states": {}}, "jsonrpc": "2.0"}))
    for most, fitting in ((3 * size, 3), (3 * size - 1, 2)):
        limits = DaemonLimits(answer_bytes_max=most)
        with serving(tmp_path / f"{most}.db", limits=limits) as served:
            for ask in over_both_transports(served):
                answers = ask([COUNTS] * 3)
                assert sum("result" in each for each in answers) == fitting
                rejected = [each["error"]["data"]["limit"] for each in answers if "error" in each]
                assert rejected == ["answer_bytes_max"] * (3 - fitting)


def test_out_bytes_max_limits_unread_responses(tmp_path: Path) -> None:
    """Responses that a client does not read are kept up to the limit; at the limit and one past it."""
    with serving(tmp_path / "rota.db", limits=DaemonLimits(out_bytes_max=10_000)) as served, Raw(served.unix) as raw:
        assert "result" in raw.ask("kernel.sched.counts")
        (connection,) = served.daemon.listener.connections.open()
        outbox: Any = connection._outbox  # type: ignore[attr-defined]  # as in the daemon

        async def reads() -> list[bool]:
            outbox.send(b"x" * 1_000_000)  # more than the operating system takes
            while not outbox.paused:
                await asyncio.sleep(0)
            kept, found = outbox.size, []
            for size in (10_000, 10_001):
                outbox.size = size
                found.append(connection.reads_responses())  # type: ignore[attr-defined]
            outbox.size = kept
            outbox.send(b"\n")
            return found

        assert asyncio.run_coroutine_threadsafe(reads(), served.loop).result(PATIENCE_S) == [True, False]
        assert set(raw._file.readline()) == set(b"x\n")
        assert "result" in raw.ask("kernel.sched.counts"), "the client reads again and gets responses"


# --- connections ---------------------------------------------------------------------------------


def head(token: str, size: int) -> bytes:
    """A request whose URL and headers have this many bytes."""
    headers = {"Host": "localhost", "Connection": "close", "Authorization": f"Bearer {token}"}
    taken = len("/metrics") + sum(len(name) + len(value) for name, value in headers.items())
    headers["X-Pad"] = "x" * (size - taken - len("X-Pad"))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"GET /metrics HTTP/1.1\r\n{lines}\r\n".encode()


def sent(url: str, body: bytes) -> bytes:
    """Return the daemon's response to bytes over TCP."""
    host, port = url.removeprefix("http://").split(":")
    answer = b""
    with socket.create_connection((host, int(port)), timeout=30) as client, contextlib.suppress(ConnectionError):
        client.sendall(body)
        while part := client.recv(1 << 16):
            answer += part
    return answer


def test_head_bytes_max(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", limits=DaemonLimits(head_bytes_max=1_000)) as served:
        token = make_token(served.path, "read")
        assert sent(served.url, head(token, 1_000)).startswith(b"HTTP/1.1 200 ")
        rejected = sent(served.url, head(token, 1_001))
        assert rejected.startswith(b"HTTP/1.1 400 ")
        assert b"head_bytes_max" in rejected


@pytest.mark.parametrize("start", [b"GET /metrics HTTP/1.1\r\nX-Pad: ", b"GET /metrics HTTP/1.1\r\n", b"GET /"])
def test_head_bytes_max_limits_headers_that_never_end(tmp_path: Path, start: bytes) -> None:
    more = b"X: y\r\n" if start.endswith(b"1.1\r\n") else b"x" * 6
    with serving(tmp_path / "rota.db", limits=DaemonLimits(head_bytes_max=1_000)) as served:
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as client, pytest.raises(ConnectionError):
            client.sendall(start + more * 10_000_000)
        assert fetch(served.url, "/livez").status == 200


def test_connections_max_on_the_unix_socket(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "rota.db", limits=DaemonLimits(connections_max=2)) as served,
        contextlib.ExitStack() as stack,
    ):
        first, second = (stack.enter_context(Raw(served.unix)) for _ in range(2))
        assert "result" in first.ask("kernel.sched.counts")
        assert "result" in second.ask("kernel.sched.counts")
        with Raw(served.unix) as third:
            assert third.receive()["error"]["data"]["limit"] == "connections_max"
            assert third.receive() is None
        with pytest.raises(LimitExceeded), served.client(retry_s=0.0) as client:
            client.info()
        first.close()
        served._until(lambda: len(served.daemon.listener.connections) < 2)
        with Raw(served.unix) as fourth:
            assert "result" in fourth.ask("kernel.sched.counts")


def test_connections_max_over_http(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "rota.db", limits=DaemonLimits(connections_max=2)) as served,
        contextlib.ExitStack() as stack,
    ):
        token = make_token(served.path, "read")
        for _ in range(2):
            assert stack.enter_context(Stream(served.url, token)).status == 200
        assert rpc(served.url, token, COUNTS).status == 503


def test_pipeline_max_delays_requests_and_loses_none(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", limits=DaemonLimits(pipeline_max=2)) as served, Raw(served.unix) as raw:
        count = 200
        raw.send(b"".join(msgspec.json.encode(COUNTS | {"id": number}) + b"\n" for number in range(count)))
        assert sorted(raw.receive()["id"] for _ in range(count)) == list(range(count))


def test_pipeline_max_limits_requests_without_a_response(tmp_path: Path) -> None:
    def claim(number: int) -> bytes:
        params = {"worker_id": f"w{number}", "wait_s": 600.0}
        body = {"jsonrpc": "2.0", "id": f"claim {number}", "method": "kernel.sched.claim", "params": params}
        return msgspec.json.encode(body) + b"\n"

    with (
        serving(tmp_path / "rota.db", limits=DaemonLimits(pipeline_max=2)) as served,
        Raw(served.unix) as raw,
        served.client() as other,
    ):
        raw.send(claim(1))
        assert "result" in raw.ask("kernel.sched.counts"), "with one waiting call there is room for another"
        raw.send(claim(2))
        served.until_parked(2)
        raw.send(msgspec.json.encode(COUNTS) + b"\n")
        assert other.queue.counts() == {}, "other connections are not delayed"
        other.queue.nudge("w1")
        assert [raw.receive()["id"] for _ in range(2)] == ["claim 1", 1]
        other.queue.nudge("w2")
        assert raw.receive()["id"] == "claim 2"


def test_slow_s_allows_a_line_that_ends_in_time(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", limits=DaemonLimits(slow_s=600.0)) as served, Raw(served.unix) as raw:
        body = msgspec.json.encode(COUNTS)
        assert "result" in raw.ask("kernel.sched.counts")
        (connection,) = served.daemon.listener.connections.open()
        assert isinstance(connection, LineProtocol)
        raw.send(body[:20])
        served._until(lambda: connection._line_timer is not None)
        raw.send(body[20:] + b"\n")
        assert "result" in raw.receive()
        assert connection._line_timer is None, "there is no timer between lines"


def test_slow_s_disconnects_a_client_that_does_not_end_its_line(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", limits=DaemonLimits(slow_s=0.05)) as served, Raw(served.unix) as raw:
        raw.send(b'{"jsonrpc"')
        assert raw.receive() is None
        with Raw(served.unix) as other:
            assert "result" in other.ask("kernel.sched.counts")


def test_slow_s_disconnects_a_client_that_does_not_end_its_http_request(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", limits=DaemonLimits(slow_s=0.05)) as served:
        token = make_token(served.path, "read")
        host, port = served.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            slow.sendall(b"POST /rpc HTTP/1.1\r\nHost: localhost\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert slow.recv(100) == b""
        with socket.create_connection((host, int(port)), timeout=30) as slow:
            head = (
                f"POST /rpc HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nAuthorization: Bearer {token}\r\n\r\n{{"
            )
            slow.sendall(head.encode())
            assert b" 408 " in slow.recv(100)


def test_out_bytes_max_and_slow_s_disconnect_a_client_that_does_not_read(tmp_path: Path) -> None:
    limits = DaemonLimits(out_bytes_max=10_000, slow_s=0.05)
    with serving(tmp_path / "rota.db", limits=limits) as served, served.client() as client:
        pid = client.create_agent("agent", "callable")
        client.enqueue(ScheduleSpec(pid, payload={"a": "x" * 200_000}))
        with Raw(served.unix) as raw:
            body = msgspec.json.encode({"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.list", "params": {}})
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                for _ in range(50):
                    raw.send(body + b"\n")
            served._until(lambda: len(served.daemon.listener.connections) == 1)
        assert client.info()["agent_count"] == 1


def test_subscribers_max(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", limits=DaemonLimits(subscribers_max=1)) as served:
        token = make_token(served.path, "read")
        with Stream(served.url, token) as first, Stream(served.url, token) as second:
            assert first.status == 200
            assert second.status == 429
        served.until_no_subscriber()
        with Stream(served.url, token) as third:
            assert third.status == 200, "there is room for another subscriber"


def test_lag_events_max(tmp_path: Path) -> None:
    """A subscriber that was sent a whole batch is this far behind the last event."""
    with serving(tmp_path / "rota.db", limits=DaemonLimits(lag_events_max=5)) as served, served.client() as client:
        transport: Any = served.daemon.transport
        for _ in range(10):
            client.journal.append(None, "note")
        last = client.journal.cursor()

        def notice(behind: int) -> Any:
            subscriber = Subscriber(Principal(name="caller", scope="read"))
            subscriber.cursor, subscriber.caught_up = last - behind, True
            asked = asyncio.run_coroutine_threadsafe(transport.events._gap_if_behind(subscriber), served.loop)
            return asked.result(PATIENCE_S)

        assert notice(5) is None
        assert msgspec.json.decode(notice(6).split(b"data: ")[1]) == {"from": last - 5, "to": last, "reason": "slow"}


def test_an_error_for_a_limit_names_it(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db") as served:
        token = make_token(served.path, "admin")
        for address in (served.unix, served.url):
            with connect(address, token=token) as client, pytest.raises(LimitExceeded) as caught:
                client.call("kernel.event.append", pid=None, kind="x", payload={"a": "x" * BODY_BYTES_MAX})
            assert caught.value.limit == "body_bytes_max"
