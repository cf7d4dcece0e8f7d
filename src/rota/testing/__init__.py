"""Test helpers for authors of policies: the same checks that rota runs on its own policies.

`check(policy, law)` checks one of the `LAWS` on generated snapshots. It needs hypothesis (`pip install rota[testing]`),
which is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.testing.policy_laws import LAWS, check, closed_world, settle, snapshots

__all__ = ["LAWS", "check", "closed_world", "settle", "snapshots"]

__getattr__ = exports(__name__, {"policy_laws": ("LAWS", "check", "closed_world", "settle", "snapshots")})
