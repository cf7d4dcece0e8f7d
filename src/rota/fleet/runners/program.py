"""A program as a run: what the command and the ndjson runner share.

`Programs` starts one with everything its plan asks for: an environment that was scrubbed, its workspace as working
directory, a session of its own, limits on each process, and a control group where the plan limits memory or processes
and the machine has groups for that. Without a group the same limits hold for each process, which an advisory says.

A `Program` is read on the slot's own thread (`pump`): one poll over its outputs and the minder's reports about it.
Outputs may close early, or be held open by somebody whom the program gave them to; neither matters, for it is the
session's end that ends a run. When the minder reports that, it has ended the rest of the session, so what is in the
pipes then is all there will be.
"""

from __future__ import annotations

import math
import os
import select
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import msgspec

from rota.clock import Clock
from rota.errors import HostError, MinderLost, RotaError
from rota.fleet.agent_settings import RunPlan
from rota.fleet.runners.contract import Assignment, Line, Outcome
from rota.fleet.runners.environment import facts
from rota.fleet.runners.resources import Workshop
from rota.host.cgroup_files import GroupLimits, Limit
from rota.host.cgroups import Group
from rota.host.command import Command, Exit, Recipe, signal_name
from rota.host.environment import scrubbed
from rota.host.session import Session
from rota.model.work import Limits

__all__ = [
    "Descriptors",
    "Ending",
    "Program",
    "ProgramStops",
    "Programs",
    "lost",
    "not_started",
    "tail_of",
    "whole_seconds",
]

READ_BYTES = 64 * 1024
PREPARED_MAX = 256  # plans that are kept ready
DRAIN_BYTES_MAX = 1024 * 1024  # of each output after the end: no pipe holds more without a privilege
SHELL_SIGNAL_CODES = 128  # a shell ends with this plus the signal that ended its last command
TAIL_CHARS_MAX = 4_000  # of the output, in a result

Sinks = Mapping[int, Callable[[bytes], None]]


class Descriptors:
    """Descriptors that are closed when the run ends, at the latest."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def pipe(self) -> tuple[int, int]:
        """A pipe: where it is read, where it is written."""
        ends = os.pipe()
        self._open.update(ends)
        return ends

    def keep(self, fd: int) -> int:
        """Close this one too."""
        self._open.add(fd)
        return fd

    def close(self, fd: int) -> None:
        """Close one now."""
        if fd in self._open:
            self._open.discard(fd)
            os.close(fd)

    def __enter__(self) -> Descriptors:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            os.close(self._open.pop())


class ProgramStops:
    """The rungs that a program has without a word of its own: TERM and KILL."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ask(self, reason: str) -> bool:  # noqa: ARG002  # the protocol's
        """There is no way to tell it."""
        return False

    def terminate(self) -> bool:
        """SIGTERM to its group; a stopped one is continued, so that it can act on it."""
        try:
            return self._session.signal(signal.SIGTERM) and self._session.signal(signal.SIGCONT)
        except RotaError:  # it has become another user's
            return False

    def kill(self) -> bool:
        """End everything of it."""
        self._session.kill()
        return True


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended, in a supervisor's words."""

    exit_kind: Literal["completed", "failed", "crashed", "cancelled"]
    outcome: str | None
    facts: dict[str, Any]  # for the result
    usage: dict[str, int]


class _Prepared(NamedTuple):
    """What is the same for every run of a plan."""

    plan: RunPlan
    recipe: Recipe
    without_group: list[str]  # the advisories


def _held_by_each(limits: Limits, group: Group | None) -> list[str]:
    """Advisories: which limits hold for each process and not, as was asked, for all of them together."""
    asked: dict[Limit, tuple[str, int | None]] = {
        "memory": ("memory_bytes", limits.memory_bytes),
        "processes": ("processes", limits.processes),
    }
    return [
        f"{field} ({amount:,} was asked) holds for each process, not for all of them together"
        for limit, (field, amount) in asked.items()
        if amount is not None and (group is None or not group.holds(limit))
    ]


