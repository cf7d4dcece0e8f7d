"""`rota token`: make, list and revoke access tokens, in a file or through its daemon."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from rota import store
from rota.client import connect, is_remote
from rota.errors import InvalidInput
from rota.kernel import Kernel
from rota.office import Office
from rota.service.dispatcher import Dispatcher
from rota.wire.results import TokenLine

__all__ = ["create", "revoke", "show"]

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


@contextlib.contextmanager
def _asking(address: str) -> Iterator[Callable[..., Any]]:
    """What calls a method at an address, be it a file's or a daemon's."""
    if is_remote(address):
        with connect(address) as client:
            yield client.call
        return
    kernel = Kernel(store.open(address))
    office = Office(kernel, Dispatcher(kernel), store=address)
    try:
        yield office.ask
    finally:
        office.close()
        kernel.store.close()


def create(address: str, name: str, scope: str, expires: str | None, *, as_json: bool) -> None:
    """Make a token and print it, this once."""
    rung, _, named = scope.partition(":")
    projects = tuple(named.split(",")) if named else None
    with _asking(address) as ask:
        made = ask("system.token_create", name=name, scope=rung, projects=projects, expires_in_s=_seconds(expires))
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
    table = Table("token", "name", "scope", "made", "expires", "revoked", box=None)
    for line in lines:
        times = (_day(at) for at in (line.created_at, line.expires_at, line.revoked_at))
        table.add_row(line.token_id, line.name, _scope(line), *times)
    Console().print(table)


def revoke(address: str, token_id: str, *, as_json: bool) -> None:
    """Let a token open nothing any more."""
    with _asking(address) as ask:
        line = ask("system.token_revoke", token_id=token_id)
    typer.echo(msgspec.json.encode(line) if as_json else f"token {line.token_id} ({line.name}) opens nothing any more")


def _scope(line: TokenLine) -> str:
    return line.scope if line.projects is None else f"{line.scope}:{','.join(line.projects)}"


def _day(at: float | None) -> str:
    return "–" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")


def _seconds(text: str | None) -> float | None:
    """A length of time from words like 90s, 15m, 12h or 30d."""
    if text is None:
        return None
    if not (found := re.fullmatch(r"(\d{1,9})([smhd])", text)):
        raise InvalidInput(f"{text!r} is no length of time", field="expires", hint="Say 90s, 15m, 12h or 30d.")
    return float(int(found[1]) * _UNITS[found[2]])
