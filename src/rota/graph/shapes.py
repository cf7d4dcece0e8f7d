"""What the graph tools print as JSON: plain dictionaries with stable names, for scripts and editors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from rota.graph.compiler import Checked
from rota.graph.diagnostics import CATEGORIES, DIAGNOSTICS_SCHEMA_VERSION, Diagnostic
from rota.graph.explain import region_stories
from rota.graph.plan import Edge, Lane, Plan, Region

__all__ = [
    "SCHEDULER_CONTRACT_VERSION",
    "diagnostic_groups",
    "explain_shape",
    "plan_shape",
    "refused",
    "validation_shape",
]

SCHEDULER_CONTRACT_VERSION = "0.2"


def validation_shape(
    diagnostics: Iterable[Diagnostic], plan: Plan | None = None, *, strict: bool = False
) -> dict[str, Any]:
    """What `validate` answers; `strict` refuses warnings too."""
    found = list(diagnostics)
    return {
        "ok": not any(refused(found, strict=strict)),
        "errors": [each.message for each in refused(found, strict=strict)],
        "diagnostics_schema_version": DIAGNOSTICS_SCHEMA_VERSION,
        "diagnostics": [msgspec.to_builtins(each) for each in found],
        "region_order": list(plan.region_order) if plan else [],
    }


def refused(diagnostics: Iterable[Diagnostic], *, strict: bool = False) -> list[Diagnostic]:
    """The diagnostics that refuse a graph: errors, and warnings where the caller is strict."""
    severities = ("error", "warning") if strict else ("error",)
    return [each for each in diagnostics if each.severity in severities]


def diagnostic_groups(diagnostics: Iterable[Diagnostic]) -> dict[str, list[dict[str, Any]]]:
    """The diagnostics by what they are about; every category is there."""
    found = list(diagnostics)
    return {
        category: [msgspec.to_builtins(each) for each in found if each.category == category] for category in CATEGORIES
    }


def explain_shape(checked: Checked) -> dict[str, Any]:
    """What `explain` answers: the validation, why each region runs when it does, and the diagnostics by category."""
    shape = validation_shape(checked.diagnostics, checked.plan)
    stories = region_stories(checked.plan) if checked.plan else ()
    return {
        **shape,
        "regions": [msgspec.to_builtins(each) for each in stories],
        "diagnostic_groups": diagnostic_groups(checked.diagnostics),
    }


def plan_shape(plan: Plan) -> dict[str, Any]:
    """What `plan` answers: everything that was worked out about a graph."""
    spec = plan.spec
    return {
        "graph": spec.graph.name,
        "kind": spec.graph.kind,
        "schema_version": spec.schema_version,
        "scheduler_contract_version": SCHEDULER_CONTRACT_VERSION,
        "components": [
            {
                "id": each.id,
                "type": each.type,
                "lane": each.execution.lane,
                "boundary_role": each.boundary.role,
                "boundary_descriptor": each.boundary.descriptor,
            }
            for each in plan.components.values()
        ],
        "edges": [_edge(each) for each in plan.edges.values()],
        "compiled_regions": [_region(each) for each in plan.regions.values()],
        "component_region": plan.component_region,
        "region_order": list(plan.region_order),
        "independent_lanes": [msgspec.to_builtins(each) for each in plan.independent],
        "lifecycle_order": list(plan.lifecycle_order),
        "lane_capabilities": [_lane(each) for each in plan.lanes.values()],
        "hierarchy": [msgspec.to_builtins(each) for each in spec.hierarchy],
    }


def _edge(edge: Edge) -> dict[str, Any]:
    spec, policy = edge.spec, edge.spec.policy
    return {
        "id": spec.id,
        "kind": spec.kind,
        "from": spec.source,
        "to": spec.target,
        "mode": policy.mode,
        "capacity": policy.capacity,
        "overflow": policy.overflow,
        "copy_policy": policy.copy_policy,
        "readers": policy.readers,
        "max_inflight": policy.max_inflight,
        "slow_reader_drop_risk": edge.slow_reader_drop_risk,
    }


def _region(region: Region) -> dict[str, Any]:
    return {
        "id": region.id,
        "kind": region.kind,
        "components": list(region.components),
        "incoming_regions": list(region.incoming_regions),
        "outgoing_regions": list(region.outgoing_regions),
        "loop_policy": msgspec.to_builtins(region.loop.loop_policy) if region.loop else None,
    }


def _lane(lane: Lane) -> dict[str, Any]:
    shape: dict[str, Any] = {
        **msgspec.to_builtins(lane.capability),
        "max_threads": lane.spec.max_threads,
        "queue_capacity": lane.spec.queue_capacity,
        "overflow": lane.spec.overflow,
        "workers": lane.workers,
    }
    if lane.period_ns or lane.type == "fixed_rate":
        shape |= {
            "overrun_policy": lane.spec.overrun_policy,
            "wall_clock_enabled": lane.spec.wall_clock_enabled,
            "period_ms": lane.period_ns / 1e6,
            "tick_budget_ms": lane.tick_budget_ns / 1e6,
        }
    if lane.spec.policy is not None:
        shape["policy"] = msgspec.to_builtins(lane.spec.policy)
    return shape
