"""Which policy is in force on a store, for a caller that does not claim there itself.

The policy of the store (kernel/store_policy.py) decides, if there is one. Otherwise the callers that claim decide: a
supervisor uses the default policy, a plain claim strict order, and a program may have a policy of its own that it has
not given to the store. Then *the newest claim* in the journal tells it, because every claim names its policy. Forced
claims do not count, and a policy that failed and is replaced by strict order for a while is still in force.
"""

from __future__ import annotations

from typing import NamedTuple

from rota.errors import RotaError
from rota.kernel import journal
from rota.policy.contract import Policy
from rota.policy.registry import DEFAULT_NAME, default_policy
from rota.service.dispatcher import Dispatcher
from rota.store import Transaction

__all__ = ["PolicyChoice", "find_policy"]

LOOK_BACK_MAX = 100_000  # events that are searched for the newest claim
FAILED_WITHIN = 1_000  # events before it that are searched for a failure: a failed policy is soon tried again


class PolicyChoice(NamedTuple):
    """The policy that a claim would use, and how that is known."""

    policy: Policy
    source: str


class _NewestClaim(NamedTuple):
    """The newest claim, its policy, and the policy that failed just before and was replaced by strict order."""

    event_id: int
    policy: str
    failed: str | None

    @property
    def name(self) -> str:
        return self.failed or self.policy


def find_policy(dispatcher: Dispatcher) -> PolicyChoice:
    """The policy that claims on this store use, as far as the store tells; otherwise that of the dispatcher."""
    cursor = dispatcher.journal.cursor()
    setting = dispatcher.kernel.policies.get().setting
    if setting is not None:
        try:
            policy = dispatcher.make_policy(setting.name, setting.params, setting.isolation)
        except RotaError:
            user = f"set by {setting.by}, and not installed here: strict order replaces it"
            return PolicyChoice(dispatcher.resolve_policy("strict"), f"{setting.sentence()}, {user}")
        return PolicyChoice(policy, f"set by {setting.by}")
    newest = dispatcher.kernel.store.read(lambda tx: _newest_claim(tx, cursor))
    if newest is not None:
        return _resolve(dispatcher, newest.name, f"the newest claim, event {newest.event_id}")
    return PolicyChoice(dispatcher.policy, "the default: no claim was made yet")


def _newest_claim(tx: Transaction, cursor: int) -> _NewestClaim | None:
    newest = journal.newest_claim(tx, cursor - LOOK_BACK_MAX, cursor)
    if newest is None:
        return None
    event_id, policy = newest
    failed = journal.newest_policy_failure(tx, event_id - FAILED_WITHIN, event_id) if policy == "strict" else None
    return _NewestClaim(event_id, policy, failed)


def _resolve(dispatcher: Dispatcher, name: str, user: str) -> PolicyChoice:
    """Return a policy by its name: the instance of the dispatcher if it has one. `user` is what uses the policy."""
    try:
        policy = default_policy() if name == DEFAULT_NAME else dispatcher.resolve_policy(name)
        return PolicyChoice(policy, f"used by {user}")
    except RotaError:  # it may belong to another package, or be registered by another program only
        return PolicyChoice(dispatcher.policy, f"the default: {user} uses {name}, which is not installed here")
