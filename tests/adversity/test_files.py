"""Files that change under an open store: nothing is acknowledged into a file that is no longer the one at its path.

Each harm is done to a store that is in use. What was acknowledged before stays where it was; from the harm on every
call is refused; and opening again never mixes two files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rota import store
from rota.errors import InvalidInput, StoreReplaced, StoreUnavailable
from rota.kernel import Kernel, ScheduleSpec
from rota.store import file_identity, sqlite_engine
from tests.adversity.conftest import Rounds
from tests.cli.shell import Shell, make_shell
from tests.store.world import PATIENCE_S

Harm = Callable[[Path, Path], None]  # of the store's file, with a backup


def delete(*suffixes: str) -> Harm:
    """Delete files of the store."""

    def harm(path: Path, _: Path) -> None:
        for suffix in suffixes:
            Path(f"{path}{suffix}").unlink()

    return harm


def move_away(path: Path, _: Path) -> None:
    path.rename(path.with_name("moved.db"))


def move_folder(path: Path, _: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))


def replace(path: Path, backup: Path) -> None:
    shutil.copy(backup, f"{path}.new")
    Path(f"{path}.new").replace(path)


def overwrite(path: Path, backup: Path) -> None:
    """Restore into the same inode, as `cp` does."""
    path.write_bytes(backup.read_bytes())


def truncate(path: Path, _: Path) -> None:
    os.truncate(path, 0)


HARMS: dict[str, Harm] = {
    "the database deleted": delete(""),
    "the log deleted": delete("-wal"),
    "the shared memory deleted": delete("-shm"),
    "log and shared memory deleted": delete("-wal", "-shm"),
    "all three deleted": delete("", "-wal", "-shm"),
    "moved away": move_away,
    "its folder moved away": move_folder,
    "replaced": replace,
    "overwritten": overwrite,
    "truncated": truncate,
}
KEPT = ("the log deleted", "the shared memory deleted", "log and shared memory deleted")  # everything is still there
AT_ONCE = [name for name in HARMS if name != "its folder moved away"]  # noticed by the very next commit


class World:
    """A store in use: entries that were acknowledged, a backup from before most of them."""

    def __init__(self, folder: Path, commits: int) -> None:
        folder.mkdir()
        self.path = folder / "rota.db"
        self.backup = folder / "backup.db"
        self.kernel = Kernel(store.open(str(self.path)))
        self.pid = self.kernel.agents.create("a")
        self.acknowledged: list[int] = []
        self.enqueue()
        self.kernel.store.backup(str(self.backup))
        for _ in range(commits):
            self.enqueue()

    def enqueue(self) -> None:
        self.acknowledged.append(self.kernel.queue.enqueue(ScheduleSpec(self.pid)))

    def make_due(self) -> None:
        """Let the time pass after which the names are compared, whatever the events say."""
        self.kernel.store._engine.files.due_at = 0.0  # type: ignore[attr-defined]

    def close(self) -> None:
        self.kernel.store.close()


@contextlib.contextmanager
def world(folder: Path, commits: int = 20) -> Iterator[World]:
    made = World(folder, commits)
    try:
        yield made
    finally:
        made.close()


def entries(path: Path) -> list[int]:
    """The entries in a file, which must be sound."""
    opened = Kernel(store.open(str(path)))
    try:
        assert opened.store.check() == []
        found: list[int] = []
        while page := opened.queue.list(limit=1_000, offset=len(found))[0]:
            found += [entry.sched_id for entry in page]
        return found
    finally:
        opened.store.close()


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return make_shell(monkeypatch, capsys)


# --- while it is in use --------------------------------------------------------------------------


# 2 commits: the names are compared at each of them; 20: the system watches the files
@pytest.mark.parametrize("commits", [2, 20])
@pytest.mark.parametrize("harm", AT_ONCE)
def test_nothing_is_acknowledged_after_the_files_have_changed(tmp_path: Path, harm: str, commits: int) -> None:
    with world(tmp_path / "store", commits) as it:
        HARMS[harm](it.path, it.backup)
        before = len(it.acknowledged)
        for _ in range(3):
            with pytest.raises(StoreReplaced, match=r"while it was in use"):
                it.enqueue()
        with pytest.raises(StoreReplaced):
            it.kernel.queue.counts()
        with pytest.raises(StoreReplaced):
            it.kernel.dry_run(lambda _: None)
        with pytest.raises(StoreReplaced):
            it.kernel.store.backup(str(tmp_path / "copy.db"))
        assert len(it.acknowledged) == before


@pytest.mark.parametrize("commits", [2, 20])
@pytest.mark.parametrize("harm", HARMS)
def test_a_read_returns_nothing_of_a_file_that_is_no_longer_at_its_path(
    tmp_path: Path, harm: str, commits: int
) -> None:
    with world(tmp_path / "store", commits) as it:
        assert it.kernel.queue.get(1).sched_id == 1
        HARMS[harm](it.path, it.backup)
        it.make_due()
        with pytest.raises(StoreReplaced):
            it.kernel.queue.get(1)


@pytest.mark.parametrize("harm", HARMS)
def test_a_parked_claim_ends_when_the_files_have_changed(tmp_path: Path, harm: str) -> None:
    with world(tmp_path / "store", 0) as it:
        it.kernel.queue.claim(worker_id="w", max_n=10)
        found: list[BaseException] = []

        def claim() -> None:
            try:
                it.kernel.queue.claim(worker_id="w", wait_s=PATIENCE_S)
            except BaseException as problem:
                found.append(problem)

        waiting = threading.Thread(target=claim)
        waiting.start()
        while not it.kernel.store.parked:  # type: ignore[attr-defined]
            waiting.join(0.001)
        HARMS[harm](it.path, it.backup)
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        assert isinstance(found[0], StoreReplaced)


def test_no_request_of_a_shared_commit_is_acknowledged(tmp_path: Path) -> None:
    with world(tmp_path / "store") as it:
        joined = store.JoinedStore(it.kernel.store)  # type: ignore[arg-type]
        kernel, answers = Kernel(joined), list[object]()

        def harmful() -> int:
            HARMS["the log deleted"](it.path, it.backup)
            return kernel.queue.enqueue(ScheduleSpec(it.pid))

        calls = [harmful, *[lambda: kernel.queue.enqueue(ScheduleSpec(it.pid))] * 3]
        writes = [joined.posted_write(call, lambda: None) for call in calls]
        assert joined.try_run(writes)
        answers = [write.error for write in writes]
        assert all(isinstance(answer, StoreReplaced) for answer in answers)


# --- what is there afterwards --------------------------------------------------------------------


@pytest.mark.parametrize("commits", [2, 20])
@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("harm", KEPT)
def test_everything_acknowledged_is_there_after_the_log_was_deleted(
    tmp_path: Path, harm: str, noticed: bool, commits: int
) -> None:
    """The log is copied into the database, by the call that notices it or by `close`."""
    with world(tmp_path / "store", commits) as it:
        HARMS[harm](it.path, it.backup)
        if noticed:
            with pytest.raises(StoreReplaced):
                it.enqueue()
    assert set(it.acknowledged) <= set(entries(it.path))


def test_a_file_that_was_moved_away_can_be_moved_back(tmp_path: Path) -> None:
    with world(tmp_path / "store") as it:
        move_away(it.path, it.backup)
        with pytest.raises(StoreReplaced):
            it.enqueue()
    with pytest.raises(StoreReplaced, match=r"its database .* was moved or deleted"):
        store.open(str(it.path))
    assert not it.path.exists()
    it.path.with_name("moved.db").rename(it.path)
    assert set(it.acknowledged) <= set(entries(it.path))


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("noticed", [True, False])
@pytest.mark.parametrize("harm", ["replaced", "overwritten"])
def test_a_restored_file_is_not_mixed_with_the_log_of_the_earlier_one(
    tmp_path: Path, harm: str, noticed: bool, killed: bool
) -> None:
    with world(tmp_path / "store") as it:
        HARMS[harm](it.path, it.backup)
        if noticed:
            with pytest.raises(StoreReplaced):
                it.enqueue()
        if killed:  # the log stays in any case; a copy of the files is what a killed process leaves
            copy = tmp_path / "killed"
            shutil.copytree(it.path.parent, copy)
            it.path = copy / "rota.db"
    with pytest.raises(StoreReplaced, match="do not belong together"):
        store.open(str(it.path))
    for suffix in ("-wal", "-shm"):
        Path(f"{it.path}{suffix}").unlink(missing_ok=True)
    assert entries(it.path) == [1]  # as it was when the backup was made


def test_a_restore_of_a_plain_copy_is_noticed_too(tmp_path: Path) -> None:
    """A copy that was made with `cp` while the store was closed has the store's own generation."""
    with world(tmp_path / "store") as it:
        pass
    shutil.copy(it.path, it.backup)
    it.kernel = Kernel(store.open(str(it.path)))
    it.enqueue()
    it.close()  # checkpoints
    it.kernel = Kernel(store.open(str(it.path)))
    try:
        it.enqueue()
        overwrite(it.path, it.backup)
        with pytest.raises(StoreReplaced):
            it.enqueue()
    finally:
        it.close()


