"""What to start and with which limits, how it ended, and the order that the minder gets.

Limits are those of `model.work.Limits`. The host enforces four of them; wall time, tokens and the length of the log
are for whoever watches the run.

    field          what holds it                        without a control group
    cpu_s          each process: SIGXCPU, then KILL     the same
    open_files     each process                         the same
    memory_bytes   the control group, all together      each process: RLIMIT_DATA, what it may write to
    processes      the control group, all together      RLIMIT_NPROC: counts all processes of the user; not for root

RLIMIT_DATA, not RLIMIT_AS: programs with a runtime of their own (node, Go, Java) reserve hundreds of gigabytes of
addresses that they never write to, and would not even start.
"""

from __future__ import annotations

import errno
import marshal
import math
import os
import resource
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec

from rota.errors import CommandInvalid, SpawnFailed
from rota.host.realtime import Scheduling, attributes
from rota.model.budgets import CORES_MAX
from rota.model.checks import Checks
from rota.model.work import Limits

__all__ = ["MEMORY_BYTES_MIN", "AtEnd", "Command", "Exit", "Joining", "Recipe", "signal_name", "spawn_failed"]

MEMORY_BYTES_MIN = 32 * 1024 * 1024  # the minder puts the limit on itself for a moment, and must fit into it
CPU_GRACE_S = 1  # between SIGXCPU, which a program may handle, and SIGKILL

_checks = Checks("Command", CommandInvalid)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A program to start. Checked when it is made."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}  # all it gets; see environment.scrubbed
    cwd: str | None = None  # None: where we are
    limits: Limits = Limits()
    cores: frozenset[int] | None = None  # None: any
    scheduling: Scheduling | None = None  # None: as we are

    def __post_init__(self) -> None:
        if type(self.argv) is not tuple or not self.argv or not self.argv[0]:
            raise _checks.refuse("argv", "must be a tuple that begins with a program")
        for text in self.argv:
            _check_text("argv", text)
        _check_env(self.env)
        if self.cwd is not None:
            _check_text("cwd", self.cwd)
        for core in self.cores or ():
            _checks.whole("cores", core, 0, CORES_MAX - 1)
        _check_limits(self.limits)


def _check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        _check_text("env", name)
        _check_text("env", value)
        if not name or "=" in name:
            raise _checks.refuse("env", f"has a name that no program could read: {name!r}")


def _check_text(field: str, text: Any) -> None:
    if type(text) is not str:
        raise _checks.refuse(field, f"must hold text, not {text!r}")
    if "\0" in text:
        raise _checks.refuse(field, "must not hold a NUL")


def _check_limits(limits: Limits) -> None:
    if limits.cpu_s is not None and not _checks.number("limits.cpu_s", limits.cpu_s, 0) > 0:
        raise _checks.refuse("limits.cpu_s", "must be above 0")
    if limits.memory_bytes is not None:
        _checks.whole("limits.memory_bytes", limits.memory_bytes, MEMORY_BYTES_MIN)
    for field in ("processes", "open_files"):
        if getattr(limits, field) is not None:
            _checks.whole(f"limits.{field}", getattr(limits, field), 1)


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a session ended: its leader's end, and what all of it used."""

    session_id: int
    pid: int
    code: int | None = None
    signal: int | None = None
    cpu_user_s: float = 0.0
    cpu_system_s: float = 0.0
    rss_bytes_max: int = 0  # of its largest process; never below the minder's own, some 10 MB
    strays: int = 0  # processes it left behind, killed after it
    lost: bool = False  # nobody was left to see how it ended
    refused: SpawnFailed | None = None  # it was never started, and why

    @property
    def ok(self) -> bool:
        """Whether the program said that all went well."""
        return self.code == 0


def signal_name(number: int) -> str:
    """A signal as people know it; the many real-time signals have only numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- the order -------------------------------------------------------------------------------------


class AtEnd(TypedDict, total=False):
    """What is to be done with a session's control group when it ends without its client."""

    thaw: list[tuple[str, str]]  # (file, word)
    kill: list[tuple[str, str]]
    remove: list[str]  # folders


class Joining(NamedTuple):
    """What the minder needs to know about the control group that a command joins."""

    join: Sequence[tuple[str, str]] = ()  # (file to write to join, file to write to go home)
    at_end: AtEnd = AtEnd()
    holds: frozenset[str] = frozenset()  # the limits that the group enforces