class Programs:
    """Starts the programs of one runner."""

    def __init__(self, workshop: Workshop, *, groups: bool = True) -> None:
        """With `groups` off, limits hold for each process only, as on a machine without control groups."""
        self._workshop = workshop
        self._groups = groups
        self._ours = dict(os.environ)
        self._known: dict[tuple[int, str | None], _Prepared] = {}

    def start(
        self, work: Assignment, more_env: Mapping[str, str], fds: dict[int, int], advisories: list[str]
    ) -> Program:
        """A program that was ordered. Use it as a context: whatever happens, nothing of it is left behind."""
        limits, prepared = work.plan.limits, self._prepared(work)
        group = self._group(limits, advisories)
        advisories += prepared.without_group if group is None else _held_by_each(limits, group)
        try:
            session = self._follow(prepared.recipe, fds, group, {**facts(work), **more_env})
            return Program(self._workshop.clock, session, group, limits, advisories)
        except BaseException:
            if group is not None:
                group.remove()
            raise

    def _prepared(self, work: Assignment) -> _Prepared:
        """How its plan is run, in its folder: the same for run after run, as long as the plan is the same object."""
        plan, cwd = work.plan, work.workspace or work.plan.cwd
        known = self._known.get((id(plan), cwd))
        if known is not None and known.plan is plan:
            return known
        env = {**scrubbed(self._ours, allow=plan.pass_env), **plan.env}
        recipe = Recipe(Command(argv=plan.argv, env=env, cwd=cwd, limits=plan.limits))
        if len(self._known) >= PREPARED_MAX:
            self._known.clear()
        prepared = self._known[id(plan), cwd] = _Prepared(plan, recipe, _held_by_each(plan.limits, None))
        return prepared

    def _follow(self, recipe: Recipe, fds: dict[int, int], group: Group | None, env: dict[str, str]) -> Session:
        try:
            return self._workshop.minder.follow(recipe, fds, group=group, more_env=env)
        except MinderLost:  # it died in this moment: the workshop makes another
            return self._workshop.minder.follow(recipe, fds, group=group, more_env=env)

    def _group(self, limits: Limits, advisories: list[str]) -> Group | None:
        if limits.memory_bytes is None and limits.processes is None:
            return None  # what is left, each process is limited in by itself, and a group costs a millisecond
        return self._made(limits, advisories) if self._groups else None

    def _made(self, limits: Limits, advisories: list[str]) -> Group | None:
        cgroups = self._workshop.cgroups
        if not (cgroups.support["memory"].works or cgroups.support["processes"].works):
            return None
        try:
            return cgroups.make(GroupLimits(memory_bytes=limits.memory_bytes, processes=limits.processes))
        except HostError as problem:
            advisories.append(problem.message)
            return None


