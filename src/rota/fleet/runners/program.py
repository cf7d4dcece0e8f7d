"""A program as a run: what the command and the ndjson runner share.

`ProgramStarter` starts a program as its agent's settings say: with a filtered environment, in its workspace, in its own
session, with limits on each process, and in a control group if the settings limit memory, processes or CPU time and the
machine supports such groups. Without a group the same limits apply to each process separately, and an advisory says so.

The slot's thread reads a `Program` (`pump`): one poll over its outputs and the reaper's reports about it. An output may
close early, or a process outside the session may hold it open; neither matters, because the run ends when the session
ends. When the reaper reports that, it has killed the rest of the session, so no more output follows.

The environment of a program:

    ROTA_SCHED_ID ROTA_ATTEMPT ROTA_TOKEN    the idempotency key
    ROTA_AGENT                               the agent's name
    TRACEPARENT TRACESTATE                   the span of this run, as the W3C writes it; unset if it is not traced
    ROTA_STORE ROTA_ACCESS_TOKEN             the daemon's address, and the run's own token; unset without a daemon
    ROTA_DEADLINE                            epoch seconds; unset without a deadline
    ROTA_REMAINING_TOKENS, …                 what was left of each budget at the start
    ROTA_PAYLOAD                             the payload as JSON, if it is short (the command runner sets it)
    ROTA_CHECKPOINT                          the checkpoint of the last attempt: JSON (it starts with a brace) if it is
                                             short, otherwise the path of a file with the JSON
"""

from __future__ import annotations

import math
import os
import re
import select
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import msgspec

from rota.errors import HostError, NotFound, ReaperLost, RotaError
from rota.fleet.agent_settings import AgentSettings
from rota.fleet.runners.contract import Assignment, RunChannel, RunOutcome
from rota.fleet.runners.cpu_hold import CpuHold
from rota.fleet.runners.resources import RunnerResources
from rota.host.cgroup_files import GroupLimits, Limit
from rota.host.cgroups import ControlGroup
from rota.host.command import Command, EncodedCommand, SessionExit, filter_environment, signal_name
from rota.host.process_cpu import is_runnable, tree_cpu_ns
from rota.host.session import Session
from rota.model.work import Limits

__all__ = [
    "CHECKPOINT_FD",
    "INLINE_BYTES_MAX",
    "Descriptors",
    "Program",
    "ProgramOutcome",
    "ProgramStarter",
    "ProgramStopHandle",
    "long_checkpoint",
    "lost_outcome",
    "memory_file",
    "not_started_outcome",
    "output_tail",
    "whole_seconds",
]

READ_BYTES = 64 * 1024
PREPARED_MAX = 256  # prepared commands in the cache
DRAIN_BYTES_MAX = 1024 * 1024  # per output after the end: an unprivileged pipe holds no more
SHELL_SIGNAL_CODES = 128  # a shell exits with this plus the signal that killed its last command
TAIL_CHARS_MAX = 4_000  # of the output, in a result
INLINE_BYTES_MAX = 32 * 1024  # of one variable: the kernel accepts 128 KiB
CHECKPOINT_FD = 3  # where a program finds a long checkpoint
_NOT_IN_A_NAME = re.compile(r"[^A-Z0-9_]")

Sinks = Mapping[int, Callable[[bytes], None]]


class Descriptors:
    """File descriptors that are closed when the run ends, if not earlier."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def pipe(self) -> tuple[int, int]:
        """Create a pipe; return its read end and its write end."""
        ends = os.pipe()
        self._open.update(ends)
        return ends

    def keep(self, fd: int) -> int:
        """Close this descriptor too."""
        self._open.add(fd)
        return fd

    def close(self, fd: int) -> None:
        """Close a descriptor now."""
        if fd in self._open:
            self._open.discard(fd)
            os.close(fd)

    def __enter__(self) -> Descriptors:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.pop())


class ProgramStopHandle:
    """Stops a program that takes no messages: SIGTERM and SIGKILL."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def request_stop(self, reason: str) -> bool:  # noqa: ARG002  # the protocol's
        """Not supported."""
        return False

    def terminate(self) -> bool:
        """Send SIGTERM to the process group, and SIGCONT so that a stopped process can react."""
        try:
            if not self._session.signal(signal.SIGTERM):
                return False
            self._session.signal(signal.SIGCONT)  # False if it has exited because of the first one
        except RotaError:  # the process has changed its user
            return False
        return True

    def kill(self) -> bool:
        """Kill the whole session."""
        self._session.kill()
        return True


class ProgramOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended."""

    exit_kind: Literal["completed", "failed", "crashed", "cancelled"]
    outcome: str | None
    details: dict[str, Any]  # for the result: exit_code, signal, error
    usage: dict[str, int]
    cpu_ms: int = 0


# --- starting --------------------------------------------------------------------------------------


class _Prepared(NamedTuple):
    """What is the same for every run with these settings."""

    settings: AgentSettings
    command: EncodedCommand
    advisories_without_group: list[str]


def _per_process_advisories(limits: Limits, group: ControlGroup | None) -> list[str]:
    """Name the limits that apply to each process separately because no control group enforces them."""
    requested: dict[Limit, tuple[str, int | None]] = {
        "memory": ("memory_bytes", limits.memory_bytes),
        "processes": ("processes", limits.processes),
    }
    return [
        f"{field} = {amount:,} applies to each process, not to all of them together: no control group enforces it"
        for limit, (field, amount) in requested.items()
        if amount is not None and (group is None or not group.enforces(limit))
    ]


class ProgramStarter:
    """Starts the programs of one runner."""

    def __init__(self, resources: RunnerResources, *, use_groups: bool = True) -> None:
        """Without `use_groups`, limits apply to each process only, as on a machine without control groups."""
        self._resources = resources
        self._use_groups = use_groups
        self._own_env = dict(os.environ)
        self._cache: dict[tuple[Any, ...], _Prepared] = {}

    def start(
        self, assignment: Assignment, more_env: Mapping[str, str], fds: dict[int, int], advisories: list[str]
    ) -> Program:
        """Order a program from the reaper. Use the result as a context manager: it leaves no process behind."""
        limits, cpu = assignment.settings.limits, assignment.cpu
        hold = None
        if cpu is not None:
            hold = CpuHold(self._resources, assignment, cpu, advisories, use_groups=self._use_groups)
        group = self._group(limits, advisories) if hold is None else hold.group
        try:
            prepared = self._prepared(assignment, hold)
            advisories += prepared.advisories_without_group if group is None else _per_process_advisories(limits, group)
            session = self._follow(prepared.command, fds, group, {**_run_variables(assignment), **more_env})
            return Program(self._resources, session, group, limits, advisories, hold=hold)
        except BaseException:
            if hold is not None:
                hold.end()
            elif group is not None:
                self._resources.cgroups.discard(group)
            raise

    def _prepared(self, assignment: Assignment, hold: CpuHold | None) -> _Prepared:
        """Return the encoded command, cached per settings object, working directory, scheduling and cores."""
        settings, cwd = assignment.settings, assignment.workspace or assignment.settings.cwd
        scheduling, cores = (None, None) if hold is None else (hold.scheduling, hold.cores)
        key = id(settings), cwd, scheduling, cores
        cached = self._cache.get(key)
        if cached is not None and cached.settings is settings:
            return cached
        env = {**filter_environment(self._own_env, allow=settings.pass_env), **settings.env}
        command = Command(
            argv=settings.argv, env=env, cwd=cwd, limits=settings.limits, scheduling=scheduling, cores=cores
        )
        if len(self._cache) >= PREPARED_MAX:
            self._cache.clear()
        prepared = _Prepared(settings, EncodedCommand(command), _per_process_advisories(settings.limits, None))
        self._cache[key] = prepared
        return prepared

    def _follow(
        self, command: EncodedCommand, fds: dict[int, int], group: ControlGroup | None, env: dict[str, str]
    ) -> Session:
        try:
            return self._resources.reaper.follow(command, fds, group=group, more_env=env)
        except ReaperLost:  # the reaper died just now: `resources` starts another one
            return self._resources.reaper.follow(command, fds, group=group, more_env=env)

    def _group(self, limits: Limits, advisories: list[str]) -> ControlGroup | None:
        if limits.memory_bytes is None and limits.processes is None:
            return None  # the other limits are per process anyway, and a group costs a millisecond
        return self._make_group(limits, advisories) if self._use_groups else None

    def _make_group(self, limits: Limits, advisories: list[str]) -> ControlGroup | None:
        cgroups = self._resources.cgroups
        if not (cgroups.support["memory"].works or cgroups.support["processes"].works):
            return None
        try:
            return cgroups.create(GroupLimits(memory_bytes=limits.memory_bytes, processes=limits.processes))
        except HostError as problem:
            advisories.append(problem.message)
            return None


def _run_variables(assignment: Assignment) -> dict[str, str]:
    """The environment variables of one run, except the payload."""
    entry = assignment.entry
    variables = {
        "ROTA_SCHED_ID": str(entry.sched_id),
        "ROTA_ATTEMPT": str(entry.attempt),
        "ROTA_TOKEN": str(entry.token),
        "ROTA_AGENT": assignment.agent.name,
        **assignment.trace,
    }
    if assignment.access is not None:
        variables |= assignment.access.variables
        variables["ROTA_ACCESS_TOKEN"] = assignment.access.access_token
    if entry.deadline is not None:
        variables["ROTA_DEADLINE"] = repr(entry.deadline)
    for dim, amount in assignment.remaining.items():
        variables[f"ROTA_REMAINING_{_NOT_IN_A_NAME.sub('_', dim.upper())}"] = str(amount)
    if assignment.checkpoint is not None:
        saved = msgspec.json.encode(assignment.checkpoint)
        is_short = len(saved) <= INLINE_BYTES_MAX
        variables["ROTA_CHECKPOINT"] = saved.decode() if is_short else f"/dev/fd/{CHECKPOINT_FD}"
    return variables


def long_checkpoint(assignment: Assignment) -> bytes | None:
    """Return the checkpoint as JSON if it is too long for a variable."""
    if assignment.checkpoint is None:
        return None
    saved = msgspec.json.encode(assignment.checkpoint)
    return saved if len(saved) > INLINE_BYTES_MAX else None


def memory_file(data: bytes) -> int:
    """Return a descriptor of an in-memory file with `data`, at its start. Neither writing nor reading it blocks."""
    fd = os.memfd_create("rota")
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


# --- following -------------------------------------------------------------------------------------


class Program:
    """A program that was ordered from the reaper; it runs unless the reaper refuses it."""

    def __init__(
        self,
        resources: RunnerResources,
        session: Session,
        group: ControlGroup | None,
        limits: Limits,
        advisories: list[str],
        *,
        hold: CpuHold | None = None,
    ) -> None:
        self.session = session
        self.advisories = advisories  # what was requested and is not in force; complete once it has started
        self._resources = resources
        self._clock = clock = resources.clock
        self._group = group
        self._limits = limits
        self._started_at = clock.monotonic()
        self._hold = hold

    @property
    def enforced(self) -> list[str]:
        """What of its `cpu` settings is enforced, in words."""
        return [] if self._hold is None else self._hold.enforced

    def report_changes(self, channel: RunChannel) -> None:
        """Tell the supervisor from now on when its `cpu` settings, or what is enforced of them, have changed."""
        if self._hold is not None:
            self._hold.report_changes(channel)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        session = self.session
        if session.exit is None:
            session.kill()
        session.wait()
        if self._hold is not None:
            self._hold.end(session)
        elif self._group is not None:
            self._resources.cgroups.discard(self._group)

    def wait_started(self) -> None:
        """Wait until the program runs; raise the error if it could not be started."""
        self.session.wait_started()
        told = self.session.advisories if self._hold is None else self._hold.started(self.session)
        self.advisories += map(str, told)

    def is_held_up(self, cpu_s: float) -> bool:
        """Whether it would run if it could, and has used less CPU time than this."""
        with suppress(NotFound):  # it has exited
            return is_runnable(self.session.pid) and tree_cpu_ns(self.session.pid) < cpu_s * 1e9
        return False

    def pump(
        self, sinks: Sinks, wake: int | None = None, on_wake: Callable[[select.poll], None] | None = None
    ) -> SessionExit:
        """Pass its output to the sinks until it has ended. Call `on_wake` when the descriptor `wake` is readable."""
        ended = self.session.exit
        if ended is None:
            ended = self._pump(sinks, wake, on_wake)
        for fd, sink in sinks.items():
            _drain(fd, sink)
        return ended

    def _pump(self, sinks: Sinks, wake: int | None, on_wake: Callable[[select.poll], None] | None) -> SessionExit:
        poll = select.poll()
        for fd in sinks:
            poll.register(fd, select.POLLIN)
        if wake is not None:
            poll.register(wake, select.POLLIN)
        assert self.session.channel is not None  # noqa: S101  # a followed session has one
        reports = self.session.channel.fileno()
        poll.register(reports, select.POLLIN)
        while (ended := self.session.exit) is None:
            for fd, _events in poll.poll():
                if fd == reports:
                    self.session.read_reports()
                elif fd not in sinks:
                    assert on_wake is not None  # noqa: S101  # passed together with `wake`
                    on_wake(poll)
                elif not _forward(fd, sinks[fd]):
                    poll.unregister(fd)
        return ended

    def outcome(self, ended: SessionExit) -> ProgramOutcome:
        """Return how the program ended and what it used."""
        exit_kind, outcome, details = self._classify(ended)
        wall_s = self._clock.monotonic() - self._started_at
        cpu_s = self._cpu_s(ended)
        usage = {"cpu_s": whole_seconds(cpu_s), "wall_s": whole_seconds(wall_s)}
        cpu_ms = round(cpu_s * 1000)
        return ProgramOutcome(exit_kind=exit_kind, outcome=outcome, details=details, usage=usage, cpu_ms=cpu_ms)

    def _cpu_s(self, ended: SessionExit) -> float:
        """Return the CPU time of all its processes: its group also counts those that were never waited for."""
        waited_s = ended.cpu_user_s + ended.cpu_system_s
        return waited_s if self._group is None else max(waited_s, self._group.cpu_s())

    def _classify(
        self, ended: SessionExit
    ) -> tuple[Literal["completed", "failed", "crashed"], str | None, dict[str, Any]]:
        details: dict[str, Any] = {"exit_code": ended.code}
        if ended.signal is not None:
            details["signal"] = signal_name(ended.signal)
        if ended.lost:
            return "crashed", "lost", details | {"error": "the reaper process was lost and the program with it"}
        if ended.ok:
            return "completed", None, details
        if self._exceeded_cpu(ended):
            return "failed", "over_cpu", details | {"error": f"used more than {self._limits.cpu_s:g} s of CPU time"}
        if self._exceeded_memory():
            error = f"used more than {self._limits.memory_bytes:,} bytes of memory"
            return "failed", "over_memory", details | {"error": error}
        if ended.signal is not None:
            return "crashed", None, details | {"error": f"killed by {details['signal']}"}
        return "failed", None, details | {"error": f"exited with code {ended.code}"}

    def _exceeded_cpu(self, ended: SessionExit) -> bool:
        if self._limits.cpu_s is None:
            return False
        if signal.SIGXCPU in (ended.signal, (ended.code or 0) - SHELL_SIGNAL_CODES):
            return True
        # a program that handles SIGXCPU and continues is killed a second later
        return ended.signal == signal.SIGKILL and ended.cpu_user_s + ended.cpu_system_s > math.ceil(self._limits.cpu_s)

    def _exceeded_memory(self) -> bool:
        if self._group is None or self._limits.memory_bytes is None:
            return False
        with suppress(OSError):  # the reaper may have removed the group if it took this process for dead
            return bool(self._group.usage().oom_kills)
        return False


def _forward(fd: int, sink: Callable[[bytes], None]) -> bool:
    """Pass on what can be read; False at the end of the output."""
    chunk = os.read(fd, READ_BYTES)
    if chunk:
        sink(chunk)
    return bool(chunk)


def _drain(fd: int, sink: Callable[[bytes], None]) -> None:
    """Pass on the rest of a pipe without waiting for its end: another process may hold it open."""
    os.set_blocking(fd, False)
    left = DRAIN_BYTES_MAX
    try:
        while left > 0 and (chunk := os.read(fd, READ_BYTES)):
            sink(chunk)
            left -= len(chunk)
    except BlockingIOError:
        pass


# --- outcomes --------------------------------------------------------------------------------------


def whole_seconds(seconds: float) -> int:
    """Round up to the seconds that are charged."""
    return math.ceil(seconds)


def not_started_outcome(problem: RotaError, outcome: str = "spawn_failed") -> RunOutcome:
    """The outcome of a program that never ran."""
    if isinstance(problem, ReaperLost):
        return lost_outcome(problem)
    result = {"error": problem.message, "hint": problem.hint, "name": problem.name}
    return RunOutcome(exit_kind="failed", outcome=outcome, result=result)


def lost_outcome(problem: RotaError) -> RunOutcome:
    """The outcome of a run whose end could not be observed."""
    return RunOutcome(exit_kind="crashed", outcome="lost", result={"error": problem.message, "name": problem.name})


def output_tail(channel: RunChannel) -> str:
    """Return as much of the end of the output as fits into a result."""
    return channel.log_tail()[-TAIL_CHARS_MAX:]