def test_checkpoints_of_several_processes_are_no_replacement(tmp_path: Path, rounds: Rounds) -> None:
    with world(tmp_path / "store") as it:
        others = [Kernel(store.open(str(it.path))) for _ in range(2)]
        for seed in rounds(60):
            kernel = (it.kernel, *others)[seed % 3]
            kernel.store._engine.files.due_at = kernel.store._engine.files.advance_at = 0.0  # type: ignore[attr-defined]
            it.acknowledged.append(kernel.queue.enqueue(ScheduleSpec(it.pid)))
            if seed % 4 == 0:
                others[seed % 2].store._engine.connection.execute("PRAGMA wal_checkpoint(PASSIVE)")  # type: ignore[attr-defined]
            kernel.queue.get(1)
        for other in others:
            other.store.close()
    assert set(it.acknowledged) <= set(entries(it.path))


@pytest.mark.parametrize(("size", "commits"), [(0, 0), (0, 3), (20, 0), (20, 3), (5_000, 0)])
def test_a_log_that_is_cut_under_a_store_in_use_is_noticed_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, commits: int
) -> None:
    """Within `CHECK_S`, as a restore is: here nothing is due before the commits that come between."""
    path = tmp_path / "rota.db"
    kernel = Kernel(store.open(str(path)))
    pid = kernel.agents.create("agent")
    monkeypatch.setattr(file_identity, "CHECK_S", 3_600.0)
    for _ in range(file_identity.WATCH_AFTER + 1):  # until the files are watched
        kernel.queue.enqueue(ScheduleSpec(pid))
    os.truncate(f"{path}-wal", size)
    for _ in range(commits):
        kernel.queue.enqueue(ScheduleSpec(pid))
    files = kernel.store._engine.files  # type: ignore[attr-defined]
    files.due_at = 0.0
    with pytest.raises(StoreReplaced, match="-wal was cut while it was in use"):
        kernel.queue.enqueue(ScheduleSpec(pid))
    kernel.store.close()


