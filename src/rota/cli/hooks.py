"""`rota hooks`: which programs and addresses are told when something happens, and how the deliveries went."""

from __future__ import annotations

from typing import Annotated

import typer

from rota.cli.options import STORE, AsJson, Store

__all__ = ["hooks"]

hooks = typer.Typer(help="Programs and addresses that are told when something happens.", invoke_without_command=True)


@hooks.callback()
def main(context: typer.Context, store: Store = STORE, as_json: AsJson = False) -> None:
    """Programs and addresses that are told when something happens. Without a command: list."""
    if context.invoked_subcommand is None:
        _list(store, as_json=as_json)


@hooks.command("list")
def list_(store: Store = STORE, as_json: AsJson = False) -> None:
    """List the hooks and how their newest deliveries went."""
    _list(store, as_json=as_json)


def _list(store: str, *, as_json: bool) -> None:
    from rota.cli.connection import open_api
    from rota.cli.output import now, print_json, print_table, when
    from rota.fleet import list_hooks

    with open_api(store) as api:
        found = list_hooks(api)
    if as_json:
        print_json({"hooks": found})
        return
    at = now()
    rows = [
        (
            each.name,
            each.on,
            each.to,
            each.project or each.agent,
            each.waiting,
            each.failed,
            each.dropped,
            when(each.delivered_at, at),
            each.error,
        )
        for each in found
    ]
    columns = ("hook", "on", "to", "only", "waiting", "failed", "dropped", "delivered", "last error")
    print_table(
        columns, rows, empty="no hooks: a fleet file has them, as [hooks.NAME]", optional=("only", "last error")
    )


@hooks.command("test")
def send_test(
    name: Annotated[str, typer.Argument(help="The hook's name.")],
    *,
    wait: Annotated[str, typer.Option("--wait", help="How long to wait for the delivery: 30s, 5m.")] = "30s",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Send a test event through a hook and wait for the delivery; exit with 1 if it fails.

    A running fleet sends it, as any other event.
    """
    from rota.cli.arguments import seconds
    from rota.cli.connection import open_api
    from rota.cli.output import print_json
    from rota.cli.terminal_text import say
    from rota.fleet import deliver_test

    with open_api(store) as api:
        entry = deliver_test(api, name, seconds(wait, "wait"))
    if as_json:
        print_json({"hook": name, "sched_id": entry.sched_id, "exit_kind": entry.exit_kind, "result": entry.result})
    elif entry.exit_kind == "completed":
        say(f"hook {name}: delivered in attempt {entry.attempt} (entry {entry.sched_id})")
    else:
        say(f"hook {name}: not delivered: {_error(entry.result)} (entry {entry.sched_id})")
    if entry.exit_kind != "completed":
        raise typer.Exit(1)


def _error(result: object) -> str:
    return str(result["error"]) if isinstance(result, dict) and "error" in result else "no reason was given"
