"""Group components into regions, and put the regions in order.

Only immediate edges count here: a message on any other edge arrives in a later epoch and does not affect the order.

*Regions.* The strongly connected components of the immediate edges. A component without a cycle is a region by itself.
The components of a cycle are one region, and a composite loop must list exactly them: without a loop, the order inside
the cycle is undefined; a loop without a cycle would never iterate.

*Order.* Kahn's algorithm over the regions: a region without unfinished predecessors is ready; taking a region may make
others ready. Of the ready regions, the one with the highest `execution.priority` goes first, then the one that was
ready first. Regions are visited in the order in which Tarjan's algorithm completes them, successors in the order of
their ids, so the same file always gives the same order.

    fetch (normal) → parse (normal) → store (normal)     order: alarm, fetch, parse, store, report
    fetch → report (low)                                 report is ready as soon as parse is, and waits while a
    alarm (high)                                         region of a higher class is ready

*Strongly connected components.* Two nodes are strongly connected if each can be reached from the other. Tarjan's
algorithm finds all such groups in one depth-first walk. Each node gets a number when it is first visited, and a *low*
number: the smallest number reachable from it among the nodes on the stack. A node whose low number equals its own
number is the first of its group; everything above it on the stack belongs to the group.

    0 → 1 → 2 → 1        numbers 0 1 2, low 0 1 1: the group {1, 2} is complete when the walk leaves 1, then {0}

A group is complete only after everything reachable from it, so groups come out in reverse topological order. A graph
file may be a chain of thousands of components, longer than Python's recursion limit, so the walk keeps its own stack.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from rota.graph.diagnostics import Diagnostic
from rota.graph.index import GraphIndex
from rota.graph.plan import Region
from rota.graph.spanning_loops import fields_refused
from rota.graph.spec import CompositeLoopSpec

__all__ = ["find_regions", "lifecycle_order", "region_order", "strongly_connected"]


_SPANNING_FIX = (
    "A loop with a member on a queue or fleet lane needs exactly one edge that enters it and one that leads back to "
    "the same input."
)


def find_regions(index: GraphIndex) -> tuple[dict[str, Region], list[Diagnostic]]:
    """Return the regions, and a diagnostic for each loop without a cycle and each cycle without a loop."""
    groups = _groups(index)
    cyclic = dict.fromkeys(group for group in groups if _is_cyclic(index, group))  # an ordered set
    found = list(_loop_problems(index, cyclic))
    owners = {frozenset(loop.components): loop for loop in reversed(index.spec.composite_loops)}
    regions: dict[str, Region] = {}
    for group in groups:
        region = _region(index, group, owners.get(frozenset(group)) if group in cyclic else None)
        if region.id in regions:
            found.append(
                Diagnostic.of("duplicate_id", f"a loop and a component both have the id {region.id}", region.id)
            )
        regions[region.id] = region
    found += _cycle_problems(index, cyclic, owners)
    return _connected(index, regions), found


def _groups(index: GraphIndex) -> list[tuple[str, ...]]:
    """Return the ids of each strongly connected group, sorted."""
    ids = list(index.components)
    numbers = {name: number for number, name in enumerate(ids)}
    successors: list[list[int]] = [[] for _ in ids]
    for edge in index.edges:
        source, target = numbers.get(edge.source.component), numbers.get(edge.target.component)
        if edge.is_immediate and source is not None and target is not None:
            successors[source].append(target)
    return [tuple(sorted(ids[number] for number in group)) for group in strongly_connected(successors)]


def _is_cyclic(index: GraphIndex, group: tuple[str, ...]) -> bool:
    if len(group) > 1:
        return True
    name = group[0]
    return any(edge.is_immediate and edge.target.component == name for edge in index.outgoing.get(name, ()))


def _region(index: GraphIndex, group: tuple[str, ...], loop: CompositeLoopSpec | None) -> Region:
    return Region(
        id=loop.id if loop else ",".join(group),
        kind="composite_loop" if loop else "component",
        components=group,
        loop=loop,
        rank=max(index.components[name].execution.rank for name in group),
    )


def _connected(index: GraphIndex, regions: Mapping[str, Region]) -> dict[str, Region]:
    """Return the regions with their predecessors and successors filled in."""
    region_of = {name: region.id for region in regions.values() for name in region.components}
    before: dict[str, set[str]] = {name: set() for name in regions}
    after: dict[str, set[str]] = {name: set() for name in regions}
    for edge in index.edges:
        source, target = region_of.get(edge.source.component), region_of.get(edge.target.component)
        if edge.is_immediate and source is not None and target is not None and source != target:
            after[source].add(target)
            before[target].add(source)
    replace = msgspec.structs.replace
    return {
        name: replace(region, incoming_regions=tuple(sorted(before[name])), outgoing_regions=tuple(sorted(after[name])))
        for name, region in regions.items()
    }


# --- loops and cycles that do not match ----------------------------------------------------------


def _loop_problems(index: GraphIndex, cyclic: Iterable[tuple[str, ...]]) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each loop that does not match exactly one cycle."""
    cycles = dict.fromkeys(frozenset(group) for group in cyclic)  # an ordered set
    cycle_of = {name: cycle for cycle in cycles for name in cycle}
    owner: dict[str, str] = {}
    for loop in index.spec.composite_loops:
        path = f"composite_loops.{loop.id}"
        members = frozenset(loop.components)
        yield from _member_problems(index, loop, path, owner)
        spans = [name for name in loop.components if name in index.durable]
        if spans and (refused := fields_refused(loop.loop_policy)):
            message = f"composite_loop {loop.id} spans epochs ({spans[0]} runs as entries), so it has no {refused[0]}"
            instead = f"Remove {', '.join(refused)}; max_iterations, convergence and partial_success are possible."
            yield Diagnostic.of("graph_validation_error", message, path, components=spans, fix=instead)
            continue
        if members in cycles:
            continue
        touched = [name for name in loop.components if name in cycle_of]
        code = "partial_composite_loop" if touched else "decorative_composite_loop"
        message = f"composite_loop {loop.id} must exactly match one immediate cyclic strongly connected component"
        if touched:
            message += f"; the cycle is {','.join(sorted(cycle_of[touched[0]]))}"
        fix = _SPANNING_FIX if spans else None
        yield Diagnostic.of(code, message, path, components=loop.components, fix=fix)


