"""The command line. Commands import what they need when they run, so that `rota --help` is quick."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from rota.errors import RotaError

__all__ = ["app", "main"]

app = typer.Typer(
    name="rota",
    help="Who runs next, on whose budget, and by when.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
policy_app = typer.Typer(help="The policies that decide which entry goes next.", no_args_is_help=True)
app.add_typer(policy_app, name="policy")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def version() -> None:
    """Print rota's version."""
    from importlib.metadata import version as installed

    typer.echo(installed("rota"))


@app.command()
def demo() -> None:
    """Show what rota does: one entry all the way, then who ran when under three policies."""
    from rota.cli.demo import show

    show()


@policy_app.command("list")
def policy_list(as_json: AsJson = False) -> None:
    """List the policies, what each does and what it promises about waiting."""
    from rota.cli.policies import show

    show(as_json=as_json)


def main() -> None:
    """The `rota` command: an error of ours is one sentence, never a traceback."""
    try:
        app()
    except RotaError as error:
        print(f"rota: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
