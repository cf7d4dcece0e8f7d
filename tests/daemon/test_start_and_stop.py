"""Starting and stopping, one daemon per file, discovery, systemd notifications."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest

from rota import store
from rota.cli.serve import Options, run
from rota.errors import InvalidInput, StoreUnavailable, UnknownPolicy
from rota.kernel import Kernel, ScheduleSpec
from rota.rpc import connect, connect_async
from rota.rpc.daemon.runtime_dir import DaemonInfo, RuntimeDirectory, daemon_address, find_daemon
from rota.rpc.daemon.systemd import SystemdNotifier
from rota.rpc.methods import PROTOCOL
from rota.store import socket_paths
from rota.store.socket_paths import SOCKET_PATH_BYTES_MAX, socket_path
from tests.daemon.harness import PATIENCE_S, Process, Raw, Served, serving
from tests.daemon.http_client import fetch
from tests.postgres_server import PostgresServer
from tests.stores import hold_writers


def test_only_the_owner_can_access_the_socket(served: Served) -> None:
    path = Path(served.unix.removeprefix("unix:"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((path.parent / "daemon.json").stat().st_mode) == 0o600


def test_a_directory_that_others_may_enter_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with pytest.raises(StoreUnavailable, match="chmod 700"):
        RuntimeDirectory(str(tmp_path / "rota.db"), str(folder / "s")).acquire()


def test_a_file_in_a_deep_folder_is_served(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * SOCKET_PATH_BYTES_MAX)
    folder.mkdir()

    async def list_agents(address: str) -> int:
        async with connect_async(address) as client:
            return (await client.agents.list())[1]

    with serving(folder / "rota.db", http=False) as served:
        assert stat.S_IMODE(Path(served.unix.removeprefix("unix:")).stat().st_mode) == 0o600
        with served.client() as client:
            client.agents.create("deep")
        assert asyncio.run(list_agents(served.unix)) == 1
        assert daemon_address(served.path) == served.unix


def test_a_socket_whose_name_is_too_long_is_rejected_by_daemon_and_client(tmp_path: Path) -> None:
    path = str(tmp_path / ("x" * SOCKET_PATH_BYTES_MAX))
    with pytest.raises(StoreUnavailable, match=r"name has 107 bytes, at most 85 are possible.*--socket"):
        RuntimeDirectory(str(tmp_path / "rota.db"), path)
    with pytest.raises(StoreUnavailable, match="--socket"):
        connect(f"unix:{path}")
    with pytest.raises(StoreUnavailable, match="--socket"):
        connect_async(f"unix:{path}")


def test_without_proc_a_path_that_is_too_long_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_paths, "_DESCRIPTORS", tmp_path / "proc")
    with pytest.raises(StoreUnavailable, match=r"at most 107 are possible.*--socket"):
        RuntimeDirectory(str(tmp_path / ("x" * SOCKET_PATH_BYTES_MAX)))


def test_another_user_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "rota.db") as served:
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
            with Raw(served.unix) as raw:
                assert "this socket serves user" in raw.receive()["error"]["message"]
                assert raw.receive() is None
        with served.client() as client:
            served._until(lambda: any(event.kind == "kernel.auth.denied" for event in client.journal.tail()))


@pytest.mark.only_on("postgres", reason="a file is not away")
def test_a_daemon_stops_as_well_while_its_server_is_away(socket_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with PostgresServer(socket_folder / "pg") as server:
        served = Served(f"{server.dsn()}&schema=rota")
        server.stop()
        served.stop()  # raises what the daemon ended with
    assert "the stop is not in the journal: PostgreSQL at local/postgres?schema=rota cannot be reached" in caplog.text


def test_a_file_has_one_daemon(served: Served) -> None:
    with pytest.raises(StoreUnavailable, match=f"process {os.getpid()} already serves this file"):
        Served(served.path)
    link = Path(served.path).with_name("link.db")
    link.symlink_to(served.path)
    with pytest.raises(StoreUnavailable, match="already serves this file"):
        Served(str(link))
    with served.client() as client:
        assert client.info()["agent_count"] == 0, "the first daemon is not affected"


def test_a_daemon_is_found_by_its_file_while_it_lives(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    assert find_daemon(path) is None
    with serving(path) as served:
        info = find_daemon(path)
        assert info is not None
        assert (info.pid, info.protocol, info.schema) == (os.getpid(), PROTOCOL, 1)
        assert info.addresses == (served.unix, served.url)
    assert find_daemon(path) is None
    assert not list(Path(f"{path}-daemon").glob("*.json"))
    assert not list(Path(f"{path}-daemon").glob("*.sock"))


def test_a_stale_daemon_json_is_removed_and_a_damaged_one_ignored(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    directory = RuntimeDirectory(path)
    directory.acquire()
    info = DaemonInfo(pid=1, started_at=0.0, addresses=("unix:x",), rota_version="", protocol=1)
    directory.publish(info)
    assert find_daemon(path) == info
    file = Path(f"{path}-daemon", "daemon.json")
    file.write_text("{")
    assert find_daemon(path) is None
    assert file.exists()
    directory.publish(info)
    os.close(directory._lock or -1)  # as when the daemon is killed
    assert find_daemon(path) is None
    assert not file.exists()


def test_another_protocol_is_rejected(served: Served) -> None:
    with Raw(served.unix) as raw:
        answer = raw.ask("system.hello", {"protocol": PROTOCOL + 1})
        assert answer["error"]["code"] == InvalidInput.code
        welcome = raw.ask("system.hello", {"protocol": PROTOCOL})["result"]
        assert (welcome["protocol"], welcome["scope"], welcome["policy"]) == (PROTOCOL, "admin", "eevdf")
    answer = fetch(served.url, "/rpc", method="POST", body=b"{}", rota_protocol="99")
    assert answer.status == 426
    assert answer.json == {"error": "another protocol", "expected": PROTOCOL, "got": "99", "header": "Rota-Protocol"}


def test_a_stopped_daemon_sends_pending_responses_and_removes_its_files(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    daemon = Process(path, "--listen", "127.0.0.1:0")
    unix, url = daemon.addresses
    assert fetch(url, "/readyz").body == b"ok\n"
    with Raw(unix) as waiting, Raw(unix) as idle:
        assert "result" in idle.ask("kernel.sched.counts")
        body = {"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.claim"}
        waiting.send(msgspec.json.encode(body | {"params": {"worker_id": "w", "wait_s": 60.0}}) + b"\n")
        waiting.send(msgspec.json.encode({"jsonrpc": "2.0", "id": 2, "method": "kernel.sched.counts"}) + b"\n")
        assert waiting.receive()["id"] == 2
        assert daemon.stop() == 0
        assert waiting.receive() == {"id": 1, "result": {"entries": []}, "jsonrpc": "2.0"}
        assert waiting.receive() is None
        assert idle.receive() is None
    assert find_daemon(path) is None
    kernel = Kernel(store.open(path, read_only=True))
    moved = [event.payload["verb"] for event in kernel.journal.tail() if event.kind == "kernel.daemon.moved"]
    assert moved == ["started", "stopped"]
    kernel.store.close()


def test_log_lines_have_request_ids(tmp_path: Path) -> None:
    daemon = Process(str(tmp_path / "rota.db"))
    with Raw(daemon.addresses[0]) as raw:
        assert raw.ask("kernel.sched.get", {"sched_id": 5})["error"]["code"] == -32132
        assert raw.ask("no.such.method")["error"]["code"] == -32601
    daemon.stop()
    lines = [line for line in daemon.log if "request=" in line]
    assert "request=1-1 method=kernel.sched.get" in lines[0]
    assert "outcome=-32132 kernel_sched_unknown_id" in lines[0]
    assert "request=1-2 method=no.such.method" in lines[1]


def test_a_store_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "rota.db").write_text("this is no database, and it is long enough to be sure of that " * 20)
    command = [sys.executable, "-m", "rota", "serve", "--store", str(tmp_path / "rota.db")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert done.stderr.startswith("rota: cannot")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"listen": "x"},
        {"listen": "127.0.0.1:65536"},
        {"listen": "0.0.0.0:1"},
        {"listen": ":1", "tls_cert": "c.pem"},
        {"policy": "x"},
        {"log_level": "x"},
    ],
    ids=str,
)
def test_invalid_options_are_rejected_before_anything_is_opened(tmp_path: Path, wrong: dict[str, str]) -> None:
    options = Options(store=str(tmp_path / "rota.db"), **wrong)  # type: ignore[arg-type]  # as a command line gives it
    with pytest.raises((InvalidInput, UnknownPolicy)):
        run(options)
    assert list(tmp_path.iterdir()) == []


def test_systemd_is_notified_of_start_watchdog_and_stop(socket_folder: Path) -> None:
    received: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        address = str(socket_folder / "notify")
        listener.bind(address)
        listener.settimeout(PATIENCE_S)
        environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000"}

        async def live() -> None:
            notifier = SystemdNotifier(environment)
            notifier.ready()
            notifier.keep_alive(asyncio.get_running_loop())
            while received.count(b"WATCHDOG=1") < 3:
                received.append(await asyncio.to_thread(listener.recv, 100))
            notifier.stopping()

        asyncio.run(live())
        while b"STOPPING=1" not in received:
            received.append(listener.recv(100))
    assert received[0] == b"READY=1"


def test_a_process_under_systemd_notifies_it(
    tmp_path: Path, socket_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        address = str(socket_folder / "notify")
        listener.bind(address)
        listener.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        daemon = Process(str(tmp_path / "rota.db"))
        assert listener.recv(100) == b"READY=1"
        daemon.stop()
        assert listener.recv(100) == b"STOPPING=1"


def test_a_watchdog_of_another_process_is_ignored() -> None:
    notifier = SystemdNotifier({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"})
    assert notifier._every_s is None
    assert SystemdNotifier({"WATCHDOG_USEC": "3000000"})._every_s == 1.5


def test_print_unit(tmp_path: Path) -> None:
    path = tmp_path / "my 100% rota.db"
    command = [
        sys.executable,
        "-m",
        "rota",
        "serve",
        "--store",
        str(path),
        "--listen",
        "127.0.0.1:9000",
        "--print-unit",
    ]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Type=notify" in made
    assert "WatchdogSec=" in made
    start = next(line for line in made.splitlines() if line.startswith("ExecStart="))
    assert start.endswith(f"-m rota serve --store '{tmp_path}/my 100%% rota.db' --listen 127.0.0.1:9000")
    assert not path.exists(), "no store is opened"


def test_a_daemon_starts_after_one_was_killed(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    first = Process(path)
    first.kill()
    assert find_daemon(path) is None
    second = Process(path)
    with Raw(second.addresses[0]) as raw:
        assert "result" in raw.ask("kernel.sched.counts")
    assert second.stop() == 0


def test_repeated_signals_stop_it_once(tmp_path: Path) -> None:
    daemon = Process(str(tmp_path / "rota.db"))
    for _ in range(3):
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon.pid, signal.SIGINT)
    assert daemon.stop() == 0


def test_a_connection_that_is_accepted_while_it_stops_is_closed(tmp_path: Path) -> None:
    served = Served(str(tmp_path / "rota.db"), http=False)
    path, asked = served.unix.removeprefix("unix:"), threading.Event()

    def ask_and_stop() -> None:  # the loop accepts the connection after it has stopped serving
        with socket_path(path) as address:
            client.connect(address)
        client.send(b'{"jsonrpc":"2.0","id":1,"method":"claim","params":{"worker":"w","wait_s":60}}\n')
        served.daemon.stop()
        asked.set()

    with socket.socket(socket.AF_UNIX) as client:
        served.loop.call_soon_threadsafe(ask_and_stop)
        assert asked.wait(PATIENCE_S)
        client.settimeout(PATIENCE_S)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
        served.stop()


def test_a_slow_disk_does_not_block_the_loop(tmp_path: Path) -> None:
    """While another process holds the write lock, health checks and reads still get responses."""
    path = str(tmp_path / "rota.db")
    with serving(path) as served, served.client() as client:
        pid = client.create_agent("agent", "callable")
        executor = served.daemon.executor
        executor._inline_from = float("inf")  # as after a slow commit
        ids: list[int] = []
        writer = threading.Thread(target=lambda: ids.append(client.enqueue(ScheduleSpec(pid))))
        with hold_writers(path):
            writer.start()
            served._until(lambda: len(executor.pending_calls) == 1)
            assert fetch(served.url, "/livez").status == 200
            with served.client() as reader:
                assert reader.queue.counts() == {}, "reads do not wait for writers"
            assert ids == []
        writer.join(PATIENCE_S)
        assert ids == [1]
