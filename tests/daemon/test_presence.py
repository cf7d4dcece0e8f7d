"""Being found, being the only one, starting and stopping; what systemd hears."""

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

import apsw
import msgspec
import pytest

from rota import store
from rota.cli.serve import Options, run
from rota.errors import InvalidInput, StoreUnavailable, UnknownPolicy
from rota.kernel import Kernel, ScheduleSpec
from rota.rpc.daemon.presence import Note, Presence, locate
from rota.rpc.daemon.systemd import Notifier
from rota.rpc.methods import PROTOCOL
from tests.daemon.web import fetch
from tests.daemon.world import PATIENCE_S, Process, Raw, Served, serving


def test_only_its_owner_comes_near_the_socket(served: Served) -> None:
    path = Path(served.unix.removeprefix("unix:"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((path.parent / "daemon.json").stat().st_mode) == 0o600


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with pytest.raises(StoreUnavailable, match="chmod 700"):
        Presence(str(tmp_path / "rota.db"), str(folder / "s")).enter()


def test_a_socket_path_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="--socket"):
        Presence(str(tmp_path / ("x" * 120)))


def test_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "rota.db") as served:
        with monkeypatch.context() as patch:
            patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
            with Raw(served.unix) as raw:
                assert "this socket is for user" in raw.hear()["error"]["message"]
                assert raw.hear() is None
        with served.client() as client:
            served._until(lambda: any(event.kind == "kernel.auth.denied" for event in client.journal.tail()))


def test_there_is_one_daemon_for_a_file(served: Served) -> None:
    with pytest.raises(StoreUnavailable, match=f"process {os.getpid()} serves this file already"):
        Served(served.path)
    link = Path(served.path).with_name("link.db")
    link.symlink_to(served.path)
    with pytest.raises(StoreUnavailable, match="serves this file already"):
        Served(str(link))
    with served.client() as client:
        assert client.info()["agent_count"] == 0, "the first one is unharmed"


