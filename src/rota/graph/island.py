"""A graph as an island: what it asks of the cores of a host.

Priority, deadline, budget and isolation intent of a graph grant nothing by themselves. This maps them to one request
(`CoreAsk`), which the admission for cores grants whole or refuses with what is missing:

    budget_ms of a component         time reserved in every period
    period_ms or hz of its lane      the period; else that of the island
    deadline_ms of the island        the deadline of each activation; else the period
    isolation_intent of a lane       one leased core
    memory_bytes, slots, lease       as they are

A lane of type `fixed_rate` goes by the clock on an island (`GraphSpec.executed_lane`), because the time is reserved in
each period. A component without a budget has no place on an island: nothing would bound it. While the graph runs, an
invocation that takes longer than its budget ends the run (`RuntimeRunnerOptions.fails_closed`). Components that are
agents run as entries, on the cores of their agents and perhaps on other hosts: they reserve nothing here.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rota.errors import IslandRefused
from rota.graph.plan import Plan
from rota.graph.spec import ComponentSpec, GraphIsland, GraphSpec, LaneSpec
from rota.model.core_grants import CoreAsk, ReservedTime
from rota.model.cpu import CpuSettings

__all__ = ["island_ask", "island_spec"]

MS = 1_000_000
_NO_INTENT = ("", "none")


def island_spec(spec: GraphSpec) -> GraphSpec:
    """Return a graph as an island: itself if its file says that it is one."""
    if spec.graph.island is not None:
        return spec
    return msgspec.structs.replace(spec, graph=msgspec.structs.replace(spec.graph, island=GraphIsland()))


def island_ask(plan: Plan) -> CoreAsk:
    """Return what a graph asks for as an island; raises `IslandRefused` if a component is not bounded."""
    island = plan.spec.graph.island or GraphIsland()
    lanes = plan.spec.lanes
    components = [component for component in plan.components.values() if not component.execution.agent]
    missing = [text for component in components for text in _unbounded(component, lanes, island)]
    if missing:
        raise IslandRefused(
            f"island {plan.name} does not fit: {'; '.join(missing)}",
            hint="Set budget_ms of each component, and a period: period_ms or hz of its lane, or of the island.",
            island_id=0,
            missing=missing,
            evidence={},
        )
    isolated = sum(lane.isolation_intent not in _NO_INTENT for lane in lanes.values())
    return CoreAsk(
        island=plan.name,
        reserved=tuple(_reserved(component, lanes, island) for component in components),
        cpu=CpuSettings(cores=island.cores or None, lease=island.lease + isolated),
        memory_bytes=island.memory_bytes,
        slots=island.slots,
    )


def _unbounded(component: ComponentSpec, lanes: dict[str, LaneSpec], island: GraphIsland) -> Iterator[str]:
    lane = lanes[component.execution.lane]
    if not _budget_ms(component, lane):
        yield f"component {component.id} has no budget_ms"
    if not _period_ns(lane, island):
        yield f"lane {component.execution.lane} of component {component.id} has no period"


def _reserved(component: ComponentSpec, lanes: dict[str, LaneSpec], island: GraphIsland) -> ReservedTime:
    lane = lanes[component.execution.lane]
    budget_ns, period_ns = _budget_ms(component, lane) * MS, _period_ns(lane, island)
    if budget_ns > period_ns:
        text = f"component {component.id} needs {budget_ns / MS:g} ms in a period of {period_ns / MS:g} ms"
        raise IslandRefused(
            f"an island does not fit: {text}",
            hint="Lower budget_ms, or make the period longer.",
            island_id=0,
            missing=[text],
            evidence={},
        )
    return ReservedTime(
        name=component.id,
        budget_ns=budget_ns,
        period_ns=period_ns,
        deadline_ns=island.deadline_ms * MS or None,
        criticality=island.criticality,
    )


def _budget_ms(component: ComponentSpec, lane: LaneSpec) -> int:
    return component.execution.budget_ms or lane.max_callback_ms


def _period_ns(lane: LaneSpec, island: GraphIsland) -> int:
    return lane.period_ns or island.period_ms * MS
