"""The methods for the policy of the store."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from rota import errors as e
from rota.model.policy_setting import PolicyInForce, ShareBy
from rota.service.api.declaration import REFUSED, method, unfiltered

__all__ = ["PolicyApi"]


class PolicyApi(Protocol):
    """The policy in force."""

    @method(
        "kernel.policy.get",
        scope="read",
        execution="read",
        bound=unfiltered("the policy is the store's"),
        run="view",
    )
    def get(self) -> PolicyInForce:
        """Return the policy that supervisors of this store use, who gave it, and what sharing counts."""
        ...

    @method(
        "kernel.policy.set",
        scope="operate",
        execution="multi_commit",
        bound=REFUSED,
        run="refused",
        retry_safe=True,
        errors=(e.UnknownPolicy, e.PolicyInvalid, e.PolicyDiffers),
    )
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
        """Set the policy of the store (default: forget it), or what sharing counts; what is null stays as it is."""
        ...
