"""A daemon in bad company: clients that never read, hold connections, guess tokens or flood it; a disk without room.

The sizes are small in ./dev test and those of a real attack in ./dev soak. Memory is that of a daemon in a process of
its own, at its largest.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from rota import store
from rota.errors import LimitExceeded
from rota.kernel import Kernel, ScheduleSpec
from rota.model.checks import DIMS_MAX
from rota.observe.metrics import LABELS_MAX, OTHER
from rota.rpc import connect
from rota.rpc.daemon.transport import DaemonLimits
from rota.store.migrations import LATEST
from rota.store.postgres_connection import parse_url
from tests.adversity.hostile_clients import Daemon, connection, daemon, read_to_end, send_until_stuck
from tests.daemon.harness import PATIENCE_S, Raw, make_token, no_room, serving
from tests.daemon.http_client import call, fetch, rpc
from tests.postgres_server import own_schema
from tests.store.test_full_disk import small_disk

SOAK = "ROTA_SOAK" in os.environ
GROWTH_MIB_MAX = 200.0
COUNTS = {"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.counts", "params": {}}
LIST = {"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.list", "params": {"limit": 100}}


def is_served(target: Daemon) -> None:
    """Check that requests are served over both transports, and without a token only what needs none."""
    with Raw(target.unix) as raw:
        assert "result" in raw.ask("kernel.sched.counts")
    assert "result" in rpc(target.url, target.token, COUNTS).json
    assert rpc(target.url, None, COUNTS).status == 401
    assert fetch(target.url, "/livez").status == 200


# --- memory --------------------------------------------------------------------------------------


def test_subscribers_that_never_read_are_dropped_with_a_frame(tmp_path: Path) -> None:
    subscribers, events, size = (128, 40, 250_000) if SOAK else (12, 20, 250_000)
    with daemon(tmp_path / "rota.db", slow_s=20 if SOAK else 1) as target, contextlib.ExitStack() as stack:
        with connect(target.unix) as client:
            for _ in range(events):
                client.journal.append(None, "note", {"a": "x" * size})
        target.watch()
        streams = [stack.enter_context(connection(target.url, receive_bytes=4_096)) for _ in range(subscribers)]
        for stream in streams:
            stream.sendall(target.get("/events?since=0"))
        happened(lambda: any("dropped: the client does not read (slow_s)" in line for line in target.log))
        # One that is not dropped yet would read on for ever, so the one that the log names: connections are numbered
        # in the order in which they are made.
        dropped = next(match for line in target.log if (match := re.search(r"http connection=(\d+) dropped", line)))
        end = read_to_end(streams[int(dropped[1]) - 1])
        assert target.growth_mib() < (GROWTH_MIB_MAX if SOAK else 64)
        assert b'"reason":"slow"' in end[-200:]
        assert end.endswith(b"\n\n\r\n0\r\n\r\n"), "the stream ends as HTTP asks for"
        is_served(target)


def test_requests_that_are_pipelined_and_never_read_are_not_kept(tmp_path: Path) -> None:
    count = 800_000 if SOAK else 60_000
    with daemon(tmp_path / "rota.db", slow_s=1) as target:
        with connection(target.url, receive_bytes=4_096) as client:
            send_until_stuck(client, target.get("/livez", token=False) * count)
            assert target.growth_mib() < 32
            is_served(target)
            happened(lambda: any("does not read (slow_s)" in line for line in target.log))
        is_served(target)


@pytest.mark.parametrize("transport", ["unix", "http"])
def test_pages_that_are_never_read_are_not_kept(tmp_path: Path, transport: str) -> None:
    requesters, rows, bound = (100, 100, GROWTH_MIB_MAX) if SOAK else (20, 16, 72.0)
    limits: dict[str, float] = {} if SOAK else {"buffer_bytes_max": 16_000_000, "answer_bytes_max": 8_000_000}
    with daemon(tmp_path / "rota.db", **limits) as target, contextlib.ExitStack() as stack:
        fill(target, rows)
        address = target.unix if transport == "unix" else target.url
        request = msgspec.json.encode(LIST) + b"\n" if transport == "unix" else target.post(LIST)
        clients = [stack.enter_context(connection(address, receive_bytes=4_096)) for _ in range(requesters)]
        for client in clients:
            client.sendall(request)
        happened(lambda: sum("(buffer_bytes_max)" in line for line in target.log) > requesters // 2)
        assert target.growth_mib() < bound
        is_served(target)
        with connect(target.unix) as reader:
            assert len(reader.queue.list(limit=rows)[0]) == rows, "a client that reads gets its page"


def test_a_client_that_pipelines_pages_gets_no_more_than_it_reads(tmp_path: Path) -> None:
    rows, bound = (100, GROWTH_MIB_MAX) if SOAK else (16, 64.0)
    with daemon(tmp_path / "rota.db", out_bytes_max=2_000_000) as target:
        fill(target, rows)
        with connection(target.unix, receive_bytes=4_096) as client:
            client.sendall((msgspec.json.encode(LIST) + b"\n") * 200)
            is_served(target)
            with connect(target.unix) as other:
                assert len(other.queue.list(limit=rows)[0]) == rows
            assert target.growth_mib() < bound
            with client.makefile("rb") as lines:
                for _ in range(3):
                    assert len(msgspec.json.decode(lines.readline())["result"]["entries"]) == rows, "it can read on"


def test_large_requests_that_never_end_are_bounded_and_delay_no_small_one(tmp_path: Path) -> None:
    clients = 200 if SOAK else 30
    with daemon(tmp_path / "rota.db", slow_s=20) as target, contextlib.ExitStack() as stack:
        start = b'{"jsonrpc":"2.0","id":1,"method":"kernel.event.append","params":{"kind":"' + b"x" * 4_000_000
        for number in range(clients):
            client = stack.enter_context(connection(target.unix if number % 2 else target.url))
            send_until_stuck(client, start if number % 2 else target.post(start + b" " * 9)[:-9], 0.05)
        assert target.growth_mib() < 100
        is_served(target)


def fill(target: Daemon, rows: int) -> None:
    """Enqueue entries with large payloads, and measure from there."""
    with connect(target.unix) as client:
        pid = client.create_agent("agent", "callable")
        for _ in range(rows):
            client.enqueue(ScheduleSpec(pid, payload={"a": "x" * 250_000}))
    target.watch()


def happened(condition: Any) -> None:
    """Wait until a condition holds; real time only ends a test that would hang."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S * 4 * 100)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("the condition was never true")


