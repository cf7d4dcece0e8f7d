"""Secrets stay with their owner: in files that others cannot read, not behind planted links, and not in answers."""

from __future__ import annotations

import logging
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rota import store
from rota.errors import FleetInvalid, UnsafePath
from rota.fleet.config.apply import apply_fleet, pending_changes
from rota.fleet.config.loader import load_fleet
from rota.fleet.run_logs import BoundedLog, LogFileCopy
from rota.fleet.worker_lock import hold_worker_id
from rota.host.command import Command, filter_environment, without_credentials
from rota.kernel import Kernel
from rota.model.agent_metadata import HIDDEN, SETTINGS_KEY
from rota.model.agent_settings import AgentSettings
from rota.rpc import connect
from rota.rpc.daemon.runtime_dir import DaemonInfo, RuntimeDirectory, find_daemon
from rota.service.log_files import LoggedRun, read_log
from rota.service.log_folder import LogFolder
from rota.store import Transaction
from rota.store.socket_paths import socket_path
from rota.store.statements import journal as sql
from tests.daemon.harness import make_token, serving

SECRET = "sk-planted-6b1f"
METADATA = {SETTINGS_KEY: {"runner": "command", "argv": ["true"], "env": {"MODEL_KEY": SECRET}}}

# --- files ---------------------------------------------------------------------------------------

# everything that rota creates, in a process whose umask takes nothing away
MAKER = """
import sys
from pathlib import Path
from rota import store
from rota.fleet.run_logs import BoundedLog, LogFileCopy
from rota.service.log_files import LoggedRun
from rota.service.log_folder import LogFolder
from rota.fleet.worker_lock import hold_worker_id
from rota.kernel import Kernel
from rota.rpc.daemon.runtime_dir import DaemonInfo, RuntimeDirectory

path = sys.argv[1]
kernel = Kernel(store.open(path))
kernel.agents.create("reader")
kernel.store.backup(path + ".backup")
store.write_private(path + ".trace", b"payloads")
folder = LogFolder(Path(path + "-logs", "deep"), lambda ids: ())
log = BoundedLog(100, LogFileCopy(folder, LoggedRun(7, 1, 9, "ab"), 100))
log.write(b"output")
directory = RuntimeDirectory(path)
directory.acquire()
directory.publish(DaemonInfo(pid=1, started_at=0.0, addresses=("unix:x",), rota_version="", protocol=1))
stop = kernel.store.on_change(lambda: None)
while [bell.stat().st_mode & 0o777 for bell in Path(path + "-bells").glob("*.bell")] != [0o600]:
    pass  # a thread makes it, and then gives it what the umask has taken away
with hold_worker_id(path + "-workers", "box"):
    print("made", flush=True)
    sys.stdin.read()
"""


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in folder.rglob("*")}


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_what_rota_creates_is_for_its_owner_whatever_the_umask_is(tmp_path: Path, umask: int) -> None:
    command = [sys.executable, "-c", MAKER, str(tmp_path / "rota.db")]
    with subprocess.Popen(command, umask=umask, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "made\n"
        found = modes(tmp_path)
        process.stdin.close()
    names = {name.partition("/")[0] for name in found}
    beside = {"-wal", "-shm", "-lock", "-here", "-bells", "-logs", "-workers", "-daemon", ".backup", ".trace"}
    assert {f"rota.db{suffix}" for suffix in ("", *beside)} <= names
    folders = {name for name in found if (tmp_path / name).is_dir()}
    assert {name: f"{mode:o}" for name, mode in found.items() if mode != (0o700 if name in folders else 0o600)} == {}


def test_the_socket_of_a_daemon_is_for_its_owner(tmp_path: Path) -> None:
    with serving(tmp_path / "rota.db"):
        found = modes(tmp_path)
    assert found["rota.db-daemon"] == 0o700
    assert {found[f"rota.db-daemon/{name}"] for name in ("rota.sock", "lock", "daemon.json")} == {0o600}


def test_a_store_that_was_opened_to_a_group_stays_so_and_what_is_beside_it_follows(tmp_path: Path) -> None:
    path = tmp_path / "rota.db"
    store.open(str(path)).close()
    path.chmod(0o660)
    for beside in ("-lock", "-here"):
        Path(f"{path}{beside}").unlink()
    opened = store.open(str(path))
    opened.on_change(lambda: None)
    folder = Path(f"{path}-bells")
    while not (folder.is_dir() and stat.S_IMODE(folder.stat().st_mode) == 0o770 and any(folder.iterdir())):
        pass
    opened.write(lambda tx: tx.run(sql.EVENT_ENDS))
    found = modes(tmp_path)
    opened.close()
    assert {found[f"rota.db{suffix}"] for suffix in ("", "-wal", "-shm", "-lock", "-here")} == {0o660}


def test_the_mode_of_a_file_that_exists_is_left_alone(tmp_path: Path) -> None:
    log, trace = tmp_path / "7.1.log", tmp_path / "trace"
    copy_in(tmp_path).write(0, b"before")
    trace.write_text("before, and longer than what follows")
    for path in (log, trace):
        path.chmod(0o640)
    copy_in(tmp_path).write(6, b", after")  # of the same run, in another process
    store.write_private(trace, b"after")
    assert log.read_text().endswith("before, after")
    assert trace.read_text() == "after"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (log, trace)} == {0o640}


