"""The fork server: a process that has imported what workers need, and forks each worker in about a millisecond.

It has one thread, so that forking is safe, and does four things: import (with the caller's `sys.path`: the preloaded
modules, and the main module of the program if requested), fork a worker and pass it its connection, kill a worker on
request, and report how each worker ended. A worker leads its own process group. When it exits, its group is killed
before the worker is reaped (see child_exits.py), so a process that a function started does not outlive the worker. The
fork server itself is a command of the reaper: when the process that owns the pool dies, the reaper kills the fork
server and every worker.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import runpy
import select
import signal
import socket
import sys
import threading
import traceback
import types
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from rota.host.child_exits import ChildWakeupFd, exited_child, reap, signal_group
from rota.host.frames import Frame, FrameReader, FrameWriter
from rota.host.worker import exit_process, serve

__all__ = ["CONTROL_FD", "ForkServer", "main", "main_module", "this_process"]

CONTROL_FD = 3
MAIN_NAME = "__mp_main__"  # the name multiprocessing uses: code under `if __name__ == "__main__"` does not run
LOAD_ERROR_CHARS_MAX = 4_000


class _ThisProcess:
    """What kind of process this is."""

    is_fork_server = False


this_process = _ThisProcess()


class ForkServer:
    """The loop of the fork server: reads requests and child exits, sends reports."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._requests, self._reports = FrameReader(sock), FrameWriter(sock)
        self._child_exits = ChildWakeupFd()
        self._pids: dict[int, int] = {}  # by the worker's number
        self._numbers: dict[int, int] = {}  # by its pid

    def run(self) -> None:
        """Serve until the pool closes the connection."""
        poll = select.poll()
        poll.register(self._child_exits.fileno(), select.POLLIN)
        while True:
            poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._reports else 0))
            ready = dict(poll.poll())
            if self._child_exits.fileno() in ready:
                self._child_exits.clear()
                self._reap()
            if not self._serve_pool(ready.get(self._socket.fileno(), 0)):
                break
        for pid in self._numbers:
            signal_group(pid, signal.SIGKILL)

    def _serve_pool(self, events: int) -> bool:
        if events & select.POLLOUT:
            self._reports.flush()
        if not events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            return True
        try:
            frames = self._requests.receive()
        except ConnectionError:
            return False
        for frame in frames or ():
            self._handle(frame)
        return frames is not None

    def _handle(self, frame: Frame) -> None:
        request = frame.message
        if request["op"] == "load":
            self._reports.put(_load(request))
            self._child_exits.install()  # a module may have replaced the signal handler
        elif request["op"] == "fork":
            self._fork(request["worker"], frame)
        elif request["op"] == "kill" and request["worker"] in self._pids:
            signal_group(self._pids[request["worker"]], signal.SIGKILL)

    def _fork(self, number: int, frame: Frame) -> None:
        try:
            pid = os.fork() if frame.has_all_fds else None
            problem = errno.EMFILE
        except OSError as refused:
            pid, problem = None, refused.errno or errno.EAGAIN
        if pid is None:
            frame.close()
            self._reports.put({"fork_failed": number, "errno": problem})
            return
        if pid == 0:
            self._become_worker(*frame.fds)
        frame.close()
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # in parent and child, so that the group exists whichever runs first
        self._pids[number], self._numbers[pid] = pid, number

    def _become_worker(self, connection: int) -> NoReturn:
        try:
            this_process.is_fork_server = False
            self._child_exits.close()
            self._requests.close()
            self._socket.close()
            os.setpgid(0, 0)
            serve(socket.socket(fileno=connection))
        except BaseException:  # a worker must never return to the loop of the fork server
            traceback.print_exc()
        finally:
            exit_process()

    def _reap(self) -> None:
        while (pid := exited_child()) is not None:
            signal_group(pid, signal.SIGKILL)
            end = reap(pid)
            number = self._numbers.pop(pid, None)
            if number is not None:  # otherwise a child that a loaded module started
                del self._pids[number]
                self._reports.put({"exit": number, **end})


# --- loading -------------------------------------------------------------------------------------------


def _load(request: dict[str, Any]) -> dict[str, Any]:
    try:
        sys.path[:], sys.argv[:] = request["path"], request["argv"]
        for module in request["preload"]:
            importlib.import_module(module)
        if request["main"] is not None:
            _load_main(**request["main"])
    except BaseException:  # whatever a module raises during its import
        return {"load_failed": traceback.format_exc()[-LOAD_ERROR_CHARS_MAX:]}
    gc.collect()
    gc.freeze()  # keeps loaded objects out of collections in workers, which would copy their memory pages
    return {"ready": True, "threads": threading.active_count()}


def _load_main(path: str | None, module: str | None) -> None:
    """Run the main module of the program under another name, so that its functions can be unpickled here."""
    if module is not None:
        names = runpy.run_module(module, run_name=MAIN_NAME, alter_sys=True)
    else:
        names = runpy.run_path(str(path), run_name=MAIN_NAME)
    loaded = types.ModuleType(MAIN_NAME)
    loaded.__dict__.update(names)
    sys.modules["__main__"] = sys.modules[MAIN_NAME] = loaded


def main_module() -> dict[str, str | None] | None:
    """Where the main module of this program was loaded from, for the fork server; None in an interactive session."""
    module = sys.modules["__main__"]
    sys.modules.setdefault(MAIN_NAME, module)  # a result may be an instance of a class defined there
    spec, path = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:
        return {"module": spec.name, "path": None}
    return {"module": None, "path": str(Path(path).absolute())} if path is not None else None


def main(_arguments: list[str]) -> None:
    """Run the fork server process."""
    this_process.is_fork_server = True
    os.set_inheritable(CONTROL_FD, False)
    sock = socket.socket(fileno=CONTROL_FD)
    sock.setblocking(False)
    ForkServer(sock).run()
