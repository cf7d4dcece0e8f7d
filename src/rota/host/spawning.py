"""How the reaper starts a command: set its attributes on the reaper itself, spawn, restore them.

A child inherits the working directory, limits, cores and control group of its parent. Setting them in the child means
running Python between fork and exec, which costs three times as much as a bare spawn. The reaper has one thread and no
limits of its own, so it sets them on *itself*, spawns with `posix_spawn` (the child shares the parent's memory until
the exec, so nothing is copied), and restores its own. Nothing else runs in the reaper between these steps, so there is
no race: the command has its limits from its first instruction.

Three kinds of attributes cannot be restored afterwards. They are set on the child right after it has started:

    hard limits: raising one again needs a privilege     the soft limit is inherited, so it holds from the start; only
                                                         a program that raises it in that instant could exceed it
    nice, scheduling policy, number of processes         setting these a moment later breaks no limit; and with the
                                                         process limit on itself the reaper could not spawn; nice
                                                         and policy are also set on what it has started by then
    a group that limits CPU time                         the reaper would be throttled with those that are in it

Of the second kind, an attribute that the system refuses is reported, not raised: the command runs without it. If the
reaper cannot restore its own attributes it must not continue under a command's limits: the error ends the process.

A spawn request has two parts: what belongs to this start, and the encoded command, which is the same bytes for every
run of the same command (see command.py). The reaper caches the decoded form by these bytes.

The reaper imports this module, so it imports very little itself.
"""

from __future__ import annotations

import errno
import marshal
import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from typing import Any

from rota.host.frames import Frame
from rota.host.lineage import descendants_of, send_signal
from rota.host.syscalls import SchedAttr, sched_setattr

__all__ = [
    "CACHED_COMMANDS_MAX",
    "CACHED_COMMAND_BYTES_MAX",
    "WORKING_DIRECTORY",
    "DecodedCommands",
    "StepFailed",
    "spawn",
    "write_files",
]

STDIN, STDERR = 0, 2
WORKING_DIRECTORY = "/"  # of the reaper between spawns
CACHED_COMMANDS_MAX = 64  # few and short: the reaper must fit into the memory limit of any command
CACHED_COMMAND_BYTES_MAX = 4 * 1024

# signals that a parent may ignore and a program expects to have their default action
_DEFAULTED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGPIPE", "SIGXCPU", "SIGXFSZ", "SIGUSR1", "SIGUSR2")
_SIGNALS_TO_DEFAULT = [getattr(signal, name) for name in _DEFAULTED]


