"""A command to start: its program, limits and environment, its encoding for the reaper, and how it ended."""

from __future__ import annotations

import errno
import marshal
import os
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import msgspec

from rota.errors import CommandInvalid, SpawnFailed
from rota.host.resource_limits import resource_limits
from rota.host.thread_settings import Scheduling, sched_attributes
from rota.model.budgets import CORES_MAX
from rota.model.checks import Checks
from rota.model.work import Limits

__all__ = [
    "ENVIRONMENT_ALLOWED",
    "MEMORY_BYTES_MIN",
    "Command",
    "EncodedCommand",
    "GroupCleanup",
    "GroupJoin",
    "SessionExit",
    "filter_environment",
    "signal_name",
    "spawn_failed",
    "without_credentials",
]

MEMORY_BYTES_MIN = 32 * 1024 * 1024  # the reaper sets the limit on itself during a spawn, and must fit into it

_checks = Checks("Command", CommandInvalid)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """A program to start. Its fields are checked when it is created."""

    argv: tuple[str, ...]
    env: dict[str, str] = {}  # its whole environment; see filter_environment
    cwd: str | None = None  # None: the current directory
    limits: Limits = Limits()
    cores: frozenset[int] | None = None  # None: any core
    scheduling: Scheduling | None = None  # None: inherited

    def __repr__(self) -> str:  # without its environment, which may hold secrets
        return f"Command(argv={self.argv!r}, env={len(self.env)} variables, cwd={self.cwd!r})"

    def __post_init__(self) -> None:
        if type(self.argv) is not tuple or not self.argv or not self.argv[0]:
            raise _checks.refuse("argv", "must be a tuple whose first item is the program")
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
            raise _checks.refuse("env", f"has an invalid variable name: {name!r}")


def _check_text(field: str, text: Any) -> None:
    if type(text) is not str:
        raise _checks.refuse(field, f"must be text, not {text!r}")
    if "\0" in text:
        raise _checks.refuse(field, "must not contain a NUL character")


def _check_limits(limits: Limits) -> None:
    if limits.cpu_s is not None and not _checks.number("limits.cpu_s", limits.cpu_s, 0) > 0:
        raise _checks.refuse("limits.cpu_s", "must be above 0")
    if limits.memory_bytes is not None:
        _checks.whole("limits.memory_bytes", limits.memory_bytes, MEMORY_BYTES_MIN)
    for field in ("processes", "open_files"):
        if getattr(limits, field) is not None:
            _checks.whole(f"limits.{field}", getattr(limits, field), 1)


# --- the environment -------------------------------------------------------------------------------

ENVIRONMENT_ALLOWED = (
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "COLORTERM", "NO_COLOR", "TZ", "TMPDIR",
    "LANG", "LANGUAGE", "LC_*", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME",
    "SSL_CERT_FILE", "SSL_CERT_DIR",
)  # fmt: skip


# rota's own credentials: how this process, or the run that it is part of, authenticates with a daemon
_CREDENTIALS = ("ROTA_ACCESS_*", "ROTA_*TOKEN*")


