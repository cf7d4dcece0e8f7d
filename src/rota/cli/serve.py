"""`rota serve`: run the daemon."""

from __future__ import annotations

import dataclasses
import logging
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from rota.cli.options import STORE
from rota.errors import InvalidInput

if TYPE_CHECKING:
    from rota.rpc import DaemonSettings, TransportFactory

__all__ = ["Options", "run", "serve"]

SWITCH_S = 0.0005  # thread switch interval: how long a busy event loop delays a thread that returns from the disk
_LEVELS = ("debug", "info", "warning", "error")


def serve(  # noqa: PLR0917  # each is an option
    store: Annotated[str, typer.Option("--store", "-s", envvar="ROTA_STORE", help="The file to serve.")] = STORE,
    socket: Annotated[str | None, typer.Option(help="The unix socket. Default: beside the file.")] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT for HTTP. Default: no HTTP.")] = None,
    tls_cert: Annotated[
        str | None, typer.Option(help="TLS certificate (PEM); required unless HOST is a loopback address.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="The certificate's key (PEM).")] = None,
    open_metrics: Annotated[bool, typer.Option("--open-metrics", help="Serve /metrics without a token.")] = False,
    policy: Annotated[str, typer.Option(help="The scheduling policy; see `rota policy list`.")] = "strict",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    print_unit: Annotated[bool, typer.Option("--print-unit", help="Print a systemd unit instead.")] = False,
) -> None:
    """Run the daemon, which serves a store to many clients."""
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
    _print_unit(options) if print_unit else run(options)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    store: str
    socket: str | None = None
    listen: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    open_metrics: bool = False
    policy: str = "strict"
    log_level: str = "info"

    def settings(self) -> DaemonSettings:
        """Return the daemon's settings, or raise an error for an invalid option."""
        from importlib.metadata import version

        from rota.policy import make
        from rota.rpc import DaemonSettings

        make(self.policy)
        if self.log_level not in _LEVELS:
            text = f"--log-level must be one of {', '.join(_LEVELS)}, not {self.log_level!r}"
            raise InvalidInput(text, field="log_level")
        return DaemonSettings(store=self.store, socket=self.socket, policy=self.policy, rota_version=version("rota"))

    def transport(self) -> TransportFactory | None:
        """Return what opens the HTTP transport, if there is `--listen`."""
        if self.listen is None:
            return None
        from rota.rpc import HttpServer, HttpSettings  # takes a second to load

        host, colon, port = self.listen.rpartition(":")
        if not colon or not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
            raise InvalidInput(f"--listen must be HOST:PORT, not {self.listen!r}", field="listen")
        settings = HttpSettings(
            host=host.strip("[]") or "127.0.0.1",
            port=int(port),
            certificate=self.tls_cert,
            key=self.tls_key,
            open_metrics=self.open_metrics,
        )
        return partial(HttpServer, settings)


def run(options: Options) -> None:
    """Serve a file until a signal."""
    import uvloop

    settings, transport = options.settings(), options.transport()
    layout = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr, format=layout)
    sys.setswitchinterval(SWITCH_S)
    uvloop.run(_serve(settings, transport))


async def _serve(settings: DaemonSettings, transport: TransportFactory | None) -> None:
    from rota.rpc import Daemon

    await Daemon(settings, transport).serve()


def _print_unit(options: Options) -> None:
    """Print a systemd unit for a daemon with these options."""
    from rota.rpc import unit_file

    options.settings()
    options.transport()
    given = {
        field.name.replace("_", "-"): value
        for field in dataclasses.fields(options)
        if field.name != "store" and (value := getattr(options, field.name)) != field.default
    }
    words = [[f"--{name}"] if value is True else [f"--{name}", value] for name, value in given.items()]
    print(unit_file(options.store, [word for pair in words for word in pair]), end="")