# --- connections ---------------------------------------------------------------------------------


def test_idle_connections_keep_nobody_out(tmp_path: Path) -> None:
    idle, limits = (5_000, {}) if SOAK else (150, {"connections_max": 32, "slow_s": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * idle + 1_000)), hard))
    with daemon(tmp_path / "rota.db", **limits) as target, contextlib.ExitStack() as stack:
        with connect(target.unix) as working, connect(target.url, token=target.token) as remote:
            assert working.queue.counts() == remote.queue.counts() == {}
            held = [stack.enter_context(connection(target.url)) for _ in range(idle)]
            held += [stack.enter_context(connection(target.unix)) for _ in range(idle)]
            is_served(target)
            assert working.queue.counts() == {}, "clients that were there before are still served"
            assert remote.queue.counts() == {}
            for each in held[:idle]:
                read_to_end(each)  # all of these are closed: at once for a new one, or after `slow_s`
            is_served(target)
        for each in held[idle : idle + idle // 2]:
            assert read_to_end(each) == b"", "the oldest on the unix socket had to make room"


def test_a_connection_in_its_tls_handshake_has_a_place_like_others(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    made = trustme.CA().issue_cert("localhost")
    made.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    pem = str(tmp_path / "both.pem")
    options = ("--tls-cert", pem, "--tls-key", pem)
    with daemon(tmp_path / "rota.db", *options, connections_max=8) as target, contextlib.ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(connection(target.url.replace("https", "http")))
        with Raw(target.unix) as raw:
            assert "result" in raw.ask("kernel.sched.counts")
        files = len(list(Path(f"/proc/{target.pid}/fd").iterdir()))
        assert files < 50


# --- who is served -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("127.0.0.1", None, 200),
        ("127.0.0.1:{port}", "http://127.0.0.1:{port}", 200),
        ("localhost:1234", None, 200),
        ("[::1]:{port}", None, 200),
        ("fleet.example:{port}", None, 200),
        ("fleet.example", "https://fleet.example", 200),
        ("127.0.0.1:{port}", "http://fleet.example", 200),
        ("evil.example:{port}", None, 421),
        ("evil.example:{port}", "http://evil.example:{port}", 421),
        ("localhost.evil.example", None, 421),
        ("", None, 421),
        ("127.0.0.1:{port}", "http://evil.example", 403),
        ("127.0.0.1:{port}", "http://127.0.0.1:1", 403),
        ("127.0.0.1:{port}", "null", 403),
        ("127.0.0.1:{port}", "http://[", 403),
    ],
)
def test_hosts_and_origins(tmp_path: Path, host: str, origin: str | None, status: int) -> None:
    target = SHARED.get("daemon") or SHARED.setdefault("daemon", start_shared(tmp_path))
    port = target.url.rpartition(":")[2]
    headers: dict[str, Any] = {} if origin is None else {"Origin": origin.format(port=port)}
    for path in ("/metrics", "/livez"):
        with connection(target.url) as client:
            client.sendall(target.get(path, host=host.format(port=port), Connection="close", **headers))
            answer = read_to_end(client)
        assert int(answer.split()[1]) == status, answer[:300]
        if status != 200:
            assert b"-32" in answer
            assert b"--allow-host" in answer


