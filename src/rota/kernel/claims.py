"""Claiming: a worker gets ready entries for itself, now or as soon as there are some.

A claim is one transaction. It does what is due, releases what was held for the worker, and runs a pass that selects,
checks and writes (claim_pass.py). Here the order is strict; the service claims by a policy, from the same pieces. If
the store has a policy of its own, the kernel's claim obeys it too, and has the service choose. If a pass claims nothing
and the caller wants to wait, the store parks the request and runs it again when something changes or falls due.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Unpack

import msgspec

from rota.errors import SchedAdmissionDenied, SchedInvalidPayload, SchedUnknownId
from rota.kernel import affinity
from rota.kernel.claim_pass import ClaimPass, begin_claim
from rota.kernel.environment import KernelEnvironment, read_due_summary
from rota.kernel.progress import NoRepeats
from rota.kernel.rows import ready_entry_from_row, state_and_hold
from rota.kernel.runs import Runs
from rota.kernel.turn import (
    CLAIM_TIMEOUT_S,
    ClaimOptions,
    TurnRequest,
    check_claim_options,
    check_worker,
    make_turn_request,
)
from rota.model.checks import Checks
from rota.model.reasons import BlockingBase
from rota.model.work import ReadyEntry, Worker
from rota.store import Transaction, WakeHandle
from rota.store.forks import in_child
from rota.store.statements import queue as queue_sql

__all__ = ["Claims"]

WAKE_HANDLES_MAX = 10_000  # workers with a wake handle; the oldest is dropped first
_queue = Checks("Queue", SchedInvalidPayload)


class Claims(Runs):
    """Claiming entries, and waiting for entries to claim."""

    # claims by the policy of the store; a dispatcher sets it, and the kernel makes one if there is none
    claim_by_policy: Callable[[TurnRequest, Transaction], list[ReadyEntry]]

    def __init__(self, env: KernelEnvironment) -> None:
        super().__init__(env)
        self._wake_handles: dict[Worker, WakeHandle] = {}
        self._wake_handles_lock = threading.Lock()
        in_child(self._forget_workers)

    def _forget_workers(self) -> None:
        """In a forked child: the workers are threads of the parent."""
        self._wake_handles = {}
        self._wake_handles_lock = threading.Lock()

    def claim(
        self, *, worker_id: str, max_n: int = 1, wait_s: float = 0.0, **options: Unpack[ClaimOptions]
    ) -> list[ReadyEntry]:
        """Claim ready entries for a worker; while there are none, wait up to `wait_s`.

        The order is strict, unless the store has a policy of its own.
        """
        request = make_turn_request(worker_id=worker_id, max_n=max_n, wait_s=wait_s, **options)

        def work(tx: Transaction) -> list[ReadyEntry]:
            if self._env.cache.store_policy(tx).setting is not None:
                return self.claim_by_policy(request, tx)
            seen: NoRepeats | None = None  # rarely needed
            while True:
                claim = begin_claim(tx, self._env, self.maintenance, request)
                claim.claim_in_strict_order()
                entries = claim.write()
                if entries or not claim.ended_unreadable:
                    return entries
                seen = seen or NoRepeats("ready entries")
                seen.check(claim.ended_unreadable)

        return self.park(work, request, "strict") if wait_s > 0 else self._env.store.write(work)

    def park(
        self, work: Callable[[Transaction], list[ReadyEntry]], request: TurnRequest, policy: str
    ) -> list[ReadyEntry]:
        """Run a claim; while it returns nothing, wait until it does, at most `wait_s` or until `nudge`.

        Parked claims by the same policy find the same: if one finds nothing, the others are not tried.
        """
        equivalence_key = policy, request.claim_kind
        return self._env.store.wait(work, request.wait_s, equivalence_key, self._wake_handle(request.worker))

    def nudge(self, worker_id: str, incarnation: str = "") -> None:
        """Make a worker's waiting claim return empty now; if none is waiting, its next claim does not wait."""
        self._env.store.interrupt(self._wake_handle(check_worker(worker_id, incarnation)))

    def _wake_handle(self, worker: Worker) -> WakeHandle:
        with self._wake_handles_lock:
            if worker not in self._wake_handles and len(self._wake_handles) >= WAKE_HANDLES_MAX:
                del self._wake_handles[next(iter(self._wake_handles))]
            return self._wake_handles.setdefault(worker, WakeHandle())

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
        request = TurnRequest(worker, 1, now, claim_timeout_s, (), admission_check)

        def work(tx: Transaction) -> ReadyEntry:
            at = self._env.read_clock(tx, writes=False)
            due = self.maintenance.run_due(
                tx, at, now_from_clock=True, sweeps=now is None, takes_in=False, claimant=worker
            )
            claim = ClaimPass(tx, self._env, request, at, due)
            claim.lift_holds()
            rows = tx.run(queue_sql.GET, (_queue.whole("sched_id", sched_id),))
            if not rows:
                raise SchedUnknownId(sched_id)
            blocked = claim.blocking_reasons(rows[0])
            if blocked:
                raise _denied(sched_id, blocked)
            affinity.release(tx, self._env, tx.run(queue_sql.AFFINITY_GET, (sched_id,)), at)
            if state_and_hold(rows[0])[1] is not None:  # its time has come, and it was not released yet
                tx.run(queue_sql.RELEASE, (None, sched_id))
            claim.try_claim(rows[0], reason=f"forced by {by}")
            return claim.write(policy="forced", forced_by=by)[0]

        return self._env.write(work)

    def peek(
        self,
        max_n: int = 1,
        *,
        kinds: Sequence[str] = (),
        worker_id: str = "peek",
        except_agents: Sequence[int] = (),
    ) -> list[ReadyEntry]:
        """Return what a claim in strict order would return now, without claiming it."""
        request = make_turn_request(worker_id=worker_id, max_n=max_n, kinds=kinds, except_agents=except_agents)

        def look(tx: Transaction) -> list[ReadyEntry]:
            due = msgspec.structs.replace(read_due_summary(tx), held_at=None)
            now, env = self._env.now(), self._env.isolated()
            if due.affinity_until is not None:
                affinity.release_for_claim(tx, env, request, now)
            claim = ClaimPass(tx, env, request, now, due)
            claim.claim_in_strict_order()
            claim.claim_on_loans()
            entries = [ready_entry_from_row(each.row) for each in claim.claimed]
            return [entry for entry in entries if entry.unreadable is None]

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
