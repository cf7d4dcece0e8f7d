"""The kernel's parts over one store and one clock, and what concerns several of them.

Parts that most short commands do without are loaded when they are first used.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cached_property
from itertools import islice
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from rota.clock import Clock
from rota.errors import SchedInvalidPayload, StoreError
from rota.kernel.agents import OWNER_TERMINATED, Agents
from rota.kernel.clock_jumps import compare_clocks
from rota.kernel.contexts import Contexts
from rota.kernel.entry_reads import EntryFilter
from rota.kernel.environment import kernel_environment
from rota.kernel.journal import Journal
from rota.kernel.ledger import Ledger
from rota.kernel.policies import Policies
from rota.kernel.projects import Projects
from rota.kernel.queue import Queue
from rota.kernel.settings import read_number
from rota.kernel.turn import TurnRequest
from rota.kernel.workers import Workers
from rota.lazy import exports
from rota.model.work import Agent, ReadyEntry
from rota.store import NORMAL_DURABILITY_KEY, Store, Transaction
from rota.store.engine import is_damage
from rota.store.forks import in_child
from rota.store.statements import agents as agent_sql
from rota.store.statements import file as file_sql
from rota.store.statements import journal as journal_sql

if TYPE_CHECKING:
    from rota.kernel.automatic_retention import AutomaticRetention
    from rota.kernel.dry_run import DryRun
    from rota.kernel.graph_runs import GraphRuns
    from rota.kernel.inbox import Inbox
    from rota.kernel.project_reads import ProjectReads
    from rota.kernel.supervision import Supervision
    from rota.kernel.usage import Usage

__all__ = ["Kernel"]

_load = exports(
    "rota.kernel",
    {
        "automatic_retention": ("AutomaticRetention",),
        "dry_run": ("dry_run",),
        "failover": ("fence_claims",),
        "graph_runs": ("GraphRuns",),
        "inbox": ("Inbox",),
        "integrity": ("PROBLEMS_MAX", "find_problems"),
        "project_reads": ("ProjectReads",),
        "supervision": ("Supervision",),
        "usage": ("Usage",),
    },
)
_DISPATCHER = "rota.service.dispatcher:Dispatcher"
T = TypeVar("T")


class Kernel:
    """The kernel's parts over one store and one clock."""

    def __init__(self, store: Store, clock: Clock | None = None, *, rng: random.Random | None = None) -> None:
        self.store = store
        self.clock = clock or store.clock
        jitter = rng or random.Random()  # noqa: S311  # not used for secrets
        if rng is None:
            in_child(jitter.seed)  # else every child would back off at the same moments
        self.env = env = kernel_environment(store, self.clock, jitter, compare_clocks)
        self.journal = Journal(env)
        self.ledger = Ledger(env)
        self.contexts = Contexts(env)
        self.projects = Projects(env)
        self.policies = Policies(env)
        self.queue = Queue(env)
        self.agents = Agents(env, self.queue)
        self.workers = Workers(env)
        self.queue.claim_by_policy = self._claim_by_policy
        store.on_failover(self._fence_claims)
        self.queue.maintenance.take_in = self._take_in
        self.queue.begin_graph_run = self._begin_graph_run

    @cached_property
    def usage(self) -> Usage:
        """What was used, per day."""
        made: Usage = _load("Usage")(self.env)
        return made

    @cached_property
    def graphs(self) -> GraphRuns:
        """Graph runs."""
        made: GraphRuns = _load("GraphRuns")(self.env, self.agents, self.queue)
        return made

    @cached_property
    def retention(self) -> AutomaticRetention:
        """What is removed, and when."""
        made: AutomaticRetention = _load("AutomaticRetention")(self.env)
        return made

    @cached_property
    def supervision(self) -> Supervision:
        """What runs report."""
        made: Supervision = _load("Supervision")(self.env, self.agents, self.queue)
        return made

    @cached_property
    def project_reads(self) -> ProjectReads:
        """What the callers of one project may read."""
        made: ProjectReads = _load("ProjectReads")(self.env)
        return made

    @cached_property
    def _inbox(self) -> Inbox:
        made: Inbox = _load("Inbox")(self.env, self.agents, self.queue)
        return made

    def _fence_claims(self, tx: Transaction, before: str, after: str) -> None:
        _load("fence_claims")(self.env, tx, before, after)

    def _take_in(self, tx: Transaction, now: float) -> None:
        self._inbox.take_in(tx, now)

    def _begin_graph_run(self, tx: Transaction, sched_id: int, now: float) -> None:
        self.graphs.begin_in(tx, sched_id, now)

    def _claim_by_policy(self, request: TurnRequest, tx: Transaction) -> list[ReadyEntry]:
        """Claim by the policy of the store, for a program that uses the kernel without a dispatcher.

        Policies are applied by the service, which the kernel does not import; here it is loaded by its name.
        """
        resolve_name(_DISPATCHER)(self)  # it sets `claim_by_policy`
        return self.queue.claim_by_policy(request, tx)

    def terminate(
        self,
        pid: int,
        exit_kind: str,
        detail: dict[str, Any] | None = None,
        *,
        queued: Literal["cancel", "keep"] = "cancel",
    ) -> Agent:
        """Terminate an agent and cancel its queued entries, unless `queued` is "keep"."""
        checked = self.agents.check_exit(exit_kind, detail)
        if queued not in ("cancel", "keep"):
            raise SchedInvalidPayload(f"queued must be cancel or keep, not {queued!r}", field="queued")
        entries = EntryFilter(pid=pid)

        def work(tx: Transaction) -> None:
            now = self.env.read_clock(tx)
            self.agents.terminate_in(tx, pid, exit_kind, checked, now)
            if queued == "cancel":
                self.queue.cancel_batch_in(tx, entries, now, OWNER_TERMINATED)

        self.env.write(work)
        if queued == "cancel":  # entries beyond the first batch
            self.queue.cancel_where(entries, reason=OWNER_TERMINATED)
        return self.agents.get(pid)

    def dry_run(self, work: Callable[[DryRun], T], *, now: float | None = None) -> T:
        """Do what is due, run the work, roll everything back and return the work's result."""
        answer: T = _load("dry_run")(self.env, work, now=now)
        return answer

    def check(self) -> list[str]:
        """Return the problems found in the file and in its rows, one sentence each; empty if all of it can be used."""
        problems = self.store.check()
        try:
            problems += self.env.read(lambda tx: list(islice(_load("find_problems")(tx), _load("PROBLEMS_MAX"))))
        except StoreError as problem:  # of the file itself: the store's check has described it, if it can
            if not is_damage(problem):
                raise
            problems = problems or [problem.message]
        return problems

    def normal_durability_at(self) -> float | None:
        """Return when a process last opened the file with durability "normal", which may lose work at a power cut."""
        return self.env.read(lambda tx: read_number(tx, NORMAL_DURABILITY_KEY, 0.0)) or None

    def info(self) -> dict[str, Any]:
        """Return counts of agents and events, and the next ids."""

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

        return self.env.read(work)
