"""Reports about a graph and its plan: validation result, plan, explanation, and difference of two plans.

The `…_to_dict` functions return plain dictionaries whose keys are stable: they are the JSON output of `rota graph`, for
scripts and editors. `explanation_lines` is the same for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from rota.graph.budgets import amounts_of
from rota.graph.compiler import CheckResult
from rota.graph.diagnostics import CATEGORIES, DIAGNOSTICS_SCHEMA_VERSION, Diagnostic
from rota.graph.plan import Edge, Lane, Plan, Region
from rota.graph.spec import LOOP_TYPE, PRIORITY_RANKS, ComponentSpec

__all__ = [
    "SCHEDULER_CONTRACT_VERSION",
    "FieldChange",
    "PlanDifference",
    "RegionPlacement",
    "compare_plans",
    "diagnostic_groups",
    "explanation_lines",
    "explanation_to_dict",
    "plan_to_dict",
    "refusing",
    "region_placements",
    "validation_to_dict",
]

SCHEDULER_CONTRACT_VERSION = "0.2"

_PRIORITY_CLASS = {rank: name for name, rank in PRIORITY_RANKS.items()}
_HEADINGS = {
    "graph_structure": "Structure",
    "scheduler": "Lanes and execution",
    "channel": "Channels",
    "payload": "Payloads",
    "trigger": "Triggers",
}


# --- validation ----------------------------------------------------------------------------------


def validation_to_dict(
    diagnostics: Iterable[Diagnostic], plan: Plan | None = None, *, strict: bool = False
) -> dict[str, Any]:
    """Return the result of `rota graph validate`. With `strict`, warnings refuse the graph too."""
    found = list(diagnostics)
    return {
        "ok": not any(refusing(found, strict=strict)),
        "errors": [each.message for each in refusing(found, strict=strict)],
        "diagnostics_schema_version": DIAGNOSTICS_SCHEMA_VERSION,
        "diagnostics": [msgspec.to_builtins(each) for each in found],
        "region_order": list(plan.region_order) if plan else [],
    }


def refusing(diagnostics: Iterable[Diagnostic], *, strict: bool = False) -> list[Diagnostic]:
    """Return the diagnostics that refuse a graph: errors, and with `strict` also warnings."""
    severities = ("error", "warning") if strict else ("error",)
    return [each for each in diagnostics if each.severity in severities]


def diagnostic_groups(diagnostics: Iterable[Diagnostic]) -> dict[str, list[dict[str, Any]]]:
    """Return the diagnostics by category. Every category is a key, also if it is empty."""
    found = list(diagnostics)
    return {
        category: [msgspec.to_builtins(each) for each in found if each.category == category] for category in CATEGORIES
    }


# --- the plan ------------------------------------------------------------------------------------


def plan_to_dict(plan: Plan) -> dict[str, Any]:
    """Return the result of `rota graph plan`: everything that the compiler found out about a graph."""
    spec = plan.spec
    return {
        "graph": spec.graph.name,
        "kind": spec.graph.kind,
        **({"budget": amounts_of(spec.graph.budget)} if spec.graph.budget else {}),
        "schema_version": spec.schema_version,
        "scheduler_contract_version": SCHEDULER_CONTRACT_VERSION,
        "components": [
            {
                "id": each.id,
                "type": each.type,
                "lane": each.execution.lane,
                **({"agent": each.execution.agent} if each.execution.agent else {}),
                **({"loop": {**each.config, "spans_epochs": True}} if each.type == LOOP_TYPE else {}),
                **_budget(each),
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


def _budget(component: ComponentSpec) -> dict[str, Any]:
    """Return the budget of a component and what happens over budget; nothing if it says neither."""
    execution = component.execution
    found: dict[str, Any] = {"budget": amounts_of(execution.budget)} if execution.budget else {}
    return found | ({"on_over_budget": execution.on_over_budget} if execution.on_over_budget != "fail" else {})


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
    fields: dict[str, Any] = {
        **msgspec.to_builtins(lane.capability),
        "max_threads": lane.spec.max_threads,
        "queue_capacity": lane.spec.queue_capacity,
        "overflow": lane.spec.overflow,
        "workers": lane.workers,
    }
    if lane.period_ns or lane.type == "fixed_rate":
        fields |= {
            "overrun_policy": lane.spec.overrun_policy,
            "wall_clock_enabled": lane.spec.wall_clock_enabled,
            "period_ms": lane.period_ns / 1e6,
            "tick_budget_ms": lane.tick_budget_ns / 1e6,
        }
    if lane.spec.policy is not None:
        fields["policy"] = msgspec.to_builtins(lane.spec.policy)
    return fields


# --- the explanation -----------------------------------------------------------------------------


class RegionPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The position of one region, and the reason for it. The field names are keys of the JSON output."""

    region: str
    lane: str  # "": the region is part of the epoch; else the independent lane whose order it is part of
    place: int  # from 1, in the epoch or in the lane
    because: str


