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
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from typing import Any, NoReturn

from rota.host.child_exits import ChildWakeupFd, exited_child, reap, signal_group
from rota.host.frames import Frame
from rota.host.main_module import load_main, this_process
from rota.host.request_loop import RequestLoop
from rota.host.worker import exit_process, serve

__all__ = ["CONTROL_FD", "ForkServer", "main"]

CONTROL_FD = 3
LOAD_ERROR_CHARS_MAX = 4_000


class ForkServer:
    """Serves one pool: forks its workers, kills them, and reports their exits."""

    def __init__(self, sock: socket.socket) -> None:
        self._sockets = (sock, sock.dup())
        self._child_exits = ChildWakeupFd()
        self._loop = RequestLoop(*self._sockets, self._child_exits, handle=self._handle, reap=self._reap)
        self._pids: dict[int, int] = {}  # by the worker's number
        self._numbers: dict[int, int] = {}  # by its pid

    def run(self) -> None:
        """Serve until the pool closes the connection."""
        while self._loop.serve() is not None:
            pass
        for pid in self._numbers:
            signal_group(pid, signal.SIGKILL)

    def _handle(self, frame: Frame) -> None:
        request = frame.message
        if request["op"] == "load":
            self._loop.reports.put(_load(request))
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
            self._loop.reports.put({"fork_failed": number, "errno": problem})
            return
        if pid == 0:
            self._become_worker(*frame.fds)
        frame.close()
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # in parent and child, so that the group exists whichever runs first
        self._pids[number], self._numbers[pid] = pid, number

    def _become_worker(self, connection: int) -> NoReturn:
        try:
            self._child_exits.close()
            self._loop.close()
            for sock in self._sockets:
                sock.close()
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
                self._loop.reports.put({"exit": number, **end})


# --- loading -------------------------------------------------------------------------------------------


def _load(request: dict[str, Any]) -> dict[str, Any]:
    this_process.is_loading, this_process.main = True, request["main"]
    try:
        sys.path[:], sys.argv[:] = request["path"], request["argv"]
        for module in request["preload"]:
            importlib.import_module(module)
        if request["loads_main"]:
            load_main()
    except BaseException:  # whatever a module raises during its import
        return {"load_failed": traceback.format_exc()[-LOAD_ERROR_CHARS_MAX:]}
    this_process.is_loading = False
    gc.collect()
    gc.freeze()  # keeps loaded objects out of collections in workers, which would copy their memory pages
    return {"ready": True, "threads": threading.active_count()}


def main(_arguments: list[str]) -> None:
    """Run the fork server process."""
    os.set_inheritable(CONTROL_FD, False)
    sock = socket.socket(fileno=CONTROL_FD)
    sock.setblocking(False)
    ForkServer(sock).run()
