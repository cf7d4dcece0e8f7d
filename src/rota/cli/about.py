"""Commands about rota itself: its version, its help and its pages."""

from __future__ import annotations

from typing import Annotated

import typer

from rota.cli.options import AsJson
from rota.cli.terminal_text import say

__all__ = ["docs", "help_of", "installed_version", "version"]


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


def docs(
    page: Annotated[str | None, typer.Argument(help="The page, for example: agents. Default: the list.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print a page of the documentation, or the list of all pages."""
    from rota.cli.output import print_json
    from rota.doc_pages import page_names, read_page
    from rota.errors import NotFound

    if page is None:
        names = page_names()
        print_json({"pages": names}) if as_json else say("\n".join(names))
        return
    text = read_page(page)
    if text is None:
        raise NotFound(f"there is no page {page}", hint="rota docs")
    print_json({"page": page, "text": text}) if as_json else say(text, nl=False)
