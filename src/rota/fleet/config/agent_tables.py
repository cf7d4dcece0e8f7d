"""What a fleet file says about one agent: how it is run, within what, what follows a failure, what enqueues it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rota.fleet.agent_settings import RunPlan
from rota.fleet.config.reader import NAME_CHARS_MAX
from rota.fleet.config.units import Bytes, Seconds, Span, usually_bytes, usually_s
from rota.model.checks import AMOUNT_MAX
from rota.model.work import WEIGHT_UNIT, Backoff, Intent, Limits, RestartPolicy, Trigger, TriggerKind

__all__ = ["AgentTable", "RestartTable", "RunLimitsTable", "TriggerTable"]

TRIGGERS_MAX = 100  # of one agent
DIMENSIONS_MAX = 32  # of one budget
WEIGHT_LARGEST = 1_000_000

Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[str, Meta(min_length=1, max_length=NAME_CHARS_MAX)]
Cap = Annotated[int, Meta(ge=0, le=1_000_000)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Amount = Annotated[int, Meta(ge=0, le=AMOUNT_MAX)]
Grant = Annotated[int, Meta(ge=1, le=AMOUNT_MAX)]
Weight = Annotated[float, Meta(ge=0.001, le=WEIGHT_LARGEST)]


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of the file."""


class RunLimitsTable(_Table, frozen=True, kw_only=True):
    """What one run may take."""

    wall_s: Annotated[Seconds | None, Meta(description="Time from start to end.")] = None
    cpu_s: Annotated[Seconds | None, Meta(description="CPU time.")] = None
    memory: Annotated[Bytes | None, Meta(description="Memory of all its processes.")] = None
    processes: Annotated[Count | None, Meta(description="Processes at once.")] = None
    open_files: Annotated[Count | None, Meta(description="Open files of one process.")] = None
    log: Annotated[Bytes, Meta(description="Output that is kept: its beginning and its end.")] = usually_bytes(
        1024 * 1024
    )
    tokens: Annotated[Grant | None, Meta(description="Tokens; reserved when the run begins.")] = None

    @property
    def limits(self) -> Limits:
        """As a plan keeps them."""
        return Limits(
            wall_s=_plain(self.wall_s),
            cpu_s=_plain(self.cpu_s),
            memory_bytes=None if self.memory is None else int(self.memory),
            processes=self.processes,
            open_files=self.open_files,
            log_bytes=int(self.log),
            tokens=self.tokens,
        )


class RestartTable(_Table, frozen=True, kw_only=True):
    """What happens when runs end badly."""

    when: Annotated[
        Literal["never", "on_crash", "on_failure", "always"],
        Meta(
            description="What is tried again: nothing, a run that died, also one that failed; "
            "`always`: the agent runs again whenever it has ended."
        ),
    ] = "on_crash"
    attempts: Annotated[int, Meta(description="Runs of one entry, the first included.", ge=1, le=1_000)] = 3
    backoff_s: Annotated[Seconds, Meta(description="The pause before the second attempt, at most.")] = usually_s(1)
    backoff_factor: Annotated[float, Meta(description="How much longer each further pause is.", ge=1, le=100)] = 2.0
    backoff_cap_s: Annotated[Seconds, Meta(description="The longest pause.")] = usually_s(300)
    quarantine_after: Annotated[
        int, Meta(description="Failures in a row after which the agent is left alone.", ge=1)
    ] = 5
    quarantine_s: Annotated[Seconds, Meta(description="For how long.")] = usually_s(600)

    @property
    def policy(self) -> RestartPolicy:
        """As a plan keeps it."""
        return RestartPolicy(
            when=self.when,
            backoff=Backoff(float(self.backoff_s), self.backoff_factor, float(self.backoff_cap_s)),
            quarantine_after=self.quarantine_after,
            quarantine_s=float(self.quarantine_s),
        )


