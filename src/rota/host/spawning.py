"""How the minder starts a command: put it on, spawn, take it off.

A child inherits what its parent is: working directory, limits, cores, control group. Setting these in the child means
running Python between fork and exec, which costs three times a bare spawn. So the minder, which has one thread and no
limits of its own to lose, sets them on *itself*, spawns with `posix_spawn` (which shares memory with its parent until
the exec and so copies nothing), and takes them off again. Nothing runs between two of its steps, so there is no race:
the first instruction of the command already has its limits.

Two kinds of thing cannot be taken off again, and are set on the child right after it started:

    a hard limit, without the right to raise it          the soft one was inherited, so the limit holds from the start;
                                                         only a program that raises its own in that instant could pass
    nice, scheduling policy, number of processes         no limit is passed by having them a moment later; and with
                                                         the number of processes on itself the minder could not spawn

What the system does not allow of the second kind is reported, not raised: the command runs without it.
If something cannot be taken off, the minder must not go on under a command's limits: the error ends it.

An order has two parts: what belongs to one start, and the *recipe*, which comes again with every run of a plan. The
recipe is one piece of bytes (see command.py); the minder keeps what it has read by these bytes and need not read again.

The minder imports this, so it imports almost nothing.
"""

from __future__ import annotations

import errno
import marshal
import os
import resource
import signal
from collections.abc import Callable, Sequence
from fcntl import F_DUPFD_CLOEXEC, fcntl
from typing import Any

from rota.host.frames import Frame
from rota.host.syscalls import SchedAttr, sched_setattr

__all__ = ["HOME", "RECIPES_MAX", "RECIPE_KEPT_BYTES_MAX", "Recipes", "StepFailed", "spawn", "write"]

STDIN, STDERR = 0, 2
HOME = "/"  # where the minder stands between spawns
RECIPES_MAX = 64  # that are kept: few and short, for the minder must fit into the memory limit of any command
RECIPE_KEPT_BYTES_MAX = 4 * 1024

# What a parent may have ignored, and a program expects not to be
_DEFAULTED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGPIPE", "SIGXCPU", "SIGXFSZ", "SIGUSR1", "SIGUSR2")
_SIGNALS_TO_DEFAULT = [getattr(signal, name) for name in _DEFAULTED]


class Recipes:
    """The recipes that came lately."""

    def __init__(self) -> None:
        self._kept: dict[bytes, dict[str, Any]] = {}  # by the words they came in

    def whole(self, order: dict[str, Any]) -> dict[str, Any]:
        """An order together with what its recipe says."""
        words = order["recipe"]
        recipe = self._kept.get(words)
        if recipe is None:
            recipe = marshal.loads(words)  # noqa: S302  # our client's; see frames.py
            self._keep(words, recipe)
        return {**recipe, **order, "env": {**recipe["base_env"], **order["env"]}}

    def _keep(self, words: bytes, recipe: dict[str, Any]) -> None:
        if len(words) > RECIPE_KEPT_BYTES_MAX:
            return
        if len(self._kept) >= RECIPES_MAX:
            self._kept.clear()
        self._kept[words] = recipe


class StepFailed(Exception):  # it travels as {"failed": …}
    """The command was not started; which step failed, and the kernel's errno."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(step, number)
        self.step, self.number = step, number


def spawn(order: dict[str, Any], frame: Frame) -> tuple[int, dict[str, Any]]:
    """Start a command: its pid, what of the order could not be set ([what, errno]), and what is in force."""
    if not frame.is_whole:
        raise StepFailed("descriptors", errno.EMFILE)
    pid = _Dressing().spawn(order, frame.fds)
    in_force: dict[str, Any] = {"unset": _set_on_child(pid, order)}
    if order["cores"] is not None:
        in_force["cores"] = sorted(os.sched_getaffinity(pid))
    return pid, in_force


class _Dressing:
    """One spawn: what the minder has put on, to be taken off in reverse."""

    def __init__(self) -> None:
        self._step = "order"
        self._take_off: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def spawn(self, order: dict[str, Any], fds: Sequence[int]) -> int:
        """Put on, spawn, take off."""
        try:
            self._put_on(order)
            self._step = "exec"
            return _posix_spawn(order, fds)
        except OSError as problem:
            raise StepFailed(self._step, problem.errno or errno.EIO) from problem
        except ValueError as problem:  # a limit above our own hard one, a NUL in an argument
            raise StepFailed(self._step, errno.EINVAL) from problem
        except MemoryError as problem:  # we are already larger than the limit that we have put on
            raise StepFailed("limits", errno.ENOMEM) from problem
        finally:
            for undo, arguments in reversed(self._take_off):
                undo(*arguments)

    def _put_on(self, order: dict[str, Any]) -> None:
        self._step = "group"
        for procs, home in order["groups"]:
            write(procs, "0")  # 0 is whoever writes
            self._take_off.append((write, (home, "0")))
        self._step = "cwd"
        self._take_off.append((os.chdir, (HOME,)))
        os.chdir(order["cwd"])
        self._step = "cores"
        if order["cores"] is not None:
            self._take_off.append((os.sched_setaffinity, (0, os.sched_getaffinity(0))))
            os.sched_setaffinity(0, order["cores"])
        self._step = "limits"
        for _name, which, soft, _hard, inherited in order["limits"]:
            if inherited:
                before = resource.getrlimit(which)
                self._take_off.append((resource.setrlimit, (which, before)))
                resource.setrlimit(which, (soft, before[1]))


def _posix_spawn(order: dict[str, Any], fds: Sequence[int]) -> int:
    given = dict(zip(order["to"], fds, strict=True))
    lifted: list[int] = []
    try:
        return os.posix_spawn(
            order["path"],
            order["argv"],
            order["env"],
            file_actions=_wiring(given, lifted),
            setsid=True,
            setsigmask=(),
            setsigdef=_SIGNALS_TO_DEFAULT,
        )
    finally:
        for fd in lifted:
            os.close(fd)


def _wiring(given: dict[int, int], lifted: list[int]) -> list[tuple[int, int, int]]:
    """Which descriptor becomes which in the child. In and out are /dev/null, as ours are, where none is given."""
    highest = max(given, default=STDERR)
    # first of all, while 0 is still ours: our own stderr is the client's, for what we may have to complain about
    actions = [] if STDERR in given else [(os.POSIX_SPAWN_DUP2, STDIN, STDERR)]
    for target, fd in given.items():
        if fd <= highest:  # a later dup2 would overwrite it before its turn
            fd = fcntl(fd, F_DUPFD_CLOEXEC, highest + 1)  # noqa: PLW2901
            lifted.append(fd)
        actions.append((os.POSIX_SPAWN_DUP2, fd, target))
    return actions


def _set_on_child(pid: int, order: dict[str, Any]) -> list[tuple[str, int]]:
    """Set what could not be inherited; it has not been waited for, so the pid is its own even if it has died."""
    unset: list[tuple[str, int]] = []
    for name, which, soft, hard, _inherited in order["limits"]:
        try:
            resource.prlimit(pid, which, (soft, hard))
        except OSError as problem:
            unset.append((name, problem.errno or errno.EIO))
        except ValueError:  # how the resource module says EPERM
            unset.append((name, errno.EPERM))
    if order["scheduling"] is not None:
        try:
            sched_setattr(pid, SchedAttr(**order["scheduling"]))
        except OSError as problem:
            unset.append(("scheduling", problem.errno or errno.EIO))
    return unset


def write(path: str, text: str) -> None:
    """Write a word into a file of the kernel's."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
