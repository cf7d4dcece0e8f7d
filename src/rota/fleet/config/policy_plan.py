"""The policy that a fleet would run with: that of its file or, if the file has none, that of the store."""

from __future__ import annotations

from typing import Literal

import msgspec

from rota.errors import PolicyDiffers, RotaError
from rota.fleet.config.tables import Fleet, PolicyTable
from rota.kernel.store_policy import StorePolicy, merged_policy, merged_share_by
from rota.model.policy_setting import PolicyInForce, PolicySetting
from rota.service.policy_process import make_policy
from rota.service.store_policies import made_setting

__all__ = ["with_policy_of_store"]


def with_policy_of_store(fleet: Fleet, known: StorePolicy | PolicyInForce) -> tuple[Fleet, list[str]]:
    """Return the fleet with the policy that it would run with, and warnings about that."""
    stored = _stored(known) if isinstance(known, PolicyInForce) else known
    warnings, setting = _refusals(fleet, stored), stored.setting
    if fleet.policy is not None or setting is None or setting.by == fleet.author:  # what it said before is taken back
        return fleet, warnings
    table = PolicyTable(name=setting.name, params=setting.params, isolation=setting.isolation)
    try:
        make_policy(table.name, table.params, table.isolation)
    except RotaError as problem:
        told = f"{setting.sentence()}, set by {setting.by}"
        warnings.append(f"policy: {told}, cannot be made here, so strict order replaces it: {problem.message}")
        table = PolicyTable(name="strict")
    return msgspec.structs.replace(fleet, policy=table), warnings


def _stored(known: PolicyInForce) -> StorePolicy:
    """Return what a store says by what a daemon says of it: of the default, nothing."""
    setting = None
    if known.set_by is not None:
        isolation: Literal["thread", "process"] = "process" if known.isolation == "process" else "thread"
        setting = PolicySetting(name=known.name, params=known.params, isolation=isolation, by=known.set_by)
    return StorePolicy(setting, known.share_by, known.share_by_set_by)


def _refusals(fleet: Fleet, stored: StorePolicy) -> list[str]:
    """Return why a supervisor would refuse the file: another author gave the store another policy."""
    setting, share_by, by = stored.setting, fleet.scheduling.share_by, fleet.author
    try:
        if fleet.policy is not None:
            own = made_setting(fleet.policy_name, fleet.policy_params, fleet.policy_isolation, by)
            merged_policy(setting, own, replace=setting is not None and setting.by == by)
        if share_by is not None:
            merged_share_by(stored, share_by, by, replace=stored.share_by_set_by == by)
    except PolicyDiffers as refusal:
        return [f"policy: this file is refused: {refusal}"]
    return []
