"""The nursery: a process that has loaded what workers need, and forks them off in a millisecond.

It has one thread, so that forking is safe, and does four things: load (`sys.path`, the preloaded modules, perhaps the
user's main module), fork a worker and hand it its line, kill a worker when told, tell how each worker ended. A worker
leads a process group of its own. When it dies its group is killed before it is buried (see reaping.py), so what a
function started does not outlive its worker. The nursery itself is a command of the minder: when the pool's owner
dies, the minder ends the nursery and every worker.
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

from rota.host.child_exits import ChildBell, bury, dead_child, kill_group
from rota.host.frames import Frame, Inbox, Outbox
from rota.host.worker import leave, serve

__all__ = ["CONTROL_FD", "Nursery", "here", "main", "main_module"]

CONTROL_FD = 3
MAIN_NAME = "__mp_main__"  # as multiprocessing calls it: so `if __name__ == "__main__"` is not entered
LOAD_CHARS_MAX = 4_000  # of a failure while loading


class _Here:
    """What this process is."""

    is_nursery = False


here = _Here()


class Nursery:
    """The loop: orders in, deaths in, reports out."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._inbox, self._outbox = Inbox(sock), Outbox(sock)
        self._bell = ChildBell()
        self._pids: dict[int, int] = {}  # by the worker's number
        self._numbers: dict[int, int] = {}  # by its pid

    def run(self) -> None:
        """Serve until the pool hangs up."""
        poll = select.poll()
        poll.register(self._bell.fileno(), select.POLLIN)
        while True:
            poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._outbox else 0))
            ready = dict(poll.poll())
            if self._bell.fileno() in ready:
                self._bell.hush()
                self._reap()
            if not self._talk(ready.get(self._socket.fileno(), 0)):
                break
        for pid in self._numbers:
            kill_group(pid, signal.SIGKILL)

    def _talk(self, events: int) -> bool:
        if events & select.POLLOUT:
            self._outbox.flush()
        if not events & (select.POLLIN | select.POLLHUP | select.POLLERR):
            return True
        try:
            frames = self._inbox.receive()
        except ConnectionError:
            return False
        for frame in frames or ():
            self._obey(frame)
        return frames is not None

    def _obey(self, frame: Frame) -> None:
        order = frame.message
        if order["op"] == "load":
            self._outbox.put(_load(order))
            self._bell.install()  # a module may have listened for signals itself
        elif order["op"] == "fork":
            self._fork(order["worker"], frame)
        elif order["op"] == "kill" and order["worker"] in self._pids:
            kill_group(self._pids[order["worker"]], signal.SIGKILL)

    def _fork(self, number: int, frame: Frame) -> None:
        try:
            pid = os.fork() if frame.is_whole else None
            problem = errno.EMFILE
        except OSError as refused:
            pid, problem = None, refused.errno or errno.EAGAIN
        if pid is None:
            frame.close()
            self._outbox.put({"unborn": number, "errno": problem})
            return
        if pid == 0:
            self._become_worker(*frame.fds)
        frame.close()
        with suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)  # here and there, so that its group exists whoever comes first
        self._pids[number], self._numbers[pid] = pid, number

    def _become_worker(self, line: int) -> NoReturn:
        try:
            here.is_nursery = False
            self._bell.close()
            self._inbox.close()
            self._socket.close()
            os.setpgid(0, 0)
            serve(socket.socket(fileno=line))
        except BaseException:  # nothing may carry a worker back into the nursery's loop
            traceback.print_exc()
        finally:
            leave()

    def _reap(self) -> None:
        while (pid := dead_child()) is not None:
            kill_group(pid, signal.SIGKILL)
            end = bury(pid)
            number = self._numbers.pop(pid, None)
            if number is not None:  # else a child that a loaded module started
                del self._pids[number]
                self._outbox.put({"exit": number, **end})


# --- loading -------------------------------------------------------------------------------------------


def _load(order: dict[str, Any]) -> dict[str, Any]:
    try:
        sys.path[:], sys.argv[:] = order["path"], order["argv"]
        for module in order["preload"]:
            importlib.import_module(module)
        if order["main"] is not None:
            _load_main(**order["main"])
    except BaseException:  # whatever a module raises while it is loaded
        return {"unready": traceback.format_exc()[-LOAD_CHARS_MAX:]}
    gc.collect()
    gc.freeze()  # what is loaded is never garbage: a collection in a worker need not touch, and so copy, it
    return {"ready": True, "threads": threading.active_count()}


def _load_main(path: str | None, module: str | None) -> None:
    """Run the user's main module under another name, so that its functions can be found here."""
    if module is not None:
        names = runpy.run_module(module, run_name=MAIN_NAME, alter_sys=True)
    else:
        names = runpy.run_path(str(path), run_name=MAIN_NAME)
    loaded = types.ModuleType(MAIN_NAME)
    loaded.__dict__.update(names)
    sys.modules["__main__"] = sys.modules[MAIN_NAME] = loaded


def main_module() -> dict[str, str | None] | None:
    """For the other side: where its program's main module came from; None where it came from nowhere (a prompt)."""
    module = sys.modules["__main__"]
    sys.modules.setdefault(MAIN_NAME, module)  # what a worker sends back may be of a class defined there
    spec, path = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:
        return {"module": spec.name, "path": None}
    return {"module": None, "path": str(Path(path).absolute())} if path is not None else None


def main(_arguments: list[str]) -> None:
    """What the nursery process runs."""
    here.is_nursery = True
    os.set_inheritable(CONTROL_FD, False)
    sock = socket.socket(fileno=CONTROL_FD)
    sock.setblocking(False)
    Nursery(sock).run()
