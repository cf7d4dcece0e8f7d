"""Which Host and Origin headers are served.

A web page that a user visits can make the browser send requests to the user's own machine. With *DNS rebinding* the
page's own name points at 127.0.0.1, so that the browser takes the daemon's responses for the page's own. Such a request
has the page's name as `Host`; a request from a page of another origin has that page as `Origin`.

So a request is served only if its host is an IP address, `localhost`, the name the daemon listens on, or one that
`--allow-host` names; and if its origin, which only browsers send, is the daemon itself or is such a named host. Over
TLS every host is served, unless hosts are named: the browser has checked the name against the certificate.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from rota.errors import Forbidden

__all__ = ["AllowedHosts"]

SEEN_MAX = 64  # hosts that are not checked again


class AllowedHosts:
    """The hosts that a daemon serves."""

    def __init__(self, bound: str, named: tuple[str, ...], *, is_tls: bool) -> None:
        self._named = frozenset(name.lower().rstrip(".") for name in named)
        self._known = self._named | {"localhost", bound.lower()}
        self._any = is_tls and not named
        self._seen: set[bytes] = set()  # hosts that were checked before

    def check(self, host: bytes | None, origin: bytes | None) -> None:
        """Raise `Forbidden` for a host or an origin that is not served."""
        if origin is not None and not self._is_own(origin, host):
            text = f"requests from pages of {_text(origin)} are not served"
            raise Forbidden(
                text, hint="If the page is yours, start the daemon with --allow-host NAME.", header="Origin"
            )
        if host is None or host in self._seen:
            return  # only old clients send none; browsers always do
        name = _name(_text(host))
        if not (self._any or name in self._known or _is_address(name)):
            text = f"the host {name!r} is not served"
            raise Forbidden(text, hint=f"Start the daemon with --allow-host {name or 'NAME'}.", header="Host")
        if len(self._seen) < SEEN_MAX:
            self._seen.add(host)

    def _is_own(self, origin: bytes, host: bytes | None) -> bool:
        try:
            authority = urlsplit(_text(origin)).netloc
        except ValueError:
            return False
        return bool(authority) and ((host is not None and authority == _text(host)) or _name(authority) in self._named)


def _text(header: bytes) -> str:
    return header.decode("latin-1").strip().lower()[:255]


def _name(authority: str) -> str:
    """Return the host without its port."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
