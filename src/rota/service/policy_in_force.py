"""Which policy is in force on a store, for a caller that does not claim there itself.

A dispatcher knows its own policy. A caller that only reads (the command line on a file that a fleet uses, a daemon
beside such a fleet) has a policy too, but the claims are made by other processes. Two sources tell their policy:

- *the recorded policy*: a fleet or a daemon records the name and parameters of its policy in the store when it starts,
  and again when it changes. Claims do not pay for this.
- *the newest claim* in the journal, which names its policy. Its process may have recorded nothing, or the claim may be
  newer than the record: then the claim decides. Forced claims do not count, and a policy that failed and is replaced by
  strict order for a while is still in force.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from rota.errors import RotaError, StoreCorrupt
from rota.kernel import journal
from rota.kernel.journal import Journal
from rota.policy.contract import Policy, PolicyIsolation
from rota.service.dispatcher import Dispatcher
from rota.store import Transaction

__all__ = ["PolicyChoice", "find_policy", "record_policy"]

LOOK_BACK_MAX = 100_000  # events that are searched for the newest claim
FAILED_WITHIN = 1_000  # events before it that are searched for a failure: a failed policy is soon tried again
_NAME = "policy"  # of the note in the store


class PolicyChoice(NamedTuple):
    """The policy that a claim would use, and how that is known."""

    policy: Policy
    source: str


class _RecordedPolicy(msgspec.Struct, frozen=True):
    name: str
    by: str
    params: dict[str, Any] = {}
    isolation: PolicyIsolation = "thread"


class _NewestClaim(NamedTuple):
    """The newest claim, its policy, and the policy that failed just before and was replaced by strict order."""

    event_id: int
    policy: str
    failed: str | None

    @property
    def name(self) -> str:
        return self.failed or self.policy


def record_policy(
    notes: Journal,
    policy: str,
    *,
    by: str,
    params: dict[str, Any] | None = None,
    isolation: PolicyIsolation = "thread",
) -> None:
    """Record in the store that claims use this policy from now on."""
    notes.remember(_NAME, {"name": policy, "by": by, "params": params or {}, "isolation": isolation})


def find_policy(dispatcher: Dispatcher) -> PolicyChoice:
    """The policy that claims on this store use, as far as the store tells; otherwise that of the dispatcher."""
    cursor = dispatcher.journal.cursor()
    recorded, newest = dispatcher.kernel.store.read(lambda tx: (_recorded_policy(tx), _newest_claim(tx, cursor)))
    if recorded is not None and (newest is None or recorded.name in (newest.policy, newest.failed)):
        return _resolve(dispatcher, recorded, recorded.by)
    if newest is not None:
        return _resolve(dispatcher, _RecordedPolicy(newest.name, ""), f"the newest claim, event {newest.event_id}")
    return PolicyChoice(dispatcher.policy, "the default: no claim was made yet")


def _recorded_policy(tx: Transaction) -> _RecordedPolicy | None:
    try:
        note = journal.read_note(tx, _NAME)
        return None if note is None else msgspec.convert(note, _RecordedPolicy)
    except (StoreCorrupt, msgspec.ValidationError):
        return None  # another program uses the same name, or the note is damaged


def _newest_claim(tx: Transaction, cursor: int) -> _NewestClaim | None:
    newest = journal.newest_claim(tx, cursor - LOOK_BACK_MAX, cursor)
    if newest is None:
        return None
    event_id, policy = newest
    failed = journal.newest_policy_failure(tx, event_id - FAILED_WITHIN, event_id) if policy == "strict" else None
    return _NewestClaim(event_id, policy, failed)


def _resolve(dispatcher: Dispatcher, wanted: _RecordedPolicy, user: str) -> PolicyChoice:
    """Return a policy by its name: the instance of the dispatcher if it has one. `user` is what uses the policy."""
    try:
        if wanted.params or wanted.isolation != "thread":
            policy = dispatcher.make_policy(wanted.name, wanted.params, wanted.isolation)
        else:
            policy = dispatcher.resolve_policy(wanted.name)
        return PolicyChoice(policy, f"used by {user}")
    except RotaError:  # it may belong to another package, or be registered by another program only
        return PolicyChoice(dispatcher.policy, f"the default: {user} uses {wanted.name}, which is not installed here")