def _member_problems(
    index: GraphIndex, loop: CompositeLoopSpec, path: str, owner: dict[str, str]
) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each member that is missing, duplicate, or in another loop."""
    seen: set[str] = set()
    for name in loop.components:
        if name in seen:
            yield Diagnostic.of("duplicate_id", f"composite_loop {loop.id} lists {name} twice", path, components=[name])
        seen.add(name)
        if name not in index.components:
            message = f"composite_loop {loop.id} references missing component {name}"
            yield Diagnostic.of("unknown_component", message, path, components=[name])
        elif owner.setdefault(name, loop.id) != loop.id:
            message = f"component {name} is in two composite_loops: {owner[name]} and {loop.id}"
            fix = "A component may be in one loop: remove it from the other."
            yield Diagnostic.of("graph_validation_error", message, path, components=[name], fix=fix)


def _cycle_problems(
    index: GraphIndex, cyclic: Iterable[tuple[str, ...]], owners: Mapping[frozenset[str], CompositeLoopSpec]
) -> Iterator[Diagnostic]:
    """Yield a diagnostic for each cycle without a loop, and for each cycle that crosses a subgraph's border."""
    home = {name: part.id for part in index.spec.hierarchy for name in part.components}
    for group in cyclic:
        loop = owners.get(frozenset(group))
        edges = _edges_inside(index, group)
        if loop is None:
            message = (
                f"immediate cycle detected among components {','.join(group)}; "
                "declare a composite_loop of exactly these, or make one edge delay, state or async"
            )
            path = f"components.{group[0]}"
            yield Diagnostic.of("immediate_cycle_without_loop", message, path, components=group, edges=edges)
        elif len(homes := {home.get(name, "the top level") for name in group}) > 1:
            message = f"the cycle of {loop.id} spans {', '.join(sorted(homes))}"
            path = f"composite_loops.{loop.id}"
            yield Diagnostic.of("subgraph_hidden_cycle", message, path, components=group, edges=edges)


