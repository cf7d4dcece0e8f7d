"""Graph runs: the stored progress of each graph run, so that it outlives the process that executes it.

A graph run is one row: its graph, the agent that its entries belong to, and a *checkpoint* that only the graph runtime
reads. A process *takes* a run before it continues it. The event id of that is the run's *fence*: only the process that
took the run last may write, and a commit by an earlier process that is still alive is refused.

    process 1 takes r1 (fence 7), commits up to epoch 3, and hangs
    process 2 takes r1 (fence 9) and repeats epoch 3, the one that was in flight
    process 1 wakes up and commits epoch 4 with fence 7: refused, nothing changes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from rota.errors import InvalidPayload, LimitExceeded, StaleClaim
from rota.kernel.environment import KernelEnvironment
from rota.kernel.journal import append
from rota.kernel.lookups import find_agent
from rota.kernel.paging import page
from rota.kernel.rows import entry_from_row
from rota.model.checks import Checks
from rota.model.events import GraphRunCommitted, GraphRunForgotten, GraphRunTaken
from rota.model.lifecycle import ENTRY
from rota.model.work import ReadyEntry
from rota.store import Row, Transaction
from rota.store.statements import graph_runs as sql
from rota.store.statements import queue as queue_sql

__all__ = ["CHECKPOINT_BYTES_MAX", "RUN_ID_CHARS_MAX", "GraphRun", "GraphRuns"]

CHECKPOINT_BYTES_MAX = 16 * 1024 * 1024  # of one run: every epoch writes all of it
RUN_ID_CHARS_MAX = 64  # the keys of a run's entries begin with it
_run = Checks("GraphRun", InvalidPayload)
GraphRunList: TypeAlias = list["GraphRun"]  # in the class, `list` is a method


class GraphRun(msgspec.Struct, frozen=True, kw_only=True):
    """A graph run as stored."""

    run_id: str
    graph: str
    pid: int  # the agent that its entries belong to
    fence: int  # the id of the last event of taking it
    next_epoch_id: int
    updated_at: float
    checkpoint: bytes | None = None  # None: nothing committed yet, or left out of a listing


class GraphRuns:
    """Taking graph runs, committing their epochs, and reading ended entries."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env

    def take(self, run_id: str, graph: str, pid: int) -> GraphRun:
        """Start a run whose entries belong to an agent, or take an existing run, whose agent stays the same."""
        check_run_id(run_id)
        _run.text("graph", graph)
        now = self._env.now()

        def work(tx: Transaction) -> GraphRun:
            found = tx.run(sql.RUN_GET, (run_id,))
            if found and found[0][1] != graph:
                raise _run.refuse("run_id", f"{run_id!r} is a run of graph {found[0][1]}, not of {graph}")
            if not found:  # one of an earlier version can go on under the name that it has
                _run.name("run_id", run_id)
                _run.name("graph", graph)
            owner = found[0][2] if found else find_agent(tx, pid).pid
            next_epoch_id = found[0][4] if found else 1
            event = GraphRunTaken(run_id=run_id, graph=graph, next_epoch_id=next_epoch_id)
            fence = append(tx, event, now=now, pid=owner, correlation_id=run_id)
            tx.run(sql.RUN_TAKE, (run_id, graph, owner, fence, now))
            return _from_row(tx.run(sql.RUN_GET, (run_id,))[0])

        return self._env.write_keeping_cache(work)

    def commit(self, run_id: str, *, fence: int, next_epoch_id: int, checkpoint: bytes) -> None:
        """Store a run's checkpoint before an epoch; raises `StaleClaim` if another process has taken the run."""
        _run.whole("fence", fence)
        _run.whole("next_epoch_id", next_epoch_id, 1)
        if len(checkpoint) > CHECKPOINT_BYTES_MAX:
            raise LimitExceeded("CHECKPOINT_BYTES_MAX", CHECKPOINT_BYTES_MAX, len(checkpoint))
        text, now = checkpoint.decode(), self._env.now()

        def work(tx: Transaction) -> None:
            rows = tx.run(sql.RUN_COMMIT, (next_epoch_id, text, now, run_id, fence))
            if not rows:
                raise _stale(run_id)
            event = GraphRunCommitted(run_id=run_id, next_epoch_id=next_epoch_id)
            append(tx, event, now=now, pid=rows[0][0], correlation_id=run_id)

        self._env.write_keeping_cache(work)

    def ended(self, sched_ids: Sequence[int]) -> dict[int, ReadyEntry | None]:
        """Return those of these entries that have ended, by id; None for an entry that was pruned."""

        def work(tx: Transaction) -> dict[int, ReadyEntry | None]:
            states = {row[0]: row[1] for row in tx.run_for(queue_sql.STATES_OF, sched_ids)}
            ended = [each for each in sched_ids if each not in states or states[each] in ENTRY.final]
            return {
                each: entry_from_row(tx.run(queue_sql.GET, (each,))[0]) if each in states else None for each in ended
            }

        return self._env.read(work) if sched_ids else {}

    def list(self, *, limit: int = 100, offset: int = 0) -> GraphRunList:
        """Return a page of runs by run_id, without their checkpoints."""
        rows = self._env.read(lambda tx: tx.run(sql.RUN_LIST, page(limit, offset)))
        return [_from_row(row) for row in rows]

    def forget(self, run_id: str) -> bool:
        """Delete a run; returns whether it existed. Its entries stay."""
        check_run_id(run_id)
        now = self._env.now()

        def work(tx: Transaction) -> bool:
            rows = tx.run(sql.RUN_FORGET, (run_id,))
            if rows:
                append(tx, GraphRunForgotten(run_id=run_id), now=now, pid=rows[0][0], correlation_id=run_id)
            return bool(rows)

        return self._env.write_keeping_cache(work)


def check_run_id(run_id: str) -> None:
    """Check a run's name."""
    if len(_run.text("run_id", run_id)) > RUN_ID_CHARS_MAX:
        raise _run.refuse("run_id", f"may have at most {RUN_ID_CHARS_MAX} characters, not {len(run_id)}")


def _from_row(row: Row) -> GraphRun:
    run_id, graph, pid, fence, next_epoch_id, updated_at, checkpoint = row
    return GraphRun(
        run_id=run_id,
        graph=graph,
        pid=pid,
        fence=fence,
        next_epoch_id=next_epoch_id,
        updated_at=updated_at,
        checkpoint=checkpoint if checkpoint is None or isinstance(checkpoint, bytes) else str(checkpoint).encode(),
    )


def _stale(run_id: str) -> StaleClaim:
    return StaleClaim(
        f"run {run_id} was taken by another process, or deleted",
        hint="Another process continues this run; stop this one.",
        run_id=run_id,
    )
