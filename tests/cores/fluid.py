"""The ideal of shares over several cores: the weighted max-min allocation of a fluid. It uses nothing of the engine.

Competitors are hogs, alone or in groups. A hog uses at most one core, and only the cores of its mask. At the root,
every competitor (a hog without a group, or a group) rises at the same speed per weight, until it cannot rise further:
because each of its hogs has a whole core, or because every core it may use is full of competitors that stand no higher
per weight. It is frozen there and the others rise on. Inside a group the same is done with the group's total: its hogs
rise by their own weights.

Whether rates are possible is a question of flow: from the source to each competitor (its rate), to its hogs (one core
at most), to the cores of their masks, to the sink (one per core). The rates are possible exactly if the maximum flow
fills every edge of the source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from rota.cores.accounts import LatencyClass

EPSILON = 1e-9
HALVINGS = 40
SLACK = 1e-6


class Hog(NamedTuple):
    """A thread that always has work."""

    name: str
    weight: float
    group: str | None = None
    cores: tuple[int, ...] = ()  # empty: every core
    latency: LatencyClass = "normal"  # the ideal knows no slices


def ideal_rates(core_count: int, hogs: Sequence[Hog], groups: Mapping[str, float]) -> dict[str, float]:
    """Return how much of a core each hog gets in the ideal, by name."""
    competitors: dict[str, list[Hog]] = {}
    for hog in hogs:
        competitors.setdefault(f"group {hog.group}" if hog.group else f"hog {hog.name}", []).append(hog)
    weights = {
        name: groups[members[0].group] if members[0].group else members[0].weight
        for name, members in competitors.items()
    }
    totals = _filled(weights, lambda rates: _is_possible(core_count, [(rates[n], m) for n, m in competitors.items()]))
    found: dict[str, float] = {}
    for name, members in competitors.items():
        others = [(totals[other], theirs) for other, theirs in competitors.items() if other != name]

        def is_possible(
            rates: dict[str, float], members: list[Hog] = members, others: list[tuple[float, list[Hog]]] = others
        ) -> bool:
            each = [(rates[member.name], [member]) for member in members]
            return _is_possible(core_count, [*others, *each])

        if len(members) == 1:
            found[members[0].name] = totals[name]
        else:
            found |= _filled({m.name: m.weight for m in members}, is_possible, total=totals[name])
    return found


def _filled(
    weights: Mapping[str, float], is_possible: Callable[[dict[str, float]], bool], total: float = float("inf")
) -> dict[str, float]:
    """Return the max-min rates by weight: all rise at the same speed per weight until each is frozen."""
    frozen: dict[str, float] = {}
    while len(frozen) < len(weights):
        rising = {name: weight for name, weight in weights.items() if name not in frozen}

        def rates(
            level: float, rising: dict[str, float] = rising, frozen: dict[str, float] = frozen
        ) -> dict[str, float]:
            return frozen | {name: weight * level for name, weight in rising.items()}

        low, high = 0.0, 1_000.0 / min(rising.values())
        left = total - sum(frozen.values())
        high = min(high, left / sum(rising.values()))
        if is_possible(rates(high)):
            return rates(high)
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if is_possible(rates(middle)) else (low, middle)
        here = rates(low)
        stuck = [name for name in rising if not is_possible(here | {name: here[name] * 1.001 + 1e-7})]
        # a little below, so that the rates stay possible together with others
        frozen = frozen | {name: here[name] * (1 - SLACK) for name in stuck or rising}
    return frozen


def _is_possible(core_count: int, wanted: Sequence[tuple[float, Sequence[Hog]]]) -> bool:
    """Whether each set of hogs can get its rate on the cores, all at the same time."""
    demand = sum(rate for rate, _ in wanted)
    if demand > core_count + EPSILON:
        return False
    sink, cores = 1, 2
    edges: list[dict[int, float]] = [{} for _ in range(cores + core_count)]

    def connect(start: int, end: int, capacity: float) -> None:
        edges[start][end] = capacity
        edges[end].setdefault(start, 0.0)

    for core in range(core_count):
        connect(cores + core, sink, 1.0)
    for rate, hogs in wanted:
        edges.append({})
        competitor = len(edges) - 1
        connect(0, competitor, rate)
        for hog in hogs:
            edges.append({})
            connect(competitor, len(edges) - 1, 1.0)
            for core in hog.cores or range(core_count):
                connect(len(edges) - 1, cores + core, 1.0)
    return _max_flow(edges, 0, sink) > demand - 1e-7


def _max_flow(edges: list[dict[int, float]], source: int, sink: int) -> float:
    """Return the maximum flow by shortest augmenting paths; `edges` holds what is left of each capacity."""
    flow = 0.0
    while True:
        before: dict[int, int] = {source: source}
        line = deque([source])
        while line and sink not in before:
            at = line.popleft()
            for then, left in edges[at].items():
                if left > EPSILON and then not in before:
                    before[then] = at
                    line.append(then)
        if sink not in before:
            return flow
        path, at = [], sink
        while at != source:
            path.append((before[at], at))
            at = before[at]
        step = min(edges[start][end] for start, end in path)
        for start, end in path:
            edges[start][end] -= step
            edges[end][start] = edges[end].get(start, 0.0) + step
        flow += step
