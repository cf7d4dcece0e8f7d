"""`rota serve`: run the daemon."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rota.cli.options import STORE, Otel
from rota.cli.terminal_text import say
from rota.errors import InvalidInput

if TYPE_CHECKING:
    from rota.rpc import DaemonLimits, DaemonSettings, HttpSettings, TransportFactory

__all__ = ["MCP_LISTEN", "Options", "run", "serve"]

SWITCH_S = 0.0005  # thread switch interval: how long a busy event loop delays a thread that returns from the disk
MCP_LISTEN = "127.0.0.1:7683"
_LEVELS = ("debug", "info", "warning", "error")


def serve(  # noqa: PLR0917  # each is an option
    store: Annotated[
        str, typer.Option("--store", "-s", envvar="ROTA_STORE", help="The store to serve: a file, or postgresql://….")
    ] = STORE,
    socket: Annotated[
        str | None, typer.Option(help="The unix socket. Default: beside the store's other files.")
    ] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT for HTTP. Default: no HTTP.")] = None,
    tls_cert: Annotated[
        str | None, typer.Option(help="TLS certificate (PEM); required unless HOST is a loopback address.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="The certificate's key (PEM).")] = None,
    open_metrics: Annotated[bool, typer.Option("--open-metrics", help="Serve /metrics without a token.")] = False,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name by which clients may address the daemon; repeatable.")
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set one of the daemon's limits; repeatable.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Set the store's policy (`rota policy list`). Default: the one it has.")
    ] = None,
    policy_param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Set a parameter of the policy; repeatable.")
    ] = None,
    policy_isolation: Annotated[
        Literal["thread", "process"],
        typer.Option(help="Where policies of other packages run: thread, or process (limited, and replaced)."),
    ] = "thread",
    otel: Otel = False,
    mcp: Annotated[bool, typer.Option("--mcp", help="Also serve agents as clients, over MCP.")] = False,
    mcp_listen: Annotated[str, typer.Option(help="HOST:PORT for --mcp.")] = MCP_LISTEN,
    mcp_allow_write: Annotated[
        bool, typer.Option("--mcp-allow-write", help="Offer MCP tools that change something to all, not only to runs.")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Also serve the dashboard, in a process of its own; see `rota web`.")
    ] = False,
    web_port: Annotated[int, typer.Option(min=0, max=65_535, help="The dashboard's port; 0: any free one.")] = 8417,
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
        allow_host=tuple(allow_host or ()),
        limit=tuple(limit or ()),
        policy=policy,
        policy_param=tuple(policy_param or ()),
        policy_isolation=policy_isolation,
        otel=otel,
        mcp=mcp,
        mcp_listen=mcp_listen,
        mcp_allow_write=mcp_allow_write,
        log_level=log_level,
        web=web,
        web_port=web_port,
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
    allow_host: tuple[str, ...] = ()
    limit: tuple[str, ...] = ()
    policy: str | None = None
    policy_param: tuple[str, ...] = ()
    policy_isolation: Literal["thread", "process"] = "thread"
    otel: bool = False
    mcp: bool = False
    mcp_listen: str = MCP_LISTEN
    mcp_allow_write: bool = False
    log_level: str = "info"
    web: bool = False
    web_port: int = 8417

    def settings(self) -> DaemonSettings:
        """Return the daemon's settings, or raise an error for an invalid option."""
        from importlib.metadata import version

        from rota.cli.arguments import policy_params
        from rota.rpc import DaemonSettings
        from rota.service import make_policy

        params = policy_params(self.policy_param)
        if self.policy is not None:
            make_policy(self.policy, params, self.policy_isolation)
        elif params:
            raise InvalidInput("--policy-param needs --policy", field="policy_param")
        if self.log_level not in _LEVELS:
            text = f"--log-level must be one of {', '.join(_LEVELS)}, not {self.log_level!r}"
            raise InvalidInput(text, field="log_level")
        return DaemonSettings(
            store=self.store,
            socket=self.socket,
            policy=self.policy,
            policy_params=params,
            policy_isolation=self.policy_isolation,
            limits=_limits(self.limit),
            rota_version=version("rota"),
        )

    def transport(self) -> TransportFactory | None:
        """Return what opens the HTTP transport, if there is `--listen`."""
        if self.listen is None:
            return None
        from rota.rpc import HttpServer

        return partial(HttpServer, self._http_settings(self.listen, "listen"))

    def mcp_settings(self) -> HttpSettings | None:
        """Return where MCP is served, if there is `--mcp`."""
        if self.mcp:
            return self._http_settings(self.mcp_listen, "mcp_listen")
        if self.mcp_allow_write or self.mcp_listen != MCP_LISTEN:
            raise InvalidInput("--mcp-listen and --mcp-allow-write need --mcp", field="mcp")
        return None

    def _http_settings(self, listen: str, field: str) -> HttpSettings:
        from rota.cli.arguments import host_and_port
        from rota.rpc import HttpSettings

        host, port = host_and_port(listen, field)
        return HttpSettings(
            host=host,
            port=port,
            certificate=self.tls_cert,
            key=self.tls_key,
            open_metrics=self.open_metrics,
            allowed_hosts=self.allow_host,
        )


