"""Options that many commands share. Nothing here is heavy: every `rota --help` loads it."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["STORE", "AsJson", "By", "CaFile", "Limit", "Offset", "Store", "TokenFile", "access"]

STORE = "rota.db"  # where nothing else is said

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
Store = Annotated[
    str, typer.Option("--store", "-s", envvar="ROTA_STORE", help="The store: a file, or a daemon's address.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")]
Offset = Annotated[int, typer.Option("--offset", min=0, help="Leave out so many first.")]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        help="A file with a daemon's access token; else ROTA_ACCESS_TOKEN, or the file ROTA_ACCESS_TOKEN_FILE names.",
    ),
]
CaFile = Annotated[
    str | None, typer.Option("--ca-file", help="Who signed a daemon's certificate, a PEM file; else ROTA_CA_FILE.")
]
By = Annotated[str, typer.Option("--by", help="Who does it; the journal remembers.")]


class Access:
    """What was said before the command about getting in at a daemon; set anew for every command."""

    token_file: str | None = None
    ca_file: str | None = None


access = Access()
