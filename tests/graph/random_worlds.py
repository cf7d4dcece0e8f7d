"""Random graphs that run, from a seed: components, lanes and edges of all kinds."""

from __future__ import annotations

import random
import threading
from typing import Any

from rota.graph.components import component
from rota.graph.invocation import GraphContext, Invocation
from rota.graph.run import RuntimeRunner
from rota.graph.tasks import TaskResult
from tests.graph.process_parts import pass_on, until_cancelled
from tests.graph.worlds import make_runner, node, wire

LANES: dict[str, Any] = {
    "loop": {"type": "event_loop"},
    "rate": {"type": "fixed_rate", "period_ms": 1, "wall_clock_enabled": True},
    "pool": {"type": "thread_pool", "max_threads": 3},
    "tight": {
        "type": "thread_pool",
        "max_threads": 2,
        "queue_capacity": 1,
        "overflow": "block",
        "overflow_deadline_ms": 5,
    },
    "fair": {"type": "thread_pool", "max_threads": 2, "policy": "eevdf"},
    "own": {"type": "isolated_thread", "queue_capacity": 2, "overflow": "drop_oldest"},
    "paced": {"type": "isolated_thread", "period_ms": 1},
    "ui": {"type": "manual_step"},
}
INDEPENDENT = {"own", "paced", "ui"}
PROCESS_LANES = {"process": {"type": "process_pool", "max_threads": 2}}


class Life:
    """Counts active components, to find one that was not deactivated."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.active = 0

    def change(self, by: int) -> None:
        with self.lock:
            self.active += by


def sorts_of_components(life: Life, chance: random.Random) -> list[Any]:
    """Fast, slow, cancellable, failing, async, multi-output and with background tasks."""

    class Alive:
        def activate(self) -> None:
            life.change(+1)

        def deactivate(self) -> None:
            life.change(-1)

    @component("any.quick")
    class Quick(Alive):
        def execute(self, *values: Any) -> int:
            return len(values)

    @component("any.busy")
    class Busy(Alive):
        def execute(self, *values: Any) -> int:
            return sum(range(2_000))

    @component("any.polite")
    class Polite(Alive):
        def execute(self, invocation: Invocation, *values: Any) -> int:
            return next((looks for looks in range(200) if invocation.cancel_requested()), 200)

    @component("any.rude")
    class Rude(Alive):
        def execute(self, *values: Any) -> int:
            if chance.random() < 0.05:
                raise ValueError("rude")
            return 1

    @component("any.later")
    class Later(Alive):
        async def execute(self, *values: Any) -> int:
            return 1

    @component("any.many", outputs=("out",))
    class Many(Alive):
        def execute(self, context: GraphContext, *values: Any) -> None:
            for number in range(4):
                context.publish("out", number)

    @component("any.tasks", outputs=("out",))
    class Tasks(Alive):
        def execute(self, context: GraphContext, task_ready: TaskResult | None = None, *values: Any) -> int:
            if task_ready is None and chance.random() < 0.3:
                context.submit(sum, range(100))
            return 1

    return [Quick, Busy, Polite, Rude, Later, Many, Tasks]


class RandomWorld:
    """A random graph: mostly a tangle of edges that lead forward, sometimes with a loop beside it."""

    def __init__(self, seed: int, life: Life, *, processes: bool = False) -> None:
        self.chance = random.Random(seed)
        self.sorts = sorts_of_components(life, self.chance)
        self.lanes = self._lanes(processes)
        self.size = self.chance.randint(3, 9)
        self.where = [self.chance.choice(sorted(self.lanes)) for _ in range(self.size)]
        if processes:  # a lane without components starts no worker
            self.where[self.chance.randrange(self.size)] = "process"
        self.wires = self._wires()
        self.nodes = [self._node(at) for at in range(self.size)]
        self.loops = self._loop() if self.chance.random() < 0.4 else []

    def runner(self, **options: Any) -> RuntimeRunner:
        return make_runner(
            self.nodes,
            self.wires,
            lanes=self.lanes,
            loops=self.loops,
            trace=self.chance.random() < 0.3,
            run_until_idle=self.chance.random() < 0.3,
            **options,
        )

    def _lanes(self, processes: bool) -> dict[str, Any]:
        chosen = self.chance.sample(sorted(LANES), self.chance.randint(2, 5))
        lanes = {name: LANES[name] for name in chosen} | (PROCESS_LANES if processes else {})
        return {**lanes, "main": {"type": "event_loop"}}

    def _wires(self) -> list[dict[str, Any]]:
        wires = []
        for target in range(1, self.size):
            for source in self.chance.sample(range(target), self.chance.randint(0, min(2, target))):
                places = {self.where[source], self.where[target]}
                crosses = len(places) > 1 and places & INDEPENDENT
                kind = self.chance.choice(["delay", "async"] if crosses else ["immediate", "delay", "async"])
                ends = f"n{source}.out > n{target}.values"
                if self.where[target] == "process":
                    ends = f"n{source}.out > n{target}.value"
                wires.append(wire(ends, kind, id=f"e{source}-{target}", mode="queue", capacity=3))
        return wires

    def _node(self, at: int) -> Any:
        chance, name, lane = self.chance, f"n{at}", self.where[at]
        patient = chance.random() < 0.95
        execution: dict[str, Any] = {
            "on_error": chance.choice(["continue", "isolate", "retry"]) if patient else "fail_fast",
            "reentrant": chance.random() < 0.5,
            "priority": chance.choice(["high", "normal", "low"]),
        }
        edges = [edge for edge in self.wires if edge["to"].startswith(f"{name}.")]
        thing = pass_on if lane == "process" else chance.choice(self.sorts)
        if lane == "process":
            del edges[1:]  # its port accepts one edge
            self.wires = [edge for edge in self.wires if edge in edges or not edge["to"].startswith(f"{name}.")]
            thing = chance.choice([pass_on, until_cancelled]) if not edges else pass_on
            execution |= {"timeout_ms": 300, "on_error": "continue"} if thing is until_cancelled else {}
        if thing.__name__ == "Tasks":
            sources = [{"type": "task_ready"}, {"type": "manual"}]
            return node(thing, name, lane=lane, on="on_event", sources=sources, **execution)
        return node(thing, name, lane=lane, on="any_input" if edges else None, **execution)

    def _loop(self) -> list[dict[str, Any]]:
        """Two components that send each other everything, on a lane of the region order."""
        lane = self.chance.choice(sorted(set(self.lanes) - INDEPENDENT - {"process"}))
        quick, many = self.sorts[0], self.sorts[5]
        self.nodes += [
            node(quick, "left", lane=lane, on={"type": "on_event"}, sources=[{"type": "manual"}]),
            node(many, "right", lane=lane, on="any_input"),
        ]
        self.wires += [
            wire("left.out > right.values", id="there", mode="queue", capacity=9),
            wire("right.out > left.values", id="back", mode="queue", capacity=9),
        ]
        policy = {"type": "fixed_point", "max_iterations": self.chance.randint(1, 20)}
        return [{"id": "loop", "components": ["left", "right"], "loop_policy": policy}]
