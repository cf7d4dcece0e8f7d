"""`rota logs`: the output of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rota.cli.options import STORE, AsJson, Store
from rota.cli.terminal_text import say

__all__ = ["logs"]


def logs(
    entry: Annotated[int, typer.Argument(help="The entry id.")],
    *,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="The attempt. Default: the last.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="The supervisor's log folder. Default: beside the store.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Print the bytes as they are, with escape codes.")] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Print the output of a run, also while it runs.

    Escape codes are shown, not obeyed: a program cannot control this terminal. --raw prints them.
    """
    import sys

    from rota.cli.output import print_json
    from rota.errors import NotFound
    from rota.fleet import find_logs

    where = folder or Path(f"{store}-logs")
    found = find_logs(where, entry)
    number = max(found, default=None) if attempt is None else attempt
    path = None if number is None else found.get(number)
    if path is None:
        which = f"entry {entry}" if attempt is None else f"attempt {attempt} of entry {entry}"
        hint = "It printed nothing, or another supervisor ran it: give its --folder."
        raise NotFound(f"there is no log of {which} in {where}", hint=hint, sched_id=entry)
    body = path.read_bytes()
    if as_json:
        text = body.decode("utf-8", "replace")
        print_json({"sched_id": entry, "attempt": number, "path": str(path.absolute()), "text": text})
    elif raw:
        sys.stdout.buffer.write(body)
        sys.stdout.flush()
    else:
        say(body.decode("utf-8", "backslashreplace").replace("\r\n", "\n"), nl=False)