SHARED: dict[str, Daemon] = {}


def start_shared(tmp_path: Path) -> Daemon:
    return Daemon(tmp_path / "rota.db", "--allow-host", "fleet.example")


@pytest.fixture(scope="module", autouse=True)
def _stop_shared() -> Any:
    yield
    for each in SHARED.values():
        each.stop()


def test_a_web_page_cannot_lock_the_owner_out(tmp_path: Path) -> None:
    with daemon(tmp_path / "rota.db") as target:
        for _ in range(20):
            assert rpc(target.url, None, COUNTS).status == 401
            assert rpc(target.url, "nonsense", COUNTS).status in (401, 429)
        assert rpc(target.url, target.token, COUNTS).status == 200


def test_refused_requests_are_counted_and_not_recorded_one_by_one(tmp_path: Path) -> None:
    count = 40_000 if SOAK else 600
    with daemon(tmp_path / "rota.db") as target:
        reader = make_token(str(tmp_path / "rota.db"), "read")
        pause = {"jsonrpc": "2.0", "id": 1, "method": "kernel.project.pause_fleet", "params": {"by": "x"}}
        for _ in range(count // 300):
            assert all("error" in each for each in rpc(target.url, reader, [pause] * 299).json)
            assert rpc(target.url, None, COUNTS).status == 401
        with connect(target.unix) as client:
            assert len(denials(client.journal)) <= 4 + count // 10_000, (
                "one event for each caller and reason in a minute"
            )
    kernel = Kernel(store.open(str(tmp_path / "rota.db"), read_only=True))
    assert sum(denials(kernel.journal)) == count // 300 * 300, "none is lost when the daemon stops"
    kernel.store.close()


def denials(journal: Any) -> list[int]:
    return [event.payload.get("count", 1) for event in journal.tail(0, 10_000, kinds=("kernel.auth.denied",))]


# --- what callers may cost -----------------------------------------------------------------------


