"""The plots of docs/scheduling.md: what rota itself does, drawn by `./dev docs`; a test holds them current.

Queues are the real kernel and dispatcher over a store in memory, on a clock that is moved by hand: one slot, a second
for each run. Cores are the real engine in virtual time. No number in a plot is written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, count

from rota import store
from rota.clock import ManualClock
from rota.kernel import Kernel, ScheduleSpec
from rota.model import Account, Candidate
from rota.policy import FlowTree
from rota.service import Dispatcher
from rota.sim import build_simulation, draw_svg, parse_scenario
from rota.svg import INK, document, element, text

MS = 1_000_000
COLORS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2")
WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 60, 78

Line = Sequence[tuple[float, float]]


class Queue:
    """One slot, and projects with one agent each."""

    def __init__(self, policy: str, weights: Mapping[str, int]) -> None:
        self._clock = ManualClock(1_000_000.0)
        self._kernel = Kernel(store.open(":memory:", clock=self._clock))
        self._dispatcher = Dispatcher(self._kernel, policy)
        self._cost: dict[int, int] = {}
        self._pids: dict[str, int] = {}
        self.names: dict[int, str] = {}
        for name, weight in weights.items():
            self._kernel.projects.create(name, weight=weight * 1000)
            self._pids[name] = self._kernel.agents.create(name, project_id=name)
            self.names[self._pids[name]] = name

    def enqueue(self, name: str, entries: int, cost: int, priority: int = 0) -> None:
        pid = self._pids[name]
        self._cost[pid] = cost
        spec = ScheduleSpec(pid, priority, expected={"tokens": cost})
        self._kernel.queue.enqueue_many([spec] * entries)

    def run(self, entries: int) -> list[tuple[str, int]]:
        """Run as many entries; return whose they were, and what they used."""
        ran = []
        for _ in range(entries):
            (entry,) = self._dispatcher.claim("worker")
            self._clock.advance(1)
            used = self._cost[entry.pid]
            self._kernel.queue.charge(entry.sched_id, {"tokens": used}, token=entry.token)
            self._kernel.queue.complete(entry.sched_id, "completed", token=entry.token)
            ran.append((self.names[entry.pid], used))
        return ran


def shares() -> str:
    """Which part of the tokens a project of weight 3 of 4 has had, under four policies."""
    lines: dict[str, Line] = {}
    for policy in ("eevdf", "fair_share", "round_robin", "strict"):
        queue = Queue(policy, {"A": 3, "B": 1})
        for _ in range(60):  # A asks for much with small runs, B with large ones
            queue.enqueue("A", 2, 100)
            queue.enqueue("B", 2, 300)
        ran = queue.run(80)
        mine = list(accumulate(used if name == "A" else 0 for name, used in ran))
        all_of_it = list(accumulate(used for _, used in ran))
        lines[policy] = [(at + 1, 100 * a / b) for at, (a, b) in enumerate(zip(mine, all_of_it, strict=True))]
    return chart("Project A, weight 3 of 4: its part of the tokens", "runs", "percent", lines, marks={"target": 75})


def returning() -> str:
    """What a project gets after it had no work for 60 runs."""
    lines: dict[str, Line] = {}
    for policy in ("eevdf", "fair_share"):
        queue = Queue(policy, {"A": 1, "B": 1})
        queue.enqueue("B", 1, 100)  # both have run once before: no project is new
        queue.enqueue("A", 200, 100)
        ran = queue.run(60)
        queue.enqueue("B", 200, 100)
        ran += queue.run(100)
        lines[policy] = [(at, 100 * _part(ran[max(0, at - 10) : at], "B")) for at in range(10, 161)]
    title = "Project B has no work until run 60: its part of the last 10 runs"
    return chart(title, "runs", "percent", lines, marks={"half": 50})


def _part(ran: Sequence[tuple[str, int]], name: str) -> float:
    return sum(each == name for each, _ in ran) / len(ran)


def starving() -> str:
    """How often an agent of low priority runs beside one of high priority that always has work."""
    lines: dict[str, Line] = {}
    for policy in ("weighted_priority", "eevdf", "strict"):
        queue = Queue(policy, {"high": 1, "low": 1})
        queue.enqueue("high", 120, 100, priority=9)
        queue.enqueue("low", 120, 100, priority=1)
        ran = queue.run(100)
        lines[policy] = list(enumerate(accumulate(name == "low" for name, _ in ran), 1))
    return chart("An agent of priority 1 beside one of priority 9: its runs", "runs of both", "runs", lines)


def ahead() -> str:
    """How far a heavy agent gets from its exact share, under `eevdf` and `wfq`."""
    lines: dict[str, Line] = {}
    for policy, eligibility in (("eevdf", True), ("wfq", False)):
        tree = FlowTree(eligibility=eligibility)
        weights = {"heavy": 8, **{f"light {number}": 1 for number in range(8)}}
        numbers = count(1)
        for name, weight in weights.items():
            tree.set_account("owner", name, Account(weight=weight * 1000, request=1))
            for _ in range(60):
                tree.add(Candidate(next(numbers), owner=name, cost=1))
        picked = list(accumulate(_pick(tree) == "heavy" for _ in range(64)))
        lines[policy] = [(0, 0), *((at, at / 2 - had) for at, had in enumerate(picked, 1))]
    title = "One agent of weight 8 beside eight of weight 1: what it is owed"
    return chart(title, "runs", "runs it is owed", lines, marks={"exact share": 0})


def _pick(tree: FlowTree) -> str:
    picked = tree.pick()
    assert picked is not None
    return str(picked.owner)


SCENARIO = """
cores = 1
duration_ms = 120
[[thread]]
name = "heavy (3)"
kind = "hog"
weight = 3000
[[thread]]
name = "light (1)"
kind = "hog"
weight = 1000
[[thread]]
name = "sleeper (1)"
kind = "periodic"
weight = 1000
latency = "sensitive"
work_us = [500, 500]
every_us = 10_000
"""


def cores() -> str:
    """A core shared by two threads that never stop and one that wakes every 10 ms."""
    simulation = build_simulation(parse_scenario(SCENARIO))
    simulation.run(120 * MS)
    return draw_svg(
        simulation, "One core: two threads that never stop, weights 3 and 1, and one that wakes every 10 ms"
    )


def chart(
    title: str, x_name: str, y_name: str, lines: Mapping[str, Line], *, marks: Mapping[str, float] | None = None
) -> str:
    """Return a line chart as SVG; a mark is a level that the lines are compared with."""
    marks = marks or {}
    xs = [x for line in lines.values() for x, _ in line]
    ys = [*(y for line in lines.values() for _, y in line), *marks.values()]
    x_max, low, high = max(xs), min(0, *ys), max(ys) * 1.05

    def place(x: float, y: float) -> tuple[float, float]:
        right, down = (WIDTH - LEFT - RIGHT) * x / x_max, (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low)
        return round(LEFT + right, 1), round(TOP + down, 1)

    return document(
        WIDTH, HEIGHT, title, _shapes(place, lines, marks, (x_name, y_name), (x_max, low, high)), margin=LEFT
    )


def _shapes(
    place: Callable[[float, float], tuple[float, float]],
    lines: Mapping[str, Line],
    marks: Mapping[str, float],
    names: tuple[str, str],
    size: tuple[float, float, float],
) -> Iterator[str]:
    x_max, low, high = size
    left, bottom = place(0, low)
    right, top = place(x_max, high)
    yield element("path", d=f"M{left} {top} V{bottom} H{right}", class_="line")
    for part in range(5):
        value = low + (high / 1.05 - low) * part / 4
        _, y = place(0, value)
        yield text(left - 8, y + 4, f"{value:.3g}", class_="small", text_anchor="end")
        x, _ = place(x_max * part / 4, low)
        yield text(x, bottom + 16, f"{x_max * part / 4:.3g}", class_="small", text_anchor="middle")
    yield text(right, bottom + 32, names[0], class_="small", text_anchor="end")
    yield text(left, top - 8, names[1], class_="small")
    for name, value in marks.items():
        _, y = place(0, value)
        yield element("path", d=f"M{left} {y} H{right}", stroke=INK, stroke_width=1, stroke_dasharray="4 4")
        yield text(right, y - 5, name, class_="small", text_anchor="end")
    for number, (name, line) in enumerate(lines.items()):
        points = " ".join(f"{x},{y}" for x, y in (place(*point) for point in line))
        yield element("polyline", points=points, fill="none", stroke=COLORS[number], stroke_width=2)
        x = left + 150 * number
        yield element("rect", x=x, y=bottom + 44, width=12, height=12, fill=COLORS[number])
        yield text(x + 18, bottom + 54, name)


def _page(draw: Callable[[], str]) -> Iterator[str]:
    yield draw()


PLOTS: Mapping[str, Callable[[], Iterator[str]]] = {
    f"docs/plots/{draw.__name__}.svg": partial(_page, draw) for draw in (shares, returning, ahead, starving, cores)
}