def region_placements(plan: Plan) -> tuple[RegionPlacement, ...]:
    """Return the placement of every region, in the order in which they run."""
    orders = [("", plan.region_order), *((each.lane, each.region_order) for each in plan.independent)]
    return tuple(
        RegionPlacement(region=name, lane=lane, place=place, because=_reason(plan.regions[name]))
        for lane, order in orders
        for place, name in enumerate(order, 1)
    )


def _reason(region: Region) -> str:
    order = f"after {', '.join(region.incoming_regions)}" if region.incoming_regions else "no predecessors"
    parts = [order, f"priority {_PRIORITY_CLASS[region.rank]}"]
    if region.loop is not None:
        limit = max(1, region.loop.loop_policy.max_iterations)
        iterations = "one iteration" if limit == 1 else f"up to {limit} iterations"
        parts.append(f"loop of {', '.join(region.components)}, {region.loop.loop_policy.type}, {iterations}")
    return "; ".join(parts)


def explanation_to_dict(result: CheckResult) -> dict[str, Any]:
    """Return the result of `rota graph explain`: the validation, the placements, and the diagnostics by category."""
    placements = region_placements(result.plan) if result.plan else ()
    return {
        **validation_to_dict(result.diagnostics, result.plan),
        "regions": [msgspec.to_builtins(each) for each in placements],
        "diagnostic_groups": diagnostic_groups(result.diagnostics),
    }


def explanation_lines(result: CheckResult) -> Iterator[str]:
    """Yield the explanation as lines of text."""
    if result.plan is not None:
        yield f"An epoch of {result.plan.name}:"
        for each in region_placements(result.plan):
            lane = f" [{each.lane}]" if each.lane else ""
            yield f"  {each.place:>3}.{lane} {each.region}: {each.because}"
        yield from _deferred_edges(result.plan)
    for category in CATEGORIES:
        found = [each for each in result.diagnostics if each.category == category]
        if found:
            yield ""
            yield f"{_HEADINGS[category]}:"
        for diagnostic in found:
            yield f"  {diagnostic.sentence()}"
            yield f"    → {diagnostic.suggested_fix}"


def _deferred_edges(plan: Plan) -> Iterator[str]:
    deferred = [edge for edge in plan.edges.values() if not edge.is_immediate]
    if deferred:
        yield ""
        yield "Messages on these edges arrive in the next epoch or later:"
        yield from (f"  {edge.id}: {edge.spec.source} → {edge.spec.target} ({edge.spec.kind})" for edge in deferred)


# --- the difference of two plans -----------------------------------------------------------------


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """One field with different values in two plans."""

    path: str  # for example edges.wire.policy.capacity
    before: Any
    after: Any


class PlanDifference(msgspec.Struct, frozen=True, kw_only=True):
    """What changed from one plan to another."""

    added: tuple[str, ...] = ()  # for example components.sink
    removed: tuple[str, ...] = ()
    changed: tuple[FieldChange, ...] = ()
    order_before: tuple[str, ...] = ()
    order_after: tuple[str, ...] = ()

    @property
    def order_changed(self) -> bool:
        """Whether the regions that are in both plans run in a different order."""
        before, after = set(self.order_before), set(self.order_after)
        return [each for each in self.order_before if each in after] != [
            each for each in self.order_after if each in before
        ]

    @property
    def same(self) -> bool:
        """Whether the plans are equal."""
        return not (self.added or self.removed or self.changed or self.order_before != self.order_after)


def compare_plans(before: Plan, after: Plan) -> PlanDifference:
    """Return the difference between two plans, in the order of the first and then of the second."""
    left, right = _parts(before), _parts(after)
    return PlanDifference(
        added=tuple(name for name in right if name not in left),
        removed=tuple(name for name in left if name not in right),
        changed=tuple(change for name in left if name in right for change in _changes(name, left[name], right[name])),
        order_before=before.region_order,
        order_after=after.region_order,
    )


def _parts(plan: Plan) -> dict[str, Any]:
    """Return the graph info and every lane, component, edge and region as plain values, by path."""
    spec = plan.spec
    parts = {"graph": {**msgspec.to_builtins(spec.graph), "schema_version": spec.schema_version}}
    parts |= {f"lanes.{name}": msgspec.to_builtins(lane.spec) for name, lane in plan.lanes.items()}
    parts |= {f"components.{name}": msgspec.to_builtins(each) for name, each in plan.components.items()}
    parts |= {f"edges.{name}": msgspec.to_builtins(edge.spec) for name, edge in plan.edges.items()}
    parts |= {f"regions.{name}": msgspec.to_builtins(region) for name, region in plan.regions.items()}
    return parts


def _changes(path: str, before: Any, after: Any) -> Iterator[FieldChange]:
    """Yield each field that differs, descending as long as both sides are mappings."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield from _changes(f"{path}.{key}", before.get(key), after.get(key))
    elif before != after:
        yield FieldChange(path=path, before=before, after=after)