def test_made_up_dimensions_are_refused_or_aggregated(tmp_path: Path) -> None:
    runs = 300 if SOAK else 4
    with serving(tmp_path / "rota.db") as served, served.client() as client:
        token = make_token(served.path, "read")
        pid = client.create_agent("agent", "callable")
        for number in range(runs):
            client.enqueue(ScheduleSpec(pid))
            (entry,) = client.claim("worker")
            amounts = {f"made up {number} {each}": 1 for each in range(DIMS_MAX)}
            client.queue.charge(entry.sched_id, amounts, token=entry.token)
            with pytest.raises(LimitExceeded, match="dims_max"):
                client.queue.charge(entry.sched_id, {"one more": 1}, token=entry.token)
            client.complete(entry.sched_id, "completed", token=entry.token)
        with pytest.raises(LimitExceeded, match="dims_max"):
            client.ledger.create(pid, {f"grant {each}": 1 for each in range(DIMS_MAX + 1)})
        page = fetch(served.url, "/metrics", authorization=f"Bearer {token}").body.decode()
    used = [line for line in page.splitlines() if line.startswith("rota_usage_total{")]
    assert len(used) == LABELS_MAX + 1
    assert f'rota_usage_total{{dimension="{OTHER}"}} {(runs - 1) * DIMS_MAX:.1f}' in used
    assert len(page) < 64_000


def test_a_write_waits_for_one_explanation_and_not_for_all(tmp_path: Path) -> None:
    limits = DaemonLimits(explains_max=1_000)
    with serving(tmp_path / "rota.db", limits=limits) as served, served.client() as client:
        pid = client.create_agent("agent", "callable")
        client.enqueue_many([ScheduleSpec(pid)] * 600)
        dry_runs = served.daemon.executor._dry_runs
        body = {"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.explain", "params": {"sched_id": 600}}
        with contextlib.ExitStack() as stack:
            callers = [stack.enter_context(Raw(served.unix)) for _ in range(8)]
            for raw in callers:
                raw.send((msgspec.json.encode(body) + b"\n") * 12)
            served._until(lambda: sum(map(len, dry_runs._waiting.values())) > 60)
            before = sum(map(len, dry_runs._waiting.values()))
            client.enqueue(ScheduleSpec(pid))
            done = before - sum(map(len, dry_runs._waiting.values()))
            assert done < 30, "the write did not wait for the explanations that were asked for before it"
            for raw in callers:
                assert all("result" in raw.receive() for _ in range(12)), "and none of them is lost"