def _edges_inside(index: GraphIndex, group: tuple[str, ...]) -> list[str]:
    """Return the ids of the immediate edges between members of the group."""
    members = set(group)
    edges = (edge for name in group for edge in index.outgoing.get(name, ()))
    return [edge.id for edge in edges if edge.is_immediate and edge.target.component in members]


# --- orders --------------------------------------------------------------------------------------


def region_order(regions: Mapping[str, Region]) -> tuple[str, ...]:
    """Return the region ids, each after its predecessors; ready regions by priority, then by when they became ready."""
    waiting = {name: len(region.incoming_regions) for name, region in regions.items()}
    ready: list[tuple[int, int, str]] = []  # negative rank, arrival number, id
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
    """Return the component ids, each after its dependencies, in FIFO order; and the problems of `depends_on`."""
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
        message = f"depends_on forms a cycle among {','.join(stuck)}"
        fix = "Remove one dependency of the cycle."
        path = f"components.{stuck[0]}.depends_on"
        found.append(Diagnostic.of("graph_validation_error", message, path, components=stuck, fix=fix))
    return tuple(order), found


def _dependency_problems(index: GraphIndex) -> Iterator[Diagnostic]:
    for name, component in index.components.items():
        path = f"components.{name}.depends_on"
        for each, times in Counter(component.depends_on).items():
            if times > 1:
                message = f"component {name} lists {each} twice in depends_on"
                yield Diagnostic.of("duplicate_id", message, path, components=[name])
            if each not in index.components:
                message = f"component {name} depends_on missing component {each}"
                yield Diagnostic.of("unknown_component", message, path, components=[name])


# --- strongly connected components ---------------------------------------------------------------

_UNSEEN = -1


def strongly_connected(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the strongly connected groups, each sorted, in the order in which the walk completes them."""
    return _Walk(successors).groups()


class _Walk:
    """One depth-first walk over all nodes."""

    def __init__(self, successors: Sequence[Sequence[int]]) -> None:
        nodes = len(successors)
        self._successors = successors
        self._number = [_UNSEEN] * nodes
        self._low = [0] * nodes
        self._on_stack = [False] * nodes
        self._stack: list[int] = []
        self._seen = 0
        self._groups: list[list[int]] = []

    def groups(self) -> list[list[int]]:
        """Walk from every node that was not visited yet, and return the groups."""
        for node in range(len(self._successors)):
            if self._number[node] == _UNSEEN:
                self._walk_from(node)
        return self._groups

    def _walk_from(self, start: int) -> None:
        path = [(start, iter(self._successors[start]))]
        self._enter(start)
        while path:
            node, ahead = path[-1]
            for follower in ahead:
                if self._number[follower] == _UNSEEN:
                    self._enter(follower)
                    path.append((follower, iter(self._successors[follower])))
                    break
                if self._on_stack[follower]:
                    self._low[node] = min(self._low[node], self._number[follower])
            else:
                path.pop()
                self._leave(node)
                if path:
                    before = path[-1][0]
                    self._low[before] = min(self._low[before], self._low[node])

    def _enter(self, node: int) -> None:
        self._number[node] = self._low[node] = self._seen
        self._seen += 1
        self._stack.append(node)
        self._on_stack[node] = True

    def _leave(self, node: int) -> None:
        """Take the node's group off the stack if the node is the first of its group."""
        if self._low[node] != self._number[node]:
            return
        at = len(self._stack) - 1
        while self._stack[at] != node:
            at -= 1
        group = self._stack[at:]
        del self._stack[at:]
        for member in group:
            self._on_stack[member] = False
        self._groups.append(sorted(group))
