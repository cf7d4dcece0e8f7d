"""Graphs with a queue lane, over a real kernel in memory, with a supervisor that the test steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rota import store
from rota.errors import RotaError
from rota.fleet.graph_workers import graph_supervisor
from rota.fleet.supervisor import Supervisor
from rota.graph.component_registry import ComponentRegistry
from rota.graph.entry_runs import run_entry
from rota.graph.lanes.durable import DurableRuns
from rota.graph.run import RuntimeRunner
from rota.graph.run_options import RuntimeRunnerOptions
from rota.kernel import Kernel
from rota.model.work import ReadyEntry
from rota.service.dispatcher import Dispatcher
from tests.graph.parts import Count, add, note
from tests.graph.worlds import compile_world, node, wire

LANES: Mapping[str, Any] = {"main": {"type": "event_loop"}, "far": {"type": "queue"}}
ASYNC: dict[str, Any] = {"mode": "queue", "capacity": 99}


class DurableWorld:
    """A graph, and the kernel that stores its runs."""

    def __init__(
        self,
        nodes: Iterable[Any],
        wires: Iterable[Any],
        lanes: Mapping[str, Any] = LANES,
        budget: Mapping[str, Any] | None = None,
        loops: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.plan, self.registry = compile_world(nodes, wires, lanes=lanes, budget=budget, loops=loops)
        self.kernel = Kernel(store.open(":memory:"))
        self.api = Dispatcher(self.kernel)

    def runner(self, run_id: str = "r1", **options: Any) -> RuntimeRunner:
        """A process that starts or resumes the run."""
        durable = DurableRuns(self.kernel)
        return RuntimeRunner(self.plan, self.registry, RuntimeRunnerOptions(durable=durable, run_id=run_id, **options))

    def supervisor(self, registry: ComponentRegistry | None = None, **how: Any) -> Supervisor:
        """A supervisor for the entries of this graph."""
        return graph_supervisor(self.api, registry or self.registry, ["world"], **how)

    def work(self, most: int | None = None) -> int:
        """Run the entries that are ready, or only the first of them by hand; returns how many."""
        if most is None:
            return self.supervisor().run(until_idle=True).runs
        entries = self.api.claim("by hand", most, kinds=["graph:world"]) if most else []
        for entry in entries:
            self.run_by_hand(entry)
        return len(entries)

    def run_by_hand(self, entry: ReadyEntry) -> None:
        """Run an entry that was claimed directly."""
        try:
            self.finish(entry, run_entry(self.registry, entry.payload))
        except RotaError as problem:
            self.finish(entry, {"error": problem.message}, "failed")

    def claim(self) -> ReadyEntry:
        """Claim the next entry directly."""
        (entry,) = self.api.claim("by hand", kinds=["graph:world"])
        return entry

    def finish(self, entry: ReadyEntry, result: Any, exit_kind: str = "completed") -> None:
        """Complete an entry that was claimed directly."""
        self.api.queue.complete(entry.sched_id, exit_kind, token=entry.token, result=result)

    def entries(self, state: str | None = None) -> list[ReadyEntry]:
        """All entries, oldest first."""
        return self.kernel.queue.list(state=state)[0]

    def entry_keys(self) -> list[str]:
        """Under which keys there are entries, oldest first."""
        return [str(entry.key) for entry in self.entries()]

    def rewrite_checkpoint(self, old: str, new: str) -> None:
        """Edit the stored checkpoint of run r1."""
        run = self.kernel.graphs.take("r1", "world", 1)
        text = (run.checkpoint or b"").decode().replace(old, new) if old else new
        self.kernel.graphs.commit("r1", fence=run.fence, next_epoch_id=1, checkpoint=text.encode())


def count_work_note(work: Any = add, *, source: Any = Count, **execution: Any) -> DurableWorld:
    """count → work (in the queue) → note."""
    nodes = [
        node(source, "source"),
        node(work, "work", on="any_input", lane="far", **execution),
        node(note, on="any_input"),
    ]
    wires = [
        wire("source.out > work.value", **ASYNC),
        wire("work.out > parts.note.value", "async", **ASYNC),
    ]
    return DurableWorld(nodes, wires)