def test_explanations_of_one_caller_are_limited(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db", limits=DaemonLimits(explains_max=4)) as served, served.client() as client:
        client.enqueue(ScheduleSpec(client.create_agent("agent", "callable")))
        body = {"jsonrpc": "2.0", "method": "kernel.sched.explain", "params": {"sched_id": 1}}
        with Raw(served.unix) as raw:
            raw.send(msgspec.json.encode([body | {"id": each} for each in range(100)]) + b"\n")
            answers = raw.receive()
        refused = [each["error"]["data"]["limit"] for each in answers if "error" in each]
        assert 0 < len(refused) <= 95
        assert set(refused) == {"explains_max"}


def test_a_caller_with_many_reads_delays_only_its_own(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db") as served, served.client() as client:
        flooding, other = make_token(served.path, "read"), make_token(served.path, "read")
        pid = client.create_agent("agent", "callable")
        client.enqueue_many([ScheduleSpec(pid, payload={"a": "x" * 1_000})] * 500)
        pages = served.daemon.executor._pages
        with ThreadPoolExecutor(1) as pool:
            flood = pool.submit(rpc, served.url, flooding, [LIST | {"params": {"limit": 500}}] * 50)
            served._until(lambda: sum(map(len, pages._waiting.values())) > 40)
            assert "result" in call(served.url, other, "kernel.sched.list", {"limit": 1})
            waiting = sum(map(len, pages._waiting.values()))
            assert len(flood.result().json) == 50
        assert waiting > 20, "the other caller did not wait for all of them"


# --- no room -------------------------------------------------------------------------------------


def test_a_daemon_that_cannot_write_is_not_ready_until_it_can(tmp_path: Path) -> None:
    with daemon(tmp_path / "rota.db") as target:
        assert fetch(target.url, "/readyz").status == 200
        with no_room(target.pid, Path(target.path)), Raw(target.unix) as raw:
            error = fill_up(raw)
            assert "nothing was written" in error["message"]
            answer = fetch(target.url, "/readyz")
            assert answer.status == 503
            assert b"nothing was written" in answer.body
            assert "result" in raw.ask("kernel.sched.counts"), "reading goes on"
            assert fetch(target.url, "/livez").status == 200
        assert fetch(target.url, "/readyz").status == 200
        is_served(target)


def test_a_daemon_whose_schema_was_migrated_by_a_newer_version_is_not_ready() -> None:
    """On PostgreSQL; the daemon of a file ends."""
    with own_schema("rota_migrated") as url, serving(url) as served, Raw(served.unix) as raw:
        assert fetch(served.url, "/readyz").status == 200
        set_version(url, LATEST + 1)
        assert "error" in raw.ask("kernel.event.append", {"pid": None, "kind": "note", "payload": {}})
        answer = fetch(served.url, "/readyz")
        assert answer.status == 503
        assert f"schema_version is {LATEST + 1} now" in answer.body.decode()
        set_version(url, LATEST)
        assert fetch(served.url, "/readyz").status == 200


def set_version(url: str, version: int) -> None:
    address = parse_url(url)
    with psycopg.connect(address.conninfo) as connection:
        text = f"UPDATE {address.schema}.kernel_meta SET value = '{version}' WHERE key = 'schema_version'"
        connection.execute(text.encode())


def fill_up(raw: Raw) -> Any:
    """Write until the daemon cannot, however little it is; return the error."""
    answer: Any = None
    for size in (200_000, 8_000, 1, 1):
        for _ in range(200):
            answer = raw.ask("kernel.event.append", {"pid": None, "kind": "note", "payload": {"a": "x" * size}})
            if "error" in answer:
                break
    assert "error" in answer, "the disk was never full"
    return answer["error"]


def test_a_signal_while_the_disk_is_full_is_one_sentence_and_the_documented_code(tmp_path: Path) -> None:
    target = Daemon(tmp_path / "rota.db")
    with no_room(target.pid, Path(target.path)), Raw(target.unix) as raw:
        fill_up(raw)
        code = target.stop()
    log = "".join(target.log)
    assert code == 5, log
    assert "Traceback" not in log
    assert sum(line.startswith("rota: ") for line in target.log) == 1
    assert [line for line in target.log if line.startswith("rota: nothing was written")]
    with daemon(tmp_path / "rota.db") as again:
        is_served(again)


@pytest.mark.parametrize("mount", ["size=64k", "size=4m,nr_inodes=3", "size=4m,ro"])
def test_a_start_without_room_is_one_sentence_and_the_documented_code(tmp_path: Path, mount: str) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    words = small_disk(folder)
    if not words:
        pytest.skip("this system allows no small disk")
    prefix = [word.replace("size=4096k", mount) for word in words]
    command = [sys.executable, "-m", "rota", "serve", "--store", str(folder / "rota.db"), "--listen", "127.0.0.1:0"]
    done = subprocess.run([*prefix, *command], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 5, done.stderr
    assert "Traceback" not in done.stderr
    (sentence,) = [line for line in done.stderr.splitlines() if line.startswith("rota: ")]
    assert str(folder) in sentence or "nothing was written" in sentence


def test_a_second_signal_or_a_client_that_never_reads_does_not_keep_a_daemon_from_stopping(tmp_path: Path) -> None:
    target = Daemon(tmp_path / "rota.db", grace_s=0.5)
    fill(target, 8)
    with connection(target.unix, receive_bytes=4_096) as client, connection(target.url) as idle:
        client.sendall(msgspec.json.encode(LIST) + b"\n")
        idle.sendall(b"GET /livez HTTP/1.1\r\n")
        is_served(target)
        os.kill(target.pid, signal.SIGTERM)
        assert target.stop() == 0
