"""Layer 1: the durable kernel. It decides whether an entry may run, never which."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Literal, TypeVar

from rota.clock import Clock
from rota.errors import IllegalQueueTransition, SchedIllegalTransition, SchedInvalidPayload, SchedUnknownId
from rota.kernel.agents import Agents
from rota.kernel.claim_request import Completion
from rota.kernel.contexts import Contexts
from rota.kernel.core import Core, attendance_of, memo_of
from rota.kernel.dry_run import Stage, rehearse
from rota.kernel.entries import EntryFilter
from rota.kernel.graph_runs import GraphRuns
from rota.kernel.journal import Journal
from rota.kernel.ledger import Ledger
from rota.kernel.projects import Projects
from rota.kernel.queue import Queue
from rota.kernel.retention import Retention
from rota.kernel.supervision import RunReport, Supervision
from rota.model.work import Agent, ReadyEntry, ScheduleSpec
from rota.store import Store, Transaction
from rota.store.statements import agents as agent_sql
from rota.store.statements import file as file_sql
from rota.store.statements import journal as journal_sql

__all__ = [
    "Completion",
    "EntryFilter",
    "IllegalQueueTransition",
    "Kernel",
    "ReadyEntry",
    "RunReport",
    "SchedIllegalTransition",
    "SchedInvalidPayload",
    "SchedUnknownId",
    "ScheduleSpec",
]


_ORPHANED = "owner_terminated"
T = TypeVar("T")


class Kernel:
    """The kernel's parts over one store and one clock."""

    def __init__(self, store: Store, clock: Clock | None = None, *, chance: random.Random | None = None) -> None:
        self.store = store
        self.clock = clock or store.clock
        jitter = chance or random.Random()  # noqa: S311  # no secret
        core = Core(store, self.clock, jitter, memo_of(store), attendance_of(store))
        self._core = core
        self.journal = Journal(core)
        self.agents = Agents(core)
        self.ledger = Ledger(core)
        self.contexts = Contexts(core)
        self.projects = Projects(core)
        self.queue = Queue(core)
        self.graphs = GraphRuns(core)
        self.retention = Retention(core)
        self.supervision = Supervision(core, self.agents, self.queue)

    def terminate(
        self,
        pid: int,
        exit_kind: str,
        detail: dict[str, Any] | None = None,
        *,
        queued: Literal["cancel", "keep"] = "cancel",
    ) -> Agent:
        """End an agent for good; its waiting entries are cancelled unless they are to be kept."""
        checked = self.agents.check_exit(exit_kind, detail)
        if queued not in ("cancel", "keep"):
            raise SchedInvalidPayload(f"queued must be cancel or keep, not {queued!r}", field="queued")
        now = self._core.now()
        orphans = EntryFilter(pid=pid)

        def work(tx: Transaction) -> None:
            self.agents.end(tx, pid, exit_kind, checked, now)
            if queued == "cancel":
                self.queue.cancel_some(tx, orphans, now, _ORPHANED)

        self._core.write(work)
        if queued == "cancel":  # what one commit was too small for
            self.queue.cancel_where(orphans, reason=_ORPHANED)
        return self.agents.get(pid)

    def rehearse(self, play: Callable[[Stage], T], *, now: float | None = None) -> T:
        """Do what is due, then whatever `play` does, answer with what it found, and undo it all."""
        return rehearse(self._core, play, now=now)

    def info(self) -> dict[str, Any]:
        """A few numbers about the file."""

        def work(tx: Transaction) -> dict[str, Any]:
            states: dict[str, int] = dict(tx.run(agent_sql.COUNT_BY_STATE))
            _, last_event = tx.run(journal_sql.EVENT_ENDS)[0]
            return {
                "schema_version": int(tx.run(file_sql.META_GET, ("schema_version",))[0][0]),
                "next_pid": int(tx.run(agent_sql.LAST_PID)[0][0]) + 1,
                "next_event_id": (last_event or 0) + 1,
                "agent_count": sum(states.values()),
                "event_count": int(tx.run(journal_sql.EVENT_COUNT)[0][0]),
                "live_states": {state: states.get(state, 0) for state in ("READY", "RUNNING", "WAITING", "SUSPENDED")},
            }

        return self._core.read(work)
