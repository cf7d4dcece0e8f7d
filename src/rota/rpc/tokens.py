"""Access tokens: made, listed, revoked, checked.

A token is `rota_ID_SECRET`. The secret is 32 random bytes, so a plain hash of it is as good as it gets: there is
nothing to guess. Only the hash is kept, in the file's own settings, and a given secret is compared in constant time,
against a hash of nothing where the id is unknown.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from typing import Any

import msgspec

from rota.errors import InvalidInput, Unauthenticated, UnknownRequest
from rota.kernel import Kernel
from rota.kernel.journal import append
from rota.model.checks import Checks
from rota.model.events import TokenMoved
from rota.rpc.authorization import BOUND_SCOPES, Caller
from rota.rpc.methods import SCOPES
from rota.rpc.results.register import NewToken, TokenLine
from rota.store import Transaction
from rota.store.statements import file as sql

__all__ = ["TOKENS_MAX", "Tokens"]

TOKENS_MAX = 1_000  # kept, revoked ones included
_PREFIX = "token:"
_ID_BYTES = 6
_SECRET_BYTES = 32
_checks = Checks("Token", InvalidInput)


class _Kept(msgspec.Struct, frozen=True):
    """A token as the file has it."""

    line: TokenLine
    digest: str


class Tokens:
    """The tokens of one store."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._guard = threading.Lock()
        self._cache: dict[str, _Kept] | None = None
        self._end = kernel.store.on_change(self.forget, foreign_only=True)

    def forget(self) -> None:
        """Somebody may have changed the tokens: read them again when next asked."""
        self._cache = None

    def close(self) -> None:
        """Hear of no more changes."""
        self._end()

    def create(
        self,
        name: str,
        scope: str,
        projects: tuple[str, ...] | None = None,
        expires_in_s: float | None = None,
    ) -> NewToken:
        """Make a token; its secret is in the answer and nowhere else."""
        _checks.text("name", name)
        _checks.one_of("scope", scope, SCOPES)
        if projects is not None:
            _checks.texts("projects", tuple(projects))
            if not projects:
                raise _checks.refuse("projects", "must name at least one; leave it out for all")
            if scope not in BOUND_SCOPES:
                raise _checks.refuse("projects", f"can bind {' and '.join(BOUND_SCOPES)}, not {scope}")
        now = self._kernel.clock.now()
        expires_at = None if expires_in_s is None else now + _checks.number("expires_in_s", expires_in_s, 1, 1e12)
        token_id, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
        bound = None if projects is None else tuple(projects)
        line = TokenLine(
            token_id=token_id, name=name, scope=scope, projects=bound, created_at=now, expires_at=expires_at
        )

        def work(tx: Transaction) -> None:
            if len(tx.run(sql.META_UNDER, _range())) >= TOKENS_MAX:
                raise _checks.refuse("name", f"is one too many: {TOKENS_MAX:,} tokens are kept; revoke some")
            self._write(tx, _Kept(line, _digest(secret)), "created", now)

        self._kernel.store.write(work)
        self.forget()
        return NewToken(f"rota_{token_id}_{secret}", line)

    def list(self) -> list[TokenLine]:
        """Every token, oldest first, without its secret."""
        return sorted((kept.line for kept in self._read().values()), key=lambda line: line.created_at)

    def revoke(self, token_id: str) -> TokenLine:
        """Let a token open nothing any more; one that was revoked before stays so."""
        _checks.text("token_id", token_id)
        now = self._kernel.clock.now()

        def work(tx: Transaction) -> TokenLine:
            rows = tx.run(sql.META_GET, (_PREFIX + token_id,))
            if not rows:
                raise UnknownRequest(f"there is no token {token_id!r}", token_id=token_id)
            kept = msgspec.json.decode(rows[0][0], type=_Kept)
            if kept.line.revoked_at is not None:
                return kept.line
            line = msgspec.structs.replace(kept.line, revoked_at=now)
            self._write(tx, _Kept(line, kept.digest), "revoked", now)
            return line

        line = self._kernel.store.write(work)
        self.forget()
        return line

    def caller(self, token: str, peer: str) -> Caller:
        """Who has this token, or the error that nobody has."""
        if not token:
            raise Unauthenticated("no token was sent")
        token_id, secret = _parts(token)
        kept = self._read().get(token_id)
        right = hmac.compare_digest(_digest(secret), _digest("") if kept is None else kept.digest)
        if kept is None or not right:
            raise Unauthenticated("this token is unknown")
        line = kept.line
        if line.revoked_at is not None:
            raise Unauthenticated(f"token {token_id} was revoked", token_id=token_id)
        if line.expires_at is not None and line.expires_at <= self._kernel.clock.now():
            raise Unauthenticated(f"token {token_id} has expired", token_id=token_id)
        projects = None if line.projects is None else frozenset(line.projects)
        return Caller(name=f"token:{token_id}", scope=line.scope, projects=projects, peer=peer)  # type: ignore[arg-type]

    def _write(self, tx: Transaction, kept: _Kept, verb: Any, now: float) -> None:
        tx.run(sql.META_SET, (_PREFIX + kept.line.token_id, msgspec.json.encode(kept).decode()))
        append(tx, TokenMoved(token_id=kept.line.token_id, verb=verb, scope=_scope_words(kept.line)), now=now)
        tx.notes.after.append(self.forget)

    def _read(self) -> dict[str, _Kept]:
        with self._guard:
            if (cached := self._cache) is None:
                rows = self._kernel.store.read(lambda tx: tx.run(sql.META_UNDER, _range()))
                found = [msgspec.json.decode(row[1], type=_Kept) for row in rows]
                cached = self._cache = {kept.line.token_id: kept for kept in found}
            return cached


def _range() -> tuple[str, str]:
    return _PREFIX, _PREFIX[:-1] + chr(ord(_PREFIX[-1]) + 1)


def _scope_words(line: TokenLine) -> list[str]:
    return [line.scope] if line.projects is None else [f"{line.scope}:{project_id}" for project_id in line.projects]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


def _parts(token: str) -> tuple[str, str]:
    """A token's id and secret; what is no token has neither."""
    head, _, rest = token.partition("_")
    token_id, _, secret = rest.partition("_")
    return (token_id, secret) if head == "rota" else ("", "")
