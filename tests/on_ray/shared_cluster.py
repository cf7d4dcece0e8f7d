"""The Ray cluster of a test run: the first test process that needs it starts it, and it ends with the last one.

Each test process holds a lock on a file for as long as it lives. The keeper (cluster_process.py) waits for that lock;
the system drops the locks of a process that ends in any way, so nothing of the cluster outlives the run.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from rota.clock import SystemClock
from tests.postgres_server import _lock, _locked
from tests.short_folders import SHORT

CLONE_NEWNET = 0x40000000
START_TRIES = 3  # a node that does not start within Ray's own limits, on a busy machine, is tried again
PORT = 6379
_libc = ctypes.CDLL(None, use_errno=True)
_shared: dict[int, int] = {}  # process id → descriptor of the lock that it holds


class TestCluster:
    """A running cluster."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.0.0.1:{PORT}"

    @property
    def keeper(self) -> int:
        """The process that keeps it."""
        return int(Path(self.folder, "ready").read_text())

    def do(self, command: str) -> None:
        """Have a command done: `add third`, `kill third`, `kill all`, `restart`."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.folder / "commands"))
            connection.sendall(command.encode())
            answer = connection.recv(10_000).decode()
            assert answer == "done", answer


@contextmanager
def shared_cluster() -> Iterator[TestCluster]:
    """The cluster of this test run, with the nodes `head` and `second`."""
    folder = _run_folder()
    if os.getpid() not in _shared:
        _shared[os.getpid()] = _join(folder, "second")
    with _inside(TestCluster(folder)) as cluster:
        yield cluster


@contextmanager
def own_cluster() -> Iterator[TestCluster]:
    """A cluster of one node, for a test that kills it."""
    folder = Path(tempfile.mkdtemp(prefix="rr", dir=SHORT))
    users = _join(folder)
    cluster = TestCluster(folder)
    keeper = cluster.keeper
    try:
        with _inside(cluster):
            yield cluster
    finally:
        os.close(users)
        _wait_for_end(keeper)


@contextmanager
def _inside(cluster: TestCluster) -> Iterator[TestCluster]:
    """Move this thread, and what it starts, into the cluster's network, with its home folder."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    theirs = os.open(f"/proc/{cluster.keeper}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _enter(theirs)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in _environment(cluster.folder).items():
                patch.setenv(name, value)
            patch.delenv("RAY_ADDRESS", raising=False)
            patch.delenv("PYTHONPYCACHEPREFIX", raising=False)
            yield cluster
    finally:
        _enter(before)
        os.close(before)
        os.close(theirs)


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _environment(folder: Path) -> dict[str, str]:
    return {
        "HOME": str(folder),
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "120",
        "RAY_prestart_worker_first_driver": "0",
    }


# --- starting --------------------------------------------------------------------------------------


def _run_folder() -> Path:
    """One folder for all workers of a run. Its name is short: paths of sockets are in it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or f"{os.getpid()}"
    return Path(SHORT, f"rr{hashlib.sha256(run.encode()).hexdigest()[:8]}")


def _join(folder: Path, *nodes: str) -> int:
    """Start the cluster if it does not run; return a descriptor that has to be open while it is used."""
    if os.geteuid() != 0:
        pytest.skip("a network namespace needs root")
    with _locked(Path(f"{folder}.start")):
        # waits while a keeper that saw its last user go ends its cluster
        users = _lock(Path(f"{folder}.users"), lambda file: fcntl.lockf(file, fcntl.LOCK_SH))
        for tries_left in reversed(range(START_TRIES)):
            if Path(folder, "ready").exists() or _starts(folder, nodes):
                break
            assert tries_left, "the cluster did not start"
        return users


def _starts(folder: Path, nodes: tuple[str, ...]) -> bool:
    folder.mkdir(mode=0o700, exist_ok=True)
    env = {**os.environ, **_environment(folder)}
    for name in ("RAY_ADDRESS", "PYTHONPYCACHEPREFIX"):
        env.pop(name, None)
    with Path(folder, "keeper.log").open("wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("cluster_process.py")), str(folder), *nodes],
            env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    pause = threading.Event()
    while keeper.poll() is None:
        if Path(folder, "ready").exists():
            keeper.returncode = 0  # it outlives this process on purpose: no warning about that
            return True
        pause.wait(0.05)
    return False


def _wait_for_end(pid: int) -> None:
    clock, pause = SystemClock(), threading.Event()
    give_up_at = clock.monotonic() + 60.0
    while Path(f"/proc/{pid}").exists() and clock.monotonic() < give_up_at:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        pause.wait(0.02)
