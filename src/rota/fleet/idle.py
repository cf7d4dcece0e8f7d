"""When a supervisor with `until_idle` has nothing more to wait for.

It has nothing to run and nothing to claim. What is left in the queue decides whether it waits:

    retries, limits, affinity holds   always: they end by themselves
    delayed entries, quarantines,
    retries of hooks and of entries
    whose cores were refused          if they are due within `horizon_s`
    runs of other workers             until their claim expires; a worker that extends it is alive, and not waited for
    entries after others              as long as one of the others is waited for
    everything else                   not: paused, over budget, no slot of its kind, no function here, cores that
                                      this host can never grant

The decision is a pure function of the groups of unfinished entries and what blocks them (`decide`); `IdleCheck` reads
both. Why a ready entry is not claimed comes from a dry run of the claim (service/explanation.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from rota.errors import NotFound, StoreCorrupt
from rota.fleet.hook_rules import HOOK_KIND
from rota.fleet.run_summary import StillWaiting, WaitKind
from rota.kernel import EntryGroup
from rota.kernel.supervision import QUARANTINE
from rota.model import reasons
from rota.model.core_grants import CoreRefusal
from rota.model.explanation import Explanation
from rota.model.reasons import BlockingBase
from rota.service.api import SchedulerApi, SystemApi
from rota.service.core_grants import this_host
from rota.service.dispatcher import Dispatcher
from rota.service.explanation import explain

__all__ = ["HORIZON_S", "IdleCheck", "IdleRule", "decide"]

HORIZON_S = 60.0  # a delayed entry that is due later is not waited for
RECHECK_S = 15.0  # how long one wait lasts before the queue is looked at again
GROUPS_MAX = 1_000  # groups of entries that are looked at
EXPLAINED_MAX = 50  # groups of ready entries for which it is found out what blocks them
READY_TRIES = 20  # claims in a row that do not return an entry which nothing blocks
READY_PAUSE_S = 0.25


class IdleRule(NamedTuple):
    """What to wait for. A test lets time pass with `pass_time` instead of waiting; it gets the seconds."""

    horizon_s: float = HORIZON_S
    pass_time: Callable[[float], None] | None = None


class _Left(NamedTuple):
    """A group that is left, and until when to wait for it; `wait_s` None: not at all."""

    waiting: StillWaiting
    wait_s: float | None


def decide(groups: Sequence[_Left]) -> float | None:
    """Return how long to wait before looking again; None if nothing of what is left is waited for."""
    waits = [each.wait_s for each in groups if each.wait_s is not None]
    return None if not waits else min(max(0.0, min(waits)), RECHECK_S)


class IdleCheck:
    """Looks at what is left in the queue."""

    def __init__(
        self,
        api: SchedulerApi,
        rule: IdleRule,
        *,
        workers: Collection[str],
        kinds: Collection[str],
        cannot_run: Callable[[], Mapping[int, str]],
    ) -> None:
        """`workers` and `kinds` are those of the supervisor; `cannot_run` returns what agents lack here."""
        self.waiting: tuple[StillWaiting, ...] = ()  # as of the last look
        self._api = api
        self._rule = rule
        self._workers = frozenset(workers)
        self._kinds = tuple(sorted(kinds))
        self._cannot_run = cannot_run
        self._names: dict[int, str] = {}
        self._refused: dict[int, CoreRefusal] = {}  # by this host, as of the last look
        self._expiries: dict[tuple[int, str | None], float] = {}  # of runs elsewhere, as they were first seen
        self._has_ready = False  # there are entries which nothing blocks, although a claim returned none
        self._ready_tries = 0  # how often in a row

    def goes_on(self, is_busy: Callable[[], bool], is_stopping: Callable[[], bool]) -> bool:
        """Wait a while for what is left and return True; False if nothing is left to wait for.

        `is_busy` says whether other slot loops of the supervisor have runs. Any event of the journal ends the wait,
        also one of another process; so the place in the journal is read before anything else.
        """
        cursor = self._api.journal.cursor()
        is_waiting_here = is_busy()
        wait_s = RECHECK_S if is_waiting_here or is_stopping() else self.look()
        if wait_s is None:
            return False
        if wait_s > 0 and not is_stopping():  # a supervisor that stops ends its loops itself
            if self._rule.pass_time is not None and not is_waiting_here:
                self._rule.pass_time(wait_s)
            else:
                self._api.journal.wait(cursor, wait_s)
        return True

    def look(self) -> float | None:
        """Look at what is left; return how long to wait, or None if there is nothing to wait for."""
        now = self._api.clock.now()
        self._has_ready = False
        groups = self._api.queue.unfinished(GROUPS_MAX)
        self._refused = self._refused_cores() if any(group.hold == "time" for group in groups) else {}
        explained = {group.sched_id for group in groups if group.state == "queued" and group.hold is None}
        explained = set(sorted(explained)[:EXPLAINED_MAX])
        missing = self._cannot_run()
        left = [
            self._blocked(group, f"its agent has no {missing[group.pid]}")
            if group.pid in missing and group.state == "queued"
            else self._left(group, now, explains=group.sched_id in explained)
            for group in groups
        ]
        self._ready_tries = self._ready_tries + 1 if self._has_ready else 0
        self.waiting = _with_stuck(each.waiting for each in left)
        return decide(left)

    def _left(self, group: EntryGroup, now: float, *, explains: bool) -> _Left:  # noqa: PLR0911  # one for each case
        if group.state == "dispatched":
            return self._running(group, now)
        if group.kind is not None and group.kind not in self._kinds:
            return self._blocked(group, f"there is no slot of kind {group.kind!r} here")
        match group.hold:
            case "backoff" if group.kind == HOOK_KIND:  # a receiver that is down must not keep it from ending
                return self._delayed(group, "it could not be delivered and is retried", group.runnable_at, now, "retry")
            case "backoff":
                return self._until(group, "retry", "it failed and is retried", group.runnable_at, now)
            case "time":
                refused = self._refused.get(group.sched_id)
                if refused is None:
                    return self._delayed(group, "its time has not come", group.runnable_at, now)
                why = f"the cores that it asks for are refused: {refused.reason}"
                return self._blocked(group, why) if refused.never else self._delayed(group, why, group.runnable_at, now)
            case "worker":
                return _Left(self._waiting(group, "worker", "it is held for its worker"), RECHECK_S)
            case "after":
                return _Left(self._waiting(group, "after", "it runs after other entries"), None)
        if not explains:
            return self._blocked(group, "it is ready, and no claim returned it")
        return self._ready(group, now)

    def _refused_cores(self) -> dict[int, CoreRefusal]:
        """Return the entries that wait only because this host refuses their cores: to be tried again."""
        try:
            refused = self._api.cores.status(this_host().key).refused
        except StoreCorrupt:  # a grant cannot be read: `rota db check` reports it
            return {}
        return {each.sched_id: each for each in refused}

    def _ready(self, group: EntryGroup, now: float) -> _Left:
        """A group that is ready, but was not claimed."""
        try:
            found = self._explain(group.sched_id)
        except NotFound:  # it has ended and was pruned
            return _Left(self._waiting(group, "running", "it has just ended"), 0.0)
        if found.state != "queued":  # by another slot loop, or by another worker
            return _Left(self._waiting(group, "running", "it has just been claimed"), 0.0)
        if found.blocking:
            return self._by_reasons(group, found.blocking, now)
        self._has_ready = True
        if self._ready_tries < READY_TRIES:
            return _Left(self._waiting(group, "running", "it is ready"), READY_PAUSE_S if self._ready_tries else 0.0)
        return self._blocked(group, "; ".join(reason.sentence() for reason in found.ordering) or "it is never claimed")

    def _by_reasons(self, group: EntryGroup, blocking: Sequence[BlockingBase], now: float) -> _Left:
        ends = [self._end_of(group.pid, reason) for reason in blocking]
        why = "; ".join(reason.sentence() for reason in blocking)
        if any(end is None for end in ends):
            return self._blocked(group, why)
        kinds = {end[0] for end in ends if end is not None}
        times = [end[1] for end in ends if end is not None]
        until_at = None if None in times else max(at for at in times if at is not None)
        if kinds == {"limit"}:
            return self._until(group, "limit", why, until_at, now)
        if "running" in kinds:  # a cap or a workspace that runs of other workers use: those are waited for, or not
            return _Left(self._waiting(group, "running", why), None)
        if until_at is None:
            return self._blocked(group, why)
        return self._delayed(group, why, until_at, now, "quarantined" if "quarantined" in kinds else "delayed")

    def _end_of(  # noqa: PLR0911  # one for each reason
        self, pid: int, reason: BlockingBase
    ) -> tuple[WaitKind, float | None] | None:
        """Return how a reason ends by itself, and when, if that is known; None if it does not."""
        match reason:
            case reasons.LimitExhausted(until_at=until_at) | reasons.ContextExhausted(until_at=until_at):
                return "limit", until_at
            case reasons.NotYetRunnable(runnable_at=at) | reasons.BackingOff(until_at=at):
                return "delayed", at
            case reasons.OverBudget(frees_at=at) if at is not None:
                return "delayed", at
            case reasons.PastDeadline(deadline=at):
                return "limit", at  # it expires when the queue is maintained next
            case reasons.CapReached() | reasons.WorkspaceTaken(held_by=(_, *_)):
                return "running", None
            case reasons.PausedByOperator(level="agent", by=by) if by == QUARANTINE:
                until = self._api.agents.get(pid).metadata.get("quarantined_until")
                return ("quarantined", float(until)) if isinstance(until, int | float) else None
        return None

    def _running(self, group: EntryGroup, now: float) -> _Left:
        """A group that runs: here, at a worker that is alive, or at one that is gone."""
        if group.worker_id in self._workers:
            return _Left(self._waiting(group, "running", "it runs here"), READY_PAUSE_S)
        waiting = self._waiting(group, "running", f"it runs at worker {group.worker_id}", group.claim_expires_at)
        expires_at = group.claim_expires_at
        if expires_at is None:
            return _Left(waiting, None)
        first = self._expiries.setdefault((group.sched_id, group.worker_id), expires_at)
        is_alive = expires_at > first
        waits = not is_alive and expires_at - now <= max(self._rule.horizon_s, HORIZON_S)
        return _Left(waiting, max(expires_at - now, READY_PAUSE_S) if waits else None)

    def _until(self, group: EntryGroup, kind: WaitKind, why: str, until_at: float | None, now: float) -> _Left:
        wait_s = RECHECK_S if until_at is None else max(until_at - now, READY_PAUSE_S if until_at < now else 0.001)
        return _Left(self._waiting(group, kind, why, until_at), wait_s)

    def _delayed(self, group: EntryGroup, why: str, until_at: float, now: float, kind: WaitKind = "delayed") -> _Left:
        if until_at - now > self._rule.horizon_s:
            return _Left(self._waiting(group, kind, why, until_at), None)
        return self._until(group, kind, why, until_at, now)

    def _blocked(self, group: EntryGroup, why: str) -> _Left:
        return _Left(self._waiting(group, "blocked", why), None)

    def _waiting(self, group: EntryGroup, kind: WaitKind, why: str, until_at: float | None = None) -> StillWaiting:
        return StillWaiting(
            agent=self._name(group.pid),
            pid=group.pid,
            count=group.count,
            sched_id=group.sched_id,
            kind=kind,
            why=why,
            until_at=until_at,
        )

    def _name(self, pid: int) -> str:
        if pid not in self._names:
            self._names[pid] = self._api.agents.get(pid).name
        return self._names[pid]

    def _explain(self, sched_id: int) -> Explanation:
        worker_id = min(self._workers, default="any-worker")
        if isinstance(self._api, Dispatcher):
            return explain(self._api, sched_id, worker_id=worker_id, kinds=self._kinds)
        api: SystemApi = self._api  # type: ignore[assignment]  # the client of a daemon has these methods, too
        return api.explain(sched_id, worker_id=worker_id, kinds=self._kinds)


def _with_stuck(left: Iterable[StillWaiting]) -> tuple[StillWaiting, ...]:
    """Return what is left; entries after others are blocked if none of the others can still run."""
    found = tuple(left)
    if any(each.kind not in ("after", "blocked", "quarantined") for each in found):
        return found
    return tuple(
        StillWaiting(
            agent=each.agent,
            pid=each.pid,
            count=each.count,
            sched_id=each.sched_id,
            kind="blocked" if each.kind == "after" else each.kind,
            until_at=each.until_at,
            why=f"{each.why}, none of which can run" if each.kind == "after" else each.why,
        )
        for each in found
    )