def test_a_daemon_is_found_by_its_file_while_it_lives(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    assert locate(path) is None
    with serving(path) as served:
        note = locate(path)
        assert note is not None
        assert (note.pid, note.protocol, note.schema) == (os.getpid(), PROTOCOL, 1)
        assert note.addresses == (served.unix, served.url)
    assert locate(path) is None
    assert not list(Path(f"{path}-daemon").glob("*.json"))
    assert not list(Path(f"{path}-daemon").glob("*.sock"))


def test_an_old_note_is_removed_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    presence = Presence(path)
    presence.enter()
    note = Note(pid=1, started_at=0.0, addresses=("unix:x",), rota_version="", protocol=1)
    presence.announce(note)
    assert locate(path) == note
    file = Path(f"{path}-daemon", "daemon.json")
    file.write_text("{")
    assert locate(path) is None
    assert file.exists()
    presence.announce(note)
    os.close(presence._lock or -1)  # as when it is killed
    assert locate(path) is None
    assert not file.exists()


def test_another_protocol_is_refused(served: Served) -> None:
    with Raw(served.unix) as raw:
        answer = raw.ask("system.hello", {"protocol": PROTOCOL + 1})
        assert answer["error"]["code"] == InvalidInput.code
        welcome = raw.ask("system.hello", {"protocol": PROTOCOL})["result"]
        assert (welcome["protocol"], welcome["scope"], welcome["policy"]) == (PROTOCOL, "admin", "strict")
    answer = fetch(served.url, "/rpc", method="POST", body=b"{}", rota_protocol="99")
    assert answer.status == 426
    assert answer.json == {"error": "another protocol", "expected": PROTOCOL, "got": "99", "header": "Rota-Protocol"}


def test_a_daemon_that_is_stopped_answers_what_it_has_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    daemon = Process(path, "--listen", "127.0.0.1:0")
    unix, url = daemon.addresses
    assert fetch(url, "/readyz").body == b"ok\n"
    with Raw(unix) as waiting, Raw(unix) as idle:
        assert "result" in idle.ask("kernel.sched.counts")
        body = {"jsonrpc": "2.0", "id": 1, "method": "kernel.sched.claim"}
        waiting.say(msgspec.json.encode(body | {"params": {"worker_id": "w", "wait_s": 60.0}}) + b"\n")
        waiting.say(msgspec.json.encode({"jsonrpc": "2.0", "id": 2, "method": "kernel.sched.counts"}) + b"\n")
        assert waiting.hear()["id"] == 2
        assert daemon.stop() == 0
        assert waiting.hear() == {"id": 1, "result": {"entries": []}, "jsonrpc": "2.0"}
        assert waiting.hear() is None
        assert idle.hear() is None
    assert locate(path) is None
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


def test_a_store_that_cannot_be_opened_is_one_sentence(tmp_path: Path) -> None:
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
def test_options_that_make_no_sense_are_refused_before_anything_is_opened(
    tmp_path: Path, wrong: dict[str, str]
) -> None:
    options = Options(store=str(tmp_path / "rota.db"), **wrong)  # type: ignore[arg-type]  # as a command line gives it
    with pytest.raises((InvalidInput, UnknownPolicy)):
        run(options)
    assert list(tmp_path.iterdir()) == []


def test_systemd_hears_that_it_is_ready_lives_and_stops(tmp_path: Path) -> None:
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        address = str(tmp_path / "notify")
        ear.bind(address)
        ear.settimeout(PATIENCE_S)
        environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000"}

        async def live() -> None:
            notifier = Notifier(environment)
            notifier.ready()
            notifier.keep_alive(asyncio.get_running_loop())
            while heard.count(b"WATCHDOG=1") < 3:
                heard.append(await asyncio.to_thread(ear.recv, 100))
            notifier.stopping()

        asyncio.run(live())
        while b"STOPPING=1" not in heard:
            heard.append(ear.recv(100))
    assert heard[0] == b"READY=1"


def test_a_process_under_systemd_says_so_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        address = str(tmp_path / "notify")
        ear.bind(address)
        ear.settimeout(PATIENCE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        daemon = Process(str(tmp_path / "rota.db"))
        assert ear.recv(100) == b"READY=1"
        daemon.stop()
        assert ear.recv(100) == b"STOPPING=1"


def test_a_watchdog_that_is_for_another_process_is_left_alone() -> None:
    notifier = Notifier({"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"})
    assert notifier._every_s is None
    assert Notifier({"WATCHDOG_USEC": "3000000"})._every_s == 1.5


def test_a_unit_is_printed_that_starts_this_daemon(tmp_path: Path) -> None:
    path = tmp_path / "my rota.db"
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
    assert start.endswith(f"-m rota serve --store '{path}' --listen 127.0.0.1:9000")
    assert not path.exists(), "nothing is opened for that"


def test_a_killed_daemon_leaves_nothing_that_keeps_the_next_from_starting(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    first = Process(path)
    first.kill()
    assert locate(path) is None
    second = Process(path)
    with Raw(second.addresses[0]) as raw:
        assert "result" in raw.ask("kernel.sched.counts")
    assert second.stop() == 0


def test_signals_in_a_row_stop_it_once(tmp_path: Path) -> None:
    daemon = Process(str(tmp_path / "rota.db"))
    for _ in range(3):
        with contextlib.suppress(ProcessLookupError):
            os.kill(daemon.pid, signal.SIGINT)
    assert daemon.stop() == 0


def test_a_slow_disk_hands_groups_to_the_writers_thread_and_the_loop_goes_on(tmp_path: Path) -> None:
    """Somebody holds the file: whoever asks for health is answered all the same."""
    path = str(tmp_path / "rota.db")
    with serving(path) as served, served.client() as client:
        pid = client.create_agent("agent", "callable")
        exchange = served.daemon.exchange
        exchange._here_from = float("inf")  # as after a commit that was not quick
        somebody = apsw.Connection(path)
        somebody.execute("BEGIN IMMEDIATE")
        ids: list[int] = []
        writer = threading.Thread(target=lambda: ids.append(client.enqueue(ScheduleSpec(pid))))
        writer.start()
        served._until(lambda: len(exchange.jobs) == 1)
        assert fetch(served.url, "/livez").status == 200
        with served.client() as reader:
            assert reader.queue.counts() == {}, "reads wait for nobody"
        assert ids == []
        somebody.execute("ROLLBACK")
        somebody.close()
        writer.join(PATIENCE_S)
        assert ids == [1]
