"""Queued entries whose host refuses them the cores that they ask for.

The journal has what each entry asked last, and of which host. A grant ends without a write (kernel/core_grants.py), so
what was refused then may be free now: a refusal is decided again whenever it is read, by the admission of a grant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pkgutil import resolve_name

import msgspec

from rota.decoding import convert
from rota.errors import Refused, RotaError
from rota.kernel.core_grants import live_grants, queued_among, refused_lately
from rota.model.core_grants import CoreAsk, CoreGrant, CoreHost, CoreRefusal
from rota.model.events import CoresRefused
from rota.store import Transaction

__all__ = ["ADMISSION", "AskedOfHost", "CoreRefusals", "asked_of", "holders"]

ADMISSION = "rota.service.core_admission"  # by its name: it loads the engine, which few processes need
DECIDED_MAX = 64  # asks that one read decides again, a millisecond each; of others the recorded refusal is returned


class AskedOfHost(msgspec.Struct, frozen=True):
    """What was asked of which host, as a refusal records it."""

    host: CoreHost
    ask: CoreAsk


def asked_of(event: CoresRefused) -> AskedOfHost | None:
    """Return what was asked; None if that is unknown, or was recorded by another version."""
    try:
        return convert(event.asked, AskedOfHost) if event.asked else None
    except (RotaError, msgspec.ValidationError):
        return None


def holders(live: Sequence[CoreGrant], sched_id: int) -> tuple[int, ...]:
    """Return the other entries that have leased cores or reserved time."""
    return tuple(each.sched_id for each in live if each.sched_id != sched_id and (each.leased or each.reserved))


class CoreRefusals:
    """The entries that one host, or any, refuses at one moment. Each is decided when it is asked for."""

    def __init__(self, tx: Transaction, now: float, host: str | None = None) -> None:
        self._tx, self._now = tx, now
        lately = refused_lately(tx, host)
        waiting = queued_among(tx, lately)
        self._lately = {sched_id: found for sched_id, found in lately.items() if sched_id in waiting}
        self._live: dict[str, list[CoreGrant]] = {}
        self._decided: dict[bytes, Refused | None] = {}

    def __iter__(self) -> Iterator[CoreRefusal]:
        """Yield the refusals, the latest first."""
        return (refusal for sched_id in self._lately if (refusal := self.of(sched_id)) is not None)

    def of(self, sched_id: int) -> CoreRefusal | None:
        """Return the refusal of an entry as it would be now; None if its host would grant what it asked last."""
        if sched_id not in self._lately:
            return None
        at, event = self._lately[sched_id]
        reason, held_by, never = event.reason, event.held_by, False
        asked = asked_of(event)
        if asked is not None and self._decides(key := msgspec.json.encode(asked)):
            if key not in self._decided:
                self._decided[key] = self._decide(asked)
            refused = self._decided[key]
            if refused is None:
                return None
            reason, never = refused.message, bool(refused.data.get("never_here"))
            held_by = () if never else holders(self._live[event.host], sched_id)
        return CoreRefusal(
            sched_id=sched_id, host_name=event.host_name, at=at, reason=reason, held_by=held_by, never=never
        )

    def _decides(self, key: bytes) -> bool:
        return key in self._decided or len(self._decided) < DECIDED_MAX

    def _decide(self, asked: AskedOfHost) -> Refused | None:
        admission, host = resolve_name(ADMISSION), asked.host
        if host.key not in self._live:
            self._live[host.key] = live_grants(self._tx, self._now, host.key)
        asker = admission.Asker(0, 0, 0, "", None, self._now)  # a queued entry, which has no grant
        try:
            admission.decide(host, self._live[host.key], asked.ask, asker, [])
        except Refused as refusal:
            lasting: Refused = admission.lasting_refusal(refusal, host, asked.ask, asker)
            return lasting
        return None
