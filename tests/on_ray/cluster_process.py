"""A real cluster on this machine, as a process that obeys commands; it ends with the last test process that uses it.

It is alone in a network namespace with nothing but the loopback device: Ray looks for its own address on public
servers, writes into the home folder and may send statistics. It has two nodes, `head` and `second`; a command adds a
third one, and kills nodes. Commands arrive at a socket file, one to a connection, and are answered when they are done.

Every user of a shared cluster holds a shared lock on `users`. When all of them are gone, in whatever way, this process
kills what Ray has started: it adopts what loses its parent, so nothing stays behind.
"""

from __future__ import annotations

import ctypes
import fcntl
import inspect
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray._private import services
from ray.cluster_utils import Cluster

CLONE_NEWNET = 0x40000000
PR_SET_CHILD_SUBREAPER = 36
PORT = 6379
COMMON: dict[str, Any] = {
    "node_ip_address": "127.0.0.1",
    "object_store_memory": 80 * 1024 * 1024,
    "include_log_monitor": False,
    "no_monitor": True,
}
NODES: dict[str, dict[str, Any]] = {
    "head": {"num_cpus": 2, "num_gpus": 2, "resources": {"doomed": 1}},
    "second": {"num_cpus": 2, "num_gpus": 2, "resources": {"left": 2}},
    "third": {"num_cpus": 0, "resources": {"doomed": 1}},
}
_libc = ctypes.CDLL(None, use_errno=True)
_start_raylet = services.start_raylet
_ports = itertools.count(20_000)


def start_raylet(*args: Any, **options: Any) -> Any:
    """Start a node without waiting for its dashboard agent: on a busy machine that takes longer than Ray waits."""
    given = inspect.signature(_start_raylet).bind(*args, **options).arguments
    for name in ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"):
        Path(given["session_dir"], f"{name}_{given['node_id']}").write_text("-1")  # as without a dashboard
    return _start_raylet(*args, **options)


services.start_raylet = start_raylet


class Nodes:
    """The nodes of the cluster, by name."""

    def __init__(self, *names: str) -> None:
        self._nodes: dict[str, Any] = {}
        self._start(*names)

    def _start(self, *names: str) -> None:
        arguments = {**COMMON, **NODES["head"], "node_name": "head", "include_dashboard": False}
        arguments |= {"gcs_server_port": PORT, "runtime_env_agent_port": next(_ports)}
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=arguments)
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        more = {**COMMON, **NODES[name], "runtime_env_agent_port": next(_ports)}
        self._nodes[name] = self._cluster.add_node(node_name=name, **more)

    def kill(self, name: str) -> None:
        self._nodes.pop(name).kill_all_processes(check_alive=False, allow_graceful=False)

    def kill_all(self) -> None:
        for node in self._cluster.list_all_nodes():
            node.kill_all_processes(check_alive=False, allow_graceful=False)
        self._nodes.clear()

    def restart(self) -> None:
        self._start()

    def obey(self, command: str) -> None:
        match command.split():
            case ["kill", "all"]:
                self.kill_all()
            case ["kill", name]:
                self.kill(name)
            case ["add", name]:
                self.add(name)
            case ["restart"]:
                self.restart()


def serve(server: socket.socket, nodes: Nodes) -> None:
    while True:
        connection, _ = server.accept()
        with connection:
            try:
                nodes.obey(connection.recv(1_000).decode())
                connection.sendall(b"done")
            except Exception as problem:  # for the test that has sent the command
                connection.sendall(repr(problem).encode())


def children() -> list[int]:
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):
            found += map(int, Path(task, "children").read_text().split())
    return found


def kill_the_rest() -> None:
    """Kill every process that Ray has started. Those whose parent ends become children of this one."""
    while pids := children():
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)


def main(folder: Path, *names: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the users decide, not a terminal
    users = os.open(f"{folder}.users", os.O_RDWR | os.O_CREAT, 0o600)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if _libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "a network namespace needs root")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    try:
        nodes = Nodes(*names)
    except BaseException:
        kill_the_rest()
        raise
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "commands"))
        server.listen()
        threading.Thread(target=end_with_last_user, args=(users, folder), daemon=True).start()
        part = folder / "ready.part"
        part.write_text(str(os.getpid()))
        part.rename(folder / "ready")
        serve(server, nodes)  # on the main thread: Ray sets signal handlers where it starts nodes


def end_with_last_user(users: int, folder: Path) -> None:
    fcntl.lockf(users, fcntl.LOCK_EX)  # granted when no process holds the shared one any more
    Path(folder, "ready").unlink()
    kill_the_rest()
    shutil.rmtree(folder, ignore_errors=True)
    Path(f"{folder}.users").unlink()
    # a process that holds the start lock waits for this one to end; its own keeper removes the file
    with suppress(FileNotFoundError, BlockingIOError), Path(f"{folder}.start").open("r+") as start:
        fcntl.flock(start, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(f"{folder}.start").unlink()
    os._exit(0)  # without Ray's exit handlers


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
