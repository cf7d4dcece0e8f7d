"""Policies (layer 2): pure functions that decide which eligible candidates run next.

A policy reads no clock, no row and no random number. `make("eevdf")` makes one by name; `names()` lists them.

- `contract`: what a policy is; `registry`: policies by name
- `ranking`, `deadline`, `virtual_time`, and the package `rota.policy.fair_share`: the policies
- `flow_tree`, `level`: the incremental form of virtual time
- `eligibility`, `replenishment`: whether an entry may run, and budgets per period
- `limit_order`: which of the runs that wait for a limit is served next

Names are loaded on first use: most processes need only some of these modules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rota.lazy import exports

if TYPE_CHECKING:
    from rota.policy.contract import Bound, IncrementalOrder, Policy, PolicyIsolation, assign_slots
    from rota.policy.deadline import edf
    from rota.policy.flow_tree import FlowTree, eevdf, wfq
    from rota.policy.ranking import intent_weighted, round_robin, strict, weighted_priority
    from rota.policy.registry import PolicyDescription, descriptions, make, names

__all__ = [
    "Bound",
    "FlowTree",
    "IncrementalOrder",
    "Policy",
    "PolicyDescription",
    "PolicyIsolation",
    "assign_slots",
    "descriptions",
    "edf",
    "eevdf",
    "intent_weighted",
    "make",
    "names",
    "round_robin",
    "strict",
    "weighted_priority",
    "wfq",
]

__getattr__ = exports(
    __name__,
    {
        "contract": ("Bound", "IncrementalOrder", "Policy", "PolicyIsolation", "assign_slots"),
        "deadline": ("edf",),
        "flow_tree": ("FlowTree", "eevdf", "wfq"),
        "ranking": ("intent_weighted", "round_robin", "strict", "weighted_priority"),
        "registry": ("PolicyDescription", "descriptions", "make", "names"),
    },
)
