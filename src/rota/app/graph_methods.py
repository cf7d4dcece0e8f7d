"""The methods of `Rota` for graphs. Most programs have none, so what they need is loaded by name, when it is used."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from rota.app.agent_options import with_known_dims
from rota.app.async_run import on_own_thread
from rota.app.jobs import StoreLink
from rota.app.moments import Duration
from rota.errors import StoreUnavailable, WaitTimeout
from rota.fleet.supervisor import Supervisor
from rota.service.dispatcher import Dispatcher

if TYPE_CHECKING:
    from rota.app.agent_handle import AgentHandle
    from rota.app.graph_runs import GraphRunHandle
    from rota.app.graph_start import AnyGraph
    from rota.graph import Graph

__all__ = ["GraphMethods"]

WAITING_SLOTS = 4  # of the worker that runs while `GraphRunHandle.wait` waits
LOOK_S = 1.0  # how often a call that waits looks whether another worker runs the agents of this program


class GraphMethods:
    """Graphs, for a class that has a store and runs entries."""

    _link: StoreLink
    _dimensions: frozenset[str]
    _running: int  # calls of `run` and `arun` in progress

    def supervisor(self, slots: int | dict[str, int] = 1, **settings: Any) -> Supervisor:
        """Return a supervisor of the store."""
        raise NotImplementedError

    def _own_agents(self) -> list[AgentHandle]:
        """The agents whose functions this program has registered."""
        raise NotImplementedError

    def graph(
        self, name: str, *, config: Mapping[str, Any] | None = None, budget: Mapping[str, float] | None = None
    ) -> Graph:
        """Begin a graph: add nodes to it, then `run_graph` it (docs/graph.md). `budget` is for each of its runs."""
        graph: Graph = resolve_name("rota.graph:Graph")(name, config=config, budget=budget)
        return graph

    def run_graph(
        self,
        graph: AnyGraph,
        inputs: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        project: str | None = None,
        budget: Mapping[str, float] | None = None,
        wait_s: Duration | None = 0.0,
    ) -> GraphRunHandle:
        """Start a run of a graph: a `Graph`, the path of a graph file, or its text.

        A graph of functions runs on a thread of this program. A graph with agents is stored and coordinated by a
        supervisor; `run_id` names it, and starting it again under the same name returns the same run. With `wait_s` the
        call waits that long for its end; None waits without limit.
        """
        amounts: Any = None if budget is None else with_known_dims(self._dimensions, {"budget": budget})["budget"]
        run: GraphRunHandle = resolve_name("rota.app.graph_start:start_graph")(
            self._link,
            graph,
            inputs or {},
            run_id=run_id,
            project=project,
            budget=amounts,
            worker=self._working,
        )
        if wait_s != 0:
            with contextlib.suppress(WaitTimeout):
                run.wait(wait_s)
        return run

    async def arun_graph(
        self, graph: AnyGraph, inputs: Mapping[str, Any] | None = None, **options: Any
    ) -> GraphRunHandle:
        """Do the same as `run_graph`, for coroutines: `await (await rota.arun_graph(g))` is the result."""
        return await on_own_thread(partial(self.run_graph, graph, inputs, **options), lambda: None)

    def graph_run(self, run_id: str) -> GraphRunHandle:
        """Return a handle on a stored graph run, whichever program started it."""
        info = self._link.api.graphs.get(run_id)
        run: GraphRunHandle = resolve_name("rota.app.graph_runs:StoredGraphRun")(self._link, info, self._working)
        return run

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Run entries on other threads meanwhile, once no other worker is alive that runs this program's agents."""
        api = self._link.api
        if self._running or not isinstance(api, Dispatcher):
            yield
            return
        changed, is_over = threading.Condition(), False
        supervisors: list[Supervisor] = []

        def work() -> None:
            with changed:
                while not is_over and self._is_served(api):
                    api.clock.wait(changed, LOOK_S)
                if is_over:
                    return
                supervisors.append(self.supervisor(WAITING_SLOTS))
            supervisors[0].run()

        thread = threading.Thread(target=work, name="rota-run", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with changed:
                is_over = True
                changed.notify_all()
            for supervisor in supervisors:
                supervisor.drain()
            thread.join()

    def _is_served(self, api: Dispatcher) -> bool:
        """Whether a worker is alive that leaves none of this program's own agents to others."""
        own = {handle.pid for handle in self._own_agents()}
        try:
            alive = [worker for worker in api.workers.list() if worker.alive]
        except StoreUnavailable:  # it is looked at again; the call that waits has its own error
            return True
        return any(not worker.pools for worker in alive) or any(
            own.isdisjoint(pool.except_agents) for worker in alive for pool in worker.pools
        )
