"""The table of a hook in a fleet file, and the agent that the hook is.

    [hooks.pager]
    on = ["failed", "quarantined", "budget_alert", "deploy.finished"]
    post = "https://alerts.example.com/rota"
    headers = {authorization = "Bearer ${PAGER_TOKEN}"}

A hook is an agent named `hook:pager`, of no project, whose entries are its deliveries (hook_rules.py).
"""

from __future__ import annotations

import shlex
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from rota.fleet.agent_settings import AgentSettings
from rota.fleet.config.agent_tables import Argv, Name, Text
from rota.fleet.config.units import Seconds, default_seconds
from rota.fleet.hook_rules import HOOK_KIND, HOOK_PREFIX, TEST
from rota.fleet.runners.hook import HEADER_PREFIX, URL
from rota.model.agent_settings import SecretText
from rota.model.work import ATTEMPTS_MAX, WEIGHT_UNIT, Backoff, Intent, Limits, RestartPolicy, Trigger

__all__ = ["HOOK_KEY", "ON_MAX", "HookAgent", "HookTable"]

HOOK_KEY = "hook"  # in the metadata of a hook's agent: what it listens to
ON_MAX = 32  # names and kinds of one hook
ATTEMPTS = 8  # the default: with the back-off below, some four minutes
BACKOFF = Backoff(base_s=2.0, factor=2.0, cap_s=300.0)


class HookTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A hook: a program or an address that is told when something happens."""

    on: Annotated[
        tuple[Text, ...],
        Meta(
            description="What to tell: `failed`, `quarantined`, `budget_alert`, `drained`, `worker_lost`, or a kind of "
            "event (`deploy.finished`, `deploy.*`).",
            min_length=1,
            max_length=ON_MAX,
        ),
    ]
    post: Annotated[
        SecretText | None,
        Meta(
            description="An address that gets the event as JSON in a POST. `${NAME}` is replaced by a variable of the "
            "supervisor when it is sent. Readers are not shown it."
        ),
    ] = None
    headers: Annotated[
        dict[str, SecretText],
        Meta(description="`post`: further headers, with `${NAME}` as above.", max_length=32),
    ] = {}
    command: Annotated[
        Argv | None, Meta(description="A program that gets the event as JSON on stdin and in ROTA_EVENT.")
    ] = None
    env: Annotated[
        dict[str, SecretText], Meta(description="`command`: environment variables to set.", max_length=256)
    ] = {}
    pass_env: Annotated[
        tuple[str, ...],
        Meta(description="`command`: names (or `PREFIX_*`) of the supervisor's variables to pass on.", max_length=256),
    ] = ()
    project: Annotated[Name | None, Meta(description="Only what concerns this project. Default: all.")] = None
    agent: Annotated[Name | None, Meta(description="Only what concerns agents of this name. Default: all.")] = None
    timeout_s: Annotated[Seconds, Meta(description="Maximum time of one attempt.")] = default_seconds(30)
    max_attempts: Annotated[
        int, Meta(description="Attempts of one delivery, with a growing pause between them.", ge=1, le=ATTEMPTS_MAX)
    ] = ATTEMPTS

    def __post_init__(self) -> None:
        if (self.post is None) == (self.command is None):
            found = "none of them" if self.post is None else "both"
            raise ValueError(f"expected exactly one of post, command, found {found}")
        if self.post is not None and (self.env or self.pass_env):
            raise ValueError("env and pass_env are only valid with command; post has headers")
        if self.command is not None and self.headers:
            raise ValueError("headers is only valid with post")

    @property
    def argv(self) -> tuple[str, ...]:
        """The program and its arguments."""
        return tuple(shlex.split(self.command)) if isinstance(self.command, str) else self.command or ()


class _HookTrigger(msgspec.Struct, frozen=True):
    trigger: Trigger


class HookAgent(msgspec.Struct, frozen=True):
    """The agent of a hook, in the form in which agents of a file are applied and triggered."""

    hook: str
    table: HookTable
    project: ClassVar[None] = None  # the deliveries count in no project's share
    priority: ClassVar[int] = 0
    weight_units: ClassVar[int] = WEIGHT_UNIT
    intent: ClassVar[Intent] = Intent.NEUTRAL
    max_concurrent: ClassVar[None] = None
    budget: ClassVar[dict[str, int]] = {}

    @property
    def name(self) -> str:
        """The agent's name."""
        return f"{HOOK_PREFIX}{self.hook}"

    @property
    def metadata(self) -> dict[str, Any]:
        """What `rota hooks` shows."""
        return {HOOK_KEY: {"on": list(self.table.on), "project": self.table.project, "agent": self.table.agent}}

    @property
    def triggers(self) -> tuple[_HookTrigger, ...]:
        """A trigger for each name or kind; the first is for `rota hooks test`."""
        given: dict[str, Any] = {"only_project": self.table.project, "only_agent": self.table.agent}
        listened = (Trigger(kind="hook", event=each, **given) for each in self.table.on)
        return tuple(_HookTrigger(each) for each in (Trigger(kind="hook", event=TEST), *listened))

    def settings(self, folder: str) -> AgentSettings:
        """Return the settings that are stored with the agent."""
        table = self.table
        headers = {f"{HEADER_PREFIX}{name.lower()}": text for name, text in table.headers.items()}
        how: dict[str, Any] = (
            {"runner": "command", "argv": table.argv, "env": table.env, "pass_env": table.pass_env, "cwd": folder}
            if table.post is None
            else {"runner": "hook", "env": {URL: table.post, **headers}}
        )
        return AgentSettings(
            **how,
            kind=HOOK_KIND,
            limits=Limits(wall_s=float(table.timeout_s)),
            restart=RestartPolicy(when="on_failure", backoff=BACKOFF, quarantine_after=0),
            max_attempts=table.max_attempts,
            stop_grace_s=1.0,
        )