def test_a_log_that_a_vacuum_empties_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_identity, "CHECK_S", 0.0)
    first, second = (Kernel(store.open(str(tmp_path / "rota.db"))) for _ in range(2))
    pid = first.agents.create("agent")
    for _ in range(3):
        second.queue.enqueue(ScheduleSpec(pid))
        first.store.vacuum()
        for kernel in (second, first):
            kernel.queue.enqueue(ScheduleSpec(pid))
    for kernel in (first, second):
        kernel.store.close()


# --- opening -------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", HARMS)
def test_a_process_that_comes_later_begins_no_second_log(tmp_path: Path, harm: str) -> None:
    with world(tmp_path / "store") as it:
        HARMS[harm](it.path, it.backup)
        there = sorted(tmp_path.rglob("*.db*"))
        if harm == "its folder moved away":
            with pytest.raises(StoreUnavailable):
                store.open(str(it.path))
        else:
            with pytest.raises(StoreReplaced):
                store.open(str(it.path))
        assert sorted(tmp_path.rglob("*.db*")) == there


class EndingProcess:
    """A user of a store that has given back SQLite's locks and not yet the one that says it is here.

    Meanwhile another user closes the store, as the last one for SQLite, which deletes the log.
    """

    def __init__(self, path: Path) -> None:
        opened = store.open(str(path))
        self._presence: int | None = os.open(f"{path}-here", os.O_RDWR)
        fcntl.flock(self._presence, fcntl.LOCK_SH)
        self._log = os.open(f"{path}-wal", os.O_RDONLY)  # keeps its inode in use, so the next log has another one
        opened.close()

    def end(self, _: float = 0.0) -> None:
        if self._presence is not None:
            os.close(self._presence)
            os.close(self._log)
            self._presence = None