class Program:
    """A program that was ordered, and runs unless it is refused."""

    def __init__(
        self, clock: Clock, session: Session, group: Group | None, limits: Limits, advisories: list[str]
    ) -> None:
        self.session = session
        self.advisories = advisories  # what was asked and is not in force; complete when it has begun
        self._clock = clock
        self._group = group
        self._limits = limits
        self._started_at = clock.monotonic()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        session = self.session
        if session.exit is None:
            session.kill()
        session.wait()
        if self._group is not None:
            self._group.remove()

    def begun(self) -> None:
        """Wait until it runs; raise why if it was refused."""
        self.session.started()
        self.advisories += map(str, self.session.advisories)

    def pump(self, sinks: Sinks, wake: int | None = None, on_wake: Callable[[select.poll], None] | None = None) -> Exit:
        """Hand on what it writes until it has ended. `on_wake` is called when the descriptor `wake` is readable."""
        ended = self.session.exit
        if ended is None:
            ended = self._pump(sinks, wake, on_wake)
        for fd, sink in sinks.items():
            _drain(fd, sink)
        return ended

    def _pump(self, sinks: Sinks, wake: int | None, on_wake: Callable[[select.poll], None] | None) -> Exit:
        poll = select.poll()
        for fd in sinks:
            poll.register(fd, select.POLLIN)
        if wake is not None:
            poll.register(wake, select.POLLIN)
        assert self.session.channel is not None  # noqa: S101  # ours are followed
        reports = self.session.channel.fileno()
        poll.register(reports, select.POLLIN)
        while (ended := self.session.exit) is None:
            for fd, _events in poll.poll():
                if fd == reports:
                    self.session.take_in()
                elif fd not in sinks:
                    assert on_wake is not None  # noqa: S101  # a wake has somebody to be woken
                    on_wake(poll)
                elif not _hand_on(fd, sinks[fd]):
                    poll.unregister(fd)
        return ended

    def ending(self, ended: Exit) -> Ending:
        """How it ended, and what it used."""
        exit_kind, outcome, told = self._judged(ended)
        wall_s = self._clock.monotonic() - self._started_at
        cpu_s = ended.cpu_user_s + ended.cpu_system_s
        usage = {"cpu_s": whole_seconds(cpu_s), "wall_s": whole_seconds(wall_s)}
        return Ending(exit_kind=exit_kind, outcome=outcome, facts=told, usage=usage)

    def _judged(self, ended: Exit) -> tuple[Literal["completed", "failed", "crashed"], str | None, dict[str, Any]]:
        told: dict[str, Any] = {"exit_code": ended.code}
        if ended.signal is not None:
            told["signal"] = signal_name(ended.signal)
        if ended.lost:
            return "crashed", "lost", told | {"error": "the minder was lost, and the program with it"}
        if ended.ok:
            return "completed", None, told
        if self._was_out_of_cpu(ended):
            return "failed", "over_cpu", told | {"error": f"it used more than {self._limits.cpu_s:g} s of CPU time"}
        if self._was_out_of_memory():
            return "failed", "over_memory", told | {"error": f"it used more than {self._limits.memory_bytes:,} bytes"}
        if ended.signal is not None:
            return "crashed", None, told | {"error": f"it was ended by {told['signal']}"}
        return "failed", None, told | {"error": f"it ended with code {ended.code}"}

    def _was_out_of_cpu(self, ended: Exit) -> bool:
        if self._limits.cpu_s is None:
            return False
        if signal.SIGXCPU in (ended.signal, (ended.code or 0) - SHELL_SIGNAL_CODES):
            return True
        # whoever handles SIGXCPU and goes on is killed a second later
        return ended.signal == signal.SIGKILL and ended.cpu_user_s + ended.cpu_system_s > math.ceil(self._limits.cpu_s)

    def _was_out_of_memory(self) -> bool:
        if self._group is None or self._limits.memory_bytes is None:
            return False
        with suppress(OSError):  # the group may have been removed by the minder, if we were thought dead
            return bool(self._group.usage().oom_kills)
        return False


def _hand_on(fd: int, sink: Callable[[bytes], None]) -> bool:
    """Hand on what has been written; False when nothing more will be."""
    chunk = os.read(fd, READ_BYTES)
    if chunk:
        sink(chunk)
    return bool(chunk)


def _drain(fd: int, sink: Callable[[bytes], None]) -> None:
    """Hand on what is left in a pipe, without waiting for whoever may still hold it open."""
    os.set_blocking(fd, False)
    left = DRAIN_BYTES_MAX
    try:
        while left > 0 and (chunk := os.read(fd, READ_BYTES)):
            sink(chunk)
            left -= len(chunk)
    except BlockingIOError:
        pass


def whole_seconds(seconds: float) -> int:
    """Seconds as they are charged: whatever has begun."""
    return math.ceil(seconds)


# --- what the runners say alike --------------------------------------------------------------------


def not_started(problem: RotaError, outcome: str = "spawn_failed") -> Outcome:
    """The outcome of a program that never ran."""
    if isinstance(problem, MinderLost):
        return lost(problem)
    result = {"error": problem.message, "hint": problem.hint, "name": problem.name}
    return Outcome(exit_kind="failed", outcome=outcome, result=result)


def lost(problem: RotaError) -> Outcome:
    """The outcome of a run that nobody could follow to its end."""
    return Outcome(exit_kind="crashed", outcome="lost", result={"error": problem.message, "name": problem.name})


def tail_of(line: Line) -> str:
    """The end of the output, as long as a result has room for it."""
    return line.log_tail()[-TAIL_CHARS_MAX:]