# --- planted links -------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A file of the user, outside of what rota writes."""
    made = tmp_path / "victim"
    made.write_text("mine")
    return made


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", "-lock", "-here"])
@pytest.mark.parametrize("existing", [False, True])
def test_a_link_beside_a_store_is_not_followed(tmp_path: Path, victim: Path, suffix: str, existing: bool) -> None:
    path = tmp_path / "rota.db"
    if existing:
        store.open(str(path)).close()
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    Path(f"{path}{suffix}").symlink_to(victim)
    with pytest.raises(UnsafePath, match=rf"rota\.db{suffix} is a link"):
        store.open(str(path))
    assert victim.read_text() == "mine"
    Path(f"{path}{suffix}").unlink()
    store.open(str(path)).close()


def test_a_linked_folder_of_notifications_is_not_used_and_commits_are_still_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, elsewhere = tmp_path / "rota.db", tmp_path / "elsewhere"
    elsewhere.mkdir()
    first = Kernel(store.open(str(path)))
    Path(f"{path}-bells").symlink_to(elsewhere)
    with caplog.at_level(logging.WARNING):
        first.store.on_change(lambda: None)
        while "by polling only" not in caplog.text:
            pass
        events = first.journal.follow(0, wait_s=30.0)
        second = Kernel(store.open(str(path)))
        second.agents.create("reader")
        assert next(events).kind == "kernel.process.created"
    assert list(elsewhere.iterdir()) == []
    first.store.close()
    second.store.close()


