"""The methods that only a server has: the handshake, its own description, events by kind, access tokens."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from rota import errors as e
from rota.service.api.declaration import REFUSED, method, unfiltered

__all__ = ["CreatedToken", "Hello", "ServerApi", "TokenLine", "TokensApi"]


class Hello(msgspec.Struct, frozen=True):
    """The server's versions and policy, and the caller's rights."""

    rota_version: str
    protocol: int
    store: str
    policy: str
    caller: str
    scope: str
    projects: tuple[str, ...] | None = None


class TokenLine(msgspec.Struct, frozen=True, kw_only=True):
    """A token, without its secret."""

    token_id: str
    name: str
    scope: str
    projects: tuple[str, ...] | None = None
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None


class CreatedToken(msgspec.Struct, frozen=True):
    """A token with its secret, which is shown only once."""

    token: str
    line: TokenLine

    def __repr__(self) -> str:  # without the secret
        return f"CreatedToken(line={self.line!r})"


class ServerApi(Protocol):
    """The server itself."""

    @method(
        "kernel.event.record",
        scope="operate",
        execution="write",
        bound=REFUSED,
        run="refused",
        audited=False,
        result="event_id",
        errors=(e.UnknownPid, e.InvalidPayload),
    )
    def record(self, kind: str, payload: dict[str, Any], pid: int | None = None) -> int:
        """Record an event about running work: a run, a trigger, a supervisor or the fleet."""
        ...

    @method(
        "system.hello",
        scope="read",
        execution="inline",
        bound=unfiltered("it describes the caller and the server"),
        run="view",
        retry_safe=True,
    )
    def hello(self, protocol: int, client: str = "", access_token: str = "") -> Hello:
        """Agree on the protocol version; return the server's versions and the caller's rights.

        On the unix socket, an access token replaces the rights of the local user by its own, which are fewer. Over
        HTTP the token is in the request's header, and this one is ignored.
        """
        ...

    @method(
        "rpc.discover",
        scope="read",
        execution="inline",
        bound=unfiltered("it describes the server"),
        run="view",
        retry_safe=True,
    )
    def discover(self) -> dict[str, Any]:
        """Return this table as an OpenRPC document."""
        ...


class TokensApi(Protocol):
    """Access tokens, for clients over HTTP."""

    @method("system.token_create", scope="admin", execution="write", bound=REFUSED, run="refused")
    def create(
        self, name: str, scope: str, projects: tuple[str, ...] | None = None, expires_in_s: float | None = None
    ) -> CreatedToken:
        """Create an access token; its secret is returned only here."""
        ...

    @method(
        "system.token_revoke",
        scope="admin",
        execution="write",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.UnknownRequest,),
    )
    def revoke(self, token_id: str) -> TokenLine:
        """Revoke an access token."""
        ...

    @method(
        "system.token_rotate",
        scope="admin",
        execution="write",
        bound=REFUSED,
        run="refused",
        errors=(e.UnknownRequest,),
    )
    def rotate(self, token_id: str, overlap_s: float = 0.0) -> CreatedToken:
        """Give an access token a new secret; the old one stays valid for `overlap_s`."""
        ...

    @method("system.token_list", scope="admin", execution="read", bound=REFUSED, run="refused", result="tokens")
    def list(self) -> list[TokenLine]:
        """Return all access tokens, without their secrets."""
        ...
