"""`rota mcp`: serve agents as clients over the Model Context Protocol."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli.options import STORE, access
from rota.cli.terminal_text import say

if TYPE_CHECKING:
    from rota.mcp import Caller, McpHttpServer
    from rota.rpc import HttpSettings

__all__ = ["check_installed", "http_server", "mcp"]


def mcp(
    store: Annotated[
        str | None,
        typer.Option(
            "--store", "-s", envvar="ROTA_STORE", help="The store: a file, postgresql://…, or a daemon's address."
        ),
    ] = None,
    *,
    allow_write: Annotated[
        bool | None,
        typer.Option(
            "--allow-write/--read-only",
            help="Whether to offer tools that change something. Default: only inside a run, with the run's rights.",
        ),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT for HTTP, with access tokens. Default: standard input and output.")
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(help="TLS certificate (PEM); required unless HOST is a loopback address.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="The certificate's key (PEM).")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name by which clients may address the server; repeatable.")
    ] = None,
) -> None:
    """Serve agents as clients over MCP: one over standard input and output, or many over HTTP.

    A coding agent starts it by itself; `rota docs mcp` has the settings. It reads only, unless --allow-write is given.
    Inside a run it has exactly the run's rights.
    """
    import logging
    import sys

    from rota.cli.log_lines import HarmlessFormatter

    check_installed()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HarmlessFormatter("%(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level="WARNING", handlers=[handler])
    address = _store_address(store)
    if listen is None:
        _serve_stdio(address, allow_write)
        return
    from rota.cli.arguments import host_and_port
    from rota.rpc import HttpSettings

    host, port = host_and_port(listen, "listen")
    settings = HttpSettings(
        host=host, port=port, certificate=tls_cert, key=tls_key, allowed_hosts=tuple(allow_host or ())
    )
    _serve_http(address, settings, allow_write)


def _store_address(store: str | None) -> str:
    """Return the address of the store; inside a run never the default file, which may be another store."""
    from rota.errors import NotEnabled

    if store is None and "ROTA_SCHED_ID" in os.environ:
        hint = "Give the store with --store, or do not clear the environment of the program."
        raise NotEnabled("the store of this run is not known: ROTA_STORE is not set", hint=hint)
    return store or STORE


def _serve_stdio(address: str, allow_write: bool | None) -> None:
    import signal

    from rota.cli.connection import is_store, open_api
    from rota.cli.quick_start import end_of_start
    from rota.mcp import caller_of, serve_stdio
    from rota.rpc import shown_token

    def open_caller() -> Caller:
        api = open_api(address)
        token = None if is_store(address) else shown_token(address, token_file=access.token_file)
        caller = caller_of(api, token, allow_write=allow_write)
        end_of_start()
        return caller

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # at once: a thread waits for the next line of input
    serve_stdio(open_caller)


def _serve_http(address: str, settings: HttpSettings, allow_write: bool | None) -> None:
    import signal
    import threading

    from rota.cli.quick_start import end_of_start
    from rota.fleet import acting_on
    from rota.mcp import upstream_of

    upstream = upstream_of(address)
    try:
        server = http_server(settings, lambda: upstream.address, allow_write=allow_write)
        stop = threading.Event()
        with acting_on((signal.SIGINT, signal.SIGTERM), lambda _number: stop.set()):
            say(f"MCP at {server.start()}", err=True)
            end_of_start()
            stop.wait()
            server.stop()
    finally:
        upstream.close()


def http_server(settings: HttpSettings, upstream: Callable[[], str], *, allow_write: bool | None) -> McpHttpServer:
    """Return a server over HTTP that shows each client's token to the daemon at the upstream address."""
    from rota.mcp import McpHttpServer, caller_of
    from rota.rpc import connect

    def open_caller(token: str) -> Caller:
        api = connect(upstream(), token=token, ca_file=access.ca_file, retry_s=0.0)
        return caller_of(api, token, allow_write=allow_write)

    return McpHttpServer(settings, open_caller)


def check_installed() -> None:
    """Raise `NotEnabled` unless the extra `mcp` is installed."""
    from importlib.util import find_spec

    from rota.errors import NotEnabled

    if find_spec("mcp") is None:
        raise NotEnabled("the package mcp is not installed", hint="Install it: pip install 'rota[mcp]'.")
