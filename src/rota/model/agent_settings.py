"""How an agent is run: settings stored with the agent, so that any supervisor of the store can run it.

The fleet file or `Rota.agent` writes the settings once into the agent's metadata under `SETTINGS_KEY`. They name the
runner and hold the defaults for the agent's entries. The kernel checks them whenever an agent's metadata is written, so
that settings which no supervisor could read are refused where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rota.decoding import convert
from rota.errors import FleetInvalid
from rota.model.agent_metadata import HIDDEN, SETTINGS_KEY, hide_values
from rota.model.checks import ID_CHARS_MAX, INTEGER_MAX, NOTE_CHARS_MAX, SECONDS_MAX, Checks
from rota.model.cpu import CpuSettings
from rota.model.ray import RAY, RaySettings
from rota.model.struct_reader import first_problem
from rota.model.usage_shapes import compile_shapes
from rota.model.work import ATTEMPTS_MAX, Limits, RestartPolicy
from rota.model.worktrees import WorktreeSettings

__all__ = [
    "ENTRIES_MAX",
    "AgentSettings",
    "SecretText",
    "check_settings",
    "fields_of_key",
    "read_settings",
]

ENTRIES_MAX = 1_000  # arguments of a program, and variables of its environment
ARGUMENT_CHARS_MAX = 128 * 1024  # of one argument or variable: the kernel of the operating system accepts no more
SecretText = Annotated[str, Meta(extra={"secret": True})]  # messages do not quote it
_NOT_ON_RAY = {  # and what to use instead
    "kind": "resources and node say where they run",
    "affinity": "node names where they run",
    "isolation": "each has a process of its own",
    "workspace": "it is a folder of the supervisor's machine; name a folder that all nodes have in cwd",
    "workspace_mode": "it is a folder of the supervisor's machine; name a folder that all nodes have in cwd",
    "worktree": "it is a folder of the supervisor's machine; name a folder that all nodes have in cwd",
    "cpu": "resources = {CPU = …} says what they get",
}
_checks = Checks("AgentSettings", FleetInvalid)


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How an agent is run, and the defaults for its entries."""

    runner: str = "callable"
    argv: tuple[str, ...] = ()  # command, ndjson: the program and its arguments
    function: str | None = None  # callable: module:name; None: the supervisor has a function of the agent's name
    isolation: Literal["thread", "process"] = "thread"  # callable: a process can be killed
    env: dict[str, SecretText] = {}  # set in addition to the variables that are passed through
    pass_env: tuple[str, ...] = ()  # further variables of the supervisor's environment to pass through
    cwd: str | None = None  # None: the run's workspace, or else the supervisor's working directory
    stdin: Literal["payload", "none"] = "payload"  # command: whether the payload is on standard input as JSON
    payload: dict[str, Any] = {}  # default payload; an entry's own keys override it
    usage: str | dict[str, str] | None = None  # command: a preset's name, or dimension → path in its JSON output
    limits: Limits = Limits()
    restart: RestartPolicy = RestartPolicy()
    stop_grace_s: float = 5.0  # between one step of the stop escalation and the next
    expected: dict[str, int] = {}
    ceiling: dict[str, int] = {}
    draws_on: tuple[str, ...] = ()
    concurrency_key: str | None = None  # "repo:{repo}": filled with fields of the payload
    concurrency_limit: int | None = None  # live runs with the same key, at most
    kind: str | None = None
    affinity: str | None = None
    workspace: str | None = None
    workspace_mode: Literal["exclusive", "shared"] | None = None
    worktree: WorktreeSettings | None = None  # the git worktrees of its runs
    cpu: CpuSettings | None = None  # CPU time and cores of its runs
    ray: RaySettings | None = None  # ray: what its runs need of the cluster
    max_attempts: int = 3
    non_retryable: tuple[str, ...] = ()  # callable: errors after which an entry is not retried, by name

    def __repr__(self) -> str:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        shown = (f"{name}={hide_values(value) if name == 'env' else value!r}" for name, value in fields)
        return f"AgentSettings({', '.join(shown)})"

    def __post_init__(self) -> None:
        _checks.text("runner", self.runner)
        _checks.duration("stop_grace_s", self.stop_grace_s)
        if self.usage is not None:
            compile_shapes(self.usage)  # raises FleetInvalid for an unknown preset or an invalid path
        self._check_ray()
        if self.executes in ("command", "ndjson") and not self.argv:
            raise _checks.refuse("argv", f"is required: the program that the {self.executes} runner starts")
        for field in ("env", "pass_env"):
            if self.executes == "callable" and getattr(self, field):
                raise _checks.refuse(
                    field, "is only for programs: a function runs with the environment of the supervisor"
                )
        self._check_program()
        self._check_limits()
        self._check_entry_defaults()

    @property
    def executes(self) -> str:
        """The runner that executes it; on a cluster, the one on the node."""
        return self.runner if self.ray is None else self.ray.executes

    @property
    def slot_kind(self) -> str | None:
        """The kind of slot that its entries need."""
        return self.kind if self.ray is None else self.ray.kind

    def _check_ray(self) -> None:
        """A run on a cluster has no slot, folder or core of the supervisor's machine."""
        if (self.runner == RAY) != (self.ray is not None):
            raise _checks.refuse("ray", f"is for the runner {RAY}, which requires it; the runner is {self.runner}")
        if self.ray is None:
            return
        for field, instead in _NOT_ON_RAY.items():
            if getattr(self, field) not in (None, "thread"):
                raise _checks.refuse(field, f"is not for runs on Ray: {instead}")

    def _check_program(self) -> None:
        for field in ("argv", "env", "pass_env"):
            if len(getattr(self, field)) > ENTRIES_MAX:
                raise _checks.refuse(field, f"may have at most {ENTRIES_MAX:,} items")
        texts = {"argv": self.argv, "env": (*self.env, *self.env.values()), "pass_env": self.pass_env}
        for field, values in (*texts.items(), ("cwd", () if self.cwd is None else (self.cwd,))):
            for value in values:
                if value:
                    _checks.text(field, value, ARGUMENT_CHARS_MAX)
                if "\0" in value:
                    raise _checks.refuse(field, "must not contain a NUL character")
        for name in self.env:
            if not name or "=" in name:
                raise _checks.refuse("env", f"has the invalid name {name!r}")
        if self.function is not None:
            _checks.text("function", self.function, NOTE_CHARS_MAX)

    def _check_limits(self) -> None:
        limits, restart = self.limits, self.restart
        for field in ("wall_s", "cpu_s"):
            if (value := getattr(limits, field)) is not None:
                _checks.number(f"limits.{field}", value, 0, SECONDS_MAX)
        for field in ("memory_bytes", "processes", "open_files", "log_bytes", "tokens"):
            if (value := getattr(limits, field)) is not None:
                _checks.whole(f"limits.{field}", value, 0, INTEGER_MAX)
        _checks.whole("restart.quarantine_after", restart.quarantine_after, 0)
        _checks.duration("restart.quarantine_s", restart.quarantine_s)

    def _check_entry_defaults(self) -> None:
        _checks.amounts("expected", self.expected)
        _checks.amounts("ceiling", self.ceiling)
        _checks.texts("draws_on", self.draws_on)
        if (self.concurrency_key is None) != (self.concurrency_limit is None):
            raise _checks.refuse("concurrency_limit", "and concurrency_key must be given together")
        if self.concurrency_key is not None:
            fields_of_key(_checks.text("concurrency_key", self.concurrency_key, ID_CHARS_MAX))
            _checks.whole("concurrency_limit", self.concurrency_limit, 1)
        for field in ("kind", "affinity", "workspace"):
            _checks.optional_text(field, getattr(self, field), ID_CHARS_MAX)
        _checks.whole("max_attempts", self.max_attempts, 1, ATTEMPTS_MAX)
        _checks.texts("non_retryable", self.non_retryable)
        if self.non_retryable and self.executes != "callable":
            raise _checks.refuse("non_retryable", "is only for functions: a program has an exit code, not an error")


