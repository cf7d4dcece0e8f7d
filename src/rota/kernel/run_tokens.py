"""A run's own access token: a program that shows it to a daemon may act for its run, and for nothing else.

The token is made from the claim and a key of the store, and nothing is stored for it:

    rota_run-SCHED_ID-CLAIM_MAC      MAC = the first 128 bits of HMAC-SHA256(key, "run SCHED_ID CLAIM")

CLAIM is the number of the claim (the claim token), which no other claim has. So a token is valid exactly while its
claim is live: the entry is dispatched under that number, and the claim has not expired. The key is 256 random bits in
the store's settings; it is made when it is first needed. Claims and completions know nothing of all this, and no event
can contain a token.
"""

from __future__ import annotations

import os
import re
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rota.errors import SchedInvalidPayload, SchedUnknownId, StaleClaim
from rota.kernel.environment import KernelEnvironment
from rota.kernel.settings import read_setting, write_setting
from rota.lazy import late
from rota.model.checks import Checks
from rota.store import Transaction
from rota.store.statements import claims as sql
from rota.store.statements import queue as queue_sql

if TYPE_CHECKING:
    import hmac
else:
    hmac = late("hmac")

__all__ = ["LiveClaim", "RunTokens", "is_run_token", "run_of_token"]

_KEY = "run_token_key"  # the setting in the store
_KEY_BYTES = 32
_MAC_HEX_CHARS = 32  # 128 bits
_FORM = re.compile(r"rota_run-([1-9][0-9]{0,18})-([1-9][0-9]{0,18})_([0-9a-f]{32})", re.ASCII)
_run = Checks("Run", SchedInvalidPayload)


class LiveClaim(NamedTuple):
    """A claim that is live, and whose it is."""

    sched_id: int
    pid: int
    project_id: str | None
    claim_token: int
    expires_at: float


class RunTokens:
    """Makes and checks the tokens of runs."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env
        self._key: bytes | None = None  # once it is known to be stored

    def make(self, sched_id: int, token: int) -> str:
        """Return the access token of a run, by its live claim; raises `StaleClaim` if there is none.

        The claim may have expired, if nothing has taken it back: its worker was away, and a heartbeat extends it.
        """
        _run.whole("sched_id", sched_id)
        _run.whole("token", token)
        if self._env.read(partial(_read_claim, sched_id=sched_id, token=token)) is None:
            if not self._env.read(lambda tx: tx.run(queue_sql.GET, (sched_id,))):
                raise SchedUnknownId(sched_id)
            text = f"token {token} is not the live claim of entry {sched_id}"
            raise StaleClaim(text, sched_id=sched_id, token=token)
        key = self._stored_key() or self._env.write_keeping_cache(self._make_key)
        return f"rota_run-{sched_id}-{token}_{_mac(key, sched_id, token)}"

    def read(self, text: str) -> tuple[int, int] | None:
        """Return the entry and the claim that an access token was made for; None if it was not made here."""
        form = _FORM.fullmatch(text)
        key = self._stored_key()
        if form is None or key is None:
            return None
        sched_id, token = int(form[1]), int(form[2])
        return (sched_id, token) if hmac.compare_digest(form[3], _mac(key, sched_id, token)) else None

    def live_claim(self, sched_id: int, token: int) -> LiveClaim | None:
        """Return a claim if it is live; one that has expired is not, whether or not it was taken back already."""
        claim = self._env.read(partial(_read_claim, sched_id=sched_id, token=token))
        if claim is None or claim.expires_at > self._env.now():
            return claim

        def read_again(tx: Transaction) -> LiveClaim | None:
            now = self._env.read_clock(tx, writes=False)  # if the clock has jumped, this moves the expiry
            again = _read_claim(tx, sched_id, token)
            return again if again is not None and again.expires_at > now else None

        return self._env.write_keeping_cache(read_again)

    def _stored_key(self) -> bytes | None:
        if self._key is None:
            text = self._env.read(partial(read_setting, key=_KEY))
            self._key = None if text is None else bytes.fromhex(text)
        return self._key

    def _make_key(self, tx: Transaction) -> bytes:
        """Return the key, and store it unless another process was first."""
        text = read_setting(tx, _KEY)
        if text is None:
            text = os.urandom(_KEY_BYTES).hex()
            write_setting(tx, _KEY, text)
        return bytes.fromhex(text)


def _read_claim(tx: Transaction, sched_id: int, token: int) -> LiveClaim | None:
    rows = tx.run(sql.LIVE_CLAIM, (sched_id, token))
    return LiveClaim(*rows[0]) if rows else None


def is_run_token(text: str) -> bool:
    """Return whether an access token has the form of a run's."""
    return _FORM.fullmatch(text) is not None


def run_of_token(text: str) -> tuple[int, int] | None:
    """Return the entry and the claim that a run's token names; None if it is none. Only `read` checks it."""
    form = _FORM.fullmatch(text)
    return None if form is None else (int(form[1]), int(form[2]))


def _mac(key: bytes, sched_id: int, token: int) -> str:
    return hmac.new(key, f"run {sched_id} {token}".encode(), "sha256").hexdigest()[:_MAC_HEX_CHARS]
