"""Who is signed in: sessions in the memory of the web process, and the one-time link.

A session is a random name in a cookie that scripts cannot read and other sites cannot send (HttpOnly, SameSite=Strict).
It ends after `SESSION_S`, at sign-out, with its token, and with this process. Its `csrf` is in every form; the web
socket of a page is bound to the session that opened the page (`gate.py`).

The one-time link signs in with the rights of the process itself. It is printed where the process was started, so only
people who can read that terminal or log have it; when it was used, the next one is printed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable

from rota.clock import Clock, SystemClock
from rota.errors import LockedOut, Unauthenticated
from rota.rpc import CallerRights, rights_of
from rota.web.access import CallerAccess, DashboardApi, Opener

__all__ = ["FAILURES_MAX", "FAILURES_S", "SESSIONS_MAX", "SESSION_S", "Sessions", "WebSession"]

SESSION_S = 12 * 3_600.0  # how long a session lasts
SESSIONS_MAX = 1_000  # the oldest ends when there are more
FAILURES_MAX = 10  # wrong sign-ins of one address within `FAILURES_S`; then further ones wait
FAILURES_S = 60.0
ADDRESSES_MAX = 1_000  # addresses whose wrong sign-ins are counted
SECRET_BYTES = 32
CLIENT = "rota web"  # as the daemon knows it


class WebSession:
    """One browser that is signed in."""

    def __init__(self, access: CallerAccess, ends_at: float) -> None:
        self.session_id = secrets.token_urlsafe(SECRET_BYTES)
        self.csrf = secrets.token_urlsafe(SECRET_BYTES)
        self.access = access
        self.ends_at = ends_at  # on the monotonic clock
        self.dark: bool | None = None  # None: as the browser prefers


class Sessions:
    """All sessions, and what signs in."""

    def __init__(self, open_api: Opener, announce: Callable[[str], None], *, clock: Clock | None = None) -> None:
        self._open_api = open_api
        self._announce = announce  # prints a one-time key
        self._clock = clock or SystemClock()
        self._sessions: dict[str, WebSession] = {}
        self._accesses: dict[str, CallerAccess] = {}  # by the hash of their token; "" is the process's own
        self._key: str | None = None
        self._failures: dict[str, list[float]] = {}

    # --- the one-time link -----------------------------------------------------------------------

    def new_link(self) -> None:
        """Announce a new one-time key; an older one is no longer valid."""
        self._key = secrets.token_urlsafe(SECRET_BYTES)
        self._announce(self._key)

    async def open_link(self, key: str, address: str) -> WebSession:
        """Sign in with the one-time key, or raise `Unauthenticated`."""
        self._check_failures(address)
        if self._key is None or not hmac.compare_digest(key.encode(), self._key.encode()):
            self._failed(address)
            raise Unauthenticated(
                "this link was used already, or is not this dashboard's",
                hint="Use the newest link that `rota web` has printed.",
            )
        self._key = None
        try:
            return self._begin(await self._access("", None))
        finally:
            self.new_link()

    # --- tokens ----------------------------------------------------------------------------------

    async def sign_in(self, token: str, address: str) -> WebSession:
        """Sign in with an access token of the daemon, or raise the daemon's error."""
        self._check_failures(address)
        try:
            access = await self._access(hashlib.sha256(token.encode()).hexdigest(), token)
        except Unauthenticated:
            self._failed(address)
            raise
        return self._begin(access)

    async def _access(self, name: str, token: str | None) -> CallerAccess:
        """Return the access of a token. The daemon is asked each time: the token may have been revoked."""
        known = self._accesses.get(name)
        if known is not None:
            await asyncio.to_thread(rights_of, known.api, CLIENT)
            return known
        api, rights = await asyncio.to_thread(self._open, token)
        if name in self._accesses:  # another sign-in was first
            api.close()
        else:
            self._accesses[name] = CallerAccess(api, rights, name[:8] or "own")
        return self._accesses[name]

    def _open(self, token: str | None) -> tuple[DashboardApi, CallerRights]:
        api = self._open_api(token)
        try:
            return api, rights_of(api, CLIENT)
        except BaseException:
            api.close()
            raise

    def _check_failures(self, address: str) -> None:
        since = self._clock.monotonic() - FAILURES_S
        recent = [at for at in self._failures.get(address, ()) if at > since]
        if len(recent) >= FAILURES_MAX:
            left_s = recent[0] - since
            raise LockedOut(f"too many wrong sign-ins from here: wait {left_s:.0f} s", retry_after_s=left_s)

    def _failed(self, address: str) -> None:
        if address not in self._failures and len(self._failures) >= ADDRESSES_MAX:
            self._failures.pop(next(iter(self._failures)))
        self._failures[address] = [*self._failures.get(address, ())[1 - FAILURES_MAX :], self._clock.monotonic()]

    # --- sessions --------------------------------------------------------------------------------

    def _begin(self, access: CallerAccess) -> WebSession:
        while len(self._sessions) >= SESSIONS_MAX:
            self.end(next(iter(self._sessions.values())))
        session = WebSession(access, self._clock.monotonic() + SESSION_S)
        self._sessions[session.session_id] = session
        return session

    def find(self, session_id: str | None) -> WebSession | None:
        """Return the session of a cookie, unless it has ended."""
        session = self._sessions.get(session_id or "")
        if session is None:
            return None
        if self._clock.monotonic() >= session.ends_at or session.access.feed.status == "ended":
            self.end(session)
            return None
        return session

    def end(self, session: WebSession) -> None:
        """End a session; the connection of its token closes with the last one."""
        self._sessions.pop(session.session_id, None)
        if any(other.access is session.access for other in self._sessions.values()):
            return
        for name, access in list(self._accesses.items()):
            if access is session.access:
                del self._accesses[name]
                access.close()

    def close(self) -> None:
        """End all sessions."""
        for session in list(self._sessions.values()):
            self.end(session)