def fields_of_key(template: str) -> list[str]:
    """Return the fields of the payload that a concurrency key names; raises FleetInvalid if it is no such template."""
    try:
        parts = list(Formatter().parse(template))
    except ValueError as problem:
        raise _checks.refuse("concurrency_key", f"is no template: {problem}") from problem
    fields = [field for _, field, _, _ in parts if field is not None]
    if any(not field.isidentifier() or form or conversion for _, field, form, conversion in parts if field is not None):
        raise _checks.refuse(
            "concurrency_key", f"must name fields of the payload, like repo:{{repo}}, not {template!r}"
        )
    return fields


def read_settings(metadata: Mapping[str, Any]) -> AgentSettings | None:
    """Return the settings in an agent's metadata, None without any; FleetInvalid, with the field, if invalid."""
    stored = metadata.get(SETTINGS_KEY)
    if stored is None:
        return None
    try:
        return convert(stored, AgentSettings, strict=True)
    except (msgspec.ValidationError, RecursionError) as refusal:
        if isinstance(refusal.__cause__, FleetInvalid):
            raise refusal.__cause__ from None
        problem = first_problem(AgentSettings, stored) if isinstance(refusal, msgspec.ValidationError) else None
        raise FleetInvalid(
            f"AgentSettings.{problem}" if problem else f"AgentSettings: {refusal}",
            field=problem.path if problem is not None else SETTINGS_KEY,
        ) from refusal


def check_settings(metadata: Mapping[str, Any]) -> None:
    """Raise FleetInvalid if an agent's metadata has settings that a supervisor could not read."""
    settings = read_settings(metadata) if SETTINGS_KEY in metadata else None
    for name, value in settings.env.items() if settings is not None else ():
        if value == HIDDEN:  # metadata that was read where values are hidden, and written back
            raise _checks.refuse("env", f"has {HIDDEN} as the value of {name}: give its real value")
