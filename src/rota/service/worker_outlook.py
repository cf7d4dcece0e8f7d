"""Whether a worker is there to claim an entry, and if not, how to start one.

A claim that would return an entry starts nothing if no worker makes it. So an explanation also says whether a live
worker has a free slot for the entry. This is an *outlook* besides the reasons, which are about one claim: the register
of workers tells what is there, not what a worker will do next. A worker that did not register is known by its claims;
how many slots it has is unknown, so while one is there nothing is said.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence

from rota.errors import StoreCorrupt
from rota.kernel.journal import read_note
from rota.kernel.lookups import find_agent
from rota.kernel.workers import read_runs, read_workers
from rota.model import reasons
from rota.model.agent_metadata import FLEET_KEY, SETTINGS_KEY
from rota.model.core_grants import CoreRefusal
from rota.model.graph_runs import RUNNER as GRAPH
from rota.model.ray import RAY
from rota.model.reasons import WorkerReason
from rota.model.work import Agent
from rota.model.workers import PlacementProblem, SlotPool, WorkerInfo
from rota.service.core_refusals import CoreRefusals
from rota.store import Transaction

__all__ = ["NAMED_MAX", "WorkerOutlook", "start_command"]

NAMED_MAX = 5  # workers or entries that a reason names
_PYTHON = "rota.run()"
_RUN = "rota run fleet.toml"


class WorkerOutlook:
    """The workers at one moment, read before a dry run claims anything."""

    def __init__(self, tx: Transaction, now: float) -> None:
        self._tx, self._now = tx, now
        self._all = read_workers(tx, now)
        self._alive = [worker for worker in self._all if worker.alive]
        self._runs = read_runs(tx) if self._alive else []
        self._refusals = CoreRefusals(tx, now)
        self._busy = Counter((worker_id, incarnation) for _, worker_id, incarnation in self._runs)

    def reason_against(  # noqa: PLR0911  # one for each reason
        self, kind: str | None, start: Callable[[], str], sched_id: int | None = None, pid: int | None = None
    ) -> WorkerReason | None:
        """Return why no worker would claim an entry of this kind and agent, or start this one, now; None: one could."""
        refusal = self.refusal_of(sched_id)
        if not self._alive:
            return reasons.NoWorker(start=start(), refusal="" if refusal is None else refusal.reason)
        if refusal is not None:
            return reasons.CoresRefused(
                refusal=refusal.reason,
                host_name=refusal.host_name,
                held_by=refusal.held_by[:NAMED_MAX],
                refused_at=refusal.at,
                never=refusal.never,
            )
        problem = self._problem(kind)
        if problem is not None:
            return reasons.NotPlaced(kind=problem.kind, problem=problem.code, text=problem.text)
        if any(worker.kind == "unregistered" for worker in self._alive):
            return None
        fitting = [(worker, pool) for worker in self._alive for pool in worker.pools if pool.slots and pool.takes(kind)]
        if not fitting:
            return None if kind is None else reasons.NoWorkerForKind(kind=kind, start=start())
        able = [(worker, pool) for worker, pool in fitting if pid not in pool.except_agents]
        if not able:
            return self._not_runnable(pid, start, fitting)
        fitting = able
        claiming = [(worker, pool) for worker, pool in fitting if not worker.draining]
        if not claiming:
            names = tuple(dict.fromkeys(worker.worker_id for worker, _ in fitting))
            return reasons.WorkersDraining(workers=names[:NAMED_MAX], start=start())
        heard = [(worker, pool) for worker, pool in claiming if not worker.silent]
        return self._busy_reason(heard) if heard else self._silence([worker for worker, _ in claiming])

    def reason_for_running(self, worker_id: str | None) -> WorkerReason | None:
        """Return that nothing is heard of the worker that runs an entry, if so."""
        named = [worker for worker in self._all if any(pool.worker_id == worker_id for pool in worker.pools)]
        return self._silence(named) if named and all(worker.silent for worker in named) else None

    def _silence(self, workers: Sequence[WorkerInfo]) -> WorkerReason:
        names = tuple(dict.fromkeys(worker.worker_id for worker in workers))
        silent_s = self._now - max(worker.seen_at for worker in workers)
        return reasons.WorkersSilent(workers=names[:NAMED_MAX], silent_s=silent_s)

    def refusal_of(self, sched_id: int | None) -> CoreRefusal | None:
        """Return the refusal of the cores that an entry asks for, if its host would refuse them now too."""
        refusal = None if sched_id is None else self._refusals.of(sched_id)
        if refusal is None or not self._alive:
            return refusal
        may_be_there = (one.kind == "unregistered" or one.host == refusal.host_name for one in self._alive)
        return refusal if any(may_be_there) else None  # the workers on other hosts have not asked yet

    def _not_runnable(
        self, pid: int | None, start: Callable[[], str], fitting: Sequence[tuple[WorkerInfo, SlotPool]]
    ) -> WorkerReason:
        """Return what every worker that has slots for an agent lacks: its function, or its runner."""
        runner = None if pid is None else _runner(find_agent(self._tx, pid))
        if runner in (None, "callable", RAY, GRAPH):  # on a cluster too, a function comes from a program
            told = [f"{worker.host}: {pool.lacks[pid]}" for worker, pool in fitting if pid and pid in pool.lacks]
            return reasons.NoFunction(start=start(), lacks=tuple(dict.fromkeys(told))[:NAMED_MAX])
        return reasons.NoRunner(runner=str(runner))

    def _problem(self, kind: str | None) -> PlacementProblem | None:
        """Return why no worker places runs of this kind; None if one does, or none has tried."""
        pools = [pool for worker in self._alive for pool in worker.pools if kind is not None and pool.takes(kind)]
        found = [next((each for each in pool.problems if each.kind == kind), None) for pool in pools]
        return found[0] if found and all(found) else None

    def _busy_reason(self, claiming: Sequence[tuple[WorkerInfo, SlotPool]]) -> WorkerReason | None:
        if any(self._busy[pool.worker_id, worker.incarnation] < pool.slots for worker, pool in claiming):
            return None
        names = {(pool.worker_id, worker.incarnation) for worker, pool in claiming}
        held_by = [sched_id for sched_id, *name in self._runs if tuple(name) in names]
        return reasons.SlotsBusy(slots=sum(pool.slots for _, pool in claiming), held_by=tuple(held_by[:NAMED_MAX]))


def start_command(tx: Transaction, agent: Agent) -> str:
    """Return what starts a worker for an agent: a command, or a call in the Python program that has its function."""
    title = agent.metadata.get(FLEET_KEY)
    if title is None and _runner(agent) == "callable":
        return _PYTHON
    try:
        note = read_note(tx, f"{FLEET_KEY}:{title}") if title is not None else None
    except StoreCorrupt:
        note = None
    file = (note or {}).get("file")
    return f"rota run {shlex.quote(file)}" if isinstance(file, str) and file else _RUN


def _runner(agent: Agent) -> str | None:
    """Return the name of an agent's runner as it is stored, readable or not; None: it has no settings."""
    settings = agent.metadata.get(SETTINGS_KEY)
    return str(settings.get("runner", "callable")) if isinstance(settings, dict) else None
