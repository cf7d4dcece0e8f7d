"""`rota why`: why an entry is not running, or why many are not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rota.cli.options import STORE, AsJson, Store, complete_agent, complete_entry, complete_project

if TYPE_CHECKING:
    from rich.console import Console

    from rota.cli.embedded_api import EmbeddedApi
    from rota.model import Explanation, ExplanationSummary
    from rota.rpc import Client

__all__ = ["why"]

ANY_WORKER = "any-worker"  # the worker whose claim `rota why` tries by default

_MARKS = {True: "[green]●[/]", False: "[red]●[/]"}


def why(
    sched_id: Annotated[
        int | None,
        typer.Argument(help="The entry id. Without one: why all of them wait.", autocompletion=complete_entry),
    ] = None,
    *,
    agent: Annotated[
        str | None, typer.Option("--agent", help="All of this agent, by pid or name.", autocompletion=complete_agent)
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", help="All of this project.", autocompletion=complete_project)
    ] = None,
    worker: Annotated[str, typer.Option("--worker", help="The worker whose claim is tried.")] = ANY_WORKER,
    max_n: Annotated[int, typer.Option("--max-n", min=1, help="How many entries the claim asks for.")] = 1,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", help="A kind of slot the worker has; repeatable. Default: the entry's."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="The policy to try. Default: the policy in force.")
    ] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Explain why an entry is not running, or why many are not.

    Shows every blocking reason, the entries ahead, whether a worker is there, an estimated start, and the commands that
    would start it. Without an entry: how many wait, and their reasons counted. Changes nothing.
    """
    from rota.cli.connection import open_api
    from rota.cli.output import console, print_json

    with open_api(store) as api:
        if sched_id is None:
            summary = _summary_of(api, agent, project)
            print_json(summary) if as_json else _print_summary(console(), summary, agent or project)
            return
        _refuse_filters(agent, project)
        kinds = tuple(kind) if kind else _kind_of(api, sched_id)
        found = api.explain(sched_id, worker_id=worker, max_n=max_n, kinds=kinds, policy=policy)
        commands = _commands(api, found, store)
    if as_json:
        print_json(_with_commands(found, commands))
    else:
        _print_explanation(console(), found, commands)


def _refuse_filters(agent: str | None, project: str | None) -> None:
    from rota.errors import InvalidInput

    if agent is not None or project is not None:
        hint = "Give an entry id, or --agent or --project."
        raise InvalidInput("an entry id excludes --agent and --project", field="sched_id", hint=hint)


def _kind_of(api: EmbeddedApi | Client, sched_id: int) -> tuple[str, ...]:
    kind = api.queue.get(sched_id).kind
    return () if kind is None else (kind,)


# --- commands ------------------------------------------------------------------------------------


def _commands(api: EmbeddedApi | Client, found: Explanation, store: str) -> list[str | None]:
    """Return the command of each suggested change."""
    from rota.cli.suggested_commands import command_of

    named = [each.pid for each in api.agents.find(found.agent)] if found.changes and found.agent else []
    agent = found.agent if named == [found.pid] and not found.agent.isdecimal() else str(found.pid)
    return [command_of(change, agent=agent, store=store) for change in found.changes]


def _with_commands(found: Explanation, commands: list[str | None]) -> dict[str, Any]:
    import msgspec

    shown: dict[str, Any] = msgspec.to_builtins(found)
    for change, command in zip(shown["changes"], commands, strict=True):
        change["command"] = command
    return shown


# --- one entry -----------------------------------------------------------------------------------


def _print_explanation(console: Console, found: Explanation, commands: list[str | None]) -> None:
    from rota.cli.output import cell

    state, agent = cell(found.status), cell(found.agent or f"agent {found.pid}")
    console.print(f"{_MARKS[found.starts]} entry {found.sched_id} of {agent} (pid {found.pid}) is [bold]{state}[/]")
    if found.graph is not None:
        console.print(f"  graph: {found.graph.sentence()}", markup=False, soft_wrap=True)
    _print_reasons(console, found)
    _print_outlook(console, found)
    _print_changes(console, found, commands)
    _print_history(console, found)
    claim = f"a claim of {found.max_n} by {found.worker_id}, with policy {found.policy} ({found.policy_source})"
    console.print(f"\nas of event {found.cursor}, for {claim}", style="dim", markup=False)


