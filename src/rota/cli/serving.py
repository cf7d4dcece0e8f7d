"""`rota serve` and `rota token …`: the daemon and who may talk to it. Heavy imports wait until a command runs."""

from __future__ import annotations

from typing import Annotated

import typer

from rota.cli.options import STORE, AsJson, Store

__all__ = ["serve", "token"]

token = typer.Typer(help="Access tokens, for callers over TCP.", no_args_is_help=True)


def serve(  # noqa: PLR0917  # each is an option
    store: Annotated[str, typer.Option("--store", "-s", envvar="ROTA_STORE", help="The file to serve.")] = STORE,
    socket: Annotated[str | None, typer.Option(help="The unix socket; beside the file if left out.")] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT for HTTP; none if left out.")] = None,
    tls_cert: Annotated[str | None, typer.Option(help="A PEM file; needed beyond this machine.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="The certificate's key.")] = None,
    open_metrics: Annotated[bool, typer.Option("--open-metrics", help="/metrics without a token.")] = False,
    policy: Annotated[str, typer.Option(help="Who goes next; `rota policy list` names them.")] = "strict",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    print_unit: Annotated[bool, typer.Option("--print-unit", help="Print a systemd unit instead.")] = False,
) -> None:
    """Run the daemon: one process that has the file, for many that talk to it."""
    from rota.cli.serve import Options, run, show_unit

    options = Options(
        store=store,
        socket=socket,
        listen=listen,
        tls_cert=tls_cert,
        tls_key=tls_key,
        open_metrics=open_metrics,
        policy=policy,
        log_level=log_level,
    )
    show_unit(options) if print_unit else run(options)


@token.command("create")
def token_create(
    name: Annotated[str, typer.Argument(help="What it is for.")],
    scope: Annotated[
        str, typer.Option(help="read, enqueue, work, operate or admin; enqueue:A,B binds it to projects A and B.")
    ],
    store: Store = STORE,
    expires: Annotated[str | None, typer.Option(help="90s, 15m, 12h, 30d; never if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make an access token and print it, this once."""
    from rota.cli.tokens import create

    create(store, name, scope, expires, as_json=as_json)


@token.command("list")
def token_list(store: Store = STORE, as_json: AsJson = False) -> None:
    """List the access tokens, without their secrets."""
    from rota.cli.tokens import show

    show(store, as_json=as_json)


@token.command("revoke")
def token_revoke(
    token_id: Annotated[str, typer.Argument(help="Its id, as `rota token list` shows it.")],
    store: Store = STORE,
    as_json: AsJson = False,
) -> None:
    """Let an access token open nothing any more."""
    from rota.cli.tokens import revoke

    revoke(store, token_id, as_json=as_json)