@pytest.mark.parametrize("seen", [True, False])
def test_a_process_that_is_just_ending_is_no_user_of_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """It is seen before the file is opened, or, if the log is deleted only then, afterwards."""
    path = tmp_path / "rota.db"
    ending = EndingProcess(path)
    monkeypatch.setattr(file_identity, "_pause", ending.end)
    if not seen:
        monkeypatch.setattr(sqlite_engine, "check_users", lambda _: None)
    first = Kernel(store.open(str(path)))
    monkeypatch.undo()
    second = Kernel(store.open(str(path)))  # the first one says which files it uses
    assert first.agents.create("one") != second.agents.create("two")
    for kernel in (first, second):
        kernel.store.close()


@pytest.mark.parametrize("seen", [True, False])
def test_a_process_that_does_not_end_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: bool) -> None:
    path = tmp_path / "rota.db"
    ending = EndingProcess(path)
    monkeypatch.setattr(file_identity, "LEAVING_S", 0.0)
    if not seen:
        monkeypatch.setattr(sqlite_engine, "check_users", lambda _: None)
    with pytest.raises(StoreReplaced, match="is in use by a process"):
        store.open(str(path))
    ending.end()
    store.open(str(path)).close()


def test_a_file_with_two_names_is_refused(tmp_path: Path) -> None:
    with world(tmp_path / "store") as it:
        link = tmp_path / "other.db"
        os.link(it.path, link)
        with pytest.raises(StoreReplaced, match="has 2 names"):
            store.open(str(link))
        it.enqueue()  # the process that has it open is not disturbed
        link.unlink()
    assert set(it.acknowledged) == set(entries(it.path))


def test_a_symbolic_link_is_the_same_store(tmp_path: Path) -> None:
    with world(tmp_path / "store") as it:
        (tmp_path / "link.db").symlink_to(it.path)
        other = Kernel(store.open(str(tmp_path / "link.db")))
        it.acknowledged.append(other.queue.enqueue(ScheduleSpec(it.pid)))
        it.enqueue()
        other.store.close()
    assert set(it.acknowledged) == set(entries(it.path))


MOUNTED = """
import sys
from rota import store
from rota.errors import StoreReplaced
try:
    store.open(sys.argv[1])
except StoreReplaced as problem:
    print(problem.message)
"""


def test_a_single_file_mounted_elsewhere_is_refused(tmp_path: Path) -> None:
    can_mount = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0
    if not can_mount:
        pytest.skip("this user may not mount")
    with world(tmp_path / "store") as it:
        target = tmp_path / "a folder" / "rota.db"
        target.parent.mkdir()
        target.touch()
        mount = 'mount --bind "$1" "$2" && exec "$3" -c "$4" "$2"'
        command = ["unshare", "--mount", "sh", "-c", mount, "sh", str(it.path), str(target), sys.executable, MOUNTED]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "is mounted as a single file" in ended.stdout
        assert [path.name for path in target.parent.iterdir()] == ["rota.db"]


