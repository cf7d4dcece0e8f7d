"""Commands about rota itself: its version and help."""

from __future__ import annotations

from typing import Annotated

import typer

from rota.cli.options import AsJson
from rota.cli.terminal_text import say

__all__ = ["help_of", "installed_version", "version"]


def installed_version() -> str:
    """Return rota's version."""
    from importlib.metadata import version as installed

    return installed("rota")


def version(as_json: AsJson = False) -> None:
    """Print rota's version."""
    say(f'{{"version":"{installed_version()}"}}' if as_json else installed_version())


def help_of(
    ctx: typer.Context,
    command: Annotated[list[str] | None, typer.Argument(help="The command, for example: db prune.")] = None,
) -> None:
    """Print the help of a command, or the list of all commands."""
    root = ctx.find_root().command
    root.main([*(command or ()), "--help"], prog_name="rota")