def _limits(given: tuple[str, ...]) -> DaemonLimits:
    """Return the limits with those that `--limit` sets."""
    import msgspec

    from rota.decoding import convert
    from rota.rpc import DaemonLimits

    values = dict(text.partition("=")[::2] for text in given)
    names = DaemonLimits.__struct_fields__
    for name, value in values.items():
        if name not in names:
            raise InvalidInput(f"--limit {name}: there is no such limit; there are {', '.join(names)}", field="limit")
        if not value:
            raise InvalidInput(f"--limit must be NAME=VALUE, not {name!r}", field="limit")
    try:
        return convert(values, DaemonLimits, strict=False)
    except msgspec.ValidationError as problem:
        if isinstance(problem.__cause__, InvalidInput):
            raise problem.__cause__ from None
        raise InvalidInput(f"--limit: {problem}", field="limit") from problem


def run(options: Options) -> None:
    """Serve a file until a signal."""
    import logging

    import uvloop

    from rota.cli.connection import open_file
    from rota.cli.log_lines import HarmlessFormatter
    from rota.cli.telemetry import exporting, start_tracing

    settings, transport, mcp_settings = options.settings(), options.transport(), options.mcp_settings()
    if mcp_settings is not None:
        from rota.cli.mcp import check_installed

        check_installed()  # now, and not when the daemon serves already
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HarmlessFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler])
    sys.setswitchinterval(SWITCH_S)
    if options.otel:
        with open_file(options.store, create=True) as kernel:
            start_tracing(kernel.journal, options.store, asked=True)
    with exporting(options.store, asked=options.otel):
        uvloop.run(_serve(options, settings, transport, mcp_settings))


async def _serve(
    options: Options,
    settings: DaemonSettings,
    transport: TransportFactory | None,
    mcp_settings: HttpSettings | None,
) -> None:
    """Serve until a signal; what was asked for beside the daemon starts with it and ends with it."""
    import contextlib

    from rota.rpc import Daemon

    daemon = Daemon(settings, transport)
    with contextlib.ExitStack() as beside:

        def start_others() -> None:
            if mcp_settings is not None:
                from rota.cli.mcp import http_server

                allow_write = options.mcp_allow_write or None
                server = http_server(mcp_settings, lambda: daemon.addresses[0], allow_write=allow_write)
                beside.callback(server.stop)
                say(f"MCP at {server.start()}", err=True)
            if options.web:
                from rota.cli.web import beside_daemon

                beside.enter_context(beside_daemon(daemon.addresses[0], options.web_port))

        await daemon.serve(start_others)


def _print_unit(options: Options) -> None:
    """Print a systemd unit for a daemon with these options."""
    from rota.rpc import unit_file

    options.settings()
    options.transport()
    options.mcp_settings()
    given = {
        field.name.replace("_", "-"): value
        for field in dataclasses.fields(options)
        if field.name != "store" and (value := getattr(options, field.name)) != field.default
    }
    words: list[str] = []
    for name, value in given.items():
        for each in value if isinstance(value, tuple) else (value,):
            words += [f"--{name}"] if each is True else [f"--{name}", each]
    say(unit_file(options.store, words), nl=False)