# --- backups over a store ------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["path", "symbolic link", "hard link", "relative path"])
def test_a_backup_over_a_store_in_use_is_refused(
    tmp_path: Path, way: str, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path / "store") as it, world(tmp_path / "target") as used:
        target = tmp_path / "link.db"
        match way:
            case "symbolic link":
                target.symlink_to(used.path)
            case "hard link":
                os.link(used.path, target)
            case "relative path":
                monkeypatch.chdir(used.path.parent)
                target = Path("rota.db")
            case _:
                target = used.path
        ended = shell("db", "backup", target, "--force", "--store", it.path)
        assert ended.code == 2
        assert "in use" in ended.err or "hard links" in ended.err
        with pytest.raises(InvalidInput):
            it.kernel.store.backup(str(target))
        if way == "hard link":
            target.unlink()
        used.enqueue()
    assert set(used.acknowledged) == set(entries(used.path))


def test_a_backup_over_a_store_that_nobody_uses_replaces_it(tmp_path: Path, shell: Shell) -> None:
    with world(tmp_path / "store") as it, world(tmp_path / "target") as other:
        other.close()
        assert shell("db", "backup", other.path, "--force", "--store", it.path).code == 0
        assert set(entries(other.path)) == set(it.acknowledged)


# --- daemon and supervisor -----------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["the log deleted", "overwritten"])
def test_a_daemon_ends_with_one_sentence(tmp_path: Path, harm: str) -> None:
    with world(tmp_path / "store", 0) as it:
        pass
    command = [sys.executable, "-m", "rota", "serve", "--store", str(it.path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as daemon:
        assert daemon.stderr is not None
        log = []
        for line in daemon.stderr:
            log.append(line)
            if "serving" in line:
                break
        HARMS[harm](it.path, it.backup)
        _, rest = daemon.communicate(timeout=PATIENCE_S)
    assert daemon.returncode == 5, rest
    assert "Traceback" not in rest
    assert rest.splitlines()[-1].startswith("rota: ")
    assert "while it was in use" in rest.splitlines()[-1]


FLEET = """
store = "rota.db"
slots = 1

[agents.sleeper]
command = ["sleep", "600"]
"""


@pytest.mark.parametrize("harm", ["moved away", "overwritten"])
def test_a_supervisor_ends_with_one_sentence_and_leaves_no_run(tmp_path: Path, harm: str) -> None:
    with world(tmp_path / "store", 0) as it:
        pass
    fleet = it.path.parent / "fleet.toml"
    fleet.write_text(FLEET)
    command = [sys.executable, "-m", "rota", "run", "--plain", str(fleet)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as supervisor:
        try:
            _wait_for(supervisor, _start, it.path)
            _wait_for(supervisor, _is_running, it.path)
            HARMS[harm](it.path, it.backup)
            _, rest = supervisor.communicate(timeout=PATIENCE_S)
        except BaseException:
            supervisor.kill()
            raise
    assert supervisor.returncode == 5, rest
    assert "Traceback" not in rest
    assert rest.splitlines()[-1].startswith("rota: ")


def _wait_for(process: subprocess.Popen[str], condition: Callable[[Kernel], bool], path: Path) -> None:
    """Look into the store, which another process uses, until it is as expected."""
    pause = threading.Event()
    while True:
        assert process.poll() is None, process.stderr and process.stderr.read()
        opened = Kernel(store.open(str(path)))
        try:
            if condition(opened):
                return
        finally:
            opened.store.close()
        pause.wait(0.05)


def _start(kernel: Kernel) -> bool:
    """Enqueue the agent, once the fleet file has created it."""
    created = [agent.pid for agent in kernel.agents.list()[0] if agent.name == "sleeper"]
    for pid in created:
        kernel.queue.enqueue(ScheduleSpec(pid))
    return bool(created)


def _is_running(kernel: Kernel) -> bool:
    return bool(kernel.queue.counts().get("dispatched"))
