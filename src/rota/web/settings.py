"""Where the dashboard listens, and what it refuses to start with."""

from __future__ import annotations

import ipaddress

import msgspec

from rota.errors import InvalidInput

__all__ = ["NICE", "PORT", "WebSettings", "is_loopback"]

PORT = 8417  # the default port
NICE = 10  # by how much the priority of the process is lowered


class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the web process."""

    store: str  # the address that pages show
    host: str = "127.0.0.1"
    port: int = PORT  # 0: any free one
    certificate: str | None = None  # PEM; with `key`, pages are served over TLS
    key: str | None = None
    allowed_hosts: tuple[str, ...] = ()  # names by which browsers may address it
    with_tokens: bool = False  # whether people may sign in with an access token
    nice: int = NICE  # how far scheduling and runs go before drawing, where cores are scarce
    with_link: bool = True  # whether a one-time link signs in with the rights of this process

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            raise InvalidInput("--tls-cert and --tls-key must be given together", field="tls_cert")
        if is_loopback(self.host):
            return
        if not self.with_tokens:
            text = f"a dashboard of a file or a database has no sign-in, so it cannot listen on {self.host}"
            hint = "Serve the store with `rota serve`, then: rota web --store unix:SOCKET --host HOST."
            raise InvalidInput(text, field="host", hint=hint)
        if not self.is_tls:
            text = f"access tokens would cross the network unencrypted: {self.host} is not a loopback address"
            raise InvalidInput(text, field="host", hint="Give --tls-cert FILE and --tls-key FILE, or use 127.0.0.1.")

    @property
    def is_tls(self) -> bool:
        """Whether pages are served over TLS."""
        return self.certificate is not None


def is_loopback(host: str) -> bool:
    """Return whether only programs of this machine can connect to a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
