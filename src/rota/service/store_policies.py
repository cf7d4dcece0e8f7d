"""The policy of a store, for every door: which is in force, and who may change it.

`set` checks that the policy can be made before it is recorded. Parameters are recorded with their defaults, so that the
same policy written in two ways is the same opinion.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from rota.errors import LimitExceeded, PolicyInvalid
from rota.kernel.policies import Policies
from rota.kernel.store_policy import StorePolicy
from rota.model.checks import Checks
from rota.model.policy_setting import PolicyInForce, PolicySetting, ShareBy
from rota.policy.registry import DEFAULT_NAME, DEFAULT_PARAMS, is_built_in_name, parameters
from rota.service.policy_process import make_policy

__all__ = ["FORGET", "StorePolicies", "made_setting"]

FORGET = "default"  # as a name: forget the policy, so that the default is in force
PARAMS_BYTES_MAX = 16 * 1024  # of a policy's parameters as JSON: every supervisor reads them
_checks = Checks("Policy", PolicyInvalid)


class StorePolicies:
    """The policy in force on a store."""

    def __init__(self, stored: Policies) -> None:
        self._stored = stored

    def get(self) -> PolicyInForce:
        """Return the policy that supervisors of this store use, who gave it, and what sharing counts."""
        return _in_force(self._stored.get())

    def set(
        self,
        name: str | None = None,
        params: dict[str, Any] | None = None,
        *,
        isolation: Literal["thread", "process"] = "thread",
        share_by: ShareBy | None = None,
        by: str = "operator",
        replace: bool = True,
    ) -> PolicyInForce:
        """Set the policy or what sharing counts; without `replace` an opinion, refused if it contradicts another's."""
        _checks.text("by", by)
        _checks.one_of("isolation", isolation, ("thread", "process"))
        setting = None
        if name is not None and name != FORGET:
            _checks.text("name", name)
            setting = made_setting(name, params or {}, isolation, by)
        elif params:
            raise _checks.refuse("params", "need the name of a policy")
        return _in_force(self._stored.set(setting, share_by, by=by, replace=replace, forget=name == FORGET))


def made_setting(name: str, params: dict[str, Any], isolation: Literal["thread", "process"], by: str) -> PolicySetting:
    """Return the setting of a policy that can be made, with the parameters that it has by default."""
    size = len(msgspec.json.encode(params))
    if size > PARAMS_BYTES_MAX:
        raise LimitExceeded("PARAMS_BYTES_MAX", PARAMS_BYTES_MAX, size)
    make_policy(name, params, isolation)
    defaults = dict(parameters(name)) if is_built_in_name(name) else {}
    return PolicySetting(name=name, params={**defaults, **params}, isolation=isolation, by=by)


def _in_force(stored: StorePolicy) -> PolicyInForce:
    setting = stored.setting
    return PolicyInForce(
        name=DEFAULT_NAME if setting is None else setting.name,
        params=dict(DEFAULT_PARAMS) if setting is None else setting.params,
        isolation="thread" if setting is None else setting.isolation,
        set_by=None if setting is None else setting.by,
        share_by=stored.share_by,
        share_by_set_by=stored.share_by_set_by,
    )
