"""The command line.

`COMMANDS` says which module has which command; a module is imported when its command is used. Commands import what they
need when they run. So a short command, and the help of one, load little.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Annotated, NoReturn

from rota.cli.quick_start import usual_search

# isort: split
import typer

from rota.cli.exit_codes import INTERRUPTED, code_of
from rota.cli.lazy_commands import lazy_group
from rota.cli.options import CaFile, TokenFile, access
from rota.cli.terminal_text import harmless, say
from rota.errors import RotaError

__all__ = ["COMMANDS", "app", "main"]

COMMANDS: Mapping[str, str] = {  # in the order of the help; after a colon, the name in the module if it differs
    "init": "first_fleet",
    "run": "fleet_commands",
    "reload": "fleet_commands",
    "demo": "fleet_commands",
    "enqueue": "control",
    "ps": "entry_lists",
    "top": "top",
    "queue": "entry_lists",
    "show": "show",
    "why": "why",
    "workers": "workers",
    "usage": "usage",
    "logs": "logs",
    "cancel": "entry_changes",
    "retry": "entry_changes",
    "release": "entry_changes",
    "change": "entry_changes",
    "pause": "control",
    "resume": "control",
    "tail": "tail",
    "events": "events",
    "trace": "trace",
    "otel": "otel",
    "doctor": "doctor",
    "serve": "serve",
    "mcp": "mcp",
    "web": "web",
    "charge": "own_run",
    "checkpoint": "own_run",
    "progress": "own_run",
    "heartbeat": "own_run",
    "emit": "own_run",
    "complete": "own_run",
    "acquire": "acquire",
    "settle": "acquire",
    "agents": "agents",
    "projects": "projects",
    "ledger": "ledger",
    "limits": "limits",
    "policy": "policy",
    "hooks": "hooks",
    "graph": "graph:graph_app",
    "cpu": "cpu",
    "token": "tokens",
    "db": "db",
    "docs": "about",
    "version": "about",
    "help": "about:help_of",
}

# they may run for long; so may mcp, which loads a large package first and says itself when it has
LONG = frozenset(("run", "serve", "web", "demo", "top", "tail", "events", "logs", "graph", "cpu", "otel"))

app = typer.Typer(
    name="rota",
    cls=lazy_group("rota.cli", COMMANDS),
    help="Who runs next, on whose budget, and by when.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: rich alone would take longer to load than everything else together
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _print_version(given: bool) -> None:
    if given:
        from rota.cli.about import installed_version

        say(installed_version())
        raise typer.Exit


@app.callback()
def set_access(
    ctx: typer.Context,
    token_file: TokenFile = None,
    ca_file: CaFile = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print rota's version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Store the options before the command: how to authenticate with a daemon."""
    del version  # its callback has printed it
    if ctx.invoked_subcommand in LONG:
        usual_search()
    access.token_file, access.ca_file = token_file, ca_file


def main() -> None:
    """Run the `rota` command; a rota error is printed as one sentence, without a traceback."""
    if os.environ.get("_ROTA_COMPLETE") == "complete_bash":
        from rota.cli.completion import mend_words

        mend_words(os.environ)
    try:
        app(prog_name="rota")  # also for `python -m rota`
    except RotaError as error:
        _report(error)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except RuntimeError as problem:  # Ctrl-C inside a wait for a lock: Python fails to release what it did not get
        if not _is_interrupted(problem):
            raise
        raise SystemExit(INTERRUPTED) from None


def _is_interrupted(problem: BaseException | None) -> bool:
    """Return whether an exception came up while another one, Ctrl-C, was passed on."""
    while problem is not None and not isinstance(problem, KeyboardInterrupt):
        problem = problem.__context__
    return problem is not None


def _report(error: RotaError) -> NoReturn:
    """Print the error and exit with its code: a sentence, or JSON with --json."""
    if "--json" in sys.argv[1:]:
        import json

        body = {"code": error.code, "message": error.message, **error.to_rpc_data()}
        sys.stderr.write(json.dumps({"error": body}, default=str) + "\n")
    else:
        sys.stderr.write(f"rota: {harmless(str(error), lines=True)}\n")
    raise SystemExit(code_of(error)) from None
