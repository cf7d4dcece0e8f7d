"""`rota serve`: run the daemon."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rota.cli.options import STORE
from rota.cli.terminal_text import say
from rota.errors import InvalidInput

if TYPE_CHECKING:
    from rota.rpc import DaemonLimits, DaemonSettings, TransportFactory

__all__ = ["Options", "run", "serve"]

SWITCH_S = 0.0005  # thread switch interval: how long a busy event loop delays a thread that returns from the disk
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
    allow_host: tuple[str, ...] = ()
    limit: tuple[str, ...] = ()
    policy: str | None = None
    policy_param: tuple[str, ...] = ()
    policy_isolation: Literal["thread", "process"] = "thread"
    log_level: str = "info"

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
        from rota.rpc import HttpServer, HttpSettings

        host, colon, port = self.listen.rpartition(":")
        if not colon or not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
            raise InvalidInput(f"--listen must be HOST:PORT, not {self.listen!r}", field="listen")
        settings = HttpSettings(
            host=host.strip("[]") or "127.0.0.1",
            port=int(port),
            certificate=self.tls_cert,
            key=self.tls_key,
            open_metrics=self.open_metrics,
            allowed_hosts=self.allow_host,
        )
        return partial(HttpServer, settings)


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

    from rota.cli.log_lines import HarmlessFormatter

    settings, transport = options.settings(), options.transport()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(HarmlessFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(level=options.log_level.upper(), handlers=[handler])
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
    words: list[str] = []
    for name, value in given.items():
        for each in value if isinstance(value, tuple) else (value,):
            words += [f"--{name}"] if each is True else [f"--{name}", each]
    say(unit_file(options.store, words), nl=False)
