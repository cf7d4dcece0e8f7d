"""Core grants as rows: leased cores and reserved time on the hosts of a store.

A grant belongs to a claim and is live while that claim is. So nothing has to be written when a claim ends, expires or
is taken back: a grant whose claim has ended or expired does not count any more, and the next grant removes its row
(`remove_ended`). The primary key of the leases is the core of a host, so two supervisors cannot lease one core, however
they decide.

Who may have what is decided above (`service/core_grants.py`), in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import msgspec

from rota.decoding import decode_json
from rota.errors import StoreCorrupt
from rota.kernel.journal import append
from rota.kernel.rows import DECODE_ERRORS, json_list
from rota.model.core_grants import CoreGrant
from rota.model.events import CoresGranted, CoresRefused, CoresReturned
from rota.store import Transaction
from rota.store.statements import core_grants as sql

__all__ = [
    "ENDED_MAX",
    "GRANTS_MAX",
    "leased_cores",
    "live_grants",
    "queued_among",
    "refused_lately",
    "remove_ended",
    "remove_grant",
    "save_grant",
]

GRANTS_MAX = 10_000  # live grants of one host that are read
ENDED_MAX = 256  # ended grants removed in one transaction
LATELY_EVENTS = 2_000  # how far back refusals are looked for
_encode = msgspec.json.Encoder().encode


def live_grants(tx: Transaction, now: float, host: str | None = None) -> list[CoreGrant]:
    """Return the live grants of a host, or of all hosts, by entry."""
    return [_decode(sched_id, body) for sched_id, body in tx.run(sql.LIVE, (host, now, GRANTS_MAX))]


def leased_cores(tx: Transaction, host: str) -> dict[int, int]:
    """Return the leased cores of a host, and the entry that leases each."""
    return {int(core): int(sched_id) for core, sched_id in tx.run(sql.LEASES, (host,))}


def remove_ended(tx: Transaction, now: float) -> bool:
    """Remove grants whose claim has ended, a bounded number; returns whether there were any."""
    ended = [int(row[0]) for row in tx.run(sql.ENDED, (ENDED_MAX,))]
    if ended:
        _remove(tx, ended, "claim_ended", now)
    return bool(ended)


def remove_grant(tx: Transaction, sched_id: int, token: int, now: float) -> str | None:
    """Remove the grant of a claim; returns its host, None if there was none."""
    host = next((str(row[2]) for row in tx.run(sql.GET, (sched_id,)) if row[1] == token), None)
    if host is not None:
        _remove(tx, [sched_id], "released", now)
    return host


def save_grant(tx: Transaction, grant: CoreGrant) -> None:
    """Store a grant, replacing an earlier one of the same entry."""
    if tx.run(sql.GET, (grant.sched_id,)):  # it asks again
        _remove(tx, [grant.sched_id], "released", grant.granted_at)
    tx.run(sql.CREATE, (grant.sched_id, grant.token, grant.host, _encode(grant).decode()))
    for core in grant.leased:
        tx.run(sql.LEASE, (grant.host, core, grant.sched_id))
    event = CoresGranted(
        sched_id=grant.sched_id,
        token=grant.token,
        host=grant.host,
        host_name=grant.host_name,
        owner=grant.owner,
        leased=grant.leased,
        reserved_ppm={str(core): ppm for core, ppm in grant.reserved_ppm().items()},
        quota_us=grant.quota_us,
        quota_period_us=grant.quota_period_us,
        island=grant.island,
        evidence=grant.evidence,
    )
    append(tx, event, now=grant.granted_at)  # without the agent: hosts and who uses them are the operator's


def refused_lately(tx: Transaction, host: str | None = None) -> dict[int, tuple[float, CoresRefused]]:
    """Return the last refusal of each entry that a host, or any, refused lately, and its time, the latest first."""
    found: dict[int, tuple[float, CoresRefused]] = {}
    for at, payload in tx.run(sql.REFUSED_LATELY, (LATELY_EVENTS, LATELY_EVENTS)):
        with suppress(*DECODE_ERRORS):  # `rota db check` reports it
            event = decode_json(payload, CoresRefused)
            if host is None or event.host == host:
                found.setdefault(event.sched_id, (at, event))
    return found


def queued_among(tx: Transaction, sched_ids: Iterable[int]) -> set[int]:
    """Return those of some entries that are queued."""
    return {int(row[0]) for row in tx.run(sql.QUEUED, (json_list(sched_ids),))}


def _remove(tx: Transaction, sched_ids: list[int], reason: str, now: float) -> None:
    ids = json_list(sched_ids)
    tx.run(sql.DELETE_LEASES, (ids,))
    tx.run(sql.DELETE, (ids,))
    append(tx, CoresReturned(sched_ids=sched_ids, reason=reason), now=now)  # type: ignore[arg-type]  # one of two words


def _decode(sched_id: int, body: str) -> CoreGrant:
    try:
        return decode_json(body, CoreGrant)
    except DECODE_ERRORS as problem:
        hint = f"Its run keeps its cores; end it with `rota cancel {sched_id} --stop`."
        raise StoreCorrupt(f"the core grant of entry {sched_id} cannot be read: {problem}", hint=hint) from problem
