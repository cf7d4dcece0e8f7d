"""A graph to a plan: the rules, the regions, the orders and the lanes, put together.

    check(spec)          everything there is to say about a graph, and its plan when there is no error
    compile_graph(spec)  the plan, or GraphInvalid with every diagnostic
    lint(spec)           what check says, and notes on style

All are pure: the same graph, catalogue and platform give the same answer, byte for byte. Structures made in Python are
held against their annotations first, so that a plan never holds a value that a file could not have said.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from rota.errors import GraphInvalid
from rota.graph.capabilities import CADENCED, Platform, capability, probe
from rota.graph.diagnostics import Diagnostic, worst_first
from rota.graph.fitting import fit
from rota.graph.index import GraphIndex
from rota.graph.plan import Edge, Lane, LaneOrder, Plan, Region
from rota.graph.ports import Catalogue
from rota.graph.regions import find_regions, lifecycle_order, region_order
from rota.graph.rules import check_rules
from rota.graph.rules.edges import slow_reader_drop_risk
from rota.graph.rules.style import check_style
from rota.graph.rules.triggers import check_readiness
from rota.graph.spec import GraphSpec, LaneSpec

__all__ = ["STARVATION_EPOCHS", "Checked", "check", "compile_graph", "lint"]

STARVATION_EPOCHS = 8  # how long an invocation may be passed over, where the file does not say


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to say about a graph."""

    diagnostics: tuple[Diagnostic, ...]
    plan: Plan | None = None  # None: there are errors

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """What refuses it."""
        return tuple(each for each in self.diagnostics if each.is_error)


def compile_graph(spec: GraphSpec, catalogue: Catalogue | None = None, platform: Platform | None = None) -> Plan:
    """The plan of a graph, or GraphInvalid with every diagnostic."""
    checked = check(spec, catalogue, platform)
    if checked.plan is None:
        first, count = checked.errors[0], len(checked.errors)
        more = f" (and {count - 1} more)" if count > 1 else ""
        raise GraphInvalid(
            f"graph {spec.graph.name}: {first.message}{more}",
            diagnostics=checked.diagnostics,
            hint=first.suggested_fix,
        )
    return checked.plan


def lint(spec: GraphSpec, catalogue: Catalogue | None = None, platform: Platform | None = None) -> Checked:
    """What `check` says, and what a second reader would ask about a graph without errors."""
    checked = check(spec, catalogue, platform)
    if checked.plan is None:
        return checked
    notes = check_style(GraphIndex(spec, catalogue))
    return msgspec.structs.replace(checked, diagnostics=worst_first([*checked.diagnostics, *notes]))


def check(spec: GraphSpec, catalogue: Catalogue | None = None, platform: Platform | None = None) -> Checked:
    """Every diagnostic of a graph, worst first, and its plan when none of them is an error.

    Without a catalogue nothing is said about types and ports. Without a platform this machine is asked.
    """
    if problem := _misshapen(spec):
        return Checked(diagnostics=(problem,))
    platform = platform or probe()
    index = GraphIndex(spec, catalogue)
    regions, cycle_problems = find_regions(index)
    lifecycle, dependency_problems = lifecycle_order(index)
    found = [*check_rules(index, platform), *cycle_problems, *dependency_problems]
    if any(each.is_error for each in found):
        return Checked(diagnostics=worst_first(found))
    diagnostics = worst_first([*found, *check_readiness(index)])
    return Checked(diagnostics=diagnostics, plan=_plan(index, platform, regions, lifecycle, diagnostics))


def _misshapen(spec: GraphSpec) -> Diagnostic | None:
    """What a structure made in Python holds that a file could not say."""
    try:
        plain = msgspec.json.decode(msgspec.json.encode(spec))
    except (TypeError, ValueError, OverflowError, RecursionError) as problem:
        message = f"the graph holds a value that no file could: {problem}"
        return Diagnostic.of("graph_validation_error", message)
    shaped = fit(plain, GraphSpec, "")
    return shaped if isinstance(shaped, Diagnostic) else None


def _plan(
    index: GraphIndex,
    platform: Platform,
    regions: dict[str, Region],
    lifecycle: tuple[str, ...],
    diagnostics: tuple[Diagnostic, ...],
) -> Plan:
    main, independent = _orders(index, regions)
    return Plan(
        spec=index.spec,
        components=index.components,
        edges={
            wire.spec.id: Edge(
                spec=wire.spec,
                source=wire.source,
                target=wire.target,
                slow_reader_drop_risk=slow_reader_drop_risk(wire.spec.policy),
            )
            for wire in index.wires
        },
        lanes=_lanes(index, platform),
        regions=regions,
        component_region={name: region.id for region in regions.values() for name in region.components},
        region_order=main,
        independent=independent,
        lifecycle_order=lifecycle,
        diagnostics=diagnostics,
    )


def _orders(index: GraphIndex, regions: dict[str, Region]) -> tuple[tuple[str, ...], tuple[LaneOrder, ...]]:
    """The order of an epoch, and one for each independent lane.

    No immediate edge crosses into an independent lane, so one order over all regions, taken apart, is the same as an
    order for each.
    """
    main: list[str] = []
    apart: dict[str, list[str]] = defaultdict(list)
    for name in region_order(regions):
        lane = index.components[regions[name].components[0]].execution.lane
        (apart[lane] if index.spec.lanes[lane].independent else main).append(name)
    independent = (LaneOrder(lane=lane, region_order=tuple(apart[lane])) for lane in index.spec.lanes if lane in apart)
    return tuple(main), tuple(independent)


def _lanes(index: GraphIndex, platform: Platform) -> dict[str, Lane]:
    on_lane: dict[str, list[str]] = defaultdict(list)
    for name, component in index.components.items():
        on_lane[component.execution.lane].append(name)
    aging = STARVATION_EPOCHS if index.spec.schema_version > 1 else 0
    return {name: _lane(name, lane, tuple(on_lane[name]), aging, platform) for name, lane in index.spec.lanes.items()}


def _lane(name: str, lane: LaneSpec, components: tuple[str, ...], aging: int, platform: Platform) -> Lane:
    period_ns = lane.period_ns if lane.type in CADENCED else 0
    return Lane(
        id=name,
        spec=lane,
        components=components,
        workers=_workers(lane),
        period_ns=period_ns,
        tick_budget_ns=lane.tick_budget_ms * 1_000_000 or period_ns,
        starvation_epochs=aging if lane.starvation_epochs is None else lane.starvation_epochs,
        capability=capability(name, lane, platform),
    )


def _workers(lane: LaneSpec) -> int:
    """Threads or processes of the lane's own."""
    if lane.type in {"thread_pool", "process_pool"}:
        return max(1, lane.max_threads)
    return 1 if lane.type == "isolated_thread" else 0
