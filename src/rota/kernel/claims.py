"""Claiming: a worker gets ready entries for itself, now or as soon as there are some.

A claim is one transaction. It does what is due (maintenance.py), releases what was held for the worker (affinity.py)
and runs a pass (claim_pass.py) in which a `find` function selects entries: strict order by default, a policy through
the service. If the pass claims nothing and the caller wants to wait, the store parks the request and runs it again
when something changes or falls due.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeAlias, Unpack

import msgspec

from rota.errors import SchedAdmissionDenied, SchedInvalidPayload, SchedUnknownId
from rota.kernel import affinity
from rota.kernel.claim_pass import ClaimPass
from rota.kernel.claim_request import (
    CLAIM_TIMEOUT_S,
    ClaimOptions,
    ClaimRequest,
    check_claim_options,
    check_worker,
    make_claim_request,
)
from rota.kernel.completion import Completion, CompletionAnswer, check_completions
from rota.kernel.due_summary import DueSummary, read_due_summary
from rota.kernel.entry_waiters import EntryWaiters
from rota.kernel.environment import KernelEnvironment
from rota.kernel.rows import ready_entry_from_row
from rota.kernel.runs import Runs
from rota.model.checks import Checks
from rota.model.reasons import BlockingBase
from rota.model.work import ReadyEntry, Worker
from rota.store import Transaction, WakeHandle
from rota.store.statements import queue as queue_sql

__all__ = ["Claims", "FindEntries", "TurnResult", "find_in_strict_order"]

WAKE_HANDLES_MAX = 10_000  # workers with a wake handle; the oldest is dropped first
_queue = Checks("Queue", SchedInvalidPayload)

FindEntries: TypeAlias = Callable[[ClaimPass, DueSummary], list[ReadyEntry]]  # selects entries and writes the pass


class TurnResult(NamedTuple):
    """The answer to each ended run, and the entries claimed next."""

    answers: list[CompletionAnswer]
    entries: list[ReadyEntry]


def find_in_strict_order(claim: ClaimPass, _due: DueSummary) -> list[ReadyEntry]:
    """Claim by priority, then runnable_at, then id."""
    claim.claim_in_strict_order()
    return claim.write()


class Claims(Runs):
    """Claiming entries, alone or together with the completion of earlier ones."""

    def __init__(self, env: KernelEnvironment, waiters: EntryWaiters) -> None:
        super().__init__(env, waiters)
        self._wake_handles: dict[Worker, WakeHandle] = {}
        self._wake_handles_lock = threading.Lock()

    def claim(
        self,
        *,
        worker_id: str,
        max_n: int = 1,
        wait_s: float = 0.0,
        find: FindEntries = find_in_strict_order,
        find_key: Hashable = "strict",
        **options: Unpack[ClaimOptions],
    ) -> list[ReadyEntry]:
        """Claim ready entries for a worker; while there are none, wait up to `wait_s`.

        Parked claims with an equal `find_key` use the same order: if one finds nothing, the others are not tried.
        """
        request = make_claim_request(worker_id=worker_id, max_n=max_n, **options)
        return self._claim_or_wait(request, find, find_key, _queue.duration("wait_s", wait_s))

    def complete_and_claim(
        self,
        completions: Sequence[Completion],
        *,
        worker_id: str,
        max_n: int = 1,
        wait_s: float = 0.0,
        find: FindEntries = find_in_strict_order,
        find_key: Hashable = "strict",
        **options: Unpack[ClaimOptions],
    ) -> TurnResult:
        """End runs and claim the next entries in one commit, at half the cost of two.

        If nothing can be claimed, the completions are durable before the wait begins.
        """
        run_ends = check_completions(completions)
        request = make_claim_request(worker_id=worker_id, max_n=max_n, **options)
        _queue.duration("wait_s", wait_s)
        now = self._env.now()

        def work(tx: Transaction) -> TurnResult:
            return TurnResult(self.complete_in(tx, run_ends, now), self.claim_in(tx, request, find))

        result = self._env.write_keeping_cache(work)
        if result.entries or wait_s <= 0:
            return result
        return TurnResult(result.answers, self._claim_or_wait(request, find, find_key, wait_s))

    def _claim_or_wait(
        self, request: ClaimRequest, find: FindEntries, find_key: Hashable, wait_s: float
    ) -> list[ReadyEntry]:
        if wait_s > 0:
            return self.park(lambda tx: self.claim_in(tx, request, find), request, find_key, wait_s)
        return self._env.write_keeping_cache(lambda tx: self.claim_in(tx, request, find))

    def park(
        self,
        work: Callable[[Transaction], list[ReadyEntry]],
        request: ClaimRequest,
        find_key: Hashable,
        wait_s: float,
    ) -> list[ReadyEntry]:
        """Run a claim; while it returns nothing, wait until it does, at most `wait_s` or until `nudge`."""
        equivalence_key = find_key, request.kinds, request.check_budgets
        return self._env.store.wait(work, wait_s, equivalence_key, self._wake_handle(request.worker))

    def nudge(self, worker_id: str, incarnation: str = "") -> None:
        """Make a worker's waiting claim return empty now; if none is waiting, its next claim does not wait."""
        self._env.store.interrupt(self._wake_handle(check_worker(worker_id, incarnation)))

    def _wake_handle(self, worker: Worker) -> WakeHandle:
        with self._wake_handles_lock:
            if worker not in self._wake_handles and len(self._wake_handles) >= WAKE_HANDLES_MAX:
                del self._wake_handles[next(iter(self._wake_handles))]
            return self._wake_handles.setdefault(worker, WakeHandle())

    def claim_in(self, tx: Transaction, request: ClaimRequest, find: FindEntries) -> list[ReadyEntry]:
        """Claim inside a transaction."""
        now = self._env.now() if request.now is None else request.now
        due = self._run_due(tx, now, now_from_clock=request.now is None)
        self._env.workers_seen.mark_seen(request.worker.worker_id, now)
        affinity.release_for_claim(tx, request, now, due)
        # while entries are held for workers, one worker's empty result says nothing about another worker's
        tx.effects.applies_to_equivalents = due.affinity_until is None
        entries = find(ClaimPass(tx, request, now, due), due)
        if entries:
            self._update_cache_after_claim(due, now + request.timeout_s)
        else:
            tx.effects.retry_at = due.retry_at
        return entries

    def _update_cache_after_claim(self, due: DueSummary, expires_at: float) -> None:
        """Keep the cached due summary true: a claim changes when the first claim expires, and may charge contexts."""
        if due.any_context:
            self._env.cache.invalidate()
        elif due.expires_at is None or expires_at < due.expires_at:
            self._env.cache.update_due_summary(due._replace(expires_at=expires_at))

    def force_claim(
        self,
        sched_id: int,
        *,
        worker_id: str,
        by: str = "operator",
        admission_check: bool = True,
        claim_timeout_s: float = CLAIM_TIMEOUT_S,
        incarnation: str = "",
        now: float | None = None,
    ) -> ReadyEntry:
        """Claim one entry regardless of order; raises `SchedAdmissionDenied` with every reason that blocks it."""
        worker = check_worker(worker_id, incarnation)
        check_claim_options(admission_check, claim_timeout_s)
        _queue.text("by", by)
        if now is not None:
            _queue.instant("now", now)
        request = ClaimRequest(worker, 1, now, claim_timeout_s, (), admission_check)

        def work(tx: Transaction) -> ReadyEntry:
            at = self._env.now() if now is None else now
            due = self._run_due(tx, at, now_from_clock=now is None)
            rows = tx.run(queue_sql.GET, (_queue.whole("sched_id", sched_id),))
            if not rows:
                raise SchedUnknownId(sched_id)
            claim = ClaimPass(tx, request, at, due)
            blocked = claim.blocking_reasons(rows[0])
            if blocked:
                raise _denied(sched_id, blocked)
            affinity.release(tx, tx.run(queue_sql.AFFINITY_GET, (sched_id,)), at)
            claim.try_claim(rows[0], reason=f"forced by {by}")
            self._update_cache_after_claim(due, at + claim_timeout_s)
            return claim.write(policy="forced", forced_by=by)[0]

        return self._env.write(work)

    def peek(self, max_n: int = 1, *, kinds: Sequence[str] = (), worker_id: str = "peek") -> list[ReadyEntry]:
        """Return what a claim in strict order would return now, without claiming it."""
        request = make_claim_request(worker_id=worker_id, max_n=max_n, kinds=kinds)

        def look(tx: Transaction) -> list[ReadyEntry]:
            due, now = read_due_summary(tx), self._env.now()
            affinity.release_for_claim(tx, request, now, due)
            claim = ClaimPass(tx, request, now, due)
            claim.claim_in_strict_order()
            return [ready_entry_from_row(each.row) for each in claim.claimed]

        if self._env.read(lambda tx: read_due_summary(tx).affinity_until) is None:
            return self._env.read(look)
        return self._env.store.dry_run(look)  # entries held for the worker have to be released first


def _denied(sched_id: int, blocked: list[BlockingBase]) -> SchedAdmissionDenied:
    sentences = "; ".join(reason.sentence() for reason in blocked)
    return SchedAdmissionDenied(
        f"entry {sched_id} may not run: {sentences}",
        sched_id=sched_id,
        reasons=[msgspec.to_builtins(reason) for reason in blocked],
    )
