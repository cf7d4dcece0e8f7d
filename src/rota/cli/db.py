"""`rota db`: care of the store's file. These work on a file only, never through somebody else."""

from __future__ import annotations

from typing import Annotated

import typer

from rota.cli.exits import FOUND
from rota.cli.options import STORE, AsJson, Store

__all__ = ["db"]

db = typer.Typer(help="Care of the store's file: back up, check, prune, migrate.", no_args_is_help=True)


@db.command()
def backup(
    path: Annotated[str, typer.Argument(help="Where the copy goes.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Copy the store to a new file while others go on working with it."""
    from pathlib import Path

    from rota.cli.connection import open_file
    from rota.cli.output import print_json
    from rota.errors import InvalidInput

    if Path(path).exists() and not force:
        raise InvalidInput(f"{path} is there already", field="path", hint="Name another, or say --force.")
    with open_file(store) as kernel:
        kernel.store.backup(path)
    size = Path(path).stat().st_size
    print_json({"path": path, "bytes": size}) if as_json else typer.echo(f"{path}: {size:,} bytes")


@db.command()
def check(store: Store = STORE, as_json: AsJson = False) -> None:
    """Look for damage; ends with 1 if there is any."""
    from rota.cli.connection import open_file
    from rota.cli.output import print_json

    with open_file(store) as kernel:
        problems = kernel.store.check()
    if as_json:
        print_json({"problems": problems})
    for problem in () if as_json else problems or ["nothing is wrong with it"]:
        typer.echo(problem)
    if problems:
        raise typer.Exit(FOUND)


@db.command()
def prune(
    events: Annotated[str, typer.Option("--events-older-than", help="Facts that may go: 30d.")] = "30d",
    entries: Annotated[str, typer.Option("--entries-older-than", help="Finished entries that may go: 30d.")] = "30d",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Remove old facts and finished entries, behind a checkpoint, in small steps."""
    from rota.cli.connection import open_file
    from rota.cli.output import print_json
    from rota.cli.typed import seconds

    events_s, entries_s = seconds(events, "events-older-than"), seconds(entries, "entries-older-than")
    with open_file(store) as kernel:
        pruned = kernel.retention.prune(events_older_than_s=events_s, entries_older_than_s=entries_s)
    if as_json:
        print_json(pruned._asdict())
    else:
        typer.echo(f"{pruned.events:,} events and {pruned.entries:,} entries removed")


@db.command()
def migrate(store: Store = STORE, as_json: AsJson = False) -> None:
    """Take the file to the version this rota writes. Opening it to write does the same."""
    from rota.cli.connection import open_file
    from rota.cli.output import print_json
    from rota.errors import SchemaMismatch

    try:
        with open_file(store, read_only=True) as kernel:
            version, moved = kernel.info()["schema_version"], False
    except SchemaMismatch:  # older, or not ours: then the next line says so
        with open_file(store) as kernel:
            version, moved = kernel.info()["schema_version"], True
    if as_json:
        print_json({"schema_version": version, "migrated": moved})
    else:
        typer.echo(f"{'migrated to' if moved else 'is at'} schema version {version}")
