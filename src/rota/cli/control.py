"""Commands that enqueue and pause work: enqueue, pause, resume."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

import typer

from rota.cli.options import STORE, AsJson, By, Store, complete_agent
from rota.cli.terminal_text import say

__all__ = ["enqueue", "pause", "resume"]

Many = list[str] | None
Level = Annotated[
    Literal["fleet", "agent", "project"], typer.Argument(help="What to pause: all, an agent or a project.")
]
Target = Annotated[str | None, typer.Argument(help="The agent's pid or name, or the project id.")]


def enqueue(
    agent: Annotated[str, typer.Argument(help="The agent, by pid or name.", autocompletion=complete_agent)],
    *,
    payload: Annotated[str, typer.Option("--payload", "-p", help="A JSON object for the run.")] = "{}",
    priority: Annotated[
        int | None, typer.Option("--priority", help="Higher runs sooner. Default: the agent's priority.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--in", help="Start no earlier than this from now: 90s, 5m, 2h, 1d.")
    ] = None,
    at: Annotated[str | None, typer.Option("--at", help="Start no earlier than this date and time.")] = None,
    within: Annotated[str | None, typer.Option("--within", help="Drop it if it has not started by then: 5m.")] = None,
    after: Annotated[list[int] | None, typer.Option("--after", help="Wait for this entry; repeatable.")] = None,
    on_failed: Annotated[
        Literal["cancel", "run", "hold"], typer.Option("--on-failed", help="What to do if an --after entry fails.")
    ] = "cancel",
    key: Annotated[str | None, typer.Option("--key", help="Idempotency key: one entry per key.")] = None,
    tag: Annotated[Many, typer.Option("--tag", help="A label; repeatable.")] = None,
    trigger: Annotated[str, typer.Option("--trigger", help="What caused the entry.")] = "manual",
    kind: Annotated[str | None, typer.Option("--kind", help="The kind of slot it needs.")] = None,
    affinity: Annotated[str | None, typer.Option("--affinity", help="The preferred worker.")] = None,
    expect: Annotated[Many, typer.Option("--expect", help="Expected usage: tokens=500; repeatable.")] = None,
    ceiling: Annotated[Many, typer.Option("--ceiling", help="Maximum usage: tokens=900; repeatable.")] = None,
    draws_on: Annotated[Many, typer.Option("--draws-on", help="A shared limit by name; repeatable.")] = None,
    workspace: Annotated[str | None, typer.Option("--workspace", help="The workspace to use.")] = None,
    workspace_mode: Annotated[
        Literal["exclusive", "shared"] | None,
        typer.Option("--workspace-mode", help="Require a workspace, in this mode."),
    ] = None,
    max_attempts: Annotated[int | None, typer.Option("--max-attempts", help="Maximum number of attempts.")] = None,
    wait: Annotated[str | None, typer.Option("--wait", help="Wait up to this long, then print the result.")] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Enqueue one run of an agent and print its entry id.

    Defaults come from the agent's settings.
    """
    from rota.cli import arguments
    from rota.cli.connection import open_api
    from rota.cli.output import now
    from rota.errors import InvalidInput
    from rota.fleet import settings_of, spec_for
    from rota.model import caller_trace

    if delay is not None and at is not None:
        raise InvalidInput("--in and --at exclude each other", field="at", hint="Give one of them.")
    runnable_at = 0.0 if at is None else arguments.instant(at, "at")
    delay_s = 0.0 if delay is None else arguments.seconds(delay, "in")
    deadline = None if within is None else max(now() + delay_s, runnable_at) + arguments.seconds(within, "within")
    wait_s = None if wait is None else arguments.seconds(wait, "wait")
    options: dict[str, Any] = {
        "priority": priority,
        "deadline": deadline,
        "key": key,
        "kind": kind,
        "affinity": affinity,
        "workspace": workspace,
        "workspace_mode": workspace_mode,
        "max_attempts": max_attempts,
        "expected": arguments.amounts(expect, "expect") if expect else None,
        "ceiling": arguments.amounts(ceiling, "ceiling") if ceiling else None,
        "draws_on": tuple(draws_on) if draws_on else None,
        "runnable_at": runnable_at,
        "delay_s": delay_s,
        "trigger": trigger,
        "tags": tuple(tag or ()),
        "after": tuple(after or ()),
        "on_failed": on_failed,
        **caller_trace(os.environ),
    }
    given = {field: value for field, value in options.items() if value is not None}
    with open_api(store) as api:
        found = arguments.agent_of(api, agent)
        spec = spec_for(found, settings_of(found), arguments.json_object(payload, "payload"), **given)
        sched_id = api.queue.enqueue(spec)
        _print_enqueued(api, sched_id, wait_s, as_json=as_json)


def _print_enqueued(api: Any, sched_id: int, wait_s: float | None, *, as_json: bool) -> None:
    from rota.cli.outages import wait_for_end
    from rota.cli.output import print_json

    if wait_s is None:
        print_json({"sched_id": sched_id}) if as_json else say(sched_id)
        return
    if not as_json:
        say(f"entry {sched_id}", err=True)
    entry = wait_for_end(api, sched_id, wait_s)
    print_json(entry if as_json else entry.result)
    if entry.status != "succeeded":
        if not as_json:
            say(f"{entry.status}; what happened: rota show {sched_id}", err=True)
        raise typer.Exit(1)


def pause(
    level: Level,
    target: Target = None,
    *,
    reason: Annotated[str | None, typer.Option("--reason", help="The reason, for the journal.")] = None,
    by: By = "operator",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Start no more runs of an agent, a project or the fleet.

    Runs in progress continue.
    """
    from rota.cli.arguments import pid_of
    from rota.cli.connection import open_api

    key = _pause_key("pause", level, target)
    with open_api(store) as api:
        if level == "fleet":
            api.projects.pause_fleet(by, reason)
        elif level == "agent":
            key = str(pid_of(api, key))
            api.agents.pause(int(key), by, reason)
        else:
            api.projects.move(key, "pause", by=by)
    _print_paused(level, key, "paused", as_json=as_json)


def resume(
    level: Level,
    target: Target = None,
    by: By = "operator",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Lift the pause of an agent, a project or the fleet."""
    from rota.cli.arguments import pid_of
    from rota.cli.connection import open_api

    key = _pause_key("resume", level, target)
    with open_api(store) as api:
        if level == "fleet":
            api.projects.resume_fleet(by)
        elif level == "agent":
            key = str(pid_of(api, key))
            api.agents.resume(int(key), by)
        else:
            api.projects.move(key, "resume", by=by)
    _print_paused(level, key, "resumed", as_json=as_json)


def _pause_key(verb: str, level: str, target: str | None) -> str:
    from rota.errors import InvalidInput

    if (level == "fleet") != (target is None):
        text = "the fleet takes no further argument" if level == "fleet" else f"{level} needs an id"
        example = f"rota {verb} {level}{'' if level == 'fleet' else ' ID'}"
        raise InvalidInput(text, field="whose", hint=f"For example: {example}.")
    return target or "*"


def _print_paused(level: str, key: str, done: str, *, as_json: bool) -> None:
    from rota.cli.output import print_json

    if as_json:
        print_json({"level": level, "key": key, "done": done})
    else:
        say(f"{done}: {level}{'' if level == 'fleet' else f' {key}'}")
