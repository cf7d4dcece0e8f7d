"""`rota db`: maintain the store. All but `retention` need the store itself, not a daemon's address."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rota.cli.exit_codes import FOUND
from rota.cli.options import STORE, AsJson, By, Store
from rota.cli.terminal_text import say

__all__ = ["db"]

db = typer.Typer(help="Back up, copy, check, prune and migrate the store.", no_args_is_help=True)


@db.command()
def backup(
    path: Annotated[str, typer.Argument(help="The path of the copy.")],
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file that no process uses.")] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Copy the store to a new file while it is in use."""
    from pathlib import Path

    from rota.cli.connection import open_file
    from rota.cli.output import print_json
    from rota.errors import InvalidInput

    if Path(path).exists() and not force:
        raise InvalidInput(f"{path} exists", field="path", hint="Choose another path, or give --force.")
    with open_file(store) as kernel:
        kernel.store.backup(path)
    size = Path(path).stat().st_size
    print_json({"path": path, "bytes": size}) if as_json else say(f"{path}: {size:,} bytes")


@db.command()
def check(store: Store = STORE, as_json: AsJson = False) -> None:
    """Check the store for damage; exits with 1 if it finds any."""
    from rota.cli.connection import open_file
    from rota.cli.output import print_json

    with open_file(store) as kernel:
        problems = kernel.check()
    if as_json:
        print_json({"problems": problems})
    for problem in () if as_json else problems or ["no damage found"]:
        say(problem)
    if problems:
        raise typer.Exit(FOUND)


@db.command()
def prune(
    events: Annotated[str, typer.Option("--events-older-than", help="Remove events older than this.")] = "30d",
    entries: Annotated[
        str, typer.Option("--entries-older-than", help="Remove finished entries older than this.")
    ] = "30d",
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Then rewrite the whole file, and writers wait; PostgreSQL's VACUUM.")
    ] = False,
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Remove old events and finished entries, in batches; a file becomes shorter."""
    from rota.cli.arguments import seconds
    from rota.cli.connection import open_file
    from rota.cli.output import print_json

    events_s, entries_s = seconds(events, "events-older-than"), seconds(entries, "entries-older-than")
    with open_file(store) as kernel:
        pruned = kernel.retention.prune(events_older_than_s=events_s, entries_older_than_s=entries_s)
        if vacuum:
            kernel.store.vacuum()
            pruned = pruned._replace(freed_bytes=pruned.freed_bytes + pruned.free_bytes, free_bytes=0)
    if as_json:
        print_json(pruned._asdict())
        return
    say(f"{pruned.events:,} events and {pruned.entries:,} entries removed, {pruned.freed_bytes:,} bytes freed")
    if pruned.free_bytes:
        say(f"{pruned.free_bytes:,} bytes are free in the file for new rows; --vacuum frees them, writers wait")


@db.command()
def copy(
    source: Annotated[str, typer.Argument(help="The store to read: a file, or postgresql://….")],
    target: Annotated[str, typer.Argument(help="The store to fill: a new file, or postgresql://…?schema=NAME.")],
    as_json: AsJson = False,
) -> None:
    """Copy a whole store into an empty one, and check the copy: from a file to PostgreSQL, or back.

    The copy is of one moment. Processes that go on writing to the source do not disturb it and are not in it.
    """
    from rota import store as stores
    from rota.cli.connection import is_store, open_file
    from rota.cli.output import print_json
    from rota.errors import InvalidInput
    from rota.kernel import copy_store

    for field, address in (("source", source), ("target", target)):
        stores.check_address(address)
        if not is_store(address):
            shown = stores.without_password(address)
            raise InvalidInput(f"{shown} is not a store but a daemon's address", field=field)
    if stores.host_path(source) == stores.host_path(target):
        raise InvalidInput("the source and the target are the same store", field="target")
    with open_file(source, read_only=True) as kernel, open_file(target, create=True) as filled:
        copied = copy_store(kernel.store, filled.store)
    if as_json:
        print_json(copied)
        return
    for table, rows in copied.rows.items():
        say(f"{table:24} {rows:>12,} rows")
    say(f"copied and checked: {copied.entries:,} entries, journal up to event {copied.through_event_id:,}")
    if copied.live_claims:
        note = "entries were running at the source: their workers go on working for the source"
        say(f"{copied.live_claims:,} {note}", err=True)


@db.command()
def retention(
    *,
    entries: Annotated[str | None, typer.Option("--entries", help="Keep finished entries for this long: 7d.")] = None,
    entries_max: Annotated[
        int | None, typer.Option("--entries-max", min=0, help="Keep at most this many finished entries.")
    ] = None,
    events: Annotated[str | None, typer.Option("--events", help="Keep events for this long: 7d.")] = None,
    events_max: Annotated[
        int | None, typer.Option("--events-max", min=0, help="Keep at most this many events.")
    ] = None,
    on: Annotated[bool | None, typer.Option("--on/--off", help="Whether anything is removed by itself.")] = None,
    by: By = "operator",
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Show or set what the store keeps.

    Daemons and supervisors remove the rest by themselves. This also works with a daemon's address.
    """
    from rota.cli.arguments import seconds
    from rota.cli.connection import open_api
    from rota.cli.output import print_json
    from rota.cli.retention_text import retention_lines

    given: dict[str, Any] = {
        "entries_s": None if entries is None else seconds(entries, "entries"),
        "entries_max": entries_max,
        "events_s": None if events is None else seconds(events, "events"),
        "events_max": events_max,
        "enabled": on,
    }
    changes = {field: value for field, value in given.items() if value is not None}
    with open_api(store) as api:
        if changes:
            api.retention.set(**changes, by=by)
        status = api.retention.status()
    if as_json:
        print_json(status)
        return
    for line in retention_lines(status):
        say(line)


@db.command()
def migrate(store: Store = STORE, as_json: AsJson = False) -> None:
    """Migrate the store to this rota's schema version; a copy of a file of the first kernel is left beside it.

    Opening the store for writing does the same.
    """
    from rota.cli.connection import open_file
    from rota.cli.output import print_json
    from rota.errors import SchemaMismatch

    try:
        with open_file(store, read_only=True) as kernel:
            version, moved = kernel.info()["schema_version"], False
    except SchemaMismatch:  # older, or not a store: then the next open raises
        with open_file(store) as kernel:
            version, moved = kernel.info()["schema_version"], True
    if as_json:
        print_json({"schema_version": version, "migrated": moved})
    else:
        say(f"{'migrated to' if moved else 'is at'} schema version {version}")