def filter_environment(
    environment: Mapping[str, str], *, allow: Iterable[str] = (), extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables that a command may see, and `extra` on top. `allow` adds names or patterns such as `LC_*`.

    An environment may contain secrets, so only listed variables are passed on: those that programs need to find
    other programs, the home folder, the user, the language, the time zone, temporary files and certificates. Rota's own
    credentials are passed on only under their full name: a pattern such as `*` does not mean them.
    """
    allowed = frozenset(allow)
    patterns = (*ENVIRONMENT_ALLOWED, *allowed)
    own = without_credentials(environment)
    kept = {name: value for name, value in own.items() if any(fnmatchcase(name, p) for p in patterns)}
    named = {name: value for name, value in environment.items() if name in allowed}
    return {**kept, **named, **(extra or {})}


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without rota's own credentials, for a process that gets all the rest of it."""
    return {
        name: value
        for name, value in environment.items()
        if not any(fnmatchcase(name, pattern) for pattern in _CREDENTIALS)
    }


# --- how it ended ----------------------------------------------------------------------------------


class SessionExit(msgspec.Struct, frozen=True, kw_only=True):
    """How a session ended: the exit status of its leader and the usage of all its processes."""

    session_id: int
    pid: int
    code: int | None = None
    signal: int | None = None
    cpu_user_s: float = 0.0
    cpu_system_s: float = 0.0
    rss_bytes_max: int = 0  # of its largest process; never below the reaper's own, about 10 MB
    orphans_killed: int = 0  # processes it left behind, which the reaper killed
    lost: bool = False  # the reaper died first, so the exit status is unknown
    spawn_error: SpawnFailed | None = None  # why it was not started

    @property
    def ok(self) -> bool:
        """Whether the program exited with code 0."""
        return self.code == 0


def signal_name(number: int) -> str:
    """The name of a signal, such as SIGTERM; real-time signals have only numbers."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


# --- the spawn request -----------------------------------------------------------------------------


class GroupCleanup(TypedDict, total=False):
    """What the reaper does with the control group of a session when the client is gone."""

    thaw: list[tuple[str, str]]  # (file, text)
    kill: list[tuple[str, str]]
    remove: list[str]  # folders


class GroupJoin(NamedTuple):
    """What the reaper needs to know about the control group that a command joins."""

    join: Sequence[tuple[str, str]] = ()  # (file to write to join the group, file to write to return)
    cleanup: GroupCleanup = GroupCleanup()
    enforced: frozenset[str] = frozenset()  # the limits that the group enforces
    move: Sequence[str] = ()  # files to write to move the command into the group after its start


class EncodedCommand:
    """A command encoded for the reaper: encoded once, started any number of times.

    What is the same for every run is one byte string. The client encodes it once, and the reaper caches the decoded
    form by these bytes, so neither repeats the work.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self._latest: tuple[tuple[Any, ...], bytes] = (), b""  # what the encoding depends on, and the encoding

    def request(self, group: GroupJoin, more_env: Mapping[str, str]) -> dict[str, Any]:
        """Return the spawn request for one run, with additional variables."""
        return {
            "op": "spawn",
            "command": self._encoded(group.enforced),
            "env": _encode_extra_env(more_env) if more_env else {},
            "groups": group.join,
            "moves": group.move,
            "cleanup": group.cleanup,
        }

    def _encoded(self, enforced: frozenset[str]) -> bytes:
        cwd = _folder(self.command)
        program = _program(self.command, cwd)  # looked up each time: it may have changed
        depends_on = enforced, cwd, program
        latest, encoded = self._latest
        if latest != depends_on:
            encoded = self._encode(enforced, cwd, program)
            self._latest = depends_on, encoded
        return encoded

    def _encode(self, enforced: frozenset[str], cwd: str, program: str) -> bytes:
        command = self.command
        return marshal.dumps(
            {
                "path": _encode_text(program),
                "argv": [_encode_text(text) for text in command.argv],
                "base_env": _encode_env(command.env),
                "cwd": _encode_text(cwd),
                "limits": [tuple(limit) for limit in resource_limits(command.limits, enforced)],
                "cores": None if command.cores is None else sorted(command.cores),
                "scheduling": None if command.scheduling is None else sched_attributes(command.scheduling),
            }
        )


def _encode_extra_env(env: Mapping[str, str]) -> dict[str, str]:
    if _is_valid_ascii(env):
        return dict(env)
    _check_env(env)
    return _encode_env(env)


def _is_valid_ascii(env: Mapping[str, str]) -> bool:
    """Whether all variables are valid and ASCII, the usual case. Checks them together to save time."""
    if {*map(type, env), *map(type, env.values())} != {str} or "" in env:
        return False
    names, values = "".join(env), "".join(env.values())
    return "=" not in names and "\0" not in names and "\0" not in values and names.isascii() and values.isascii()


def _encode_env(env: Mapping[str, str]) -> dict[str, str]:
    return {_encode_text(name): _encode_text(value) for name, value in env.items()}


def _folder(command: Command) -> str:
    if command.cwd is not None and command.cwd.startswith("/"):
        return command.cwd
    try:
        return str(Path(command.cwd or ".").absolute())
    except FileNotFoundError as gone:  # the current directory was removed
        raise spawn_failed(command, ".", "cwd", errno.ENOENT) from gone


def _encode_text(text: str) -> str:
    """Return text that the reaper, which always uses UTF-8, encodes to the same bytes as this process would."""
    return text if text.isascii() else os.fsencode(text).decode("utf-8", "surrogateescape")


def _program(command: Command, cwd: str) -> str:
    """Find the program as a shell does, by the PATH of the command."""
    name = command.argv[0]
    if "/" in name:
        return name  # resolved by the kernel, from the working directory
    found = shutil.which(name, path=command.env.get("PATH", os.defpath))
    if found is None:
        raise spawn_failed(command, cwd, "exec", errno.ENOENT)
    return str(Path(found).absolute())


# --- spawn errors ----------------------------------------------------------------------------------

_REASONS = {
    ("exec", errno.ENOENT): (
        "not_found",
        "Check the program name and the PATH of the command; for a script, also its #! line.",
    ),
    ("exec", errno.ENOTDIR): ("not_found", "Check the path of the program."),
    ("exec", errno.EACCES): ("not_permitted", "Make the file executable for this user: chmod +x FILE."),
    ("exec", errno.EPERM): ("not_permitted", "The system does not allow this user to run it."),
    ("exec", errno.ENOEXEC): ("not_executable", "Begin a script with #! and its interpreter."),
    ("exec", errno.E2BIG): ("arguments_too_long", "Pass large input on stdin or in a file."),
    ("exec", errno.EAGAIN): (
        "no_resources",
        "The user or the control group has reached its limit of processes; try again later.",
    ),
    ("exec", errno.ENOMEM): ("no_resources", "The machine is out of memory; try again later."),
    ("limits", errno.ENOMEM): (
        "bad_limits",
        "Raise the memory limit: the process that starts commands does not fit into it.",
    ),
    ("descriptors", errno.EMFILE): ("no_resources", "Too many files are open; try again later."),
}
_STEPS = {
    "cwd": ("bad_cwd", "Use a working directory that exists and that this user may enter."),
    "cores": ("bad_cores", "Choose other cores: this process may use none of these."),
    "limits": ("bad_limits", "Lower the limit: it cannot exceed the one that rota itself runs under."),
    "group": ("group_refused", "The control group was removed, or this user may not join it."),
}


def spawn_failed(command: Command, cwd: str, step: str, number: int) -> SpawnFailed:
    """Return the error for a failed step."""
    other = ("exec_failed", "See the system's error message.")
    reason, hint = _REASONS.get((step, number)) or _STEPS.get(step, other)
    path = cwd if step == "cwd" else command.argv[0]
    return SpawnFailed(
        f"{command.argv[0]!r} was not started: {os.strerror(number)} ({path!r})",
        reason=reason,
        errno=number,
        hint=hint,
        argv0=command.argv[0],
        cwd=cwd,
    )
