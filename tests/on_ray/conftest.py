"""One cluster of two nodes for all tests of this folder, in a network namespace of its own.

Ray looks for its own address on public servers, writes into the home folder and may send statistics. So the tests move
into a new network namespace with nothing but the loopback device, and give Ray a home of its own. A namespace needs
root; without it the tests are skipped.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rota import Rota
from rota.model.ray import RayCluster

CLONE_NEWNET = 0x40000000
PORT = 6379
START_TRIES = 3  # a node that does not start within Ray's own limits, on a busy machine, is tried again
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: int) -> None:
    if getattr(_libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), f"{name} failed")


@contextmanager
def own_network() -> Iterator[None]:
    """Move this thread, and what it starts, into a network namespace with loopback only."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("unshare", CLONE_NEWNET)
    except OSError:
        os.close(before)
        pytest.skip("a network namespace needs root")
    try:
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        yield
    finally:
        _call("setns", before, CLONE_NEWNET)
        os.close(before)


class TestCluster:
    """The cluster process."""

    __test__ = False

    def __init__(self, env: dict[str, str]) -> None:
        self.address = f"127.0.0.1:{PORT}"
        command = [sys.executable, str(Path(__file__).with_name("cluster_process.py")), str(PORT)]
        self._process = subprocess.Popen(
            command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if not self._read().startswith("up"):
            self.close()
            raise RuntimeError("the cluster did not start")

    def do(self, command: str) -> None:
        """Have a command done."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._read() == "done\n"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def close(self) -> None:
        self._process.communicate()  # the end of its input


@pytest.fixture(scope="package")
def cluster() -> Iterator[TestCluster]:
    with own_network(), tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        own = {
            "HOME": folder,
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "120",
            "RAY_prestart_worker_first_driver": "0",
        }
        with pytest.MonkeyPatch.context() as patch:
            for name, value in own.items():
                patch.setenv(name, value)
            patch.delenv("RAY_ADDRESS", raising=False)
            patch.delenv("PYTHONPYCACHEPREFIX", raising=False)
            for tries_left in reversed(range(START_TRIES)):
                try:
                    started = TestCluster(dict(os.environ))
                    break
                except RuntimeError:
                    if not tries_left:
                        raise
            try:
                yield started
            finally:
                started.close()


@contextmanager
def running(rota: Rota, cluster: TestCluster, **options: object) -> Iterator[None]:
    """Run a supervisor that is connected to the cluster, until the block ends."""
    on_ray = RayCluster(address=cluster.address, **options)  # type: ignore[arg-type]
    supervisor = rota.supervisor(1, ray=on_ray, drain_s=1.0)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        yield
    finally:
        supervisor.kill()
        thread.join()
