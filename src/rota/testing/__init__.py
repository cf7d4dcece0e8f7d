"""Test helpers: for programs with agents, and for authors of policies.

`InMemoryRota` is a Rota in memory on a clock that the test moves; the pytest plugin has it as the fixture `rota`
(docs/testing.md). `check(policy, law)` checks one of the `LAWS` on generated snapshots, as rota does with its own
policies. It needs hypothesis (`pip install rota[testing]`), which is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.testing.in_memory import InMemoryRota
    from rota.testing.policy_laws import LAWS, check, closed_world, settle, snapshots

__all__ = ["LAWS", "InMemoryRota", "check", "closed_world", "settle", "snapshots"]

__getattr__ = exports(
    __name__,
    {"in_memory": ("InMemoryRota",), "policy_laws": ("LAWS", "check", "closed_world", "settle", "snapshots")},
)
