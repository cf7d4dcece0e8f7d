"""Graph runs: the stored progress of each graph run, so that it outlives the process that executes it.

A graph run is one row: its document, its inputs, what became of it, and a *checkpoint* that only the graph runtime
reads. A run that the product executes has a *coordinator*, an entry of the agent that has the graph's name: `start`
writes both in one transaction. An entry of such an agent that is enqueued in another way (by a trigger, by `rota
enqueue`) is a run from then on: its document is in the agent's metadata, its payload holds the inputs.

Executing a run is in graph_run_progress.py; what becomes of its entries when it ends, in graph_entries.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from rota.errors import InvalidPayload
from rota.kernel import graph_budgets
from rota.kernel.agents import Agents
from rota.kernel.environment import KernelEnvironment
from rota.kernel.grants import may_reach
from rota.kernel.graph_run_progress import CHECKPOINT_BYTES_MAX, DOCUMENT_BYTES_MAX, GraphRunProgress, free_name
from rota.kernel.graph_run_rows import (
    RUN_ID_CHARS_MAX,
    check_readable,
    check_run_id,
    find_info,
    find_row,
    read_runs,
    refused,
    run_from_row,
    same_run,
    shown_run,
    state_text,
)
from rota.kernel.journal import append
from rota.kernel.lookups import check_project_exists, find_agent
from rota.kernel.queue import Queue
from rota.kernel.rows import agent_from_row, json_text
from rota.model.agent_metadata import SETTINGS_KEY
from rota.model.checks import PAYLOAD_BYTES_MAX, Checks
from rota.model.events import GraphRunForgotten, GraphRunStarted
from rota.model.graph_budgets import GraphAccount
from rota.model.graph_places import TRIGGER
from rota.model.graph_runs import (
    ENDED,
    TEMPLATE,
    GraphCancellation,
    GraphRun,
    GraphRunInfo,
    coordinator_settings,
)
from rota.model.lifecycle import ENTRY
from rota.model.work import Agent, ScheduleSpec
from rota.store import Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import graph_runs as sql
from rota.store.statements import queue as queue_sql

__all__ = ["CHECKPOINT_BYTES_MAX", "DOCUMENT_BYTES_MAX", "RUN_ID_CHARS_MAX", "GraphRun", "GraphRuns"]

ORPHANS_MAX = 100  # runs without a coordinator that one call ends
_run = Checks("GraphRun", InvalidPayload)
RunList: TypeAlias = list[GraphRunInfo]  # in the class, `list` is a method
AgentList: TypeAlias = list[Agent]


class GraphRuns(GraphRunProgress):
    """Starting and operating graph runs."""

    def __init__(self, env: KernelEnvironment, agents: Agents, queue: Queue) -> None:
        super().__init__(env, queue)
        self._agents = agents

    # --- starting --------------------------------------------------------------------------------

    def create(
        self,
        graph: str,
        document: Mapping[str, Any],
        inputs: Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        project_id: str | None = None,
        budgets: Mapping[str, Mapping[str, int]] | None = None,
    ) -> GraphRunInfo:
        """Store a run of a document that was checked, and enqueue its coordinator.

        A `run_id` that exists is the same run if it has the same document and inputs, and refused otherwise. `budgets`
        has the run's own budget under the empty name, and those of its nodes.
        """
        _run.name("graph", graph)
        if run_id is not None:
            check_run_id(_run.name("run_id", run_id))
        body = json_text(_run, "document", _run.mapping("document", document), DOCUMENT_BYTES_MAX)
        given = dict(_run.mapping("inputs", inputs or {}))
        amounts = dict(_run.amounts("budget", dict((budgets or {}).get("", {}))))
        values = (
            json_text(_run, "inputs", given, PAYLOAD_BYTES_MAX),
            json_text(_run, "budget", amounts, PAYLOAD_BYTES_MAX),
        )

        def work(tx: Transaction) -> GraphRunInfo:
            now = self._env.read_clock(tx)
            if run_id is not None and (known := tx.run(sql.RUN_INFO, (run_id,))):
                return same_run(run_from_row(known[0]), graph, msgspec.json.decode(body), given, project_id)
            if project_id is not None:
                check_project_exists(tx, project_id)
            pid = self._graph_agent(tx, graph, project_id, now)
            name = run_id or free_name(tx, graph, int(tx.run(sql.NEXT_ENTRY)[0][0]))
            tx.run(sql.RUN_CREATE, (name, graph, pid, project_id, 0, now, None, body, *values))
            graph_budgets.open_lines(tx, name, budgets or {}, now, pid)
            sched_id = self._enqueue_coordinator(tx, pid, name, given, now)
            event = GraphRunStarted(run_id=name, graph=graph, sched_id=sched_id)
            fence = append(tx, event, now=now, pid=pid, correlation_id=name)
            tx.run(sql.RUN_COORDINATED, (name, fence, sched_id))
            return find_info(tx, name)

        return self._env.write(work)

    def _graph_agent(self, tx: Transaction, graph: str, project_id: str | None, now: float) -> int:
        """Return the agent that is a graph, in a project; create it when its first run begins."""
        for row in reversed(tx.run(agent_sql.FIND, (graph,))):  # the first one that was created
            agent = agent_from_row(row)
            if agent.project_id != project_id:
                continue
            if agent.template == TEMPLATE:
                return agent.pid
            raise _run.refuse("graph", f"has the name of agent {agent.pid} ({graph}), which is not a graph: rename one")
        metadata = {SETTINGS_KEY: msgspec.to_builtins(coordinator_settings())}
        return self._agents.create_in(tx, graph, TEMPLATE, metadata=metadata, project_id=project_id, now=now)

    def _enqueue_coordinator(self, tx: Transaction, pid: int, run_id: str, inputs: dict[str, Any], now: float) -> int:
        settings = coordinator_settings()
        agent = find_agent(tx, pid)
        spec = ScheduleSpec(
            pid,
            agent.priority,
            trigger=TRIGGER,
            payload=inputs,
            account=GraphAccount(run_id),
            max_attempts=settings.max_attempts,
            retry_on=("crashed",),
            backoff=settings.restart.backoff,
            correlation_id=run_id,
        )
        return self._queue.spawn_in(tx, spec, agent.project_id, now)

    # --- operating -------------------------------------------------------------------------------

    def get(self, run_id: str) -> GraphRunInfo:
        """Return a run; raises `GraphRunUnknown`."""
        return shown_run(self.stored(run_id))

    def stored(self, run_id: str) -> GraphRun:
        """Return a run with its document, without its checkpoint."""
        check_run_id(run_id)
        return self._env.read(lambda tx: run_from_row(find_row(tx, run_id)))

    def list(
        self, *, status: str | None = None, graph: str | None = None, limit: int = 100, offset: int = 0
    ) -> tuple[RunList, int]:
        """Return a page of runs, newest first, and the number of all that match."""
        return read_runs(self._env, status=status, graph=graph, limit=limit, offset=offset)

    def cancel(self, run_id: str, *, stop: bool = True, by: str | None = None) -> GraphCancellation:
        """Cancel a run: its queued entries are cancelled and, with `stop`, its live ones are asked to stop.

        The state of a run that has ended does not change; entries that it may have left behind are cancelled.
        """
        check_run_id(run_id)
        _run.flag("stop", stop)
        _run.optional_text("by", by)

        def work(tx: Transaction) -> GraphRun:
            run = run_from_row(find_row(tx, run_id))
            if run.status not in ENDED:
                self._end(tx, run_id, "cancelled", None, by)
            return run_from_row(find_row(tx, run_id))

        run = self._env.write_keeping_cache(work)
        coordinator = () if run.sched_id is None else (run.sched_id,)
        done = self.entries.stop(run_id, coordinator, live=stop, by=by or f"graph run {run_id} cancelled")
        return GraphCancellation(run=shown_run(run), cancelled=done.cancelled, stopped=done.stopped, left=done.left)

    def resume(self, run_id: str) -> GraphRunInfo:
        """Let a failed or cancelled run go on from its checkpoint, with a new coordinator."""
        check_run_id(run_id)

        def work(tx: Transaction) -> GraphRunInfo:
            now = self._env.read_clock(tx)
            run = run_from_row(find_row(tx, run_id))
            self._check_resumable(tx, run)
            sched_id = self._enqueue_coordinator(tx, run.pid, run_id, run.inputs, now)
            around = None if run.sched_id is None else graph_budgets.account_around(tx, run.sched_id)
            if around is not None:
                graph_budgets.count_in(tx, sched_id, GraphAccount(run_id).inside(around))
            event = GraphRunStarted(run_id=run_id, graph=run.graph, sched_id=sched_id, resumed=True)
            fence = append(tx, event, now=now, pid=run.pid, correlation_id=run_id)
            tx.run(sql.RUN_RESUME, (run_id, fence, now, sched_id))
            return find_info(tx, run_id)

        return self._env.write(work)

    def _check_resumable(self, tx: Transaction, run: GraphRun) -> None:
        check_readable(run)
        if run.document is None:
            hint = "Run it where it was started, with the same --run-id."
            raise refused(run, f"run {run.run_id} has no stored graph: a process executed it itself", hint)
        if run.status not in ("failed", "cancelled"):
            hint = f"See how it is: `rota graph show {run.run_id}`."
            raise refused(run, f"run {run.run_id} {state_text(run)}; only a failed or cancelled run is resumed", hint)
        states = tx.run_for(queue_sql.STATES_OF, [run.sched_id]) if run.sched_id is not None else []
        if any(row[1] not in ENTRY.final for row in states):
            hint = f"See how it is: `rota show {run.sched_id}`."
            raise refused(run, f"run {run.run_id} is still stopping: entry {run.sched_id} has not ended", hint)

    def forget(self, run_id: str, *, cancel: bool = False) -> bool:
        """Delete a run that has ended; returns whether it existed. With `cancel`, a live one is cancelled first."""
        check_run_id(run_id)
        _run.flag("cancel", cancel)
        known = self._env.read(lambda tx: tx.run(sql.RUN_INFO, (run_id,)))
        if not known:
            return False
        run = run_from_row(known[0])
        if cancel or run.status in ENDED or run.sched_id is None:
            self.cancel(run_id)  # also of one that has ended: nothing that it left behind keeps spending

        def work(tx: Transaction) -> bool:
            rows = tx.run(sql.RUN_INFO, (run_id,))
            run = run_from_row(rows[0]) if rows else None
            if run is not None and run.sched_id is not None and run.status not in ENDED:
                hint = f"Cancel it first: `rota graph forget {run_id} --cancel`."
                raise refused(run, f"run {run_id} {state_text(run)}, so it is not deleted", hint)
            for pid, fence in tx.run(sql.RUN_FORGET, (run_id,)):
                graph_budgets.drop(tx, run_id)
                graph_budgets.forget_charges(tx, fence)
                append(tx, GraphRunForgotten(run_id=run_id), now=self._env.now(), pid=pid, correlation_id=run_id)
            return run is not None

        return self._env.write_keeping_cache(work)

    def tidy(self) -> int:
        """End the runs whose coordinator has ended without ending them, and their entries; returns their number.

        A coordinator may be cancelled by its id, end with its agent, or crash too often.
        """
        orphans = self._env.read(lambda tx: tx.run(sql.RUN_ORPHANS, (ORPHANS_MAX,)))
        for run_id, sched_id, state, exit_kind, outcome in orphans:
            cancelled = "cancelled" in (state, exit_kind)
            how = "was pruned" if state is None else " ".join(filter(None, (state, exit_kind, outcome)))
            text = f"its coordinator, entry {sched_id}, ended before the run: {how}"

            def work(tx: Transaction, run_id: str = run_id, text: str = text, cancelled: bool = cancelled) -> None:
                self._end(tx, run_id, "cancelled" if cancelled else "failed", None, text)

            self._env.write_keeping_cache(work)
            self.entries.stop(run_id, (), by=f"graph run {run_id} has no coordinator")
        return len(orphans)

    def common_project(self, names: Sequence[str]) -> str | None:
        """Return the project that has agents of all these names; None if there is no such project, or several."""

        def work(tx: Transaction) -> list[set[str]]:
            found = [map(agent_from_row, tx.run(agent_sql.FIND, (name,))) for name in names]
            return [{agent.project_id for agent in agents if agent.project_id is not None} for agents in found]

        common = set.intersection(*self._env.read(work)) if names else set()
        return common.pop() if len(common) == 1 else None

    def reachable_agents(self, names: Sequence[str], project_id: str | None) -> dict[str, AgentList]:
        """Return the live agents of each name that entries of a project may reach."""

        def work(tx: Transaction) -> dict[str, AgentList]:
            if project_id is not None:
                check_project_exists(tx, project_id)
            found = {name: map(agent_from_row, tx.run(agent_sql.FIND, (name,))) for name in names}
            return {
                name: [agent for agent in agents if may_reach(tx, project_id, agent.project_id)]
                for name, agents in found.items()
            }

        return self._env.read(work)
