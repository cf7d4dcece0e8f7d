"""The command line. Commands import what they need when they run, so that `rota --help` is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from rota.cli.acquire import acquire, settle
from rota.cli.agents import agents
from rota.cli.control import cancel, enqueue, pause, release, resume, retry
from rota.cli.cpu import cpu
from rota.cli.db import db
from rota.cli.doctor import doctor
from rota.cli.entry_lists import ps, queue
from rota.cli.events import events
from rota.cli.exit_codes import INTERRUPTED, code_of
from rota.cli.graph import graph_app
from rota.cli.ledger import ledger
from rota.cli.limits import limits
from rota.cli.logs import logs
from rota.cli.options import AsJson, CaFile, TokenFile, access
from rota.cli.own_run import charge, checkpoint, complete, emit, heartbeat
from rota.cli.policy import policy as policy_group
from rota.cli.projects import projects
from rota.cli.serve import serve
from rota.cli.terminal_text import harmless, say
from rota.cli.tokens import token
from rota.cli.top import top
from rota.cli.why import why
from rota.errors import RotaError

__all__ = ["app", "main"]

app = typer.Typer(
    name="rota",
    help="Who runs next, on whose budget, and by when.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich alone would take longer to load than everything else together
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


@app.callback()
def set_access(token_file: TokenFile = None, ca_file: CaFile = None) -> None:
    """Store the options before the command: how to authenticate with a daemon."""
    access.token_file, access.ca_file = token_file, ca_file


@app.command()
def run(
    fleet: Annotated[Path | None, typer.Argument(help="The fleet file. Default: fleet.toml.")] = None,
    *,
    plan: Annotated[bool, typer.Option("--plan", help="Print expected shares and budgets; run nothing.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a fleet file.")] = False,
    slots: Annotated[int | None, typer.Option(help="Number of slots. Default: from the file.", min=1)] = None,
    worker_id: Annotated[
        str | None, typer.Option(help="The worker's name; a restart under it recovers its entries.")
    ] = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Exit when nothing is left to wait for; 1 if anything failed.")
    ] = False,
    horizon: Annotated[
        str | None,
        typer.Option("--horizon", help="With --until-idle: wait for entries due within 90s, 5m. Default: 60s."),
    ] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Print log lines instead of the live view.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run the agents of a fleet file."""
    if schema:
        from rota.cli.fleet_plan import print_schema

        print_schema()
    elif plan:
        from rota.cli.fleet_plan import print_plan
        from rota.cli.run import find_fleet_file

        print_plan(find_fleet_file(fleet), as_json=as_json)
    else:
        from rota.cli.run import print_summary
        from rota.cli.run import run as supervise

        summary = supervise(
            fleet, until_idle=until_idle, horizon=horizon, plain=plain, slots=slots, worker_id=worker_id
        )
        print_summary(summary, as_json=as_json)
        if until_idle and not summary.ok:
            raise typer.Exit(1)


@app.command()
def reload(
    fleet: Annotated[Path | None, typer.Argument(help="The fleet file. Default: fleet.toml.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a running fleet read its file again.

    Runs in progress continue.
    """
    from rota.cli.run import reload as request_reload

    request_reload(fleet, as_json=as_json)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="How long to run, in seconds.")] = 50.0,
    policy: Annotated[str, typer.Option(help="The policy; see `rota policy list`.")] = "eevdf",
    as_json: AsJson = False,
) -> None:
    """Demonstrate shares, budgets and recovery. About a minute."""
    from rota.cli.demo import show

    if not show(seconds=seconds, policy=policy, as_json=as_json):
        raise typer.Exit(1)


COMMANDS: tuple[Callable[..., None], ...] = (
    enqueue,
    ps,
    top,
    queue,
    why,
    logs,
    cancel,
    retry,
    release,
    pause,
    resume,
    events,
    doctor,
    serve,
    charge,
    checkpoint,
    heartbeat,
    emit,
    complete,
    acquire,
    settle,
)
for command in COMMANDS:
    app.command()(command)
for group, name in (
    (agents, "agents"),
    (projects, "projects"),
    (ledger, "ledger"),
    (limits, "limits"),
    (policy_group, "policy"),
    (graph_app, "graph"),
    (cpu, "cpu"),
    (token, "token"),
    (db, "db"),
):
    app.add_typer(group, name=name)


@app.command()
def version(as_json: AsJson = False) -> None:
    """Print rota's version."""
    from importlib.metadata import version as installed

    say(f'{{"version":"{installed("rota")}"}}' if as_json else installed("rota"))


def main() -> None:
    """Run the `rota` command; a rota error is printed as one sentence, without a traceback."""
    try:
        app()
    except RotaError as error:
        _report(error)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _report(error: RotaError) -> NoReturn:
    """Print the error and exit with its code: a sentence, or JSON with --json."""
    if "--json" in sys.argv[1:]:
        import json

        body = {"code": error.code, "message": error.message, **error.to_rpc_data()}
        sys.stderr.write(json.dumps({"error": body}, default=str) + "\n")
    else:
        sys.stderr.write(f"rota: {harmless(str(error), lines=True)}\n")
    raise SystemExit(code_of(error)) from None
