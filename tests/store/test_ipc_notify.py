"""Notifications between processes: every listener gets them, dead listeners are removed, and no failure is raised."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rota.store import ipc_notify
from rota.store.ipc_notify import CommitListener, CommitNotifier, SharedWords
from tests.store.files import thousands_of_open_files
from tests.store.world import acquire


class SharedFile:
    """A lock file, and the notifiers of several processes that use it."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "rota.db")
        self.folder = Path(f"{self.path}-bells")
        Path(self.path).touch()  # the database: the folder follows its mode
        self._lock = os.open(f"{self.path}-lock", os.O_RDWR | os.O_CREAT)
        self._words: list[SharedWords] = []
        self._notifiers: list[CommitNotifier] = []

    def words(self) -> SharedWords:
        self._words.append(SharedWords(self._lock))
        return self._words[-1]

    def notifier(self) -> CommitNotifier:
        self._notifiers.append(CommitNotifier(self.path, self.words()))
        return self._notifiers[-1]

    def until_listening(self) -> None:
        while not (self.folder.exists() and list(self.folder.iterdir())):
            os.sched_yield()

    def close(self) -> None:
        for notifier in self._notifiers:
            notifier.stop_listening()
            notifier.close()
        for words in self._words:
            words.close()
        os.close(self._lock)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedFile]:
    made = SharedFile(tmp_path)
    yield made
    made.close()


@pytest.fixture
def no_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipc_notify, "POLL_S", 3_600.0)


def test_without_listeners_a_notification_creates_no_file(shared: SharedFile) -> None:
    shared.notifier().notify()
    assert not shared.folder.exists()


def test_every_listener_is_notified_except_the_senders_own(shared: SharedFile) -> None:
    notifiers = [shared.notifier() for _ in range(4)]
    sockets = [notifier.listen() for notifier in notifiers]
    notifiers[0].notify()
    for place, own in enumerate(sockets):
        assert own is not None
        if place == 0:
            with pytest.raises(BlockingIOError):
                own.recv(64)
        else:
            assert own.recv(64) == b"!"


def test_a_listener_that_has_just_started_is_notified(shared: SharedFile) -> None:
    """Two changes of a folder within one tick of the system clock have the same time: no listener may be missed."""
    sender = shared.notifier()
    for _ in range(200):
        newcomer = shared.notifier()
        own = newcomer.listen()
        sender.notify()
        assert own is not None
        assert own.recv(64) == b"!"
        newcomer.stop_listening()


def test_without_the_database_nothing_listens_and_no_socket_is_left_open(shared: SharedFile) -> None:
    """It may be deleted just before a process listens: then only the poll is left, which finds that out."""
    shared.notifier().listen()  # the folder is there
    late = shared.notifier()
    Path(shared.path).unlink()
    before = sorted(Path("/proc/self/fd").iterdir())
    assert late.listen() is None
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_a_listener_with_a_full_buffer_is_not_removed(shared: SharedFile) -> None:
    slow, sender = shared.notifier(), shared.notifier()
    own = slow.listen()
    for _ in range(2_000):  # more than the system buffers for one socket
        sender.notify()
    assert len(list(shared.folder.iterdir())) == 1
    assert own is not None
    assert own.recv(64) == b"!"


def test_the_socket_of_a_dead_listener_is_removed(shared: SharedFile) -> None:
    dead, sender = shared.notifier(), shared.notifier()
    own = dead.listen()
    assert own is not None
    own.close()  # its name stays in the folder
    assert len(list(shared.folder.iterdir())) == 1
    sender.notify()
    assert list(shared.folder.iterdir()) == []


def test_without_free_descriptors_a_notification_is_lost_and_no_listener_is_removed(shared: SharedFile) -> None:
    listener, sender = shared.notifier(), shared.notifier()
    own = listener.listen()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        sender.notify()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert len(list(shared.folder.iterdir())) == 1
    sender.notify()
    assert own is not None
    assert own.recv(64) == b"!"


def test_if_the_folder_cannot_be_created_there_is_no_socket_and_no_error(shared: SharedFile) -> None:
    shared.folder.write_text("not a folder")
    notifier = shared.notifier()
    assert notifier.listen() is None
    notifier.notify()


@pytest.mark.usefixtures("no_poll")
def test_a_listener_checks_after_a_notification(shared: SharedFile) -> None:
    checks, sender = threading.Semaphore(0), shared.notifier()
    listener = CommitListener(shared.notifier(), checks.release)
    shared.until_listening()
    for _ in range(3):
        sender.notify()
        acquire(checks)
    listener.stop()
    assert list(shared.folder.iterdir()) == []


def test_a_listener_without_a_socket_polls(shared: SharedFile) -> None:
    checks = threading.Semaphore(0)
    shared.folder.write_text("not a folder")
    listeners = [CommitListener(shared.notifier(), checks.release), CommitListener(None, checks.release)]
    for _ in range(4):
        acquire(checks)
    for listener in listeners:
        listener.stop()


@pytest.mark.usefixtures("no_poll")
def test_a_listener_works_in_a_process_with_thousands_of_open_files(shared: SharedFile) -> None:
    with thousands_of_open_files():
        checks, sender = threading.Semaphore(0), shared.notifier()
        listener = CommitListener(shared.notifier(), checks.release)
        shared.until_listening()
        sender.notify()
        acquire(checks)
        listener.stop()


def test_a_check_that_raises_is_logged_once_and_the_next_one_runs(
    shared: SharedFile, caplog: pytest.LogCaptureFixture
) -> None:
    checks = threading.Semaphore(0)

    def check() -> None:
        checks.release()
        raise RuntimeError("cannot see")

    listener = CommitListener(shared.notifier(), check)
    for _ in range(3):
        acquire(checks)
    listener.stop()
    assert caplog.text.count("RuntimeError: cannot see") == 1  # it checks twenty times a second


def test_all_users_of_the_file_see_the_same_shared_words(shared: SharedFile) -> None:
    one, two = shared.words(), shared.words()
    one.last_opener[:] = b"a name.."
    one.listener_version = b"12345678"
    assert two.listener_version == b"12345678"
    assert bytes(two.last_opener) == b"a name.."