class Recipe:
    """A command in the minder's words: put into them once, ordered any number of times.

    What is the same for run after run is one piece of bytes. The client puts it together once, and the minder, which
    keeps the recipes it has read, knows it by its bytes: neither has to look into it again.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self._latest: tuple[tuple[Any, ...], bytes] = (), b""  # what the words depend on, and the words

    def order(self, joining: Joining, more_env: Mapping[str, str]) -> dict[str, Any]:
        """What the minder is told, for a run that has these variables too."""
        return {
            "op": "spawn",
            "recipe": self._words(joining.holds),
            "env": _more(more_env) if more_env else {},
            "groups": joining.join,
            "at_end": joining.at_end,
        }

    def _words(self, held: frozenset[str]) -> bytes:
        cwd = _folder(self.command)
        program = _program(self.command, cwd)  # looked for each time: it may be another than before
        depends_on = held, cwd, program
        latest, words = self._latest
        if latest != depends_on:
            words = self._put_into_words(held, cwd, program)
            self._latest = depends_on, words
        return words

    def _put_into_words(self, held: frozenset[str], cwd: str, program: str) -> bytes:
        command = self.command
        return marshal.dumps(
            {
                "path": _wire(program),
                "argv": [_wire(text) for text in command.argv],
                "base_env": _wire_all(command.env),
                "cwd": _wire(cwd),
                "limits": [tuple(limit) for limit in _limits(command.limits, held)],
                "cores": None if command.cores is None else sorted(command.cores),
                "scheduling": None if command.scheduling is None else attributes(command.scheduling),
            }
        )


def _more(env: Mapping[str, str]) -> dict[str, str]:
    if _is_plain(env):
        return dict(env)
    _check_env(env)
    return _wire_all(env)


def _is_plain(env: Mapping[str, str]) -> bool:
    """Whether all of it is ASCII and nothing is to be refused: a look at all of it at once, as it nearly always is."""
    if {*map(type, env), *map(type, env.values())} != {str} or "" in env:
        return False
    names, values = "".join(env), "".join(env.values())
    return "=" not in names and "\0" not in names and "\0" not in values and names.isascii() and values.isascii()


def _wire_all(env: Mapping[str, str]) -> dict[str, str]:
    return {_wire(name): _wire(value) for name, value in env.items()}


def _folder(command: Command) -> str:
    if command.cwd is not None and command.cwd.startswith("/"):
        return command.cwd
    try:
        return str(Path(command.cwd or ".").absolute())
    except FileNotFoundError as gone:  # where we are was removed under us
        raise spawn_failed(command, ".", "cwd", errno.ENOENT) from gone


def _wire(text: str) -> str:
    """The bytes that we mean, as the text that the minder turns into the same bytes: it always speaks UTF-8."""
    return text if text.isascii() else os.fsencode(text).decode("utf-8", "surrogateescape")


def _program(command: Command, cwd: str) -> str:
    """Where the program is: as a shell would look, by the command's own PATH."""
    name = command.argv[0]
    if "/" in name:
        return name  # looked up by the kernel, from the working directory
    found = shutil.which(name, path=command.env.get("PATH", os.defpath))
    if found is None:
        raise spawn_failed(command, cwd, "exec", errno.ENOENT)
    return str(Path(found).absolute())


class _Limit(NamedTuple):
    name: str  # of the field
    which: int
    soft: int
    hard: int
    inherited: bool  # whether it can be put on before the start; see spawning.py


def _limits(limits: Limits, held: frozenset[str]) -> list[_Limit]:
    wanted: list[_Limit] = []
    if limits.cpu_s is not None:
        soft_s = math.ceil(limits.cpu_s)
        wanted.append(_Limit("cpu_s", resource.RLIMIT_CPU, soft_s, soft_s + CPU_GRACE_S, True))
    if limits.open_files is not None:
        wanted.append(_Limit("open_files", resource.RLIMIT_NOFILE, limits.open_files, limits.open_files, True))
    if limits.memory_bytes is not None and "memory" not in held:
        wanted.append(_Limit("memory_bytes", resource.RLIMIT_DATA, limits.memory_bytes, limits.memory_bytes, True))
    if limits.processes is not None and "processes" not in held:
        wanted.append(_Limit("processes", resource.RLIMIT_NPROC, limits.processes, limits.processes, False))
    return [_within_ours(limit) for limit in wanted]


def _within_ours(limit: _Limit) -> _Limit:
    """Our own hard limit holds for our children too: asking for more would only be refused."""
    ours = resource.getrlimit(limit.which)[1]
    if ours == resource.RLIM_INFINITY:
        return limit
    return limit._replace(soft=min(limit.soft, ours), hard=min(limit.hard, ours))


# --- what went wrong -------------------------------------------------------------------------------

_REASONS = {
    ("exec", errno.ENOENT): ("not_found", "Check the name and the PATH of the command; for a script, its first line."),
    ("exec", errno.ENOTDIR): ("not_found", "Check the path of the program."),
    ("exec", errno.EACCES): ("not_permitted", "It must be a file with the right to execute, for this user."),
    ("exec", errno.EPERM): ("not_permitted", "The system does not let this user run it."),
    ("exec", errno.ENOEXEC): ("not_executable", "A script must begin with #! and its interpreter."),
    ("exec", errno.E2BIG): ("arguments_too_long", "Pass large input on stdin or in a file."),
    ("exec", errno.EAGAIN): ("no_resources", "The user, or the group, may have no more processes; try again later."),
    ("exec", errno.ENOMEM): ("no_resources", "The machine is out of memory; try again later."),
    ("limits", errno.ENOMEM): ("bad_limits", "The minder itself does not fit into the memory limit; raise it."),
    ("descriptors", errno.EMFILE): ("no_resources", "Too many files are open; try again later."),
}
_STEPS = {
    "cwd": ("bad_cwd", "The working directory must exist and this user must be able to enter it."),
    "cores": ("bad_cores", "None of the cores can be used by this process."),
    "limits": ("bad_limits", "A limit cannot be above the one that rota itself runs under."),
    "group": ("group_refused", "The control group is gone or may not be joined."),
}


def spawn_failed(command: Command, cwd: str, step: str, number: int) -> SpawnFailed:
    """The error for a step that failed."""
    other = ("exec_failed", "See the system's own word for it.")
    why, hint = _REASONS.get((step, number)) or _STEPS.get(step, other)
    subject = cwd if step == "cwd" else command.argv[0]
    return SpawnFailed(
        f"{command.argv[0]!r} was not started: {os.strerror(number)} ({subject!r})",
        reason=why,
        errno=number,
        hint=hint,
        argv0=command.argv[0],
        cwd=cwd,
    )
