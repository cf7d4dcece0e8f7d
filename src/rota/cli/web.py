"""`rota web`: the dashboard, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, cast

import typer

from rota.cli.options import STORE, Store, access
from rota.cli.terminal_text import say
from rota.errors import NotEnabled

if TYPE_CHECKING:
    from rota.web import DashboardApi, Opener, WebSettings

__all__ = ["beside_daemon", "web"]

CALL_RETRY_S = 1.0  # how long a page's call waits for a daemon that is away; the page says so meanwhile
CALL_TIMEOUT_S = 15.0


def web(  # noqa: PLR0917  # each is an option
    store: Store = STORE,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port; 0: any free one.")] = 8417,
    tls_cert: Annotated[
        str | None, typer.Option(help="TLS certificate (PEM); required unless HOST is a loopback address.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="The certificate's key (PEM).")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name by which browsers may address it; repeatable.")
    ] = None,
    nice: Annotated[
        int, typer.Option(min=0, max=19, help="Lower its priority by this, so that scheduling goes first; 0: do not.")
    ] = 10,
    while_stdin: Annotated[
        bool, typer.Option("--while-stdin", help="End when standard input is closed: for programs that start it.")
    ] = False,
    print_unit: Annotated[bool, typer.Option("--print-unit", help="Print a systemd unit instead.")] = False,
) -> None:
    """Serve the dashboard: the fleet live, in a browser.

    Of a file, a database or a daemon's unix socket it prints a one-time link, which signs in with your own rights. At
    a daemon, people also sign in with an access token, and see and do what that token may. It needs the extra `web`.
    """
    import logging

    _check_installed()
    from rota.cli.connection import is_file
    from rota.rpc import is_remote
    from rota.store import without_password
    from rota.web import WebSettings, run_server

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    settings = WebSettings(
        store=without_password(store),
        host=host,
        port=port,
        certificate=tls_cert,
        key=tls_key,
        allowed_hosts=tuple(allow_host or ()),
        with_tokens=is_remote(store),
        nice=nice,
        with_link=is_file(store) or not store.startswith(("http:", "https:")),
    )
    if print_unit:
        _print_unit(settings)
        return
    if while_stdin:
        _end_with_stdin()
    run_server(settings, _opener(store), say)


def _print_unit(settings: WebSettings) -> None:
    """Print a systemd unit for a dashboard with these settings."""
    from pathlib import Path

    from rota.cli.systemd_units import print_web_unit

    words = ["--host", settings.host, "--port", str(settings.port), "--nice", str(settings.nice)]
    for name, file in (("--tls-cert", settings.certificate), ("--tls-key", settings.key)):
        words += [] if file is None else [name, str(Path(file).resolve())]
    words += [word for name in settings.allowed_hosts for word in ("--allow-host", name)]
    print_web_unit(settings.store, words, ca_file=access.ca_file)


def _end_with_stdin() -> None:
    """End like at a signal when the process that started this one is gone: a killed daemon leaves no dashboard."""
    import os
    import signal
    import sys
    import threading

    def watch() -> None:
        sys.stdin.buffer.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def beside_daemon(address: str, port: int) -> Iterator[None]:
    """Run the dashboard of a daemon in a process of its own; it ends when the block does, and with this process."""
    import subprocess
    import sys

    _check_installed()
    ca_file = [] if access.ca_file is None else ["--ca-file", access.ca_file]
    command = [sys.executable, "-m", "rota", *ca_file, "web", "--store", address, "--port", str(port), "--while-stdin"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603  # this program itself
    try:
        yield
    finally:
        child.terminate()
        child.wait()


def _check_installed() -> None:
    from importlib.util import find_spec

    if find_spec("nicegui") is None:
        raise NotEnabled("the dashboard is not installed", hint="Install it: pip install 'rota[web]'.")


def _opener(store: str) -> Opener:
    from rota.cli.connection import open_api
    from rota.rpc import connect, is_remote

    def open_with(token: str | None) -> DashboardApi:
        if is_remote(store):
            return connect(store, token=token, ca_file=access.ca_file, timeout_s=CALL_TIMEOUT_S, retry_s=CALL_RETRY_S)
        return cast("DashboardApi", open_api(store))

    if not is_remote(store):
        open_api(store).close()  # a wrong path is an error now, and not at the first sign-in
    return open_with
