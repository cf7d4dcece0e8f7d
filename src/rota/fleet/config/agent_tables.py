"""The tables of one agent in a fleet file: how it is run, its limits, its restarts and its triggers."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rota.fleet.agent_settings import AgentSettings
from rota.fleet.config.units import Bytes, DurationText, Seconds, default_bytes, default_seconds
from rota.model.agent_settings import SecretText
from rota.model.budgets import ALERTS, ALERTS_MAX
from rota.model.checks import AMOUNT_MAX
from rota.model.cpu import CpuSettings
from rota.model.ray import RAY, RaySettings
from rota.model.work import WEIGHT_UNIT, Backoff, Intent, Limits, RestartPolicy, Trigger, TriggerKind

__all__ = ["NAME_CHARS_MAX", "AgentTable", "RestartTable", "RunLimitsTable", "TriggerTable"]

NAME_CHARS_MAX = 100
TRIGGERS_MAX = 100  # of one agent
DIMENSIONS_MAX = 32  # of one budget
WEIGHT_MAX = 1_000_000

Text = Annotated[str, Meta(min_length=1)]
Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=NAME_CHARS_MAX,
        extra={"expected": f"a name of 1 to {NAME_CHARS_MAX} printable characters", "printable": True},
    ),
]
Cap = Annotated[int, Meta(ge=0, le=1_000_000)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Amount = Annotated[int, Meta(ge=0, le=AMOUNT_MAX)]
Grant = Annotated[int, Meta(ge=1, le=AMOUNT_MAX)]
Weight = Annotated[float, Meta(ge=0.001, le=WEIGHT_MAX)]
Share = Annotated[float, Meta(gt=0, le=10)]  # of a budget
# A table of amounts by dimension may have `usd`, in dollars; it is read as cost_micro (loader.py).
HAS_MONEY = "has_money"
MONEY: dict[str, Any] = {
    "extra": {HAS_MONEY: True},
    "extra_json_schema": {
        "properties": {"usd": {"type": "number", "minimum": 0, "description": "Dollars, stored as cost_micro."}}
    },
}
ALERTS_TEXT = "Shares of its budgets at which the event `kernel.budget.alert` is recorded"


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of the file."""


class RunLimitsTable(_Table, frozen=True, kw_only=True):
    """The limits of one run."""

    wall_s: Annotated[Seconds | None, Meta(description="Maximum time from start to end.")] = None
    cpu_s: Annotated[Seconds | None, Meta(description="Maximum CPU time.")] = None
    memory: Annotated[Bytes | None, Meta(description="Maximum memory of all its processes together.")] = None
    processes: Annotated[Count | None, Meta(description="Maximum number of processes at a time.")] = None
    open_files: Annotated[Count | None, Meta(description="Maximum number of open files of one process.")] = None
    log: Annotated[Bytes, Meta(description="Size of the kept output: its beginning and its end.")] = default_bytes(
        1024 * 1024
    )
    tokens: Annotated[Grant | None, Meta(description="Maximum tokens; reserved when the run starts.")] = None

    @property
    def limits(self) -> Limits:
        """The limits as the agent's settings store them."""
        return Limits(
            wall_s=_to_float(self.wall_s),
            cpu_s=_to_float(self.cpu_s),
            memory_bytes=None if self.memory is None else int(self.memory),
            processes=self.processes,
            open_files=self.open_files,
            log_bytes=int(self.log),
            tokens=self.tokens,
        )


class RestartTable(_Table, frozen=True, kw_only=True):
    """Retries after failed runs, and quarantine."""

    when: Annotated[
        Literal["never", "on_crash", "on_failure", "always"],
        Meta(
            description="Which runs are retried: none, those that crashed, or also those that failed; "
            "`always`: those that crashed, and the agent is enqueued again whenever a run has ended."
        ),
    ] = "on_failure"
    attempts: Annotated[int, Meta(description="Maximum attempts of one entry, the first included.", ge=1, le=1_000)] = 3
    backoff_s: Annotated[Seconds, Meta(description="Maximum pause before the second attempt.")] = default_seconds(1)
    backoff_factor: Annotated[float, Meta(description="Factor by which each further pause grows.", ge=1, le=100)] = 2.0
    backoff_cap_s: Annotated[Seconds, Meta(description="Maximum pause.")] = default_seconds(300)
    quarantine_after: Annotated[
        int, Meta(description="Consecutive failures after which the agent is quarantined: no run starts.", ge=1)
    ] = 5
    quarantine_s: Annotated[Seconds, Meta(description="Duration of a quarantine.")] = default_seconds(600)

    @property
    def policy(self) -> RestartPolicy:
        """The restart policy as the agent's settings store it."""
        return RestartPolicy(
            when=self.when,
            backoff=Backoff(float(self.backoff_s), self.backoff_factor, float(self.backoff_cap_s)),
            quarantine_after=self.quarantine_after,
            quarantine_s=float(self.quarantine_s),
        )


