"""`rota serve`: run the daemon."""

from __future__ import annotations

import logging
import sys
from functools import partial
from importlib.metadata import version

import msgspec
import uvloop

from rota.errors import InvalidInput
from rota.policy import registry
from rota.rpc.daemon.server import Daemon, MakeDoor, Settings
from rota.rpc.daemon.systemd import unit

__all__ = ["Options", "run", "show_unit"]

SWITCH_S = 0.0005  # a thread that comes back from the disk waits for a busy loop only this long
_LEVELS = ("debug", "info", "warning", "error")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was said on the command line."""

    store: str
    socket: str | None = None
    listen: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    open_metrics: bool = False
    policy: str = "strict"
    log_level: str = "info"

    def settings(self) -> Settings:
        """The daemon's settings, or what is wrong with them."""
        registry.make(self.policy)
        if self.log_level not in _LEVELS:
            raise InvalidInput(f"--log-level is one of {', '.join(_LEVELS)}, not {self.log_level!r}", field="log_level")
        return Settings(store=self.store, socket=self.socket, policy=self.policy, rota_version=version("rota"))

    def door(self) -> MakeDoor | None:
        """What opens the way in over TCP, if one is wanted. HTTP is loaded only then: it takes a second."""
        if self.listen is None:
            return None
        from rota.rpc.daemon.http import HttpDoor
        from rota.rpc.daemon.tcp import HttpSettings

        host, colon, port = self.listen.rpartition(":")
        if not colon or not (port.isascii() and port.isdecimal() and int(port) < 1 << 16):
            raise InvalidInput(f"--listen is HOST:PORT, not {self.listen!r}", field="listen")
        settings = HttpSettings(
            host=host.strip("[]") or "127.0.0.1",
            port=int(port),
            certificate=self.tls_cert,
            key=self.tls_key,
            open_metrics=self.open_metrics,
        )
        return partial(HttpDoor, settings)


def run(options: Options) -> None:
    """Serve a file until told to stop."""
    settings, door = options.settings(), options.door()
    layout = "%(asctime)s %(levelname)s %(name)s %(message)s"
    logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr, format=layout)
    sys.setswitchinterval(SWITCH_S)
    uvloop.run(_serve(settings, door))


async def _serve(settings: Settings, door: MakeDoor | None) -> None:
    await Daemon(settings, door).serve()


def show_unit(options: Options) -> None:
    """Print a systemd unit for this daemon."""
    options.settings()
    options.door()
    said = {
        field.name.replace("_", "-"): value
        for field in msgspec.structs.fields(options)
        if field.name != "store" and (value := getattr(options, field.name)) != field.default
    }
    words = [[f"--{name}"] if value is True else [f"--{name}", value] for name, value in said.items()]
    print(unit(options.store, [word for pair in words for word in pair]), end="")
