"""A dry run: what a claim would do, done in a transaction that is rolled back.

To say exactly what a claim would return, the same code must run on the same rows: maintenance first (held entries
released, expired claims taken back, deadlines swept), then a pass that checks and writes. So a dry run is a write
transaction that always rolls back. It queues like any writer and delays the others while it runs, so its work must be
bounded.

It leaves nothing behind, in the file or in memory: the maintenance state, the cache, the record of workers and the
random generator are copies. One thing must stay: an index that the claim needs, and that the file does not have yet
because no claim by such a policy was made. With many ready entries writers would wait for it in every dry run; so it is
created by a transaction of its own, and the dry run begins again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple, TypeVar

from rota.errors import SchedUnknownId
from rota.kernel.claim_pass import IndexNeeded
from rota.kernel.enqueue import Enqueuing
from rota.kernel.environment import DueSummary, KernelEnvironment
from rota.kernel.maintenance import Maintenance
from rota.kernel.rows import decode_spent
from rota.model.reasons import WaitsOnLimit
from rota.model.work import ScheduleSpec
from rota.store import Row, Statement, Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import budgets as budget_sql
from rota.store.statements import claims as claim_sql
from rota.store.statements import entry_lists as list_sql
from rota.store.statements import journal as journal_sql
from rota.store.statements import limit_asks as ask_sql
from rota.store.statements import queue as sql

__all__ = ["DryRun", "dry_run"]

T = TypeVar("T")


class DryRun(NamedTuple):
    """What the work of a dry run gets: a transaction in which maintenance has been done."""

    tx: Transaction
    env: KernelEnvironment
    now: float
    due: DueSummary
    cursor: int  # the last event before the dry run
    clock_now: float  # `now` may be a caller's

    def row(self, sched_id: int) -> Row:
        """Return an entry as a claim would find it."""
        rows = self.tx.run(sql.GET, (sched_id,))
        if not rows:
            raise SchedUnknownId(sched_id)
        return rows[0]

    def enqueue(self, spec: ScheduleSpec) -> int:
        """Put an entry into the queue, until the dry run ends."""
        return Enqueuing(self.env).enqueue_in(self.tx, spec, self.clock_now)

    def queued_ids(self, pid: int | None, project_id: str | None, limit: int) -> list[int]:
        """Return the first queued entries, by id: those of an agent, of a project, or all."""
        row = (None, pid, project_id, None, None, None, '["waiting","ready"]', limit)
        return [row[0] for row in self.tx.run(list_sql.IDS_OF_STATUS, row)]

    def busy_slots(self, kind: str) -> int:
        """Return how many live runs need a slot of this kind."""
        return sum(row[5] for row in self.tx.run(claim_sql.LIVE) if row[2] == kind)

    def affinity_hold(self, sched_id: int) -> tuple[str, float]:
        """Return the worker that an entry is held for, and until when."""
        worker_id, until_at = self.tx.run(sql.AFFINITY_WORKER, (sched_id,))[0]
        return worker_id, until_at

    def predecessors(self, sched_id: int) -> list[Row]:
        """Return the id, state and exit kind of each entry that an entry waits for."""
        return self.tx.run(sql.PREDECESSORS, (sched_id,))

    def waits_on_limits(self, sched_id: int) -> list[WaitsOnLimit]:
        """Return what a run waits for at limits."""
        rows = self.tx.run_for(ask_sql.WAITING_RUNS, [sched_id])
        return [WaitsOnLimit(name=row[1], asked=dict(decode_spent(row[2])), since_at=row[3]) for row in rows]

    def agent_names(self, pids: Collection[int]) -> dict[int, str]:
        """Return the names of agents."""
        return dict(self.tx.run_for(agent_sql.NAMES_OF, pids)) if pids else {}

    def budget_window_s(self, owner: str, dim: str) -> float:
        """Return the length of a budget's window."""
        return float(self.tx.run(budget_sql.BUDGET_WINDOW, (owner, dim))[0][0])

    def recent_claims(self, events: int) -> tuple[int, float | None]:
        """Return how many entries were claimed in the last events of the journal, and when the first of them was."""
        count, since = self.tx.run(journal_sql.RECENT_CLAIMS, (max(0, self.cursor - events), self.cursor))[0]
        return count, since


def dry_run(env: KernelEnvironment, work: Callable[[DryRun], T], *, now: float | None = None) -> T:
    """Do what is due, run the work, roll everything back and return the work's result."""
    given = None if now is None else env.now(now)

    def rolled_back(tx: Transaction) -> T:
        isolated = env.isolated()
        cursor = int(tx.run(journal_sql.EVENT_ENDS)[0][1] or 0)
        at = isolated.read_clock(tx, writes=False)
        due = Maintenance(isolated).run_due(tx, at, now_from_clock=True, sweeps=given is None)
        return work(DryRun(tx, isolated, at if given is None else given, due, cursor, at))

    while True:
        try:
            return env.store.dry_run(rolled_back)
        except IndexNeeded as needed:
            env.store.write(partial(_create, needed.statement))


def _create(index: Statement, tx: Transaction) -> None:
    tx.run(index)
