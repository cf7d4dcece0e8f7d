"""The policy of the store: reading it, and setting it with its event."""

from __future__ import annotations

import msgspec

from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.store_policy import (
    StorePolicy,
    merged_policy,
    merged_share_by,
    read_store_policy,
    restart_shares,
    write_store_policy,
)
from rota.model.events import PolicyChosen
from rota.model.policy_setting import PolicySetting, ShareBy
from rota.store import Transaction

__all__ = ["Policies"]


class Policies:
    """The policy of the store and what sharing counts. Whether a policy exists is for the caller to check."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env

    def get(self) -> StorePolicy:
        """Return what the store says."""
        return self._env.read(read_store_policy)

    def set(
        self,
        setting: PolicySetting | None,
        share_by: ShareBy | None = None,
        *,
        by: str,
        replace: bool,
        forget: bool = False,
    ) -> StorePolicy:
        """Record an opinion; raises `PolicyDiffers` if another author's is in force, unless it is replaced.

        With `forget` the policy is the default again.
        """

        def work(tx: Transaction) -> StorePolicy:
            known = read_store_policy(tx)
            new = msgspec.structs.replace(known, setting=None) if forget else known
            if setting is not None:
                new = msgspec.structs.replace(new, setting=merged_policy(known.setting, setting, replace=replace))
            if share_by is not None:
                chosen, author = merged_share_by(known, share_by, by, replace=replace)
                new = msgspec.structs.replace(new, share_by=chosen, share_by_set_by=author)
            if new != known:
                self._write(tx, known, new, by)
            return new

        return self._env.write(work)

    def _write(self, tx: Transaction, known: StorePolicy, new: StorePolicy, by: str) -> None:
        write_store_policy(tx, new)
        restarts = new.share_by != known.share_by
        event = PolicyChosen(
            policy=new.setting,
            share_by=new.share_by,
            share_by_set_by=new.share_by_set_by,
            restarts_shares=restarts,
            by=by,
        )
        event_id = append(tx, event, now=self._env.read_clock(tx))
        if restarts:
            restart_shares(tx, event_id)
        tx.effects.wake_parked = True
