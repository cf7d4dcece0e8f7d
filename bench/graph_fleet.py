"""What a graph of agents costs beside its agents, and what a run costs that waits.

`fleet-fanout`: one agent returns a list, an agent runs once for each of its items, one agent gets all results; against
the same entries on the same supervisor without a graph. `epoch-idle`: the CPU time of a supervisor whose only graph run
waits for an entry that nothing runs, as a part of one core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.harness import Arena, Case, Measured
from rota import store
from rota.fleet import Supervisor, SupervisorSettings
from rota.kernel import Kernel
from rota.model import ScheduleSpec
from rota.service import Dispatcher

ITEMS = 1_000
SLOTS = 8
IDLE_S = 2.0  # how long a waiting run is watched
IDLE_PERCENT = 1.0  # of one core
PATIENCE_S = 60.0


def cases() -> Iterator[Case]:
    """Return the cases of this file."""
    beside = "the same entries on the same supervisor, without a graph"
    yield Case("fleet-fanout", ITEMS, "ops/s", beside, _fanout_arena, ops=ITEMS + 2, goal=0.6)
    yield Case("epoch-idle", 1, "%", f"{IDLE_PERCENT:g} % of a core", _idle_arena, goal=1, rounds=3)


def _first() -> list[int]:
    return list(range(ITEMS))


def _each(item: int) -> int:
    return item


def _last(items: list[int]) -> int:
    return len(items)


FUNCTIONS: dict[str, Callable[..., Any]] = {"first": _first, "each": _each, "last": _last}


def _edge(name: str, start: str, end: str) -> dict[str, str]:
    return {"id": name, "kind": "async", "from": start, "to": end}


def _document() -> dict[str, Any]:
    return {
        "schema_version": 2,
        "graph": {"name": "fan"},
        "lanes": {"main": {"type": "event_loop"}},
        "components": [
            {"id": "first", "execution": {"agent": "first"}},
            {"id": "each", "execution": {"agent": "each", "map_over": "item"}},
            {"id": "last", "execution": {"agent": "last"}},
            {"id": "result", "type": "rota.output", "execution": {"lane": "main"}},
        ],
        "edges": [
            _edge("a", "first.out", "each.item"),
            _edge("b", "each.out", "last.items"),
            _edge("c", "last.out", "result.value"),
        ],
    }


class Desk:
    """A store in memory with the agents, and a supervisor that runs until it is stopped."""

    def __init__(self) -> None:
        self.api = Dispatcher(Kernel(store.open(":memory:")))
        self.pids = {name: self.api.agents.create(name, metadata={"run": {}}) for name in FUNCTIONS}
        self._supervisor = Supervisor(self.api, SupervisorSettings(slots=SLOTS), functions=FUNCTIONS)
        self._thread = threading.Thread(target=self._supervisor.run)
        self._thread.start()
        self._entries = 0

    def run_graph(self) -> int:
        """Run the graph to its end."""
        run = self.api.graphs.start(_document())
        assert run.sched_id is not None
        return int(self.api.queue.wait(run.sched_id, PATIENCE_S).result["result"])

    def run_entries(self) -> int:
        """Run the same entries without a graph: the first, then the others, then the last."""
        self.api.queue.wait(self._enqueue([("first", {})])[0], PATIENCE_S)
        ids = self._enqueue([("each", {"item": item}) for item in range(ITEMS)])
        found = [self.api.queue.wait(sched_id, PATIENCE_S).result for sched_id in ids]
        return int(self.api.queue.wait(self._enqueue([("last", {"items": found})])[0], PATIENCE_S).result)

    def _enqueue(self, wanted: list[tuple[str, dict[str, Any]]]) -> list[int]:
        specs = []
        for name, payload in wanted:
            self._entries += 1
            key = f"bench/{self._entries}"
            specs.append(ScheduleSpec(self.pids[name], payload=payload, key=key, correlation_id="bench"))
        return self.api.queue.enqueue_many(specs)

    def close(self) -> None:
        """Stop the supervisor."""
        self._supervisor.drain()
        self._thread.join()
        self.api.close()


def _fanout_arena() -> Arena:
    desk = Desk()
    return Arena(rota=desk.run_graph, base=desk.run_entries, close=desk.close)


def _idle_arena() -> Arena:
    desk = Desk()
    desk.api.agents.pause(desk.pids["each"], "bench")
    run = desk.api.graphs.start(_document())
    give_up_at = time.monotonic() + PATIENCE_S
    while desk.api.graphs.show(run.run_id).run.waits != f"the end of each ({ITEMS})":
        assert time.monotonic() < give_up_at, "the run does not wait"
        time.sleep(0.01)

    def waiting() -> Measured:
        started, before_s = time.perf_counter(), time.process_time()
        time.sleep(IDLE_S)
        return Measured((time.process_time() - before_s) * 100 / (time.perf_counter() - started))

    def close() -> None:
        desk.api.graphs.cancel(run.run_id)
        desk.close()

    return Arena(rota=waiting, base=lambda: Measured(IDLE_PERCENT), close=close)
