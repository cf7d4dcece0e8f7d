"""Executing graph runs: a process takes a run, commits its epochs, enqueues its entries and ends it.

A process *takes* a run before it continues it. The event id of that is the run's *fence*: only the process that took
the run last may write, and a commit by an earlier process that is still alive is refused.

    process 1 takes r1 (fence 7), commits up to epoch 3, and hangs
    process 2 takes r1 (fence 9) and repeats epoch 3, the one that was in flight
    process 1 wakes up and commits epoch 4 with fence 7: refused, nothing changes

**Nothing keeps spending.** A run ends in its row first: from then on neither `commit` nor `enqueue` is accepted. Then
its entries are cancelled or asked to stop, in bounded steps (graph_entries.py). If the process dies between these
steps, the next one that takes the coordinator does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rota.errors import GraphInvalid, InvalidPayload, LimitExceeded
from rota.kernel import graph_budgets
from rota.kernel.environment import KernelEnvironment
from rota.kernel.graph_entries import GraphEntries
from rota.kernel.graph_run_rows import (
    RUN_ID_CHARS_MAX,
    check_readable,
    check_run_id,
    find_info,
    find_row,
    run_from_row,
    stale,
)
from rota.kernel.journal import append
from rota.kernel.lookups import find_agent
from rota.kernel.queue import Queue
from rota.kernel.rows import decode_needs, entry_from_row, json_text
from rota.model.checks import NOTE_CHARS_MAX, RESULT_BYTES_MAX, Checks
from rota.model.events import (
    GraphRunCommitted,
    GraphRunEnded,
    GraphRunStarted,
    GraphRunTaken,
    GraphRunWaits,
)
from rota.model.graph_budgets import GraphAccount
from rota.model.graph_runs import (
    BUDGETS_KEY,
    DOCUMENT_KEY,
    ENDED,
    GRAPH_CHARS_SHOWN,
    TEMPLATE,
    GraphRun,
    GraphRunInfo,
    GraphRunStatus,
)
from rota.model.lifecycle import ENTRY
from rota.model.work import Agent, ReadyEntry, ScheduleSpec
from rota.store import Transaction
from rota.store.statements import graph_runs as sql
from rota.store.statements import queue as queue_sql

__all__ = ["CHECKPOINT_BYTES_MAX", "DOCUMENT_BYTES_MAX", "GraphRunProgress", "free_name"]

CHECKPOINT_BYTES_MAX = 16 * 1024 * 1024  # of one run: every epoch writes all of it
DOCUMENT_BYTES_MAX = 1024 * 1024  # of one graph, as JSON: a graph file may be as large
_run = Checks("GraphRun", InvalidPayload)


class GraphRunProgress:
    """What the process that executes a graph run calls."""

    def __init__(self, env: KernelEnvironment, queue: Queue) -> None:
        self._env = env
        self._queue = queue
        self.entries = GraphEntries(env, queue)

    def take(self, run_id: str, graph: str, pid: int) -> GraphRun:
        """Start a run that this process executes itself, or take an existing run, whose agent stays the same."""
        check_run_id(run_id)
        _run.text("graph", graph)

        def work(tx: Transaction) -> GraphRun:
            now = self._env.read_clock(tx)
            found = tx.run(sql.RUN_INFO, (run_id,))
            run = run_from_row(found[0]) if found else None
            if run is not None and run.graph != graph:
                raise _run.refuse("run_id", f"{run_id!r} is a run of graph {run.graph}, not of {graph}")
            if run is None:  # one of an earlier version can go on under the name that it has
                _run.name("run_id", run_id)
                _run.name("graph", graph)
                agent = find_agent(tx, pid)
                tx.run(sql.RUN_CREATE, (run_id, graph, agent.pid, agent.project_id, 0, now, None, None, "{}", "{}"))
            return self._take(tx, run_id, None, now)

        return self._env.write_keeping_cache(work)

    def take_entry(self, sched_id: int, token: int) -> GraphRun:
        """Take the run that a live entry coordinates; raises `StaleClaim` if the claim is not the entry's live one.

        A run that has ended is returned as it is, and does not go on: its coordinator was interrupted before it could
        report the end. Only another entry, a copy made by `rota retry`, lets it go on.
        """

        def work(tx: Transaction) -> GraphRun:
            now = self._env.read_clock(tx)
            self._queue.live_run(tx, sched_id, _run.whole("token", token))
            entry = entry_from_row(tx.run(queue_sql.GET, (sched_id,))[0])
            run = self._run_of(tx, entry)
            if run is None:
                run = self._begin(tx, entry, now)
            elif run.status in ENDED and run.sched_id == sched_id:
                fence = self._record_taken(tx, run, now)
                tx.run(sql.RUN_FENCE, (run.run_id, fence, now))
                return run_from_row(tx.run(sql.RUN_GET, (run.run_id,))[0])
            return self._take(tx, run.run_id, sched_id, now)

        taken = self._env.write_keeping_cache(work)
        if taken.status in ENDED:
            self.entries.stop(taken.run_id, (), by=f"graph run {taken.run_id} {taken.status}")
        return taken

    def _run_of(self, tx: Transaction, entry: ReadyEntry) -> GraphRun | None:
        """Return the run that an entry coordinates, or is a copy of the coordinator of.

        What a run spawns has its name too, so only the copy of a coordinator that has ended takes its place.
        """
        if rows := tx.run(sql.RUN_OF_COORDINATOR, (entry.sched_id,)):
            return run_from_row(tx.run(sql.RUN_INFO, (rows[0][0],))[0])
        found = tx.run(sql.RUN_INFO, (entry.correlation_id,)) if entry.correlation_id is not None else []
        run = run_from_row(found[0]) if found else None
        if run is None or run.pid != entry.pid or run.sched_id is None or entry.parent_id is not None:
            return None
        states = tx.run_for(queue_sql.STATES_OF, [run.sched_id])
        return None if any(row[1] not in ENTRY.final for row in states) else run

    def begin_in(self, tx: Transaction, sched_id: int, now: float) -> None:
        """Begin the run of a new entry that coordinates one, so that it is listed before the entry is claimed.

        A run that exists, because it was started or resumed with its document, began before.
        """
        entry = entry_from_row(tx.run(queue_sql.GET, (sched_id,))[0])
        is_known = entry.correlation_id is not None and tx.run(sql.RUN_INFO, (entry.correlation_id,))
        if is_known or _document(find_agent(tx, entry.pid)) is None:
            return
        run = self._begin(tx, entry, now)
        if entry.hold is not None:
            waits = f"the start of its coordinator, entry {sched_id}"
            tx.run(sql.RUN_WAITS, (run.run_id, waits, now))
            append(tx, GraphRunWaits(run_id=run.run_id, waits=waits), now=now, pid=run.pid, correlation_id=run.run_id)

    def _begin(self, tx: Transaction, entry: ReadyEntry, now: float) -> GraphRun:
        """Store a run of the graph that an agent of a fleet file is."""
        agent = find_agent(tx, entry.pid)
        document = _document(agent)
        if document is None:
            raise GraphInvalid(
                f"agent {agent.pid} ({agent.name}) has no graph of its own",
                hint="Start a run with its document: `rota graph run FILE`.",
            )
        name = self._name_of(tx, entry, agent.name)
        budgets = agent.metadata.get(BUDGETS_KEY) or {}
        values = (
            json_text(_run, field, value, DOCUMENT_BYTES_MAX)
            for field, value in (("document", document), ("inputs", entry.payload), ("budget", budgets.get("", {})))
        )
        event = GraphRunStarted(run_id=name, graph=agent.name, sched_id=entry.sched_id)
        fence = append(tx, event, now=now, pid=agent.pid, correlation_id=name)
        row = (name, agent.name, agent.pid, agent.project_id, fence, now, entry.sched_id, *values)
        tx.run(sql.RUN_CREATE, row)
        graph_budgets.open_lines(tx, name, budgets, now, agent.pid)
        around = None if entry.account is None else entry.account.around
        if budgets or around is not None:
            graph_budgets.count_in(tx, entry.sched_id, GraphAccount(name).inside(around))
        return run_from_row(tx.run(sql.RUN_INFO, (name,))[0])

    def _name_of(self, tx: Transaction, entry: ReadyEntry, graph: str) -> str:
        """Return the name that the entry has for its run (`spec_for`), if it has one that is free."""
        name = entry.correlation_id
        if name is None or len(name) > RUN_ID_CHARS_MAX or not name.isprintable() or tx.run(sql.RUN_INFO, (name,)):
            return free_name(tx, graph, entry.sched_id)
        return name

    def _take(self, tx: Transaction, run_id: str, sched_id: int | None, now: float) -> GraphRun:
        run = run_from_row(tx.run(sql.RUN_INFO, (run_id,))[0])
        check_readable(run)
        if run.sched_id is None:  # otherwise it is charged with the claim of its coordinator
            graph_budgets.forget_charges(tx, run.fence)
        fence = self._record_taken(tx, run, now)
        tx.run(sql.RUN_TAKE, (run_id, fence, now, sched_id))
        return run_from_row(tx.run(sql.RUN_GET, (run_id,))[0])

    def _record_taken(self, tx: Transaction, run: GraphRun, now: float) -> int:
        event = GraphRunTaken(run_id=run.run_id, graph=run.graph, next_epoch_id=run.next_epoch_id)
        return append(tx, event, now=now, pid=run.pid, correlation_id=run.run_id)

    def commit(
        self, run_id: str, *, fence: int, next_epoch_id: int, checkpoint: bytes, waits: str | None = None
    ) -> None:
        """Store a run's checkpoint before an epoch; with `waits`, what the run waits for from now on.

        Raises `StaleClaim` if another process has taken the run, or if it has ended.
        """
        _run.whole("fence", fence)
        _run.whole("next_epoch_id", next_epoch_id, 1)
        _run.optional_text("waits", waits)
        if len(checkpoint) > CHECKPOINT_BYTES_MAX:
            raise LimitExceeded("CHECKPOINT_BYTES_MAX", CHECKPOINT_BYTES_MAX, len(checkpoint))
        text, now = checkpoint.decode(), self._env.now()

        def work(tx: Transaction) -> None:
            rows = tx.run(sql.RUN_COMMIT, (next_epoch_id, text, now, run_id, fence, waits))
            if not rows:
                raise stale(tx, run_id)
            event = GraphRunCommitted(run_id=run_id, next_epoch_id=next_epoch_id)
            append(tx, event, now=now, pid=rows[0][0], correlation_id=run_id)
            if waits is not None:
                append(tx, GraphRunWaits(run_id=run_id, waits=waits), now=now, pid=rows[0][0], correlation_id=run_id)

        self._env.write_keeping_cache(work)

    def enqueue(self, run_id: str, fence: int, specs: Sequence[ScheduleSpec]) -> list[int]:
        """Enqueue entries of a run, all or none; refused as `commit` is, so that a run that ended adds nothing.

        Their agents must be ones that the run's project may reach. A known key returns the old entry.
        """
        _run.whole("fence", fence)
        batch = self._queue.checked_batch(specs)

        def work(tx: Transaction) -> list[int]:
            held = tx.run(sql.RUN_HELD, (run_id, fence))
            if not held:
                raise stale(tx, run_id)
            project_id, needs_text = held[0]  # those of the coordinator
            account = decode_needs(needs_text).account
            within = None if account is None else account.around
            return self._queue.enqueue_batch_in(tx, batch, project_id, self._env.now(), within=within)

        return self._env.write_keeping_cache(work) if batch else []

    def ended(self, sched_ids: Sequence[int]) -> dict[int, ReadyEntry | None]:
        """Return those of these entries that have ended, by id; None for an entry that was pruned."""

        def work(tx: Transaction) -> dict[int, ReadyEntry | None]:
            states = {row[0]: row[1] for row in tx.run_for(queue_sql.STATES_OF, sched_ids)}
            ended = [each for each in sched_ids if each not in states or states[each] in ENTRY.final]
            return {
                each: entry_from_row(tx.run(queue_sql.GET, (each,))[0]) if each in states else None for each in ended
            }

        return self._env.read(work) if sched_ids else {}

    def finish(
        self, run_id: str, fence: int, status: GraphRunStatus, *, result: Any = None, error: str | None = None
    ) -> GraphRunInfo:
        """End a run, then cancel or stop what is left of its entries. A second call only does the latter again."""
        _run.whole("fence", fence)
        _run.one_of("status", status, ENDED)
        _run.optional_text("error", error, RESULT_BYTES_MAX)
        body = None if result is None else json_text(_run, "result", result, RESULT_BYTES_MAX)

        def work(tx: Transaction) -> GraphRunInfo:
            run = run_from_row(find_row(tx, run_id))
            if run.fence != fence:
                raise stale(tx, run_id)
            if run.status not in ENDED:
                self._end(tx, run_id, status, body, error)
            return find_info(tx, run_id)

        ended = self._env.write_keeping_cache(work)
        self.entries.stop(run_id, (), by=f"graph run {run_id} {ended.status}")
        return ended

    def _end(self, tx: Transaction, run_id: str, status: GraphRunStatus, body: str | None, error: str | None) -> None:
        now = self._env.read_clock(tx)
        for pid, graph, fence in tx.run(sql.RUN_END, (run_id, status, body, error, now)):
            graph_budgets.forget_charges(tx, fence)
            shown = None if error is None else error[:NOTE_CHARS_MAX]
            event = GraphRunEnded(run_id=run_id, graph=graph, status=status, error=shown)  # type: ignore[arg-type]  # checked
            append(tx, event, now=now, pid=pid, correlation_id=run_id)


def _document(agent: Agent) -> dict[str, Any] | None:
    """Return the graph that an agent of a fleet file is; None if it is another agent."""
    document = agent.metadata.get(DOCUMENT_KEY)
    return document if agent.template == TEMPLATE and isinstance(document, dict) else None


def free_name(tx: Transaction, graph: str, number: int) -> str:
    """Return a name for a run that was given none: the graph's, and the number of its coordinator."""
    first = f"{graph[:GRAPH_CHARS_SHOWN]}-{number}"
    name, tries = first, 1
    while tx.run(sql.RUN_INFO, (name,)):
        tries += 1
        name = f"{first}-{tries}"
    return name
