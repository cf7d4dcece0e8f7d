"""`rota logs`: what a run printed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rota.cli.options import STORE, AsJson, Store

__all__ = ["logs"]


def logs(
    entry: Annotated[int, typer.Argument(help="The entry.")],
    *,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Which of its runs; the last if left out.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Where its supervisor keeps output; beside the store if left out.")
    ] = None,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Print what a program printed, standard output and error together, also while it runs."""
    import sys

    from rota.cli.output import print_json
    from rota.errors import NotFound
    from rota.fleet.log_folder import found_logs

    where = folder or Path(f"{store}-logs")
    found = found_logs(where, entry)
    number = max(found, default=None) if attempt is None else attempt
    path = None if number is None else found.get(number)
    if path is None:
        which = f"entry {entry}" if attempt is None else f"attempt {attempt} of entry {entry}"
        hint = "What ran elsewhere is found with --folder; a function prints to its supervisor."
        raise NotFound(f"no output of {which} is kept in {where}", hint=hint, sched_id=entry)
    body = path.read_bytes()
    if as_json:
        text = body.decode("utf-8", "replace")
        print_json({"sched_id": entry, "attempt": number, "path": str(path.absolute()), "text": text})
    else:
        sys.stdout.buffer.write(body)
        sys.stdout.flush()
