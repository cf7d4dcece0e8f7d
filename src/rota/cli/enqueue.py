"""`rota enqueue`: ask for a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from rota.cli.options import STORE, AsJson, Store

__all__ = ["enqueue"]

Many = list[str] | None


def enqueue(
    agent: Annotated[str, typer.Argument(help="The agent, by pid or by name.")],
    *,
    payload: Annotated[str, typer.Option("--payload", "-p", help="A JSON object for the run.")] = "{}",
    priority: Annotated[
        int | None, typer.Option("--priority", help="Higher is sooner; if nothing is said, the agent's own.")
    ] = None,
    delay: Annotated[str | None, typer.Option("--in", help="Not before so long from now: 90s, 5m, 2h, 1d.")] = None,
    at: Annotated[str | None, typer.Option("--at", help="Not before this date and time, or epoch seconds.")] = None,
    within: Annotated[str | None, typer.Option("--within", help="Drop it if it has not begun by then: 5m.")] = None,
    after: Annotated[list[int] | None, typer.Option("--after", help="Wait for this entry; repeatable.")] = None,
    on_failed: Annotated[
        Literal["cancel", "run", "hold"], typer.Option("--on-failed", help="What to do if one of those fails.")
    ] = "cancel",
    key: Annotated[str | None, typer.Option("--key", help="The same key makes one entry.")] = None,
    tag: Annotated[Many, typer.Option("--tag", help="A label; repeatable.")] = None,
    trigger: Annotated[str, typer.Option("--trigger", help="What asked for it.")] = "manual",
    kind: Annotated[str | None, typer.Option("--kind", help="The kind of slot it needs.")] = None,
    affinity: Annotated[str | None, typer.Option("--affinity", help="The worker it would rather have.")] = None,
    expect: Annotated[Many, typer.Option("--expect", help="What it will use: tokens=500; repeatable.")] = None,
    ceiling: Annotated[Many, typer.Option("--ceiling", help="What it may use at most; repeatable.")] = None,
    draws_on: Annotated[Many, typer.Option("--draws-on", help="A shared limit by name; repeatable.")] = None,
    workspace: Annotated[str | None, typer.Option("--workspace", help="The workspace it wants.")] = None,
    workspace_mode: Annotated[
        Literal["exclusive", "shared"] | None, typer.Option("--workspace-mode", help="It needs a workspace, so.")
    ] = None,
    max_attempts: Annotated[int | None, typer.Option("--max-attempts", help="How often it may be tried.")] = None,
    wait: Annotated[str | None, typer.Option("--wait", help="Wait so long for its end, and print its result.")] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Ask for one run of an agent; the entry's number is printed. What is not said is as the agent's plan has it."""
    from rota.cli import typed
    from rota.cli.connection import open_desk
    from rota.cli.output import now
    from rota.errors import InvalidInput
    from rota.fleet.agent_settings import plan_of, spec_for

    if delay is not None and at is not None:
        raise InvalidInput("--in and --at say the same thing", field="at", hint="Say one of them.")
    runnable_at = 0.0 if at is None else typed.instant(at, "at")
    if delay is not None:
        runnable_at = now() + typed.seconds(delay, "in")
    deadline = None if within is None else max(now(), runnable_at) + typed.seconds(within, "within")
    wait_s = None if wait is None else typed.seconds(wait, "wait")
    said: dict[str, Any] = {
        "priority": priority,
        "deadline": deadline,
        "key": key,
        "kind": kind,
        "affinity": affinity,
        "workspace": workspace,
        "workspace_mode": workspace_mode,
        "max_attempts": max_attempts,
        "expected": typed.amounts(expect, "expect") if expect else None,
        "ceiling": typed.amounts(ceiling, "ceiling") if ceiling else None,
        "draws_on": tuple(draws_on) if draws_on else None,
        "runnable_at": runnable_at,
        "trigger": trigger,
        "tags": tuple(tag or ()),
        "after": tuple(after or ()),
        "on_failed": on_failed,
    }
    given = {field: value for field, value in said.items() if value is not None}
    with open_desk(store) as desk:
        who = typed.agent_of(desk, agent)
        spec = spec_for(who, plan_of(who), typed.json_object(payload, "payload"), **given)
        sched_id = desk.queue.enqueue(spec)
        _tell(desk, sched_id, wait_s, as_json=as_json)


def _tell(desk: Any, sched_id: int, wait_s: float | None, *, as_json: bool) -> None:
    from rota.cli.output import print_json

    if wait_s is None:
        print_json({"sched_id": sched_id}) if as_json else typer.echo(sched_id)
        return
    if not as_json:
        typer.echo(f"entry {sched_id}", err=True)
    entry = desk.queue.wait(sched_id, wait_s)
    print_json(entry if as_json else entry.result)
    if entry.exit_kind != "completed":
        raise typer.Exit(1)
