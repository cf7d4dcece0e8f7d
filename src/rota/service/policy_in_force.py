"""Which policy is in force on a store, for somebody who asks from outside.

A dispatcher knows its own policy. Whoever only looks (the command line over a file that a fleet works on, a daemon
beside such a fleet) has one too, and it says nothing about the claims that will be made. Two things do:

- *a note*: who decides for others by which policy they claim (a fleet, a daemon) leaves its name and parameters in
  the file when it begins, and again when that changes. It costs the claims nothing.
- *the newest claim* in the journal, which names its policy. It may be of somebody who left no note, and it may be
  newer than the note: then it is believed. Forced claims do not count, and a policy that has failed and is for a
  while replaced by strict order is still the one in force.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from rota.kernel.journal import NOTE, Journal
from rota.policy import registry
from rota.policy.contract import Policy
from rota.service.dispatcher import Dispatcher
from rota.store import Transaction
from rota.store.statements import file as file_sql
from rota.store.statements import journal as sql

__all__ = ["Chosen", "announce", "in_force"]

LOOKED_AT_MAX = 100_000  # events in which the newest claim is looked for
FAILED_WITHIN = 1_000  # events before it in which a failure is: a policy that fails is soon tried again
_NAME = "policy"  # of the note


class Chosen(NamedTuple):
    """By which policy a claim would choose, and how that is known."""

    policy: Policy
    source: str


class _Note(msgspec.Struct, frozen=True):
    name: str
    by: str
    params: dict[str, Any] = {}


class _Claimed(NamedTuple):
    """The newest claim, and its policy; the one that strict order stands in for, if it failed just before."""

    event_id: int
    policy: str
    failed: str | None

    @property
    def name(self) -> str:
        return self.failed or self.policy


def announce(journal: Journal, policy: str, *, by: str, params: dict[str, Any] | None = None) -> None:
    """Leave a note for those who look: from now on claims go by this policy."""
    journal.remember(_NAME, {"name": policy, "by": by, "params": params or {}})


def in_force(tx: Transaction, cursor: int, desk: Dispatcher) -> Chosen:
    """The policy that claims on this store go by, as far as the file says; else the desk's own."""
    note, claimed = _note(tx), _claimed(tx, cursor)
    if note is not None and (claimed is None or note.name in (claimed.policy, claimed.failed)):
        return _known(desk, note.name, note.params, f"{note.by} goes by")
    if claimed is not None:
        return _known(desk, claimed.name, {}, f"the newest claim, event {claimed.event_id}, went by")
    return Chosen(desk.policy, "nothing was claimed yet, so it is the default")


def _note(tx: Transaction) -> _Note | None:
    rows = tx.run(file_sql.META_GET, (NOTE + _NAME,))
    try:
        return msgspec.json.decode(rows[0][0], type=_Note) if rows else None
    except msgspec.DecodeError:
        return None  # somebody else's note, under the same name


def _claimed(tx: Transaction, cursor: int) -> _Claimed | None:
    rows = tx.run(sql.LAST_CLAIM, (cursor - LOOKED_AT_MAX, cursor))
    if not rows:
        return None
    event_id, policy = rows[0]
    failed = tx.run(sql.LAST_FAILURE, (event_id - FAILED_WITHIN, event_id)) if policy == "strict" else []
    return _Claimed(event_id, policy, failed[0][0] if failed else None)


def _known(desk: Dispatcher, name: str, params: dict[str, Any], who: str) -> Chosen:
    """A policy by its name, with the desk's memory of it where it has one; `who` goes by it."""
    try:
        return Chosen(registry.make(name, **params) if params else desk.named(name), f"{who} it")
    except Exception:  # it may be another package's, or of another program alone
        return Chosen(desk.policy, f"{who} {name}, which is not known here: this is the default")
