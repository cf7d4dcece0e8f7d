"""The command line. Commands import what they need when they run, so that `rota --help` is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from rota.cli.agents import agents
from rota.cli.cancel import cancel
from rota.cli.cores import cpu
from rota.cli.db import db
from rota.cli.doctor import doctor
from rota.cli.enqueue import enqueue
from rota.cli.events import events
from rota.cli.exits import INTERRUPTED, code_of
from rota.cli.graph import graph_app
from rota.cli.ledger import ledger
from rota.cli.limits import limits
from rota.cli.logs import logs
from rota.cli.options import AsJson, CaFile, TokenFile, access
from rota.cli.pause import pause, resume
from rota.cli.projects import projects
from rota.cli.ps import ps
from rota.cli.queue import queue
from rota.cli.release import release
from rota.cli.retry import retry
from rota.cli.serving import serve, token
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
policy_app = typer.Typer(help="The policies that decide which entry goes next.", no_args_is_help=True)


@app.callback()
def get_in(token_file: TokenFile = None, ca_file: CaFile = None) -> None:
    """Take what is said before a command: how to get in at a daemon."""
    access.token_file, access.ca_file = token_file, ca_file


@app.command()
def run(
    fleet: Annotated[Path | None, typer.Argument(help="The fleet file; fleet.toml here if nothing is said.")] = None,
    *,
    plan: Annotated[
        bool, typer.Option("--plan", help="Say what would run and who would get what; write nothing.")
    ] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of a fleet file.")] = False,
    slots: Annotated[int | None, typer.Option(help="How many runs at once, whatever the file says.", min=1)] = None,
    worker_id: Annotated[str | None, typer.Option(help="Who claims; the same name again takes over at once.")] = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="End when there is nothing to do.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Log lines instead of the live view.")] = False,
    as_json: AsJson = False,
) -> None:
    """Run a fleet: keep its agents running on its slots, fairly, within budget."""
    if schema:
        from rota.cli.fleet_plan import print_schema

        print_schema()
    elif plan:
        from rota.cli.fleet_plan import show
        from rota.cli.run import found

        show(found(fleet), as_json=as_json)
    else:
        from rota.cli.run import run as supervise

        count = supervise(fleet, until_idle=until_idle, plain=plain, slots=slots, worker_id=worker_id)
        typer.echo(f'{{"ended":{count}}}' if as_json else f"{count} runs have ended", err=not as_json)


@app.command()
def reload(
    fleet: Annotated[Path | None, typer.Argument(help="The fleet file; fleet.toml here if nothing is said.")] = None,
    as_json: AsJson = False,
) -> None:
    """Let whoever runs a fleet read its file anew, without dropping what runs."""
    from rota.cli.run import reload as ask

    ask(fleet, as_json=as_json)


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(min=1.0, max=3600.0, help="How long the projects share.")] = 50.0,
    policy: Annotated[str, typer.Option(help="Who decides which entry goes next; see `rota policy list`.")] = "eevdf",
    as_json: AsJson = False,
) -> None:
    """Show rota's main job: three projects, a dozen agents, and everything going wrong that may. About a minute."""
    from rota.cli.demo import show

    if not show(seconds=seconds, policy=policy, as_json=as_json):
        raise typer.Exit(1)


@policy_app.command("list")
def policy_list(as_json: AsJson = False) -> None:
    """List the policies, what each does and what it promises about waiting."""
    from rota.cli.policies import show

    show(as_json=as_json)


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
)
for command in COMMANDS:
    app.command()(command)
for group, name in (
    (agents, "agents"),
    (projects, "projects"),
    (ledger, "ledger"),
    (limits, "limits"),
    (policy_app, "policy"),
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

    typer.echo(f'{{"version":"{installed("rota")}"}}' if as_json else installed("rota"))


def main() -> None:
    """The `rota` command: an error of ours is one sentence, never a traceback."""
    try:
        app()
    except RotaError as error:
        _report(error)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def _report(error: RotaError) -> NoReturn:
    """Say what went wrong and what to do: a sentence, or JSON where JSON was asked for."""
    if "--json" in sys.argv[1:]:
        import json

        body = {"code": error.code, "message": error.message, **error.to_rpc_data()}
        sys.stderr.write(json.dumps({"error": body}, default=str) + "\n")
    else:
        sys.stderr.write(f"rota: {error}\n")
    raise SystemExit(code_of(error)) from None