def _link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def _hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def _fifo(path: Path, _victim: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path, _victim: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, socket_path(str(path)) as address:
        made.bind(address)


PLANTS = [_link, _hard_link, _fifo, _socket]


def copy_in(folder: Path, sched_id: int = 7) -> LogFileCopy:
    return LogFileCopy(LogFolder(folder, lambda _: ()), LoggedRun(sched_id, 1, 9, "ab"), 100)


@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_planted_in_the_log_folder_is_not_written(
    tmp_path: Path, victim: Path, plant: Callable[[Path, Path], None]
) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    plant(folder / "7.1.log", victim)
    copy = copy_in(folder)
    log = BoundedLog(100, copy)
    log.write(b"output of a program")
    log.close()
    assert log.kept() == b"output of a program"  # the run goes on
    assert f"{folder}/7.1.log" in (copy.problem or "")
    assert victim.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_a_log_folder_is_a_link_of_this_user_or_none(tmp_path: Path) -> None:
    other_disk, link = tmp_path / "disk", tmp_path / "rota.db-logs"
    other_disk.mkdir()
    link.symlink_to(other_disk)
    followed = copy_in(link)
    followed.write(0, b"output")
    assert followed.problem is None
    os.chown(link, 12_345, 12_345, follow_symlinks=False)
    refused = copy_in(link, 8)
    refused.write(0, b"output")
    assert "belongs to another user" in (refused.problem or "")
    with pytest.raises(UnsafePath):
        read_log(link, 7, 1, 0, 100)
    assert [path.name for path in other_disk.iterdir()] == ["7.1.log"]


@pytest.mark.parametrize("plant", PLANTS)
def test_the_lock_of_a_worker_is_not_planted(
    tmp_path: Path, victim: Path, plant: Callable[[Path, Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "workers"
    folder.mkdir()
    plant(folder / "box.lock", victim)
    with caplog.at_level(logging.WARNING), hold_worker_id(str(folder), "box"):
        assert "worker id box is not locked" in caplog.text
    assert victim.read_text() == "mine"


def test_a_backup_replaces_no_link_and_writes_through_none(tmp_path: Path, victim: Path) -> None:
    kernel = Kernel(store.open(str(tmp_path / "rota.db")))
    (tmp_path / "linked.db").symlink_to(victim)
    with pytest.raises(UnsafePath, match=r"linked\.db is a link, .* Choose another path"):
        kernel.store.backup(str(tmp_path / "linked.db"))
    (tmp_path / "copy.db.part").symlink_to(victim)  # rota's own name: the link itself is removed
    kernel.store.backup(str(tmp_path / "copy.db"))
    kernel.store.close()
    assert not (tmp_path / "copy.db").is_symlink()
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["", "lock", "daemon.part"])
def test_a_daemon_uses_no_planted_link(tmp_path: Path, victim: Path, name: str) -> None:
    folder, elsewhere = tmp_path / "rota.db-daemon", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if name:
        folder.mkdir(mode=0o700)
        (folder / name).symlink_to(victim)
    else:
        folder.symlink_to(elsewhere)
    directory = RuntimeDirectory(str(tmp_path / "rota.db"))
    info = DaemonInfo(pid=1, started_at=0.0, addresses=("unix:x",), rota_version="", protocol=1)
    if name == "daemon.part":
        directory.acquire()
        directory.publish(info)
        assert find_daemon(str(tmp_path / "rota.db")) == info
        directory.release()
    else:
        with pytest.raises(UnsafePath, match="is a link"):
            directory.acquire()
    assert victim.read_text() == "mine"
    assert list(elsewhere.iterdir()) == []


def test_a_client_believes_no_daemon_in_a_linked_folder(tmp_path: Path) -> None:
    theirs = RuntimeDirectory(str(tmp_path / "theirs.db"))
    theirs.acquire()
    theirs.publish(DaemonInfo(pid=1, started_at=0.0, addresses=("unix:x",), rota_version="", protocol=1))
    (tmp_path / "rota.db-daemon").symlink_to(tmp_path / "theirs.db-daemon")
    assert find_daemon(str(tmp_path / "theirs.db")) is not None
    assert find_daemon(str(tmp_path / "rota.db")) is None
    theirs.release()


# --- variables -----------------------------------------------------------------------------------


def _insert(tx: Transaction, row: tuple[Any, ...]) -> int:
    return tx.insert(sql.EVENT_APPEND, row)


@pytest.fixture
def secretive(tmp_path: Path) -> str:
    """A store with an agent that has a secret in its environment, and an event that an earlier version wrote."""
    path = str(tmp_path / "rota.db")
    kernel = Kernel(store.open(path))
    kernel.projects.create("lab")
    pid = kernel.agents.create("reader", "command", metadata=METADATA, project_id="lab")
    kernel.agents.update(pid, metadata={**METADATA, "colour": "red"})
    for kind, field in (("kernel.process.updated", "changes"), ("kernel.auth.operated", "detail")):
        body = msgspec.json.encode({"v": 1, field: {"metadata": METADATA}}).decode()
        row = (pid, 0.0, kind, body, None, None, "earlier")
        kernel.store.write(partial(_insert, row=row))
    kernel.supervision.quarantine(pid, 5, for_s=60.0)
    kernel.agents.pause(pid, "operator")
    kernel.store.close()
    return path


def read_all(client: Any) -> str:
    """Everything that a client can read about the agents, as text."""
    (agent,), _ = client.agents.list()
    answers = [client.agents.get(agent.pid), client.agents.find("reader"), client.agents.paused("operator")]
    answers += [agent, client.journal.tail(0, 1_000), client.journal.tail(0, 1_000, pid=agent.pid)]
    return msgspec.json.encode(answers).decode()


@pytest.mark.parametrize("scope", ["read", "enqueue", "read:lab", "enqueue:lab"])
def test_readers_see_the_names_of_variables_and_not_their_values(secretive: str, scope: str) -> None:
    name, _, project = scope.partition(":")
    token = make_token(secretive, name, projects=(project,) if project else None)
    with serving(secretive) as served, connect(served.url, token=token) as client:
        seen = read_all(client)
        assert SECRET not in seen
        assert f'"MODEL_KEY":"{HIDDEN}"' in seen


def test_what_starts_programs_gets_the_values_and_no_event_has_them(secretive: str) -> None:
    tokens = {scope: make_token(secretive, scope) for scope in ("work", "operate")}
    with serving(secretive) as served:
        for token in tokens.values():
            with connect(served.url, token=token) as client:
                (agent,), _ = client.agents.list()
                assert client.agents.get(agent.pid).metadata[SETTINGS_KEY]["env"] == {"MODEL_KEY": SECRET}
                assert SECRET not in repr(agent)
        with connect(served.url, token=tokens["operate"]) as client:
            other = {SETTINGS_KEY: {**METADATA[SETTINGS_KEY], "env": {"MODEL_KEY": "other-secret-77"}}}
            client.agents.update(agent.pid, metadata=other)  # audited, with its parameters
            events = msgspec.json.encode(client.journal.tail(0, 1_000)).decode()
    assert "kernel.auth.operated" in events
    assert SECRET not in events
    assert "other-secret-77" not in events


def test_the_journal_on_disk_has_no_values_that_this_version_wrote(tmp_path: Path) -> None:
    kernel = Kernel(store.open(str(tmp_path / "rota.db")))
    pid = kernel.agents.create("reader", "command", metadata=METADATA)
    kernel.agents.update(pid, metadata={**METADATA, "colour": "red"})
    bodies = [row[4] for row in kernel.store.read(lambda tx: tx.run(sql.EVENT_TAIL, (0, 100)))]
    kernel.store.close()
    assert any("MODEL_KEY" in body for body in bodies)
    assert not any(SECRET in body for body in bodies)


def test_hidden_values_cannot_be_written_back(secretive: str) -> None:
    kernel = Kernel(store.open(secretive))
    hidden = {SETTINGS_KEY: {**METADATA[SETTINGS_KEY], "env": {"MODEL_KEY": HIDDEN}}}
    (agent,), _ = kernel.agents.list()
    with pytest.raises(FleetInvalid, match="give its real value"):
        kernel.agents.update(agent.pid, metadata=hidden)
    kernel.store.close()


FLEET = """
store = "rota.db"
[agents.reader]
command = "true"
env = {MODEL_KEY = "%s", OTHER = "x"}
priority = %d
"""


def test_a_changed_value_is_said_without_the_value(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    kernel = Kernel(store.open(str(tmp_path / "rota.db")))
    file.write_text(FLEET % (SECRET, 0))
    apply_fleet(kernel, load_fleet(file))
    for value, priority in (("new-secret-91", 0), ("new-secret-92", 3)):
        file.write_text(FLEET % (value, priority))
        (pending,) = pending_changes(kernel, load_fleet(file))
        words = f"{pending.change} {msgspec.json.encode(pending.change).decode()}"
        assert "env" in words
        assert "MODEL_KEY" in words
        assert not any(secret in words for secret in (SECRET, "new-secret"))
    kernel.store.close()


def test_a_wrong_value_is_refused_without_the_value(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text("[agents.reader]\ncommand = 'true'\nenv = {PIN = 836415}\n")
    with pytest.raises(FleetInvalid) as refused:
        load_fleet(file)
    assert "agents.reader.env.PIN: expected a string" in str(refused.value)
    assert "836415" not in str(refused.value)
    kernel = Kernel(store.open(":memory:"))
    with pytest.raises(FleetInvalid) as refused:
        kernel.agents.create("reader", metadata={SETTINGS_KEY: {**METADATA[SETTINGS_KEY], "env": {"PIN": 836415}}})
    assert "836415" not in f"{refused.value} {refused.value.data}"


def test_representations_have_no_values() -> None:
    settings = msgspec.convert(METADATA[SETTINGS_KEY], AgentSettings)
    command = Command(argv=("true",), env={"MODEL_KEY": SECRET})
    for words in (repr(settings), str(settings), repr(command), f"{[settings, command]}"):
        assert SECRET not in words
    assert "MODEL_KEY" in repr(settings)


# --- access tokens -------------------------------------------------------------------------------


def test_the_store_and_the_journal_hold_no_token(tmp_path: Path) -> None:
    path = str(tmp_path / "rota.db")
    token = make_token(path, "admin")
    secret = token.split("_", 2)[2].encode()
    for file in tmp_path.iterdir():
        assert not file.is_file() or secret not in file.read_bytes()


CREDENTIALS = {"ROTA_ACCESS_TOKEN": SECRET, "ROTA_ACCESS_TOKEN_FILE": "/secret", "ROTA_RUN_TOKEN": SECRET}


def test_credentials_are_passed_to_a_run_only_under_their_full_name() -> None:
    environment = {**CREDENTIALS, "ROTA_STORE": "x", "MODEL_KEY": "k"}
    for pattern in ("*", "ROTA_*", "ROTA_ACCESS_*", "*TOKEN*"):
        assert not CREDENTIALS.keys() & filter_environment(environment, allow=[pattern]).keys(), pattern
    assert filter_environment(environment, allow=["*"]) == {"ROTA_STORE": "x", "MODEL_KEY": "k"}
    named = filter_environment(environment, allow=["ROTA_ACCESS_TOKEN", "MODEL_*"])
    assert named == {"ROTA_ACCESS_TOKEN": SECRET, "MODEL_KEY": "k"}
    assert without_credentials(environment) == {"ROTA_STORE": "x", "MODEL_KEY": "k"}
