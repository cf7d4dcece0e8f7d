"""Runs of graphs: where each stands, so that it outlives the process that runs it.

A run is one row: its graph, the agent on whose account its entries are, and a *checkpoint* that only the graph runtime
reads. A process *takes* a run before it goes on with it. The event id of that taking is the run's *fence*: whoever took
it last may write, and an earlier process that turns out to be alive after all is refused when it wants to commit.

    process 1 takes r1 (fence 7), commits up to epoch 3, and hangs
    process 2 takes r1 (fence 9) and repeats epoch 3, the one that was in flight
    process 1 wakes up and commits epoch 4 with fence 7: refused, nothing changed
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from rota.errors import InvalidPayload, LimitExceeded, StaleClaim
from rota.kernel import agents
from rota.kernel.core import Core, page
from rota.kernel.journal import append
from rota.kernel.rows import entry_of
from rota.model.checks import Checks
from rota.model.events import GraphRunCommitted, GraphRunForgotten, GraphRunTaken
from rota.model.lifecycle import ENTRY
from rota.model.work import ReadyEntry
from rota.store import Row, Transaction
from rota.store.statements import graph_runs as sql
from rota.store.statements import queue as queue_sql

__all__ = ["CHECKPOINT_BYTES_MAX", "RUN_ID_CHARS_MAX", "GraphRun", "GraphRuns"]

CHECKPOINT_BYTES_MAX = 16 * 1024 * 1024  # of one run: it is written anew with every epoch
RUN_ID_CHARS_MAX = 64  # the keys of a run's entries begin with it
_run = Checks("GraphRun", InvalidPayload)
_encode = msgspec.json.Encoder().encode
Runs: TypeAlias = list["GraphRun"]


class GraphRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a graph, as the file has it."""

    run_id: str
    graph: str
    pid: int  # the agent on whose account its entries are
    fence: int  # the event id of the last taking
    next_epoch_id: int
    updated_at: float
    checkpoint: bytes | None = None  # None: nothing was committed yet, or a listing that leaves it out


class GraphRuns:
    """Taking runs, committing their epochs, and looking for entries that have ended."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def take(self, run_id: str, graph: str, pid: int) -> GraphRun:
        """Begin a run on an agent's account, or go on with it on the account it began with."""
        check_run_id(run_id)
        _run.text("graph", graph)
        now = self._core.now()

        def work(tx: Transaction) -> GraphRun:
            found = tx.run(sql.RUN_GET, (run_id,))
            if found and found[0][1] != graph:
                raise _run.refuse("run_id", f"{run_id!r} is a run of graph {found[0][1]}, not of {graph}")
            owner = found[0][2] if found else agents.find(tx, pid).pid
            next_epoch_id = found[0][4] if found else 1
            fact = GraphRunTaken(run_id=run_id, graph=graph, next_epoch_id=next_epoch_id)
            fence = append(tx, fact, now=now, pid=owner, correlation_id=run_id)
            tx.run(sql.RUN_TAKE, (run_id, graph, owner, fence, now))
            return _run_of(tx.run(sql.RUN_GET, (run_id,))[0])

        return self._core.write_steadily(work)

    def commit(self, run_id: str, *, fence: int, next_epoch_id: int, checkpoint: bytes) -> None:
        """Write down where a run stands before an epoch; `StaleClaim` if another process has taken it since."""
        _run.whole("fence", fence)
        _run.whole("next_epoch_id", next_epoch_id, 1)
        if len(checkpoint) > CHECKPOINT_BYTES_MAX:
            raise LimitExceeded("CHECKPOINT_BYTES_MAX", CHECKPOINT_BYTES_MAX, len(checkpoint))
        text, now = checkpoint.decode(), self._core.now()

        def work(tx: Transaction) -> None:
            rows = tx.run(sql.RUN_COMMIT, (next_epoch_id, text, now, run_id, fence))
            if not rows:
                raise _stale(run_id)
            fact = GraphRunCommitted(run_id=run_id, next_epoch_id=next_epoch_id)
            append(tx, fact, now=now, pid=rows[0][0], correlation_id=run_id)

        self._core.write_steadily(work)

    def ended(self, sched_ids: Sequence[int]) -> dict[int, ReadyEntry | None]:
        """Those of these entries that have ended, by id; None for one that is in the file no more."""

        def work(tx: Transaction) -> dict[int, ReadyEntry | None]:
            states = {row[0]: row[1] for row in tx.run(queue_sql.STATES_OF, (_encode(list(sched_ids)).decode(),))}
            over = [each for each in sched_ids if each not in states or states[each] in ENTRY.final]
            return {each: entry_of(tx.run(queue_sql.GET, (each,))[0]) if each in states else None for each in over}

        return self._core.read(work) if sched_ids else {}

    def list(self, *, limit: int = 100, offset: int = 0) -> Runs:
        """A page of runs by name, without their checkpoints."""
        rows = self._core.read(lambda tx: tx.run(sql.RUN_LIST, page(limit, offset)))
        return [_run_of(row) for row in rows]

    def forget(self, run_id: str) -> bool:
        """Remove a run that nobody will resume; the answer is whether there was one. Its entries stay."""
        check_run_id(run_id)
        now = self._core.now()

        def work(tx: Transaction) -> bool:
            rows = tx.run(sql.RUN_FORGET, (run_id,))
            if rows:
                append(tx, GraphRunForgotten(run_id=run_id), now=now, pid=rows[0][0], correlation_id=run_id)
            return bool(rows)

        return self._core.write_steadily(work)


def check_run_id(run_id: str) -> None:
    """Refuse a name that no run can have."""
    if len(_run.text("run_id", run_id)) > RUN_ID_CHARS_MAX:
        raise _run.refuse("run_id", f"may have at most {RUN_ID_CHARS_MAX} characters, not {len(run_id)}")


def _run_of(row: Row) -> GraphRun:
    run_id, graph, pid, fence, next_epoch_id, updated_at, checkpoint = row
    return GraphRun(
        run_id=run_id,
        graph=graph,
        pid=pid,
        fence=fence,
        next_epoch_id=next_epoch_id,
        updated_at=updated_at,
        checkpoint=None if checkpoint is None else checkpoint.encode(),
    )


def _stale(run_id: str) -> StaleClaim:
    return StaleClaim(
        f"run {run_id} was taken by another process, or forgotten",
        hint="That process goes on with it; end this one.",
        run_id=run_id,
    )
