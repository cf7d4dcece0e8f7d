"""Access tokens: create, list, rotate, revoke and check them.

A token is `rota_ID_SECRET`. The store's settings hold only a SHA-256 hash of the secret. A slow hash would add nothing,
because the secret is 32 random bytes and cannot be guessed. Secrets are compared in constant time; an unknown id is
compared with the hash of an empty secret, so that it takes as long as a known one.

A token that is rotated keeps its id, scope and expiry and gets another secret. The old one stays valid for as long as
the operator says, so that clients can be changed meanwhile.

The tokens are kept in memory until the store says that another process has written. That may come a moment after a
token was created or rotated there, so a token that does not match is looked up in the store before it is refused. One
that was revoked elsewhere ends when the store says so.

A run's own token is not stored at all (`kernel/run_tokens.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from rota.decoding import decode_json
from rota.errors import InvalidInput, StoreCorrupt, Unauthenticated, UnknownRequest
from rota.kernel import Kernel
from rota.kernel.journal import append
from rota.kernel.run_tokens import LiveClaim, is_run_token
from rota.kernel.settings import read_setting, settings_with_prefix, write_setting
from rota.model.checks import Checks
from rota.model.events import TokenChanged
from rota.rpc.authorization import BOUND_SCOPES, Principal, RunIdentity
from rota.rpc.methods import SCOPES
from rota.rpc.server_api import CreatedToken, TokenLine
from rota.store import Transaction
from rota.store.forks import in_child

__all__ = ["LOOKUPS_MAX", "LOOKUPS_S", "TOKENS_MAX", "AccessTokens", "token_id_of"]

TOKENS_MAX = 1_000  # in one store, including revoked tokens
OVERLAP_S_MAX = 30 * 86_400.0  # how long an old secret may stay valid
LOOKUPS_MAX = 50  # within `LOOKUPS_S`, of tokens that do not match: a flood of wrong ones must not occupy the store
LOOKUPS_S = 1.0
_PREFIX = "token:"
_ID_BYTES = 6
_ID = re.compile(rf"[0-9a-f]{{{2 * _ID_BYTES}}}")
_SECRET_BYTES = 32
_RUN_HINT = "A run's token is valid while the run's claim lives; the next attempt gets another one."
_checks = Checks("Token", InvalidInput)
_log = logging.getLogger("rota.rpc")
_NO_SECRET = hashlib.sha256(b"").hexdigest()  # what a secret is compared with where there is none


class _StoredToken(msgspec.Struct, frozen=True):
    """A token as it is stored."""

    line: TokenLine
    digest: str
    old_digest: str = ""  # of the secret before the last rotation
    old_until_at: float = 0.0  # which is valid until then


class AccessTokens:
    """The tokens of one store."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._renew_lock()
        in_child(self._renew_lock)
        self._version = object()  # another one whenever the tokens may have changed
        self._cache: tuple[object, dict[str, _StoredToken]] = (None, {})  # the tokens as they were at a version
        self._lookups: deque[float] = deque(maxlen=LOOKUPS_MAX)  # when the last ones were
        self._watchers: list[Callable[[], None]] = []
        self._unsubscribe = kernel.store.on_change(self.forget, foreign_only=True)

    def _renew_lock(self) -> None:
        """Also in every forked child: a thread of the parent may hold the lock."""
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Drop the cache: the tokens may have changed. It needs no lock: a read that is under way is not kept."""
        self._version = object()
        for call in self._watchers:
            call()

    def on_change(self, call: Callable[[], None]) -> None:
        """Call this, on any thread, whenever tokens may have changed."""
        self._watchers.append(call)

    def close(self) -> None:
        """Stop watching the store for changes."""
        self._unsubscribe()

    def create(
        self,
        name: str,
        scope: str,
        projects: tuple[str, ...] | None = None,
        expires_in_s: float | None = None,
    ) -> CreatedToken:
        """Create a token. The returned secret is not stored and cannot be shown again."""
        _checks.name("name", name)
        _checks.one_of("scope", scope, SCOPES)
        if projects is not None:
            _checks.texts("projects", tuple(projects))
            if not projects:
                raise _checks.refuse("projects", "must name at least one project; omit it for all projects")
            if scope not in BOUND_SCOPES:
                raise _checks.refuse("projects", f"can only restrict scope {' or '.join(BOUND_SCOPES)}, not {scope}")
        now = self._kernel.clock.now()
        expires_at = None if expires_in_s is None else now + _checks.number("expires_in_s", expires_in_s, 1, 1e12)
        token_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        bound = None if projects is None else tuple(projects)
        line = TokenLine(
            token_id=token_id, name=name, scope=scope, projects=bound, created_at=now, expires_at=expires_at
        )

        def work(tx: Transaction) -> None:
            if len(settings_with_prefix(tx, _PREFIX)) >= TOKENS_MAX:
                problem = f"would be one token too many: a store holds at most {TOKENS_MAX:,}, including revoked ones"
                raise _checks.refuse("name", problem)
            self._write(tx, _StoredToken(line, _digest(secret)), "created", now)

        self._kernel.store.write(work)
        self.forget()
        return CreatedToken(f"rota_{token_id}_{secret}", line)

    def list(self) -> list[TokenLine]:
        """Return all tokens, oldest first, without their secrets."""
        return sorted((stored.line for stored in self._read().values()), key=lambda line: line.created_at)

    def revoke(self, token_id: str) -> TokenLine:
        """Revoke a token; revoking it again changes nothing."""
        _checks.text("token_id", token_id)
        now = self._kernel.clock.now()

        def work(tx: Transaction) -> TokenLine:
            stored = _find(tx, token_id)
            if stored.line.revoked_at is not None:
                return stored.line
            line = msgspec.structs.replace(stored.line, revoked_at=now)
            self._write(tx, _StoredToken(line, stored.digest), "revoked", now)
            return line

        line = self._kernel.store.write(work)
        self.forget()
        return line

    def rotate(self, token_id: str, overlap_s: float = 0.0) -> CreatedToken:
        """Give a token a new secret; the old one, and connections that used it, stay valid for `overlap_s`."""
        _checks.text("token_id", token_id)
        _checks.number("overlap_s", overlap_s, 0, OVERLAP_S_MAX)
        now, secret = self._kernel.clock.now(), secrets.token_urlsafe(_SECRET_BYTES)

        def work(tx: Transaction) -> TokenLine:
            stored = _find(tx, token_id)
            if stored.line.revoked_at is not None:
                raise _checks.refuse("token_id", f"{token_id} is revoked: create another token")
            changed = _StoredToken(stored.line, _digest(secret), stored.digest, now + overlap_s)
            self._write(tx, changed, "rotated", now)
            return stored.line

        line = self._kernel.store.write(work)
        self.forget()
        return CreatedToken(f"rota_{token_id}_{secret}", line)

    def authenticate(self, token: str, peer: str) -> Principal:
        """Return the principal of a token, or raise `Unauthenticated`."""
        if not token:
            raise Unauthenticated("the request has no access token")
        if is_run_token(token):
            return self._authenticate_run(token, peer)
        token_id, secret = _parts(token)
        digest, stored = _digest(secret), self._read().get(token_id)
        if not _matches(stored, digest):
            stored = self._look_up(token_id)
        if stored is None or not secret or not _matches(stored, digest):
            raise Unauthenticated("the access token is unknown")
        expires_at, line = self._check(stored, digest), stored.line
        projects = None if line.projects is None else frozenset(line.projects)
        return Principal(
            name=f"token:{token_id}",
            scope=line.scope,  # type: ignore[arg-type]  # one of SCOPES
            projects=projects,
            peer=peer,
            token_id=token_id,
            digest=digest,
            expires_at=expires_at,
        )

    def check(self, principal: Principal) -> float | None:
        """Raise `Unauthenticated` if a principal has lost its rights: its token ended, or its run.

        Returns when they expire; those of a run do unless its claim is extended.
        """
        if principal.run is not None:
            return self._live_claim(principal.run.sched_id, principal.run.claim_token).expires_at
        if principal.token_id is not None:
            stored = self._read().get(principal.token_id)
            if stored is None:
                raise Unauthenticated("the access token is unknown")
            return self._check(stored, principal.digest)
        return principal.expires_at

    def _check(self, stored: _StoredToken, digest: str) -> float | None:
        """Return when a secret of a token expires, or raise `Unauthenticated` if it is not valid."""
        line, now = stored.line, self._kernel.clock.now()
        if line.revoked_at is not None:
            raise Unauthenticated(f"token {line.token_id} was revoked", token_id=line.token_id)
        if line.expires_at is not None and line.expires_at <= now:
            raise Unauthenticated(f"token {line.token_id} has expired", token_id=line.token_id)
        if digest == stored.digest:
            return line.expires_at
        if digest != stored.old_digest or stored.old_until_at <= now:
            hint = "Use the secret that `rota token rotate` printed."
            raise Unauthenticated(f"token {line.token_id} has another secret", hint=hint, token_id=line.token_id)
        return stored.old_until_at if line.expires_at is None else min(line.expires_at, stored.old_until_at)

    def _authenticate_run(self, token: str, peer: str) -> Principal:
        """Return the principal of a run's own token, which the kernel knows and which is not stored."""
        named = self._kernel.supervision.run_tokens.read(token)
        if named is None:
            raise Unauthenticated("the access token is unknown")
        sched_id, pid, project_id, claim_token, _ = self._live_claim(*named)
        run = RunIdentity(sched_id=sched_id, pid=pid, project_id=project_id, claim_token=claim_token)
        return Principal.of_run(run, name=f"run:{sched_id}", peer=peer)

    def watch_run(self, run: RunIdentity, call: Callable[[], None]) -> Callable[[], None]:
        """Call a function, on any thread, whenever a run may have ended; returns a function that stops it."""
        return self._kernel.queue.watch(run.sched_id, call)

    def _live_claim(self, sched_id: int, claim_token: int) -> LiveClaim:
        claim = self._kernel.supervision.run_tokens.live_claim(sched_id, claim_token)
        if claim is None:
            raise Unauthenticated(f"run {sched_id} has ended", hint=_RUN_HINT, sched_id=sched_id)
        return claim

    def _write(self, tx: Transaction, stored: _StoredToken, verb: Any, now: float) -> None:
        write_setting(tx, _PREFIX + stored.line.token_id, msgspec.json.encode(stored).decode())
        append(tx, TokenChanged(token_id=stored.line.token_id, verb=verb, scope=_scope_list(stored.line)), now=now)
        tx.effects.on_commit.append(self.forget)

    def _read(self) -> dict[str, _StoredToken]:
        with self._lock:
            version, found = self._cache
            if version is not self._version:
                version = self._version
                bodies = self._kernel.store.read(lambda tx: settings_with_prefix(tx, _PREFIX))
                stored = [one for body in bodies if (one := _decode(body)) is not None]
                found = {one.line.token_id: one for one in stored}
                self._cache = version, found
            return found

    def _look_up(self, token_id: str) -> _StoredToken | None:
        """Read one token from the store: another process may have just created or rotated it."""
        now = self._kernel.clock.monotonic()
        is_flood = len(self._lookups) == LOOKUPS_MAX and now - self._lookups[0] < LOOKUPS_S
        if is_flood or not _ID.fullmatch(token_id):
            return None
        self._lookups.append(now)
        body = self._kernel.store.read(lambda tx: read_setting(tx, _PREFIX + token_id))
        stored = None if body is None else _decode(body)
        if stored is not None:
            self.forget()
        return stored


