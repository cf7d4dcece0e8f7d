"""The callers of the MCP server over HTTP: one client of the daemon for each access token, while it is in use.

The token of a request is shown to the daemon, which gives the client the rights of that token and no others. A request
without a token never gets that far: on the unix socket it would have the rights of the local user.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from rota.errors import LimitExceeded, Unauthenticated
from rota.mcp.callers import Caller

__all__ = ["CallersByToken", "OpenCaller", "bearer_token"]

OpenCaller: TypeAlias = Callable[[str], Caller]  # by an access token


@dataclass
class _Known:
    caller: Caller
    users: int = 0  # requests that use it now


class CallersByToken:
    """Opens a caller for each token, and closes those that were not used for longest."""

    def __init__(self, open_caller: OpenCaller, callers_max: int) -> None:
        self._open_caller = open_caller
        self._callers_max = callers_max
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, _Known] = OrderedDict()  # by the hash of the token, the last used one last

    @contextmanager
    def caller(self, token: str) -> Iterator[Caller]:
        """Yield the caller of a token; raises `Unauthenticated` if the token is not valid."""
        digest = hashlib.sha256(token.encode()).digest()
        known = self._take(digest, token)
        try:
            yield known.caller
        finally:
            with self._lock:
                known.users -= 1

    def forget(self, token: str) -> None:
        """Forget a token that is no longer valid; the next request with it is refused."""
        with self._lock:
            known = self._known.pop(hashlib.sha256(token.encode()).digest(), None)
        if known is not None:
            known.caller.api.close()

    def close(self) -> None:
        """Close all clients."""
        with self._lock:
            known, self._known = list(self._known.values()), OrderedDict()
        for each in known:
            each.caller.api.close()

    def _take(self, digest: bytes, token: str) -> _Known:
        with self._lock:
            known = self._known.get(digest)
            if known is not None:
                self._known.move_to_end(digest)
                known.users += 1
                return known
        opened = _Known(self._open_caller(token))  # without the lock: it waits for the daemon
        with self._lock:
            known = self._known.setdefault(digest, opened)  # another request may have been first
            known.users += 1
            surplus = self._surplus() if known is opened else None
        if known is not opened:
            opened.caller.api.close()
        if surplus is not None:
            surplus.caller.api.close()
        return known

    def _surplus(self) -> _Known | None:
        """Remove the caller that was not used for longest, if there are too many; the lock is held."""
        if len(self._known) <= self._callers_max:
            return None
        for digest, known in self._known.items():
            if known.users == 0:
                return self._known.pop(digest)
        _, newest = self._known.popitem()
        newest.caller.api.close()
        raise LimitExceeded("callers_max", self._callers_max, self._callers_max + 1)


def bearer_token(header: str | None) -> str:
    """Return the token in an Authorization header; raises `Unauthenticated` if there is none."""
    scheme, _, token = (header or "").strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        hint = "Create one with `rota token create NAME --scope read`, and send it as Authorization: Bearer TOKEN."
        raise Unauthenticated("an access token is required", hint=hint)
    return token.strip()