class TriggerTable(_Table, frozen=True, kw_only=True):
    """What enqueues the agent automatically: exactly one of cron, event, every, every_s, on, after."""

    cron: Annotated[Text | None, Meta(description="Five fields: minute, hour, day, month, weekday.")] = None
    zone: Annotated[str, Meta(description="With `cron`: the time zone of the expression.")] = "UTC"
    event: Annotated[
        Text | None, Meta(description="A kind of event in the journal, or a prefix of kinds followed by `*`.")
    ] = None
    every: Annotated[
        DurationText | None, Meta(description="An interval, counted from the epoch: `1h` is on the hour.")
    ] = None
    every_s: Annotated[Seconds | None, Meta(description="An interval in seconds, counted from the epoch.")] = None
    on: Annotated[Literal["start"] | None, Meta(description="`start`: once each time the fleet starts.")] = None
    after: Annotated[
        str | None, Meta(description="The name of an agent: fires each time one of its entries completes.")
    ] = None
    payload: Annotated[dict[str, Any], Meta(description="Keys that override the agent's payload.")] = {}
    priority: Annotated[int | None, Meta(description="Overrides the agent's priority.")] = None
    catch_up: Annotated[
        bool, Meta(description="`cron`, `every`: fire once for instants missed while no supervisor ran.")
    ] = True
    event_as: Annotated[
        Text | None, Meta(description="`event`, `after`: the payload key under which the event is passed.")
    ] = None

    def __post_init__(self) -> None:
        given = [name for name in _TRIGGER_KINDS if getattr(self, name) is not None]
        _require_one(given, _TRIGGER_KINDS)

    @property
    def trigger(self) -> Trigger:
        """The trigger of the table."""
        every_s = _to_float(self.every if self.every is not None else self.every_s)
        return Trigger(
            kind=next(kind for key, kind in _TRIGGER_KINDS.items() if getattr(self, key) is not None),
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


_TRIGGER_KINDS: dict[str, TriggerKind] = {
    "cron": "cron",
    "event": "event",
    "every": "interval",
    "every_s": "interval",
    "on": "start",
    "after": "after",
}
_RUN_KEYS = {"command": "command", "ndjson": "ndjson", "function": "callable"}  # and the runner that each selects
_PROGRAM_KEYS = ("command", "ndjson")
_VALID_WITH: tuple[tuple[str, Any, tuple[str, ...]], ...] = (  # a key, its default, and the run keys that use it
    ("isolation", None, ("function",)),
    ("non_retryable", (), ("function",)),
    ("env", {}, _PROGRAM_KEYS),  # a function has the environment of its supervisor
    ("pass_env", (), _PROGRAM_KEYS),
    ("cwd", None, _PROGRAM_KEYS),
    ("stdin", "payload", ("command",)),
    ("usage", None, ("command",)),
)
_RAY_KEYS: dict[str, Any] = {"resources": {}, "node": None, "runtime_env": {}}  # and their defaults
Argv = str | tuple[str, ...]


class AgentTable(_Table, frozen=True, kw_only=True):
    """An agent: what is run, for which project, when, and within which limits."""

    project: Annotated[str | None, Meta(description="The agent's project; it cannot change later.")] = None
    command: Annotated[
        Argv | None, Meta(description="A program and its arguments; exit code 0 is success, output is logged.")
    ] = None
    ndjson: Annotated[
        Argv | None, Meta(description="A program that exchanges newline-delimited JSON on stdin and stdout.")
    ] = None
    function: Annotated[str | None, Meta(description="A Python function, as `module:name`.")] = None
    runner: Annotated[
        str | None,
        Meta(
            description="`ray`: runs on a Ray cluster; or a runner of another package, instead of the one that the key "
            "above selects."
        ),
    ] = None
    resources: Annotated[
        dict[str, float],
        Meta(
            description='`runner = "ray"`: what a run needs, by Ray\'s names: `{CPU = 4, GPU = 1}`; `CPU` is 1 unless '
            "it is given.",
            max_length=16,
        ),
    ] = {}
    node: Annotated[
        Name | None, Meta(description='`runner = "ray"`: the name, address or id of the node to run on.')
    ] = None
    runtime_env: Annotated[
        dict[str, Any],
        Meta(description='`runner = "ray"`: Ray\'s environment of its runs. A relative `working_dir` starts here.'),
    ] = {}
    isolation: Annotated[
        Literal["thread", "process"] | None,
        Meta(description="`function`: where it runs. A function in a process can be killed."),
    ] = None
    env: Annotated[
        dict[str, SecretText],
        Meta(
            description="Environment variables to set, in addition to those passed on. Their values are kept in the "
            "store, and shown only to what starts the program.",
            max_length=256,
        ),
    ] = {}
    pass_env: Annotated[
        tuple[str, ...],
        Meta(
            description="Names (or `PREFIX_*`) of the supervisor's variables to pass on. Rota's own access tokens "
            "(`ROTA_ACCESS_…`) only if they are named in full.",
            max_length=256,
        ),
    ] = ()
    cwd: Annotated[Text | None, Meta(description="Working directory of a run without a workspace.")] = None
    stdin: Annotated[
        Literal["payload", "none"], Meta(description="`command`: whether the payload is on stdin, as JSON.")
    ] = "payload"
    usage: Annotated[
        str | dict[str, str] | None,
        Meta(description="`command`: how usage is read from its JSON output: a preset, or dimension to path."),
    ] = None
    payload: Annotated[dict[str, Any], Meta(description="Default payload of its entries.")] = {}
    intent: Annotated[Intent, Meta(description="The agent's intent, for the policy `intent_weighted`.")] = (
        Intent.NEUTRAL
    )
    priority: Annotated[
        int, Meta(description="Priority of its entries; higher runs sooner.", ge=-(2**31), le=2**31)
    ] = 0
    weight: Annotated[Weight, Meta(description="Its share among the agents of its project.")] = 1.0
    max_concurrent: Annotated[Cap | None, Meta(description="Maximum number of its runs at a time.")] = None
    limits: Annotated[RunLimitsTable, Meta(description="The limits of one run.")] = RunLimitsTable()
    cpu: Annotated[
        CpuSettings | None, Meta(description="CPU time and cores of its runs: weight, quota, cores, lease, class.")
    ] = None
    budget: Annotated[
        dict[str, Grant],
        Meta(
            description="What it may use by dimension, in total: not per window. `usd` is in dollars.",
            max_length=DIMENSIONS_MAX,
            **MONEY,
        ),
    ] = {}
    alerts: Annotated[tuple[Share, ...], Meta(description=f"{ALERTS_TEXT}.", max_length=ALERTS_MAX)] = ALERTS
    expected: Annotated[
        dict[str, Amount],
        Meta(description="What a run usually uses, by dimension.", max_length=DIMENSIONS_MAX, **MONEY),
    ] = {}
    ceiling: Annotated[
        dict[str, Amount],
        Meta(
            description="What a run may use at most, by dimension; reserved while it runs. `usd` is in dollars.",
            max_length=DIMENSIONS_MAX,
            **MONEY,
        ),
    ] = {}
    draws_on: Annotated[tuple[str, ...], Meta(description="The named limits that its runs use.", max_length=32)] = ()
    concurrency_key: Annotated[
        Text | None, Meta(description="`repo:{repo}`: a key that is filled with fields of the payload.")
    ] = None
    concurrency_limit: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="How many runs with the same key may be live.")
    ] = None
    restart: Annotated[RestartTable, Meta(description="Retries after failed runs, and quarantine.")] = RestartTable()
    non_retryable: Annotated[
        tuple[Text, ...],
        Meta(
            description="`function`: errors after which an entry is not retried: `ValueError`, `shop.SoldOut`.",
            max_length=32,
        ),
    ] = ()
    stop_grace_s: Annotated[
        Seconds, Meta(description="Time between the stop request and SIGTERM, and between SIGTERM and SIGKILL.")
    ] = default_seconds(5)
    kind: Annotated[Name | None, Meta(description="The kind of slot it needs.")] = None
    affinity: Annotated[
        Name | None, Meta(description="The preferred worker: its entries are reserved for it while it is alive.")
    ] = None
    workspace: Annotated[
        Literal["exclusive", "shared"] | None,
        Meta(description="Whether a run needs a workspace of its project, alone or shared."),
    ] = None
    triggers: Annotated[
        tuple[TriggerTable, ...], Meta(description="What enqueues it automatically.", max_length=TRIGGERS_MAX)
    ] = ()

    def __post_init__(self) -> None:
        given = [name for name in _RUN_KEYS if getattr(self, name) is not None]
        _require_one(given, _RUN_KEYS)
        if self.runner != RAY:
            for field, default in _RAY_KEYS.items():
                if getattr(self, field) != default:
                    raise ValueError(f'{field} is only valid with runner = "{RAY}"')
        if self.runner not in (None, RAY):
            return  # that runner decides which keys it uses
        for field, default, run_keys in _VALID_WITH:
            if getattr(self, field) != default and given[0] not in run_keys:
                raise ValueError(f"{field} is only valid with {' or '.join(run_keys)}, not with {given[0]}")

    @property
    def weight_units(self) -> int:
        """The weight in the kernel's integer unit (thousandths)."""
        return round(self.weight * WEIGHT_UNIT)

    @property
    def selected_runner(self) -> str:
        """The runner that is named, else that of the key that says what to run."""
        return self.runner or self._key_runner()

    def _key_runner(self) -> str:
        return next(runner for key, runner in _RUN_KEYS.items() if getattr(self, key) is not None)

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments; empty for a function."""
        written = self.command if self.command is not None else self.ndjson
        return tuple(shlex.split(written)) if isinstance(written, str) else written or ()

    def _cwd(self, folder: str) -> str | None:
        """The working directory; on a node of a cluster, where this machine's folders mean nothing, as it is given."""
        if self.runner == RAY:
            return self.cwd
        return os.path.normpath(Path(folder, self.cwd)) if self.cwd is not None else folder

    def _ray(self, executes: Any, folder: str) -> RaySettings:
        runtime_env = dict(self.runtime_env)
        if isinstance(runtime_env.get("working_dir"), str):
            runtime_env["working_dir"] = _uri_or_path(runtime_env["working_dir"], folder)
        return RaySettings(executes=executes, resources=self.resources, node=self.node, runtime_env=runtime_env)

    def settings(self, folder: str) -> AgentSettings:
        """Return the settings that are stored with the agent; relative paths start at `folder`."""
        return AgentSettings(
            runner=self.selected_runner,
            argv=self.argv,
            function=self.function,
            isolation=self.isolation or "thread",
            env=self.env,
            pass_env=self.pass_env,
            cwd=self._cwd(folder),
            ray=self._ray(self._key_runner(), folder) if self.runner == RAY else None,
            stdin=self.stdin,
            usage=self.usage,
            payload=self.payload,
            limits=self.limits.limits,
            cpu=self.cpu,
            restart=self.restart.policy,
            stop_grace_s=float(self.stop_grace_s),
            expected=self.expected,
            ceiling=self.ceiling,
            draws_on=self.draws_on,
            concurrency_key=self.concurrency_key,
            concurrency_limit=self.concurrency_limit,
            kind=self.kind,
            affinity=self.affinity,
            workspace_mode=self.workspace,
            max_attempts=self.restart.attempts,
            non_retryable=self.non_retryable,
        )


def _uri_or_path(text: str, folder: str) -> str:
    return text if "://" in text else os.path.normpath(Path(folder, text))


def _require_one(given: list[str], keys: dict[str, Any]) -> None:
    if len(given) != 1:
        found = "none of them" if not given else " and ".join(given)
        raise ValueError(f"expected exactly one of {', '.join(keys)}, found {found}")


def _to_float(value: float | None) -> float | None:
    return None if value is None else float(value)