class DecodedCommands:
    """A cache of decoded commands."""

    def __init__(self) -> None:
        self._cache: dict[bytes, dict[str, Any]] = {}  # by their encoded form

    def complete(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a spawn request together with the fields of its command."""
        encoded = request["command"]
        command = self._cache.get(encoded)
        if command is None:
            command = marshal.loads(encoded)  # noqa: S302  # from our own client; see frames.py
            self._keep(encoded, command)
        return {**command, **request, "env": {**command["base_env"], **request["env"]}}

    def _keep(self, encoded: bytes, command: dict[str, Any]) -> None:
        if len(encoded) > CACHED_COMMAND_BYTES_MAX:
            return
        if len(self._cache) >= CACHED_COMMANDS_MAX:
            self._cache.clear()
        self._cache[encoded] = command


class StepFailed(Exception):
    """The command was not started: the step that failed and the kernel's errno."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(step, number)
        self.step, self.number = step, number


def spawn(request: dict[str, Any], frame: Frame) -> tuple[int, dict[str, Any]]:
    """Start a command. Return its pid, and which attributes were not set ([name, errno]) and which cores it has."""
    if not frame.has_all_fds:
        raise StepFailed("descriptors", errno.EMFILE)
    pid = _Spawn().run(request, frame.fds)
    if request["moves"]:
        _move(pid, request["moves"])
    in_force: dict[str, Any] = {"unset": _set_on_child(pid, request)}
    if request["cores"] is not None:
        in_force["cores"] = sorted(os.sched_getaffinity(pid))
    return pid, in_force


class _Spawn:
    """One spawn: sets attributes on the reaper and restores them in reverse order."""

    def __init__(self) -> None:
        self._step = "request"
        self._restore: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def run(self, request: dict[str, Any], fds: Sequence[int]) -> int:
        """Set the attributes, spawn, restore."""
        try:
            self._set(request)
            self._step = "exec"
            return _posix_spawn(request, fds)
        except OSError as problem:
            raise StepFailed(self._step, problem.errno or errno.EIO) from problem
        except ValueError as problem:  # a limit above our own hard one, a NUL in an argument
            raise StepFailed(self._step, errno.EINVAL) from problem
        except MemoryError as problem:  # the reaper is already larger than the limit it has set on itself
            raise StepFailed("limits", errno.ENOMEM) from problem
        finally:
            for restore, arguments in reversed(self._restore):
                restore(*arguments)

    def _set(self, request: dict[str, Any]) -> None:
        self._step = "group"
        for join_file, return_file in request["groups"]:
            _write_file(join_file, "0")  # 0 stands for the writing process
            self._restore.append((_write_file, (return_file, "0")))
        self._step = "cwd"
        self._restore.append((os.chdir, (WORKING_DIRECTORY,)))
        os.chdir(request["cwd"])
        self._step = "cores"
        if request["cores"] is not None:
            self._restore.append((os.sched_setaffinity, (0, os.sched_getaffinity(0))))
            os.sched_setaffinity(0, request["cores"])
        self._step = "limits"
        for _name, which, soft, _hard, inherited in request["limits"]:
            if inherited:
                before = resource.getrlimit(which)
                self._restore.append((resource.setrlimit, (which, before)))
                resource.setrlimit(which, (soft, before[1]))


def _move(pid: int, files: Sequence[str]) -> None:
    """Move a command that has just started, and what it may have started, into its group; kill it if that fails."""
    try:
        for file in files:
            for process in _processes_of(pid):
                with suppress(ProcessLookupError):  # it has exited
                    _write_file(file, str(process))
    except OSError as problem:
        send_signal(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise StepFailed("group", problem.errno or errno.EIO) from problem


def _processes_of(pid: int) -> Iterator[int]:
    """Yield a command that has just started and what it has started, until nothing has come while they were yielded.

    A process that is started by one that was yielded inherits what the caller has set on that one.
    """
    seen: set[int] = set()
    while new := {pid, *descendants_of(pid)} - seen:
        yield from new
        seen |= new


def _posix_spawn(request: dict[str, Any], fds: Sequence[int]) -> int:
    sources = dict(zip(request["to"], fds, strict=True))
    duplicates: list[int] = []
    try:
        return os.posix_spawn(
            request["path"],
            request["argv"],
            request["env"],
            file_actions=_file_actions(sources, duplicates),
            setsid=True,
            setsigmask=(),
            setsigdef=_SIGNALS_TO_DEFAULT,
        )
    finally:
        for fd in duplicates:
            os.close(fd)


def _file_actions(sources: dict[int, int], duplicates: list[int]) -> list[tuple[int, int, int]]:
    """Which descriptor becomes which in the child. Without one, stdin and stdout stay /dev/null, as in the reaper."""
    highest = max(sources, default=STDERR)
    # first, while 0 is still /dev/null: the stderr of the reaper is that of the client, for its own errors
    actions = [] if STDERR in sources else [(os.POSIX_SPAWN_DUP2, STDIN, STDERR)]
    for target, fd in sources.items():
        if fd <= highest:  # an earlier dup2 could overwrite it
            fd = fcntl(fd, F_DUPFD_CLOEXEC, highest + 1)  # noqa: PLW2901
            duplicates.append(fd)
        actions.append((os.POSIX_SPAWN_DUP2, fd, target))
    return actions


def _set_on_child(pid: int, request: dict[str, Any]) -> list[tuple[str, int]]:
    """Set what could not be inherited. The child is not reaped yet, so its pid is valid even if it has exited."""
    unset: list[tuple[str, int]] = []
    for name, which, soft, hard, _inherited in request["limits"]:
        try:
            resource.prlimit(pid, which, (soft, hard))
        except OSError as problem:
            unset.append((name, problem.errno or errno.EIO))
        except ValueError:  # the resource module raises this for EPERM
            unset.append((name, errno.EPERM))
    if request["scheduling"] is not None:
        try:
            attributes = SchedAttr(**request["scheduling"])
            for process in _processes_of(pid):
                with suppress(ProcessLookupError):  # it has exited
                    sched_setattr(process, attributes)
            if request["scheduling"]["nice"]:
                _set_session_nice(pid, request["scheduling"]["nice"])
        except OSError as problem:
            unset.append(("scheduling", problem.errno or errno.EIO))
    return unset


def _set_session_nice(pid: int, nice: int) -> None:
    """Set the niceness of a whole session, where the kernel compares sessions and not processes (autogroup)."""
    with suppress(FileNotFoundError):  # this kernel compares processes
        _write_file(f"/proc/{pid}/autogroup", str(nice))


def write_files(files: Iterable[Sequence[str]]) -> None:
    """Write each text to its file of a control group, which may be gone."""
    for path, text in files:
        with suppress(OSError):
            _write_file(path, text)


def _write_file(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