class TriggerTable(_Table, frozen=True, kw_only=True):
    """What enqueues the agent by itself: exactly one of cron, event, every, every_s, on, after."""

    cron: Annotated[Text | None, Meta(description="Five fields: minute, hour, day, month, weekday.")] = None
    zone: Annotated[str, Meta(description="With `cron`: the time zone it is read in.")] = "UTC"
    event: Annotated[Text | None, Meta(description="A kind of event in the journal, or its beginning and a `*`.")] = (
        None
    )
    every: Annotated[Span | None, Meta(description="An interval, counted from the epoch: `1h` is on the hour.")] = None
    every_s: Annotated[Seconds | None, Meta(description="The same in seconds.")] = None
    on: Annotated[Literal["start"] | None, Meta(description="`start`: once whenever the fleet starts.")] = None
    after: Annotated[str | None, Meta(description="An agent's name: each time one of its entries has completed.")] = (
        None
    )
    payload: Annotated[dict[str, Any], Meta(description="On top of the agent's own payload.")] = {}
    priority: Annotated[int | None, Meta(description="Instead of the agent's.")] = None
    catch_up: Annotated[
        bool, Meta(description="`cron`, `every`: what was missed while nobody ran is made up for, once.")
    ] = True
    event_as: Annotated[
        Text | None, Meta(description="`event`, `after`: the payload's key under which the event is handed on.")
    ] = None

    def __post_init__(self) -> None:
        said = [name for name in _KINDS if getattr(self, name) is not None]
        if len(said) != 1:
            told = "none of them" if not said else " and ".join(said)
            raise ValueError(f"expected exactly one of {', '.join(_KINDS)}, found {told}")

    @property
    def trigger(self) -> Trigger:
        """As the triggers' driver takes it."""
        every_s = _plain(self.every if self.every is not None else self.every_s)
        return Trigger(
            kind=next(kind for said, kind in _KINDS.items() if getattr(self, said) is not None),
            cron=self.cron,
            zone=self.zone,
            event=self.event,
            every_s=every_s,
            after=self.after,
            payload=self.payload,
            priority=self.priority,
            catch_up=self.catch_up,
            event_as=self.event_as,
        )


_KINDS: dict[str, TriggerKind] = {
    "cron": "cron",
    "event": "event",
    "every": "interval",
    "every_s": "interval",
    "on": "start",
    "after": "after",
}
_HOW = ("command", "ndjson", "function")
_PROGRAMS = ("command", "ndjson")
_GOES_WITH: tuple[tuple[str, Any, tuple[str, ...]], ...] = (  # a field, what it is if nothing is said, and what uses it
    ("isolation", None, ("function",)),
    ("env", {}, _PROGRAMS),  # a function shares what its process has
    ("pass_env", (), _PROGRAMS),
    ("cwd", None, _PROGRAMS),
    ("stdin", "payload", ("command",)),
    ("usage", None, ("command",)),
)
Argv = str | tuple[str, ...]


