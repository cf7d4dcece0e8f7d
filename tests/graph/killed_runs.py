"""A process that runs a graph with a queue lane, runs its entries too, and may be killed at any moment.

    source → work (in the queue) → keep        source also → gate, which runs after the entry was enqueued

It tells on a pipe what it does, and notes every run of an entry in a file that outlives it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rota import store
from rota.fleet.graph_workers import graph_supervisor
from rota.graph.component_registry import ComponentRegistry
from rota.graph.components import component
from rota.graph.invocation import GraphContext
from rota.graph.lanes.durable import DurableRuns
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import RuntimeRunnerOptions
from rota.graph.stop import StopToken
from rota.kernel import Kernel
from rota.service.dispatcher import Dispatcher
from tests.graph.worlds import compile_world, node, wire

VALUES = 12
RUN_ID = "mortal"
TOKENS = 10  # that an entry charges; the component `gate`, in the process of the run, charges 1
CLAIM_TIMEOUT_S = 0.4  # a dead worker's entry is taken back after this
ASYNC: dict[str, Any] = {"mode": "queue", "capacity": VALUES}

Tell = Callable[[str, Any], None]


def live(pipe: Connection, *, path: str, runs_path: str, blocks_at: int | None) -> None:
    """Run the graph to its end; with `blocks_at`, only into the middle of that epoch."""
    lock = threading.Lock()

    def tell(word: str, what: Any) -> None:
        with lock:
            pipe.send((word, what))

    kernel = Kernel(store.open(path, durability="normal"))
    stop = StopToken()
    nodes = _nodes(tell, stop, runs_path, blocks_at)
    wires = [
        wire("source.out > work.value", **ASYNC),
        wire("source.out > gate.value", **ASYNC),
        wire("work.out > keep.value", "async", **ASYNC),
    ]
    lanes = {"main": {"type": "event_loop"}, "far": {"type": "queue"}}
    plan, registry = compile_world(nodes, wires, lanes=lanes, budget={"tokens": 10**6})
    _start_worker(kernel, registry)
    options = RuntimeRunnerOptions(durable=DurableRuns(kernel), run_id=RUN_ID, steps=10**9, stop_token=stop)
    result = RuntimeRunner(plan, registry, options).run()
    tell("result", (result.errors, result.snapshots["keep"]))


def _start_worker(kernel: Kernel, registry: ComponentRegistry) -> None:
    supervisor = graph_supervisor(
        Dispatcher(kernel), registry, ["world"], claim_timeout_s=CLAIM_TIMEOUT_S, heartbeat_s=CLAIM_TIMEOUT_S / 4
    )
    threading.Thread(target=supervisor.run, daemon=True).start()


def _nodes(tell: Tell, stop: StopToken, runs_path: str, blocks_at: int | None) -> list[Any]:
    @component("killed.source")
    class Source:
        count = 0

        def execute(self) -> int | None:
            if self.count == VALUES:
                return None
            self.count += 1
            tell("source", self.count)
            return self.count

        def snapshot(self) -> int:
            return self.count

        def restore(self, count: int) -> None:
            self.count = count

    @component("killed.work")
    def work(context: GraphContext, value: int) -> int:
        context.charge(tokens=TOKENS)
        with Path(runs_path).open("ab", buffering=0) as runs:
            runs.write(f"{value}\n".encode())
        tell("run", value)
        return value * 10

    @component("killed.gate")
    def gate(context: GraphContext, value: int) -> None:
        context.charge(tokens=1)
        if value == blocks_at:
            tell("blocked", value)
            threading.Event().wait()  # until it is killed

    @component("killed.keep")
    class Keep:
        def __init__(self) -> None:
            self.values: list[int] = []

        def activate(self) -> None:
            self._end_if_complete()

        def execute(self, value: int) -> None:
            self.values.append(value)
            self._end_if_complete()

        def _end_if_complete(self) -> None:
            if len(self.values) == VALUES:
                stop.request("everything has come")

        def snapshot(self) -> list[int]:
            return list(self.values)

        def restore(self, values: list[int]) -> None:
            self.values = list(values)

    return [
        node(Source, "source"),
        node(work, "work", on="any_input", lane="far"),
        node(gate, "gate", on="any_input", priority="background"),
        node(Keep, "keep", on="any_input"),
    ]
