"""The policy in force on a store, and what sharing counts there.

Only a policy that was given explicitly is stored: in a fleet file, with `rota serve --policy`, in `Rota(policy=…)` or
by `rota policy set`. Every worker and supervisor of the store then obeys it. Where none is stored, supervisors use the
default policy, and the kernel's own claims are in strict order.

`share_by` names what fair shares and virtual time count. A run that charged nothing of it counts its expected cost,
else its seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

__all__ = ["DEFAULT_SHARE_BY", "SHARE_DIMS", "PolicyInForce", "PolicySetting", "ShareBy"]

ShareBy: TypeAlias = Literal["tokens", "cost", "cpu", "gpu", "seconds"]
DEFAULT_SHARE_BY: ShareBy = "tokens"
SHARE_DIMS: Mapping[ShareBy, str] = {  # the dimension of usage that is counted
    "tokens": "tokens",
    "cost": "cost_micro",
    "cpu": "cpu_s",
    "gpu": "gpu_s",
    "seconds": "wall_s",
}


class PolicySetting(msgspec.Struct, frozen=True, kw_only=True):
    """A policy that was given explicitly: its name and parameters, and who gave it."""

    name: str
    params: dict[str, Any] = {}
    isolation: Literal["thread", "process"] = "thread"  # where a policy of another package runs
    by: str = ""

    def sentence(self) -> str:
        """The name with the parameters."""
        return _with_params(self.name, self.params)


class PolicyInForce(msgspec.Struct, frozen=True, kw_only=True):
    """The policy that supervisors of a store use."""

    name: str
    params: dict[str, Any]
    isolation: str
    set_by: str | None  # None: no policy was given, and this is the default
    share_by: ShareBy
    share_by_set_by: str | None

    def short(self) -> str:
        """The name with the parameters."""
        return _with_params(self.name, self.params)

    def sentence(self) -> str:
        """The name with the parameters, and who gave it."""
        source = "the default" if self.set_by is None else f"set by {self.set_by}"
        return f"{_with_params(self.name, self.params)}, {source}"


def _with_params(name: str, params: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in params.items())})" if params else name
