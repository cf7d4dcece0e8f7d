"""Components to regions, and regions to an order.

Only immediate edges count here: what travels on the others is seen in a later epoch and orders nothing.

*Regions.* The strongly connected components of the immediate edges. One component without a circle is a region by
itself. Components in a circle are one region, and a composite loop must own exactly them: a circle without an owner has
no meaning in one epoch, and an owner without a circle promises iterations that never happen.

*Order.* Kahn's algorithm over the regions: whatever waits for nobody is ready; taking it may make others ready. Among
the ready ones the highest `execution.priority` in the region goes first, then whoever was ready first. Regions are
looked at in the order in which their circles were found, successors in the order of their ids, so the same file always
gives the same order.

    fetch (normal) → parse (normal) → store (normal)     order: alarm, fetch, parse, store, report
    fetch → report (low)                                 report is ready as soon as parse is, and waits while a
    alarm (high)                                         region of a higher class is ready
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from rota.graph.cycles import strongly_connected
from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex
from rota.graph.plan import Region
from rota.graph.spec import CompositeLoopSpec

__all__ = ["find_regions", "lifecycle_order", "region_order"]


def find_regions(index: GraphIndex) -> tuple[dict[str, Region], list[Diagnostic]]:
    """The regions in the order in which their circles were found, and every loop or circle without its other half."""
    groups = _groups(index)
    cyclic = dict.fromkeys(group for group in groups if _is_cyclic(index, group))  # looked up, and in order
    found = list(_loop_problems(index, cyclic))
    owners = {frozenset(loop.components): loop for loop in reversed(index.spec.composite_loops)}
    regions: dict[str, Region] = {}
    for group in groups:
        region = _region(index, group, owners.get(frozenset(group)) if group in cyclic else None)
        if region.id in regions:
            found.append(
                Diagnostic.of("duplicate_id", f"a loop and a component are both called {region.id}", region.id)
            )
        regions[region.id] = region
    found += _cycle_problems(index, cyclic, owners)
    return _connected(index, regions), found


def _groups(index: GraphIndex) -> list[tuple[str, ...]]:
    """Ids of the strongly connected components, each sorted by id."""
    ids = list(index.components)
    numbers = {name: number for number, name in enumerate(ids)}
    successors: list[list[int]] = [[] for _ in ids]
    for wire in index.wires:
        source, target = numbers.get(wire.source.component), numbers.get(wire.target.component)
        if wire.is_immediate and source is not None and target is not None:
            successors[source].append(target)
    return [tuple(sorted(ids[number] for number in group)) for group in strongly_connected(successors)]


def _is_cyclic(index: GraphIndex, group: tuple[str, ...]) -> bool:
    if len(group) > 1:
        return True
    name = group[0]
    return any(wire.is_immediate and wire.target.component == name for wire in index.out_of.get(name, ()))


def _region(index: GraphIndex, group: tuple[str, ...], loop: CompositeLoopSpec | None) -> Region:
    return Region(
        id=loop.id if loop else ",".join(group),
        kind="composite_loop" if loop else "component",
        components=group,
        loop=loop,
        rank=max(index.components[name].execution.rank for name in group),
    )


def _connected(index: GraphIndex, regions: Mapping[str, Region]) -> dict[str, Region]:
    """The regions with what goes before and after each."""
    region_of = {name: region.id for region in regions.values() for name in region.components}
    before: dict[str, set[str]] = {name: set() for name in regions}
    after: dict[str, set[str]] = {name: set() for name in regions}
    for wire in index.wires:
        source, target = region_of.get(wire.source.component), region_of.get(wire.target.component)
        if wire.is_immediate and source is not None and target is not None and source != target:
            after[source].add(target)
            before[target].add(source)
    replace = msgspec.structs.replace
    return {
        name: replace(region, incoming_regions=tuple(sorted(before[name])), outgoing_regions=tuple(sorted(after[name])))
        for name, region in regions.items()
    }


# --- loops and circles that do not match ---------------------------------------------------------


def _loop_problems(index: GraphIndex, cyclic: Iterable[tuple[str, ...]]) -> Iterator[Diagnostic]:
    """Loops that own no circle, or not exactly one."""
    circles = [frozenset(group) for group in cyclic]
    in_circle = {name: circle for circle in circles for name in circle}
    owner: dict[str, str] = {}
    for loop in index.spec.composite_loops:
        path = f"composite_loops.{loop.id}"
        members = frozenset(loop.components)
        yield from _member_problems(index, loop, path, owner)
        if members in circles:
            continue
        touched = [name for name in loop.components if name in in_circle]
        code = "partial_composite_loop" if touched else "decorative_composite_loop"
        message = f"composite_loop {loop.id} must exactly match one immediate cyclic strongly connected component"
        if touched:
            message += f"; the cycle is {','.join(sorted(in_circle[touched[0]]))}"
        yield Diagnostic.of(code, message, path, components=loop.components)


def _member_problems(
    index: GraphIndex, loop: CompositeLoopSpec, path: str, owner: dict[str, str]
) -> Iterator[Diagnostic]:
    """Members that are not there, are listed twice, or belong to another loop."""
    seen: set[str] = set()
    for name in loop.components:
        if name in seen:
            yield Diagnostic.of("duplicate_id", f"composite_loop {loop.id} lists {name} twice", path, components=[name])
        seen.add(name)
        if name not in index.components:
            message = f"composite_loop {loop.id} references missing component {name}"
            yield Diagnostic.of("unknown_component", message, path, components=[name])
        elif owner.setdefault(name, loop.id) != loop.id:
            message = f"component {name} is owned by two composite_loops: {owner[name]} and {loop.id}"
            fix = "A component has one owner: take it out of one loop."
            yield Diagnostic.of("graph_validation_error", message, path, components=[name], fix=fix)


def _cycle_problems(
    index: GraphIndex, cyclic: Iterable[tuple[str, ...]], owners: Mapping[frozenset[str], CompositeLoopSpec]
) -> Iterator[Diagnostic]:
    """Circles without an owner, and circles that no single part of the file shows."""
    home = {name: part.id for part in index.spec.hierarchy for name in part.components}
    for group in cyclic:
        loop = owners.get(frozenset(group))
        edges = _inside(index, group)
        if loop is None:
            message = (
                f"immediate cycle detected among components {','.join(group)}; "
                "declare a composite_loop of exactly these, or make one edge delay, state or async"
            )
            path = f"components.{group[0]}"
            yield Diagnostic.of("immediate_cycle_without_loop", message, path, components=group, edges=edges)
        elif len(homes := {home.get(name, "the top level") for name in group}) > 1:
            message = f"the cycle of {loop.id} runs through {', '.join(sorted(homes))}"
            path = f"composite_loops.{loop.id}"
            yield Diagnostic.of("subgraph_hidden_cycle", message, path, components=group, edges=edges)


def _inside(index: GraphIndex, group: tuple[str, ...]) -> list[str]:
    members = set(group)
    wires = (wire for name in group for wire in index.out_of.get(name, ()))
    return [wire.spec.id for wire in wires if wire.is_immediate and wire.target.component in members]


# --- orders --------------------------------------------------------------------------------------


def region_order(regions: Mapping[str, Region]) -> tuple[str, ...]:
    """Every region after all that it waits for; ready ones by priority, then by who was ready first."""
    waiting = {name: len(region.incoming_regions) for name, region in regions.items()}
    ready: list[tuple[int, int, str]] = []  # rank from the highest, arrival, id
    arrivals = 0

    def arrive(name: str) -> None:
        nonlocal arrivals
        heapq.heappush(ready, (-regions[name].rank, arrivals, name))
        arrivals += 1

    for name, count in waiting.items():
        if count == 0:
            arrive(name)
    order: list[str] = []
    while ready:
        name = heapq.heappop(ready)[2]
        order.append(name)
        for follower in regions[name].outgoing_regions:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                arrive(follower)
    return tuple(order)


def lifecycle_order(index: GraphIndex) -> tuple[tuple[str, ...], list[Diagnostic]]:
    """Components so that each comes after all it depends on, first come first served; and what prevents it."""
    found = list(_dependency_problems(index))
    dependents: dict[str, list[str]] = {name: [] for name in index.components}
    waiting = {}
    for name, component in index.components.items():
        needed = [each for each in dict.fromkeys(component.depends_on) if each in index.components]
        waiting[name] = len(needed)
        for each in needed:
            dependents[each].append(name)
    ready = deque(name for name, count in waiting.items() if count == 0)
    order: list[str] = []
    while ready:
        name = ready.popleft()
        order.append(name)
        for each in dependents[name]:
            waiting[each] -= 1
            if waiting[each] == 0:
                ready.append(each)
    if len(order) < len(index.components):
        stuck = sorted(name for name, count in waiting.items() if count > 0)
        message = f"depends_on runs in a circle among {','.join(stuck)}"
        fix = "Take one of the dependencies out of the circle."
        path = f"components.{stuck[0]}.depends_on"
        found.append(Diagnostic.of("graph_validation_error", message, path, components=stuck, fix=fix))
    return tuple(order), found


def _dependency_problems(index: GraphIndex) -> Iterator[Diagnostic]:
    for name, component in index.components.items():
        path = f"components.{name}.depends_on"
        for each, times in Counter(component.depends_on).items():
            if times > 1:
                message = f"component {name} depends on {each} twice"
                yield Diagnostic.of("duplicate_id", message, path, components=[name])
            if each not in index.components:
                message = f"component {name} depends_on missing component {each}"
                yield Diagnostic.of("unknown_component", message, path, components=[name])
