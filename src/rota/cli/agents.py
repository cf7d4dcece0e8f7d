"""`rota agents`: list, create, change and terminate agents."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from rota.cli.options import STORE, AsJson, Store, complete_agent
from rota.cli.registers import register_group, run_command

__all__ = ["agents"]

agents = typer.Typer(
    help="List, create, change and terminate agents.", invoke_without_command=True, cls=register_group("agents")
)

ExitKind = Literal["completed", "cancelled", "failed", "crashed"]


@agents.callback()
def main(context: typer.Context, store: Store = STORE, as_json: AsJson = False) -> None:
    """List, create, change and terminate agents. Without a command: list."""
    if context.invoked_subcommand is None:
        run_command("agents list", store=store, as_json=as_json)


@agents.command()
def end(
    agent: Annotated[str, typer.Argument(help="The agent, by pid or name.", autocompletion=complete_agent)],
    exit_kind: Annotated[ExitKind, typer.Option("--exit-kind", help="Its exit kind.")] = "completed",
    keep: Annotated[bool, typer.Option("--keep", help="Keep its queued entries.")] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Terminate an agent and cancel its queued entries."""
    from rota.cli.arguments import pid_of
    from rota.cli.connection import open_api
    from rota.cli.results import print_result
    from rota.model import Agent

    with open_api(store) as api:
        ended = api.terminate(pid_of(api, agent), exit_kind, queued="keep" if keep else "cancel")
    print_result(ended, Agent, as_json=as_json)