def _print_reasons(console: Console, found: Explanation) -> None:
    from rota.cli.output import when

    for heading, reasons in (("blocked by", found.blocking), ("eligible, but", found.ordering)):
        if reasons and found.state == "queued":
            console.print(f"\n[bold]{heading}[/]")
            for reason in reasons:
                _print_reason(console, found, reason)
    if found.state == "dispatched":
        for reason in found.blocking[1:]:  # the first says that it runs
            _print_reason(console, found, reason)
    for each in found.ahead:
        agent, score = each.agent or f"agent {each.pid}", _named(each.score, each.pid, each.agent)
        console.print(f"    {each.sched_id} of {agent} (pid {each.pid}): {score}", style="dim", markup=False)
    if found.claim_expired_at is not None:
        expired = f"its claim expired {when(found.claim_expired_at, found.now)}, and the next claim takes it back"
        console.print(f"  {expired}: its worker is stopped, cut off, or dead", markup=False, soft_wrap=True)
    if found.workers is not None:
        words = f"eligible, but {found.workers.sentence()}" if found.starts else f"and {found.workers.sentence()}"
        console.print(f"  {words}", markup=False, soft_wrap=True)
    elif found.starts:
        console.print(f"  eligible: the next claim takes it ({found.policy})", markup=False)


def _print_reason(console: Console, found: Explanation, reason: Any) -> None:
    code = type(reason).__struct_config__.tag
    sentence = _named(reason.sentence(), found.pid, found.agent)
    console.print(f"  {code}: {sentence}{_instants(reason, found.now)}", markup=False)


def _named(text: str, pid: int, name: str) -> str:
    """Return a sentence that names the agent, where it has its pid."""
    from rota.model import name_agent

    return name_agent(text, pid, name)


def _instants(reason: object, now_at: float) -> str:
    """The instants of a reason, relative to now."""
    from rota.cli.output import when

    fields = (field for field in reason.__struct_fields__ if field.endswith("_at") or field == "deadline")  # type: ignore[attr-defined]  # it is a Struct
    shown = [when(at, now_at) for field in fields if (at := getattr(reason, field))]
    return f" ({', '.join(shown)})" if shown else ""


def _print_outlook(console: Console, found: Explanation) -> None:
    from rota.cli.output import cell, when

    if found.state == "queued" and not found.starts:
        starts = "unknown" if found.start.starts_at is None else when(found.start.starts_at, found.now)
        basis = _named(found.start.basis, found.pid, found.agent)
        place = "" if found.position is None else f", position {found.position:,}"
        console.print(f"\n[bold]start[/]: {starts}{place} [dim]({cell(basis)})[/]")


def _print_changes(console: Console, found: Explanation, commands: list[str | None]) -> None:
    from rota.cli.output import when

    if found.changes:
        console.print("\n[bold]what would start it[/]")
    for change, command in zip(found.changes, commands, strict=True):
        until = f", or wait: {when(change.until_at, found.now)}" if change.until_at else ""
        words = change.words if command is not None or change.verb is None else "wait for its turn"
        console.print(f"  {_named(words, found.pid, found.agent)}{until}", markup=False)
        if command is not None:
            console.print(f"    {command}", style="bold", markup=False, soft_wrap=True)


def _print_history(console: Console, found: Explanation) -> None:
    from rota.cli.output import when

    console.print(f"\n[bold]history[/]{'' if found.story_is_whole else ' [dim](incomplete)[/]'}")
    for step in found.story:
        by = f"  by {step.author}" if step.author else ""
        console.print(f"  {when(step.at, found.now):>12}  {step.words}{by}", markup=False)


# --- many entries --------------------------------------------------------------------------------


def _summary_of(api: EmbeddedApi | Client, agent: str | None, project: str | None) -> ExplanationSummary:
    from rota.cli.arguments import agent_of
    from rota.errors import InvalidInput, ProjectInvalid

    if agent is None:
        try:
            return api.explain_many(project_id=project)
        except ProjectInvalid as problem:
            if project is not None:
                raise
            hint = "Name one of them: rota why --project NAME."
            raise InvalidInput("the access token is bound to projects", field="project", hint=hint) from problem
    found = agent_of(api, agent)
    # the agent's own project, because a caller that is bound to projects has to name one
    return api.explain_many(pid=found.pid, project_id=project or found.project_id)


def _print_summary(console: Console, found: ExplanationSummary, whose: str | None) -> None:
    from rota.cli.output import cell, print_table

    of = "" if whose is None else f"{cell(whose)}: "
    console.print(f"{of}{found.waiting:,} waiting, {found.ready:,} ready, {found.running:,} running")
    rows = [
        (each.count, _code(each.reason), _sentence(each), f"{each.sched_id} of {each.agent or each.pid}")
        for each in found.reasons
    ]
    if rows:
        console.print()
        print_table(("entries", "reason", "for example", "entry"), rows, empty="")
        console.print("\n`rota why ENTRY` explains one of them", style="dim", markup=False)
    if not found.is_whole:
        queued = found.waiting + found.ready
        console.print(f"only the first {found.examined:,} of {queued:,} queued entries were examined", style="dim")


def _code(reason: Any) -> str:
    return "eligible" if reason is None else str(type(reason).__struct_config__.tag)


def _sentence(counted: Any) -> str:
    if counted.reason is None:
        return "nothing blocks it: a worker claims it in its turn"
    return _named(counted.reason.sentence(), counted.pid, counted.agent)
