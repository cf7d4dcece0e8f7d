"""`rota token`: create, list, rotate and revoke access tokens, in a file or through its daemon."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from rota.cli.options import STORE, AsJson, Store
from rota.cli.terminal_text import say

if TYPE_CHECKING:
    from rota.rpc import CreatedToken, TokenLine

__all__ = ["token"]

token = typer.Typer(help="Access tokens, for clients over HTTP.", no_args_is_help=True)


@token.command()
def create(
    name: Annotated[str, typer.Argument(help="What the token is for.")],
    scope: Annotated[
        str, typer.Option(help="read, enqueue, work, operate or admin; enqueue:A,B binds it to projects A and B.")
    ],
    *,
    store: Store = STORE,
    expires: Annotated[str | None, typer.Option(help="Lifetime: 90s, 15m, 12h, 30d. Default: unlimited.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write it to this new file, which only you can read, and do not print it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create an access token and print it, or write it to a file. It is shown only once."""
    from rota.cli.arguments import seconds

    scope_name, _, names = scope.partition(":")
    projects = tuple(names.split(",")) if names else None
    expires_in_s = None if expires is None else seconds(expires, "expires")
    with _token_file(output) as file, _methods(store, create=True) as call:
        made = call("system.token_create", name=name, scope=scope_name, projects=projects, expires_in_s=expires_in_s)
        _print_token(made, file, output, as_json=as_json)
    if not as_json:
        say(f"token {made.line.token_id} has scope {_scope(made.line)}; it is not shown again", err=True)


@token.command()
def rotate(
    token_id: Annotated[str, typer.Argument(help="The token's id, from `rota token list`.")],
    *,
    overlap: Annotated[
        str | None, typer.Option(help="How long the old secret stays valid: 15m, 12h. Default: not at all.")
    ] = None,
    store: Store = STORE,
    output: Annotated[
        Path | None, typer.Option(help="Write it to this new file, which only you can read, and do not print it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give an access token a new secret and print the token. It is shown only once."""
    from rota.cli.arguments import seconds

    overlap_s = 0.0 if overlap is None else seconds(overlap, "overlap")
    with _token_file(output) as file, _methods(store) as call:
        made = call("system.token_rotate", token_id=token_id, overlap_s=overlap_s)
        _print_token(made, file, output, as_json=as_json)
    if not as_json:
        old = "is no longer valid" if overlap is None else f"stays valid for {overlap}"
        say(f"token {token_id} has a new secret, which is not shown again; the old one {old}", err=True)


def _print_token(made: CreatedToken, file: TextIO | None, output: Path | None, *, as_json: bool) -> None:
    """Write a token to its file, or print it."""
    from rota.cli.output import print_json

    if file is not None:
        file.write(f"{made.token}\n")
    if as_json:
        print_json(made if file is None else {"line": made.line, "path": str(output)})
    elif file is None:
        say(made.token)


@token.command("list")
def list_tokens(store: Store = STORE, as_json: AsJson = False) -> None:
    """List the access tokens, without their secrets."""
    from rota.cli.output import print_json, print_table

    with _methods(store) as call:
        lines: list[TokenLine] = call("system.token_list")
    if as_json:
        print_json(lines)
        return
    rows = [
        (line.token_id, line.name, _scope(line), *map(_when, (line.created_at, line.expires_at, line.revoked_at)))
        for line in lines
    ]
    print_table(["token", "name", "scope", "created", "expires", "revoked"], rows, empty="no tokens")


@token.command()
def revoke(
    token_id: Annotated[str, typer.Argument(help="The token's id, from `rota token list`.")],
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Revoke an access token."""
    from rota.cli.output import print_json

    with _methods(store) as call:
        line = call("system.token_revoke", token_id=token_id)
    print_json(line) if as_json else say(f"token {line.token_id} ({line.name}) is revoked")


@contextlib.contextmanager
def _token_file(path: Path | None) -> Iterator[TextIO | None]:
    """Create the file before the token, which would be lost if it could not be written."""
    from rota.errors import InvalidInput
    from rota.store import create_private

    if path is None:
        yield None
        return
    try:
        file = os.fdopen(create_private(path), "w")
    except OSError as problem:
        text = f"{path} cannot be created: {problem.strerror}"
        raise InvalidInput(text, field="output", hint="Give the path of a new file.") from problem
    try:
        with file:
            yield file
    except BaseException:
        path.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _methods(address: str, *, create: bool = False) -> Iterator[Callable[..., Any]]:
    """Yield a function that calls a method by name, on a file or through a daemon."""
    from rota.cli.connection import open_client, open_file
    from rota.rpc import RpcHandlers, is_remote
    from rota.service import Dispatcher
    from rota.store import without_password

    if is_remote(address):
        with open_client(address) as client:
            yield client.call
        return
    with open_file(address, create=create) as kernel:
        handlers = RpcHandlers(kernel, Dispatcher(kernel), store=without_password(address))
        try:
            yield handlers.call
        finally:
            handlers.close()


def _scope(line: TokenLine) -> str:
    return line.scope if line.projects is None else f"{line.scope}:{','.join(line.projects)}"


def _when(at: float | None) -> str:
    from rota.cli.output import moment, now

    return moment(at, now())
