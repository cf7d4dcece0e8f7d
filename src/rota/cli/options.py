"""Options that many commands share. Nothing here is heavy: every `rota --help` loads it."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["STORE", "AsJson", "By", "Limit", "Offset", "Store"]

STORE = "rota.db"  # where nothing else is said

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text for people.")]
Store = Annotated[
    str, typer.Option("--store", "-s", envvar="ROTA_STORE", help="The store: a file, or a daemon's address.")
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")]
Offset = Annotated[int, typer.Option("--offset", min=0, help="Leave out so many first.")]
By = Annotated[str, typer.Option("--by", help="Who does it; the journal remembers.")]
