"""`rota token`: make, list and revoke access tokens, in a file or through its daemon."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import typer

from rota.cli.connection import open_file, reach
from rota.cli.output import print_table
from rota.cli.typed import seconds
from rota.rpc.client import is_remote
from rota.rpc.handlers import Office
from rota.rpc.results.register import TokenLine
from rota.service.dispatcher import Dispatcher

__all__ = ["create", "revoke", "show"]


@contextlib.contextmanager
def _asking(address: str, *, create: bool = False) -> Iterator[Callable[..., Any]]:
    """What calls a method at an address, be it a file's or a daemon's."""
    if is_remote(address):
        with reach(address) as client:
            yield client.call
        return
    with open_file(address, create=create) as kernel:
        office = Office(kernel, Dispatcher(kernel), store=address)
        try:
            yield office.ask
        finally:
            office.close()


def create(address: str, name: str, scope: str, expires: str | None, *, as_json: bool) -> None:
    """Make a token and print it, this once."""
    rung, _, named = scope.partition(":")
    projects = tuple(named.split(",")) if named else None
    expires_in_s = None if expires is None else seconds(expires, "expires")
    with _asking(address, create=True) as ask:
        made = ask("system.token_create", name=name, scope=rung, projects=projects, expires_in_s=expires_in_s)
    if as_json:
        typer.echo(msgspec.json.encode(made))
        return
    typer.echo(made.token)
    typer.echo(f"token {made.line.token_id} may {_scope(made.line)}; it is shown this once", err=True)


def show(address: str, *, as_json: bool) -> None:
    """List the tokens."""
    with _asking(address) as ask:
        lines: list[TokenLine] = ask("system.token_list")
    if as_json:
        typer.echo(msgspec.json.encode(lines))
        return
    rows = [
        (line.token_id, line.name, _scope(line), *map(_day, (line.created_at, line.expires_at, line.revoked_at)))
        for line in lines
    ]
    print_table(["token", "name", "scope", "made", "expires", "revoked"], rows, empty="no tokens")


def revoke(address: str, token_id: str, *, as_json: bool) -> None:
    """Let a token open nothing any more."""
    with _asking(address) as ask:
        line = ask("system.token_revoke", token_id=token_id)
    typer.echo(msgspec.json.encode(line) if as_json else f"token {line.token_id} ({line.name}) opens nothing any more")


def _scope(line: TokenLine) -> str:
    return line.scope if line.projects is None else f"{line.scope}:{','.join(line.projects)}"


def _day(at: float | None) -> str:
    return "–" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
