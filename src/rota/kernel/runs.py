"""Runs of claimed entries: heartbeats, charges, completion, return to the queue, and claims taken back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from rota.errors import LedgerInvalidAmount, RotaError, SchedInvalidPayload, SchedUnknownId
from rota.fault_log import FaultLog
from rota.kernel.clock_jumps import now_as_stored
from rota.kernel.completion import (
    RunRow,
    charge_run,
    end_runs,
    read_of_runs,
    read_runs,
    return_to_queue,
    stale_claim_error,
)
from rota.kernel.environment import KernelEnvironment, read_due_summary
from rota.kernel.ledger import ChargeResult, ledger_lines
from rota.kernel.maintenance import RECLAIM_MAX, Maintenance, reclaim_runs, sweep
from rota.kernel.progress import NoRepeats
from rota.kernel.run_reports import Completion, CompletionAnswer, RunEnd, check_completion, check_completions
from rota.kernel.turn import check_worker
from rota.kernel.workers import next_lost_at, remove_lost
from rota.model.checks import Checks
from rota.store import Row, Statement, Transaction
from rota.store.author import acting_as
from rota.store.statements import budgets as budget_sql
from rota.store.statements import claims as sql

__all__ = ["HeartbeatReply", "Runs"]

_queue = Checks("Queue", SchedInvalidPayload)
_amounts = Checks("Run", LedgerInvalidAmount)


class HeartbeatReply(NamedTuple):
    """The new expiry of a claim, and whether its run should stop."""

    claim_expires_at: float
    cancel_requested: bool


class Runs:
    """What workers do with entries that they have claimed."""

    def __init__(self, env: KernelEnvironment) -> None:
        self._env = env
        self.maintenance = Maintenance(env)
        self._faults = FaultLog("rota.kernel")  # of what is due after heartbeats

    # --- heartbeats and charges ------------------------------------------------------------------

    def heartbeat(self, sched_id: int, token: int, now: float | None = None) -> HeartbeatReply:
        """Extend a live claim by its `claim_timeout_s`."""
        answer = self.heartbeat_many([(sched_id, token)], now)[0]
        if isinstance(answer, RotaError):
            raise answer
        return answer

    def heartbeat_many(
        self, claims: Sequence[tuple[int, int]], now: float | None = None
    ) -> list[HeartbeatReply | RotaError]:
        """Extend many claims in one commit; a lost claim has its error in its place.

        Then it does what is due, like a claim: workers whose slots are all taken claim nothing. That is a transaction
        of its own: whatever is wrong there, the claims are extended. In a daemon, where a call is one transaction, the
        daemon does it (rpc/daemon/lost_workers.py). A heartbeat that comes after its own claim has expired takes back
        no other claim, and for some time no claim does: the store or the machine was away, and the other workers have
        been late too.
        """
        _queue.sequence("claims", claims)
        wanted = [_check_claim(each) for each in claims]
        if now is not None:
            _queue.instant("now", now)
        does_due = now is None and not self._env.store.is_joined
        is_due, is_late = False, False

        def work(tx: Transaction) -> list[HeartbeatReply | RotaError]:
            nonlocal is_due, is_late
            is_due = is_late = False  # a store may run the work again
            at = self._env.read_clock(tx, writes=False) if now is None else now
            expired = self.maintenance.expired_claims(tx, at) if now is None else frozenset()
            answers: list[HeartbeatReply | RotaError] = []
            for sched_id, token in wanted:
                rows = tx.run(sql.HEARTBEAT, (at, sched_id, token))
                if rows:
                    answers.append(HeartbeatReply(rows[0][1], bool(rows[0][0])))
                    is_late = is_late or sched_id in expired
                else:
                    answers.append(_lost_claim_error(tx, sched_id, token))
            if now is None and any(isinstance(answer, HeartbeatReply) for answer in answers):
                self._env.note_time(tx, at)
            if does_due:
                is_due = self.maintenance.remember_due(tx, at, until_due=True).is_due(at)
            return answers

        answers = self._env.write_keeping_cache(work)  # the cached expiry becomes too early, which is allowed
        if is_late:
            self._env.returning.begin()
        if is_due:
            self._do_due(reclaims=not (is_late or self._env.returning.is_going_on))
        return answers

    def _do_due(self, *, reclaims: bool) -> None:
        """Do what is due after a heartbeat; what goes wrong is logged, and tried again at the next one."""

        def work(tx: Transaction) -> None:
            at = self._env.read_clock(tx, writes=False)
            self.maintenance.run_due(tx, at, now_from_clock=True, reclaims=reclaims)

        try:
            self._env.write_keeping_cache(work)
        except Exception as problem:  # also a defect: the claims are extended, and the caller has to learn that
            self._faults.failed("cannot do what is due", problem, then="the next heartbeat or claim tries again")
        else:
            self._faults.worked()

    def charge(
        self,
        sched_id: int,
        amounts: Mapping[str, int],
        *,
        token: int | None = None,
        model: str | None = None,
        node: str | None = None,
        key: str | None = None,
    ) -> dict[str, ChargeResult]:
        """Record what a run used, at every level; returns the lines of its agent's own ledger.

        The coordinator of a graph run names the `node` that has used it. A second charge of a run with the same `key`
        records nothing: so a charge whose response was lost can be repeated.
        """
        _amounts.amounts("amounts", amounts)
        _amounts.optional_name("model", model)
        _amounts.optional_text("node", node)
        if key is not None:
            _amounts.text("key", key)

        def work(tx: Transaction) -> dict[str, ChargeResult]:
            now = self._env.read_clock(tx)
            run = self.live_run(tx, sched_id, token)
            if key is not None and not tx.run(budget_sql.CHARGE_KEY_ADD, (sched_id, key)):
                return ledger_lines(tx, run.pid, amounts)
            if token is None:
                return charge_run(tx, self._env, run, amounts, now, model=model, node=node)[1]
            with acting_as(f"run:{sched_id}"):  # the token proves it
                return charge_run(tx, self._env, run, amounts, now, model=model, node=node)[1]

        return self._env.store.write(work)

    # --- completion ------------------------------------------------------------------------------

    def complete(
        self,
        sched_id: int,
        exit_kind: str,
        *,
        token: int | None = None,
        result: Any = None,
        outcome: str | None = None,
    ) -> tuple[str, str]:
        """End a run; returns (state before, state after).

        With the live claim's token, an exit kind that the spec retries returns the entry to `queued` while attempts
        are left. Without a token a dispatched entry ends.
        """
        answer = self._end((check_completion(Completion(sched_id, exit_kind, token, result, outcome)),))[0]
        if isinstance(answer, RotaError):
            raise answer
        return answer

    def complete_many(self, completions: Sequence[Completion]) -> list[CompletionAnswer]:
        """End many runs in one commit; a refused one has its error in its place and does not affect the rest."""
        return self._end(check_completions(completions))

    def _end(self, run_ends: Sequence[RunEnd]) -> list[CompletionAnswer]:
        def work(tx: Transaction) -> list[CompletionAnswer]:
            if tx.prefetches:
                tx.read_together([read_of_runs(run_ends)])
            now = self._env.read_clock(tx, writes=False)
            answers = end_runs(tx, self._env, run_ends, now).answers
            if tx.effects.wake_parked and not self._env.clock_offset.is_noted:  # a run has ended
                self._env.note_time(tx, now)
            return answers

        return self._env.store.write(work)

    def put_back(
        self,
        sched_id: int,
        *,
        token: int,
        verb: Literal["yield", "preempt"] = "yield",
        runnable_at: float | None = None,
        delay_s: float = 0.0,
    ) -> None:
        """Return a run to the queue, now or for later, without counting an attempt.

        `runnable_at` is a date, `delay_s` a time from now. A run with a cancel request ends as cancelled instead.
        """
        _queue.one_of("verb", verb, ("yield", "preempt"))
        _queue.whole("token", token)
        if _queue.duration("delay_s", delay_s) and runnable_at is not None:
            raise _queue.refuse("delay_s", "must not be given together with runnable_at")
        if runnable_at is not None:
            _queue.instant("runnable_at", runnable_at)

        def work(tx: Transaction) -> None:
            now = self._env.read_clock(tx)
            run = self.live_run(tx, sched_id, token)
            if run.cancel_requested:
                end_runs(tx, self._env, [RunEnd(sched_id, "cancelled", token)], now)
            else:
                return_to_queue(tx, self._env, run, verb, now=now, runnable_at=runnable_at, delay_s=delay_s)

        self._env.store.write(work)

    # --- maintenance -----------------------------------------------------------------------------

    def gc_expired(self, now: float | None = None) -> int:
        """Expire every queued entry past its deadline; returns the number."""
        given = None if now is None else self._env.now(now)
        count, seen = 0, NoRepeats("entries past their deadline")
        while late := self._env.write(
            lambda tx: sweep(tx, self._env, self._env.read_clock(tx, writes=False) if given is None else given)
        ):
            seen.check(late)
            count += len(late)
        return count

    def gc_dispatched(self, stale_seconds: float, now: float | None = None) -> int:
        """Take back every claim whose last heartbeat is older than this; returns the number."""
        _queue.duration("stale_seconds", stale_seconds)
        if now is not None:
            _queue.instant("now", now)

        def work(tx: Transaction) -> list[Row]:
            at = self._env.read_clock(tx, writes=False) if now is None else now
            return self._reclaim(tx, sql.STALE_CLAIMS, (at - stale_seconds,), at)

        return self._reclaim_all(work)

    def take_over(self, worker_id: str, incarnation: str) -> int:
        """Take back the claims of a worker's earlier incarnations, after its restart; returns the number."""
        check_worker(worker_id, incarnation)
        return self._reclaim_all(
            lambda tx: self._reclaim(tx, sql.CLAIMS_OF_WORKER, (worker_id, incarnation), self._env.read_clock(tx))
        )

    def run_due(self, *, reclaims: bool) -> bool:
        """Do what is due, in place of workers; returns whether claims have expired that are not taken back.

        Without `reclaims` none is, and none while workers come back. While nothing is due, it writes nothing.
        """
        reclaims = reclaims and not self._env.returning.is_going_on

        def work(tx: Transaction) -> bool:
            at = self._env.read_clock(tx, writes=False)
            expires_at = self.maintenance.run_due(tx, at, now_from_clock=True, reclaims=reclaims).expires_at
            return expires_at is not None and expires_at <= at

        is_due = self._env.read(lambda tx: read_due_summary(tx).is_due(now_as_stored(tx, self._env)))
        return is_due and self._env.write(work)

    def upkeep(self, now: float | None = None) -> float | None:
        """Do what is due; returns when the next thing falls due, or None."""

        if now is not None:
            _queue.instant("now", now)

        def work(tx: Transaction) -> float | None:
            at = self._env.read_clock(tx, writes=False) if now is None else now
            self._env.cache.count_shares(tx, at)
            next_at = self.maintenance.run_due(tx, at, now_from_clock=now is None).next_at
            if now is not None:
                return next_at
            remove_lost(tx, at)
            return min((each for each in (next_at, next_lost_at(tx)) if each is not None), default=None)

        return self._env.write(work)

    # --- internal --------------------------------------------------------------------------------

    def _reclaim_all(self, work: Callable[[Transaction], list[Row]]) -> int:
        """Repeat work that takes claims (id, token) back until it finds none; returns the number."""
        count, seen = 0, NoRepeats("claims to take back")
        while claims := self._env.write(work):
            seen.check(claims)
            count += len(claims)
        return count

    def _reclaim(self, tx: Transaction, statement: Statement, parameters: tuple[Any, ...], now: float) -> list[Row]:
        claims = tx.run(statement, (*parameters, RECLAIM_MAX))
        reclaim_runs(tx, self._env, [row[0] for row in claims], now)
        return claims

    def live_run(self, tx: Transaction, sched_id: int, token: int | None) -> RunRow:
        """Return a run that is dispatched and, if a token is given, whose live claim has that token."""
        if token is not None:
            _queue.whole("token", token)
        run = read_runs(tx, [_queue.whole("sched_id", sched_id)]).get(sched_id)
        if run is None:
            raise SchedUnknownId(sched_id)
        if run.state != "dispatched" or (token is not None and run.token != token):
            raise _lost_claim_error(tx, sched_id, token)
        return run


def _check_claim(claim: tuple[int, int]) -> tuple[int, int]:
    """Check a pair of an entry and its claim token."""
    try:
        sched_id, token = claim
    except (TypeError, ValueError) as problem:
        raise _queue.refuse("claims", f"must be pairs of sched_id and token, not {claim!r}") from problem
    return _queue.whole("sched_id", sched_id), _queue.whole("token", token)


def _lost_claim_error(tx: Transaction, sched_id: int, token: int | None) -> RotaError:
    run = read_runs(tx, [sched_id]).get(sched_id)
    return SchedUnknownId(sched_id) if run is None else stale_claim_error(run, token)
