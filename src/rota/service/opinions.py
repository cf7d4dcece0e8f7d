"""What a program says about the policy of a store when it opens it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rota.errors import PolicyInvalid
from rota.kernel.store_policy import merged_policy
from rota.model.policy_setting import PolicySetting, ShareBy
from rota.policy.contract import Policy, as_policy
from rota.service.api import SchedulerApi
from rota.service.dispatcher import Dispatcher

__all__ = ["give_opinion"]


def give_opinion(
    api: SchedulerApi,
    policy: Policy | str | None,
    params: Mapping[str, Any] | None,
    isolation: Literal["thread", "process"],
    share_by: ShareBy | None,
    *,
    by: str,
) -> None:
    """Record what a program says about the policy of the store; raises `PolicyDiffers` if another was given before.

    A policy object belongs to its process and is not recorded; at a daemon it cannot be used.
    """
    if isinstance(policy, str) or params or share_by is not None:
        name = policy if isinstance(policy, str) else None
        given = dict(params or {})
        api.policies.set(name, given, isolation=isolation, share_by=share_by, by=by, replace=False)
    if policy is None or isinstance(policy, str):
        return
    name = as_policy(policy).name
    if not isinstance(api, Dispatcher):
        hint = "Register it under the entry point group rota.policies where the daemon runs, and give its name."
        raise PolicyInvalid(f"the policy object {name} cannot be sent to a daemon", hint=hint, field="policy")
    in_force = api.policies.get()
    if in_force.set_by is not None and in_force.name != name:
        known = PolicySetting(name=in_force.name, params=in_force.params, by=in_force.set_by)
        merged_policy(known, PolicySetting(name=name, by=by), replace=False)