def _matches(stored: _StoredToken | None, digest: str) -> bool:
    """Whether a token has this secret, or had it before it was rotated. It takes as long for one that is unknown."""
    secret, old_secret = ("", "") if stored is None else (stored.digest, stored.old_digest)
    matches = hmac.compare_digest(digest, secret or _NO_SECRET)
    matches_old = hmac.compare_digest(digest, old_secret or _NO_SECRET)
    return stored is not None and (matches or matches_old)


def _find(tx: Transaction, token_id: str) -> _StoredToken:
    body = read_setting(tx, _PREFIX + token_id)
    if body is None:
        raise UnknownRequest(f"no token has id {token_id!r}", token_id=token_id)
    stored = _decode(body)
    if stored is None:
        hint = "It grants nothing; create another token."
        raise StoreCorrupt(f"token {token_id!r} cannot be read", hint=hint, token_id=token_id)
    return stored


def _decode(body: str) -> _StoredToken | None:
    """Decode a stored token. One that cannot be read is left out: it grants nothing, and the others go on."""
    try:
        return decode_json(body, _StoredToken)
    except msgspec.DecodeError as problem:
        _log.warning("a stored access token cannot be read and is ignored: %s", problem)
        return None


def _scope_list(line: TokenLine) -> list[str]:
    return [line.scope] if line.projects is None else [f"{line.scope}:{project_id}" for project_id in line.projects]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def token_id_of(token: str) -> str:
    """Return the id in the text of a token, whether it is valid or not."""
    return token.split("_")[1] if token.count("_") > 1 else ""


def _parts(token: str) -> tuple[str, str]:
    """Return a token's id and secret; both are empty if it is not a token."""
    head, _, rest = token.partition("_")
    token_id, _, secret = rest.partition("_")
    return (token_id, secret) if head == "rota" else ("", "")