class AgentTable(_Table, frozen=True, kw_only=True):
    """An agent: what is run, for whom, how often, and within what."""

    project: Annotated[str | None, Meta(description="The project it is of; it stays there for life.")] = None
    command: Annotated[
        Argv | None, Meta(description="A program and its arguments: exit code 0 is success, output is kept.")
    ] = None
    ndjson: Annotated[
        Argv | None, Meta(description="A program that speaks newline-delimited JSON on stdin and stdout.")
    ] = None
    function: Annotated[str | None, Meta(description="A Python function, as `module:name`.")] = None
    runner: Annotated[
        str | None, Meta(description="Another package's runner, instead of the one the key above stands for.")
    ] = None
    isolation: Annotated[
        Literal["thread", "process"] | None, Meta(description="`function`: `process` can be killed.")
    ] = None
    env: Annotated[
        dict[str, str], Meta(description="Environment on top of what is allowed through.", max_length=256)
    ] = {}
    pass_env: Annotated[
        tuple[str, ...], Meta(description="Names (or `PREFIX_*`) of our own environment to hand on.", max_length=256)
    ] = ()
    cwd: Annotated[Text | None, Meta(description="Where it runs, if it has no workspace.")] = None
    stdin: Annotated[
        Literal["payload", "none"], Meta(description="`command`: whether it gets its payload as JSON.")
    ] = "payload"
    usage: Annotated[
        str | dict[str, str] | None,
        Meta(description="`command`: how usage is read from its JSON output: a preset, or dimension to path."),
    ] = None
    payload: Annotated[
        dict[str, Any], Meta(description="What each of its entries is given unless told otherwise.")
    ] = {}
    intent: Annotated[Intent, Meta(description="What it is after; `intent_weighted` weighs it.")] = Intent.NEUTRAL
    priority: Annotated[int, Meta(description="Of its entries; higher is sooner.", ge=-(2**31), le=2**31)] = 0
    weight: Annotated[Weight, Meta(description="Its share against the other agents of its project.")] = 1.0
    max_concurrent: Annotated[Cap | None, Meta(description="Runs of it at once.")] = None
    limits: Annotated[RunLimitsTable, Meta(description="What one run may take.")] = RunLimitsTable()
    budget: Annotated[
        dict[str, Grant],
        Meta(description="What it may use in all, by dimension: a total, not per window.", max_length=DIMENSIONS_MAX),
    ] = {}
    expected: Annotated[dict[str, Amount], Meta(description="What a run usually uses.", max_length=DIMENSIONS_MAX)] = {}
    ceiling: Annotated[
        dict[str, Amount], Meta(description="What a run may use at most.", max_length=DIMENSIONS_MAX)
    ] = {}
    draws_on: Annotated[tuple[str, ...], Meta(description="The named limits it uses up.", max_length=32)] = ()
    restart: Annotated[RestartTable, Meta(description="What happens when runs end badly.")] = RestartTable()
    stop_grace_s: Annotated[Seconds, Meta(description="Between asking, SIGTERM and SIGKILL.")] = usually_s(5)
    kind: Annotated[Name | None, Meta(description="The kind of slot it needs.")] = None
    affinity: Annotated[Name | None, Meta(description="The worker it would rather have, if that is about.")] = None
    workspace: Annotated[
        Literal["exclusive", "shared"] | None, Meta(description="Whether a run needs a workspace of its project.")
    ] = None
    triggers: Annotated[tuple[TriggerTable, ...], Meta(description="What enqueues it.", max_length=TRIGGERS_MAX)] = ()

    def __post_init__(self) -> None:
        said = [name for name in _HOW if getattr(self, name) is not None]
        if len(said) != 1:
            told = "none of them" if not said else " and ".join(said)
            raise ValueError(f"expected exactly one of {', '.join(_HOW)}, found {told}")
        if self.runner is not None:
            return  # it knows what it can use
        for field, usual, ways in _GOES_WITH:
            if getattr(self, field) != usual and said[0] not in ways:
                raise ValueError(f"{field} goes with {' and '.join(ways)}, not with {said[0]}")

    @property
    def thousandths(self) -> int:
        """The weight as the kernel counts it."""
        return round(self.weight * WEIGHT_UNIT)

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments; none for a function."""
        said = self.command if self.command is not None else self.ndjson
        return tuple(shlex.split(said)) if isinstance(said, str) else said or ()

    def plan(self, folder: str) -> RunPlan:
        """How it is run, as it is kept with the agent."""
        usual = "callable" if self.function is not None else "command" if self.command is not None else "ndjson"
        return RunPlan(
            runner=self.runner or usual,
            argv=self.argv,
            function=self.function,
            isolation=self.isolation or "thread",
            env=self.env,
            pass_env=self.pass_env,
            cwd=os.path.normpath(Path(folder, self.cwd)) if self.cwd is not None else folder,
            stdin=self.stdin,
            usage=self.usage,
            payload=self.payload,
            limits=self.limits.limits,
            restart=self.restart.policy,
            stop_grace_s=float(self.stop_grace_s),
            expected=self.expected,
            ceiling=self.ceiling,
            draws_on=self.draws_on,
            kind=self.kind,
            affinity=self.affinity,
            workspace_mode=self.workspace,
            max_attempts=self.restart.attempts,
        )


def _plain(value: float | None) -> float | None:
    return None if value is None else float(value)
